"""What mechanisms that answer queries, or choose the largest, have in common: accuracy, replays, golden answers.

A mechanism of these kinds has an entry in each table. Its own file has what it alone does.
"""

import math

import numpy as np
import pytest
from privstream.mechanisms import (
    AdaptiveSparseVector,
    HybridNoisyTopK,
    HybridSparseVector,
    NoisyTopK,
    NumericSparse,
    SeededNoise,
    Sparse,
    SparseVectorWithGap,
)
from privstream.mechanisms.noise.sources import KeyedNoise

VARIANTS = [{"noise_law": law, "integer": integer} for law in ("exponential", "laplace") for integer in (False, True)]


def answered(mechanism, values, noise):
    """Return the answers of a mechanism that tests queries in steps, or chooses among them at once."""
    if hasattr(mechanism, "select"):
        return mechanism.select(values, noise)
    return mechanism.step(mechanism.initial_state(), values, noise)[1]


def large(answers):
    """Return which queries are said to be large."""
    return sorted(answers.indices.tolist()) if hasattr(answers, "indices") else np.flatnonzero(answers.hits).tolist()


@pytest.mark.parametrize(
    ("mechanism", "above", "below", "queries"),
    [
        (Sparse(epsilon=3.0, max_hits=4, integer=True), [3, 9, 15, 19], -1, 20),
        *[(SparseVectorWithGap(epsilon=2.0, max_hits=3, **variant), [2, 7, 11], -1, 12) for variant in VARIANTS],
        *[
            (AdaptiveSparseVector(epsilon=2.0, min_hits=3, noise_law=law, integer=True, margin=0.5), [2, 7, 11], -1, 12)
            for law in ("exponential", "laplace")
        ],
        *[(HybridSparseVector(epsilon=1.0, top=3, **variant), [0, 1], -1, 10) for variant in VARIANTS],
        *[(HybridNoisyTopK(epsilon=1.0, top=3, **variant), [0, 1], -1, 10) for variant in VARIANTS],
        *[(NoisyTopK(epsilon=1.0, top=3, **variant), [0, 1, 2], 0, 12) for variant in VARIANTS],
    ],
    ids=repr,
)
def test_accuracy_holds(mechanism, above, below, queries):
    """Queries that are alpha above the threshold are found, and those as far `below` are not, but for beta of runs."""
    runs, beta = 400, 0.2
    alpha = math.floor(mechanism.accuracy(queries, beta)) + 1
    values = np.full(queries, below * alpha)
    values[above] = alpha
    root = SeededNoise(5)
    wrong = sum(large(answered(mechanism, values, root.derive(run))) != above for run in range(runs))
    assert wrong <= runs * beta + 6.2 * math.sqrt(runs * beta * (1 - beta))


@pytest.mark.parametrize(
    "mechanism",
    [
        SparseVectorWithGap(epsilon=1.0, max_hits=50, integer=True),
        HybridSparseVector(epsilon=1.0, integer=True),
        HybridNoisyTopK(epsilon=1.0, top=1, threshold=-(10**6), integer=True),
        NoisyTopK(epsilon=1.0, integer=True),
    ],
    ids=repr,
)
def test_replay_with_other_data_draws_other_noise(mechanism):
    """The same noise on two values would publish their difference exactly."""
    gaps = [answered(mechanism, [9000 + i, 0], SeededNoise(6)).gaps[0] - i for i in range(30)]
    assert len(set(gaps)) > 5
    assert answered(mechanism, [9000, 0], SeededNoise(6)).gaps[0] == gaps[0]


def test_golden():
    key, found = KeyedNoise(b"a key for tests only", "golden"), []
    for mechanism, values in (
        (Sparse(epsilon=2.0, max_hits=5, threshold=20, integer=True), np.arange(40) % 13),
        (NumericSparse(epsilon=9.0, max_hits=5, threshold=20, integer=True), np.arange(40) % 13),
        (SparseVectorWithGap(epsilon=4.0, max_hits=3, threshold=20, integer=True), np.arange(40) * 7 % 23),
        (AdaptiveSparseVector(epsilon=4.0, min_hits=2, branches=3, threshold=20, integer=True), np.arange(40) * 7 % 71),
        (HybridSparseVector(epsilon=6.0, top=6, threshold=18, integer=True), np.arange(40) * 7 % 23),
        (HybridNoisyTopK(epsilon=4.0, top=6, threshold=20, integer=True), np.arange(40) * 7 % 23),
        (NoisyTopK(epsilon=2.0, top=3, integer=True, monotone=True), np.arange(10) * 3 % 11),
    ):
        answers = answered(mechanism, values, key)
        chosen = answers.indices.tolist() if hasattr(answers, "indices") else large(answers)
        numbers = [getattr(answers, name, []) for name in ("gaps", "values", "branches")]
        found.append((chosen, *(np.round(column, 2).tolist() for column in numbers if len(column))))
        found[-1] += (answers.threshold_gap,) if hasattr(answers, "threshold_gap") else ()
    assert found == [
        ([2, 3, 10, 13, 19],),
        ([12], [20]),
        ([3, 13, 16], [2.16, 2.16, 0.16], [0, 0, 0]),
        ([3, 4], [0.52, 7.15], [0, 1]),
        ([19, 13, 36, 22, 39, 26], [5.7, 4.7, 4.7, 2.7, 2.7, 1.7]),
        ([26], [2], 0),
        ([3, 7, 2], [0, 3, 0]),
    ]
