"""Quantiles of numbers: consistent counts against dense algebra, intervals against the truth, and what is refused."""

import math

import numpy as np
import pytest
from privstream.mechanisms import BinnedStep, NumericQuantiles, SeededNoise
from privstream.mechanisms.accuracy import OUTSIDE as BETA
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.numeric_quantiles import BinTree
from privstream.mechanisms.privacy.accounting import largest_shift

TREES = [BinTree(2, 2), BinTree(7, 2), BinTree(9, 3), BinTree(11, 4), BinTree(17, 2), BinTree(40)]
LATENCY = {"epsilon": 1.0, "delta": 1e-6, "low": 1, "high": 1000, "scale": "log", "quantiles": (0.1, 0.5, 0.9)}


def incidence(tree):
    """Return which bins are in which node, (nodes, bins)."""
    return np.stack([tree.counts(row) for row in np.eye(tree.bins, dtype=np.int64)], axis=1).astype(float)


@pytest.mark.parametrize("tree", TREES)
def test_estimates_are_those_of_dense_least_squares(tree):
    noisy = np.random.default_rng(1).integers(-50, 50, sum(tree.sizes))
    matrix = incidence(tree)
    assert np.allclose(tree.estimates(noisy), np.linalg.lstsq(matrix, noisy, rcond=None)[0])


@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("tree", TREES)
def test_norms_are_those_of_dense_coefficients(tree, quantile):
    matrix = incidence(tree)
    wanted = np.tril(np.ones((tree.bins, tree.bins)), -1)[1:] - quantile
    coefficients = wanted @ np.linalg.pinv(matrix)
    assert np.allclose(tree.norms(quantile), np.linalg.norm(coefficients, axis=1))
    assert np.abs(coefficients).max() <= 1 + 1e-9


def test_without_noise_cumulative_counts_are_exact():
    mechanism = NumericQuantiles(**(LATENCY | {"epsilon": 200.0, "quantiles": (0.25, 0.5, 0.75)}), resolution=64)
    counts = np.random.default_rng(2).integers(100, 900, 64)
    _, rows = mechanism.step(mechanism.initial_state(), BinnedStep(step=1, counts=counts), SeededNoise(3))
    places = np.searchsorted(np.cumsum(counts), np.array(mechanism.quantiles) * counts.sum())
    edges = mechanism.bins.edges
    assert np.all(rows.estimates >= edges[places] * (1 - 1e-6))
    assert np.all(rows.estimates <= edges[places + 1] * (1 + 1e-6))


SPANS = [{}, {"contributions": 9, "per_step": 3}, {"delta": 0.0, "unit": "event"}]


@pytest.mark.parametrize("fields", SPANS)
def test_intervals_contain_the_quantiles_of_a_window(fields):
    mechanism = NumericQuantiles(**(LATENCY | fields), resolution=200, horizon=20)
    state, rng, held = mechanism.initial_state(), np.random.default_rng(3), []
    for step in range(1, 21):
        values = np.exp(rng.normal(3 + step / 20, 1, 20_000))
        state, rows = mechanism.step(state, BinnedStep(step=step, counts=mechanism.bins.count(values)), SeededNoise(4))
        truth = np.quantile(np.clip(values, 1, 1000), mechanism.quantiles, method="inverted_cdf")
        held.append((rows.lower <= truth) & (truth <= rows.upper))
        assert np.all(rows.upper / rows.lower < 1.5)  # bins have a ratio of 1.035
        assert np.abs(np.log(rows.estimates / truth)).max() < 0.1
    assert np.mean(held) >= 0.9


@pytest.mark.parametrize(("contributions", "per_step"), [(1, 1), (4, 1), (4, 2), (4, 9)])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_noise_covers_the_worst_life_of_a_person(contributions, per_step, delta):
    """All values in one bin, as many in a step as may be; noise without levels, or for one in a step, is too little."""
    mechanism = NumericQuantiles(**(LATENCY | {"delta": delta}), contributions=contributions, per_step=per_step)
    one = mechanism.tree.counts(np.eye(1, mechanism.resolution, dtype=np.int64)[0])
    steps = [min(per_step, contributions - done) for done in range(0, contributions, per_step)]
    moved = np.outer(steps, one)
    if isinstance(mechanism.law, DiscreteLaplace):
        assert moved.sum() / mechanism.law.scale == pytest.approx(1.0)
    else:
        shift = np.linalg.norm(moved) / mechanism.law.sigma
        assert 0.9 * largest_shift(1.0, delta) < shift <= largest_shift(1.0, delta)


@pytest.mark.parametrize("fields", SPANS)
def test_windows_without_values_say_that_nothing_is_known(fields):
    mechanism = NumericQuantiles(**(LATENCY | fields), resolution=50, horizon=4)
    counts = np.zeros(50, np.int64)
    _, rows = mechanism.step(mechanism.initial_state(), BinnedStep(step=1, counts=counts), SeededNoise(5))
    assert rows.lower[0] == 1.0 and rows.upper[-1] == 1000.0
    assert np.all(np.isfinite(rows.estimates))


WORST = [{}, {"contributions": 9}, {"delta": 0.0}]


@pytest.mark.parametrize("fields", WORST)
@pytest.mark.parametrize("broken", [False, True])
def test_each_interval_misses_its_quantile_as_often_as_it_says_at_most(fields, broken):
    """Values at one edge alone are the worst: all others are clear. Bounds of a third are found by this test."""
    mechanism = NumericQuantiles(**(LATENCY | fields | {"quantiles": (0.5,)}), resolution=16)
    counts, runs, missed = np.zeros(16, np.int64), 1500, np.zeros(2)
    counts[[5, 6]] = 10_000  # half of all values are below the sixth edge: there noise alone decides
    (known,), edge = mechanism._bounds(BETA / 2), mechanism.bins.edges[6]
    object.__setattr__(mechanism, "_bounds", lambda _: [known * (0.3 if broken else 1.0)])
    for seed in range(runs):
        _, rows = mechanism.step(mechanism.initial_state(), BinnedStep(step=1, counts=counts), SeededNoise(seed))
        missed += rows.lower[0] >= edge, rows.upper[0] <= edge
    most = runs * BETA / 2 + 6 * math.sqrt(runs * BETA / 2)
    assert (missed.max() > most) == broken


def test_other_quantiles_show_the_same_noise():
    counts = np.full(100, 300)
    found = []
    for quantiles in ((0.5,), (0.2, 0.5, 0.7)):
        mechanism = NumericQuantiles(**(LATENCY | {"quantiles": quantiles}), resolution=100)
        _, rows = mechanism.step(mechanism.initial_state(), BinnedStep(step=1, counts=counts), SeededNoise(7))
        found.append(rows.estimates[quantiles.index(0.5)])
    assert found[0] == found[1]
