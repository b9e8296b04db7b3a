"""Hybrids of the sparse vector technique and of top-k with gaps."""

import math

import numpy as np
import pytest
from privstream.mechanisms.free_gap.noisy_top_k import NoisyTopK
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.papers.selection import HybridNoisyTopK
from privstream.mechanisms.papers.sparse_vector import HybridSparseVector, SparseVectorWithGap

VARIANTS = [(law, integer) for law in ("exponential", "laplace") for integer in (False, True)]
VALUES = np.array([0, 90_000, 10, 70_000, 20, 50_000, 30, 5, 6])


@pytest.mark.parametrize(("noise_law", "integer"), VARIANTS)
@pytest.mark.parametrize(("threshold", "found"), [(30_000, 3), (60_000, 2), (80_000, 1), (10**6, 0)])
def test_finds_the_largest_above_the_threshold_and_saves_budget(threshold, found, noise_law, integer):
    mechanism = HybridSparseVector(epsilon=2.0, top=5, threshold=threshold, noise_law=noise_law, integer=integer)
    selection = mechanism.select(VALUES, SeededNoise(1))
    assert selection.indices.tolist() == [1, 3, 5][:found]
    share = 1 / (1 + math.cbrt(4 * 25))
    assert selection.spent == pytest.approx(2.0 * (share + found / 5 * (1 - share)))
    truth = np.array([90_000, 70_000, 50_000][:found]) - threshold
    np.testing.assert_allclose(selection.gaps, truth, atol=2 * mechanism.accuracy(9, 1e-9))


def test_takes_the_largest_not_the_first():
    values = np.repeat([2000, 90_000], [10, 3])
    hybrid = HybridSparseVector(epsilon=2.0, top=3, integer=True).select(values, SeededNoise(1))
    sparse = SparseVectorWithGap(epsilon=2.0, max_hits=3, integer=True)
    _, first = sparse.step(sparse.initial_state(), values, SeededNoise(1))
    assert set(hybrid.indices.tolist()) == {10, 11, 12}
    assert np.flatnonzero(first.hits).tolist() == [0, 1, 2]
    assert hybrid.spent == pytest.approx(2.0)


def test_fewer_queries_than_top():
    selection = HybridSparseVector(epsilon=2.0, top=5, integer=True).select([9000, 8000], SeededNoise(1))
    assert selection.indices.tolist() == [0, 1]
    with pytest.raises(ValueError, match="values must contain at least one query, got none"):
        HybridSparseVector(epsilon=2.0).select([], SeededNoise(1))


@pytest.mark.parametrize("noise_law", ["exponential", "laplace"])
@pytest.mark.slow
def test_gaps_are_unbiased_with_the_stated_variance(noise_law):
    runs = 2000
    mechanism = HybridSparseVector(epsilon=1.0, top=4, threshold=20_000, integer=True, noise_law=noise_law)
    root = SeededNoise(2)
    errors = np.array([mechanism.select(VALUES, root.derive(i)).gaps for i in range(runs)])
    errors = errors - np.array([70_000, 50_000, 30_000])
    deviation = math.sqrt(mechanism.gap_variance)
    assert np.abs(errors.mean(axis=0)).max() < 6.5 * deviation / math.sqrt(runs)
    assert errors.var() == pytest.approx(mechanism.gap_variance, rel=0.25)
    assert errors.var() != pytest.approx(1.69 * mechanism.gap_variance, rel=0.25)


def test_lower_bounds_hold_for_what_is_selected_for_sure():
    runs, confidence = 1000, 0.9
    mechanism = HybridSparseVector(epsilon=1.0, top=1, integer=True)
    root = SeededNoise(7)
    bounds = [
        mechanism.lower_bounds(mechanism.select([5000], root.derive(i)), confidence)[0] <= 5000 for i in range(runs)
    ]
    slack = 6.5 * math.sqrt(confidence * (1 - confidence) / runs)
    assert confidence - slack <= np.mean(bounds) <= confidence + slack + 0.05


def test_guarantee_tells_the_dynamic_cost():
    guarantee = HybridSparseVector(epsilon=1.0, top=4, threshold_share=0.2).guarantee
    assert (guarantee.epsilon, guarantee.delta) == (1.0, 0.0)
    assert "One of m queries has used 0.2 + 0.2 m of epsilon." in guarantee.paragraph()


