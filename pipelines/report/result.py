"""A result, of which reports and notebooks are made: published rows, their guarantee file, and their question."""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import pyarrow as pa
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee, guarantee_of
from privstream.mechanisms.views.counts import BOUND, DIVIDED, STAYS
from privstream.pipelines.locations import BESIDE, END, GUARANTEE, WRITTEN
from privstream.pipelines.model.catalogue import QUESTIONS, WORDS, question
from privstream.pipelines.model.question import loaded
from privstream.pipelines.promise import OF_MONITOR, Promise, promise_path
from privstream.pipelines.show import words
from privstream.pipelines.show.shown import keys_of
from privstream.pipelines.sinks.row_files import read_rows, shape_of, sort_table, with_item_columns
from privstream.pipelines.stores import check_store, exists, fingerprint
from privstream.transforms import row_types
from privstream.transforms.reading.domain import column_names

ROWS = tuple(f".{format}" for format in WRITTEN)
"""How the names of files with rows end."""

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
REGIMES = {
    STAYS: "numbers are as they are, and intervals allow for it",
    DIVIDED: "numbers are divided by the share that is retained, and intervals have its uncertainty",
    BOUND: "numbers are of what is retained, and are lower bounds",
}
WINDOWS = {"window_start": "first moment of the window.", "window_end": "first moment after the window."}


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """What one run has published. Whatever reads Arrow's tables reads it, such as `polars.DataFrame(result)`.

    Attributes:
        table: the rows; times are timestamps.
        order: columns to sort by.
        nothing: why there may be no rows.
        made_of: questions of which a view is made; none of a question.
        notes: on what is not in it, where its run goes on.
        log: what the run has said on standard error, where it was started from Python. It has exact numbers, such as
            how many records could not be used, and is not for publication.
    """

    path: str
    row_type: Any
    order: Sequence[str]
    promise: Promise
    guarantee: PrivacyGuarantee
    table: pa.Table = None
    nothing: str = "nothing is published"
    made_of: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    log: str = ""

    def __repr__(self) -> str:
        budget = f"epsilon = {self.guarantee.epsilon:g}, delta = {self.guarantee.delta:g}"
        title = words.title_of(self.promise.content, keys_of(self.table))
        return f"<{title}: {self.table.num_rows:,} rows, {budget}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows where the result is the last value of a cell."""
        return loaded("report.page.in_notebook")(self)  # type: ignore[no-any-return]

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Hand the table to whatever reads Arrow's C stream."""
        return self.table.__arrow_c_stream__(requested_schema)

    @property
    def accuracy(self) -> str:
        """How accurate the rows are, in a sentence."""
        return str(self.promise.at("accuracy", "sentence"))

    @property
    def explanation(self) -> dict[str, list[str]]:
        """What `privstream explain` says of it: sentences by heading."""
        view = f"Made of what {' and '.join(self.made_of)} have published, at no cost of its own."
        found = explanation(self.promise.content, self.guarantee, self.row_type)
        return {"view": [view], **found} if self.made_of else found

    def chart(self) -> Any:
        """Return the chart of the rows, as `privstream plot` draws it: a `Chart`, which notebooks show."""
        return loaded("show.charts.chart_of")(self.table, self.promise.content)


MOST_FILES = 500
"""Of a result whose run goes on: the newest files."""


def read_result(path: str, *, live: bool = False) -> Result:
    """Read a result and what is promised of it.

    Of a `live` result, whose run may go on, the newest files are enough, and those that cannot be read are counted.

    Raises:
        ValueError: the message names the file, the rule, and what to do.
    """
    check_store(path, "RESULT")
    if not exists(path):
        raise ValueError(f"RESULT must be a file or a folder that exists, got {path}")
    found, tables, notes, files = read_promise(path), list[pa.Table](), list[str](), files_of(path)
    if live and len(files) > MOST_FILES:
        notes.append(f"The newest {MOST_FILES:,} files are shown, of {len(files):,}.")
        files = files[-MOST_FILES:]
    for file in files:
        try:
            tables.append(read_file(file, found))
        except Exception as error:  # whatever somebody has written there
            if not live:
                raise ValueError(
                    f"{error}; if its run has not ended, wait for it; if the file was cut short, run the command again "
                    "with the same key, which gives the same rows"
                ) from None
    if unreadable := len(files) - len(tables):
        notes.append(f"Files that cannot be read now: {unreadable:,}.")
    if live and os.path.isdir(path) and not os.path.exists(os.path.join(path, END)):
        notes.append("Running: more windows may follow.")
    items = column_names(found.promise.at("parameters").get("item") or "")
    table = (
        pa.concat_tables(tables) if tables else shape_of(with_item_columns(found.row_type, items)).schema.empty_table()
    )
    return replace(found, table=sort_table(table, found.order), notes=tuple(notes))


