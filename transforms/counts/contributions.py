"""Bound what one person contributes to counts over the whole run, and count what is left, per shard of keys."""

from __future__ import annotations

from functools import partial

import numpy as np
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.monitor.holdings import Charges, UserCounters
from privstream.mechanisms.noise.routed import SourcesByName
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import CountBatch, HolderBatch, InStreams, Keyed
from privstream.transforms.counts.stream_counts import StreamCounts, add_up, by_group
from privstream.transforms.events.bounding import (
    BoundOverRun,
    Charged,
    LimitCounter,
    Used,
    draw_in_streams,
    within_limit,
)
from privstream.transforms.events.domain import Domain
from privstream.transforms.timing.steps import Steps
from typing_extensions import override


class CountContributions(BoundOverRun, state="count_contributions"):
    """Leave out what is beyond a person's limit, and count the rest by group of streams and shard of keys.

    Args:
        contributions: of one person in the whole run, at most.
        distinct: whether a person counts only once for each key of a stream in the whole run.
        newcomers: whether it matters who counts for a key for the first time.
        key_shards: shards of keys.
        limits: least and largest value of a contribution, to which it is clipped.
    """

    kind = "contributed"
    limit_names = ("times", "pairs")  # pairs: of a person and a key, by the keyed hash of both and the stream

    def __init__(
        self,
        *,
        steps: Steps,
        noise: NoiseSource,
        timer_offset: int,
        contributions: int,
        distinct: bool,
        newcomers: bool = False,
        key_shards: int,
        limits: tuple[int, int] = (0, 0),
        domain: Domain | None = None,
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset, domain=domain)
        self.noise = noise
        self.contributions = contributions
        self.distinct = distinct
        self.newcomers = newcomers
        self.remembers_keys = distinct or newcomers
        self.limits = limits
        self.key_shards = key_shards
        self._sources = SourcesByName(partial(noise.derive, "contribution"))
        self.limited = LimitCounter("contributions", steps)
        self.clipped = Metrics.counter("privstream", "contributions_clipped")

    @override
    def admit(self, step: int, held: InStreams[HolderBatch], used: Used) -> tuple[Charged, list[Keyed]]:
        users, codes = held.users, held.codes

        def pairs_of(some: np.ndarray) -> np.ndarray:
            labels = np.stack([users[some], held.batch.items[some]], axis=1)
            return draw_in_streams(self._sources.__getitem__, held.streams, codes[some], labels)

        rows = np.arange(len(users))
        new, pairs = np.ones(len(rows), bool), np.empty(0, np.uint64)
        if self.remembers_keys:
            pairs = pairs_of(rows)
            new = _charged(used["pairs"], pairs) == 0
        if self.distinct:
            rows = np.flatnonzero(new)
        within = within_limit(users[rows], self.contributions, used["times"], lambda some: pairs_of(rows[some]))
        admitted = rows[within]
        self.limited.add(step, len(rows), len(rows) - len(admitted))
        counted = Charges.of(pairs[admitted[new[admitted]]]) if self.remembers_keys else Charges.none()
        charged = {"times": Charges.of(users[admitted]), "pairs": counted}
        return charged, list(by_group(step, self._count(held, admitted, new), self.key_shards))

    def _count(self, held: InStreams[HolderBatch], rows: np.ndarray, new: np.ndarray) -> StreamCounts:
        """Count some rows, increasing; `new` says of each row whether the person is new to the key."""
        batch = held.batch
        each = CountBatch(
            batch.items[rows],
            np.ones(len(rows), np.int64),
            batch.names,
            new[rows].astype(np.int64) if self.newcomers else None,
            None if batch.values is None else self._clip(batch.values[rows]),
        )
        return add_up(InStreams(held.streams, np.searchsorted(rows, held.starts), each))

    def _clip(self, values: np.ndarray) -> np.ndarray:
        """Return values within the limits, and count those that were outside."""
        within: np.ndarray = np.clip(values, *self.limits)
        self.clipped.inc(int((within != values).sum()))
        return within


def _charged(counters: UserCounters, keys: np.ndarray) -> np.ndarray:
    """Return what each key has been charged; in order they are found several times as fast."""
    order = np.argsort(keys)
    charged = np.empty(len(keys), np.int64)
    charged[order] = counters.charged(keys[order])
    return charged
