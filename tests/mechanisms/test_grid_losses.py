"""Losses on a grid in NumPy are those of `dp_accounting`, bit for bit, so that both find the same noise."""

import math

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from privstream.mechanisms.monitor.clock import ClockCurve
from privstream.mechanisms.monitor.status import StatusCurve
from privstream.mechanisms.privacy import grid_losses
from privstream.mechanisms.privacy.accounting import ComposedCurve, PointCurve, PureDp, connect_dots
from privstream.mechanisms.privacy.grid_losses import FEW, GridLosses
from privstream.mechanisms.privacy.noisy_counts import CountCurve, grid, solve_sigma
from privstream.mechanisms.sparse_vector.sparse import PureComposition

CURVES = [
    ClockCurve(eta=0.2, clocks=3),
    ClockCurve(eta=0.2, clocks=3, neighbouring="replace_one"),
    ClockCurve(eta=0.002, clocks=2, neighbouring="replace_one"),
    StatusCurve(eta=0.05, charges=4),
    PureComposition(rounds=5, round_epsilon=0.1),
    PureDp(0.5),
    PointCurve(at_epsilon=0.0, at_delta=1e-7),
]

COUNTS = [(12.0, 4, 1.0), (3.0, 1, 2.0), (0.6, 1, 8.0), (60.0, 200, 2.0), (5.5, 20, 3.0), (9.0, 2, 0.2)]
"""Sigma, the number of releases, and the epsilon that makes the grid: more and fewer than `FEW` losses of a release."""


@pytest.mark.parametrize("curve", CURVES, ids=repr)
@pytest.mark.parametrize(("sigma", "releases", "epsilon"), COUNTS)
def test_hits_and_counts_together_have_the_numbers_of_the_accountant(curve, sigma, releases, epsilon):
    interval = grid(epsilon, releases)
    counts = CountCurve(sigma=sigma, releases=releases)
    own, hits, known = counts.on_grid(interval), curve.on_grid(interval), curve.to_pld(interval)
    one = privacy_loss_distribution.from_discrete_gaussian_mechanism(
        sigma, value_discretization_interval=interval, use_connect_dots=True
    )
    known_counts = one.self_compose(releases)
    found = []
    for at in (0.0, 0.3 * epsilon, epsilon, 40.0 * epsilon):
        found.append(max(law.delta_with(own, interval, at) for law in hits))
        assert found[-1] == known.get_delta_for_epsilon_for_composed_pld(known_counts, at)
    assert found == sorted(found, reverse=True)
    assert 0 < found[0] <= 1


def test_releases_have_few_and_many_losses():
    """Else the test above would see one of two ways of the library alone."""
    sizes = [len(CountCurve(sigma=s, releases=1).on_grid(grid(e, n)).chances) for s, n, e in COUNTS]
    assert min(sizes) <= FEW < max(sizes)


@pytest.mark.parametrize("curve", [curve for curve in CURVES if isinstance(curve, ClockCurve)], ids=repr)
def test_chords_are_those_of_the_library(curve):
    for law, side in zip(connect_dots(curve.one_way, 0.01), (0, 1), strict=True):
        end = law.lowest + len(law.chances) - 1
        deltas = curve.one_way(np.linspace(law.lowest * 0.01, end * 0.01, len(law.chances)))[side]
        deltas = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
        known = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(0.01, law.lowest, end, deltas)
        own = pld_pmf.create_pmf(dict(enumerate(law.chances, law.lowest)), 0.01, law.infinite, True)
        for epsilon in (0.0, 0.1, 0.5, 2.0):
            assert own.get_delta_for_epsilon(epsilon) == known.get_delta_for_epsilon(epsilon)


def test_where_rounding_could_decide_the_sums_are_those_of_the_library(monkeypatch):
    law = CountCurve(sigma=12.0, releases=1).on_grid(0.005)
    called, exact = [], grid_losses.special.logsumexp

    def counted(*args, **options):
        called.append(1)
        return exact(*args, **options)

    monkeypatch.setattr(grid_losses.special, "logsumexp", counted)
    usual = law.repeated(4)
    assert not called
    monkeypatch.setattr(grid_losses, "ROUNDING", 1.0)
    other = law.repeated(4)
    assert len(called) == len(grid_losses.ORDERS)
    assert (other.lowest, other.infinite) == (usual.lowest, usual.infinite)
    np.testing.assert_array_equal(other.chances, usual.chances)


def test_few_losses_are_left_to_the_accountant():
    interval = grid(20.0, 2)
    assert CountCurve(sigma=0.5, releases=2).on_grid(interval) is None
    sigma = solve_sigma(hits=PureDp(5.0), charges=2, neighbouring="add_remove", epsilon=20.0, delta=1e-7)
    together = [
        ComposedCurve(curves=(PureDp(5.0), CountCurve(sigma=s, releases=2)), interval=interval).delta(20.0)
        for s in (sigma, 0.99 * sigma)
    ]
    assert CountCurve(sigma=sigma, releases=2).on_grid(interval) is None
    assert together[0] <= 1e-7 < together[1]


@pytest.mark.parametrize(
    ("epsilon", "delta", "charges"), [(0.5, 1e-9, 4), (1.0, 1e-6, 1), (4.0, 1e-9, 4), (8.0, 1e-5, 20)]
)
def test_last_bits_of_processors_make_no_other_noise(monkeypatch, epsilon, delta, charges):
    """Else two processors draw nearly the same noise by one label, and what differs shows a count."""
    given = {"charges": charges, "neighbouring": "add_remove", "epsilon": epsilon, "delta": delta}
    hits = ClockCurve(eta=epsilon / (20 * charges), clocks=charges)
    sigma = solve_sigma(hits=hits, **given)
    exact, random = GridLosses.delta_with, np.random.default_rng(1)

    def nearly(*args):
        return exact(*args) * (1 + 1e-9 * random.uniform(-1, 1))

    monkeypatch.setattr(GridLosses, "delta_with", nearly)
    assert [solve_sigma(hits=hits, **given) for _ in range(3)] == [sigma] * 3
    assert sigma == float(np.float32(sigma))


def test_losses_are_a_law_and_add_up():
    law = CountCurve(sigma=2.0, releases=1).on_grid(0.01)
    twice = law.convolved(law)
    assert twice.lowest == 2 * law.lowest
    assert math.isclose(law.chances.sum() + law.infinite, 1, abs_tol=1e-12)
    np.testing.assert_allclose(twice.chances, np.convolve(law.chances, law.chances), atol=1e-16)
    assert twice.infinite == pytest.approx(2 * law.infinite)


def test_divergences_that_rise_are_refused():
    places = np.arange(3)
    with pytest.raises(ValueError, match=r"^divergences must not rise with epsilon"):
        GridLosses.connecting_some(places, np.array([0.5, 0.2, 0.3]), 0.1)
    rounded, level = (GridLosses.connecting_some(places, np.array([0.5, 0.2, d]), 0.1) for d in (0.2 + 1e-14, 0.2))
    np.testing.assert_array_equal(rounded.chances, level.chances)
