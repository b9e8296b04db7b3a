"""Sparse vectors, top-k with gaps and the exponential mechanism: slow references, laws, budgets, and what gaps tell."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.pld import common, privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.checks import BudgetSpent
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace, Geometric
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.postprocess import blue_from_gaps, gap_p_value
from privstream.mechanisms.privacy.accounting import PureComposition
from privstream.mechanisms.privacy.guarantee import guarantee_record, read_guarantee
from privstream.mechanisms.selection.sparse_vector import SparseVector, excess_quantile, leaders
from privstream.mechanisms.selection.top_k import (
    ExponentialMechanismWithGap,
    MeasuredTopK,
    NoisyTopK,
    gaps_between,
    truncated_logistic,
)
from privstream.mechanisms.views.tables import ratio_bounds
from scipy import stats

NUMBERS = st.floats(-1e6, 1e6)
VARIANTS = [
    {"publish": "hits", "max_hits": 5},
    {"publish": "values", "max_hits": 5, "delta": 1e-3},
    {"publish": "gaps", "max_hits": 5},
    {"publish": "gaps", "max_hits": 3, "branches": 3, "monotone": True, "margin": 0.5},
]


def run(mechanism, values, noise, **options):
    return mechanism.step(mechanism.initial_state(), values, noise, **options)


def one_at_a_time(made, values, noise):
    """The algorithms as they are printed, one query at a time."""
    source, hits, numbers, units = made._source(noise), [], [], 0
    for i, value in enumerate(values):
        at, place = np.array([i], np.uint64), np.array([0 if made.publish == "gaps" else sum(hits)], np.uint64)
        barrier = made.threshold + made.threshold_law.draw(source.derive("threshold"), place)[0]
        branch = None
        for j in reversed(range(made.branches)):
            own = source.derive("query", j)
            label = own.derive("value").bind(at, np.array([value])) if made.publish == "gaps" else at
            law, centre = made.query_law(j), 0.0
            if made.publish == "gaps":
                centre = law.mean - made.threshold_law.mean
            gap = value + law.draw(own, label)[0] - barrier - centre
            if gap >= made.least_gap(j):
                branch = j
                numbers.append(gap)
                break
        hits.append(branch is not None)
        units += 0 if branch is None else 2.0**-branch
        if units > made.max_hits - 1:
            break
    return hits, numbers


@pytest.mark.parametrize("options", VARIANTS)
@given(
    seed=st.integers(0, 10**6),
    values=st.lists(st.integers(-60, 30), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
)
def test_same_as_one_query_at_a_time_in_pieces_of_any_length(options, seed, values, cuts):
    made = SparseVector(epsilon=1.0, threshold=20, **options)
    hits, gaps = one_at_a_time(made, values, SeededNoise(seed))
    state, found, numbers = made.initial_state(), [], []
    for start, stop in itertools.pairwise([0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]):
        if not made.halted(state):
            state, answers = made.step(state, np.array(values[start:stop], np.int64), SeededNoise(seed))
            found += answers.hits.tolist()
            numbers += answers.numbers.tolist()
    assert found == hits
    assert (state.asked, state.hits) == (len(hits), sum(hits))
    if made.publish == "gaps":
        assert numbers == pytest.approx(gaps)
    else:
        assert len(numbers) == (sum(hits) if made.publish == "values" else 0)


@pytest.mark.parametrize("options", VARIANTS)
def test_a_run_halts_and_says_what_it_has_used(options):
    made = SparseVector(epsilon=0.5, threshold=1000, **options)
    values = np.zeros(400, np.int64)
    values[10:] = 10**6
    assert made.spent(made.initial_state()) == 0
    quiet, _ = run(made, values[:10], SeededNoise(1))
    assert 0 < made.spent(quiet) <= made.epsilon
    state, answers = run(made, values, SeededNoise(1))
    assert made.halted(state) and answers.hits[-1]
    assert answers.hits.sum() == state.hits == made.most_hits
    assert made.spent(quiet) <= made.spent(state) <= made.epsilon * (1 + 1e-12)
    with pytest.raises(BudgetSpent, match="the run has halted"):
        made.step(state, [0], SeededNoise(1))


@pytest.mark.parametrize("options", VARIANTS)
def test_accuracy_holds(options):
    """Queries that are alpha above the threshold are found, and those as far below are not, but for beta of runs."""
    made, runs, beta = SparseVector(epsilon=2.0, **options), 300, 0.2
    alpha = math.floor(made.accuracy(12, beta)) + 1
    values, above = np.full(12, -alpha), [2, 7, 11][: made.max_hits]
    values[above] = alpha
    root = SeededNoise(5)
    wrong = 0
    for number in range(runs):
        _, answers = run(made, values, root.derive(number))
        right = np.flatnonzero(answers.hits).tolist() == [at for at in above if at < len(answers.hits)]
        if made.publish == "values":
            right &= bool(np.all(np.abs(answers.numbers - alpha) <= alpha))
        wrong += not right
    assert wrong <= runs * beta + 6.2 * math.sqrt(runs * beta * (1 - beta))


@pytest.mark.parametrize(("epsilon", "max_hits", "scale"), [(1.0, 1, 2.0), (0.5, 10, 40.0)])
def test_noise_without_delta_is_the_formula(epsilon, max_hits, scale):
    made = SparseVector(epsilon=epsilon, max_hits=max_hits)
    assert made.threshold_scale == pytest.approx(scale, rel=1e-12)
    assert made.query_scale == 2 * made.threshold_scale
    numeric = SparseVector(epsilon=epsilon, max_hits=max_hits, publish="values")
    assert numeric.threshold_scale == pytest.approx(scale * 9 / 8)
    assert numeric.value_scale == pytest.approx(9 * max_hits / epsilon)


@pytest.mark.parametrize("max_hits", [100, 1000, 10_000])
def test_noise_with_delta_is_that_of_exact_composition(max_hits):
    made = SparseVector(epsilon=1.0, delta=1e-6, max_hits=max_hits)
    textbook = math.sqrt(32 * max_hits * math.log(1e6))
    assert 2.45 < textbook / made.threshold_scale < 2.9
    assert 0.999 * 1e-6 < made.curve.delta(1.0) <= 1e-6
    numeric = SparseVector(epsilon=1.0, delta=1e-6, max_hits=max_hits, publish="values")
    assert numeric.curve.delta(1.0) <= 1e-6
    for share, loss in ((8 / 9, 2 / numeric.threshold_scale), (1 / 9, 1 / numeric.value_scale)):
        part = PureComposition(rounds=max_hits, round_epsilon=loss)
        assert 0.99 * 1e-6 / 2 < part.delta(share) <= 1e-6 / 2


@pytest.mark.parametrize(("epsilon", "delta"), [(1.3, 4.5e-7), (1.07553, 4.5e-7), (2.0, 1e-6)])
def test_whatever_the_grid_of_losses_the_curve_promises_its_epsilon_and_delta(epsilon, delta):
    for max_hits in (1, 3, 8, 40):
        made = SparseVector(epsilon=epsilon, delta=delta, max_hits=max_hits, publish="values")
        assert made.curve.delta(epsilon) <= delta


@given(epsilon=st.floats(0.01, 300), delta=st.floats(1e-12, 0.5), max_hits=st.integers(1, 10**5))
def test_noise_is_enough_and_never_more_than_without_delta(epsilon, delta, max_hits):
    made = SparseVector(epsilon=epsilon, delta=delta, max_hits=max_hits)
    assert made.curve.delta(epsilon) <= delta
    assert made.threshold_scale <= SparseVector(epsilon=epsilon, max_hits=max_hits).threshold_scale


@pytest.mark.parametrize("rounds", [1, 7, 300])
@pytest.mark.parametrize("round_epsilon", [0.01, 1.5])
def test_pure_composition_agrees_with_privacy_loss_distributions(rounds, round_epsilon):
    curve = PureComposition(rounds=rounds, round_epsilon=round_epsilon)
    parameters = common.DifferentialPrivacyParameters(round_epsilon, 0)
    interval = round_epsilon / 64  # so that the peer rounds nothing up
    single = privacy_loss_distribution.from_privacy_parameters(parameters, value_discretization_interval=interval)
    peer, mine = single.self_compose(rounds), curve.to_pld(interval)
    for share in (0.0, 0.33, 0.77, 0.999):
        epsilon = share * rounds * round_epsilon
        exact = pytest.approx(curve.delta(epsilon), rel=1e-6, abs=1e-12)
        assert peer.get_delta_for_epsilon(epsilon) == exact
        assert mine.get_delta_for_epsilon(epsilon) == exact
    assert curve.delta(rounds * round_epsilon) == 0


def test_values_have_their_law_and_noise_of_their_own():
    """A hit says that the query's own noise is high, at least about 10 here; the published value must not repeat it."""
    made = SparseVector(epsilon=4000.0, max_hits=2000, threshold=10, publish="values")
    _, answers = run(made, np.zeros(400_000, np.int64), SeededNoise(9))
    law = DiscreteLaplace(made.value_scale)
    assert len(answers.numbers) == 2000
    assert abs(answers.numbers.mean()) < 6.5 * math.sqrt(law.variance / 2000) < 1
    assert np.var(answers.numbers) == pytest.approx(law.variance, rel=0.3)


