"""From the rows of a file to the batches that the transforms take."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from privstream.pipelines.sources.event_files import RawEvents
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.sources.texts import ENCODING, LONG, MISSING, TYPE, Marks, read_texts
from privstream.pipelines.sources.times import read_times
from privstream.pipelines.sources.values import read_values
from privstream.transforms.events.broken_rule import FINITE, RANGE
from privstream.transforms.events.times import SYNTAX, TIME_TEXT, UNIT
from privstream.transforms.events.values import WHOLE_NUMBER

TIME = pa.timestamp("us", "UTC")


class Refusal(NamedTuple):
    """Why a row cannot be used: a short code for the counter and the rule in words."""

    row: int
    code: str
    reason: str


class Normaliser:
    """Makes wire batches of `user`, `item`, `time` (microseconds, UTC), `stream` and `value`, as far as named."""

    def __init__(self, fields: FieldMapping) -> None:
        self.fields = fields
        columns: list[tuple[str, str, Callable[[pa.Array | list[Any]], tuple[Any, Marks]]]] = [
            ("user", fields.user, self._texts),
            ("item", fields.item, self._texts),
            ("time", fields.time, self._times),
            ("stream", fields.stream, self._texts),
            ("value", fields.value, self._values),
        ]
        self._columns = [column for column in columns if column[1]]

    def __call__(self, events: RawEvents) -> tuple[pa.RecordBatch, list[Refusal]]:
        """Return the rows that can be used, and why the others cannot."""
        columns: dict[str, pa.Array] = {}
        refusals: dict[int, Refusal] = {}
        for name, field, read in self._columns:
            columns[name], marks = read(events.columns[field])
            for rule, mask in marks.items():
                for row in np.flatnonzero(mask).tolist():
                    refusals.setdefault(row, Refusal(row, f"{name}_{rule}", f"{name} {self._wording(rule, name)}"))
        batch = pa.RecordBatch.from_pydict(columns)
        if refusals:
            keep = np.ones(batch.num_rows, bool)
            keep[list(refusals)] = False
            batch = batch.filter(pa.array(keep))
        return batch, [refusals[row] for row in sorted(refusals)]

    def _texts(self, values: pa.Array | list[Any]) -> tuple[pa.Array, Marks]:
        """Read a user, an item or a stream."""
        return read_texts(values, self.fields.max_item_bytes)

    def _times(self, values: pa.Array | list[Any]) -> tuple[pa.Array, Marks]:
        """Read the time."""
        times, marks = read_times(values, self.fields.time_unit)
        return pa.array(times).cast(TIME), marks

    def _values(self, values: pa.Array | list[Any]) -> tuple[pa.Array, Marks]:
        """Read the value."""
        return read_values(values, whole=self.fields.whole)

    def _wording(self, rule: str, name: str) -> str:
        """Say a rule in words."""
        number = f"a number or {TIME_TEXT}" if self.fields.time_unit else TIME_TEXT
        return {
            MISSING: "must be present and not empty",
            TYPE: {"time": "must be a number or text", "value": "must be a number, with a point before decimals"}.get(
                name, "must be text or an integer"
            ),
            ENCODING: "must be valid UTF-8",
            LONG: f"must be at most {self.fields.max_item_bytes} bytes",
            SYNTAX: f"must be {number}",
            FINITE: "must be finite",
            WHOLE_NUMBER: "must be a whole number",
            RANGE: "must be between 1970-01-01 and 2200-01-01",
            UNIT: "must not be a plain number without --time_unit",
        }[rule]
