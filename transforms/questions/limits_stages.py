"""SuggestLimits: how many contributions people have, published privately, and the limit that suits counts of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import PCollection
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import OUTSIDE, Accuracy
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.limits.contributions import ContributionHistogram, NoisyHistogram
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.transforms.batches import EventBatch, KeyedBatch, StepKey, decode, first_of_run, people_key
from privstream.transforms.counters import counter
from privstream.transforms.parameters import within
from privstream.transforms.people.bounding import SplitEvents
from privstream.transforms.rows import LimitShare
from privstream.transforms.stages import ApplyDoFn, PrivateTransform
from privstream.transforms.timing.steps import Length, Moment, Steps
from typing_extensions import override

Waiting = tuple[bytes, bytes]
"""Encoded events of a shard of people, with their `StepKey`."""


def by_people(batch: KeyedBatch) -> tuple[bytes, Waiting]:
    """Return events under the key of their people, whatever their window."""
    place, (_, data) = batch
    return people_key(StepKey.from_bytes(place).shard), (place, data)


def people_by_contributions(records: Iterable[Waiting], histogram: ContributionHistogram) -> Integers:
    """Return how many people of a shard are in each cell: a function of each person's own events alone."""
    parts = [np.empty((3, 0), np.uint64)]
    for place, data in records:
        events = decode(EventBatch, data)
        steps = np.full(len(events.users), StepKey.from_bytes(place).step).astype(np.uint64)
        parts.append(np.stack([events.users, events.items, steps]))
    found = np.concatenate(parts, axis=1)
    found = found[:, np.lexsort(found[::-1])]
    users = found[0, first_of_run(*found)]  # one for each contribution
    return histogram.tally(np.diff(np.append(np.flatnonzero(first_of_run(users)), len(users))))


class SuggestLimits(PrivateTransform):
    """Publish how many contributions people have, items in windows, and what each limit would keep and find.

    Events of input that ends in, `LimitShare` rows out, once. Args: see `Parameters` and `privstream suggest --help`.

    Privacy:
        Unit: one person over all that is read, added or removed. (epsilon, 0): `guarantee`. Each person is in one cell,
        whatever he or she does; one beyond the grid is in its last cell. The rest is reckoned from the published
        numbers. Public: all arguments but `noise`.

    Accuracy:
        Each interval alone holds the truth with probability 0.95; estimated shares are about the people who can be
        seen. At most 65,536 contributions count per person.

    Example:
        >>> suggest = SuggestLimits(window=86400, start=0, end=30 * 86400,
        ...                         noise=KeyedNoise.from_file(path))  # doctest: +SKIP

    Source: derived here, docs/proofs/limits.md.
    """

    def __init__(
        self,
        *,
        window: Length,
        start: Moment,
        end: Moment,
        noise: NoiseSource,
        epsilon: float = 0.05,
        for_epsilon: float = 1.0,
        delta: float = 1e-6,
        shards: int = 8,
    ) -> None:
        super().__init__(noise, shards)
        self.steps = Steps.of(window=window, start=start, end=end)
        self.for_epsilon = checks.positive("for_epsilon", for_epsilon)
        self.delta = checks.probability("delta", delta)
        self.mechanism = ContributionHistogram(epsilon)
        _ = self.later_run(1)  # an epsilon or a delta with which counts cannot run is refused now

    @property
    @override
    def promise(self) -> PrivacyGuarantee:
        return within(self.mechanism.guarantee, (), *self.mechanism.guarantee.limits)

    @property
    @override
    def accuracy(self) -> Accuracy:
        scale = self.mechanism.law.scale
        claim = f"Fewer people with alike numbers than some {8 * scale:,.0f} cannot be seen."
        return Accuracy(error=scale, failure_probability=OUTSIDE, claim=claim, numbers={"noise_scale": scale})

    @override
    def build(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        if not events.is_bounded:
            raise ValueError("events must be a bounded collection: limits are chosen from all of them")
        noise = self.noise.derive("limits", self.steps.label)
        split = SplitEvents(steps=self.steps, noise=noise, shards=self.shards)
        total = (
            apply_dofn(self.read(events, apply_dofn), split, KeyedBatch)
            | "ByPeople" >> beam.Map(by_people).with_output_types(tuple[bytes, Waiting])
            | "Together" >> beam.GroupByKey()
            | "Tally" >> beam.MapTuple(lambda _, found: people_by_contributions(found, self.mechanism))
            | "AddUp" >> beam.CombineGlobally(self._added)  # also where there are none
        )
        rows = total | "Publish" >> beam.FlatMap(self.rows, noise).with_output_types(LimitShare)
        return cast(PCollection[Any], rows)

    def _added(self, tallies: Iterable[Integers]) -> Integers:
        return cast(Integers, np.sum([np.zeros(self.mechanism.cells, np.int64), *tallies], axis=0))

    def rows(self, counts: Integers, noise: NoiseSource) -> list[LimitShare]:
        """Return what is published: `counts` are the people in all cells."""
        mechanism = self.mechanism
        found = NoisyHistogram(mechanism.edges, mechanism.release(counts, noise), mechanism.law.scale)
        best = found.best_limit(lambda limit: self.later_run(limit).stddev(1))
        rows = [self._row(found, cell, best) for cell in found.seen if cell < len(found.edges)]
        start = min(found.seen.stop, len(found.edges))
        rest = found.in_cells(range(start, mechanism.cells))
        above = float(found.edges[start - 1]) if start else 0.0
        published = [*rows, LimitShare(above, None, *rest, None, None, None, None, None, None, "")]
        counter("limits_published").inc(len(published))
        return published

    def later_run(self, limit: int) -> FoundKeys:
        """Return the counts of the later run under a limit, which may drop something."""
        windows = self.steps.count or 1
        made = FoundKeys(epsilon=self.for_epsilon, delta=self.delta, horizon=windows, contributions=limit)
        return made.with_dropped_share(math.inf)

    def _row(self, found: NoisyHistogram, cell: int, best: int | None) -> LimitShare:
        """Return the row of a cell in which people can be seen."""
        limit, run = found.edges[cell], self.later_run(found.edges[cell])
        kept, lower, upper = (round(part, 4) for part in found.kept(cell))
        return LimitShare(
            float(found.edges[cell - 1]) if cell else 0.0,
            float(limit),
            *found.in_cells(range(cell, cell + 1)),
            kept,
            lower,
            upper,
            stddev=round(run.stddev(1), 1),
            found_in_one=round(run.people_needed(1)),
            found_in_all=round(run.people_needed(run.horizon)),
            suggested=f"--max-contributions {limit}" if limit == best else "",
        )
