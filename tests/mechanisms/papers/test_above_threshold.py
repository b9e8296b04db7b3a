import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.checks import BudgetSpent, SnapshotError
from privstream.mechanisms.noise.sources import KeyedNoise, SeededNoise
from privstream.mechanisms.papers.sparse_vector import AboveThreshold
from privstream.mechanisms.sparse_vector.query_mechanism import Progress

KEY = b"a key for tests only"
GOLDEN_INTEGER = [2, 12, 9, 12, 12, 9, 9, 2, 8, 12, 12, 12]
GOLDEN_REAL = [12, 11, 11, 5, 12, 12, 12, 12, 12, 5, 12, 11]


def run(mechanism, values, noise, **options):
    return mechanism.step(mechanism.initial_state(), values, noise, **options)


@pytest.mark.parametrize(("runs", "off"), [(1_500, 0.4), pytest.param(6_000, 0.7, marks=pytest.mark.slow)])
def test_noise_has_the_scales_of_the_algorithm(runs, off):
    # With values far below, only the noise decides; both laws are checked against the closed form of the difference.
    # A scale of 0.7 of the right one is accepted with probability 1e-13: hits are 7.4 standard deviations above.
    epsilon, gap = 2.0, -3.0
    mechanism = AboveThreshold(epsilon=epsilon)
    hits = sum(run(mechanism, [gap], SeededNoise(seed))[1].hits[0] for seed in range(runs))
    expected = runs * tail_of_difference(-gap, 2 / epsilon, 4 / epsilon)
    wrong = runs * tail_of_difference(-gap, off * 2 / epsilon, off * 4 / epsilon)
    allowed = 6.5 * math.sqrt(expected)
    assert abs(hits - expected) < allowed
    assert abs(hits - wrong) > allowed


def tail_of_difference(x, a, b):
    """Pr[Lap(b) - Lap(a) >= x] for x >= 0 and a != b."""
    return (b**2 * math.exp(-x / b) - a**2 * math.exp(-x / a)) / (2 * (b**2 - a**2))


@pytest.mark.parametrize("integer", [False, True])
@given(seed=st.integers(0, 10**6), cuts=st.lists(st.integers(0, 60), max_size=6))
def test_pieces_are_answered_as_the_whole(integer, seed, cuts):
    mechanism = AboveThreshold(epsilon=1.0, threshold=20, integer=integer)
    values, noise = np.arange(60) % 17, SeededNoise(seed)
    end, whole = run(mechanism, values, noise)
    state, pieces = mechanism.initial_state(), []
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 60], strict=True):
        if state.hits:
            break
        state, answers = mechanism.step(state, values[start:stop], noise)
        pieces.append(answers.hits)
    assert state == end
    np.testing.assert_array_equal(np.concatenate(pieces), whole.hits)


@pytest.mark.parametrize("integer", [False, True])
def test_halts_at_the_first_hit(integer):
    mechanism = AboveThreshold(epsilon=1.0, threshold=1000, integer=integer)
    values = np.zeros(200_000, dtype=np.int64)
    values[[150_000, 150_001]] = 5000
    state, answers = run(mechanism, values, SeededNoise(2))
    assert answers.answered == 150_001
    assert np.flatnonzero(answers.hits).tolist() == [150_000]
    assert state == Progress(asked=150_001, hits=1)
    with pytest.raises(BudgetSpent, match="hits must stay <= 1; the run has halted and answers no more"):
        mechanism.step(state, [0], SeededNoise(2))


def test_no_query_is_no_question():
    mechanism = AboveThreshold(epsilon=1.0)
    halted = Progress(asked=4, hits=1)
    after, answers = mechanism.step(halted, [], SeededNoise(1))
    assert after == halted
    assert answers.answered == 0


def test_thresholds_of_their_own():
    mechanism = AboveThreshold(epsilon=1.0, threshold=10**9)
    values, thresholds = np.full(50, 5000.0), np.full(50, 10_000.0)
    thresholds[30] = 0
    _, answers = run(mechanism, values, SeededNoise(3), thresholds=thresholds)
    assert answers.answered == 31
    # Only the difference counts.
    for seed in range(20):
        _, shifted = run(mechanism, thresholds / 1000, SeededNoise(seed), thresholds=thresholds / 1000 + 3)
        _, plain = run(mechanism, np.full(50, -3.0), SeededNoise(seed), thresholds=0)
        np.testing.assert_array_equal(shifted.hits, plain.hits)


