"""A question whose options have been checked, what is promised of it, and what is said of its run; without Beam."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NamedTuple

import pyarrow as pa
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee, guarantee_record
from privstream.mechanisms.views.counts import Dropped
from privstream.pipelines.model.monitor import FORMS, Data, Monitor
from privstream.pipelines.model.question import METHOD, Question, QuestionInfo
from privstream.pipelines.show import words
from privstream.pipelines.sinks.row_files import (
    COMPLETE,
    Layout,
    read_plain,
    sort_table,
    with_item_columns,
    write_row_file,
)
from privstream.pipelines.sources.fields import FieldMapping, Readings
from privstream.pipelines.sources.files import EventFile, unusable
from privstream.transforms.batches import MOST_SHARDS
from privstream.transforms.counters import OF_READING, Counters, summed
from privstream.transforms.counts.keyed_counts import CountsParameters
from privstream.transforms.parameters import Parameters

READ = "Read"
"""What stages are called that read for all questions."""

RELEASED = ".released.parquet"
"""What the name of a file with released rows ends in, next to the one with rows that are shown; both are hidden."""

LEAST_SHARDS = 4
BYTES_OF_SHARD = 1 << 30
"""Of input, at most, whose people one shard has: one window of it is in memory at a time."""


def stage_label(name: str, stage: str) -> str:
    """Return what a stage of a question is called, beside those of other questions."""
    return f"{name}{OF_READING}{stage}" if name else stage


class Answer(NamedTuple):
    """The rows of a question over files, times in microseconds."""

    released: pa.Table
    shown: pa.Table  # what is made of them
    dropped: Dropped | None = None  # the share that limits drop, where it is known


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question whose options have been checked: what is done, and what is promised.

    Its name is empty if it is the only one.
    """

    name: str = ""
    question: Question
    transform: Any
    promised: Mapping[str, Any]
    row_type: type

    def label(self, stage: str) -> str:
        """Return what one of its stages is called, beside those of other questions."""
        return stage_label(self.name, stage)

    def counters(self, counted: Counters) -> dict[str, int]:
        """Return what a run has counted that is about this question: its own stages, and of reading what it can use."""
        if not self.name:
            return summed((name, number) for (_, name), number in counted.items())
        found, own = [], re.compile(rf"{self.name}(?:{OF_READING}|-)")  # some runners write a hyphen
        for (stage, name), number in counted.items():
            whose, colon, what = name.rpartition(OF_READING)
            if own.match(stage) or (colon and self.name in whose.split(",")):
                found.append((what, number))
            elif stage.startswith(READ) and not colon:
                found.append((name, number))
        return summed(found)

    @property
    def counts(self) -> CountsParameters | None:
        """The counts that the question is answered by; None where it is not."""
        found = getattr(self.transform, "counts", self.transform)
        return found if isinstance(found, CountsParameters) else None

    def limits(self, counted: Counters) -> dict[str, Any]:
        """Return what the guarantee file says of the limits per person, once a run has released it; else nothing."""
        found = None if self.counts is None else self.counts.limits(self.counters(counted))
        return {} if found is None else {"limits": found}

    @property
    def released_type(self) -> type:
        """The type of the rows that a run over files has released, before `answer`."""
        found: type = self.counts.released_type if self.counts else self.question.info.row_type_of(self.transform)
        return found

    def answer(self, path: str, counted: Counters) -> tuple[Answer, Counters]:
        """Return the rows of a run over files, and counters with their number; write rows that a view makes of them."""
        view, info = self.transform.view, self.question.info
        rows = read_plain(path if view is None else f"{path}{RELEASED}", self.released_type)
        if view is None:
            return Answer(rows, rows), counted
        limits = self.limits(counted).get("limits")
        dropped = limits and limits["dropped"]
        shown = sort_table(view(rows, dropped), info.order)
        write_row_file(path, self.row_type, shown)
        counter = self.transform.counter
        published = self.counters(counted).get(counter, 0)
        counted = {**counted, (self.label("Show"), counter): len(shown) - published}
        return Answer(rows, shown, dropped), counted

    def facts(self, counted: Counters, *, dry_run: bool = False) -> words.QuestionFacts:
        """Return what the summary of a run, perhaps one that publishes nothing, says of the question."""
        counters = self.counters(counted)
        limits = {"limits": None} if dry_run and self.counts else self.limits(counted)
        return words.QuestionFacts(
            name=self.name,
            counters=counters if dry_run or COMPLETE in counters else {},
            record={**self.promised, **limits},
        )


