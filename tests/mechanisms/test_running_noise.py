"""Noise of running sums: slow references, what one person moves, exact variances, replays, epochs."""

import math
from functools import partial

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.continual.ranges import RangeCounter, Updates
from privstream.mechanisms.noise import discrete
from privstream.mechanisms.noise.correlated import BufferedFactor
from privstream.mechanisms.noise.discrete import DiscreteLaplace, NoiseSum, tail_quantile
from privstream.mechanisms.noise.running import (
    CompleteTreeNoise,
    EpochNoise,
    ToeplitzNoise,
    _most_digits,
    plain_digits,
    sums_noise,
)
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.privacy.accounting import gaussian_sigma, largest_shift
from scipy import linalg, stats

FALSE_ALARM = 1e-10
LAW = DiscreteLaplace(5.0)
BOTH = pytest.mark.parametrize("delta", [0.0, 1e-6])


def run(noise, totals, seed=1):
    """Return the noise of all steps, (steps, keys), for true totals of that shape."""
    memory, keys = np.zeros((noise.rows, totals.shape[1])), np.arange(totals.shape[1], dtype=np.uint64)
    source = SeededNoise(seed)
    return np.array([noise.advance(memory, t, keys, row, source) for t, row in enumerate(totals, start=1)])


class TestTrees:
    @pytest.mark.parametrize("base", [2, 3, 5, 16])
    def test_a_step_moves_each_level_once(self, base):
        for steps in (1, base - 1, base, 2 * base + 1, base**2 + 3):
            noise = CompleteTreeNoise(steps, LAW, base)
            prefixes = [set(noise.nodes(t)) for t in range(1, steps + 1)]
            used = sorted(set().union(*prefixes))
            held = [[i * base**h < t <= (i + 1) * base**h for h, i in used] for t in range(1, steps + 1)]
            assert max(map(sum, held)) == noise.rows == len(plain_digits(base, steps))
            for t, prefix in enumerate(prefixes, start=1):
                assert sorted(s for h, i in prefix for s in range(i * base**h, (i + 1) * base**h)) == list(range(t))
            assert max(map(len, prefixes)) == _most_digits(base, steps)

    @pytest.mark.parametrize("base", [2, 7])
    def test_noise_is_that_of_the_nodes(self, base):
        """Each node has the noise of its last step and of the total there."""
        noise, source = CompleteTreeNoise(60, LAW, base), SeededNoise(1)
        drawn = run(noise, np.arange(1, 61)[:, None] * 3)[:, 0]

        def node(end):
            labels = source.bind(np.array([[0, end]], np.uint64), np.array([3 * end]))
            return int(LAW.draw(source, labels)[0])

        for step in range(1, 61):
            assert drawn[step - 1] == sum(node((i + 1) * base**h) for h, i in noise.nodes(step))

    @pytest.mark.parametrize(("base", "steps"), [(2, 11), (5, 53)])
    def test_a_parent_is_combined_with_its_leaves(self, base, steps):
        """Of its own noise and that of its leaves, weighted by inverse variances, whatever came before."""
        noise, source, keys = CompleteTreeNoise(steps, LAW, base, combined=True), SeededNoise(1), 4000
        totals = np.arange(1, steps + 1)[:, None] * np.full(keys, 3)
        drawn = run(noise, totals)

        def node(height, end):
            low = end + (1 << 63) * (height == 1)
            labels = np.stack([np.arange(keys, dtype=np.uint64), np.full(keys, low, np.uint64)], axis=1)
            return LAW.draw(source, source.bind(labels, totals[end - 1]))

        for step in range(1, steps + 1):
            exact = np.zeros(keys)
            for height, place in noise.nodes(step):
                end = (place + 1) * base**height
                leaves = sum(node(0, leaf) for leaf in range(end - base + 1, end + 1)) if height == 1 else 0
                exact += (base * node(1, end) + leaves) / (base + 1) if height == 1 else node(height, end)
            assert np.abs(drawn[step - 1] - exact).max() < 0.5 + 1e-9
            ratio = np.mean(drawn[step - 1].astype(float) ** 2) / noise.variance(step)
            assert abs(ratio - 1) < 6.5 * math.sqrt(5 / keys), step
            for tail in (0.025, 0.2):
                assert (
                    stats.binom.sf((drawn[step - 1] > noise.tail_bound(step, tail)).sum() - 1, keys, tail) > FALSE_ALARM
                )
        moved = np.abs([noise.shifts(np.arange(steps) >= start) for start in range(steps)]).sum(axis=1)
        assert moved.max() == len(plain_digits(base, steps))


