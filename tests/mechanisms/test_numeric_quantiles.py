"""Quantiles of numbers: consistent counts against dense algebra, intervals against the truth, and what is refused."""

import math

import numpy as np
import pytest
from privstream.mechanisms import BinnedStep, KeyedCounts, NumericQuantiles, SeededNoise
from privstream.mechanisms.checks import HorizonExceeded
from privstream.mechanisms.numeric_quantiles import Bins, BinTree, _passed, best_tree

TREES = [BinTree(2, 2, 1), BinTree(7, 2, 3), BinTree(9, 3, 2), BinTree(11, 4, 2), BinTree(16, 2, 4), BinTree(5, 2, 3)]
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
    square, absolute = tree.norms(quantile)
    assert np.allclose(square, np.linalg.norm(coefficients, axis=1))
    exact = np.abs(coefficients).sum(axis=1)
    assert np.all(absolute >= exact - 1e-9)
    assert np.all(absolute <= 2 * exact)
    assert np.abs(coefficients).max() <= 1 + 1e-9


@pytest.mark.parametrize("tree", TREES)
def test_the_measure_is_what_it_measures_and_never_negative(tree):
    rng = np.random.default_rng(2)
    exact = rng.integers(0, 9, tree.bins)
    assert np.allclose(tree.measure(tree.estimates(tree.counts(exact))), exact)
    noisy = tree.measure(tree.estimates(rng.integers(-50, 50, tree.nodes)))
    assert np.all(noisy >= 0)
    assert np.all(np.isfinite(noisy))


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("bins", [2, 30, 200])
def test_no_other_tree_of_few_nodes_on_top_is_better(bins, pure):
    def cost(tree):
        return tree.worst_norm * (tree.levels if pure else math.sqrt(tree.levels))

    others = [BinTree(bins, b, n) for b in (2, 3, 4, 8, 16) for n in range(1, 9) if bins > b ** (n - 1)]
    assert cost(best_tree(bins, pure=pure)) <= min(map(cost, others)) * 1.05


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
        ({"over": "start"}, "horizon must be given"),
    ],
)
def test_what_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        NumericQuantiles(**(LATENCY | fields))


def test_steps_that_are_refused():
    mechanism = NumericQuantiles(**LATENCY, resolution=4, horizon=2)
    state = mechanism.initial_state()
    for counts, message in ((np.zeros(5, np.int64), r"shape \(4,\), got \(5,\)"), (np.array([0, 0, 0, -1]), "0 to 2")):
        with pytest.raises(ValueError, match=message):
            mechanism.step(state, BinnedStep(step=1, counts=counts), SeededNoise(1))
    with pytest.raises(HorizonExceeded):
        mechanism.step(state, BinnedStep(step=3, counts=np.zeros(4, np.int64)), SeededNoise(1))
    with pytest.raises(ValueError, match="values must be numbers, got nan"):
        mechanism.bins.count([1.0, math.nan])


SPANS = [
    {},
    {"contributions": 9},
    {"delta": 0.0, "unit": "event"},
    {"over": 2, "contributions": 4},
    {"over": 2, "delta": 0.0},
    {"over": "start", "contributions": 4},
    {"over": "start", "delta": 0.0, "neighbouring": "replace_one"},
]


@pytest.mark.parametrize("fields", SPANS)
def test_intervals_contain_the_quantiles_of_all_that_they_are_about(fields):
    mechanism = NumericQuantiles(**(LATENCY | fields), resolution=200, horizon=4, beta=1e-9)
    state, rng, seen = mechanism.initial_state(), np.random.default_rng(3), []
    for step in range(1, 5):
        seen.append(np.exp(rng.normal(3 + step / 2, 1, 20_000)))
        came = BinnedStep(step=step, counts=mechanism.bins.count(seen[-1]))
        state, rows = mechanism.step(state, came, SeededNoise(4))
        about = {"window": seen[-1:], "start": seen, 2: seen[-2:]}[mechanism.over]
        truth = np.quantile(np.clip(np.concatenate(about), 1, 1000), mechanism.quantiles, method="inverted_cdf")
        assert np.all((rows.lower <= truth) & (truth <= rows.upper))
        assert np.all(rows.upper / rows.lower < 1.5)  # bins have a ratio of 1.035
        assert np.abs(np.log(rows.estimates / truth)).max() < 0.1


@pytest.mark.parametrize("fields", SPANS)
def test_windows_without_values_say_that_nothing_is_known(fields):
    mechanism = NumericQuantiles(**(LATENCY | fields), resolution=50, horizon=4, beta=1e-9)
    counts = np.zeros(50, np.int64)
    _, rows = mechanism.step(mechanism.initial_state(), BinnedStep(step=1, counts=counts), SeededNoise(5))
    assert set(rows.lower.tolist()) == {1.0}
    assert set(rows.upper.tolist()) == {1000.0}
    assert np.all(np.isfinite(rows.estimates))


WORST = [{}, {"contributions": 9}, {"delta": 0.0}]


