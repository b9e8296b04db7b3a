"""The `privstream` command."""

from __future__ import annotations

import argparse
import gc
import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, NoReturn

from privstream.pipelines.command import Command, CommandError, Parser, UsageError, spelled
from privstream.pipelines.commands.question import run_command
from privstream.pipelines.locations import MONITOR_FILES
from privstream.pipelines.model.catalogue import MODELS, Suggest
from privstream.pipelines.model.question import loaded
from privstream.pipelines.options import LAYERS, add_options, given_to
from privstream.pipelines.terminal import PrintableFormatter, did_you_mean, one_line, quietly, say
from privstream.pipelines.yaml_file import read_document

Commands = Mapping[str, tuple["str | Callable[[], Command] | Commands", str]]


PLANS: Commands = {
    kind.info.word: (lambda kind=kind: loaded("commands.plan.plan_command")(kind), kind.info.summary)  # type: ignore[misc]
    for kind in MODELS.values()
}
BUDGET: Commands = {
    "show": ("accounts.commands.SHOW", "add up the privacy budget that all runs on a data set have spent"),
    "set": ("accounts.commands.SET", "set the limit of a data set, which all later runs must keep"),
    "rename": ("accounts.commands.RENAME", "give a data set another name, such as one whose runs had none"),
    "fit": ("accounts.commands.FIT", "count the runs that fit into a limit"),
    "verify": ("accounts.commands.VERIFY", "check that no line of a ledger was changed or deleted"),
}
COMMANDS: Commands = {
    **{kind.info.word: (partial(run_command, kind), kind.info.summary) for kind in MODELS.values()},
    "explain": ("report.commands.EXPLAIN", "explain a result: its guarantee, accuracy, limits and columns"),
    "demo": ("simulate.DEMO", "try it out: simulate searches, find trends privately, show what was found and missed"),
    "audit": ("audit.command", "replay the worst case of a question, or of a run: does it keep its promise"),
    "budget": (BUDGET, "show what all runs on a data set have spent, limit it, and check the ledger"),
    "plan": (PLANS, "predict the accuracy for a privacy budget, of one question or of a FILE.yaml with several"),
    "plot": ("report.commands.PLOT", "draw the chart of a result, with its intervals"),
    "run": (run_command, "answer all questions of a FILE.yaml by one pipeline, under one budget"),
    "report": ("report.commands.REPORT", "make one page of results: pictures, tables, guarantees"),
    "init": ("commands.init", "write a monitor, a file of questions, to fill in"),
    "schema": (
        "commands.question.SCHEMA",
        "print the JSON schema of monitors, with which editors complete and check them",
    ),
    "serve": ("report.commands.SERVE", "show results on a page as they come from running jobs"),
    "suggest": (partial(run_command, Suggest), Suggest.info.summary),
    "simulate": ("simulate.SIMULATE", "write simulated events, searches in a city, and the truth about them"),
}
"""Name -> the path of a command or of its module, or commands one word longer, and one line of help. Only the chosen
command is imported: Beam takes seconds to load."""

PLAN_OF_FILE = "commands.plan", "share out one budget over the questions of a file"
"""What `plan` is where it takes a file in place of a question."""

STATUS = """\
exit status:
  0    the rows are written
  1    the run failed, or an audit has refuted a guarantee
  2    the command was not started: an option or a file is wrong
  3    the rows are written, but nothing that was read could be used; the last line counts the reasons
  130  interrupted; 143 by SIGTERM, as of kill and timeout, and 129 by a terminal that was closed
"""

OF_ALL = {"--traceback": {"action": "store_true", "help": "show the traceback of an error, which may quote records"}}
OF_RUNS: Mapping[str, Mapping[str, Any]] = {
    "--quiet": {"action": "store_true", "help": "print nothing but errors"},
    "--workers": {"type": int, "metavar": "N", "help": "processes that share the work, for files on the FnApiRunner "
                  "(default: by the size of the input)"},
}  # fmt: skip
NOT_ITS_OWN = frozenset({"command", "about", "traceback", "quiet", "defaults", "set"})
"""Parsed values that a command does not get: what all commands have, and layers of what is `given`."""

INTERRUPTED = "privstream: interrupted; no file is half-written"

BY_RICH = 1
"""The status with which rich ends a process whose standard output nobody reads any more."""

OBJECTS = 10_000
"""New ones that start a search for garbage. Python's 700, and one at the end, take a third of a small run."""

