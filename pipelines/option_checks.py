"""Which numbers and texts options may have at all, whatever else a command asks of them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any

from privstream.mechanisms import checks
from privstream.pipelines.command import UsageError

LARGEST_EPSILON = 500.0
"""With more, nothing is protected, and e^epsilon is no number."""

LEAST = {"delta": 1e-30, "beta": 1e-15}
"""Smaller probabilities, unless 0, are lost among the roundings of what is reckoned with them."""

LARGEST = 2**40
"""Of whole numbers: more steps, people or items than any run has."""

UNLIMITED = ("universe", "answers", "seed")
"""Options with limits of their own, if any."""


def check_numbers(arguments: argparse.Namespace) -> None:
    """Check the size of all numbers among the options; the rules of each command come on top.

    Raises:
        UsageError: naming the option.
    """
    try:
        _check(vars(arguments))
    except ValueError as error:
        raise UsageError(str(error)) from error


def _check(given: Mapping[str, Any]) -> None:
    """Check options by name."""
    epsilons = given.get("epsilon")
    for epsilon in epsilons if isinstance(epsilons, list) else [] if epsilons is None else [epsilons]:
        checks.epsilon(epsilon, largest=LARGEST_EPSILON)
    for name, least in LEAST.items():
        if 0 < given.get(name, 0) < least:
            raise ValueError(f"{name} must be >= {least:g}, got {given[name]}")
    for name, value in given.items():
        if isinstance(value, int) and abs(value) > LARGEST and name not in UNLIMITED:
            raise ValueError(f"{name} must be between -2**40 and 2**40, got {value}")


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
