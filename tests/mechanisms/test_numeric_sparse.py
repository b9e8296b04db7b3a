import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.checks import BudgetSpent
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.sparse_vector.query_mechanism import Progress
from privstream.mechanisms.sparse_vector.sparse import NumericSparse, Sparse
from scipy import stats

ROOT = math.sqrt(512)


def run(mechanism, values, noise, **options):
    return mechanism.step(mechanism.initial_state(), values, noise, **options)


def sure_hits(count, value=0):
    """Values and thresholds with which every query hits."""
    return np.full(count, value), np.full(count, value - 10**9)


@pytest.mark.parametrize("integer", [False, True])
@given(seed=st.integers(0, 10**6), cuts=st.lists(st.integers(0, 60), max_size=5))
def test_pieces_are_answered_as_the_whole(integer, seed, cuts):
    mechanism = NumericSparse(epsilon=6.0, max_hits=8, threshold=30, integer=integer)
    values, noise = np.arange(60) % 23, SeededNoise(seed)
    end, whole = run(mechanism, values, noise)
    state, hits, numbers = mechanism.initial_state(), [], []
    bounds = [0, *sorted(cuts), 60]
    for start, stop in itertools.pairwise(bounds):
        if state.hits < 8:
            state, answers = mechanism.step(state, values[start:stop], noise)
            hits.append(answers.hits)
            numbers.append(answers.values)
    assert state == end
    np.testing.assert_array_equal(np.concatenate(hits), whole.hits)
    np.testing.assert_array_equal(np.concatenate(numbers), whole.values)
    assert whole.values.dtype == (np.int64 if integer else np.float64)
    assert len(whole.values) == whole.hits.sum()


def test_budget():
    mechanism = NumericSparse(epsilon=1.0, max_hits=2, integer=True)
    values, thresholds = sure_hits(5)
    state, answers = run(mechanism, values, SeededNoise(1), thresholds=thresholds)
    assert (answers.answered, len(answers.values), state) == (2, 2, Progress(asked=2, hits=2))
    with pytest.raises(BudgetSpent):
        mechanism.step(state, values, SeededNoise(1))


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_scales_and_accuracy_are_the_formulas(delta):
    epsilon, c, k, beta = 0.5, 30, 10**6, 0.05
    mechanism = NumericSparse(epsilon=epsilon, delta=delta, max_hits=c)
    logs = math.log(k) + math.log(4 * c / beta)
    if delta == 0:
        assert mechanism.noise_scale == pytest.approx(2 * c / (8 / 9 * epsilon), rel=1e-12)
        assert mechanism.value_scale == pytest.approx(9 * c / epsilon, rel=1e-12)
        assert mechanism.accuracy(k, beta) == pytest.approx(9 * c * logs / epsilon, rel=1e-12)
        return
    root = math.sqrt(32 * c * math.log(2 / delta))
    assert mechanism.noise_scale == pytest.approx(root / (ROOT / (ROOT + 1) * epsilon), rel=1e-12)
    assert mechanism.value_scale == pytest.approx(root / (2 / (ROOT + 1) * epsilon), rel=1e-12)
    alpha = math.sqrt(c * math.log(2 / delta)) * (ROOT + 1) / epsilon
    assert mechanism.accuracy(k, beta) == pytest.approx(alpha * logs, rel=1e-12)
    # For few queries the noise of the values decides; the textbook leaves this out.
    assert mechanism.accuracy(2, beta) == pytest.approx(alpha * math.sqrt(8) * math.log(2 * c / beta), rel=1e-12)


@pytest.mark.slow
def test_textbook_accuracy_is_too_small_for_few_queries_and_ours_holds():
    mechanism = NumericSparse(epsilon=1.0, delta=1e-6, max_hits=1)
    beta, runs = 0.05, 4000
    textbook = math.sqrt(math.log(2e6)) * (ROOT + 1) * (math.log(2) + math.log(4 / beta))
    values, thresholds = sure_hits(1)
    errors = np.array([run(mechanism, values, SeededNoise(s), thresholds=thresholds)[1].values[0] for s in range(runs)])
    allowed = stats.binom.isf(1e-10, runs, beta)
    assert np.count_nonzero(np.abs(errors) > textbook) > allowed
    assert np.count_nonzero(np.abs(errors) > mechanism.accuracy(2, beta)) <= allowed


