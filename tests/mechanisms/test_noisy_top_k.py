import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.free_gap.noisy_top_k import NoisyTopK, gaps_between, leaders
from privstream.mechanisms.noise.discrete import DiscreteLaplace, Geometric
from privstream.mechanisms.noise.sources import KeyedNoise, SeededNoise
from privstream.mechanisms.postprocess import blue_from_gaps
from scipy import stats

GOLDEN = ([3, 7, 2], [0, 3, 0])
VARIANTS = [(law, integer) for law in ("exponential", "laplace") for integer in (False, True)]


@given(values=st.lists(st.integers(-4, 4), min_size=2, max_size=30), data=st.data())
def test_leaders_are_sorted_by_value_and_then_by_index(values, data):
    count = data.draw(st.integers(2, len(values)))
    noisy = np.array(values)
    order = leaders(noisy, count)
    assert order.tolist() == sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    gaps = gaps_between(noisy, order)
    assert (gaps >= 0).all()
    assert gaps[:-1].tolist() == [values[a] - values[b] for a, b in itertools.pairwise(order[:-1])]
    # The last gap is the most that the last one could lose and still be ahead of all that were not selected.
    last, rest = order[-2], [i for i in range(len(values)) if i not in order[:-1]]
    assert all((values[last] - gaps[-1], -last) > (values[i], -i) for i in rest)
    assert not all((values[last] - gaps[-1] - 1, -last) > (values[i], -i) for i in rest)


@pytest.mark.parametrize(("noise_law", "integer"), VARIANTS)
@pytest.mark.parametrize("top", [1, 5])
def test_finds_what_stands_out(noise_law, integer, top):
    values = np.zeros(200, dtype=np.int64)
    values[[150, 3, 77, 42, 199]] = [90_000, 70_000, 50_000, 30_000, 10_000]
    mechanism = NoisyTopK(epsilon=1.0, top=top, noise_law=noise_law, integer=integer)
    selection = mechanism.select(values, SeededNoise(1))
    assert selection.indices.tolist() == [150, 3, 77, 42, 199][:top]
    assert selection.gaps.dtype == (np.int64 if integer else np.float64)
    differences = [20_000, 20_000, 20_000, 20_000, 10_000][:top]
    np.testing.assert_allclose(selection.gaps, differences, atol=2 * mechanism.accuracy(200, 1e-9))
    assert selection.spent == 1.0


@pytest.mark.parametrize(("noise_law", "integer"), VARIANTS)
def test_noise_is_as_stated(noise_law, integer):
    for monotone, factor in ((False, 2), (True, 1)):
        mechanism = NoisyTopK(epsilon=0.7, top=10, monotone=monotone, noise_law=noise_law, integer=integer)
        scale = factor * 10 / 0.7
        assert mechanism.noise_scale == pytest.approx(scale)
        expected = scale**2 * (1 if noise_law == "exponential" else 2)
        assert mechanism.noise_variance == pytest.approx(expected, rel=1e-3 if integer else 1e-12)
        assert mechanism.gap_variance == 2 * mechanism.noise_variance


@pytest.mark.parametrize("noise_law", ["exponential", "laplace"])
@pytest.mark.slow
def test_gap_follows_the_difference_of_two_noises(noise_law):
    """Two queries far apart: the gap is their difference plus the difference of two discrete noises."""
    runs, law = 4000, (Geometric if noise_law == "exponential" else DiscreteLaplace)
    mechanism = NoisyTopK(epsilon=2.0, noise_law=noise_law, integer=True)
    root = SeededNoise(3)
    errors = np.array([mechanism.select([5000, 0], root.derive(run)).gaps[0] - 5000 for run in range(runs)])

    def p_value(scale):
        k = np.arange(-200, 201)
        noise = np.where((k >= 0) | (law is DiscreteLaplace), law(scale).pmf(k), 0.0)
        pmf = np.convolve(noise, noise[::-1])[len(k) - 1 - 200 : len(k) + 200]
        inner = slice(200 - 4, 200 + 5)
        expected = np.concatenate([[pmf[: inner.start].sum()], pmf[inner], [pmf[inner.stop :].sum()]])
        observed = np.bincount(np.clip(errors, -5, 5) + 5, minlength=11)
        return stats.chisquare(observed, runs * expected / expected.sum()).pvalue

    assert p_value(mechanism.noise_scale) > 1e-9
    assert p_value(1.3 * mechanism.noise_scale) < 1e-9