BY_SIGNAL = 128
"""What a status is above, by the number of the signal that has ended the command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status, as `STATUS` says."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_terminal()
    if arguments is None:
        gc.set_threshold(OBJECTS)
        _end_in_order()
    parser = Parser(prog="privstream", description="Differentially private monitoring of event streams.", epilog=STATUS)
    parser.add_argument("--version", action="version", version=f"privstream {version('privstream')}")
    of_file = given[:1] == ["plan"] and "".join(given[1:2]).endswith(MONITOR_FILES)
    chosen = _add(parser, {**COMMANDS, "plan": PLAN_OF_FILE} if of_file else COMMANDS, given, "command")
    known, others = parser.parse_known_args(given)
    if chosen is None:
        parser.error(f"{known.command} must come first")
    command, added = chosen
    if others and not command.takes_beam_options:
        added.error(f"unknown option {others[0]}{did_you_mean(others[0], added._option_string_actions)}")
    status = _run(command, known, others, added)
    if arguments is None:  # threads of a runner that failed print tracebacks while the process ends
        gc.freeze()
        sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    return status


def _prepare_terminal() -> None:
    """Let nothing be printed that could steer a terminal, or that its encoding cannot say."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before the command began
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the process ends
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _end_in_order() -> None:
    """Let signals that end the process raise an error: temporary files, such as the rows of a query, go before it."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, frame: Any) -> NoReturn:
    raise SystemExit(BY_SIGNAL + number)


def _add(
    parser: argparse.ArgumentParser, commands: Commands, given: list[str], name: str
) -> tuple[Command, argparse.ArgumentParser] | None:
    """Add commands to a parser; return the one that is given, with its parser."""
    added = parser.add_subparsers(dest=name, required=True, metavar="COMMAND")
    chosen = None
    for word, (what, text) in commands.items():
        one = added.add_parser(word, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if given[:1] != [word]:
            continue
        if isinstance(what, Mapping):
            chosen = _add(one, what, given[1:], "about")
            continue
        command = load(what)
        one.description, one.epilog = command.description, command.epilog
        of_runs, layers = OF_RUNS if command.takes_beam_options else {}, {} if command.keys is None else LAYERS
        advanced: dict[str, Any] = {**OF_ALL, **of_runs, **layers}
        for option, how in {**command.options, **advanced}.items():
            one.add_argument(option, **how).advanced = option in advanced  # type: ignore[attr-defined]
        add_options(one, command.keys or (), command.kind)
        chosen = command, one
    return chosen


def load(what: str | Callable[[], Command]) -> Command:
    """Make a command, or import it."""
    found = loaded(what) if isinstance(what, str) else what()
    command: Command = getattr(found, "COMMAND", found)
    return command


def _run(command: Command, known: argparse.Namespace, others: list[str], parser: argparse.ArgumentParser) -> int:
    values = {name: value for name, value in vars(known).items() if "." not in name and name not in NOT_ITS_OWN}
    try:
        with quietly(on=getattr(known, "quiet", False)):
            if command.keys is not None:
                document = read_document(known.file) if command.kind is None else None
                values["given"] = given_to(command.kind, vars(known), command.keys, document)
            if command.takes_beam_options:
                values["beam"] = others
            command.run(**values)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        say(INTERRUPTED)
        return 130
    except SystemExit as ended:  # by a signal, so that a job on a cluster goes on; or the reader of a table has gone
        status = int(ended.code or 0)
        if status > BY_SIGNAL:
            say(INTERRUPTED)
        return 0 if status == BY_RICH else status
    except (CommandError, OSError, MemoryError) as error:  # the system's own: of what surrounds a run
        if known.traceback:
            say("".join(traceback.format_exception(error)).rstrip())
        say(one_line(f"{parser.prog}: error: {_in_words(error, parser._option_string_actions, others)}"))
        return error.status if isinstance(error, CommandError) else CommandError.status
    return 0


def _in_words(error: Exception, options: Iterable[str], others: Iterable[str]) -> str:
    """Return what an error says, with options, also those of Beam among the `others`, as on the command line."""
    if isinstance(error, MemoryError):
        return f"there is not enough memory for numbers of this size: {error}"
    if not isinstance(error, UsageError):
        return str(error)
    words = [word.partition("=")[0] for word in (*options, *others) if word.startswith("--")]
    text = spelled(str(error), {word.removeprefix("--").replace("-", "_"): word for word in words})
    return f"{text}{did_you_mean(text.split()[2], options)}" if text.startswith("unknown option ") else text
