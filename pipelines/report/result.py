"""A result, of which reports and notebooks are made: published rows, their guarantee file, and their question."""

from __future__ import annotations

import inspect
import math
import os
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee, guarantee_of
from privstream.mechanisms.views.counts import AS_IS
from privstream.pipelines.locations import END, GUARANTEE, WRITTEN
from privstream.pipelines.model.catalogue import QUESTIONS, WORDS, question
from privstream.pipelines.model.question import loaded
from privstream.pipelines.promise import Promise
from privstream.pipelines.show import words
from privstream.pipelines.sinks.row_files import read_rows, shape_of, sort_table, with_item_columns
from privstream.pipelines.stores import check_store, exists, fingerprint
from privstream.transforms import row_types
from privstream.transforms.reading.domain import column_names

MADE_BY, OF_MONITOR = "privstream ", "run"
"""How the command of a guarantee file begins, and the one whose guarantee files are about several results."""

BESIDE = ".guarantee.json"
"""How the name of a guarantee file beside rows ends."""

VIEWS = {"ratio": "ratios", "over": "sums", "against": "rises", "above": "alerts", "below": "alerts"}
"""What rows of views are, by the first of these keys that a view has."""

OF_SOURCE = ("run_id", "time_zone", "window", "start", "end")
"""Options of a question that hold for views of it."""

UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, IndexError, StopIteration, RecursionError)
"""What reading a guarantee file may raise into which somebody has written something else."""


NEGLIGIBLE = "2^64"
"""What the guarantee rests on with such a probability stands in the guarantee file alone."""

NOT_COVERED = (
    "The published rows alone are private. Logs, metrics, dead letters and checkpoints of the run are exact.",
    "The noise key removes the noise: keep it secret.",
    "A person with several ids counts as several people, and is protected less.",
    "Other publications about the same people are not covered; runs in one ledger are added up (privstream budget).",
)
EVENTS_ALONE = "One event is protected, not a person: who sends many events is protected far less."
WINDOWS = {"window_start": "first moment of the window.", "window_end": "first moment after the window."}


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """What one run has published. Whatever reads Arrow's tables reads it, such as `polars.DataFrame(result)`.

    Attributes:
        table: the rows; times are timestamps.
        title: what they are, in the plural.
        order: columns to sort by.
        nothing: why there may be no rows.
        made_of: questions of which a view is made; none of a question.
        notes: on what is not in it, where its run goes on.
        log: what the run has said on standard error, where it was started from Python. It has exact numbers, such as
            how many records could not be used, and is not for publication.
    """

    path: str
    row_type: Any
    title: str
    order: Sequence[str]
    promise: Promise
    guarantee: PrivacyGuarantee
    table: pa.Table = None
    nothing: str = ""
    made_of: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    log: str = ""

    def __repr__(self) -> str:
        budget = f"epsilon = {self.guarantee.epsilon:g}, delta = {self.guarantee.delta:g}"
        return f"<{self.title}: {self.table.num_rows:,} rows, {budget}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows where the result is the last value of a cell."""
        html: str = loaded("report.page.in_notebook")(self)
        return html

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Hand the table to whatever reads Arrow's C stream."""
        return self.table.__arrow_c_stream__(requested_schema)

    @property
    def accuracy(self) -> str:
        """How accurate the rows are, in a sentence."""
        return str(self.promise.number("accuracy", "sentence"))

    @property
    def explanation(self) -> dict[str, list[str]]:
        """What `privstream explain` says of it: sentences by heading."""
        return explanation(self.promise.content, self.guarantee, self.row_type)

    def chart(self) -> Any:
        """Return the chart of the rows, as `privstream plot` draws it: a `Chart`, which notebooks show."""
        record, title = self.promise.content, self.title if self.made_of else ""
        return loaded("show.charts.chart_of")(self.table, record, title, limited=self.promise.limited)


MOST_FILES, MOST_BYTES = 500, 16 << 20
"""Of a result whose run goes on: the newest files are read up to here."""


def read_result(path: str, *, live: bool = False) -> Result:
    """Read a result and what is promised of it.

    Of a `live` result, whose run may go on, the newest files are enough, and those that cannot be read are counted.

    Raises:
        ValueError: the message names the file, the rule, and what to do.
    """
    check_store(path, "RESULT")
    if not exists(path):
        raise ValueError(f"RESULT must be a file or a folder that exists, got {path}")
    found, tables, unreadable = read_promise(path), list[pa.Table](), 0
    files, number = newest(path) if live else (files_of(path), 0)
    for file in files:
        try:
            tables.append(read_file(file, found))
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
    items = column_names(found.promise.number("parameters").get("item") or "")
    table = (
        pa.concat_tables(tables) if tables else shape_of(with_item_columns(found.row_type, items)).schema.empty_table()
    )
    return replace(found, table=sort_table(table, found.order), notes=tuple(notes))


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


