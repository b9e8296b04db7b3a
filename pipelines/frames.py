"""Questions about frames of events, and results as frames, in Python."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import io
import logging
import os
import re
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, overload

from privstream.pipelines.command import NothingUsableError, Parser, RunError, UsageError, as_rule
from privstream.pipelines.questions.catalogue import WORDS, question
from privstream.pipelines.questions.commands import run_command
from privstream.pipelines.questions.option_types import OPTION_TYPES
from privstream.pipelines.questions.options import options_of
from privstream.pipelines.questions.spec import QuestionSpec, loaded
from privstream.pipelines.show.words import WARNING
from privstream.pipelines.terminal import NOTE

if TYPE_CHECKING:
    from privstream.pipelines.report.result import Result

OF_FILES = ("input", "query", "input_format", "delimiter", "encoding", "quote", "watch", "watermark", "output_format")
"""Options about files and databases that are read, or input without an end: a frame is none of these."""

DASHES = re.compile(r"(?<![\w-])--(?=[a-z])")


class _Parser(Parser):
    """Raises an error where a command would end."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(as_rule(message))


def in_python(message: str) -> str:
    """Return a message about options as one about keywords: `--epsilon must be ..` becomes `epsilon must be ..`."""
    return DASHES.sub("", message)


def options(
    spec: QuestionSpec, given: Mapping[str, Any], *, input: str, output: str, folder: str, of_files: bool = False
) -> tuple[argparse.Namespace, dict[str, str]]:
    """Return the options of a question's command, and what to show of those that were lists.

    Args:
        spec: the question.
        given: keywords; None is as if one was not given.
        input, output: values of these options.
        folder: where lists may be written that the command line takes as files.
        of_files: whether options about files may be among the keywords, too.

    Raises:
        TypeError: there is no such option, or its value is of a type that stands for nothing.
        ValueError: as the command line words it.
    """
    parser = _Parser(prog=spec.word, add_help=False)
    run_command(spec).add_arguments(parser)
    actions = {word.removeprefix("--"): action for action in parser._actions for word in action.option_strings}
    known = [name for name in actions if name != "output" and (of_files or name not in OF_FILES)]
    words = [f"--input={input}", f"--output={output}"]
    kinds = {option.name: option.type for option in options_of(spec)}
    shown: dict[str, str] = {}
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            guess = f"; did you mean `{near[0]}`?" if near else ""
            raise TypeError(f"{spec.word} has no option `{name}` for frames{guess}")
        if value is None:
            continue
        if actions[name].nargs == 0:
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be True or False, got {type(value).__name__}")
            words += [f"--{name}"] * value
        elif actions[name].nargs == "?" and isinstance(value, bool):
            words += [f"--{name}"] * value  # with what it stands for without a value
        elif isinstance(actions[name], argparse._AppendAction):
            words += [f"--{name}={_text(name, one)}" for one in ([value] if isinstance(value, str) else value)]
        else:
            path = os.path.join(folder, name)
            number = _write_list(kinds.get(name), name, value, path)
            if number is not None:
                shown[name] = f"a list of {number:,}"
            words.append(f"--{name}={_text(name, value if number is None else path)}")
    return parser.parse_args(words, argparse.Namespace(command=spec.word)), shown


def _write_list(kind: str | None, name: str, value: Any, path: str) -> int | None:
    """Write a public list as the file that the command line has in its place; return its length."""
    write = None if kind is None else OPTION_TYPES[kind].write
    if write is None or isinstance(value, str | os.PathLike | int):
        return None
    length: int | None = loaded(write)(path, name, value)
    return length