@pytest.mark.parametrize("log_beta", [-3.0, -20.0])
def test_wide_laws_are_bounded_nearly_as_exactly_as_narrow_ones(monkeypatch, log_beta):
    noises = NoiseSum(*2 * [((6000.0, 5, 1), (3000.0, 7, 2))])
    exact = tail_quantile(noises, log_beta)
    discrete.tail_quantile.cache_clear()
    monkeypatch.setattr(discrete, "_LONGEST", 1 << 18)
    assert exact <= tail_quantile(noises, log_beta) < 1.05 * exact
    discrete.tail_quantile.cache_clear()


@BOTH
def test_changed_data_meet_fresh_noise(delta):
    """From the step on at which a repeated run differs, its noise differs too."""
    noise = sums_noise(0.01, delta, 1, 1, 64)
    one = np.cumsum(np.ones((90, 20), np.int64), axis=0)
    other = one.copy()
    other[40:] += 1
    drawn, fresh = run(noise, one), run(noise, other)
    assert np.array_equal(drawn[:40], fresh[:40])
    assert np.mean(drawn[40:] == fresh[40:]) < 0.05
    assert np.all(np.any(drawn[40:] != fresh[40:], axis=1))


def moved_by_a_row(noise, steps):
    """Return how far a row of each step moves each noised number, in deviations or scales: (numbers, steps)."""
    parts, start = [], 0
    for epoch, length in zip(noise.epochs, noise.lengths, strict=True):
        if isinstance(epoch, CompleteTreeNoise):
            ends = sorted({each for t in range(1, length + 1) for each in epoch.nodes(t)} if length < 400 else ())
            part = [[i * epoch.base**h <= t < (i + 1) * epoch.base**h for t in range(length)] for h, i in ends]
            part = np.array(part, float).reshape(len(ends), length) / epoch.law.scale
        else:
            sigma = math.sqrt(epoch.law.sigma**2 - 4) / 2**epoch.fraction
            column = epoch.factor.coefficients
            part = linalg.toeplitz(column, np.zeros(length)) * epoch.factor.levels[None, :] / sigma
        parts.append(part[:, : max(0, steps - start)])
        start += length
        if start >= steps:
            break
    return linalg.block_diag(*parts)


@BOTH
@pytest.mark.parametrize("expected", [24, 10])
def test_a_person_with_several_rows_is_covered_wherever_they_are(delta, expected):
    """What a person's rows move is at most what the noise pays for, in L1 or L2 norm, and can be nearly as much."""
    rows, steps, touched = 3, 24, 2
    noise = sums_noise(1.0, delta, touched, rows, expected)
    matrix, rng, largest = moved_by_a_row(noise, steps), np.random.default_rng(0), 0.0
    for _ in range(800):
        change = np.zeros((steps, 4))
        at = np.full(rows, rng.integers(steps)) if rng.random() < 0.3 else rng.integers(0, steps, rows)
        for step in at:
            change[step, [0, 1] if rng.random() < 0.7 else rng.choice(4, touched, replace=False)] += 1
        moved = matrix @ change
        largest = max(largest, np.abs(moved).sum() if delta == 0 else np.sqrt((moved**2).sum()))
    paid = 1.0 if delta == 0 else largest_shift(1.0, delta)
    assert 0.85 * paid < largest <= paid * (1 + 1e-9)
    single = moved_by_a_row(sums_noise(1.0, delta, touched, 1, expected), steps)
    assert np.abs(single).max() > 2 * np.abs(matrix).max()


def required(noise, w):
    """Return the z for which a run of correlated noise would have had these w."""
    factor = noise.factor
    poles, _, weights = factor.function
    buffers, z = np.zeros(len(poles)), []
    for level, value in zip(factor.levels, w, strict=True):
        debt = 0.0
        for weight, buffer in zip(weights, buffers, strict=True):
            debt += weight * buffer
        z.append(value + np.rint(debt / level))
        buffers = poles * buffers + level * value
    return np.array(z)


