"""Published counts as rows: per shard of keys, the tables of windows in, what a view makes of the last ones out."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.metrics.metric import Metrics
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.views.smoothing import LOOKBACK
from privstream.transforms.batches import Keyed, Names, StepKey, shard_key, string_buffers
from privstream.transforms.counts.finished import NOISY, LargestCounts, ShownCounts, SmoothFinished, listed, ranks
from privstream.transforms.timing.clock import STEP, stepped
from privstream.transforms.timing.step_fn import StepFn, Stepped
from typing_extensions import override

REWRITTEN = 64  # steps after which the log is written anew
TIMES = ("window_start", "window_end")


def to_shard(element: Keyed) -> Keyed:
    """Send a table of a step and a shard of keys to that shard."""
    key = StepKey.from_bytes(element[0])
    return shard_key(key.shard), stepped(key.step, element[1])


class Seen(NamedTuple):
    """What was published in the last windows. All of it is public.

    Attributes:
        items: that have been published.
        history: float64 (numbers, windows, items): of each item in the last windows, nan where there is none.
    """

    items: pa.LargeStringArray
    history: np.ndarray


class ShowCounts(StepFn, state="show_counts"):
    """Per shard of keys: make rows of what is published, each from the last windows until then. It has no noise.

    An item that is published for the first time comes with all its earlier windows: its rows are made of these.

    Args:
        row_type: of the rows.
        view: what is made of the numbers of several windows; None for numbers as they are published.
        shown: which rows are shown.
        choose: of the rows of a window, those that may be among the chosen ones of all shards; None for all.
        ordered: whether rows are in the order of items; else they are in that in which they were published.
    """

    row_type: Any
    view: SmoothFinished | None
    shown: ShownCounts
    choose: LargestCounts | None
    ordered: bool
    rows_published = Metrics.counter("privstream", "counts_published")

    @cached_property
    def windows(self) -> int:
        """How many windows a view looks at."""
        return 0 if self.view is None else max(LOOKBACK if self.view.windows == 1 else 0, self.view.windows)

    @cached_property
    def numbers(self) -> int:
        """How many numbers of each row it looks at."""
        summed = self.view is not None and self.view.windows > 1
        return len([name for name in NOISY if name in self.row_type._fields]) if summed else 1

    @override
    def initial(self, key: bytes) -> Seen:
        return Seen(pa.array([], pa.large_string()), np.empty((self.numbers, self.windows, 0)))

    @override
    def afresh(self, key: bytes, state: Seen) -> Seen:
        return state  # it is public, and items that stay found go on

    @override
    def snapshot(self, state: Seen) -> bytes:
        offsets, text = string_buffers(state.items)
        return pack("shown counts", 1, {"offsets": offsets, "text": text, "history": state.history})

    @override
    def restore(self, data: bytes) -> Seen:
        found: dict[str, Any] = unpack("shown counts", 1, data)
        names = Names(np.arange(len(found["offsets"]) - 1, dtype=np.uint64), found["offsets"], found["text"])
        return Seen(names.to_arrow(), found["history"])

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> Seen:
        state: Seen = super().decode(key, segments[:1])
        for segment in segments[1:]:
            (step,), data = STEP.unpack_from(segment), segment[STEP.size :]
            state, _ = self._seen(state, step, pa.ipc.open_stream(data).read_all() if data else None)
        return state

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Seen) -> Stepped:
        data = b"".join(batches)  # there is one, or none
        table = pa.ipc.open_stream(data).read_all() if data else None
        after, places = self._seen(state, step, table)
        rows = [] if table is None else self._rows(step, table, after, places)
        whole = self.windows == 0 or (step + 1) % REWRITTEN == 0
        return Stepped(after, rows, None if whole else lambda: stepped(step, data))

    def _seen(self, state: Seen, step: int, table: pa.Table | None) -> tuple[Seen, np.ndarray]:
        """Return what is seen after a step, and the place of the item of each row."""
        if not self.windows:
            return state, np.empty(0, np.int64)
        items = pa.array([], pa.large_string()) if table is None else table["item"].combine_chunks()
        if self.steps.starts_afresh(step - 1, step):  # items that are not published any more are forgotten
            kept = np.flatnonzero(pc.is_in(state.items, items).to_numpy(zero_copy_only=False))
            state = Seen(state.items.take(pa.array(kept)), state.history[:, :, kept])
        places = pc.index_in(items, state.items)
        fresh = pc.unique(items.filter(pc.is_null(places)))
        history = np.full((self.numbers, self.windows, len(state.items) + len(fresh)), np.nan)
        history[:, :-1, : len(state.items)] = state.history[:, 1:]
        after = Seen(pa.concat_arrays([state.items, fresh]), history)
        if table is None:
            return after, np.empty(0, np.int64)
        at = pc.index_in(items, after.items).to_numpy()
        back = step - self.steps.starting(table["window_start"].to_numpy())
        inside = back < self.windows
        for number, values in zip(history, published(table), strict=False):
            number[self.windows - 1 - back[inside], at[inside]] = values[inside]
        return after, at

    def _rows(self, step: int, table: pa.Table, seen: Seen, places: np.ndarray) -> list[Any]:
        """Return the rows that are shown of what is published at a step, or may be among those of all shards."""
        columns: dict[str, Any] = {name: table[name].to_pylist() for name in self.row_type._fields}
        for name in TIMES:
            columns[name] = [Timestamp(micros=moment) for moment in columns[name]]
        if self.view is not None:
            columns |= {name: listed(column) for name, column in self._changed(step, table, seen, places).items()}
        rows = list(map(self.row_type, *(columns[name] for name in self.row_type._fields)))
        found = self.shown(rows)
        if self.choose is not None:
            start = Timestamp(micros=self.steps.bounds_micros(step)[0])
            return self.choose.among([row for row in found if row.window_start == start])
        self.rows_published.inc(len(found))
        # Unless keys are public, their order tells which of them somebody had first.
        return sorted(found, key=lambda row: (row.window_start, row.item)) if self.ordered else found

    def _changed(self, step: int, table: pa.Table, seen: Seen, places: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns that the view makes: of items that come with earlier windows from these."""
        assert self.view is not None
        starts = table["window_start"].to_numpy()
        now = starts == self.steps.bounds_micros(step)[0]
        past = np.isin(places, places[~now])
        found = {name: np.array(column) for name, column in self.view.last(seen.history[:, :, places], starts).items()}
        if past.any():
            items = ranks(table["item"].filter(pa.array(past)))
            whole = self.view.changed(items, starts[past], published(table)[:, past])
            for name, column in whole.items():
                found[name][past] = column
        return found


def published(table: pa.Table) -> np.ndarray:
    """Return the numbers that were published, int64 (numbers, rows)."""
    return np.stack([table[name].to_numpy() for name in NOISY if name in table.column_names])
