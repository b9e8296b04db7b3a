"""A result, of which reports and notebooks are made: published rows, their guarantee file, and their question."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from privstream.mechanisms.guarantee_records import guarantee_of
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.locations import END, GUARANTEE, MONITOR_FILES, WRITTEN
from privstream.pipelines.model.catalogue import WORDS, question
from privstream.pipelines.model.question import QuestionInfo, loaded
from privstream.pipelines.promise import Promise
from privstream.pipelines.sinks.row_files import arrow_table, fingerprint, read_rows, sort_rows, with_item_columns
from privstream.pipelines.stores import check_store, exists
from privstream.pipelines.yaml_file import at, read_document
from privstream.transforms import row_types
from privstream.transforms.reading.domain import column_names
from privstream.transforms.timing.steps import timestamp

MADE_BY, OF_MONITOR = "privstream ", "run"
"""How the command of a guarantee file begins, and the one whose guarantee files are about several results."""

BESIDE = ".guarantee.json"
"""How the name of a guarantee file beside rows ends."""

VIEW_TITLES = {
    "ratio": "ratios",
    "over": "sums",
    "against": "rises",
    "above": "alerts",
    "below": "alerts",
    "largest": "largest items",
}
"""What rows of views are, by the first of these keys that a view has."""

OF_SOURCE = ("run_id", "beta", "low", "high", "time_zone", "window", "start", "renew_every")
"""Options of a question that hold for views of it."""

VIEW_CHARTS = {"RatioEstimate": "ratios", "AlertState": "states"}
"""Charts of views by the type of their rows; others have that of their question."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """What one run has published. Whatever reads Arrow's tables reads it, such as `polars.DataFrame(result)`.

    Attributes:
        made_of: questions of which a view is made; none of a question.
        notes: on what is not in it, where its run goes on.
        log: what the run has said on standard error, where it was started from Python. It has exact numbers, such as
            how many records could not be used, and is not for publication.
    """

    path: str
    spec: QuestionInfo
    row_type: Any
    rows: list[Any]
    promise: Promise
    guarantee: PrivacyGuarantee
    made_of: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    log: str = ""

    def __repr__(self) -> str:
        budget = f"epsilon = {self.guarantee.epsilon:g}, delta = {self.guarantee.delta:g}"
        return f"<{self.spec.title}: {len(self.rows):,} rows, {budget}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows where the result is the last value of a cell."""
        html: str = loaded("report.page.in_notebook")(self)
        return html

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Hand the table to whatever reads Arrow's C stream."""
        return self.table.__arrow_c_stream__(requested_schema)

    @cached_property
    def table(self) -> pa.Table:
        """The rows as an Arrow table; times are timestamps."""
        items = column_names(self.parameters.get("item") or "")
        return arrow_table(with_item_columns(self.row_type, items), self.rows)

    @property
    def accuracy(self) -> str:
        """How accurate the rows are, in a sentence."""
        return str(self.promise.number("accuracy", "sentence"))

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The options of the run."""
        parameters: Mapping[str, Any] = self.promise.number("parameters")
        return parameters

    def chart(self) -> Any:
        """Return the chart of the rows, as `privstream plot` draws it: a `Chart`, which notebooks show."""
        given = {"parameters": self.parameters, "limited": self.promise.limited}
        return loaded("show.charts.chart_of")(self.spec.chart, self.rows, **given)


MOST_FILES, MOST_BYTES = 500, 16 << 20
"""Of a result whose run goes on: the newest files are read up to here."""


def read_result(path: str, time: Callable[[int], Any] = timestamp, *, live: bool = False) -> Result:
    """Read a result and what is promised of it; `time` makes times of microseconds, as for `read_row_file`.

    Of a `live` result, whose run may go on, the newest files are enough, and those that cannot be read are counted.

    Raises:
        ValueError: the message names the file, the rule, and what to do.
    """
    check_store(path, "RESULT")
    if not exists(path):
        raise ValueError(f"RESULT must be a file or a folder that exists, got {path}")
    found, rows, unreadable = read_promise(path), list[Any](), 0
    files, number = newest(path) if live else (files_of(path), 0)
    for file in files:
        try:
            rows += read_file(file, found, time)
        except Exception as error:  # whatever somebody has written there
            unreadable += 1
            if not live:
                raise ValueError(
                    f"{error}; if its run has not ended, wait for it; if the file was cut short, run the command again "
                    "with the same key, which gives the same rows"
                ) from None
    notes = [f"{unreadable:,} files cannot be read now."] * bool(unreadable)
    if len(files) < number:
        notes.append(f"The newest {len(files):,} files are shown, of {number:,}.")
    if live and os.path.isdir(path) and not os.path.exists(os.path.join(path, END)):
        notes.append("Running: more windows may follow.")
    return replace(found, rows=sort_rows(rows, found.spec.order), notes=tuple(notes))


def newest(path: str) -> tuple[list[str], int]:
    """Return the newest files of a result, by name, that together are not too much for a page; and how many it has."""
    try:
        files = [file for file in files_of(path) if stamp(file)]
    except OSError:
        return [], 0
    shown, size = list[str](), 0
    for file in reversed(files[-MOST_FILES:]):
        size += (*stamp(file), 0, 0)[1]
        if size > MOST_BYTES:
            break
        shown.append(file)
    return shown[::-1], len(files)


def stamp(path: str) -> tuple[int, ...]:
    """Return what changes when a file does: when it was written, its size, and which one it is; else nothing."""
    with suppress(OSError):
        found = os.stat(path)
        if stat.S_ISREG(found.st_mode):  # a pipe is never opened
            return found.st_mtime_ns, found.st_size, found.st_ino
    return ()


def results_of(path: str) -> list[str]:
    """Return questions and views of a monitor, if a path is the folder of its output; else the path alone."""
    promise = monitor_promise(path)
    if promise is None:
        return [path]
    outputs = [each.get("output") for each in _described(promise, "questions").values()]
    views = [each.get("output") for each in _described(promise, "views").values()]
    if not outputs or not all(isinstance(each, str) and os.path.basename(each) == each for each in [*outputs, *views]):
        raise ValueError(f"{promise.path} must be a guarantee that a monitor has written: it names no results")
    return [os.path.join(path, str(each)) for each in [*outputs, *views]]


def _described(promise: Promise, names: str) -> Mapping[str, Mapping[str, Any]]:
    """Return what the guarantee file of a monitor says of its questions, or of its views, by name."""
    found = promise.maybe(names)
    return {name: each for name, each in found.items() if isinstance(each, dict)} if isinstance(found, dict) else {}


def output_of(path: str) -> str:
    """Return the folder with the results of a monitor, if a path is that of its file; else the path alone."""
    if not path.endswith(MONITOR_FILES):
        return path
    document = read_document(path)
    folder = at(document.content, ("output", "path"))
    if not isinstance(folder, str) or not folder:
        raise document.error(("output",), "must be given, with a path")
    return folder


def monitor_promise(path: str) -> Promise | None:
    """Return what all results of a folder promise together, if a monitor has written them."""
    promise = Promise.read(os.path.join(path, GUARANTEE)) if os.path.isdir(path) else None
    return promise if promise is not None and promise.maybe("made_by", "command") == MADE_BY + OF_MONITOR else None


def read_promise(path: str) -> Result:
    """Return what is promised of a result, which has no rows yet, whether or not these are there.

    Raises:
        ValueError: it has no guarantee file, or not one of this version; the message names the file.
    """
    check_store(path, "RESULT")
    promise = Promise.read(beside := promise_path(path))
    if promise is None:
        raise ValueError(
            f"RESULT must have its guarantee: there is no file {beside}. A run writes it when its rows are complete: "
            "wait until it has ended, or move it along with the rows; if it is lost, run the command again with the "
            "same key, which gives the same rows"
        )
    command = promise.maybe("made_by", "command")
    if command == MADE_BY + OF_MONITOR:
        return _view(path, promise)
    word = command.removeprefix(MADE_BY) if isinstance(command, str) else ""
    if word not in WORDS:
        raise ValueError(
            f"RESULT must answer a question of this version of privstream ({', '.join(WORDS)}), but {promise.path} was "
            f"made by {command!r}"
        )
    try:
        guarantee, parameters, spec = guarantee_of(promise.content), promise.content["parameters"], question(word)
        row_type = spec.row_type
        if row_type is row_types.KeyCount:
            sums = parameters.get(spec.values_with) is not None
            row_type = row_types.KeyRise if parameters.get("rising") else row_types.KeySum if sums else row_type
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{promise.path} must be a guarantee that a command has written: {error}") from None
    return Result(path=path, spec=spec, row_type=row_type, rows=[], promise=promise, guarantee=guarantee)


def _view(path: str, whole: Promise) -> Result:
    """Return what is known of a view of a monitor, which has no rows yet: the guarantee is that of the whole."""
    views, asked = _described(whole, "views"), _described(whole, "questions")
    try:
        described = next(one for one in views.values() if one.get("output") == os.path.basename(path))
        order, names, given = tuple(described["order"]), tuple(described["questions"]), dict(described["view"])
        row, row_type = described["rows"], getattr(row_types, described["rows"])
        sources = [read_promise(os.path.join(os.path.dirname(path), asked[one]["output"])) for one in names]
        first, guarantee = sources[0], guarantee_of(whole.content)
        source = views.get(str(given.get("of")), {}).get("view", {})
        given |= {"over": source["over"]} if "over" in source else {}  # the largest of sums are sums
        parameters = {key: first.parameters[key] for key in OF_SOURCE if key in first.parameters}
        for key, value in given.items():
            parameters[key] = ", ".join(map(str, value)) if isinstance(value, list) else value
        parameters |= {"item": ",".join(described["columns"])} if described["columns"] else {}
        if {field.removeprefix("-") for field in order} - {*row_type._fields}:
            raise ValueError("order must name fields of the rows")
    except (KeyError, TypeError, AttributeError, IndexError, StopIteration, RecursionError):
        raise ValueError(f"RESULT must be a question or a view of {whole.path}, got {path}") from None
    sentences = [f"{one}: {each.accuracy}" for one, each in zip(names, sources, strict=True)]
    accuracy = {"sentence": f"It is as accurate as the rows that it is made of. {' '.join(sentences)}"}
    if len(sources) == 1:
        accuracy = {**first.promise.content["accuracy"], **accuracy}
    content = {**whole.content, "made_by": first.promise.content["made_by"], "parameters": parameters}
    content |= {"accuracy": accuracy, "rows": {"sha256": described.get("sha256")}}
    made_of = " and ".join(names)
    limits = [one for one in guarantee.limits if one.partition(": ")[0] not in {*asked} - {*names}]
    return Result(
        path=path,
        spec=replace(
            first.spec,
            description=f"A view of {made_of}: made of what these have published, at no cost.",
            title=next((title for key, title in VIEW_TITLES.items() if key in described["view"]), "view"),
            row=row,
            order=order,
            why_nothing=f"{made_of} have published nothing that it could be made of",
            chart="rises" if "against" in given else VIEW_CHARTS.get(row, first.spec.chart),
            values_with="",
        ),
        row_type=row_type,
        rows=[],
        promise=Promise(whole.path, content),
        guarantee=replace(guarantee, limits=tuple(limits)),
        made_of=names,
    )


def promise_path(path: str) -> str:
    """Return where the guarantee file of a result is, which may be a file or a folder; of a view that of its monitor.

    A view has none of its own.
    """
    own = os.path.join(path, GUARANTEE) if os.path.isdir(path) else f"{path}{BESIDE}"
    whole = os.path.join(os.path.dirname(path), GUARANTEE)
    return own if os.path.exists(own) or not os.path.exists(whole) else whole


def files_of(path: str) -> list[str]:
    """Return the files with the rows of a result, by name, which is by time; not those that are being written."""
    if not os.path.isdir(path):
        return [path]
    return [os.path.join(path, name) for name in sorted(os.listdir(path)) if name[0] not in "._" and is_rows(name)]


def is_rows(name: str) -> bool:
    """Tell by its name whether a file may have rows."""
    return name.rpartition(".")[2].lower() in WRITTEN


def read_file(file: str, result: Result, time: Callable[[int], Any] = timestamp) -> list[Any]:
    """Return the rows of a file of a result.

    `time` makes times of microseconds, as for `read_row_file`.

    Raises:
        ValueError: it has others, is not complete, or is not the file that the guarantee was written for; the message
            names the file.
    """
    written = result.promise.maybe("rows", "sha256")
    if file == result.path and written is not None and fingerprint(file) != written:
        raise ValueError(
            f"RESULT must be as its run wrote it: {file} has changed, or the guarantee beside it is that of another run"
        )
    return read_rows("RESULT", file, result.row_type, time)
