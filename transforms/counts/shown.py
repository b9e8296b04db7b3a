"""Where the run goes on: on one public clock, rows that views make of what was released in the last windows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.views.counts import RELEASED, ShownCounts
from privstream.transforms.batches import from_stream, to_stream
from privstream.transforms.row_types import Time, types_of
from privstream.transforms.timing.step_fn import StepFn, Stepped, unchanged
from typing_extensions import override

KEPT = ("window_start", "window_end", "item", *RELEASED)
"""Columns of earlier windows from which numbers are made."""

Follow = Callable[[pa.Table, pa.Table | None], pa.Table]
"""From the counts that are shown, and what was made of those of the window before, to what is published."""


def rows_of(row_type: Any, table: pa.Table) -> list[Any]:
    """Return the rows of a table, whose times are in microseconds, as pipelines have them."""
    columns, moment = [], cache(lambda micros: Timestamp(micros=micros))
    for name, kind in types_of(row_type).items():
        column = table[name].to_pylist()
        columns.append(list(map(moment, column)) if kind is Time else column)
    return list(map(row_type, *columns))


class Seen(NamedTuple):
    """What views look at. All of it is public."""

    released: dict[int, pa.Table]  # in the last windows with rows, by step, as far as numbers are made of it
    shown: pa.Table | None = None  # after the last of these


class ShowCounts(StepFn, state="show_counts"):
    """On one public clock: tables of all shards of keys in, rows that views make of the last ones out. No noise."""

    row_type: Any
    view: ShownCounts
    follow: Follow | None  # what is made of the counts of a window that are shown

    @override
    def initial(self, key: bytes) -> Seen:
        return Seen({})

    @override
    def afresh(self, key: bytes, state: Seen) -> Seen:
        return state  # it is public, and items that stay found go on

    @override
    def encode(self, state: Seen) -> list[bytes]:
        return [self._segment(step, table, state.shown) for step, table in state.released.items()]

    def _segment(self, step: int, released: pa.Table, shown: pa.Table | None) -> bytes:
        given = {
            "released": to_stream(released),
            "shown": b"" if self.follow is None or shown is None else to_stream(shown),
        }
        return pack("shown counts", 1, {"step": step, **given})

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> Seen:
        released, shown = dict[int, pa.Table](), None
        for segment in segments:
            found: dict[str, Any] = unpack("shown counts", 1, segment)
            released[found["step"]] = from_stream(found["released"])
            shown = from_stream(found["shown"]) if found["shown"] else None
        return Seen(released, shown)

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Seen) -> Stepped:
        before = {when: table for when, table in state.released.items() if when > step - self.view.lookback}
        if not batches:
            return Stepped(Seen(before, state.shown), (), unchanged)
        released, (start, _) = pa.concat_tables(map(from_stream, batches)), self.steps.bounds_micros(step)
        shown = self.view.newest([*before.values()], released, start)
        if self.follow is not None or self.view.top is not None:
            shown = shown.filter(pc.equal(shown["window_start"], start))
        shown = self.view.chosen(shown)
        if self.follow is not None:
            shown = self.follow(shown, state.shown)
        self.published.inc(len(shown))
        rows = rows_of(self.row_type, shown)
        if self.view.lookback == 1 and self.follow is None:
            return Stepped(state, rows, unchanged)
        kept = released.select([name for name in released.column_names if name in KEPT])
        return Stepped(Seen({**before, step: kept}, shown), rows, lambda: self._segment(step, kept, shown))
