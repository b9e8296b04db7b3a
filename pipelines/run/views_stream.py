"""Views of streaming input: the rows of each window when it is over, from files that questions have published."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.transforms.trigger import AccumulationMode, AfterWatermark
from apache_beam.transforms.window import GlobalWindows
from privstream.pipelines.run.views import Table, View
from privstream.pipelines.sinks.row_files import read_plain
from privstream.pipelines.sinks.writers import end_of
from privstream.transforms.batches import Keyed
from privstream.transforms.counts.transform import rows_of
from privstream.transforms.timing.step_fn import KeyProgress, StepFn, Stepped, WithClock, on_clock
from privstream.transforms.timing.steps import Steps
from typing_extensions import override


class FollowView(beam.PTransform[Any, Any]):
    """Gives the rows of a view, those of each window when it is over, as its questions have published it by then.

    Input: for each question, by its name, the paths of its files of windows once they are written, which are final.
    Rows that a question publishes after a later window than their own count in views from that one on; what was
    published of windows before stays as it is.

    *Privacy*: post-processing of published rows.

    Args:
        chain: the views that it is made of, each behind those that it is made of itself; the last one is the view.
        tables: of the questions that it is made of, without rows.
        table: its own, without rows.
    """

    def __init__(self, chain: Sequence[View], tables: Mapping[str, Table], table: Table) -> None:
        super().__init__()
        self.name, self.chain, self.tables, self.table = chain[-1].name, chain, tables, table
        # rows come in time: questions have waited for late events, and begun their periods
        self.steps = replace(table.steps, renewal=None, allowed_lateness=0)

    @override
    def expand(self, paths: Mapping[str, Any]) -> Any:
        known = [
            some
            | f"Whenever {name}"
            >> beam.WindowInto(GlobalWindows(), trigger=AfterWatermark(), accumulation_mode=AccumulationMode.DISCARDING)
            | f"By window {name}" >> beam.Map(by_window, name, self.steps).with_output_types(Keyed)
            for name, some in paths.items()
        ]
        clocked = known | "All" >> beam.Flatten() | "WithClock" >> WithClock(self.steps)
        return clocked | "Follow" >> beam.ParDo(Follow(self)).with_output_types(self.table.row_type)


def followed(views: Sequence[View], tables: Mapping[str, Table], answers: Mapping[str, Table]) -> list[FollowView]:
    """Return what follows each view, from the tables of all questions and views without rows."""
    sources: dict[str, set[str]] = {}
    found = []
    for view in views:  # each behind those that it is made of
        own = {source for _, source in view.sources}
        sources[view.name] = names = own.union({view.name}, *(sources.get(name, ()) for name in own))
        of_questions = {name: tables[name] for name in sorted(names - answers.keys())}
        found.append(FollowView([each for each in views if each.name in names], of_questions, answers[view.name]))
    return found


def by_window(path: str, name: str, steps: Steps) -> Keyed:
    """Return a file of a question, with the window after which its rows were published."""
    return on_clock(steps.starting(end_of(path)) - 1, json.dumps([name, path]).encode())


class Follow(StepFn, state="monitor_view"):
    """Per view: on the clock of its windows, paths of published files in, rows of the view out.

    It knows the files that later windows need, with their question and the window after which they were published, and
    how an alert stands.
    """

    def __init__(self, view: FollowView) -> None:
        super().__init__(steps=view.steps, timer_offset=1)
        self.chain, self.tables = view.chain, view.tables
        given = json.dumps([view.model.given for view in self.chain])
        self.options = hashlib.blake2b(given.encode(), digest_size=16).digest()
        self.back = max(view.back(self.tables) for view in self.chain)

    @override
    def initial(self, key: bytes) -> list[Any]:
        return [{}, None]

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: list[Any]) -> Stepped:
        files, watch = {**state[0], **{path: [name, step] for name, path in map(json.loads, batches)}}, state[1]
        tables, before = dict[str, Table](), None
        for name, table in self.tables.items():
            known = (read_plain(path, table.row_type) for path, (whose, _) in files.items() if whose == name)
            rows = pa.concat_tables([table.rows, *known])
            steps = self.steps.starting(rows["window_start"].to_numpy())
            rows = rows.filter(pa.array((step - self.back <= steps) & (steps <= step)))
            tables[name] = replace(table, rows=rows, released=rows)
        for view in self.chain:
            tables[view.name], before = view.follow(tables, step, watch)
        found = tables[self.chain[-1].name]
        kept = {path: each for path, each in files.items() if each[1] > step - self.back}
        return Stepped([kept, before and list(before)], rows_of(found.row_type, found.rows))

    @override
    def snapshot(self, state: list[Any]) -> bytes:
        return json.dumps(state).encode()

    @override
    def restore(self, data: bytes) -> list[Any]:
        found: list[Any] = json.loads(data)
        return found

    @override
    def over(self, progress: KeyProgress, records: Mapping[int, list[bytes]]) -> int:
        """Return the last window with rows."""
        return max(records, default=progress.handled)
