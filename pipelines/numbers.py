"""Which numbers options may have at all, whatever else a command asks of them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
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
