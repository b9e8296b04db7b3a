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
    ("max_hits", "before", "after"), [(4, 100, 400), pytest.param(16, 300, 800, marks=pytest.mark.slow)]
)
def test_auto_takes_counts_for_few_windows_of_a_person_and_statuses_for_many(max_hits, before, after):
    few, many = (made(max_hits=max_hits, horizon=windows) for windows in (before, after))
    assert (few.method, many.method) == ("counts", "status")


def test_auto_takes_no_method_with_which_items_fade_though_it_detects_smaller_ones():
    clock, status = (made(horizon=1000, method=method) for method in ("clock", "status"))
    assert clock.detection_threshold < status.detection_threshold
    assert (clock.answer.lasting, status.answer.lasting, made(horizon=1000).method) == (4, None, "status")
    assert "the same people have in more than 4 windows fades" in clock.accuracy.sentence
    assert made(horizon=4, method="clock").answer.lasting is None
    assert made(horizon=4, method="clock", items_per_step=2).answer.lasting == 4
    assert made(horizon=1000, participation_cap=4, start=0, method="clock").answer.lasting is None


@pytest.mark.parametrize("method", ["status", "clock"])
def test_a_person_counts_with_no_more_items_than_there_are_charges(method):
    with pytest.raises(ValueError, match=r"^max_hits must be >= items_per_step, got 4 < 5: a person counts"):
        made(horizon=1000, items_per_step=5, method=method)
    assert made(horizon=1000, items_per_step=5).method == "counts"  # it charges nobody
    with pytest.raises(ValueError, match="max_hits must be >= items_per_step"):
        made(start=0, items_per_step=5)


def test_what_is_said_of_ends_holds():
    """An item with the detection threshold stays; one of few people ends at once, and one in between after a while."""
    status = made(horizon=1000, method="status")
    numbers, calibrated = status.accuracy.numbers, status.answer.monitor.calibrated
    items, noise = np.arange(1000, dtype=np.uint64), SeededNoise(22)
    ends = [calibrated.draw_end_thresholds(noise.derive("end", window), items) for window in range(20)]
    assert all(np.all(end <= status.detection_threshold) for end in ends)
    assert np.mean([np.mean(end > numbers["ends_with"]) for end in ends]) == pytest.approx(0.95, abs=0.01)
    ended = np.mean([np.mean(end > numbers["between"]) for end in ends])
    assert ended == pytest.approx(1 / numbers["windows_between"], abs=0.005)


def test_what_a_person_may_contribute_decides_and_not_how_long_the_run_is():
    assert made(horizon=10_000, start=0, participation_cap=7).method == "counts"
    assert made(horizon=40, items_per_step=20, max_hits=20).method == "status"
    assert made(start=0, end=7 * 3600).method == "counts"  # the clock does not need the end, nor use it


def test_counts_need_a_bound_on_windows():
    assert made(start=0).method == "status"
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
        nobody = None if known or not by_counts.counts.lists(window) else np.zeros(1000, np.int64)
        crowds = KeyedStep(step=window, keys=keys, counts=np.full(1000, counted), listed=nobody)
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