@pytest.mark.parametrize(("noise_law", "integer"), VARIANTS)
@pytest.mark.parametrize(("threshold", "found"), [(30_000, 3), (60_000, 2), (80_000, 1), (10**6, 0)])
def test_stops_at_the_threshold_and_saves_budget(threshold, found, noise_law, integer):
    mechanism = HybridNoisyTopK(epsilon=2.0, top=5, threshold=threshold, noise_law=noise_law, integer=integer)
    selection = mechanism.select(VALUES, SeededNoise(1))
    assert selection.indices.tolist() == [1, 3, 5][:found]
    assert selection.spent == pytest.approx(2.0 * (found + 1) / 5)
    below = 50_000 if threshold == 60_000 else ([90_000, 70_000, 50_000, 30][found])
    assert selection.threshold_gap == pytest.approx(threshold - below, abs=2 * mechanism.accuracy(9, 1e-9))
    np.testing.assert_allclose(
        mechanism.estimates(selection), [90_000, 70_000, 50_000][:found], atol=2 * mechanism.accuracy(9, 1e-9)
    )
    assert selection.gaps.dtype == (np.int64 if integer else np.float64)


@pytest.mark.parametrize("integer", [False, True])
def test_top_found_costs_the_whole_budget(integer):
    mechanism = HybridNoisyTopK(epsilon=2.0, top=2, threshold=10, integer=integer)
    selection = mechanism.select(VALUES, SeededNoise(1))
    assert selection.indices.tolist() == [1, 3]
    assert (selection.threshold_gap, selection.spent) == (None, 2.0)
    assert mechanism.estimates(selection) is None
    assert len(selection.gaps) == 2


def test_as_many_queries_as_top_are_enough():
    selection = HybridNoisyTopK(epsilon=2.0, top=2, threshold=-(10**6), integer=True).select([5, 10**5], SeededNoise(1))
    assert selection.indices.tolist() == [1, 0]
    with pytest.raises(ValueError, match="values must contain at least 2 queries, got 1"):
        HybridNoisyTopK(epsilon=2.0, top=2).select([5], SeededNoise(1))


@pytest.mark.slow
def test_estimates_are_unbiased_with_the_stated_variance():
    runs = 2000
    mechanism = HybridNoisyTopK(epsilon=1.0, top=4, threshold=40_000, integer=True, monotone=True)
    root = SeededNoise(2)
    errors = [mechanism.estimates(mechanism.select(VALUES, root.derive(i))) for i in range(runs)]
    errors = np.array(errors) - [90_000, 70_000, 50_000]
    deviation = math.sqrt(mechanism.gap_variance)
    assert np.abs(errors.mean(axis=0)).max() < 6.5 * deviation / math.sqrt(runs)
    assert errors.var() == pytest.approx(mechanism.gap_variance, rel=0.25)
    assert errors.var() != pytest.approx(1.69 * mechanism.gap_variance, rel=0.25)


def test_noise_is_that_of_top_k():
    for monotone in (False, True):
        hybrid = HybridNoisyTopK(epsilon=0.7, top=9, monotone=monotone)
        plain = NoisyTopK(epsilon=0.7, top=9, monotone=monotone)
        assert (hybrid.noise_scale, hybrid.gap_variance) == (plain.noise_scale, plain.gap_variance)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"epsilon": 1, "threshold": 1.5, "integer": True}, TypeError, "threshold must be an integer, got float"),
        ({"epsilon": 1, "threshold": math.nan}, ValueError, "threshold must be finite, got nan"),
    ],
)
def test_parameters_are_checked(options, error, message):
    with pytest.raises(error) as caught:
        HybridNoisyTopK(**options)
    assert str(caught.value) == message


def test_guarantee_tells_the_dynamic_cost_top_k():
    guarantee = HybridNoisyTopK(epsilon=0.3, top=4).guarantee
    assert (guarantee.epsilon, guarantee.delta) == (0.3, 0.0)
    assert "stops after m < 4 queries has used (m + 1) / 4 of epsilon" in guarantee.paragraph()