@pytest.mark.parametrize("publish", ["values", "gaps"])
def test_a_replay_repeats_and_other_data_draw_other_noise(publish):
    made = SparseVector(epsilon=40.0, max_hits=40, publish=publish)
    values, bars = np.full(40, 100), np.full(40, -(10**6))
    first, again, other = (
        run(made, v, SeededNoise(1), thresholds=bars)[1].numbers for v in (values, values, values + 1)
    )
    np.testing.assert_array_equal(first, again)
    assert len(set((other - first).tolist())) > 8


def test_selection_in_noisy_order_takes_the_largest():
    made = SparseVector(epsilon=8.0, max_hits=4, threshold=500, publish="gaps", monotone=True)
    found = made.select([30, 900, 40, 700, 50], SeededNoise(1))
    assert found.indices.tolist() == [1, 3]
    np.testing.assert_allclose(found.gaps, [400, 200], atol=40)
    assert found.spent == pytest.approx(made.threshold_epsilon + 2 * made.hit_epsilon)
    with pytest.raises(ValueError, match="publish must be gaps"):
        SparseVector(epsilon=1.0).select([1, 2], SeededNoise(1))


@pytest.mark.parametrize("scales", [(1.3, 0.7), (0.7, 1.3), (2.0, 2.0), (0.3, 4.0)])
def test_bounds_of_gaps_follow_the_difference_of_two_noises(scales):
    query, threshold = map(Geometric, scales)
    k = np.arange(0, 501)
    pmf = np.convolve(query.pmf(k), threshold.pmf(k)[::-1])
    support = np.arange(len(pmf)) - (len(k) - 1)
    for beta in (0.001, 0.05, 0.7):
        t = round(excess_quantile(query, threshold, beta) + query.mean - threshold.mean)
        assert pmf[support > t].sum() <= beta + 1e-12
        assert t == -1 or beta + 1e-12 < pmf[support > t - 1].sum() + 2e-12