@pytest.mark.parametrize("integer", [False, True])
def test_law_of_the_values(integer):
    runs = 20_000
    mechanism = NumericSparse(epsilon=9.0 * runs / 6, max_hits=runs, integer=integer)  # values get Lap(6)
    values, thresholds = sure_hits(runs, 100)
    noise = run(mechanism, values, SeededNoise(8), thresholds=thresholds)[1].values - 100
    assert mechanism.value_scale == pytest.approx(6.0)
    low, high = distances(noise, mechanism.value_scale, integer), distances(noise, 0.7 * mechanism.value_scale, integer)
    allowed = math.sqrt(math.log(2 / 1e-10) / (2 * runs))  # Dvoretzky, Kiefer, Wolfowitz, Massart
    assert low < allowed < high


def distances(sample, scale, integer):
    """Largest distance between the empirical and the true distribution function on the integers."""
    at = np.arange(-200, 201)
    true = stats.dlaplace(1 / scale).cdf(at) if integer else stats.laplace(scale=scale).cdf(at)
    return np.max(np.abs(np.searchsorted(np.sort(sample), at, side="right") / len(sample) - true))


def test_noise_of_values_is_independent_of_the_decision():
    # A hit says that the query's own noise is high, at least about 10 here; the published value must not repeat it.
    mechanism = NumericSparse(epsilon=4000.0, max_hits=2000, threshold=10, integer=True)
    _, answers = run(mechanism, np.zeros(400_000, dtype=np.int64), SeededNoise(9))
    assert len(answers.values) == 2000
    assert abs(answers.values.mean()) < 6.5 * math.sqrt(mechanism._value_law.variance / 2000) < 1


@pytest.mark.parametrize("integer", [False, True])
def test_replay_with_the_same_data_repeats_and_with_other_data_does_not(integer):
    mechanism = NumericSparse(epsilon=40.0, max_hits=40, integer=integer)  # values get Lap(9)
    values, thresholds = sure_hits(40, 100)
    first = run(mechanism, values, SeededNoise(1), thresholds=thresholds)[1].values
    again = run(mechanism, values, SeededNoise(1), thresholds=thresholds)[1].values
    other = run(mechanism, values + 1, SeededNoise(1), thresholds=thresholds)[1].values
    np.testing.assert_array_equal(first, again)
    assert np.count_nonzero(np.isclose(other - first, 1)) < 20
    assert len(set((other - first).round(6).tolist())) > 10


def test_zero_has_one_sign():
    mechanism = NumericSparse(epsilon=1.0)
    plus, minus = (run(mechanism, [zero], SeededNoise(1), thresholds=-1e9)[1].values for zero in (0.0, -0.0))
    assert plus[0] == minus[0]


def test_guarantee_adds_up():
    pure = NumericSparse(epsilon=1.0, max_hits=20)
    assert pure.choice.epsilon + pure.max_hits / pure.value_scale == pytest.approx(1.0, rel=1e-12)
    assert (pure.guarantee.epsilon, pure.guarantee.delta) == (1.0, 0.0)
    assert pure.guarantee.curve.delta(1.01) < 1e-9
    approximate = NumericSparse(epsilon=1.0, delta=1e-6, max_hits=500).guarantee
    assert approximate.curve.delta(1.0) < 1e-6
    assert 0.2 < approximate.curve.epsilon(1e-6) < 0.5


def test_values_need_half_of_the_second_share_only():
    """8/9 + 2/9 > 1, but the noise sigma(2/9 epsilon) = 2 c / (2/9 epsilon) costs 1/9 of epsilon, not 2/9."""
    mechanism = NumericSparse(epsilon=1.0, max_hits=7)
    assert mechanism.max_hits / mechanism.value_scale == pytest.approx(1 / 9, rel=1e-12)
    assert mechanism.choice == Sparse(epsilon=8 / 9, max_hits=7)


def test_an_epsilon_too_large_for_its_delta_is_refused():
    with pytest.raises(ValueError, match=r"epsilon must be smaller for delta 0\.005 and 10000 hits"):
        NumericSparse(epsilon=90, delta=0.01, max_hits=10_000)
