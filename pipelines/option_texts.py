"""Which texts options may have at all, whatever else a command asks of them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from privstream.pipelines.command import UsageError


def check_texts(arguments: argparse.Namespace, others: Sequence[str]) -> None:
    """Check that all texts are Unicode, so that they can be printed, hashed and handed to workers.

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
    for text in others:
        if not _is_text(text):
            raise UsageError(f"{text.partition('=')[0]} must be valid UTF-8 text without a NUL character")


def _is_text(text: str) -> bool:
    """Tell whether UTF-8 can say a text: bytes of a command line that it could not are surrogates."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False
