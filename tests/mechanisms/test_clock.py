import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from laws import cdf
from privstream.mechanisms.monitor.calibration import MonitorBudget, calibrate
from privstream.mechanisms.privacy.accounting import ClockCurve

HITS = (1, 4, 16, 64)
MILLION, BILLION = 10**6, 10**9
# Noise scale and detection thresholds at 1e6 and 1e9 tests; epsilon 1, beta 0.01.
KNOWN = {1: (10.92, 241, 320), 4: (14.95, 330, 438), 16: (23.19, 512, 679), 64: (39.94, 881, 1169)}
SMALL_DELTA = {1: (17.4, 383, 508), 4: (22.4, 493, 655), 16: (32.9, 725, 962), 64: (54.5, 1202, 1595)}
UNKNOWN = {1: (254, 257), 4: (340, 345), 16: (513, 520), 64: (857, 870)}


def budget(**changes):
    return MonitorBudget(**{"epsilon": 1.0, "delta": 1e-6, "max_hits": 4, "tests": MILLION, "beta": 0.01, **changes})


def exact_divergences(eta, k, epsilon):
    """Both hockey-stick divergences of k clocks, by finite and infinite sums of positive terms at 120 digits."""
    with mpmath.workdps(120):
        rate, weight = mpmath.exp(eta), mpmath.exp(epsilon)
        late = (epsilon + k * mpmath.mpf(eta)) / (rate - 1)
        early = max(mpmath.mpf(0), (k * mpmath.mpf(eta) - epsilon) / (rate - 1))
        upper = lambda x: mpmath.exp(-x) * mpmath.fsum(x**j / mpmath.factorial(j) for j in range(k))  # noqa: E731
        without = upper(late) - weight * upper(rate * late)
        within = (1 - upper(rate * early)) - weight * (1 - upper(early))
        return float(max(within, 0)), float(max(without, 0))


# Real-valued thresholds of the tables are rounded up to people here: up to one more than printed.
@pytest.mark.parametrize("hits", HITS)
@pytest.mark.parametrize(("table", "changes"), [(KNOWN, {}), (SMALL_DELTA, {"delta": 1e-9})])
def test_scales_and_detection_thresholds_are_those_of_the_tables(table, changes, hits):
    scale, million, billion = table[hits]
    found = [calibrate(budget(max_hits=hits, tests=tests, **changes)) for tests in (MILLION, BILLION)]
    assert found[0].noise_scale == pytest.approx(scale, abs=0.051 if table is not KNOWN else 0.0051)
    assert 0 <= found[0].detection_threshold(MILLION, 0.01) - million <= 1
    assert 0 <= found[1].detection_threshold(BILLION, 0.01) - billion <= 1


@pytest.mark.parametrize("hits", HITS)
def test_detection_thresholds_of_an_unknown_domain_are_those_of_the_table(hits):
    found = calibrate(budget(max_hits=hits, domain="unknown", tests_per_person=1000))
    assert 0 <= found.detection_threshold(MILLION, 0.01) - UNKNOWN[hits][0] <= 1
    assert 0 <= found.detection_threshold(BILLION, 0.01) - UNKNOWN[hits][1] <= 1


def transcripts(budget, hit, others, old, new):
    """Probabilities of all transcripts when a person holds the items `old`, and when `new`; one item a step.

    `others[i]` is how many others hold the item of step i. Both worlds charge that person alone.
    """
    states = [((0, 0), (1.0, 1.0))]
    for i, count in enumerate(others):
        ahead = []
        for (a, b), (p, q) in states:
            pa, qa = (hit(count + (mine[i] and spent < budget.max_hits)) for mine, spent in ((old, a), (new, b)))
            ahead.append(((a + old[i], b + new[i]), (p * pa, q * qa)))
            ahead.append(((a, b), (p * (1 - pa), q * (1 - qa))))
        states = ahead
    return np.array([pair for _, pair in states])


def leaked(made, found, others, old, new, epsilon):
    hit = {c: -math.expm1(-found.hazard(c)) for count in others for c in (count, count + 1)}
    p, q = transcripts(made, hit.__getitem__, others, old, new).T
    return max(np.maximum(0, a - math.exp(epsilon) * b).sum() for a, b in ((p, q), (q, p)))


