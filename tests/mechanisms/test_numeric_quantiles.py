"""Quantiles of numbers: consistent counts against dense algebra, intervals against the truth, and what is refused."""

import math

import numpy as np
import pytest
from privstream.mechanisms import BinnedStep, NumericQuantiles, SeededNoise
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.numeric_quantiles import BETA, Bins, BinTree, _passed
from privstream.mechanisms.privacy.accounting import largest_shift

TREES = [BinTree(2, 2), BinTree(7, 2), BinTree(9, 3), BinTree(11, 4), BinTree(17, 2), BinTree(40)]
LATENCY = {"epsilon": 1.0, "delta": 1e-6, "low": 1, "high": 1000, "scale": "log", "quantiles": (0.1, 0.5, 0.9)}


def incidence(tree):
    """Return which bins are in which node, (nodes, bins)."""
    return np.stack([tree.counts(row) for row in np.eye(tree.bins, dtype=np.int64)], axis=1).astype(float)


@pytest.mark.parametrize("tree", TREES)
def test_estimates_are_those_of_dense_least_squares(tree):
    noisy = np.random.default_rng(1).integers(-50, 50, tree.nodes)
    matrix = incidence(tree)
    expected = matrix @ np.linalg.lstsq(matrix, noisy, rcond=None)[0]
    assert np.allclose(np.concatenate(tree.estimates(noisy)), expected)


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


def test_bins_have_edges_of_equal_widths_or_ratios():
    assert Bins(0, 10, 4, "linear").edges.tolist() == [0, 2.5, 5, 7.5, 10]
    assert np.allclose(Bins(1, 1000, 3, "log").edges, [1, 10, 100, 1000])
    bins = Bins(0.1, 0.7, 6, "linear")
    inner = bins.places(bins.edges[:-1]).tolist(), bins.places(np.nextafter(bins.edges[1:], 0)).tolist()
    assert inner == (list(range(6)), list(range(6)))  # an edge belongs to the bin that it begins
    assert bins.count([-5, 0.1, 0.7, np.inf]).tolist() == [2, 0, 0, 0, 0, 2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"low": 0}, "low must be > 0 with a log scale, got 0"),
        ({"high": 1}, "high must be > low, got 1 <= 1"),
        ({"low": math.nan}, "low must be finite, got nan"),
        ({"low": 5e-324, "high": 1e308}, "low and high must not be so far apart"),
        ({"high": 1 + 1e-14}, "resolution must be smaller for edges that floats tell apart, got 1000"),
        ({"resolution": 1}, "resolution must be >= 2, got 1"),
        ({"resolution": 65_537}, "resolution must be <= 65536, got 65537"),
        ({"scale": "cubic"}, "scale must be one of linear, log, got 'cubic'"),
        ({"quantiles": (0.5, 0.5)}, "quantiles must increase, got 0.5, 0.5"),
        ({"quantiles": (1.0,)}, r"quantiles must be in \(0, 1\), got 1.0"),
        ({"quantiles": ()}, "quantiles must be a tuple of at least one number"),
        ({"unit": "event", "contributions": 2}, "contributions must be 1 for the unit of an event, got 2"),
        ({"unit": "update"}, "unit must be one of person, event, got 'update'"),
        ({"contributions": 1 << 25}, "contributions must be <= 16777216, got 33554432"),
        ({"per_step": 0}, "per_step must be >= 1, got 0"),
    ],
)
def test_what_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        NumericQuantiles(**(LATENCY | fields))


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
    together = mechanism._bounds(BETA / 2)[0] * 9
    (known,), edge = mechanism._bounds(BETA / 2), mechanism.bins.edges[6]
    object.__setattr__(
        mechanism, "_bounds", lambda tail: [together if tail < 0.01 else known * (0.3 if broken else 1.0)]
    )
    for seed in range(runs):
        _, rows = mechanism.step(mechanism.initial_state(), BinnedStep(step=1, counts=counts), SeededNoise(seed))
        missed += rows.lower[0] >= edge, rows.upper[0] <= edge
    most = runs * BETA / 2 + 6 * math.sqrt(runs * BETA / 2)
    assert (missed.max() > most) == broken


def test_edges_are_passed_from_the_last_sure_one_to_the_first_that_is_not_rejected():
    cases = [
        ("", "", 0),
        ("01", "00", 0),
        ("101", "000", 1),
        ("11", "00", 2),
        ("0101101", "0100000", 2),
        ("01011", "01010", 5),
    ]
    for rejected, surely, passed in cases:
        assert _passed(*(np.array([*map(int, text)], bool) for text in (rejected, surely))) == passed


@pytest.mark.parametrize("people", [0, 3, 40, 400])
def test_nothing_falls_with_the_quantile(people):
    every = tuple(np.linspace(0.01, 0.99, 50).tolist())
    mechanism = NumericQuantiles(**(LATENCY | {"quantiles": every}), resolution=64)
    counts = mechanism.bins.count(np.exp(np.random.default_rng(6).normal(3, 1, people)))
    for seed in range(40):
        _, rows = mechanism.step(mechanism.initial_state(), BinnedStep(step=1, counts=counts), SeededNoise(seed))
        for column in (rows.lower, rows.estimates, rows.upper):
            assert np.all(np.diff(column) >= 0)
        assert np.all((rows.lower <= rows.estimates) & (rows.estimates <= rows.upper))
        assert rows.lower[0] >= 1
        assert rows.upper[-1] <= 1000


def test_other_quantiles_show_the_same_noise():
    counts = np.full(100, 300)
    found = []
    for quantiles in ((0.5,), (0.2, 0.5, 0.7)):
        mechanism = NumericQuantiles(**(LATENCY | {"quantiles": quantiles}), resolution=100)
        _, rows = mechanism.step(mechanism.initial_state(), BinnedStep(step=1, counts=counts), SeededNoise(7))
        found.append(rows.estimates[quantiles.index(0.5)])
    assert found[0] == found[1]