def results_in(path: str, *, live: bool = False) -> list[str]:
    """Return the results that a path stands for: of the folder of a monitor, all that its guarantee file names.

    Else it is one itself, or a folder of them: files with their guarantee files beside them, and folders with theirs in
    them. Everything else is never opened. Of a `live` folder there may be no result yet, and files may be damaged.
    """
    try:
        if (promise := monitor_promise(path)) is not None:
            described = [*promise.number("questions").values(), *(promise.maybe("views") or {}).values()]
            outputs = [each["output"] for each in described]
            if any(os.path.basename(output) != output for output in outputs):
                raise ValueError(f"{promise.path} must name results in its folder")
            found = [os.path.join(path, output) for output in outputs]
            return [output for output in found if not live or os.path.exists(output)]
    except UNREADABLE as error:
        if not live:
            named = isinstance(error, ValueError)  # it says the file
            raise ValueError(str(error) if named else f"{path} must have a guarantee that privstream wrote") from None
    if not os.path.isdir(path) or os.path.isfile(os.path.join(path, GUARANTEE)):
        return [path]
    found = []
    with suppress(OSError):
        found = [each for name in sorted(os.listdir(path)) if (each := _result(os.path.join(path, name)))]
    return found if found or live else [path]


def _result(path: str) -> str:
    """Return the result that a path stands for; empty if for none."""
    rows = path.removesuffix(BESIDE)
    if rows != path and is_rows(rows) and stamp(path):
        return rows
    if os.path.basename(path)[0] in "._" or not stamp(os.path.join(path, GUARANTEE)):
        return ""
    with suppress(ValueError):
        return path if monitor_promise(path) is None else ""
    return path


def monitor_promise(path: str) -> Promise | None:
    """Return what all results of a folder promise together, if a monitor has written them."""
    promise = Promise.read(os.path.join(path, GUARANTEE)) if os.path.isdir(path) else None
    return promise if promise is not None and promise.maybe("made_by", "command") == MADE_BY + OF_MONITOR else None


