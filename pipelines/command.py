"""What a subcommand of `privstream` is."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


class CommandError(Exception):
    """A command that does not end well: the message says why, and `status` is what its process returns."""

    status = 1


class UsageError(CommandError):
    """The command cannot be started as given: the message says which option is wrong, and the rule."""

    status = 2


class RunError(CommandError):
    """The command was started and failed: the message says what happened, and what to do."""


class NothingUsableError(CommandError):
    """The command has written its rows, but nothing that it has read could be used: the message counts the reasons."""

    status = 3


class InconclusiveError(CommandError):
    """An audit that shows nothing: it did not catch a mechanism that is known to promise less."""

    status = 4


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