@pytest.mark.parametrize(("noise_law", "reduction"), [("laplace", 0.45), ("exponential", 0.6)])
@pytest.mark.slow
def test_gaps_cut_the_error_of_measurements(noise_law, reduction):
    """Half of the budget selects, half measures: by 50% or 66% for many queries, 45% or 60% for ten."""
    runs, top, epsilon = 1500, 10, 0.7
    mechanism = NoisyTopK(epsilon=epsilon / 2, top=top, integer=True, monotone=True, noise_law=noise_law)
    measure = DiscreteLaplace(top / (epsilon / 2))
    values = np.arange(20, 0, -1) * 5000
    root, direct, improved = SeededNoise(4), [], []
    for run in range(runs):
        selection = mechanism.select(values, root.derive("select", run))
        truth = values[selection.indices]
        measures = truth + measure.draw(root.derive("measure", run), top)
        estimates = blue_from_gaps(
            measures,
            selection.gaps[:-1],
            measure_variance=measure.variance,
            noise_variance=mechanism.noise_variance,
        )
        direct.append(np.square(measures - truth).mean())
        improved.append(np.square(estimates.values - truth).mean())
        expected = 1 - estimates.variance / measure.variance
    cut = 1 - np.mean(improved) / np.mean(direct)
    assert expected == pytest.approx(reduction, abs=0.001)
    assert cut == pytest.approx(expected, abs=6.5 * np.std(improved) / np.mean(direct) / math.sqrt(runs) + 0.04)


@pytest.mark.parametrize(("noise_law", "integer"), VARIANTS)
def test_accuracy_holds(noise_law, integer):
    runs, beta = 300, 0.2
    mechanism = NoisyTopK(epsilon=1.0, top=3, noise_law=noise_law, integer=integer)
    alpha = mechanism.accuracy(12, beta)
    values = np.repeat([math.floor(alpha) + 1, 0], [3, 9])
    root = SeededNoise(5)
    wrong = sum(set(mechanism.select(values, root.derive(run)).indices.tolist()) != {0, 1, 2} for run in range(runs))
    assert wrong <= runs * beta + 6.2 * math.sqrt(runs * beta * (1 - beta))


def test_replay_with_other_data_draws_other_noise():
    """The same noise on two values would publish their difference exactly."""
    mechanism, noise = NoisyTopK(epsilon=1.0, integer=True), SeededNoise(6)
    once = mechanism.select([9000, 0], noise)
    again = mechanism.select([9000, 0], noise)
    assert (once.indices.tolist(), once.gaps.tolist()) == (again.indices.tolist(), again.gaps.tolist())
    moved = [mechanism.select([9000 + i, 0], noise).gaps[0] - once.gaps[0] - i for i in range(1, 30)]
    assert len(set(moved)) > 5


def test_other_parameters_have_other_noise():
    gaps = [
        NoisyTopK(epsilon=epsilon, integer=True).select([10**9, 0], SeededNoise(7)).gaps[0] - 10**9
        for epsilon in (0.01, 0.010000001)
    ]
    assert gaps[0] != gaps[1]


def test_order_of_labels_does_not_leak_into_the_inputs():
    values = np.arange(50)
    kept = values.copy()
    NoisyTopK(epsilon=1.0, top=4, integer=True).select(values, SeededNoise(8))
    np.testing.assert_array_equal(values, kept)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"epsilon": 1, "noise_law": "gaussian"},
            ValueError,
            "noise_law must be one of exponential, laplace, got 'gaussian'",
        ),
        ({"epsilon": 1, "monotone": 1}, TypeError, "monotone must be True or False, got int"),
        (
            {"epsilon": 1, "monotone": True, "neighbouring": "replace_one"},
            ValueError,
            "monotone must be False for replace_one: one count may grow while another one shrinks",
        ),
    ],
)
def test_parameters_are_checked(options, error, message):
    with pytest.raises(error) as caught:
        NoisyTopK(**options)
    assert str(caught.value) == message


def test_values_are_checked():
    mechanism = NoisyTopK(epsilon=1.0, top=2, integer=True)
    with pytest.raises(ValueError, match="values must contain more than 2 queries, got 2"):
        mechanism.select([1, 2], SeededNoise(1))
    with pytest.raises(TypeError, match="values must be integers with integer=True, got float64"):
        mechanism.select([1.0, 2.0, 3.0], SeededNoise(1))


def test_guarantee():
    guarantee = NoisyTopK(epsilon=0.3, top=4, neighbouring="replace_one").guarantee
    assert (guarantee.epsilon, guarantee.delta, guarantee.neighbouring) == (0.3, 0.0, "replace_one")
    assert "one selection" in guarantee.paragraph()
    assert guarantee.curve.delta(0.3) == 0


def test_golden():
    mechanism = NoisyTopK(epsilon=2.0, top=3, integer=True, monotone=True)
    selection = mechanism.select(np.arange(10) * 3 % 11, KeyedNoise(b"a key for tests only", "golden"))
    assert (selection.indices.tolist(), selection.gaps.tolist()) == GOLDEN