def read_promise(path: str) -> Result:
    """Return what is promised of a result, without its rows, whether or not these are there.

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
        guarantee, parameters, info = guarantee_of(promise.content), promise.content["parameters"], question(word)
        row_type = info.row_type
        if row_type is row_types.KeyCount:
            sums = parameters.get(info.values_with) is not None
            row_type = row_types.KeyRise if parameters.get("rising") else row_types.KeySum if sums else row_type
    except UNREADABLE as error:
        raise ValueError(f"{promise.path} must be a guarantee that a command has written: {error}") from None
    return Result(
        path=path,
        row_type=row_type,
        title=info.title,
        order=info.order,
        promise=promise,
        guarantee=guarantee,
        nothing=info.why_nothing,
    )


def _view(path: str, whole: Promise) -> Result:
    """Return what is known of a view of a monitor, without its rows: the guarantee is that of the whole."""
    try:
        views, questions = whole.content["views"], whole.content["questions"]
        described = next(each for each in views.values() if each["output"] == os.path.basename(path))
        given, order, names = described["view"], described["order"], tuple(described["questions"])
        row_type = getattr(row_types, described["rows"])
        if unknown := {name.removeprefix("-") for name in order} - {*row_type._fields}:
            raise KeyError(*unknown)
        first = read_promise(os.path.join(os.path.dirname(path), questions[names[0]]["output"]))
        source = views.get(str(given.get("of")), {}).get("view", {})
        parameters = {key: first.promise.content["parameters"].get(key) for key in OF_SOURCE}
        parameters |= {key: source[key] for key in ("over",) if key in source} | given  # the largest of sums are sums
        parameters |= {"item": ",".join(described["columns"])} if described["columns"] else {}
        guarantee = guarantee_of(whole.content)
        made_by, rows = first.promise.content["made_by"], {"sha256": described.get("sha256")}
        accuracy = {
            **first.promise.content["accuracy"],
            "sentence": f"As accurate as the rows that it is made of. {first.accuracy}",
        }
    except UNREADABLE:
        raise ValueError(f"RESULT must be a question or a view of {whole.path}, got {path}") from None
    content = {**whole.content, "made_by": made_by, "parameters": parameters, "accuracy": accuracy, "rows": rows}
    return Result(
        path=path,
        row_type=row_type,
        order=order,
        promise=Promise(whole.path, content),
        guarantee=guarantee,
        title=next((title for key, title in VIEWS.items() if key in given), "largest items"),
        nothing=f"{' and '.join(names)} have published nothing that it could be made of",
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


def read_file(file: str, result: Result) -> pa.Table:
    """Return the rows of a file of a result.

    Raises:
        ValueError: it has others, is not complete, or is not the file that the guarantee was written for; the message
            names the file.
    """
    written = result.promise.maybe("rows", "sha256")
    if file == result.path and written is not None and fingerprint(file) != written:
        raise ValueError(
            f"RESULT must be as its run wrote it: {file} has changed, or the guarantee beside it is that of another run"
        )
    return read_rows("RESULT", file, result.row_type)


def explanation(record: Mapping[str, Any], guarantee: PrivacyGuarantee, row_type: Any = None) -> dict[str, list[str]]:
    """Return what a guarantee file says, as sentences by heading; `row_type` is None for a whole monitor."""
    given, made, accuracy = record.get("parameters", {}), record.get("made_by", {}), record.get("accuracy") or {}
    options = {  # of a path the name of its file: folders are nobody's business
        name: os.path.basename(value) if isinstance(value, str) and name not in ("time_zone", "where") else str(value)
        for name, value in given.items()
        if name != "run_id"
    }
    step = "window" if given.get("window") is not None else "step"
    delta = f", plus delta = {guarantee.delta:g}" if guarantee.delta else ""
    found = {
        "made by": [
            f"{made.get('command', 'privstream')}, version {made.get('version', 'unknown')}; "
            f"run id {given.get('run_id', 'unknown')}",
            _items(options) or "no options",
        ],
        "privacy": [
            f"Protected is {guarantee.unit}.",
            "Whatever one concludes from what is published, its probability is at most e^epsilon "
            f"({math.exp(min(guarantee.epsilon, 500)):.3g}, with epsilon = {guarantee.epsilon:g}) times what it would "
            f"be if that unit had been added or removed{delta}.",
            *guarantee.lasting(step),
            guarantee.adaptivity.replace("step", step),
        ],
    }
    info = None if row_type is None else QUESTIONS.get(words.word_of(record))
    if info is None:
        questions = {name: each for name, each in (record.get("questions") or {}).items() if "question" in each}
        found["questions"] = [f"{name}: {_items(each)}" for name, each in questions.items()]
    else:
        numbers = {name: value for name, value in accuracy.items() if isinstance(value, int | float)}
        note = (accuracy.get("intervals") or {}).get("note", "")
        share = regime_in_words(record["limits"]["dropped"]) if record.get("limits") else ""
        means = described(row_type.__doc__ or "") | described(info.row_type.__doc__ or "") | WINDOWS
        unit = f" In {unit}." if (unit := words.value_unit(record)) else ""
        found |= {
            "rules": [_items(rule) for rule in (record.get("public") or {}).get("rules") or ()],
            "numbers": [info.description, accuracy.get("sentence") or "", _items(numbers), note],
            "limits": [*guarantee.limits, share],
            "columns": [
                f"{name}: {means[name]}{unit * (name in ('value', 'mean'))}"
                for name in row_type._fields
                if name in means
            ],
        }
    found |= {
        "public": [f"Published beside the rows, or known: {'; '.join(guarantee.public)}."] * bool(guarantee.public),
        "not covered": [
            EVENTS_ALONE * (guarantee.unit.what == "event"),
            *(each for each in guarantee.caveats if NEGLIGIBLE not in each),
            *NOT_COVERED,
        ],
        "proof": [guarantee.proof],
    }
    return {title: texts for title, some in found.items() if (texts := [text for text in some if text])}


def _items(values: Mapping[str, Any]) -> str:
    """Write values by their names."""
    texts = {name: f"{value:,.4g}" if isinstance(value, float) else value for name, value in values.items()}
    return ", ".join(f"{name} = {text}" for name, text in texts.items())


def regime_in_words(dropped: Mapping[str, float | None] | None) -> str:
    """Say how published numbers allow for what limits drop."""
    if dropped is None:
        return "What limits drop is not known: numbers and intervals are of what is retained."
    if dropped["upper"] == 0:
        return "Limits drop nothing."
    how = "numbers are divided by the share that is retained, and intervals have its uncertainty"
    if words.is_lower_bound(dropped):
        how = "numbers are of what is retained, and are lower bounds"
    elif (dropped["share"] or 0.0) <= AS_IS:
        how = "numbers are as they are, and intervals allow for it"
    return f"Limits drop {words.dropped_in_words(dropped)} of all contributions: {how}."


def described(docstring: str, title: str = "Attributes") -> dict[str, str]:
    """Return what a section of a docstring says of each name that it lists, for readers of files.

    Several may share a line.
    """
    section = inspect.cleandoc(docstring).partition(f"\n{title}:\n")[2].partition("\n\n")[0]
    found: dict[str, str] = {}
    for names, text in re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n {5}.*)*)", section, re.M):
        said = re.sub(r"(^|[.:] )None\b", r"\1Empty", " ".join(text.split()))
        found |= dict.fromkeys(names.split(", "), re.sub(r"\bNone\b", "empty", said))
    return found