@pytest.mark.parametrize(("horizon", "rows"), [(100, 1), (1000, 1), (1000, 1000)])
def test_buffers_round_less_than_the_noise_pays_for(horizon, rows):
    """Given what is published, one unit shifts the noise by no more than Theorem 2 of the proof allows."""
    noise = sums_noise(1.0, 1e-6, 1, rows, horizon).epochs[0]
    assert isinstance(noise, ToeplitzNoise) and isinstance(noise.factor, BufferedFactor)
    memory, sums = np.zeros((noise.rows, 1)), [0.0]
    for t in range(1, noise.factor.horizon + 1):
        noise.advance(memory, t, np.zeros(1, np.uint64), np.zeros(1, np.int64), SeededNoise(5))
        sums.append(memory[-1, 0])
    w = np.diff(sums)
    levels = noise.factor.levels
    norm = math.sqrt(noise.law.sigma**2 - 4) * largest_shift(1.0, 1e-6)
    for change in (0, horizon // 3):
        shifted = w.copy()
        shifted[change] -= rows * 2.0**noise.fraction  # what w must have been if a row had been added there
        difference = levels * (required(noise, shifted) - required(noise, w))
        assert 0.9 * norm < np.linalg.norm(difference) <= norm


class TestVariance:
    @BOTH
    @pytest.mark.parametrize("expected", [60, None])
    def test_it_is_exact(self, delta, expected):
        noise, keys = sums_noise(1.0, delta, 1, 1, expected), 3000
        drawn = run(noise, np.zeros((60, keys), np.int64)).astype(float)
        for step in (1, 2, 7, 10, 11, 24, 60):
            ratio = np.mean(drawn[step - 1] ** 2) / noise.variance(step)
            # Kurtosis is at most 6: the relative variance of the mean is at most 5 / keys.
            assert abs(ratio - 1) < 6.5 * math.sqrt(5 / keys), step
            assert abs(1.3 * ratio - 1) > abs(ratio - 1) or ratio < 0.87

    @BOTH
    def test_no_step_is_beyond_the_bound_for_all(self, delta):
        beta, keys, steps = 0.1, 4000, 60
        noise = sums_noise(1.0, delta, 1, 1, steps)
        largest = run(noise, np.zeros((steps, keys), np.int64), 8).max(axis=0)
        bound = noise.tail_bound(steps, beta / steps, so_far=True)
        assert stats.binom.sf(np.sum(largest > bound) - 1, keys, beta) > FALSE_ALARM
        assert np.mean(largest > 0.6 * bound) > beta

    def test_epochs(self):
        noise = EpochNoise.of(lambda steps: CompleteTreeNoise(steps, LAW, 2), first=5, longest=3000)
        assert noise.lengths == (5, 10, 147, 2916, 3000)
        before = [each[2] for each in noise.begun(10_000)]
        assert before == [0, 5, 15, 162, 3078, 6078, 9078]
        assert noise.variance(16) == pytest.approx((2 + 2 + 1) * LAW.variance)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("changes", [1, 10, 300])
def test_discrete_gaussians_meet_the_curve(epsilon, changes):
    """An accountant that knows nothing of our lemmas agrees, and little is wasted."""
    sigma = gaussian_sigma(largest_shift(epsilon, 1e-6), math.sqrt(changes), changes)

    def delta(sigma):
        one = privacy_loss_distribution.from_discrete_gaussian_mechanism(
            sigma, value_discretization_interval=epsilon / (100 * math.sqrt(changes)), use_connect_dots=True
        )
        return one.self_compose(changes).get_delta_for_epsilon(epsilon)

    assert delta(sigma) <= 1.03e-6  # its grid rounds up
    if sigma > 3:
        assert delta(sigma * (0.93 if changes > 5 else 0.7)) > 1e-6


DRAWS = 4000
MOST = 0.0715
"""Of 4,000 draws of which 5% are outside so many are, but with probability 1e-9; of a law 1 / 0.7 as wide 17% are."""

LEAST = 0.02
LEVELS = 8


def sums(step, delta, expected=None):
    noise = sums_noise(1.0, delta, 1, 1, expected)
    return run(noise, np.zeros((step, DRAWS), np.int64), 3)[-1], noise.tail_bound(step, OUTSIDE / 2)


def ranges(steps, **parameters):
    """Errors and spread of ranges beside each other, each the sum of two nodes, of which one has an answer too."""
    low = np.arange(DRAWS) * LEVELS + 2
    asked = tuple(
        (first, last) for reach in (5, 2) for first, last in zip(low.tolist(), (low + reach).tolist(), strict=True)
    )
    counter = RangeCounter(universe=DRAWS * LEVELS, ranges=asked, **parameters)
    state = counter.initial_state()
    for _ in range(steps):
        state, counts = counter.step(state, Updates(()), SeededNoise(4))
    spreads = counter.spreads(steps, OUTSIDE)[:DRAWS]
    assert len(set(spreads.tolist())) == 1
    return counts[:DRAWS], spreads[0]


CASES = {
    "tree": partial(sums, 14, 0.0, 100),
    "tree, in the second epoch": partial(sums, 13, 0.0),
    "correlated noise": partial(sums, 9, 1e-6, 100),
    "ranges": partial(ranges, 5, epsilon=1.0, horizon=24),
    "ranges, Gaussian": partial(ranges, 7, epsilon=1.0, delta=1e-6, horizon=24),
}


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_within_its_interval_as_often_as_is_said(name):
    errors, spread = CASES[name]()
    assert LEAST < (np.abs(errors) > spread).mean() < MOST
    assert (np.abs(errors / 0.7) > spread).mean() > 0.1, "more noise than is claimed is noticed"
