"""The sparse vector technique: hits alone, hits with numbers, and adaptive hits with gaps."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import common, privacy_loss_distribution
from grids import some_quick
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.checks import BudgetSpent
from privstream.mechanisms.free_gap.adaptive_sparse_vector import AdaptiveSparseVector, optimal_share
from privstream.mechanisms.mechanism import packed_parameters
from privstream.mechanisms.noise.gaps import mean, noisy
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.papers.sparse_vector import AboveThreshold, SparseVectorWithGap
from privstream.mechanisms.sparse_vector.query_mechanism import HiddenThreshold, Progress
from privstream.mechanisms.sparse_vector.sparse import NumericSparse, PureComposition, Sparse
from scipy import stats


def run(mechanism, values, noise, **options):
    return mechanism.step(mechanism.initial_state(), values, noise, **options)


def plain_tests(tests, gaps, noise):
    """The algorithm as it is printed, one query at a time."""
    threshold_noise, query_noise = noise.derive("threshold"), noise.derive("query")
    hits = []
    for i, gap in enumerate(gaps):
        at = np.array([i], dtype=np.uint64)
        lives = np.array([sum(hits)], dtype=np.uint64)
        noisy = gap + tests._law(2 * tests.scale).draw(query_noise, at)
        hits.append(bool(noisy >= tests._law(tests.scale).draw(threshold_noise, lives)))
        if sum(hits) == tests.max_hits:
            break
    return hits


@pytest.mark.parametrize("integer", [False, True])
@given(
    seed=st.integers(0, 10**6),
    max_hits=st.integers(1, 40),
    gaps=st.lists(st.integers(-60, 10), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
)
def test_same_as_one_query_at_a_time(integer, seed, max_hits, gaps, cuts):
    tests = HiddenThreshold(scale=9.0, max_hits=max_hits, integer=integer)
    expected = plain_tests(tests, gaps, SeededNoise(seed))
    state, found = Progress(), []
    bounds = [0, *sorted(min(cut, len(gaps)) for cut in cuts), len(gaps)]
    for start, stop in itertools.pairwise(bounds):
        if state.hits < max_hits:
            some = np.array(gaps[start:stop], np.int64 if integer else float)
            state, hits = tests.test(state, some, SeededNoise(seed))
            found += hits.tolist()
    assert found == expected
    assert state == Progress(asked=len(expected), hits=sum(expected))


def test_blocks_of_noise_do_not_show():
    # More queries than one chunk and more hits than one block of threshold noises.
    tests = HiddenThreshold(scale=5.0, max_hits=3000, integer=True)
    gaps = np.full(140_000, -40)
    gaps[::100] = 3
    _, whole = tests.test(Progress(), gaps, SeededNoise(5))
    state, pieces = Progress(), []
    for piece in np.array_split(gaps, 23):
        state, hits = tests.test(state, piece, SeededNoise(5))
        pieces.append(hits)
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    assert 800 < whole.sum() == state.hits < 3000


@pytest.mark.parametrize("integer", [False, True])
def test_halts_at_the_last_hit(integer):
    mechanism = Sparse(epsilon=1.0, max_hits=3, threshold=1000, integer=integer)
    values = np.zeros(1000, dtype=np.int64)
    values[[10, 500, 501, 700]] = 9000
    state, answers = run(mechanism, values, SeededNoise(1))
    assert np.flatnonzero(answers.hits).tolist() == [10, 500, 501]
    assert (answers.answered, state) == (502, Progress(asked=502, hits=3))
    with pytest.raises(BudgetSpent, match="hits must stay <= 3"):
        mechanism.step(state, [0], SeededNoise(1))


@pytest.mark.parametrize(("epsilon", "max_hits", "scale"), [(1.0, 1, 2.0), (0.5, 10, 40.0)])
def test_noise_without_delta_is_the_formula(epsilon, max_hits, scale):
    assert Sparse(epsilon=epsilon, max_hits=max_hits).noise_scale == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize("max_hits", [100, 1000, 10_000])
def test_noise_with_delta_is_that_of_exact_composition(max_hits):
    made = Sparse(epsilon=1.0, delta=1e-6, max_hits=max_hits)
    textbook = math.sqrt(32 * max_hits * math.log(1e6))
    assert 2.45 < textbook / made.noise_scale < 2.9
    assert 0.999 * 1e-6 < made.curve.delta(1.0) <= 1e-6


@pytest.mark.parametrize("max_hits", [1, 3, 40])
@pytest.mark.parametrize("adaptive", [False, True])
def test_answers_are_right_up_to_alpha_and_alpha_is_not_loose(max_hits, adaptive):
    """Everything below its threshold by alpha, or (adaptive, an adversary who knows the noise) on the worse side."""
    tests, runs, queries, beta = HiddenThreshold(scale=1.0, max_hits=max_hits, integer=False), 20_000, 50, 0.1
    rng = np.random.default_rng(10)
    thresholds = np.abs(rng.laplace(scale=1.0, size=(runs, max_hits))).max(axis=1)
    if not adaptive:
        thresholds = rng.laplace(scale=1.0, size=runs)
    worst = rng.laplace(scale=2.0, size=(runs, queries)).max(axis=1) + thresholds
    failed = np.mean(worst > tests.accuracy(queries, beta))
    assert failed < beta + 7 * math.sqrt(beta / runs)
    assert failed > beta / (2 if adaptive else 30)


def test_alpha_is_far_below_that_of_the_textbook():
    made = Sparse(epsilon=0.5, max_hits=3)
    assert made.accuracy(20, 0.2) == pytest.approx(121.8, abs=0.1)
    assert 4 * made.noise_scale * (math.log(20) + math.log(6 / 0.2)) == pytest.approx(307, abs=0.5)


def test_one_hit_is_above_threshold():
    assert Sparse(epsilon=0.3).noise_scale == AboveThreshold(epsilon=0.3).noise_scale
    assert Sparse(epsilon=0.3).accuracy(99, 0.1) == AboveThreshold(epsilon=0.3).accuracy(99, 0.1)


@pytest.mark.parametrize("rounds", [1, 2, 7, 300])
@pytest.mark.parametrize("round_epsilon", [0.01, 0.2, 1.5])
def test_pure_composition_agrees_with_privacy_loss_distributions(rounds, round_epsilon):
    curve = PureComposition(rounds=rounds, round_epsilon=round_epsilon)
    parameters = common.DifferentialPrivacyParameters(round_epsilon, 0)
    interval = round_epsilon / 64  # so that the peer rounds nothing up
    single = privacy_loss_distribution.from_privacy_parameters(parameters, value_discretization_interval=interval)
    peer, mine = single.self_compose(rounds), curve.to_pld(interval)
    for share in (0.0, 0.1, 0.33, 0.77, 0.999):
        epsilon = share * rounds * round_epsilon
        exact = pytest.approx(curve.delta(epsilon), rel=1e-6, abs=1e-12)
        assert peer.get_delta_for_epsilon(epsilon) == exact
        assert mine.get_delta_for_epsilon(epsilon) == exact
    assert curve.delta(rounds * round_epsilon) == 0
    assert curve.epsilon(0) == pytest.approx(rounds * round_epsilon)


@given(
    epsilon=st.floats(0.01, 300),
    delta=st.floats(1e-12, 0.5),
    max_hits=st.integers(1, 10**5),
)
def test_noise_is_enough_and_never_more_than_without_delta(epsilon, delta, max_hits):
    made = Sparse(epsilon=epsilon, delta=delta, max_hits=max_hits)
    assert made.curve.delta(epsilon) <= delta
    assert made.noise_scale <= Sparse(epsilon=epsilon, max_hits=max_hits).noise_scale


def test_guarantee_has_the_whole_curve():
    mechanism = Sparse(epsilon=1.0, delta=1e-6, max_hits=1000)
    assert (mechanism.guarantee.epsilon, mechanism.guarantee.delta) == (1.0, 1e-6)
    assert mechanism.guarantee.curve.epsilon(1e-6) == pytest.approx(1.0, abs=1e-3)
    assert Sparse(epsilon=1.0, max_hits=10).guarantee.curve.delta(1.0) == 0


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
    if delta == 0:
        assert mechanism.noise_scale == pytest.approx(2 * c / (8 / 9 * epsilon), rel=1e-12)
        assert mechanism.value_scale == pytest.approx(9 * c / epsilon, rel=1e-12)
    else:
        of_values = PureComposition(rounds=c, round_epsilon=1 / mechanism.value_scale)
        assert 0.99 * delta / 2 < of_values.delta(epsilon / 9) <= delta / 2
    assert mechanism.accuracy(k, beta) == max(
        mechanism.choice.accuracy(k, beta / 2), mechanism.value_scale * math.log(2 * c / beta)
    )
    assert mechanism.accuracy(2, beta) == mechanism.value_scale * math.log(2 * c / beta), "few queries: values decide"


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
    assert 0.85 < approximate.curve.epsilon(1e-6) < 1


def test_values_have_a_ninth():
    mechanism = NumericSparse(epsilon=1.0, max_hits=7)
    assert mechanism.max_hits / mechanism.value_scale == pytest.approx(1 / 9, rel=1e-12)
    assert mechanism.choice == Sparse(epsilon=8 / 9, max_hits=7)


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
def test_same_as_one_query_at_a_time_adaptive(seed, min_hits, branches, noise_law, values, cuts):
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
