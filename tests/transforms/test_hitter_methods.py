"""Heavy hitters by counts or by a monitor: which one "auto" takes, and what the detection thresholds of both mean."""

from dataclasses import replace

import numpy as np
import pytest
from privstream.mechanisms.keyed_counts.key_table import KeyedStep
from privstream.mechanisms.noise.sources import KeyedNoise, SeededNoise
from privstream.transforms import Domain, ShiftingHeavyHitters

RUN = {"epsilon": 1.0, "delta": 1e-6, "max_hits": 4, "window": 3600, "noise": KeyedNoise(b"a key for tests, no secret")}
PETS = {"domain": Domain([f"pet {number}" for number in range(1000)])}
WINDOWS, BETA = 200, 0.5


def made(**given):
    return ShiftingHeavyHitters(**RUN | given)


@pytest.mark.parametrize(
    ("max_hits", "before", "after"), [(4, 50, 70), pytest.param(16, 100, 150, marks=pytest.mark.slow)]
)
def test_auto_takes_counts_for_few_windows_of_a_person_and_the_clock_for_many(max_hits, before, after):
    few, many = (made(max_hits=max_hits, horizon=windows) for windows in (before, after))
    assert (few.method, many.method) == ("counts", "clock")


def test_what_a_person_may_contribute_decides_and_not_how_long_the_run_is():
    assert made(horizon=10_000, start=0, participation_cap=7).method == "counts"
    assert made(horizon=7, items_per_step=100).method == "clock"
    assert made(start=0, end=7 * 3600).method == "counts"  # the clock does not need the end, nor use it


def test_counts_need_a_bound_on_windows():
    assert made(start=0).method == "clock"
    with pytest.raises(ValueError, match="horizon, end or participation_cap must be given for counts"):
        made(start=0, method="counts")


def test_a_budget_that_no_method_can_have_is_refused_for_each():
    for name, value in {"max_hits": 0, "count_share": 1.0, "delta": 0.0}.items():
        with pytest.raises(ValueError, match=name):
            made(horizon=7, method="counts", **{name: value})


@pytest.mark.parametrize("known", [False, True])
def test_an_item_of_the_detection_threshold_is_missed_as_seldom_as_is_said_by_both(known):
    """The threshold is for a thousand tests at once, of which half of beta may miss one: 50 in 200 repetitions."""
    given = {"start": 0, "horizon": WINDOWS, "beta": BETA, **(PETS if known else {})}
    by_counts, by_clock = (made(**given, method=method).answer for method in ("counts", "clock"))
    by_counts, missed = replace(by_counts, tests=1000), {"counts": 0, "clock": 0}
    counted, clock = by_counts.detection_threshold(1), by_clock.monitor.calibrated
    tested = clock.detection_threshold(1000, BETA)
    keys, noise = np.arange(1000, dtype=np.uint64), SeededNoise(20)
    state = by_counts.counts.initial_state(keys if known else None)
    for window in range(1, WINDOWS + 1):
        crowds = KeyedStep(step=window, keys=keys, counts=np.full(1000, counted))
        state, rows = by_counts.counts.step(state, crowds, noise)
        missed["counts"] += 1000 - int(np.sum(rows.counts >= by_counts.threshold))
        thresholds = clock.draw_thresholds(noise.derive("clock", window), keys, step=1)
        missed["clock"] += int(np.sum(thresholds > tested))
    assert all(15 <= number <= 110 for number in missed.values()), missed


def test_of_a_list_no_item_that_nobody_has_is_reported_more_often_than_is_said():
    answer = made(start=0, horizon=WINDOWS, beta=BETA, method="counts", **PETS).answer
    answer = replace(answer, tests=1000)
    keys, found = np.arange(1000, dtype=np.uint64), 0
    state = answer.counts.initial_state(keys)
    for window in range(1, WINDOWS + 1):
        nobody = KeyedStep(step=window, keys=keys, counts=np.zeros(1000, np.int64))
        state, rows = answer.counts.step(state, nobody, SeededNoise(21))
        found += int(np.sum(rows.counts >= answer.threshold))
    assert 15 <= found <= 110