def _text(name: str, value: Any) -> str:
    """Return a value as it stands on a command line."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if isinstance(value, timedelta):
        return str(value.total_seconds())
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | tuple):
        texts = [_text(name, one) for one in value]
        if any("," in text for text in texts):
            raise ValueError(f"{name} must be texts without commas")
        return ",".join(texts)
    if isinstance(value, Mapping | set | frozenset | bytes):
        raise TypeError(f"{name} must be text, a number, or a list of them, got {type(value).__name__}")
    return str(value)


def read(path: str | os.PathLike[str]) -> Result:
    """Read the output of any command, with what is guaranteed of it.

    Args:
        path: a file of rows (.avro, .parquet, .jsonl or .csv) with its guarantee file, or the folder of a run without
            an end.

    Returns:
        The result: `table` has its rows as a pyarrow.Table, with times as Arrow timestamps.

    Raises:
        ValueError: the path has no result, or a part of it is missing or damaged.

    Example:
        >>> read("counts.parquet").table.to_pandas()  # doctest: +SKIP
    """
    try:
        result: Result = loaded("report.result.read_result")(os.fspath(path))
    except ValueError as error:
        raise ValueError(str(error).replace("RESULT", "path", 1)) from None
    return result


ACCOUNTS = ("noise_key_file", "noise_key_variable", "ledger")
WARNED = "the run warns: see the log of the result, which has exact numbers"
"""What a warning of the log becomes in Python, where only the log has exact numbers."""

ONE_AT_A_TIME = threading.Lock()
"""Standard error is the process's."""


@dataclasses.dataclass(frozen=True)
class DryRun:
    """What `ask` returns where `dry_run=True`: nothing was published, recorded or spent.

    Attributes:
        log: how much of the frame can be used, why the rest cannot, and what a run would promise. It has exact numbers:
            guard it like the frame.
    """

    log: str = dataclasses.field(default="", repr=False)


class Questions(Protocol):
    """Several questions that are answered together: a `Monitor`."""

    def answer(self, frame: Any, output: str | os.PathLike[str] | None, folder: str) -> Mapping[str, str]:
        """Answer them about a frame, with a folder for temporary files; return the files of rows by name."""


@overload
def ask(
    question: str, frame: Any, *, output: str | os.PathLike[str] | None = None, dry_run: Literal[True], **keywords: Any
) -> DryRun: ...


@overload
def ask(question: str, frame: Any, *, output: str | os.PathLike[str] | None = None, **keywords: Any) -> Result: ...


@overload
def ask(
    question: Questions, frame: Any, *, output: str | os.PathLike[str] | None = None, **keywords: Any
) -> dict[str, Result]: ...


def ask(
    question: str | Questions, frame: Any, *, output: str | os.PathLike[str] | None = None, **keywords: Any
) -> Result | DryRun | dict[str, Result]:
    """Answer a question about the events of a frame, as its command does about those of a file.

    The columns that are read are written into a temporary Parquet file, which its owner alone can read, and which is
    deleted afterwards. All checks, the ledger and the guarantee are those of the command.

    *Privacy*: as the guarantee of the result says. The same question about the same values in the same order, with the
    same key, is the same release: it gives the same rows, and costs nothing more. Another order of rows is other data
    and another release, so sort what comes in any order. Since cells of notebooks run more than once, a key or a ledger
    must be given: `noise_key_file` (which has a ledger beside it), `noise_key_variable` or `ledger`. The `log` of the
    result has exact numbers: it is shown only where you ask for it.

    Args:
        question: the word of the command, such as "counts"; or a `Monitor`, whose questions are all answered by one
            reading of the frame, under its guarantee. It has its options already.
        frame: events, one in each row: of pandas (2.2 or newer), Polars, pyarrow or DuckDB, or anything else with
            `__arrow_c_stream__`.
        output: a file for the rows, .avro, .parquet, .jsonl or .csv, with the guarantee beside it; of a monitor, a
            folder. None for none.
        **keywords: options of the command by their names, such as `epsilon=1, window="1d", user_field="who"`. Public
            lists of items (`domain`) and of rules may be lists; `timedelta` and `datetime` are understood.

    Returns:
        The result: `table` (a pyarrow.Table), `guarantee`, `accuracy`, `chart()`, `log`. Of a monitor, one for each
        of its questions, by name. With `dry_run=True` a `DryRun`, which has a `log` alone.

    Raises:
        ValueError, TypeError: an option, the frame or a column breaks a rule, or no event can be used.
        RuntimeError: the run failed.

    Example:
        >>> found = ask("counts", frame, epsilon=1, delta=1e-6, noise_key_file="key", ...)  # doctest: +SKIP
        >>> found.table.to_pandas()  # doctest: +SKIP
    """
    if not isinstance(question, str):
        if keywords:
            raise TypeError(f"{next(iter(keywords))} must not be given with a monitor, which has its options")
        return asked(partial(question.answer, frame, output))
    spec = _spec(question)
    check_account(keywords)
    found: Result | DryRun
    (found,) = asked(lambda folder: {question: _run(spec, frame, output, keywords, folder)}).values()
    return found