@pytest.mark.parametrize("fields", WORST)
@pytest.mark.parametrize("broken", [False, True])
def test_each_interval_misses_its_quantile_as_often_as_it_says_at_most(fields, broken):
    """Values at one edge alone are the worst: all others are clear. Bounds of a third are found by this test."""
    mechanism = NumericQuantiles(**(LATENCY | fields | {"quantiles": (0.5,)}), resolution=16, beta=0.1)
    counts, runs, missed = np.zeros(16, np.int64), 1500, np.zeros(2)
    counts[[5, 6]] = 10_000  # half of all values are below the sixth edge: there noise alone decides
    (known,), edge = mechanism._bounds(1, 0.1), mechanism.bins.edges[6]
    object.__setattr__(
        mechanism, "_bounds", lambda step, beta, start: [known * (9.0 if start else 0.3 if broken else 1.0)]
    )
    for seed in range(runs):
        _, rows = mechanism.step(mechanism.initial_state(), BinnedStep(step=1, counts=counts), SeededNoise(seed))
        missed += rows.lower[0] >= edge, rows.upper[0] <= edge
    most = runs * 0.05 + 6 * math.sqrt(runs * 0.05)
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
    mechanism = NumericQuantiles(**(LATENCY | {"quantiles": every, "beta": 0.999}), resolution=64)
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


@pytest.mark.parametrize("fields", [{"contributions": 9}, {"delta": 0.0}, {"over": "start", "horizon": 3}])
def test_bounds_of_sums_hold_and_are_not_loose(fields):
    """The noise of 40,000 pairs of keys, weighted, beyond what is exceeded with probability 1%."""
    weights, tail, pairs = np.array([1.0, -0.5]), 0.01, 40_000
    (noise,) = KeyedCounts(**({"epsilon": 0.2, "delta": 1e-6, "public_keys": True} | fields)).law.noises
    keys, memory = np.arange(2 * pairs, dtype=np.uint64), np.zeros((noise.rows, 2 * pairs))
    for step in range(1, 1 + fields.get("horizon", 1)):
        drawn = noise.advance(memory, step, keys, [np.zeros(2 * pairs, np.int64)], SeededNoise(8))
    sums = drawn.reshape(-1, 2) @ weights
    (bound,) = noise.sums_tail_bound(step, tail, np.array([np.linalg.norm(weights)]), np.array([1.5]))
    for side in (sums, -sums):
        beyond = np.count_nonzero(side > bound)
        assert beyond <= pairs * tail + 7 * math.sqrt(pairs * tail)
        assert beyond >= pairs * tail / 40  # Chernoff's bound, for Laplace noise


def test_plan_numbers():
    accuracy = NumericQuantiles(**LATENCY).accuracy
    assert accuracy.numbers["rank_error"] == accuracy.error < 50
    assert accuracy.numbers["rank_stddev"] < 22
    assert NumericQuantiles(**LATENCY, contributions=30).accuracy.numbers["levels"] == 10
    assert "0.95" in accuracy.sentence


SHAPES = {
    "steady": lambda window, windows: 0 * window,
    "drifting": lambda window, windows: window / windows,
    "jumping": lambda window, windows: np.where(2 * window < windows, 0, 1.0),
    "alternating": lambda window, windows: np.where(window % 2, 0.5, -0.5),
    "a daily cycle": lambda window, windows: 0.5 * np.sin(2 * np.pi * window / 24),
}
SMOOTHED = {"epsilon": 1.0, "delta": 1e-6, "low": 1, "high": 60_000, "scale": "log", "quantiles": (0.1, 0.5, 0.9)}


def of_windows(made, shape, windows, number, seed):
    """Return the noisy counts of log-normal values, their true quantiles, and what the mechanism says window by window.

    Values of a person in each window: at a time each, so that all of them count.
    """
    rng, state, rows, true = np.random.default_rng(seed), made.initial_state(), [], []
    for window, level in enumerate(SHAPES[shape](np.arange(windows), windows)):
        values = np.clip(np.exp(np.log(120) + level + rng.normal(0, 1, number)), made.low, made.high)
        true.append(np.quantile(values, made.quantiles, method="inverted_cdf"))
        given = BinnedStep(step=window + 1, counts=made.bins.count(values))
        state, found = made.step(state, given, SeededNoise(seed))
        rows.append(found)
    return np.array([row.counts for row in rows]), np.array(true), rows


def held(true, lower, upper):
    return float(np.mean((lower <= true) & (true <= upper)))


@pytest.mark.parametrize(
    ("shape", "windows", "number", "narrower"),
    [("steady", 24, 900, 0.6), ("jumping", 24, 900, 0.75), ("alternating", 24, 900, 1.1)],
)
def test_smoothed_quantiles_are_held_by_narrower_intervals(shape, windows, number, narrower):
    made = NumericQuantiles(**SMOOTHED, horizon=windows, contributions=windows)
    counts, true, rows = of_windows(made, shape, windows, number, 3)
    alone, found = (np.array([getattr(row, name) for row in rows]) for name in ("lower", "upper")), made.smooth(counts)
    lower, upper = alone
    assert np.median(np.log(found.upper / found.lower)) <= narrower * np.median(np.log(upper / lower))
    assert held(true, found.lower, found.upper) >= 0.9
    estimates = np.array([row.estimates for row in rows])
    off = [np.sqrt(np.mean(np.log(each / true) ** 2)) for each in (found.estimates, estimates)]
    assert off[0] < 1.001 * off[1], "where each differs both are the same, but for digits"
    assert np.all(found.lower <= found.estimates) and np.all(found.estimates <= found.upper)
    for part in found:
        assert np.all(np.diff(part, axis=1) >= 0)


