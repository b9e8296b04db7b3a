"""Reads records once for several questions: one batch with what all of them need, and what each takes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from privstream.pipelines.sources.event_files import RawEvents
from privstream.pipelines.sources.fields import AnyFields, FieldMapping, SharedFields
from privstream.pipelines.sources.normalise import Known, Normaliser, Refusal
from typing_extensions import override


def normaliser_of(fields: AnyFields) -> Normaliser | SharedNormaliser:
    """Return what makes batches of records for one question or several."""
    return Normaliser(fields) if isinstance(fields, FieldMapping) else SharedNormaliser(fields)


class SharedNormaliser:
    """Makes batches for several questions: each column is read once, and says for each reading which rows count.

    A row is in a batch if one of the questions can use it. Which of them can is decided by their own rules, as if each
    read by itself: a record without a value still counts where no value is read.

    Args:
        fields: what the questions read.
    """

    def __init__(self, fields: SharedFields) -> None:
        self.each = {name: Normaliser(reading, name) for name, reading in fields.readings.items()}

    def __call__(self, events: RawEvents) -> tuple[pa.RecordBatch, list[Refusal]]:
        """Return the rows that a question can use, and which of them cannot use others, and why."""
        known: Known = {}
        columns: dict[str, pa.Array] = {}
        refused: dict[tuple[int, str, str], list[str]] = {}
        used: np.ndarray | bool = False
        for number, (name, normaliser) in enumerate(self.each.items()):
            read, kept, refusals = normaliser.judge(events, known)
            columns |= {_place(normaliser.fields, content): column for content, column in read.items()}
            if kept is not None:
                columns[_kept(number)] = pa.array(kept)
            used = used | (np.ones(len(read["time"]), np.bool_) if kept is None else kept)
            for refusal in refusals:
                refused.setdefault(refusal[:3], []).append(name)
        batch = pa.RecordBatch.from_pydict(columns)
        if refused or not np.all(used):
            batch = batch.filter(pa.array(used))
        return batch, [self._refusal(*rule, by) for rule, by in sorted(refused.items())]

    def _refusal(self, row: int, code: str, reason: str, by: list[str]) -> Refusal:
        """Say for which questions a rule is broken, if not for all of them."""
        names = ", ".join(by).split(",")
        whom = "" if len(by) == len(self.each) else f" (for {', '.join(name.strip() for name in names)})"
        return Refusal(row, code, f"{reason}{whom}", tuple(by))


class TakeReading(beam.DoFn):
    """Takes what one question reads from the batches of a `SharedNormaliser`.

    Args:
        fields: what the questions read.
        name: of the question.
    """

    def __init__(self, fields: SharedFields, name: str) -> None:
        readings = list(fields.readings.values())
        self.fields = dict(fields.questions)[name]
        self.kept = _kept(readings.index(self.fields))
        self.normaliser = Normaliser(self.fields)

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[Any]:
        contents = [name.partition(" ")[0] for name in self.fields.contents()]
        columns = {name: batch[_place(self.fields, name)] for name in dict.fromkeys(contents)}
        taken = pa.RecordBatch.from_pydict(columns)
        if self.kept in batch.schema.names:
            taken = taken.filter(batch[self.kept])
        if taken.num_rows:
            yield self.normaliser.finish(taken)


def _place(fields: FieldMapping, content: str) -> str:
    """Return the name of the column with what a question reads, among those of all questions."""
    field = fields.item if content == "item" else fields.contents()[content]
    return f"{content}{'?' * (content == 'value' and fields.optional_value)} {field}"


def _kept(number: int) -> str:
    """Return the name of the column that says which rows count in a reading."""
    return f"kept {number}"
