import itertools
import math

import numpy as np
import pytest
from grids import some_quick
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.checks import BudgetSpent
from privstream.mechanisms.free_gap.adaptive_sparse_vector import AdaptiveSparseVector, optimal_share
from privstream.mechanisms.mechanism import packed_parameters
from privstream.mechanisms.noise.gaps import mean, noisy
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.papers.sparse_vector_with_gap import SparseVectorWithGap
from scipy import stats


def run(mechanism, values, noise, **options):
    return mechanism.step(mechanism.initial_state(), values, noise, **options)


def plain_run(mechanism, values, noise):
    """The algorithm as it is printed, one query and one branch at a time."""
    tests, source = mechanism.tests, noise.derive("gap tests", packed_parameters(mechanism.tests))
    threshold_law = tests.threshold_law()
    barrier = mechanism.threshold + threshold_law.draw(source.derive("threshold"), 1)[0] - mean(threshold_law)
    left, answers = mechanism.epsilon - mechanism.threshold_epsilon, []
    for i, value in enumerate(values):
        answers.append(None)
        for branch in reversed(range(mechanism.branches)):
            law, at = tests.query_law(branch), np.array([i], dtype=np.uint64)
            total = noisy(np.array([value]), law, at, source.derive("branch", branch))[0] - mean(law)
            margin = mechanism.margin * math.sqrt(law.variance) if branch else 0
            if total - barrier >= margin - 1e-9:
                answers[-1] = (branch, total - barrier)
                left -= mechanism.hit_epsilon / 2**branch
                break
        if left < mechanism.hit_epsilon * (1 - 1e-9):
            break
    return answers