@pytest.mark.slow
@pytest.mark.parametrize("windows", [13, 168])
@pytest.mark.parametrize("shape", SHAPES)
def test_smoothed_intervals_hold_as_often_as_is_said(shape, windows):
    """Of 3 quantiles in all windows of two runs: 95%, less a part for chance and for a model that is not theirs."""
    made = NumericQuantiles(**SMOOTHED, horizon=windows, contributions=min(windows, 100))
    shares = []
    for seed in (1, 2):
        counts, true, _ = of_windows(made, shape, windows, 65_000 // windows, seed)
        found = made.smooth(counts)
        shares.append(held(true, found.lower, found.upper))
    assert np.mean(shares) >= 0.93


@pytest.mark.parametrize("last", [False, True])
def test_one_window_that_differs_is_held_as_often_as_others(last):
    """Its tails move by less than noise, where its middle moves by much more."""
    found = []
    for seed in range(20):
        draw = np.random.default_rng(seed)
        made = NumericQuantiles(
            **SMOOTHED | {"low": 0.01, "high": 100, "resolution": 200}, horizon=12, contributions=12
        )
        odd, state, counts = 11 if last else 6, made.initial_state(), []
        for window in range(12):
            values = np.exp(draw.normal(1.0 if window == odd else 0.0, 0.7, 900))
            if window == odd:
                true = np.quantile(values, made.quantiles, method="inverted_cdf")
            given = BinnedStep(step=window + 1, counts=made.bins.count(values))
            state, row = made.step(state, given, SeededNoise(seed))
            counts.append(row.counts)
        smoothed = made.smooth(np.array(counts))
        found.append((smoothed.lower[odd] <= true) & (true <= smoothed.upper[odd]))
    assert np.mean(found, axis=0).min() >= 0.85  # 95%, less three deviations of twenty draws


def test_estimates_of_windows_that_noise_explains_stay_near_those_of_others():
    """In one of ten windows that are alike noise is so large that they may differ: intervals say so, not estimates."""
    made = NumericQuantiles(**SMOOTHED | {"resolution": 200}, horizon=56, contributions=56)
    counts, true, rows = of_windows(made, "steady", 56, 790, 6)
    found, alone = made.smooth(counts), np.array([row.estimates for row in rows])
    wide = np.log(found.upper / found.lower)[:, 1] > 1.5 * np.median(np.log(found.upper / found.lower)[:, 1])
    assert 1 <= wide.sum() <= 14
    off = np.abs(np.log(found.estimates / true))[:, 1]
    assert np.sqrt(np.mean(off[wide] ** 2)) < 0.6 * np.sqrt(np.mean(np.log(alone / true)[wide, 1] ** 2))


def test_without_noise_nothing_is_smoothed_away():
    made = NumericQuantiles(**SMOOTHED | {"epsilon": 1e5, "quantiles": (0.5,)}, horizon=9)
    counts = made.bins.count(np.geomspace(90, 110, 101)), made.bins.count(np.geomspace(900, 1100, 101))
    exact = np.array([counts[window in (4, 7)] for window in range(9)], np.float64)
    found = made.smooth(exact)
    expected = np.where(np.isin(np.arange(9), (4, 7)), 995.0, 99.5)
    assert np.allclose(found.estimates[:, 0], expected, rtol=0.02)
    assert np.all(found.upper / found.lower < 1.05)


def test_a_run_without_values_knows_nothing():
    made = NumericQuantiles(**SMOOTHED, horizon=5, contributions=5)
    counts, _, _ = of_windows(made, "steady", 5, 1, 4)
    found = made.smooth(counts)
    assert np.all(np.log(found.upper / found.lower) > 0.8 * np.log(60_000))
    nothing = made.smooth(np.zeros((3, 1000)))
    assert np.all(nothing.lower == 1) and np.all(nothing.upper == 60_000)


@pytest.mark.parametrize(
    ("changes", "counts", "message"),
    [
        ({}, np.zeros((0, 1000)), r"counts must have shape \(windows, 1000\), got \(0, 1000\)"),
        ({}, np.zeros(1000), r"counts must have shape \(windows, 1000\), got \(1000,\)"),
        ({}, np.zeros((2, 999)), r"counts must have shape \(windows, 1000\), got \(2, 999\)"),
        ({"over": "start"}, np.zeros((2, 1000)), "over must be window where quantiles are smoothed .*, got start"),
    ],
)
def test_what_cannot_be_smoothed_is_refused(changes, counts, message):
    with pytest.raises(ValueError, match=message):
        NumericQuantiles(**SMOOTHED | changes, horizon=2).smooth(counts)
