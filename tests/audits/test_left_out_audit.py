"""Attacks on what is told of limits: two totals, and who has used up a limit, through the stage and with its noise."""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
from attacks import falls, stands
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.keyed_counts.left_out import NOTHING_TOLD, Clips
from privstream.mechanisms.monitor.holdings import Charges, UserCounters
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.privacy.accounting import GaussianCurve, largest_shift
from privstream.transforms.counts.contributions import CountContributions, Totals
from privstream.transforms.events.bounding import Used

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("left out")]  # who share what is seen of the others

EPSILON, DELTA, WINDOWS, LIMIT, SHARE, TRIALS = 8.0, 1e-2, 3, 3, 0.5, 6_000
AT = 0.5  # where the curve is looked at
MADE = KeyedCounts(
    epsilon=EPSILON, delta=DELTA, contributions=LIMIT, horizon=WINDOWS, public_keys=True, full_share=SHARE
)
SHIFT = largest_shift(EPSILON, DELTA)
COUNTER = 2
OTHERS = np.full((3, WINDOWS), 50)


def added(came, per_window=None, again=False):
    """What one person adds, int64 (3, windows); `again`: a broken stage that counts a person in every window."""
    told = MADE.left_out
    totals = Totals(told.clips if per_window is None else Clips(per_window, per_window, 100), ("0",), 1)
    stage = CountContributions.__new__(CountContributions)
    stage.contributions = LIMIT
    used, times, sums = Used({"left_out": UserCounters(), "times": UserCounters()}), 0, []
    for number in came:
        kept = min(number, LIMIT - times)
        times += kept
        person = np.full(number, 7, np.uint64)
        one, charged = stage._added_up(totals, person, person[:kept], used)
        used = used.after({"left_out": charged, "times": Charges.of(person[:kept])})
        sums.append([*one[:2], int(times == LIMIT)] if again else one)
    return np.array(sums).T


def seen(sums, seed):
    """What is told in many runs, float64 (trials, 3, windows)."""
    noise, runs = SeededNoise(seed), np.empty((TRIALS, 3, WINDOWS))
    for trial in range(TRIALS):
        told = NOTHING_TOLD
        for step in range(WINDOWS):
            told = MADE.tell(step + 1, sums[:, step], told, noise.derive(trial))
        runs[trial] = told.numbers
    return runs


@functools.cache
def seen_of_others():
    return seen(OTHERS, 1)


def worlds(person, which=slice(None)):
    """Scores of runs without and with a person, who is there beside others: the best direction, as samples show it."""
    runs = [seen_of_others(), seen(OTHERS + person, 2)]
    moved = person.astype(float)
    moved[COUNTER] = np.cumsum(moved[COUNTER])
    flat = [run[:, which].reshape(TRIALS, -1) for run in runs]
    direction = np.linalg.solve(np.cov(flat[0].T), moved[which].ravel())
    return [np.round(2 * (run - flat[0].mean(axis=0)) @ direction).astype(np.int64) for run in flat]


def test_a_person_who_is_left_out_most_shows_no_more_than_the_share_of_the_budget():
    person = added((6, 3, 3))
    assert person.tolist() == [[3, 0, 0], [3, 3, 3], [1, 0, 0]]
    curve = GaussianCurve(shift=SHIFT * math.sqrt(SHARE))
    stands(worlds(person), AT, visible=0.6, curve=curve)


def baskets(told):
    """Scores of runs where only windows have a limit, without and with a person who has a large basket in each."""
    limit = MADE.contributions // WINDOWS
    made = replace(MADE, contributions_per_window=limit)
    assert made.left_out.counter is None
    person = np.array([[limit] * WINDOWS, [told or made.left_out.clips.left_out] * WINDOWS])
    noise, runs = SeededNoise(9), []
    for world in (0, 1):
        sums = np.concatenate([50 + world * person, np.zeros((1, WINDOWS), np.int64)])
        flat = np.empty((TRIALS, 2 * WINDOWS))
        for trial in range(TRIALS):
            after = NOTHING_TOLD
            for step in range(WINDOWS):
                after = made.tell(step + 1, sums[:, step], after, noise.derive(world).derive(trial))
            flat[trial] = after.numbers[:2].ravel()
        runs.append(flat)
    direction = np.repeat(1 / np.square(made.left_out.stddevs), WINDOWS) * person.ravel()
    return [np.round(2 * (run - runs[0].mean(axis=0)) @ direction).astype(np.int64) for run in runs]


def test_a_person_with_large_baskets_shows_no_more_than_the_share_of_the_budget():
    curve = GaussianCurve(shift=SHIFT * math.sqrt(SHARE))
    stands(baskets(None), AT, visible=0.6, curve=curve)
    falls(baskets(25), AT, delta=curve.delta(AT), beyond=1.3)


def test_a_person_of_whom_all_is_told_is_caught():
    curve = GaussianCurve(shift=SHIFT * math.sqrt(SHARE))
    person = added((9, 9, 9), per_window=9)
    falls(worlds(person), AT, delta=curve.delta(AT), beyond=1.3)


def test_a_person_who_uses_up_the_limit_again_and_again_is_caught():
    curve = GaussianCurve(shift=SHIFT * math.sqrt(SHARE / 10))
    once, often = added((6, 3, 3)), added((6, 3, 3), again=True)
    stands(worlds(once, [COUNTER]), 0.0, visible=0.4, curve=curve)
    falls(worlds(often, [COUNTER]), 0.0, delta=curve.delta(0.0), beyond=1.3)
