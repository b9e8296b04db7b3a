import math

import numpy as np
import pytest
from privstream.mechanisms.monitor import clock, kaplan_mansour_stemmer, target_charging
from privstream.mechanisms.monitor.calibration import MonitorBudget
from privstream.mechanisms.noise import discrete
from privstream.mechanisms.privacy import noisy_counts
from privstream.mechanisms.privacy.accounting import PureDp
from privstream.mechanisms.privacy.noisy_counts import CountCurve
from scipy import stats

BUDGET = {"epsilon": 1.0, "max_hits": 4, "tests": 10**6, "beta": 0.01, "count_share": 0.25}


def gaussian_delta(mu, epsilon):
    """Delta of a Gaussian release with sensitivity mu times its deviation (Balle and Wang 2018)."""
    phi = stats.norm.cdf
    return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("releases", [1, 4, 64])
def test_curve_is_close_to_that_of_continuous_noise(releases):
    sigma = 6.0 * math.sqrt(releases)
    curve = CountCurve(sigma=sigma, releases=releases)
    for epsilon in (0.3, 0.6):
        assert curve.delta(epsilon) == pytest.approx(
            gaussian_delta(1 / 6, epsilon), rel=0.05 if releases == 1 else 0.01
        )
    assert curve.epsilon(curve.delta(0.5)) == pytest.approx(0.5, abs=0.01)


def test_one_release_is_at_least_the_divergence_of_its_law():
    z = np.arange(-80, 81)
    mass = np.exp(-(z**2) / (2 * 5.0**2))
    mass /= mass.sum()
    for epsilon in (0.2, 0.5, 0.8):
        exact = np.maximum(0, mass[1:] - math.exp(epsilon) * mass[:-1]).sum()
        assert exact <= CountCurve(sigma=5.0, releases=1).delta(epsilon) <= exact * 1.1


@pytest.mark.parametrize("calibrator", [clock, target_charging, kaplan_mansour_stemmer])
@pytest.mark.parametrize("neighbouring", ["add_remove", "replace_one"])
def test_hits_and_counts_together_use_up_the_budget_and_no_more(calibrator, neighbouring):
    budget = MonitorBudget(delta=1e-6, neighbouring=neighbouring, domain="unknown", tests_per_person=100, **BUDGET)
    found = calibrator.calibrate(budget)
    assert found.privacy_curve.delta(1.0) <= 1e-6
    assert found.privacy_curve.delta(0.98) > 1e-6
    assert found.guarantee.curve is found.privacy_curve


def test_a_replaced_person_needs_more_noise():
    one, other = (
        clock.calibrate(MonitorBudget(delta=1e-6, neighbouring=n, **BUDGET)).count_sigma
        for n in ("add_remove", "replace_one")
    )
    assert 1.3 < other / one < 1.6  # about the square root of two


def test_a_sigma_that_cannot_be_drawn_is_refused(monkeypatch):
    """The solver looks at sigmas up to e times the largest one that can be drawn; it must not return any of these."""
    given = {"hits": PureDp(0.5), "charges": 4, "neighbouring": "add_remove", "epsilon": 1.0, "delta": 1e-6}
    sigma = noisy_counts.solve_sigma(**given)
    assert noisy_counts.LARGEST_SIGMA == discrete.LARGEST_SIGMA
    monkeypatch.setattr(noisy_counts, "LARGEST_SIGMA", sigma)
    assert noisy_counts.solve_sigma(**given) == sigma
    monkeypatch.setattr(noisy_counts, "LARGEST_SIGMA", sigma * 0.99)
    with pytest.raises(ValueError, match="count_share must leave enough"):
        noisy_counts.solve_sigma(**given)


def test_no_share_is_no_counts():
    assert clock.calibrate(MonitorBudget(delta=1e-6, **{**BUDGET, "count_share": 0.0})).count_sigma is None


@pytest.mark.parametrize(("epsilon", "delta", "charges"), [(0.1, 1e-13, 30), (1.0, 1e-12, 1000)])
def test_small_deltas_are_told_apart(epsilon, delta, charges):
    options = {"charges": charges, "neighbouring": "add_remove", "epsilon": epsilon}
    sigma = noisy_counts.solve_sigma(hits=PureDp(epsilon / 2), delta=delta, **options)
    assert sigma > noisy_counts.solve_sigma(hits=PureDp(epsilon / 2), delta=100 * delta, **options)


def test_a_delta_below_what_accounts_can_tell_is_refused():
    with pytest.raises(ValueError, match=r"^delta must leave at least 1e-13 for noisy counts, got 9e-14$"):
        noisy_counts.solve_sigma(hits=PureDp(0.5), charges=1, neighbouring="add_remove", epsilon=1.0, delta=9e-14)


@pytest.mark.filterwarnings("error")
@pytest.mark.slow
def test_losses_too_large_to_tell_are_no_privacy():
    """The search must go on to more noise where a loss is no longer a number, without a word."""
    options = {"charges": 1000, "neighbouring": "add_remove", "delta": 1e-12}
    sigma = noisy_counts.solve_sigma(hits=PureDp(375.0), epsilon=500.0, **options)
    assert 0.3 < sigma < noisy_counts.solve_sigma(hits=PureDp(75.0), epsilon=100.0, **options)


def test_an_epsilon_that_no_noise_can_meet_is_refused_at_once():
    with pytest.raises(ValueError, match=r"count_share must leave enough for counts with sigma <= 1e\+06"):
        noisy_counts.solve_sigma(hits=PureDp(1e-10), charges=1, neighbouring="add_remove", epsilon=1e-9, delta=1e-6)


def test_a_budget_spent_on_hits_is_refused():
    with pytest.raises(ValueError, match=r"count_share must leave enough for counts with sigma <= 1e\+06"):
        noisy_counts.solve_sigma(hits=PureDp(2.0), charges=1, neighbouring="add_remove", epsilon=1.0, delta=1e-6)
