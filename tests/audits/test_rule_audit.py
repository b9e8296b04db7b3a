"""Attacks on the monitor of rules, without chance: all answers of all tests are tried, in both worlds.

The mechanism itself counts, charges and keeps the statuses; only the answer of each test is given to it, with the
probability that its own tables of noise state.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from laws import cdf, survival
from privstream.mechanisms import SeededNoise
from privstream.mechanisms.mechanism import NOBODY, UserCounters
from privstream.mechanisms.monitor.monitor import NONE_UP, STARTED, Holdings, ThresholdMonitor
from status_attacks import NEGLIGIBLE, best_order, leaked

EPSILON, DELTA, NUMBER = 0.7, 0.05, 200
NOISE, SUSPECT = SeededNoise(1), np.zeros(1, np.uint64)
ANSWERS: list[bool] = []
COUNTED: list[int] = []


class Steered(ThresholdMonitor):
    """Answers each test as `ANSWERS` says, and notes how many people it is about."""

    def _hits(self, step, tally, source):
        COUNTED.append(int(tally.counts(np.zeros(1, np.uint64))[0]))
        return super()._hits(step, tally, source)

    def _thresholds(self, step, items, source):
        return np.full(len(items), 0 if ANSWERS[-1] else 1 << 60)

    _end_thresholds = _thresholds


class FreeEndings(Steered):
    """Charges nobody when an alert ends."""

    def decide(self, counters, holdings, noise, up):
        rows, charges, after = super().decide(counters, holdings, noise, up)
        return rows, charges if np.any(rows.status == STARTED) else NOBODY, after


def made(kind=Steered, **changes):
    fields = {"starts": (NUMBER,), "ends": (NUMBER,), "tests": 100, "count_share": 0.0, "calibration": "status"}
    return kind(epsilon=EPSILON, delta=DELTA, **fields | {"max_hits": 1} | changes)


def best(monitor, *, cells, against):
    """Return the order of tests that is proved to be the best; see `status_attacks.best_order`."""
    found = monitor.calibrated
    moved = SimpleNamespace(eta=found.eta, threshold=NUMBER + found.threshold, end_threshold=NUMBER - found.threshold)
    order = best_order(moved, EPSILON, cells=cells, against=against)

    def rule(law, number):
        rising, others, _ = order(law[:, None], np.ones((2, 1)), number)
        return bool(rising[0]), int(others[0])

    return rule


def decided(monitor, worlds, up, step, others, suspect, answer):
    """Decide one step in both worlds; return counters, what is up, and how many people were counted in each."""
    COUNTED.clear()
    ANSWERS[:] = [answer]
    following = []
    for world, counters in enumerate(worlds):
        strangers = np.arange(others, dtype=np.uint64) + np.uint64((step + 1) << 20)
        users = np.concatenate([SUSPECT[: suspect and world == 0], strangers])
        given = Holdings(step=step, users=users, items=np.zeros(len(users), np.uint64))
        _, charges, after = monitor.decide(counters, given, NOISE, up)
        following.append(counters.add(charges))
    return following, after, np.array(COUNTED)


def transcripts(monitor, rule, *, tests, max_hits):
    """Return the probabilities of all transcripts with the suspect (world 0) and without, shape (2, n).

    Args:
        rule: given the probabilities so far, shape (2,), and the number of the test: whether numbers should have to
            rise for a change, and how many others count. Where the status is the other one, a crowd of strangers large
            enough changes it first, in both worlds alike: of such a step only the answer matters.
    """
    rises, falls = monitor.calibrated.threshold_law, monitor.calibrated.end_law
    going, done = [(np.ones(2), [UserCounters()] * 2, NONE_UP)], []
    for number in range(tests):
        before, going = going, []
        for law, *place in before:
            rising, others = rule(law, number)
            worlds, up = place
            if rising == bool(len(up)):
                worlds, up, _ = decided(monitor, *place, 2 * number, 0, False, rising is False)
            for high in (False, True):
                after, status, counts = decided(monitor, worlds, up, 2 * number + 1, others, True, high)
                noise = rises if rising else falls
                likely = law * (cdf(noise, counts - NUMBER) if high else survival(noise, counts - NUMBER))
                if after[0].charged(SUSPECT)[0] >= max_hits:
                    done.append(likely)
                elif likely.max() > NEGLIGIBLE:
                    going.append((likely, after, status))
    return np.array(done + [law for law, _, _ in going]).T


@pytest.mark.parametrize("against", [0, 1])
def test_the_best_order_of_tests_uses_delta_up_and_no_more(against):
    monitor = made()
    law = transcripts(monitor, best(monitor, cells=12, against=against), tests=90, max_hits=1)
    assert law.sum(axis=1) == pytest.approx([1, 1], abs=1e-9)
    assert 0.9 * DELTA < leaked(law, EPSILON) <= DELTA
    for epsilon in (0.0, 0.35, 1.4):
        assert leaked(law, epsilon) <= monitor.calibrated.hits_curve.delta(epsilon)


@pytest.mark.parametrize("kind", [Steered, FreeEndings])
def test_endings_that_charge_nobody_are_found(kind):
    monitor = made(kind)
    knee = round(NUMBER - monitor.calibrated.threshold)
    law = transcripts(monitor, lambda law, number: (False, knee), tests=7, max_hits=1)
    leak = leaked(law, EPSILON)
    assert leak > 1.2 * DELTA if kind is FreeEndings else leak <= DELTA


def test_answers_have_the_probabilities_that_the_attack_reckons_with():
    """Of the mechanism's own draws, in many steps: within six standard deviations."""
    monitor, steps = made(ThresholdMonitor), 1000
    found, rule = monitor.calibrated, np.zeros(1, np.uint64)
    for draw, law, shift in (
        (monitor._thresholds, found.threshold_law, 1),
        (monitor._end_thresholds, found.end_law, -1),
    ):
        count = round(NUMBER + shift * found.threshold)
        high = sum(int(count >= draw(step, rule, NOISE.derive("audit"))[0]) for step in range(steps))
        chance = float(cdf(law, count - NUMBER))
        assert 0.2 < chance < 0.8
        assert abs(high - steps * chance) < 6 * math.sqrt(steps * chance * (1 - chance))
