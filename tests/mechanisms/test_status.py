"""The status calibration: the price of charges against slow references, laws of hidden thresholds, and accuracy."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from laws import cdf, end_hazard, survival
from privstream.mechanisms.monitor.calibration import MonitorBudget, calibrate
from privstream.mechanisms.privacy.accounting import ClockCurve, StatusCurve

MILLION = 10**6
SCALES = {1: 11.20, 4: 15.24, 16: 23.49, 64: 40.24}  # epsilon 1, delta 1e-6
etas = st.floats(0.01, 3.0)


def budget(**changes):
    return MonitorBudget(**{"epsilon": 1.0, "delta": 1e-6, "max_hits": 4, "tests": MILLION, "beta": 0.01, **changes})


def divergence(eta, charges, epsilon):
    """Return F_j(epsilon); with no charges nothing is learned."""
    if charges == 0:
        return max(0.0, -math.expm1(epsilon))
    return float(StatusCurve(eta=eta, charges=charges).one_way(np.array([float(epsilon)]))[0][0])


def by_integration(eta, charges, epsilon):
    """F_j(epsilon) at 50 digits: e^(-kappa x) times a polynomial, which (A) of Lemma 1 integrates."""
    with mpmath.workdps(50):
        eta = mpmath.mpf(eta)
        rate, kappa = mpmath.exp(eta), 1 / mpmath.expm1(eta)
        weight, polynomial = mpmath.exp(-kappa * eta), [mpmath.mpf(0)]  # coefficients, constant first
        for _ in range(charges):
            value = sum(c * eta**i for i, c in enumerate(polynomial))
            shifted = [
                sum(c * mpmath.binomial(i, power) * eta ** (i - power) for i, c in enumerate(polynomial) if i >= power)
                for power in range(len(polynomial))
            ]
            integral = [kappa * weight * c / (power + 1) for power, c in enumerate(shifted)]
            polynomial = [(rate - 1 + 2 * weight * value) / (rate + 1), *integral]
        return float(mpmath.exp(-kappa * epsilon) * sum(c * mpmath.mpf(epsilon) ** i for i, c in enumerate(polynomial)))


@pytest.mark.parametrize("charges", [1, 2, 5, 12])
@pytest.mark.parametrize(("eta", "epsilon"), [(0.02, 0.3), (0.0669, 1.0), (0.5, 0.0), (2.5, 3.0)])
def test_the_sum_is_the_integral_and_never_below_it(eta, epsilon, charges):
    exact = by_integration(eta, charges, epsilon)
    assert exact <= divergence(eta, charges, epsilon) <= exact * (1 + 3e-9)


@pytest.mark.parametrize("charges", [300, 8192])
def test_chances_of_many_rings_are_exact(charges):
    """By the formula of the law of Borel and Tanner, at 30 digits."""
    eta = 1 / math.sqrt(30 * charges)
    curve = StatusCurve(eta=eta, charges=charges)
    with mpmath.workdps(30):
        exact_eta = mpmath.mpf(eta)
        kappa = 1 / mpmath.expm1(exact_eta)
        for rings in (1, charges // 2, charges - 1):
            whole = 1 + rings * exact_eta
            log = (
                (rings - 1) * mpmath.log(whole) + rings * mpmath.log(kappa) - kappa * whole - mpmath.loggamma(rings + 1)
            )
            found = curve._rings(np.array(1.0), np.array(float(rings)))
            assert float(found) == pytest.approx(float(mpmath.exp(log)), rel=2e-10)


@settings(deadline=None)
@given(etas, st.integers(1, 12), st.floats(-4, 4))
def test_a_randomised_response_at_any_moment_gains_nothing(eta, charges, x):
    """Lemma 2 (d): running both clocks at once, until one rings, is never better than the price."""
    rate = math.exp(eta)
    both = (rate * divergence(eta, charges - 1, x - eta) + divergence(eta, charges - 1, x + eta)) / (rate + 1)
    assert both <= divergence(eta, charges, x) * (1 + 1e-8) + 1e-12


@settings(deadline=None)
@given(etas, st.integers(1, 12), st.floats(-4, 4), st.floats(1e-6, 5), st.floats(0, 1), st.booleans())
def test_no_test_gains_anything(eta, charges, x, hazard, slope, up):
    """Lemma 4, for tests of either kind, large and small, whose hazards differ by the factor e^eta or less."""
    more = hazard * math.exp(slope * eta)
    within, without = (more, hazard) if up else (hazard, more)
    miss = math.exp(-within)
    assume(miss < 1)
    log = math.log(math.expm1(-without) / math.expm1(-within))
    after = miss * divergence(eta, charges, x + within - without)
    after += (1 - miss) * divergence(eta, charges - 1, x + log)
    assert after <= divergence(eta, charges, x) * (1 + 1e-8) + 1e-12


@settings(deadline=None)
@given(etas, st.integers(1, 40), st.floats(0, 4))
def test_the_price_is_at_least_that_of_the_clocks(eta, charges, epsilon):
    price = divergence(eta, charges, epsilon)
    assert ClockCurve(eta=eta, clocks=charges).delta(epsilon) <= price * (1 + 1e-9) + 1e-13
    mirrored = -math.expm1(-epsilon) + math.exp(-epsilon) * price
    assert divergence(eta, charges, -epsilon) == pytest.approx(mirrored, rel=1e-9)


@pytest.mark.parametrize("hits", SCALES)
def test_scales_are_those_of_the_table(hits):
    found = calibrate(budget(max_hits=hits), 1000)
    plain = calibrate(budget(max_hits=hits))
    assert found.noise_scale == pytest.approx(SCALES[hits], abs=0.0051)
    assert plain.noise_scale < found.noise_scale < 1.03 * plain.noise_scale


@pytest.mark.parametrize("changes", [{}, {"domain": "unknown", "tests_per_person": 1000}])
def test_hazards_change_by_no_more_than_one_person_may_change_them(changes):
    found = calibrate(budget(**changes), 1000)
    counts = np.arange(0, 400)
    extra = found.budget.domain_hazard if found.budget.domain == "unknown" else 0.0
    starts = found.hazard(counts)
    assert np.all(starts[1:] <= (math.exp(found.eta) * starts[:-1] + extra) * (1 + 1e-12))


def test_law_of_end_thresholds_is_the_chance_to_stay():
    found = calibrate(budget(max_hits=1), 1000)
    counts = np.arange(0, 400)
    assert cdf(found.end_law, counts) == pytest.approx(np.exp(-end_hazard(found, counts)), rel=1e-9, abs=1e-30)
    assert survival(found.end_law, counts) == pytest.approx(-np.expm1(-end_hazard(found, counts)), rel=1e-9, abs=1e-30)


@pytest.mark.parametrize("changes", [{}, {"domain": "unknown", "tests_per_person": 1000}, {"tests": 1, "beta": 0.9}])
def test_accuracy(changes):
    made, up_steps = budget(**changes), 5000
    found = calibrate(made, up_steps)
    least = found.detection_threshold(made.tests, made.beta)
    assert made.tests * found.miss_probability(least) <= made.beta / 4 * (1 + 1e-9)
    assert up_steps * -np.expm1(-end_hazard(found, least)) <= made.beta / 4 * (1 + 1e-9)
    fewer = max(made.tests * found.miss_probability(least - 1), up_steps * -np.expm1(-end_hazard(found, least - 1)))
    assert fewer > made.beta / 4
    assert up_steps * np.exp(-end_hazard(found, 0)) <= made.beta / 4 * (1 + 1e-9)