@pytest.mark.parametrize("branches", [1, 3])
def test_lower_bounds_are_wrong_as_rarely_as_stated(branches):
    made = SparseVector(epsilon=1.0, max_hits=8, publish="gaps", branches=branches, margin=0.5)
    wrong, runs = 0, 2000
    for number in range(runs):
        _, answers = run(made, [0], SeededNoise(3).derive(number))
        wrong += int((made.lower_bounds(answers, 0.9) > 0).sum())
    assert wrong <= runs * 0.1 + 6.2 * math.sqrt(runs * 0.09)


@pytest.mark.parametrize("made", [SparseVector(epsilon=1.0), NoisyTopK(epsilon=1.0)])
@pytest.mark.parametrize(
    ("values", "error"), [([1.5, 2.0], TypeError), ([[1], [2]], ValueError), ([2**61, 0], ValueError)]
)
def test_values_are_integers_within_range_and_never_quoted(made, values, error):
    with pytest.raises(error) as caught:
        made.select(values, SeededNoise(1)) if isinstance(made, NoisyTopK) else run(made, values, SeededNoise(1))
    assert "1.5" not in str(caught.value) and str(2**61) not in str(caught.value)


@given(values=st.lists(st.integers(-4, 4), min_size=2, max_size=30), data=st.data())
def test_leaders_are_sorted_and_the_last_gap_is_what_the_last_could_lose(values, data):
    count = data.draw(st.integers(2, len(values)))
    totals = np.array(values)
    order = leaders(totals, count)
    assert order.tolist() == sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    gaps = gaps_between(totals, order)
    assert (gaps >= 0).all()
    assert gaps[:-1].tolist() == [values[a] - values[b] for a, b in itertools.pairwise(order[:-1])]
    last, rest = order[-2], [i for i in range(len(values)) if i not in order[:-1]]
    assert all((values[last] - gaps[-1], -last) > (values[i], -i) for i in rest)
    assert not all((values[last] - gaps[-1] - 1, -last) > (values[i], -i) for i in rest)


