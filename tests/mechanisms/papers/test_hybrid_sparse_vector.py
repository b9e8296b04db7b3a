import math

import numpy as np
import pytest
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.papers.sparse_vector_with_gap import HybridSparseVector, SparseVectorWithGap

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