@pytest.mark.parametrize("domain", ["known", "unknown"])
@pytest.mark.parametrize("hits", [1, 2, 3])
def test_no_run_of_ten_tests_leaks_more_than_the_guarantee(hits, domain):
    made = budget(epsilon=0.7, delta=0.05, max_hits=hits, domain=domain, tests_per_person=10)
    found = calibrate(made)
    rng = np.random.default_rng(hits)
    for low in {0, *range(max(0, int(found.threshold) - 14), int(found.threshold) + 2)}:
        others = rng.integers(low, low + 4, 10).tolist()
        old = rng.integers(0, 2, 10).astype(bool)
        assert leaked(made, found, others, old.tolist(), [False] * 10, 0.7) <= 0.05
        assert leaked(made, found, [low] * 10, [True] * 10, [False] * 10, 0.7) <= 0.05


@pytest.mark.parametrize("hits", [1, 2, 3])
def test_the_guarantee_is_tight_and_less_noise_breaks_it(hits):
    made = budget(epsilon=0.7, delta=0.05, max_hits=hits)
    found = calibrate(made)
    runs = [[count] * 12 for count in range(max(0, int(found.threshold) - 14), int(found.threshold) + 3)]
    everywhere, nowhere = [True] * 12, [False] * 12
    assert 0.049 < max(leaked(made, found, run, everywhere, nowhere, 0.7) for run in runs) <= 0.05
    broken = replace(found, eta=1.3 * found.eta)
    assert max(leaked(made, broken, run, everywhere, nowhere, 0.7) for run in runs) > 0.08


@settings(deadline=None, max_examples=60)
@example(0.05078125, 30, 1.5)  # a divergence of 3e-46, which is a difference of nearly equal numbers
@given(st.floats(0.005, 2.0), st.sampled_from([1, 2, 5, 30]), st.floats(0.01, 5.0))
def test_closed_form_is_the_divergence_and_never_below_it(eta, k, epsilon):
    curve = ClockCurve(eta=eta, clocks=k)
    for found, exact in zip(curve.one_way(np.array([epsilon])), exact_divergences(eta, k, epsilon), strict=True):
        assert exact <= found[0] * (1 + 1e-15) + 1e-300
        assert found[0] <= exact + 1e-10


@pytest.mark.parametrize("hits", [1, 16])
def test_delta_grows_with_eta_and_the_solver_uses_it_up(hits):
    etas = np.geomspace(1e-3, 3, 60)
    deltas = [ClockCurve(eta=eta, clocks=hits).delta(1.0) for eta in etas]
    assert np.all(np.diff(deltas) >= -1e-11)
    eta = calibrate(budget(max_hits=hits)).eta
    spent = ClockCurve(eta=eta, clocks=hits).delta(1.0)
    assert 1e-6 * (1 - 1e-6) < spent <= 1e-6


def test_loss_distribution_is_pessimistic_and_close():
    curve = ClockCurve(eta=0.0669, clocks=4)
    pld = curve.to_pld(1e-3)
    for epsilon in (0.1, 0.5, 1.0, 1.5):
        exact = curve.delta(epsilon)
        assert exact * (1 - 1e-6) - 1e-12 <= pld.get_delta_for_epsilon(epsilon) <= exact * 1.001 + 1e-11


@pytest.mark.parametrize("changes", [{}, {"domain": "unknown", "tests_per_person": 1000}])
def test_hazard_grows_by_no_more_than_one_person_may_add(changes):
    found = calibrate(budget(**changes))
    counts = np.arange(0, 400)
    hazard = found.hazard(counts)
    extra = found.budget.domain_hazard if found.budget.domain == "unknown" else 0.0
    assert np.all(hazard[1:] <= (math.exp(found.eta) * hazard[:-1] + extra) * (1 + 1e-12))
    assert np.all(np.diff(hazard) >= 0)
    assert (hazard[0] == 0) == (found.budget.domain == "unknown")


@pytest.mark.parametrize("changes", [{}, {"domain": "unknown", "tests_per_person": 1000}])
def test_law_of_hidden_thresholds_is_the_hit_probability(changes):
    found = calibrate(budget(max_hits=1, **changes))
    counts = np.arange(0, 300)
    hidden = cdf(found.threshold_law, counts)
    hit, miss = -np.expm1(-found.hazard(counts)), found.miss_probability(counts)
    assert hidden == pytest.approx(hit, rel=1e-9, abs=1e-15)
    assert hit + miss == pytest.approx(1)
