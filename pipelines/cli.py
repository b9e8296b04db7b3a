"""The `privstream` command."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Sequence

from privstream.pipelines import heavy_hitters, simulate_command
from privstream.pipelines.command import Command, RunError, UsageError

COMMANDS: tuple[Command, ...] = (
    heavy_hitters.COMMAND,
    simulate_command.COMMAND,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 on success, 1 if the run failed, 2 if it was not started for a usage error."""
    parser = argparse.ArgumentParser(
        prog="privstream", description="Differentially private monitoring of event streams.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        added = commands.add_parser(
            command.name, help=command.help, description=command.description, allow_abbrev=False
        )
        added.add_argument("--traceback", action="store_true", help="show where an error comes from")
        command.add_arguments(added)
    known, others = parser.parse_known_args(arguments)
    (command,) = (command for command in COMMANDS if command.name == known.command)
    if others and not command.takes_beam_options:
        commands.choices[command.name].error(f"unknown option {others[0]}")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        command.run(known, others)
    except UsageError as error:
        return _fail(known, error, 2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("privstream: interrupted; nothing was written", file=sys.stderr)
        return 130
    except RunError as error:
        return _fail(known, error, 1)
    return 0


def _fail(known: argparse.Namespace, error: Exception, status: int) -> int:
    """Say what went wrong in one line."""
    if known.traceback:
        traceback.print_exception(error)
    print(f"privstream {known.command}: error: {error}", file=sys.stderr)
    return status