def test_hybrid_top_k_stops_at_the_threshold():
    made = NoisyTopK(epsilon=40.0, top=4, threshold=500, monotone=True)
    found = made.select([30, 900, 40, 700, 50], SeededNoise(1))
    assert found.indices.tolist() == [1, 3] and found.spent == 30.0
    np.testing.assert_allclose(500 + np.cumsum(found.gaps[::-1]), [700, 900], atol=4)


def test_top_k_accuracy_holds():
    made, runs, beta = NoisyTopK(epsilon=1.0, top=3), 400, 0.2
    alpha = math.floor(made.accuracy(12, beta)) + 1
    values = np.repeat([alpha, 0], [3, 9])
    wrong = sum(set(made.select(values, SeededNoise(5).derive(i)).indices.tolist()) != {0, 1, 2} for i in range(runs))
    assert wrong <= runs * beta + 6.2 * math.sqrt(runs * beta * (1 - beta))


@pytest.mark.parametrize(("releases", "items", "top"), [(1, 1, 1), (24, 1, 10), (3, 5, 2), (5, 2, 7)])
def test_the_budget_is_divided_by_all_that_one_person_changes(releases, items, top):
    made = MeasuredTopK(epsilon=0.8, top=top, releases=releases, items_per_release=items)
    # To select costs the same, however many counts a person moves in one direction; a measure costs each time.
    assert made.selection.noise_scale == pytest.approx(top * releases / 0.6)
    assert made.measurement == DiscreteLaplace(min(items, top) * releases / 0.2)
    assert made.guarantee.curve.epsilon(0.0) == made.guarantee.epsilon == 0.8


@pytest.mark.parametrize(("releases", "items", "top"), [(1, 1, 5), (24, 1, 5)])
def test_what_dp_accounting_composes_is_within_the_budget(releases, items, top):
    made = MeasuredTopK(epsilon=1.0, delta=1e-6, top=top, releases=releases, items_per_release=items, measure_share=0.5)
    interval = made.selection.epsilon / math.ceil(20 + made.selection.epsilon / 5e-4)  # its losses fit
    parameters = common.DifferentialPrivacyParameters(made.selection.epsilon, 0)
    whole = privacy_loss_distribution.from_privacy_parameters(
        parameters, value_discretization_interval=interval
    ).self_compose(releases)
    law, options = made.measurement, {"value_discretization_interval": interval, "use_connect_dots": True}
    if isinstance(law, DiscreteGaussian):
        one = privacy_loss_distribution.from_discrete_gaussian_mechanism(law.sigma, **options)
    else:
        one = privacy_loss_distribution.from_discrete_laplace_mechanism(1 / law.scale, **options)
    delta = whole.compose(one.self_compose(made.releases * min(top, items))).get_delta_for_epsilon(1.0)
    assert delta <= 1e-6
    assert read_guarantee(guarantee_record(made.guarantee)) == made.guarantee


@pytest.mark.parametrize("items", [1, 8])
def test_intervals_hold_also_where_the_noise_selects(items):
    runs, made, counts, outside = 400, MeasuredTopK(epsilon=1.0, top=8, items_per_release=items), np.zeros(40, int), 0
    for number in range(runs):
        found = made.release(counts, SeededNoise(4).derive(items, number))
        outside += bool(((counts[found.indices] < found.lower) | (counts[found.indices] > found.upper))[number % 8])
    assert outside <= runs * 0.05 + 6.2 * math.sqrt(runs * 0.05)


def test_estimates_have_the_stated_variance():
    """Counts far apart: the selection does not depend on the noise."""
    runs, counts = 1000, np.arange(12, 0, -1) * 5000
    made = MeasuredTopK(epsilon=1.0, top=6, items_per_release=6, measure_share=0.5)
    errors = [made.release(counts, SeededNoise(2).derive(number)).estimates - counts[:6] for number in range(runs)]
    assert np.var(errors) == pytest.approx(made.estimate_variance, rel=6.5 * math.sqrt(3 / runs))
    assert made.estimate_variance < 0.5 * made.measurement.variance


def test_other_parameters_have_other_noise():
    gaps = {NoisyTopK(epsilon=e).select([10**9, 0], SeededNoise(7)).gaps[0] for e in (0.01, 0.010000001)}
    shares = {
        replace(MeasuredTopK(epsilon=0.01), measure_share=s).release([10**9, 0], SeededNoise(6)).estimates[0]
        for s in (0.2, 0.2500001)
    }
    assert len(gaps) == len(shares) == 2