def shards_for(workers: int, size: int = 0) -> int:
    """Return the number of shards of a transform: as many for each process, and one for each `BYTES_OF_SHARD`."""
    least = max(LEAST_SHARDS, size // BYTES_OF_SHARD)
    return min(-(-least // workers) * workers, MOST_SHARDS)


def promise(
    monitor: Monitor, question: Question, fields: FieldMapping, made: Parameters, run_id: str
) -> dict[str, Any]:
    """Return what the guarantee file of a question says, but for its rows.

    Of options what shapes rows, and nothing of places. Lists are not quoted.
    """
    guarantee, info, dumped = made.guarantee, question.info, {"mode": "json", "exclude_none": True}
    given: dict[str, Any] = question.model_dump(**dumped, include=set(question.options()))  # type: ignore[arg-type]
    given |= {
        name: f"a list of {len(given[name]):,}" for name in question.lists if isinstance(given.get(name), list | dict)
    }
    if info.has_windows:
        given |= question.windows_in(monitor.windows).model_dump(**dumped)  # type: ignore[arg-type]
    given |= {name: found for name in ("user", "item", "time", "value", "where") if (found := getattr(fields, name))}
    given |= monitor.data.model_dump(mode="json", exclude_defaults=True, include=set(FORMS))
    given |= {"value_unit": fields.value_unit} if fields.whole and fields.value else {}
    given |= {"epsilon": guarantee.epsilon, "delta": guarantee.delta, "run_id": run_id}
    return {
        **head_of(f"privstream {info.word}", guarantee, run_id),
        "parameters": {**given, "dataset": monitor.account.dataset},
        **({"public": dict(made.public)} if made.public else {}),
        "accuracy": ({METHOD: getattr(made, METHOD)} if info.methods else {}) | made.accuracy.to_dict(),
    }


def head_of(command: str, guarantee: PrivacyGuarantee, run_id: str | None) -> dict[str, Any]:
    """Return how guarantee files begin, those of a question and those of a whole run."""
    record = guarantee_record(guarantee)
    return {
        "run_id": run_id,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "unit": str(guarantee.unit),
        "made_by": {"command": command, "version": version("privstream")},
        "guarantee": {name: value for name, value in record.items() if value is not None},
    }


def written_type(info: QuestionInfo, transform: Parameters, fields: FieldMapping, format: str | None) -> type:
    """Return the type of rows as they are written."""
    layout = Layout.of(fields.time_zone, fields.delimiter, fields.decimal)
    written = with_item_columns(info.row_type_of(transform), fields.several, layout)
    wrong = [name for name in fields.several if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)]
    if format == "avro" and wrong:
        raise ValueError(f"output must not be Avro, which has no columns such as `{wrong[0]}`: write Parquet")
    return written


def check_usable(data: Data, files: Sequence[EventFile], fields: Readings) -> None:
    """Refuse a run over files without a single usable record, before it is charged."""
    found = unusable(files, fields)
    if not found:
        return
    first = fields.questions[0][1]
    named = {name: f"--{name} {getattr(first, name)}" for name in ("user", "item", "time", "value")}
    named = {name: f"{of}{': fields within fields are not read' * ('.' in of)}" for name, of in named.items()}
    reasons = words.listed({words.fault(code, data.time_format, named): number for code, number in found.items()})
    raise ValueError(
        f"input must have records that can be used, and none of the first {found.total():,} can: {reasons}; "
        "nothing was published or spent"
    )
