"""Views of input without an end: the rows of each window when it is over, from files that questions have published."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import apache_beam as beam
from apache_beam.coders.typecoders import registry
from apache_beam.metrics.metric import Metrics
from apache_beam.transforms.trigger import AccumulationMode, AfterWatermark
from apache_beam.transforms.window import GlobalWindows
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.views.rules import Watch
from privstream.pipelines.run.views import Table, View
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.pipelines.sinks.window_files import end_of
from privstream.transforms.batches import Keyed, digest
from privstream.transforms.timing.clock import WithClock, on_clock
from privstream.transforms.timing.step_fn import Cells, Known, StepFn, Stepped
from privstream.transforms.timing.steps import Steps, timestamp
from typing_extensions import override

KIND = "rows of a view"  # of snapshots
SEGMENT_BYTES = 1 << 20
LENGTHS = struct.Struct(">II")
TOO_LATE = "rows_not_in_views"
"""Counter of published rows that came after a view had published their window; there should be none."""


@dataclass(frozen=True, kw_only=True)
class Followed:
    """A view of input without an end.

    Attributes:
        view: what is published.
        chain: the views that it is made of, each behind those that it is made of itself; it is the last one.
        tables: of the questions that it is made of, without rows.
        table: its own, without rows.
    """

    view: View
    chain: tuple[View, ...]
    tables: Mapping[str, Table]
    table: Table

    @property
    def name(self) -> str:
        """What it is called."""
        return self.view.name

    @property
    def steps(self) -> Steps:
        """The windows, which rows come for in time: questions have waited for late events, and started afresh."""
        return replace(self.table.steps, renewal=None, allowed_lateness=0)


def followed(views: Sequence[View], tables: Mapping[str, Table], answers: Mapping[str, Table]) -> list[Followed]:
    """Return views as those of input without an end.

    Args:
        views: each behind those that it is made of.
        tables: of questions, without rows.
        answers: of views, without rows.

    Raises:
        WrongKeyError: a view cannot be one.
    """
    by_name = {view.name: view for view in views}
    found = []
    for view in views:
        names, wanted = set(), [view.name]
        while wanted:
            names.add(name := wanted.pop())
            wanted += [source for _, source in by_name[name].sources] if name in by_name else []
        table = answers[view.name]
        if table.steps.first is None:
            key = view.sources[0][0]
            raise view.error(key, "must be of questions with `start` where input has no end: windows count from it")
        chain = tuple(each for each in views if each.name in names)
        of_questions = {name: tables[name] for name in sorted(names - by_name.keys())}
        found.append(Followed(view=view, chain=chain, tables=of_questions, table=table))
    return found


class FollowView(beam.PTransform[Any, Any]):
    """Gives the rows of a view, those of each window when it is over, as its questions have published it by then.

    Input: for each question, by its name, the paths of its files of windows once they are written. What is in them is
    final, also where a run goes back to a checkpoint: whatever is published of a window comes from there alone.
    Rows that a question publishes after a later window than their own count in views from that one on; what was
    published of windows before stays as it is.

    *Privacy*: post-processing of published rows.

    Args:
        followed: the view.
        row_types: of the rows in these files, by the names of questions.
    """

    def __init__(self, followed: Followed, row_types: Mapping[str, type]) -> None:
        super().__init__()
        self.followed, self.row_types = followed, row_types

    @override
    def expand(self, paths: Mapping[str, Any]) -> Any:
        read = [
            some
            | f"Whenever {name}"
            >> beam.WindowInto(GlobalWindows(), trigger=AfterWatermark(), accumulation_mode=AccumulationMode.DISCARDING)
            | f"Read {name}"
            >> beam.Map(_read, name, self.row_types[name], self.followed.tables[name]).with_output_types(Keyed)
            for name, some in paths.items()
        ]
        together = read | "All" >> beam.Flatten()
        clocked = together | "WithClock" >> WithClock(self.followed.steps)
        return clocked | "Follow" >> beam.ParDo(_Follow(self.followed)).with_output_types(self.followed.table.row_type)


def join_parts(parts: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode named parts, in one piece."""
    return b"".join(LENGTHS.pack(len(name), len(data)) + name + data for name, data in parts)


