"""Questions about frames of events, and results as frames, in Python."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, overload

from privstream.pipelines.command import NothingUsableError, RunError, UsageError, without_dashes
from privstream.pipelines.model.catalogue import MODELS
from privstream.pipelines.model.monitor import OF_FILES, Account, Monitor
from privstream.pipelines.model.question import Question, loaded
from privstream.pipelines.options import in_python
from privstream.pipelines.show.words import WARNING
from privstream.pipelines.terminal import did_you_mean

if TYPE_CHECKING:
    from privstream.pipelines.report.result import Result


StrPath = str | os.PathLike[str]


def read(path: StrPath) -> Result:
    """Read the output of any command, a file or the folder of a stream, with what is guaranteed of it.

    Raises:
        ValueError: the path has no result, or a part of it is missing or damaged.

    Example:
        >>> read("counts.parquet").table.to_pandas()  # doctest: +SKIP
    """
    try:
        return loaded("report.result.read_result")(os.fspath(path))  # type: ignore[no-any-return]
    except ValueError as error:
        raise ValueError(str(error).replace("RESULT", "path", 1)) from None


ONE_AT_A_TIME = threading.Lock()  # standard error is the process's


@overload
def ask(question: str | Question, frame: Any, *, output: StrPath | None = None, **keywords: Any) -> Result: ...


@overload
def ask(
    question: Monitor | os.PathLike[str], frame: Any, *, output: StrPath | None = None, **keywords: Any
) -> dict[str, Result]: ...


def ask(
    question: str | Question | Monitor | os.PathLike[str], frame: Any, *, output: StrPath | None = None, **keywords: Any
) -> Result | dict[str, Result]:
    """Answer a question about the events of a frame, as its command does about those of a file.

    The columns that are read lie meanwhile in a temporary file, which its owner alone can read. All checks, the ledger
    and the guarantee are those of the command.

    *Privacy*: as the guarantee of the result says. The same question about the same values in the same order, with the
    same key, is the same release, and costs nothing more. Another order of rows is another release. Since cells of
    notebooks run more than once, `key` (which has a ledger beside it) or `ledger` must be given.
    The `log` of the result has exact numbers: it is shown only where you ask for it.

    Args:
        question: the word of the command, such as "counts", or a question with its options, such as
            `Counts(max_contributions=40)`; or a `Monitor`, or the path of its file.
        frame: events, one in each row: of pandas (2.2 or newer), Polars, pyarrow or DuckDB, or anything else with
            `__arrow_c_stream__`.
        output: a file for the rows, with the guarantee beside it; of a monitor, a folder. None for none.
        **keywords: options of the command by their names, such as `epsilon=1, window="1d", user="who"`. Public
            lists of items (`domain`) and of rules may be lists; `timedelta` and `datetime` are understood.

    Returns:
        The result: `table` (a pyarrow.Table), `guarantee`, `accuracy`, `chart()`, `log`; of a monitor one for each of
        its questions, by name.

    Raises:
        ValueError, TypeError: an option, the frame or a column breaks a rule, or no event can be used.
        RuntimeError: the run failed.

    Example:
        >>> found = ask("counts", frame, epsilon=1, delta=1e-6, key="key", ...)  # doctest: +SKIP
        >>> found.table.to_pandas()  # doctest: +SKIP
    """
    several = isinstance(question, Monitor | os.PathLike)
    said = io.StringIO()
    with ONE_AT_A_TIME, tempfile.TemporaryDirectory(prefix="privstream-") as folder:
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()), _loggers_kept():
                monitor, words = (_several if several else _single)(question, output, keywords, folder)
                with words:
                    paths = _execute(monitor, frame)
        except (UsageError, ValueError, TypeError, NothingUsableError) as error:
            found = error.__cause__ if isinstance(error, UsageError) else error
            kind = TypeError if isinstance(found, TypeError) else ValueError
            raise kind(without_dashes(str(error))) from None
        except RunError as error:
            raise RuntimeError(str(error)) from None
        results = {name: read(path) for name, path in paths.items()}
    lines = [line for line in said.getvalue().splitlines() if folder not in line]  # what was there is deleted
    if any(line.startswith(WARNING) for line in lines):
        warnings.warn("the run warns: see the log of the result, which has exact numbers", stacklevel=2)
    results = {name: dataclasses.replace(result, log="\n".join(lines)) for name, result in results.items()}
    return results if several else next(iter(results.values()))


def check_account(given: Mapping[str, Any]) -> None:
    """Refuse a call that, made again, would be a further release, or that nobody counts."""
    if all(given.get(name) is None for name in ("key", "ledger")):
        raise ValueError(
            "key must be given, so that the same cell, run again, is no further release; or a ledger, which counts "
            "every run (ledger='none' goes without)"
        )
    ledger = given.get("ledger") or given.get("key")
    if given.get("run_id") is not None and ledger in (None, "none"):
        raise ValueError("run_id must not be given without a ledger: other data would get the same noise")


@contextlib.contextmanager
def _loggers_kept() -> Iterator[None]:
    """Give loggers their levels and handlers back: a command leaves them silent, or bound to what is said here."""
    levels = {name: logging.getLogger(name).level for name in loaded("runners.launch.RUNNER_LOGGERS")}
    handlers = list(logging.root.handlers)
    try:
        yield
    finally:
        logging.root.handlers[:] = handlers
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


EVENTS = "events.parquet"
Described = tuple[Monitor, contextlib.AbstractContextManager[Any]]
"""A monitor whose input is the file of events, and what says errors in the words of those who ask."""

OF_FRAMES = frozenset({"input", "wide", *OF_FILES})  # options that a frame does not have


def _single(asked: Any, output: Any, keywords: dict[str, Any], folder: str) -> Described:
    if not isinstance(asked, Question) and asked not in MODELS:
        raise ValueError(f"question must be one of {', '.join(MODELS)}, got {asked!r}{did_you_mean(asked, MODELS)}")
    kind = type(asked) if isinstance(asked, Question) else MODELS[asked]
    check_account(keywords)
    if isinstance(asked, Question):
        keywords = {name: getattr(asked, name) for name in asked.model_fields_set - {"question"}} | keywords
    path = os.path.join(folder, "rows.parquet") if output is None else os.fspath(output)
    if path == "-":
        raise ValueError("output must be a file, or None")
    for name in keywords:
        if name in OF_FRAMES and name not in kind.options():
            raise TypeError(f"{kind.info.word} has no option `{name}` for frames")
    given = in_python(kind, keywords, {"data": {"input": os.path.join(folder, EVENTS)}, "output": {"path": path}})
    return given.monitor(), given.errors()


def _several(asked: Any, output: Any, keywords: dict[str, Any], folder: str) -> Described:
    if wrong := [name for name in keywords if name not in Account.model_fields]:
        raise TypeError(f"{wrong[0]} must not be given with a monitor, which has its options")
    monitor = asked if isinstance(asked, Monitor) else Monitor.from_file(asked)
    account = monitor.account.model_copy(update={name: value for name, value in keywords.items() if value is not None})
    path = os.path.join(folder, "rows") if output is None else os.fspath(output)
    data = monitor.data.model_copy(update=dict.fromkeys(OF_FILES) | {"input": os.path.join(folder, EVENTS)})
    to = monitor.output.model_copy(update={"path": path, "format": "parquet", "send": ()})
    check_account(account.model_dump())
    return monitor.model_copy(update={"account": account, "data": data, "output": to}), contextlib.nullcontext()


def _execute(monitor: Monitor, frame: Any) -> dict[str, str]:
    """Write the columns of a frame that are read into the input, and run; return the paths of rows by name."""
    table = loaded("sources.frame_files.as_table")(frame)
    read = {name: monitor.data.fields(question) for name, question in monitor.questions.items()}
    fields = loaded("sources.fields.Readings").of(read)
    fields.check(table.schema, "the frame")
    loaded("sources.frame_files.write_events")(table, fields.names, monitor.data.input)
    with loaded("run.run.Run").prepare(monitor) as run:
        run.execute()
        return {name: run.places.rows(name) for name in monitor.questions}
