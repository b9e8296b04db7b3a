"""Heavy hitters by noisy counts of all items: of those that stay found, or of those that reach a threshold."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import apache_beam as beam
import numpy as np
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import TOGETHER, Limit
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.keyed_counts.key_table import KeyedRows
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.transforms.batches import CountBatch, HolderBatch, InStreams, Keyed, Names, StepKey
from privstream.transforms.counts.contributions import (
    TOLD_MARK,
    CountContributions,
    TellBaskets,
    Totals,
    add_up,
    is_told,
    lists_of,
    sealed_counts,
)
from privstream.transforms.counts.finished import SmoothFinished
from privstream.transforms.counts.keyed_counts import for_end, forgets, short_period
from privstream.transforms.counts.publishing import KeyPublisher, KeysOfStreams, PublicKeys, in_groups, publish_counts
from privstream.transforms.events.coverage import JUST_FOUND, TOO_LARGE
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.private_transform import ApplyDoFn
from privstream.transforms.heavy_hitters.by_monitor import with_streaks
from privstream.transforms.methods import chance_of_half
from privstream.transforms.rows import CONTINUES, STARTED, HeavyHitter, KeyCount
from privstream.transforms.timing.clocked import Follow
from privstream.transforms.timing.steps import Steps
from scipy import special


@dataclass(frozen=True, kw_only=True)
class ByCounts:
    """A method of `ShiftingHeavyHitters`: it charges nobody, but pays for every window that a person may take part in.

    Attributes:
        counts: of one window each, of all streams together; keys are public if `domain` is given. `FoundKeys` where
            items stay found.
        tests: of one item in one window, in one stream, for which the accuracy is stated.
        limits: sentences that say what a person may contribute.
        steps: the windows.
        noise: of counts.
        domain: the list of items if each of them is counted in every window, else None.
        streams: public names of the streams, if they are known.
        shards: of items.
        missing: what must be given that items stay found; empty if they do, or are not to.
        to_finish: whether `finish` gets the rows: then all of those of items that stay found are published.
        complete: whether limits can leave out nothing, by public parameters.
        always: items that need not be found; None for none.
    """

    counts: KeyedCounts
    tests: int
    limits: tuple[str, ...]
    steps: Steps
    noise: NoiseSource
    domain: Domain | None
    streams: tuple[str, ...] | None
    shards: int
    missing: str = ""
    to_finish: bool = False
    complete: bool = False
    always: PublicKeys | None = None

    @property
    def remembers(self) -> bool:
        """Whether items that are found stay found."""
        return isinstance(self.counts, FoundKeys)

    @property
    def lists(self) -> bool:
        """Whether there is a list of different people, so that what is held must come by shard of people."""
        return isinstance(self.counts, FoundKeys) and self.counts.listed > 0

    def for_end(self) -> ByCounts:
        """Return this method for a run whose rows `finish` gets."""
        return replace(self, to_finish=True, counts=for_end(self.counts, self.steps))

    @cached_property
    def error(self) -> int:
        """Most by which a count is off: in each of so many tests, on either side, but with probability beta."""
        return self.counts.error(1, self.counts.beta, keys=self.tests)

    @property
    def threshold(self) -> int:
        """The least noisy count of one window that is published, or with which an item is found.

        Items that are not on a list need it for privacy. Of a list it is what no item that nobody has reaches: in all
        tests together, but with probability beta / 2.
        """
        needed = self.counts.threshold(1)
        return self.error + 1 if needed is None else needed

    @property
    def lasting(self) -> None:
        """None: reports charge nobody, so the same people count in all windows that they may take part in."""

    @property
    def remarks(self) -> str:
        """What a reader of rows must know beside the detection threshold: how else an item is found."""
        return f" {self.counts.found_claim} {REPORTED}" if isinstance(self.counts, FoundKeys) else ""

    @property
    def advice(self) -> str:
        """That items could stay found, where windows forget though nobody asked for it; that periods are short."""
        return forgets(self.missing) if self.missing else short_period(self.counts, self.steps)

    @property
    def scope(self) -> tuple[str, str]:
        """Which counts are right at once, and a note on it: what is published is chosen by the same numbers."""
        return TOGETHER, JUST_FOUND if self.remembers else TOO_LARGE

    @property
    def charges(self) -> tuple[Limit, ...]:
        """The limits by which people who are charged no longer count: nobody is."""
        return ()

    def detection_threshold(self, window: int) -> int:
        """Return how many people must have an item for a report, the same in every window.

        As with monitors, an item is missed with probability beta / 2 in all tests together.
        """
        return self.threshold + self.error

    @property
    def counts_every_row(self) -> bool:
        """Each row has a count."""
        return True

    @property
    def may_stop(self) -> bool:
        """Nobody is charged, so nothing fades."""
        return False

    def people_needed(self, windows: int, probability: float, *, others: bool = False) -> float:
        """Return how many people an item needs in each of so many windows to be reported in at least half of them.

        Where items stay found it must be found, and its smoothed count must surely be above 0, as over files: a list of
        different people, whose noise is its own, finds items that are too small for that, so that the chances of both
        are multiplied. Where windows forget, each count must reach the threshold.
        """
        stddev = self.counts.stddev(1)
        if isinstance(self.counts, FoundKeys):
            if windows == 1:
                return self.counts.people_needed(1, probability, others=others)
            deviation = stddev / math.sqrt(windows)
            surely = (SURELY + SURELY_SPREAD * float(special.ndtri(probability))) * deviation
            by_blocks = max(self.counts.people_needed(windows, probability), surely)
            if not others or not self.lists:
                return by_blocks
            found, fewer = self.counts.chance_by_others(windows), range(1, math.ceil(by_blocks))

            def chance(people: int) -> float:
                return found(people) * float(special.ndtr((people / deviation - SURELY) / SURELY_SPREAD))

            place = bisect_left(fewer, probability, key=chance)
            return fewer[place] if place < len(fewer) else by_blocks
        margin = float(special.ndtri(chance_of_half(windows, probability)))  # of normal noise: bounds are for tails
        return self.threshold + margin * stddev

    @property
    def numbers(self) -> dict[str, float]:
        """The noise, the threshold and, for bars, by how much a count is off in all tests together."""
        stddev = self.counts.stddev(1)
        bar = {"count_error": self.error}
        return {"count_stddev": stddev, "noise_scale": stddev, "threshold": self.threshold, **bar}

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """What one person is promised."""
        found = self.counts.guarantee
        lists = {"the list of items": self.domain, "the list of public items": self.always}
        public = ("all parameters", "the windows", *(name for name, items in lists.items() if items is not None))
        return replace(found, limits=(*self.limits, *found.limits), public=public)

    @property
    def finish(self) -> FinishedHitters | None:
        """Smooth counts of windows that follow each other, where items have one in each of them, and say since when."""
        if not self.remembers:
            return None
        smooth = SmoothFinished(self.steps.size, self.counts.stddev(1), steps=self.steps, left_out=self.counts.left_out)
        return FinishedHitters(smooth, self.steps)

    def with_empty_steps(self, batches: PCollection[Any]) -> PCollection[Any]:
        """Add nothing: where items are counted in every window, a clock does it."""
        return batches

    def publish(self, held: PCollection[Any], apply_dofn: ApplyDoFn, *, timer_offset: int) -> PCollection[Any]:
        """Add the last stages: from who has what, by shard of items, to rows."""
        publisher = HitterPublisher(
            steps=self.steps,
            mechanism=self.counts,
            noise=self.noise,
            domain=self.domain,
            threshold=self.threshold,
            everything=self.complete,
            unfinished=self.to_finish,
            always=self.always,
        )
        clocked = self.remembers or self.domain is not None
        return publish_held(
            held,
            apply_dofn,
            publisher,
            clocked=clocked,
            streams=self.streams,
            key_shards=self.shards,
            timer_offset=timer_offset,
        )


def baskets_of(counts: KeyedCounts, steps: Steps, key_shards: int) -> TellBaskets | None:
    """Return what tells what the limit of a window leaves out, if it is told: of one stream, without other limits."""
    if counts.left_out is None:
        return None
    clips = counts.left_out.clips
    return TellBaskets(steps, clips.kept, Totals(clips, tuple(in_groups(("",))), key_shards), lists_of(counts))


def check_full_share(
    share: float | None, *, possible: bool, limits: Mapping[str, object], method: str = "counts"
) -> float:
    """Return the share of the budget for what limits leave out, 0 for none.

    Args:
        share: as it is given.
        possible: whether every window of an item has noisy counts of its own, with delta.
        limits: arguments with which it is not told, by name; those that are not given are None.
        method: the one that is asked for.

    Raises:
        ValueError, TypeError: it is out of range, or above 0 where nothing can be told.
    """
    if share is None or not checks.probability("full_share", share, zero=True):
        return 0.0
    if method != "counts":
        raise ValueError(f"full_share must be given with the method counts alone, got {method!r}")
    for name, value in limits.items():
        if value is not None:
            raise ValueError(f"full_share must not be given with {name}: what items_per_step leaves out is told alone")
    if not possible:
        raise ValueError(
            "full_share must not be given without delta, or start, and end or renew_every, or where windows forget"
        )
    return share


SURELY, SURELY_SPREAD = 5.5, 1.1
"""People in each of n > 1 windows with whom a smoothed count is surely above 0 in half of them, with an even chance,
and what one standard deviation of luck changes: in standard deviations of the noise, over sqrt(n); simulated. A window
alone is smoothed with nothing: what finds an item in it is enough."""

REPORTED = "They are reported in each window in which their smoothed count is surely above 0."


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
            if not row.smoothed_lower:
                continue
            goes_on = last == step - 1 and not self.steps.starts_afresh(last, step)
            first = first if goes_on else row.window_start
            since[row.stream, row.item] = step, first
            found[place] = row._replace(since=first, status=CONTINUES if goes_on else STARTED)
        Metrics.counter("privstream", HitterPublisher.counter).dec(len(smoothed) - len(found))
        return [found[place] for place in sorted(found)]


# What rows of both kinds say of a number. Their error bound is of other tests, and a rise is no column of hitters.
DESCRIBED = slice(KeyCount._fields.index("lower"), KeyCount._fields.index("backfilled") + 1)


def publish_held(
    held: PCollection[Any],
    apply_dofn: ApplyDoFn,
    publisher: KeyPublisher,
    *,
    clocked: bool,
    streams: tuple[str, ...] | None,
    key_shards: int,
    timer_offset: int,
) -> PCollection[Any]:
    """Add the last stages: from who has what within all limits to rows.

    Where there is a list of different people, it is counted, too, of which of them it counts; what is held must then be
    by shard of people. Totals of what limits leave out may be among what is held.

    Args:
        held: who has what within all limits, and totals.
        apply_dofn: adds a stage.
        publisher: writes the rows; its noise chooses the items of a person, where a list would count more than it may.
        clocked, streams, key_shards, timer_offset: see `publish_counts`.
    """
    mechanism = publisher.mechanism
    told: dict[str, Any] = {"clocked": clocked, "streams": streams, "key_shards": key_shards}
    if (lists := lists_of(mechanism)) is None:
        counted = held | "CountHolders" >> beam.Map(count_holders).with_output_types(Keyed)
        return publish_counts(counted, apply_dofn, publisher, timer_offset=timer_offset, **told)
    stage = CountContributions(
        steps=publisher.steps,
        noise=publisher.noise,
        timer_offset=timer_offset,
        contributions=None,
        key_shards=key_shards,
        lists=lists,
    )
    if mechanism.left_out is None:
        counted = apply_dofn(held, stage, Keyed)
    else:
        totals = held | "Totals" >> beam.Filter(is_told) | "ToShards" >> beam.Map(unmarked).with_output_types(Keyed)
        people = held | "Holders" >> beam.Filter(is_held).with_output_types(Keyed)
        counted = (apply_dofn(people, stage, Keyed), totals) | "WithTotals" >> beam.Flatten()
    return publish_counts(counted, apply_dofn, publisher, timer_offset=timer_offset + 1, **told)


def is_held(element: Keyed) -> bool:
    """Tell whether an element is who has what, and not a total."""
    return not is_told(element)


def unmarked(element: Keyed) -> Keyed:
    """Return a total as `publish_counts` takes it."""
    return element[0].removeprefix(TOLD_MARK), element[1]


def count_holders(element: Keyed) -> Keyed:
    """Count who has each item of a shard in a batch: a person is in one batch of a step, with an item at most once."""
    if is_told(element):
        return unmarked(element)
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
        for row, windows in zip(counted, ago.tolist(), strict=True):
            since, status = self.steps.bounds(step - back - windows)[0], CONTINUES if windows else STARTED
            full = row.kept, row.left_out, row.full, row.full_lower, row.full_upper
            yield HeavyHitter._make((*row[:6], since, status, *row[DESCRIBED], *full))