@given(
    seed=st.integers(0, 10**6),
    min_hits=st.integers(1, 8),
    branches=st.integers(1, 4),
    noise_law=st.sampled_from(["exponential", "laplace"]),
    values=st.lists(st.integers(-40, 90), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_same_as_one_query_at_a_time(seed, min_hits, branches, noise_law, values, cuts):
    mechanism = AdaptiveSparseVector(
        epsilon=3.0, min_hits=min_hits, branches=branches, integer=True, noise_law=noise_law, threshold=10
    )
    expected = plain_run(mechanism, values, SeededNoise(seed))
    state, hits, gaps, found = mechanism.initial_state(), [], [], []
    for start, stop in itertools.pairwise([0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]):
        if not mechanism.halted(state):
            state, answers = mechanism.step(state, values[start:stop], SeededNoise(seed))
            hits += answers.hits.tolist()
            gaps += answers.gaps.tolist()
            found += answers.branches.tolist()
    assert hits == [answer is not None for answer in expected]
    assert found == [answer[0] for answer in expected if answer]
    assert gaps == pytest.approx([answer[1] for answer in expected if answer])
    assert (state.asked, state.hits) == (len(hits), sum(hits))
    spent = mechanism.threshold_epsilon + sum(mechanism.hit_epsilon / 2**branch for branch in found)
    assert mechanism.spent(state) == pytest.approx(spent)
    assert spent <= mechanism.epsilon * (1 + 1e-12)


def test_chunks_of_noise_do_not_show():
    mechanism = AdaptiveSparseVector(epsilon=1.0, min_hits=500, threshold=100_000, integer=True)
    values = np.full(140_000, -(10**6))
    values[::400] = 10**6
    _, whole = run(mechanism, values, SeededNoise(5))
    state, pieces = mechanism.initial_state(), []
    for piece in np.array_split(values, 7):
        state, answers = mechanism.step(state, piece, SeededNoise(5))
        pieces.append(answers)
    for column in range(3):
        np.testing.assert_array_equal(np.concatenate([piece[column] for piece in pieces]), whole[column])
    assert state.hits == 350


@pytest.mark.parametrize(("branches", "factor"), [(1, 1), (2, 2), (3, 4), (4, 8)])
def test_clear_hits_are_cheaper(branches, factor):
    """All queries far above: 2^(branches - 1) times as many answers, nearly."""
    mechanism = AdaptiveSparseVector(epsilon=0.7, min_hits=24, branches=branches, integer=True, monotone=True)
    state, answers = run(mechanism, np.full(1000, 10**7), SeededNoise(1))
    assert answers.branches.tolist() == [branches - 1] * len(answers.gaps)
    assert len(answers.gaps) == 24 * factor - factor + 1
    assert mechanism.spent(state) <= 0.7
    with pytest.raises(BudgetSpent, match="hits must cost <= 24 times the full price"):
        mechanism.step(state, [1], SeededNoise(1))


def test_forty_percent_of_the_budget_is_left_after_k_clear_hits():
    """As published: stop after k hits that are all clear, and (1 - theta) / 2 of epsilon is left."""
    for hits in (10, 24):
        mechanism = AdaptiveSparseVector(epsilon=0.7, min_hits=hits, integer=True, monotone=True)
        state, answers = run(mechanism, np.full(hits, 10**7), SeededNoise(1))
        assert len(answers.gaps) == hits
        left = 1 - mechanism.spent(state) / 0.7
        assert left == pytest.approx((1 - optimal_share(hits, monotone=True)) / 2)
        assert 0.38 < left < 0.47


def test_queries_near_the_threshold_pay_the_full_price():
    mechanism = AdaptiveSparseVector(epsilon=1.0, min_hits=50, integer=True, margin=1000.0)
    state, answers = run(mechanism, np.full(1000, 300), SeededNoise(1))
    assert set(answers.branches.tolist()) == {0}
    assert state.hits == 50
    assert mechanism.spent(state) == pytest.approx(1.0)


def test_one_branch_is_sparse_vector_with_gap():
    values = np.arange(500) * 37 % 101
    _, one = run(AdaptiveSparseVector(epsilon=1.0, min_hits=5, branches=1, threshold=60), values, SeededNoise(3))
    _, other = run(SparseVectorWithGap(epsilon=1.0, max_hits=5, threshold=60), values, SeededNoise(3))
    np.testing.assert_array_equal(one.hits, other.hits)
    np.testing.assert_array_equal(one.gaps, other.gaps)


@some_quick("branch", [0, 3], 3)
@pytest.mark.parametrize("noise_law", ["exponential", "laplace"])
@pytest.mark.slow
def test_gap_error_has_the_stated_law(branch, noise_law):
    """Of queries that are tested in one branch only, real-valued: the error is a difference of two noises."""
    runs = 2500  # `samples_to_tell` for these ten quantiles and a law that is 30% wider: 2,464 at most
    mechanism = AdaptiveSparseVector(epsilon=1.0, branches=branch + 1, noise_law=noise_law, margin=0.1)
    root = SeededNoise(9)
    answers = [run(mechanism, [10.0**6], root.derive(i))[1] for i in range(runs)]
    assert {a.branches[0] for a in answers} == {branch}
    errors = np.array([a.gaps[0] for a in answers]) - 10.0**6

    def p_value(scale):
        # Pr[error > t] at random levels t is uniform: compare how often the errors exceed each quantile.
        levels = np.linspace(0.05, 0.95, 10)
        quantiles = scale * np.array([mechanism.tests.excess(branch, beta) for beta in levels[::-1]])
        observed = np.bincount(np.searchsorted(quantiles, errors), minlength=11)
        return stats.chisquare(observed, runs * np.diff(np.concatenate([[0], levels, [1]]))).pvalue

    assert p_value(1.0) > 1e-9
    assert p_value(1.3) < 1e-9


@pytest.mark.slow
def test_lower_bounds_hold_for_all_branches_together():
    """A query at its threshold hits in any branch: bounds at the whole beta in each would be wrong too often."""
    runs, confidence = 1500, 0.95
    beta = 1 - confidence
    mechanism = AdaptiveSparseVector(epsilon=1.0, min_hits=10, branches=4, monotone=True)
    root, wrong, naive = SeededNoise(11), 0, 0
    for i in range(runs):
        _, answers = run(mechanism, [0.0], root.derive(i))
        wrong += int((mechanism.lower_bounds(answers, confidence) > 0).any())
        naive += sum(
            gap > mechanism.tests.excess(branch, beta)
            for gap, branch in zip(answers.gaps, answers.branches.tolist(), strict=True)
        )
    most = runs * beta + 6.5 * math.sqrt(runs * beta * confidence)
    assert wrong <= most < naive


def test_optimal_shares_are_those_of_the_paper():
    for k in (1, 4, 24):
        assert optimal_share(k, monotone=False) == pytest.approx(1 / (1 + (4 * k * k) ** (1 / 3)))
        assert optimal_share(k, monotone=True) == pytest.approx(1 / (1 + k ** (2 / 3)))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"epsilon": 1, "branches": 0}, ValueError, "branches must be >= 1, got 0"),
        ({"epsilon": 1, "branches": 33}, ValueError, "branches must be <= 32, got 33"),
        ({"epsilon": 1, "margin": -1}, ValueError, "margin must be finite and >= 0, got -1"),
        ({"epsilon": 1, "noise_law": "x"}, ValueError, "noise_law must be one of exponential, laplace, got 'x'"),
    ],
)
def test_parameters_are_checked(options, error, message):
    with pytest.raises(error) as caught:
        AdaptiveSparseVector(**options)
    assert str(caught.value) == message
