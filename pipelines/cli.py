"""The `privstream` command."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import logging
import os
import sys
import traceback
from collections.abc import Sequence

from privstream.pipelines.command import Command, RunError, UsageError

COMMANDS = {
    "demo": ("demo", "try everything out: simulate, watch privately, show what was found"),
    "heavy-hitters": ("heavy_hitters", "report the items that many people hold, window by window"),
    "plan": ("plan", "say what a privacy budget finds, before any data is touched"),
    "plot": ("plot", "draw results, with error bars and, where it is known, the truth"),
    "simulate": ("simulate_command", "write simulated events, and the truth about them"),
}
"""Name -> module and one line of help. Only the chosen command's module is imported: Beam takes seconds to load."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 on success, 1 if the run failed, 2 if it was not started for a usage error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    parser = argparse.ArgumentParser(
        prog="privstream", description="Differentially private monitoring of event streams.", allow_abbrev=False
    )
    version = f"%(prog)s {importlib.metadata.version('privstream')}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command: Command | None = None
    for name, (module, text) in COMMANDS.items():
        added = commands.add_parser(name, help=text, allow_abbrev=False)
        if given[:1] == [name]:
            command = load(module)
            added.description = command.description
            added.add_argument(
                "--traceback", action="store_true", help="show where an error comes from; may show records"
            )
            command.add_arguments(added)
    known, others = parser.parse_known_args(given)
    if command is None:
        parser.error(f"{known.command} must come first")
    if others and not command.takes_beam_options:
        commands.choices[known.command].error(f"unknown option {others[0]}")
    status = _run(command, known, others)
    if arguments is None:
        _say_no_more()
    return status


def _say_no_more() -> None:
    """Close the process's standard error: threads of a runner that failed print tracebacks while the process ends."""
    sys.stderr.flush()
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)


def load(module: str) -> Command:
    """Import a command's module, without what other libraries have to say when they are loaded."""
    logging.disable(logging.WARNING)
    try:
        command: Command = importlib.import_module(f"privstream.pipelines.{module}").COMMAND
    finally:
        logging.disable(logging.NOTSET)
    return command


def _run(command: Command, known: argparse.Namespace, others: list[str]) -> int:
    """Run a command that has been parsed."""
    try:
        command.run(known, others)
        sys.stdout.flush()
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