UTILITIES = np.array([0.0, 1.0, 2.5, 1.0])


@given(theta=st.floats(-200, 700), uniform=st.floats(1e-12, 1 - 1e-12))
def test_truncated_logistic_inverts_its_survival(theta, uniform):
    gap = truncated_logistic(theta, uniform)
    assert gap >= 0
    assert np.logaddexp(0, theta) - np.logaddexp(theta, gap) == pytest.approx(math.log(uniform), rel=1e-9, abs=1e-9)


def test_both_forms_of_the_exponential_mechanism_have_the_law_of_theorem_10():
    """Candidates by their weights, gaps as a truncated logistic; the law of a scale that is 50% off is rejected."""
    runs, made = 4000, ExponentialMechanismWithGap(epsilon=2.0)
    root = SeededNoise(1)
    chosen = [made.select(UTILITIES, root.derive(number)) for number in range(runs)]
    candidates, gaps = (np.array([getattr(one, name) for one in chosen]) for name in ("candidate", "gap"))
    drawn = np.array([made.gap(UTILITIES, 2, root.derive("gap", number)).gap for number in range(runs)])

    def p_values(scale):
        weights = np.exp(UTILITIES / scale)
        yield stats.chisquare(np.bincount(candidates, minlength=4), runs * weights / weights.sum()).pvalue
        theta = UTILITIES[2] / scale - math.log(weights.sum() - weights[2])

        def cdf(gap):
            return 1 - (1 + math.exp(theta)) / (math.exp(theta) + np.exp(gap))

        yield stats.kstest(gaps[candidates == 2], cdf).pvalue
        yield stats.kstest(drawn, cdf).pvalue

    assert min(p_values(1.0)) > 1e-9
    assert min(p_values(1.5)) < 1e-9
    assert ExponentialMechanismWithGap(epsilon=1.0, sensitivity=3.0, monotone=True).utility_scale == 3.0
    with pytest.raises(ValueError, match="utilities must be finite"):
        made.select([1.0, math.inf], SeededNoise(1))


def test_p_values_are_valid():
    """Rejected at level alpha no more often than alpha when another candidate is better."""
    made, utilities = ExponentialMechanismWithGap(epsilon=1.0), np.array([0.0, 0.05, -1.0])
    found = [made.select(utilities, SeededNoise(4).derive(number)) for number in range(3000)]
    worse = gap_p_value([one.gap for one in found if one.candidate != 1])
    for alpha in (0.05, 0.3):
        assert (worse <= alpha).mean() <= alpha + 6.2 * math.sqrt(alpha * (1 - alpha) / len(worse))


def least_squares(measures, gaps, v, w):
    """The same estimates by generalised least squares with explicit matrices."""
    k = len(measures)
    differences = np.eye(k)[:-1] - np.eye(k)[1:]
    design = np.vstack([np.eye(k), differences])
    zeros = np.zeros((k, k - 1))
    covariance = np.block([[v * np.eye(k), zeros], [zeros.T, w * differences @ differences.T]])
    weighted = design.T @ np.linalg.inv(covariance)
    spread = np.linalg.inv(weighted @ design)
    return spread @ weighted @ np.concatenate([measures, gaps]), np.diag(spread)


@given(
    numbers=st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12), v=st.floats(0.1, 10), w=st.floats(0.1, 10)
)
def test_blue_is_generalised_least_squares(numbers, v, w):
    measures, gaps = np.array(numbers)[:, 0], np.array(numbers)[1:, 1]
    expected, variances = least_squares(measures, gaps, v, w)
    estimates = blue_from_gaps(measures, gaps, measure_variance=v, noise_variance=w)
    np.testing.assert_allclose(estimates.values, expected, rtol=1e-7, atol=1e-4)
    np.testing.assert_allclose(estimates.variance, variances, rtol=1e-7)


@pytest.mark.parametrize("denominator", [5.0, 20.0, 100.0])
def test_ratios_hold_as_often_as_stated(denominator):
    rng, runs = np.random.default_rng(3), 20_000
    above, below = 10 + rng.normal(0, 2, runs), denominator + rng.normal(0, 3, runs)
    ratios, lower, upper = ratio_bounds(above, np.full(runs, 2.0), below, np.full(runs, 3.0))
    known = ~np.isnan(ratios)
    holds = (lower[known] <= 10 / denominator) & (10 / denominator <= upper[known])
    assert holds.mean() > 0.92
    assert np.all(known == (below > 1.959963984540054 * 3))