def results_in(path: str) -> list[str]:
    """Return the results that a path stands for: of the folder of a monitor, all that its guarantee file names.

    Else it is one itself, or a folder of them, perhaps none yet: files with their guarantee files beside them, and
    folders with theirs in them. Everything else is never opened.
    """
    if not os.path.isdir(path):
        return [path]
    if os.path.isfile(os.path.join(path, GUARANTEE)):
        outputs = list[str]()
        with suppress(*UNREADABLE):  # who reads the path as a result says what is wrong
            if (promise := monitor_promise(path)) is not None:
                described = [*promise.at("questions").values(), *(promise.maybe("views") or {}).values()]
                outputs = [each["output"] for each in described if os.path.basename(each["output"]) == each["output"]]
        return [os.path.join(path, output) for output in outputs] or [path]
    found = list[str]()
    for name in sorted(os.listdir(path)):
        rows = (file := os.path.join(path, name)).removesuffix(BESIDE)
        if rows != file and rows.lower().endswith(ROWS) and os.path.isfile(file):
            found.append(rows)
        elif name[0] not in "._" and os.path.isfile(os.path.join(file, GUARANTEE)):
            found += results_in(file)
    return found


def monitor_promise(path: str) -> Promise | None:
    """Return what all results of a folder promise together, if a monitor has written them."""
    promise = Promise.read(os.path.join(path, GUARANTEE)) if os.path.isdir(path) else None
    return promise if promise is not None and promise.word == OF_MONITOR else None


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
    word = promise.word
    if word == OF_MONITOR:
        return _view(path, promise)
    if word not in WORDS:
        raise ValueError(
            f"RESULT must answer a question of this version of privstream ({', '.join(WORDS)}), but {promise.path} was "
            f"made by {promise.maybe('made_by', 'command')!r}"
        )
    try:
        guarantee, parameters, info = guarantee_of(promise.content), promise.content["parameters"], question(word)
        row_type = info.row_type
        if row_type is row_types.KeyCount:
            sums = parameters.get(info.values_with) is not None
            row_type = row_types.KeyRise if parameters.get("rising") else row_types.KeySum if sums else row_type
    except UNREADABLE as error:
        raise ValueError(f"{promise.path} must be a guarantee that a command has written: {error}") from None
    nothing = info.why_nothing or Result.nothing
    return Result(path=path, row_type=row_type, order=info.order, promise=promise, guarantee=guarantee, nothing=nothing)


def _view(path: str, whole: Promise) -> Result:
    """Return what is known of a view of a monitor, without its rows: the guarantee is that of the whole."""
    try:
        views, questions = whole.content["views"], whole.content["questions"]
        name, described = next((n, each) for n, each in views.items() if each["output"] == os.path.basename(path))
        order, names = described["order"], tuple(described["questions"])
        row_type = getattr(row_types, described["rows"])
        if unknown := {column.removeprefix("-") for column in order} - {*row_type._fields}:
            raise KeyError(*unknown)
        first = read_promise(os.path.join(os.path.dirname(path), questions[names[0]]["output"]))
        parameters = first.promise.content["parameters"] | words.view_parameters(views, name)
        parameters |= {"item": ",".join(described["columns"])} if described["columns"] else {}
        guarantee = guarantee_of(whole.content)
        made_by, rows = first.promise.content["made_by"], {"sha256": described.get("sha256")}
        sentence = {"sentence": f"As accurate as the rows that it is made of. {first.accuracy}"}
        accuracy = first.promise.content["accuracy"] | sentence
    except UNREADABLE:
        raise ValueError(f"RESULT must be a question or a view of {whole.path}, got {path}") from None
    limits = first.promise.content.get("limits") if len(names) == 1 else None
    content = {**whole.content, "made_by": made_by, "parameters": parameters, "accuracy": accuracy, "rows": rows}
    promise = Promise(whole.path, {**content, "limits": limits})
    return Result(path=path, row_type=row_type, order=order, promise=promise, guarantee=guarantee, made_of=names)


def files_of(path: str) -> list[str]:
    """Return the files with the rows of a result, by name, which is by time; not those that are being written."""
    if not os.path.isdir(path):
        return [path]
    names = [name for name in sorted(os.listdir(path)) if name[0] not in "._" and name.lower().endswith(ROWS)]
    return [file for name in names if os.path.isfile(file := os.path.join(path, name))]  # a pipe is never opened


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
            f"be if that {guarantee.unit.what} had been added or removed{delta}.",
            *guarantee.lasting("window"),
            guarantee.adaptivity.replace("step", "window"),
        ],
    }
    info = None if row_type is None else QUESTIONS.get(words.word_of(record))
    if info is None:
        questions = (record.get("questions") or {}).items()
        found["questions"] = [f"{name}: {each['question']}, {each['output']}" for name, each in questions]
    else:
        note = accuracy.get("note", "")
        share = regime_in_words(record["limits"]["dropped"]) if record.get("limits") else ""
        means = described(row_type.__doc__ or "") | described(info.row_type.__doc__ or "") | WINDOWS
        if unit := words.value_unit(record):
            means |= {name: f"{means[name]} In {unit}." for name in ("value", "mean") if name in means}
        found |= {
            "rules": [_items(rule) for rule in (record.get("public") or {}).get("rules") or ()],
            "numbers": [info.description, accuracy.get("sentence") or "", note],
            "limits": [*guarantee.limits, share],
            "columns": [
                f"{', '.join(names)}: {text}"
                for text, names in groupby(filter(means.__contains__, row_type._fields), means.__getitem__)
            ],
        }
    found |= {
        "public": [f"Published beside the rows, or known: {'; '.join(guarantee.public)}."] * bool(guarantee.public),
        "not covered": [
            "One event is protected, not a person with many of them." * (guarantee.unit.what == "event"),
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
    return f"Of all contributions, limits drop {words.dropped_in_words(dropped)}: {REGIMES[words.regime_of(dropped)]}."


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
