"""KeyedCounts: how many people have each item, and what their values add up to; and questions that are views of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import apache_beam as beam
from apache_beam.coders import Coder
from apache_beam.coders.typecoders import registry
from apache_beam.pvalue import PCollection
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import Keyed
from privstream.transforms.counts.contributions import (
    CLOCK,
    CountContributions,
    CountEvents,
    CountRandomContributions,
    ReleaseDropped,
    lists_of,
)
from privstream.transforms.counts.counted import CountedParameters, CountsView
from privstream.transforms.counts.finished import ShownCounts
from privstream.transforms.counts.keyed_counts import MOST_IN_WINDOW, CountsParameters
from privstream.transforms.counts.publishing import PublishCounts, ShowCounts
from privstream.transforms.people.bounding import BoundPerWindow, SplitEvents
from privstream.transforms.reading.domain import PublicKeys
from privstream.transforms.stages import ApplyDoFn, PeopleTransform, Segment
from privstream.transforms.timing.clock import WithClock, on_clock
from privstream.transforms.timing.step_fn import StepFn
from privstream.transforms.timing.steps import Steps
from typing_extensions import override


class KeyedCounts(CountsParameters, PeopleTransform):  # noqa: D101 - its docstring is that of its parameters
    @property
    @override
    def segments(self) -> tuple[Segment, ...]:
        *shared, last = super().segments
        return *shared, last._replace(gives=Keyed) if self._in_columns else last

    @override
    def _splitter(self) -> SplitEvents:
        _ = self.mechanism.law  # once, at launch; workers receive it
        limits = 0, self.mechanism.max_value or 0
        return SplitEvents(**self._split_by, domain=self.domain, positions=self.domain is not None, limits=limits)

    @override
    def _bound(self, closed: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        if not self._by_person:
            return apply_dofn(closed, CountEvents(steps=self.steps), Keyed)
        common: dict[str, Any] = {"steps": self.steps, "noise": self.noise}
        bound, dropped = self.bound, self.dropped_share
        assert bound is not None
        in_window = BoundPerWindow(
            **common,
            items_per_step=min(bound.in_run if dropped is None else bound.in_run + dropped.clip, MOST_IN_WINDOW),
            by_people=True,
            in_parts=bound.sampled,
            ranked=False,
            distinct=bound.sampled and self._distinct,
        )
        count = (CountRandomContributions if bound.sampled else CountContributions)(
            **common,
            timer_offset=1,
            bound=bound,
            distinct=self._distinct,
            key_shards=self.shards,
            limits=(0, self.mechanism.max_value or 0),
            lists=lists_of(self.mechanism),
            dropped=dropped,
        )
        held = apply_dofn(closed, in_window, Keyed)
        return apply_dofn(held | "PeopleClocks" >> WithClock(self.steps, self.people), count, Keyed)

    @override
    def _publish(self, counted: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        mechanism = self.mechanism
        if mechanism.windows > 1:  # sums of windows are a view
            mechanism = replace(mechanism, over="window")
        publish = PublishCounts(
            steps=self.steps,
            timer_offset=2,
            mechanism=mechanism,
            noise=self.counting_noise,
            key_shards=self.shards,
            domain=self.domain,
            always=None if self.public_items is None else PublicKeys(self.public_items, self.noise),
            row_type=self.row_type,
            counted=self._in_columns,
        )
        counts = self._without_sums(counted, apply_dofn)
        tables = apply_dofn(counts | "WithClock" >> WithClock(self.steps, self.item_shards), publish, Keyed)
        return tables if self._in_columns else self._show(tables, apply_dofn)

    def _show(self, tables: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Add the stages from tables to rows: as they are published where all of them are seen when the run has ended,
        else as a view of the last windows has them."""
        ended = self._to_finish and self.finish is not None
        show = ShowCounts(
            steps=self.steps,
            timer_offset=3,
            row_type=self.row_type,
            view=None if ended else self.finish,
            shown=ShownCounts(None, None, False) if ended else ShownCounts(self.at_least, None, bool(self.rising)),
            choose=None if ended else self.chosen,
            ordered=self.domain is None,
        )
        rows = apply_dofn(tables | "ShowClocks" >> WithClock(self.steps, self.item_shards), show, self.row_type)
        if show.choose is None:
            return rows
        at_ends = AtWindowEnds(self.steps, self.row_type, timer_offset=4, choose=show.choose)
        return cast(PCollection[Any], rows | "AtWindowEnds" >> at_ends)

    def _without_sums(self, counted: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Add the stage that releases what limits drop, in one process, and return the counts alone."""
        if (mechanism := self.dropped_share) is None:
            return counted
        if self._shared.number == 0:
            sums = counted | "Sums" >> beam.Filter(lambda element: element[0] == CLOCK).with_output_types(Keyed)
            release = ReleaseDropped(
                steps=self.steps,
                timer_offset=2,
                mechanism=mechanism,
                noise=self.counting_noise,
                readings=frozenset(self.shares_read),
            )
            apply_dofn(sums | "SumsWithClock" >> WithClock(self.steps, (CLOCK,)), release, bytes)
        return cast(
            PCollection[Any],
            counted | "Counts" >> beam.Filter(lambda element: element[0] != CLOCK).with_output_types(Keyed),
        )


Choose = Callable[[list[Any]], list[Any]]
Follow = Callable[[list[Any], list[Any]], list[Any]]


class AtWindowEnds(beam.PTransform[Any, Any]):
    """Choose, of all rows of a window, those that are published.

    Args:
        steps: those of the rows.
        row_type: of the rows, with `window_end`.
        timer_offset: that of this stage, after the one that the rows come from.
        choose: from all rows of a window, in any order, to those that are published.
        follow: from the chosen rows, and the rows published for the window before, to those that are published.
    """

    def __init__(
        self, steps: Steps, row_type: type, *, timer_offset: int, choose: Choose = list, follow: Follow | None = None
    ) -> None:
        super().__init__()
        self.steps = steps
        self.row_type = row_type
        self.timer_offset = timer_offset
        self.choose = choose
        self.follow = follow

    @override
    def expand(self, rows: PCollection[Any]) -> PCollection[Any]:
        coder = registry.get_coder(self.row_type)
        encoded = rows | "Encode" >> beam.Map(under_one_key, coder, self.steps).with_output_types(Keyed)
        clocked = encoded | "WithClock" >> WithClock(self.steps)
        publish = PublishAtEnds(
            steps=self.steps, timer_offset=self.timer_offset, coder=coder, choose=self.choose, follow=self.follow
        )
        return cast(PCollection[Any], clocked | beam.ParDo(publish).with_output_types(self.row_type))


def under_one_key(row: Any, coder: Coder, steps: Steps) -> Keyed:
    """Encode a row, with the step of its window."""
    return on_clock(int(steps.ending(row.window_end)), coder.encode(row))


class PublishAtEnds(StepFn, state="window_ends"):
    """Publish the rows of a window together. What is remembered are those of the last one, if others depend on them."""

    coder: Coder
    choose: Choose
    follow: Follow | None

    @override
    def initial(self, key: bytes) -> list[Any]:
        return []

    @override
    def snapshot(self, state: list[Any]) -> bytes:
        return pack("published rows", 1, {str(place): self.coder.encode(row) for place, row in enumerate(state)})

    @override
    def restore(self, data: bytes) -> list[Any]:
        found: dict[str, Any] = unpack("published rows", 1, data)
        return [self.coder.decode(row) for row in found.values()]

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: list[Any]) -> tuple[list[Any], list[Any]]:
        rows = self.choose([self.coder.decode(row) for row in batches])
        if self.follow is None:
            return state, rows
        rows = self.follow(rows, state)
        return rows, rows


AFTER_COUNTS = 5
"""How many stages have decided a window before its view does."""


class CountedTransform(CountedParameters, PeopleTransform):
    """Counts and a view of them, or the stages of another method."""

    counts_type = KeyedCounts

    @property
    @override
    def segments(self) -> tuple[Segment, ...]:
        if self.counts is None:
            return super().segments
        counts = cast(KeyedCounts, copy.copy(self.counts))
        counts._shared, counts._names = self._shared, self._names
        *first, last = counts.segments
        if not self._ended:  # else the view is one of the whole run
            last = Segment(partial(self._viewed, last))
        return *first, last

    def _viewed(self, counts: Segment, counted: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Add the stages that publish counts, and those that publish a view of each window when it is over."""
        rows, view = counts.stages(counted, apply_dofn), self.view
        given = rows | "View" >> beam.FlatMap(_of_its_window, view).with_output_types(view.row_type)
        ends = AtWindowEnds(
            self.steps, view.row_type, timer_offset=AFTER_COUNTS, choose=view.choose, follow=view.publish
        )
        return cast(PCollection[Any], given | "AtWindowEnds" >> ends)


def _of_its_window(row: Any, view: CountsView, at: Any = beam.DoFn.TimestampParam) -> list[Any]:
    """Return what a row of counts gives, if it is published after its own window, not after a later one."""
    return list(view.of_row(row)) if at < row.window_end else []
