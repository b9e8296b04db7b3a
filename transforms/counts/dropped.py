"""The share of contributions that limits drop: shards of people add up a few numbers, and one stage releases them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from privstream.mechanisms.keyed_counts.dropped import DroppedShare, Share
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import Keyed, shard_key
from privstream.transforms.counters import counter
from privstream.transforms.timing.clock import stepped
from privstream.transforms.timing.step_fn import StepFn
from typing_extensions import override

CLOCK = shard_key(0) + b"dropped"  # of shard 0: of processes that share out shards, one has all of it

READINGS = "limits_readings"
NUMBERS = ("limits_counted", "limits_dropped_few", "limits_dropped_some", "limits_dropped_many")
"""Counters of what was released last, with noise, and of how often; a run that publishes nothing must not show them."""


def sums_record(step: int, sums: np.ndarray) -> Keyed:
    """Return what a shard of people sends of a step: exact numbers, int64 (n,)."""
    return CLOCK, stepped(step, sums.astype("<i8").tobytes())


class Waiting(NamedTuple):
    """Exact numbers of the period so far, what the last reading released of them, and how many readings there were."""

    sums: np.ndarray
    released: np.ndarray
    readings: int


class ReleaseDropped(StepFn, state="release_dropped"):
    """On a public clock: release what came until then at some steps of the run, or of each period.

    What is released is in counters, and in no row.

    Args:
        mechanism: adds the noise, in as many readings.
        noise: of the run.
        readings: numbers of the steps, from 1 on, after which it is read.
    """

    mechanism: DroppedShare
    readings: frozenset[int]

    @override
    def initial(self, key: bytes) -> Waiting:
        nothing = np.zeros(len(self.mechanism.laws), np.int64)
        return Waiting(nothing, nothing, 0)

    @override
    def snapshot(self, state: Waiting) -> bytes:
        return pack("dropped contributions", 1, state._asdict())

    @override
    def restore(self, data: bytes) -> Waiting:
        found: dict[str, Any] = unpack("dropped contributions", 1, data)
        return Waiting(**found)

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Waiting) -> tuple[Waiting, Iterable[Any]]:
        sums = sum((np.frombuffer(batch, "<i8") for batch in batches), state.sums)
        if self.steps.number(step) not in self.readings:
            return state._replace(sums=sums), ()
        reading = state.readings + 1
        noisy = self.mechanism.release(reading, sums, self.noise_of(step))
        for name, number in zip((READINGS, *NUMBERS), [1, *(noisy - state.released).tolist()], strict=False):
            counter(name).inc(number)
        return Waiting(sums, noisy, reading), ()


def share_in(counters: Mapping[str, int], mechanism: DroppedShare | None) -> Share | None:
    """Return the share that a run has released, from its counters; None where it has not, or noise hides it."""
    readings = counters.get(READINGS, 0)
    if mechanism is None or not readings:
        return None
    noisy = [counters.get(name, 0) for name, _ in zip(NUMBERS, mechanism.laws, strict=False)]
    return mechanism.share(np.array(noisy, np.int64), readings)