def test_golden():
    mechanism = AboveThreshold(epsilon=0.5, threshold=40, integer=True)
    values = [11, 15, 12, 16, 14, 9, 15, 17, 23, 15, 28, 16]
    ends = [run(mechanism, values, KeyedNoise(KEY, f"run {i}"))[0].asked for i in range(12)]
    assert ends == GOLDEN_INTEGER
    mechanism = AboveThreshold(epsilon=0.5, threshold=40)
    assert [run(mechanism, values, KeyedNoise(KEY, f"run {i}"))[0].asked for i in range(12)] == GOLDEN_REAL


def test_other_parameters_have_other_noise():
    values = np.zeros(40)
    near = [run(AboveThreshold(epsilon=e), values, SeededNoise(4))[0].asked for e in np.linspace(1, 1.001, 40)]
    assert len(set(near)) > 3  # one noise at almost equal scales would halt at one and the same query


def test_accuracy_is_the_formula_and_holds():
    mechanism = AboveThreshold(epsilon=0.8, threshold=100, integer=True)
    alpha = 4 * math.log(50 / 0.1) / 0.8
    assert AboveThreshold(epsilon=0.8).accuracy(50, 0.1) == pytest.approx(alpha, rel=1e-12)
    assert mechanism.accuracy(50, 0.1) == pytest.approx(alpha + 1, rel=1e-12)
    below = math.ceil(100 - alpha - 1) - 1  # hitting one of these is a mistake
    mistakes = sum(run(mechanism, np.full(50, below), SeededNoise(seed))[0].hits for seed in range(1000))
    assert mistakes <= 100 + 6.2 * math.sqrt(1000 * 0.1 * 0.9)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"epsilon": 1e-12}, ValueError, "epsilon must give a noise scale in [1e-6, 1e11], got a noise scale of 2e+12"),
        ({"epsilon": 1, "threshold": math.inf}, ValueError, "threshold must be finite, got inf"),
        ({"epsilon": 1, "threshold": 0.5, "integer": True}, TypeError, "threshold must be an integer, got float"),
        ({"epsilon": 1, "threshold": 2**61, "integer": True}, ValueError, f"threshold must be <= 2**60, got {2**61}"),
        (
            {"epsilon": 1, "neighbouring": "swap"},
            ValueError,
            "neighbouring must be one of add_remove, replace_one, got 'swap'",
        ),
    ],
)
def test_parameters_are_checked(options, error, message):
    with pytest.raises(error) as caught:
        AboveThreshold(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("values", "options", "integer", "error", "message"),
    [
        ([0.0, math.nan], {}, False, ValueError, "values must be finite"),
        (["777"], {}, False, TypeError, "values must be numbers, got <U3"),
        ([777.5], {}, True, TypeError, "values must be integers with integer=True, got float64"),
        ([True], {}, True, TypeError, "values must be integers with integer=True, got bool"),
        ([777, 2**60 + 1], {}, True, ValueError, "values must be between -2**60 and 2**60 with integer=True"),
        ([2**64 - 1], {}, True, ValueError, "values must be between -2**60 and 2**60 with integer=True"),
        ([[777]], {}, True, ValueError, "values must be one-dimensional, got 2 dimensions"),
        (777, {}, True, ValueError, "values must be one-dimensional, got 0 dimensions"),
        ([1, 2], {"thresholds": [1]}, True, ValueError, "thresholds must be one number or 2 numbers, got shape (1,)"),
        ([1, 2], {"thresholds": 1.5}, True, TypeError, "thresholds must be integers with integer=True, got float64"),
    ],
)
def test_queries_are_checked_and_never_quoted(values, options, integer, error, message):
    mechanism = AboveThreshold(epsilon=1.0, integer=integer)
    with pytest.raises(error) as caught:
        run(mechanism, values, SeededNoise(1), **options)
    assert str(caught.value) == message


def test_snapshot_of_other_parameters_is_refused():
    data = AboveThreshold(epsilon=1.0).snapshot(Progress(asked=3))
    assert AboveThreshold(epsilon=1, threshold=-0.0).restore(data) == Progress(asked=3)
    with pytest.raises(SnapshotError, match="snapshot must be made by a mechanism with equal parameters"):
        AboveThreshold(epsilon=1.5).restore(data)


def test_guarantee():
    guarantee = AboveThreshold(epsilon=0.7, neighbouring="replace_one").guarantee
    assert (guarantee.epsilon, guarantee.delta, guarantee.neighbouring) == (0.7, 0.0, "replace_one")
    assert guarantee.curve.delta(0.7) == 0
    assert guarantee.curve.delta(0.2) > 0.1
