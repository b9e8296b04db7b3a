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

# fmt: off
EVENLY_SPREAD = (
    58, 43, 50, 1, 178, 4, 8, 131, 257, 190, 14, 36, 51, 255, 142, 37, 459, 39, 42, 33, 77, 19, 35, 177, 63, 11,
    160, 6, 45, 112, 91, 54, 218, 313, 81, 167, 208, 7, 25, 184, 16, 9, 181, 2, 52, 203, 88, 173, 59, 101, 31, 310,
    405, 97, 183, 171, 165, 236, 104, 0, 106, 100, 130, 15, 60, 143, 26, 5, 23, 41, 155, 170, 3, 248, 76, 73, 182,
    370, 53, 153, 226, 27, 161, 71, 149, 747, 105, 294, 376, 38, 122, 119, 30, 21, 70, 191, 17, 269, 210, 82, 40,
    388, 273, 789, 141, 62, 247, 93, 64, 563, 99, 22, 78, 57, 13, 29, 120, 10, 98, 109, 68, 96, 67, 439, 56, 379,
    74, 46,
)
# fmt: on
"""Names of shards. Flink hands keys to slots by a hash: of 0 to 15 it gives 5 to one slot and 11 to the other. The i-th
name here lies in the group of keys of which the number is i with its seven bits reversed, so that the first n names
are spread over any number of slots as evenly as can be."""


def people_key(shard: int) -> bytes:
    """Return the key under which a stage keeps what it remembers of a shard of people."""
    name = EVENLY_SPREAD[shard] if shard < len(EVENLY_SPREAD) else MOST_SHARDS + shard
    return name.to_bytes(4, "big")


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
