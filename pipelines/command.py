"""What a subcommand of `privstream` is."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


class UsageError(Exception):
    """The command cannot be started as given: the message says which option is wrong, and the rule."""


class RunError(Exception):
    """The command was started and failed: the message says what happened, and what to do."""


@dataclass(frozen=True)
class Command:
    """A subcommand: what it says of itself, its options, and what it does.

    `run` gets the parsed options and the arguments that are not its own, which only a command that
    `takes_beam_options` may have.
    """

    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, list[str]], None]
    takes_beam_options: bool = False
