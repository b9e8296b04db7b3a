"""Heavy hitters by noisy counts of all items: of those that stay found, or of those that reach a threshold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import apache_beam as beam
import numpy as np
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.keyed_counts.found_keys import SURELY, FoundKeys
from privstream.mechanisms.keyed_counts.key_table import KeyedRows
from privstream.transforms.batches import CountBatch, HolderBatch, InStreams, Keyed, Names, StepKey
from privstream.transforms.counts.contributions import (
    CountContributions,
    add_up,
    lists_of,
    sealed_counts,
)
from privstream.transforms.counts.finished import SmoothFinished
from privstream.transforms.counts.publishing import KeyPublisher, KeysOfStreams, publish_counts
from privstream.transforms.events.bounding import Bound
from privstream.transforms.events.private_transform import ApplyDoFn
from privstream.transforms.heavy_hitters.by_monitor import with_streaks
from privstream.transforms.heavy_hitters.methods import ByCounts
from privstream.transforms.rows import CONTINUES, STARTED, HeavyHitter
from privstream.transforms.timing.clocked import Follow
from privstream.transforms.timing.steps import Steps


@dataclass(frozen=True)
class FinishedHitters:
    """Makes the reports of a finished run from the rows of items that stay found, of all windows.

    Those stay whose smoothed count is surely above 0, with the windows before and after it known.

    Privacy: post-processing of what is published.

    Attributes:
        smooth: smooths the counts.
        steps: the windows.
    """

    smooth: SmoothFinished
    steps: Steps

    def __call__(self, rows: Sequence[HeavyHitter]) -> list[HeavyHitter]:
        """Return the reports, in the order of the rows."""
        smoothed: list[HeavyHitter] = self.smooth(rows)
        since: dict[tuple[str, str], tuple[int, Timestamp]] = {}
        found: dict[int, HeavyHitter] = {}
        for place in sorted(range(len(smoothed)), key=lambda place: smoothed[place].window_start):
            row = smoothed[place]
            step = self.steps.ending(row.window_end)
            last, first = since.get((row.stream, row.item), (step, row.window_start))
            if not row.smoothed_lower or (row.count or 0) <= SURELY * self.smooth.stddev:
                continue
            goes_on = last == step - 1 and not self.steps.starts_afresh(last, step)
            first = first if goes_on else row.window_start
            since[row.stream, row.item] = step, first
            found[place] = row._replace(since=first, status=CONTINUES if goes_on else STARTED)
        Metrics.counter("privstream", HitterPublisher.counter).dec(len(smoothed) - len(found))
        return [found[place] for place in sorted(found)]


def publish_held(
    held: PCollection[Any],
    apply_dofn: ApplyDoFn,
    publisher: KeyPublisher,
    *,
    clocked: bool,
    streams: tuple[str, ...] | None,
    groups: int,
    key_shards: int,
    timer_offset: int,
) -> PCollection[Any]:
    """Add the last stages: from who has what within all limits to rows.

    Where there is a list of different people, it is counted, too, of which of them it counts; what is held must then be
    by shard of people.

    Args:
        held: who has what within all limits.
        apply_dofn: adds a stage.
        publisher: writes the rows; its noise chooses the items of a person, where a list would count more than it may.
        clocked, streams, groups, key_shards, timer_offset: see `publish_counts`.
    """
    told: dict[str, Any] = {"clocked": clocked, "streams": streams, "groups": groups, "key_shards": key_shards}
    if (lists := lists_of(publisher.mechanism)) is None:
        counted = held | "CountHolders" >> beam.Map(count_holders).with_output_types(Keyed)
        return publish_counts(counted, apply_dofn, publisher, timer_offset=timer_offset, **told)
    stage = CountContributions(
        steps=publisher.steps,
        noise=publisher.noise,
        timer_offset=timer_offset,
        bound=Bound(1 << 30),  # others have limited them
        groups=groups,
        key_shards=key_shards,
        lists=lists,
    )
    return publish_counts(apply_dofn(held, stage, Keyed), apply_dofn, publisher, timer_offset=timer_offset + 1, **told)


def count_holders(element: Keyed) -> Keyed:
    """Count who has each item of a shard in a batch: a person is in one batch of a step, with an item at most once."""
    held = InStreams.from_bytes(HolderBatch, element[1])
    ones = CountBatch(held.batch.items, np.ones(len(held.users), np.int64), held.batch.names)
    return sealed_counts(StepKey.from_bytes(element[0]), add_up(InStreams(held.streams, held.starts, ones)))


@dataclass(frozen=True, kw_only=True)
class HitterPublisher(KeyPublisher):
    """Writes as heavy hitters the counts of items that stay found, or else those that reach a threshold.

    Attributes:
        threshold: the least noisy count that is published, unless items stay found.
        unfinished: whether all rows of items that stay found are published, and not only those that are surely above 0.
    """

    threshold: int
    unfinished: bool = False

    counter: ClassVar[str] = "hits_published"

    @property
    def row_type(self) -> type:
        """What rows are."""
        return HeavyHitter

    @property
    def follow(self) -> Follow | None:
        """A report goes on that was there in the window before; items that stay found know since when."""
        return None if isinstance(self.mechanism, FoundKeys) else with_streaks

    def rows(
        self, step: int, held: KeysOfStreams, found: KeyedRows, names: Names, *, back: int = 0
    ) -> Iterator[HeavyHitter]:
        """Write the heavy hitters of one step."""
        if found.since is None:
            found = found.where(found.counts >= self.threshold)
        elif not self.unfinished:
            found = found.where(found.since > 0)
        ago = np.zeros(len(found.keys), np.int64)
        if found.since is not None:
            ago = np.where(found.since > 0, found.step - found.since, 0)
        counted = super().rows(step, held, found, names, back=back)
        (margins,) = found.of_each("count_margin")
        for row, windows, margin in zip(counted, ago.tolist(), margins.tolist(), strict=True):
            since, status = self.steps.bounds(step - back - windows)[0], CONTINUES if windows else STARTED
            ends = max(0, row.count - margin), max(0, row.count + margin)
            smoothed = (None,) * 3 if row.smoothed is None else (row.smoothed, row.lower, row.upper)
            yield HeavyHitter._make((*row[:6], since, status, *ends, *smoothed, row.reported_at, row.backfilled))


def finished_hitters(method: ByCounts) -> FinishedHitters | None:
    """Smooth counts of windows that follow each other, where items have one in each of them, and say since when."""
    if not method.remembers:
        return None
    smooth = SmoothFinished(method.steps.size, method.counts.stddev(1), steps=method.steps)
    return FinishedHitters(smooth, method.steps)


def publish_by_counts(
    method: ByCounts, held: PCollection[Any], apply_dofn: ApplyDoFn, *, groups: int, timer_offset: int
) -> PCollection[Any]:
    """Add the last stages: from who has what, by shard of items, to rows."""
    publisher = HitterPublisher(
        steps=method.steps,
        mechanism=method.counts,
        noise=method.noise,
        domain=method.domain,
        threshold=method.threshold,
        unfinished=method.to_finish,
        always=method.always,
    )
    clocked = method.remembers or method.domain is not None
    return publish_held(
        held,
        apply_dofn,
        publisher,
        clocked=clocked,
        streams=method.streams,
        groups=groups,
        key_shards=method.shards,
        timer_offset=timer_offset,
    )