def check_account(given: Mapping[str, Any]) -> None:
    """Refuse a call that, made again, would be a further release, or that nobody counts.

    Raises:
        ValueError: naming the option.
    """
    if all(given.get(name) is None for name in ACCOUNTS):
        raise ValueError(
            "noise_key_file must be given, so that the same cell, run again, is no further release; or "
            "noise_key_variable; or a ledger, which counts every run (ledger='none' goes without)"
        )
    ledger = given.get("ledger") or given.get("noise_key_file")
    if given.get("run_id") is not None and ledger in (None, "none"):
        raise ValueError("run_id must not be given without a ledger: other data would get the same noise")


def asked(run: Callable[[str], Mapping[str, str]]) -> dict[str, Any]:
    """Run a command, and return its results with what it has said; errors and warnings are those of Python.

    Args:
        run: gets a temporary folder, and returns the paths of results by name; an empty one of a dry run.
    """
    said = io.StringIO()
    with ONE_AT_A_TIME, tempfile.TemporaryDirectory(prefix="privstream-") as folder:
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()), _loggers_kept():
                paths = run(folder)
        except UsageError as error:
            kind = TypeError if isinstance(error.__cause__, TypeError) else ValueError
            raise kind(in_python(str(error))) from None
        except (ValueError, TypeError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(in_python(str(error))) from None
        except NothingUsableError as error:
            raise ValueError(in_python(str(error))) from None
        except RunError as error:
            raise RuntimeError(str(error)) from None
        results: dict[str, Any] = {name: read(path) if path else DryRun() for name, path in paths.items()}
    lines = [line for line in said.getvalue().splitlines() if folder not in line]  # what was there is deleted
    for line in lines:
        if line.startswith(NOTE):  # advice by public parameters alone
            warnings.warn(in_python(line.removeprefix(NOTE)), stacklevel=3)
        elif line.startswith(WARNING):
            warnings.warn(WARNED, stacklevel=3)
    log = "\n".join(lines)
    return {name: dataclasses.replace(result, log=log) for name, result in results.items()}


@contextlib.contextmanager
def _loggers_kept() -> Iterator[None]:
    """Give loggers of runners their levels back: a command leaves them silent, but other pipelines may follow here.

    A handler that Beam makes meanwhile would write into what is said here, for ever.
    """
    levels = {name: logging.getLogger(name).level for name in loaded("runners.launch.RUNNER_LOGGERS")}
    handlers = list(logging.root.handlers)
    try:
        yield
    finally:
        logging.root.handlers[:] = handlers
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _spec(word: str) -> QuestionSpec:
    """Return the description of a question."""
    if word not in WORDS:
        raise ValueError(f"question must be one of {', '.join(WORDS)}, got {word!r}")
    return question(word)


def _run(spec: QuestionSpec, frame: Any, output: Any, keywords: dict[str, Any], folder: str) -> str:
    """Run the command; return the path of the rows."""
    events, rows = os.path.join(folder, "events.parquet"), os.path.join(folder, "rows.parquet")
    output = rows if output is None else os.fspath(output)
    if output == "-":
        raise ValueError("output must be a file, or None")
    given, shown = options(spec, keywords, input=events, output=output, folder=folder)
    loaded("option_checks.check_texts")(given, [])
    loaded("option_checks.check_numbers")(given)
    table = loaded("sources.frame_files.as_table")(frame)
    fields = loaded("questions.arguments.input_fields")(spec, given)
    fields.check(table.schema, "the frame")
    loaded("sources.frame_files.write_events")([table], fields.names(), events)
    command = loaded("questions.run_command.RunCommand")(spec, shown)
    command.run(given, [])
    return "" if given.dry_run else str(given.copy or output)