def parts_of(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Return the named parts that `join_parts` encoded."""
    place = 0
    while place < len(data):
        name, size = LENGTHS.unpack_from(data, place)
        start = place + LENGTHS.size + name
        place = start + size
        yield data[start - name : start], data[start:place]


def _read(path: str, name: str, row_type: type, table: Table) -> Keyed:
    """Return the rows of a file, with the window after which they were published."""
    rows = read_row_file(path, row_type)
    coder, make = registry.get_coder(table.row_type), table.row_type._make
    step = table.steps.ending(timestamp(end_of(path)))
    return on_clock(step, join_parts((name.encode(), coder.encode(make(row))) for row in rows))


@dataclass(frozen=True)
class _Remembered:
    """What a view knows after a window.

    Attributes:
        step: the window.
        rows: of windows that later ones need, by question and window.
        before: what the next window needs to know of an alert.
    """

    step: int
    rows: Mapping[str, Mapping[int, Sequence[Any]]] = field(default_factory=dict)
    before: Watch | None = None


class _Follow(StepFn, state="monitor_view"):
    """Per view: on the clock of its windows, published rows in, rows of the view out.

    The log has the rows of each window, and how the alert stands.
    """

    def __init__(self, followed: Followed) -> None:
        super().__init__(steps=followed.steps, timer_offset=1)
        self.chain, self.tables = followed.chain, followed.tables
        asked = [view.model.given for view in self.chain]
        self.options = digest(json.dumps(asked).encode())
        self.coders = {name: registry.get_coder(table.row_type) for name, table in self.tables.items()}
        self.back = {
            name: max(view.back(self.tables) for view in self.chain if name in (source for _, source in view.sources))
            for name in self.tables
        }
        self.too_late = Metrics.counter("privstream", TOO_LATE)

    @override
    def initial(self, key: bytes) -> _Remembered:
        return _Remembered(self._before)

    @override
    def set_aside(self, key: bytes, step: int, batch: bytes) -> Iterator[Any]:
        self.too_late.inc(sum(1 for _ in parts_of(batch)))
        return iter(())

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: _Remembered) -> Stepped:
        rows = self._with_more(state.rows, batches, step)
        tables: dict[str, Table] = dict(self.tables)
        before, found = None, None
        for view in self.chain:
            given = {source: tables[source] for _, source in view.sources}
            back = view.back(given)
            for name in given.keys() & rows.keys():
                some = [row for window, each in rows[name].items() if step - back <= window <= step for row in each]
                given[name] = replace(given[name], rows=some)
            found, before = view.follow(given, step, state.before)
            tables[view.name] = found
        assert found is not None  # a chain ends with the view itself
        kept = {
            name: {window: each for window, each in of_windows.items() if window > step - self.back[name]}
            for name, of_windows in rows.items()
        }
        after, some = _Remembered(step, kept, before), batches if any(self.back.values()) else []
        return Stepped(after, found.rows, lambda: self._segment(after, b"".join(some)))

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> _Remembered:
        if not segments:
            return self.initial(key)
        found: list[dict[str, Any]] = [unpack(KIND, 1, segment) for segment in segments]
        step, watch = found[-1]["step"], json.loads(found[-1]["before"])
        rows = self._with_more({}, [each["rows"] for each in found], step + 1)
        return _Remembered(step, rows, None if watch is None else Watch(*watch))

    @override
    def encode(self, state: _Remembered) -> list[bytes]:
        found, some, size = [], [], 0
        for name, of_windows in state.rows.items():
            for each in of_windows.values():
                some.append(join_parts((name.encode(), self.coders[name].encode(row)) for row in each))
                size += len(some[-1])
                if size >= SEGMENT_BYTES:
                    found.append(self._segment(state, b"".join(some)))
                    some, size = [], 0
        return [*found, self._segment(state, b"".join(some))]

    @override
    def end(self, key: bytes, known: Known, cells: Cells) -> None:
        """Stop at the last window with rows, now that the input has ended."""
        last = max(known.records, default=known.progress.handled)
        known.progress = replace(known.progress, last=last)
        self.close(key, known, cells)

    def _segment(self, state: _Remembered, rows: bytes) -> bytes:
        """Encode a part of the log."""
        return pack(KIND, 1, {"step": state.step, "before": json.dumps(state.before).encode(), "rows": rows})

    def _with_more(
        self, known: Mapping[str, Mapping[int, Sequence[Any]]], batches: Iterable[bytes], step: int
    ) -> dict[str, dict[int, list[Any]]]:
        """Return rows with more, of which those of windows that are needed from a window on are kept."""
        found = {name: {window: list(each) for window, each in known.get(name, {}).items()} for name in self.tables}
        for batch in batches:
            for encoded, data in parts_of(batch):
                name = encoded.decode()
                row = self.coders[name].decode(data)
                window = self.steps.ending(row.window_end)
                if window >= step - self.back[name]:
                    found[name].setdefault(window, []).append(row)
        return found
