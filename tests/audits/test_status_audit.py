"""Attacks on the status monitor: it must stand at its claim, and come near it; each mistake must fall."""

from dataclasses import replace

import numpy as np
import pytest
from privstream.mechanisms.monitor.calibration import MonitorBudget, calibrate
from privstream.mechanisms.noise.discrete import DiscreteGaussian
from status_attacks import any_order, best_order, leaked, transcripts

EPSILON, DELTA = 0.7, 0.05


def calibration(**changes):
    parameters = {"epsilon": EPSILON, "delta": DELTA, "max_hits": 2, "tests": 10**4, "beta": 0.05, **changes}
    return calibrate(MonitorBudget(**parameters), 100)


@pytest.mark.parametrize("against", [0, 1])
@pytest.mark.parametrize(
    ("hits", "tests", "cells"), [(1, 150, 20), (2, 150, 16), pytest.param(3, 150, 10, marks=pytest.mark.slow)]
)
def test_the_best_order_of_tests_uses_delta_up_and_no_more(hits, tests, cells, against):
    found = calibration(max_hits=hits)
    rule = best_order(found, EPSILON, cells=cells, against=against)
    law = transcripts(found, rule, tests=tests, charges=(hits, 0))
    assert 0.95 * DELTA < leaked(law, EPSILON) <= DELTA
    for epsilon in (0.0, 0.35, 1.4):
        assert leaked(law, epsilon) <= found.hits_curve.delta(epsilon)


@pytest.mark.parametrize("domain", ["known", "unknown"])
@pytest.mark.parametrize("hits", [1, 2, 3])
def test_no_order_leaks_more_than_the_guarantee(hits, domain):
    found = calibration(max_hits=hits, domain=domain, tests_per_person=12)
    for seed in range(12):
        assert leaked(transcripts(found, any_order(found, seed), tests=12, charges=(hits, 0)), EPSILON) <= DELTA
        less = replace(found, budget=replace(found.budget, tests=1))  # low thresholds: few others, or nobody
        assert leaked(transcripts(less, any_order(less, seed), tests=12, charges=(hits, 0)), EPSILON) <= DELTA


def test_alone_and_in_crowds():
    """In an unknown domain a person first is alone with an item, and then changes statuses that crowds decide."""
    found = calibration(domain="unknown", tests_per_person=200)
    best = best_order(found, EPSILON, cells=20, against=0)

    def rule(law, left, number):
        if number >= 50:
            return best(law, left, number)
        size = law.shape[1]
        return np.ones(size, bool), np.zeros(size, np.int64), np.zeros(size, np.int64)

    law = transcripts(found, rule, tests=200, charges=(2, 0))
    assert 0.5 * DELTA < leaked(law, EPSILON) <= DELTA


def test_noisy_counts_are_composed_with_changes():
    """One charge, with the noisy count that comes with it: all counts within reach, without chance."""
    found = calibration(max_hits=1, count_share=0.4)
    spread = DiscreteGaussian(found.count_sigma)
    noise = np.arange(-200, 201)
    counted = np.stack([spread.pmf(noise - 1), spread.pmf(noise)])  # with and without the person
    for epsilon in (EPSILON, EPSILON * 0.6):
        rule = best_order(found, epsilon, cells=20, against=0)
        law = transcripts(found, rule, tests=150, charges=(1, 0))
        hits, silent = law[:, :-1], law[:, -1:]  # the last transcript has no hit
        together = np.concatenate([(hits[:, :, None] * counted[:, None]).reshape(2, -1), silent], axis=1)
        assert 0.3 * DELTA < leaked(together, EPSILON) <= DELTA
    free = replace(found, eta=calibration(max_hits=1).eta)  # changes take all of epsilon, counts are for nothing
    law = transcripts(free, best_order(free, EPSILON, cells=20, against=0), tests=150, charges=(1, 0))
    together = (law[:, :-1, None] * counted[:, None]).reshape(2, -1)
    assert leaked(np.concatenate([together, law[:, -1:]], axis=1), EPSILON) > 1.05 * DELTA


class TestMistakesAreFound:
    @pytest.mark.parametrize("hits", [1, 3])
    def test_endings_that_charge_nobody(self, hits):
        found = calibration(max_hits=hits)
        knee = round(found.end_threshold)

        def rule(law, left, number):
            size = law.shape[1]
            return np.zeros(size, bool), np.full(size, knee), np.zeros(size, np.int64)

        assert leaked(transcripts(found, rule, tests=14, charges=(hits, 0), free_ends=True), EPSILON) > 1.5 * DELTA
        assert leaked(transcripts(found, rule, tests=14, charges=(hits, 0)), EPSILON) <= DELTA

    @pytest.mark.parametrize("hits", [1, 2])
    def test_clocks_calibrated_for_one_kind_of_test(self, hits):
        plain = calibrate(MonitorBudget(epsilon=EPSILON, delta=DELTA, max_hits=hits, tests=10**4, beta=0.05))
        found = replace(calibration(max_hits=hits), eta=plain.eta)
        law = transcripts(found, best_order(found, EPSILON, cells=20, against=0), tests=150, charges=(hits, 0))
        assert leaked(law, EPSILON) > 1.05 * DELTA

    def test_too_little_noise(self):
        found = calibration()
        less = replace(found, eta=1.3 * found.eta)
        law = transcripts(less, best_order(less, EPSILON, cells=20, against=0), tests=200, charges=(2, 0))
        assert leaked(law, EPSILON) > 1.5 * DELTA
