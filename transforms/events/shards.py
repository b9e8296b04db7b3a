"""The parts that a stage may share its work out to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from privstream.mechanisms import checks
from privstream.transforms.batches import EventBatch, Names, StepKey, encode
from privstream.transforms.timing.on_time_markers import KeyedBatch, digest

ALL_STREAMS = ""

MOST_SHARDS = 32_768
"""As many as Flink has groups of keys: more cannot work side by side, and a stage goes through them for each batch."""


def check_shards(shards: int) -> int:
    """Return a number of shards, at least one and not too many."""
    if checks.integer("shards", shards, minimum=1) > MOST_SHARDS:
        raise ValueError(f"shards must be <= {MOST_SHARDS}, got {shards}")
    return shards


def split_by_shard(
    users: np.ndarray, items: np.ndarray, times: np.ndarray, steps: np.ndarray, shards: int
) -> Iterator[KeyedBatch]:
    """Part events without names, at least one, of all streams together, by step and by shard of people."""
    first = int(steps.min())
    group = (steps - first) * shards + (users % np.uint64(shards)).astype(np.int64)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order])) + 1
    for rows in np.split(order, starts):
        step, shard = divmod(int(group[rows[0]]), shards)
        data = encode(EventBatch(users[rows], items[rows], times[rows], Names.none()))
        yield StepKey(ALL_STREAMS, first + step, shard).to_bytes(), (digest(data), data)
