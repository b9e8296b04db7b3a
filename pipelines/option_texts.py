"""Which texts options may have at all, whatever else a command asks of them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from privstream.pipelines.command import UsageError

PASSWORD = re.compile(r"\s*[\w+.-]+:/+([^/@]*:[^@]*@|.*[?&;]\w*password=)", re.IGNORECASE)
"""How an address begins that has a password, of whatever scheme: also one that no option takes."""

SECRETS = "for PostgreSQL set PGPASSWORD, or write ~/.pgpass; for Kafka give --kafka_setting sasl.password=@FILE"


def check_texts(arguments: argparse.Namespace, others: Sequence[str]) -> None:
    """Check that all texts are Unicode, so that they can be printed, hashed and handed to workers, and no address has a
    password: lists of processes, the ledger and error messages have addresses as they are given.

    Args:
        arguments: the options of the command.
        others: the arguments that are for Beam.

    Raises:
        UsageError: naming the option; its value may be a secret.
    """
    for name, value in vars(arguments).items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and not _is_text(text):
                raise UsageError(f"{name} must be valid UTF-8 text without a NUL character")
            if isinstance(text, str) and PASSWORD.match(text):
                raise UsageError(f"{name} must be without a password, which others could read; {SECRETS}")
    for text in others:
        if not _is_text(text):
            raise UsageError(f"{text.partition('=')[0]} must be valid UTF-8 text without a NUL character")


def _is_text(text: str) -> bool:
    """Tell whether UTF-8 can say a text: bytes of a command line that it could not are surrogates."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False
