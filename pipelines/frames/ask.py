"""Asks a question about a frame: what its command does, from a frame to a table. Imports no Beam until it does."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import tempfile
import threading
import warnings
from typing import TYPE_CHECKING, Any

from privstream.pipelines.command import NothingUsableError, RunError, UsageError
from privstream.pipelines.frames.keywords import in_python, options
from privstream.pipelines.frames.read import read
from privstream.pipelines.option_texts import check_texts
from privstream.pipelines.questions.catalogue import WORDS, question
from privstream.pipelines.questions.spec import MUCH, NOT_ASKED, ROOMS, QuestionSpec, resolve
from privstream.pipelines.terminal import NOTE, WARNING

if TYPE_CHECKING:
    from privstream.pipelines.report.result import Result

ACCOUNTS = ("noise_key_file", "noise_key_variable", "ledger")
LEFT_OUT = {
    WARNING: f"{MUCH:.0%} of the data or more, in all or in late windows, is not in the answers, or changed, and "
    "intervals do not hold it",
    NOTE: "most of the data is not what was asked for",
}
"""What a line of the log becomes in Python, where only the log has exact numbers."""

ONE_AT_A_TIME = threading.Lock()
"""Standard error is the process's."""


def ask(question: str, frame: Any, *, output: str | os.PathLike[str] | None = None, **keywords: Any) -> Result:
    """Answer a question about the events of a frame, as its command does about those of a file.

    The columns that are read are written into a temporary Parquet file, which its owner alone can read, and which is
    deleted afterwards. All checks, the ledger and the guarantee are those of the command.

    *Privacy*: as the guarantee of the result says. The same question about the same values in the same order, with the
    same key, is the same release: it gives the same rows, and costs nothing more. Another order of rows is other data
    and another release, so sort what comes in any order. Since cells of notebooks run more than once, a key or a ledger
    must be given: `noise_key_file` (which has a ledger beside it), `noise_key_variable` or `ledger`. The `log` of the
    result has exact numbers: it is shown only where you ask for it.

    Args:
        question: the word of the command, such as "counts".
        frame: events, one in each row: of pandas (2.2 or newer), Polars, pyarrow or DuckDB, or anything else with
            `__arrow_c_stream__`.
        output: a file for the rows, .avro, .parquet, .jsonl or .csv, with the guarantee beside it; None for none.
        **keywords: options of the command by their names, such as `epsilon=1, window="1d", user_field="who"`. Public
            lists of items (`domain`) and of rules may be lists; `timedelta` and `datetime` are understood.

    Returns:
        The result: `table` (a pyarrow.Table), `guarantee`, `accuracy`, `picture()`, `log`.

    Raises:
        ValueError, TypeError: an option, the frame or a column breaks a rule, or no event can be used.
        RuntimeError: the run failed.

    Example:
        >>> found = ask("counts", frame, epsilon=1, delta=1e-6, noise_key_file="key", ...)  # doctest: +SKIP
        >>> found.table.to_pandas()  # doctest: +SKIP
    """
    spec = _spec(question)
    if all(keywords.get(name) is None for name in ACCOUNTS):
        raise ValueError(
            "noise_key_file must be given, so that the same cell, run again, is no further release; or "
            "noise_key_variable; or a ledger, which counts every run (ledger='none' goes without)"
        )
    ledger = keywords.get("ledger") or keywords.get("noise_key_file")
    if keywords.get("run_id") is not None and ledger in (None, "none"):
        raise ValueError("run_id must be given with a ledger: without one, other data would get the same noise")
    said = io.StringIO()
    with ONE_AT_A_TIME, tempfile.TemporaryDirectory(prefix="privstream-") as folder:
        try:
            with contextlib.redirect_stderr(said):
                path = _run(spec, frame, output, keywords, folder)
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
        result = read(path)
    lines = [line for line in said.getvalue().splitlines() if folder not in line]  # what was there is deleted
    for line in lines:
        if line.startswith(NOTE) and NOT_ASKED not in line:  # advice by public parameters alone
            warnings.warn(in_python(line.removeprefix(NOTE)), stacklevel=2)
            continue
        for begin, text in LEFT_OUT.items():
            if line.startswith(begin):
                warnings.warn(f"{text}: see the log of the result, which has exact numbers", stacklevel=2)
    return dataclasses.replace(result, log="\n".join(lines))


def _spec(word: str) -> QuestionSpec:
    """Return the description of a question."""
    if word not in WORDS:
        raise ValueError(f"question must be one of {', '.join(WORDS)}, got {word!r}")
    return question(word)


def _run(spec: QuestionSpec, frame: Any, output: Any, keywords: dict[str, Any], folder: str) -> str:
    """Run the command; return the path of the rows.

    Raises:
        CommandError, ValueError, TypeError: as the command words it.
    """
    events, rows = os.path.join(folder, "events.parquet"), os.path.join(folder, "rows.parquet")
    output = rows if output is None else os.fspath(output)
    if output == "-":
        raise ValueError("output must be a file, or None")
    given, shown = options(spec, keywords, input=events, output=output, folder=folder)
    check_texts(given, [])
    resolve("privstream.pipelines.numbers.check_numbers")(given)
    table = resolve("privstream.pipelines.frames.events_file.as_table")(frame)
    fields = resolve(f"{ROOMS}.input_fields.input_fields")(spec, given)
    fields.check(table.schema, "the frame")
    resolve("privstream.pipelines.frames.events_file.write_events")(table, fields.names(), events)
    command = resolve(f"{ROOMS}.run_command.RunCommand")(spec, shown)
    names = resolve("privstream.pipelines.runners.launch.RUNNER_LOGGERS")
    levels = {name: logging.getLogger(name).level for name in names}
    try:
        command.run(given, [])
    finally:
        for name, level in levels.items():  # a command leaves them silent, but other pipelines may follow here
            logging.getLogger(name).setLevel(level)
    return str(given.copy or output)
