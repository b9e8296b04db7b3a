"""Attacks on top-k by window, through the columnar stages: it must stand at its claim; each classic mistake must fall.

One person holds several items, or takes part in several windows, or does not. The attacker sees all rows.
"""

from dataclasses import replace

import numpy as np
import pytest
from attacks import falls, stands
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.selection.top_k import NoisyTopK
from privstream.transforms import Domain, TopKWithGap
from privstream.transforms.batches import EventBatch, Names, StepKey, encode
from privstream.transforms.holders import CountHolders
from privstream.transforms.people.bounding import BoundPerWindow
from privstream.transforms.top_k.gaps import RankItems

pytestmark = pytest.mark.slow

ITEMS = ("a", "b", "c", "d")
RUNS = 2_600
COMMON = {
    "window": 1,
    "start": 0,
    "end": 2,
    "domain": Domain(ITEMS),
    "noise": SeededNoise(0),
    "max_per_window": 1,
    "method": "gaps",
}
OTHERS = [(10, 0), (11, 1), (12, 0)]  # (person, item)
SUSPECT = 7


def ranking(**changes) -> TopKWithGap:
    """Return a ranking that spends half of the budget on measures, so that they show much."""
    made = TopKWithGap(**{**COMMON, **changes})
    made.mechanism = replace(made.mechanism, measure_share=0.5)
    return made


def stages(made: TopKWithGap) -> tuple[BoundPerWindow, CountHolders, RankItems]:
    common = {"steps": made.steps, "noise": made.noise}
    bound = BoundPerWindow(**common, items_per_step=made.max_per_window, item_shards=1)
    rank = RankItems(**common, mechanism=made.mechanism, domain=made.domain, timer_offset=3)
    return bound, CountHolders(), rank


def batch(held: list[tuple[int, int]]) -> bytes:
    users, items = (np.array(column, np.uint64) for column in zip(*held, strict=True))
    return encode(EventBatch(users, items, np.arange(len(held)), Names.none()))


def outcomes(made: TopKWithGap, held: list[tuple[int, int]], windows: int, encode, *, runs=RUNS) -> np.ndarray:
    """Return a code of all rows of each of many runs in which the suspect holds `held` in every window."""
    bound, count, rank = stages(made)
    codes = []
    records = []
    for step in range(windows):
        key = StepKey(step, 0)
        closed = bound.close(key, [batch([*OTHERS, *held])])
        counted = [data[8:] for element in closed for _, data in count.process(element)]
        records.append(counted)
    for run in range(runs):
        rank.noise = SeededNoise(1).derive(run)
        codes.append(encode([row for step in range(windows) for row in rank.step(b"", step, records[step], None)[1]]))
    return np.array(codes)


def who_and_gap(rows) -> int:
    """Which items, in order, and whether the gaps are small."""
    code = 0
    for row in rows:
        code = (code * 4 + ITEMS.index(row.item)) * 4 + min(int(row.gap), 3)
    return code


def total(rows) -> int:
    """How large everything seems together."""
    return int(np.clip(np.rint(sum(row.people for row in rows)) + 40, 0, 1000))


def levels(rows) -> int:
    """Which items, and how large they seem, in steps of one."""
    code = 0
    for row in rows:
        code = (code * 4 + ITEMS.index(row.item)) * 16 + int(np.clip(np.rint(row.people) + 6, 0, 15))
    return code


def test_stands_whatever_one_person_holds():
    """All four items at once: to select costs no more than for one item."""
    made = ranking(epsilon=2.0, top=1, end=1, max_per_window=4)
    nothing = outcomes(made, [], 1, levels)
    for held in ([(SUSPECT, 0)], [(SUSPECT, item) for item in range(4)]):
        stands([outcomes(made, held, 1, levels), nothing], 2.0, visible=0.2)
    stands([outcomes(made, held, 1, who_and_gap) for held in ([(SUSPECT, 1), (SUSPECT, 2)], [])], 2.0)


def test_stands_over_all_windows_of_a_person():
    made = ranking(epsilon=3.0, top=1)
    stands([outcomes(made, held, 2, levels, runs=2_000) for held in ([(SUSPECT, 1)], [])], 3.0)


class TestFalls:
    """The same attacks on what leaves out one of the precautions."""

    def caught(self, made, one, other, encode, claimed):
        falls([outcomes(made, held, 1, encode, runs=1_500) for held in (one, other)], claimed)

    def test_measures_with_too_little_noise(self):
        """Three items stand clear of the fourth; the suspect holds all three."""
        made = ranking(epsilon=1.0, top=3, end=1, max_per_window=3)
        assert made.mechanism.measurement.scale == pytest.approx(6.0)
        made.mechanism.__dict__["measurement"] = DiscreteLaplace(0.7)
        crowd = [(person, item) for person in range(100, 140) for item in (1, 2, 3)]
        self.caught(made, [*crowd, *((SUSPECT, item) for item in (1, 2, 3))], crowd, total, 1.0)

    def test_noise_that_does_not_grow_with_what_is_on_top(self, monkeypatch):
        made = ranking(epsilon=1.0, top=3, end=1, max_per_window=4)
        narrow = NoisyTopK(epsilon=made.mechanism.selection.epsilon * 6, top=3, monotone=True)
        made.mechanism.__dict__["selection"] = narrow
        self.caught(made, [(SUSPECT, 2), (SUSPECT, 3)], [], who_and_gap, 1.0)
