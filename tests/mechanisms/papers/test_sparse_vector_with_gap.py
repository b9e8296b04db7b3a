import math

import numpy as np
import pytest
from privstream.mechanisms.checks import BudgetSpent
from privstream.mechanisms.noise.continuous import Exponential
from privstream.mechanisms.noise.discrete import Geometric
from privstream.mechanisms.noise.gaps import make_law
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.papers.sparse_vector import SparseVectorWithGap
from privstream.mechanisms.postprocess import combine_by_variance
from scipy import optimize

VARIANTS = [(law, integer) for law in ("exponential", "laplace") for integer in (False, True)]


def run(mechanism, values, noise, **options):
    return mechanism.step(mechanism.initial_state(), values, noise, **options)


@pytest.mark.parametrize("max_hits", [1, 5, 24])
def test_split_is_the_optimum_of_the_paper(max_hits):
    for monotone, constant in ((False, 4), (True, 1)):
        mechanism = SparseVectorWithGap(epsilon=0.7, max_hits=max_hits, monotone=monotone)
        share = 1 / (1 + math.cbrt(constant * max_hits**2))
        assert mechanism.threshold_epsilon == pytest.approx(0.7 * share, rel=1e-12)
        assert mechanism.gap_variance == pytest.approx((1 + math.cbrt(constant * max_hits**2)) ** 3 / 0.49, rel=1e-9)


@pytest.mark.parametrize(("noise_law", "integer"), VARIANTS)
@pytest.mark.parametrize("monotone", [False, True])
def test_split_minimises_the_variance(noise_law, integer, monotone):
    def variance(share):
        options = {"noise_law": noise_law, "integer": integer, "monotone": monotone, "threshold_share": share}
        return SparseVectorWithGap(epsilon=0.7, max_hits=8, **options).gap_variance

    best = optimize.minimize_scalar(variance, bounds=(0.01, 0.9), method="bounded").fun
    assert variance(None) <= best * (1.001 if integer else 1 + 1e-6)
    assert variance(0.5) > 1.5 * best


@pytest.mark.parametrize(("noise_law", "integer"), VARIANTS)
def test_hits_gaps_and_halt(noise_law, integer):
    mechanism = SparseVectorWithGap(epsilon=1.0, max_hits=3, threshold=1000, noise_law=noise_law, integer=integer)
    values = np.zeros(1000, dtype=np.int64)
    values[[10, 500, 501, 700]] = [9000, 8000, 7000, 6000]
    state, answers = run(mechanism, values, SeededNoise(1))
    assert np.flatnonzero(answers.hits).tolist() == [10, 500, 501]
    assert answers.answered == state.asked == 502
    assert answers.branches.tolist() == [0, 0, 0]
    np.testing.assert_allclose(answers.gaps, [8000, 7000, 6000], atol=300)
    assert mechanism.halted(state)
    assert mechanism.spent(state) == pytest.approx(1.0)
    np.testing.assert_allclose(mechanism.costs(answers), mechanism.hit_epsilon)
    np.testing.assert_allclose(mechanism.variances(answers), mechanism.gap_variance)
    with pytest.raises(BudgetSpent, match="hits must cost <= 3 times the full price"):
        mechanism.step(state, [0], SeededNoise(1))


def test_what_is_spent_grows_with_the_hits():
    mechanism = SparseVectorWithGap(epsilon=1.0, max_hits=4, threshold=1000, threshold_share=0.2)
    assert mechanism.spent(mechanism.initial_state()) == 0
    state, _ = run(mechanism, [0, 0, 9000], SeededNoise(1))
    assert mechanism.spent(state) == pytest.approx(0.4)
    state, _ = mechanism.step(state, [9000, 0], SeededNoise(1))
    assert mechanism.spent(state) == pytest.approx(0.6)


@pytest.mark.parametrize("integer", [False, True])
def test_gaps_are_unbiased_and_share_the_threshold(integer):
    runs = 1500
    mechanism = SparseVectorWithGap(epsilon=1.0, max_hits=5, integer=integer)
    root = SeededNoise(2)
    errors = np.array([run(mechanism, [9000] * 5, root.derive(i))[1].gaps - 9000 for i in range(runs)])
    deviation = math.sqrt(mechanism.gap_variance)
    assert abs(errors[:, 0].mean()) < 6.5 * deviation / math.sqrt(runs)
    threshold = make_law("exponential", 1 / mechanism.threshold_epsilon, integer=integer).variance
    assert np.cov(errors.T)[0, 1:].mean() == pytest.approx(threshold, rel=0.35)
    assert errors.var() == pytest.approx(mechanism.gap_variance, rel=0.25)
    # A variance that is 30% off in scale would be rejected.
    assert errors.var() != pytest.approx(1.69 * mechanism.gap_variance, rel=0.25)


@pytest.mark.parametrize(("noise_law", "limit"), [("laplace", 0.5), ("exponential", 2 / 3)])
def test_gaps_cut_the_error_of_measurements(noise_law, limit):
    """As in the paper: half of the budget selects, half measures, and the cut approaches its limit for many hits."""

    def cut(max_hits):
        selects = SparseVectorWithGap(epsilon=0.35, max_hits=max_hits, monotone=True, noise_law=noise_law)
        measured = 2 * (max_hits / 0.35) ** 2
        combined = combine_by_variance([0.0], measured, [0.0], selects.gap_variance)
        return 1 - combined.variance / measured

    assert cut(1) < cut(10) < cut(100) < limit
    assert cut(10**6) == pytest.approx(limit, abs=0.01)
    ratio = (1 + 10 ** (2 / 3)) ** 3 / (1 if noise_law == "laplace" else 2)
    assert cut(10) == pytest.approx(1 - ratio / (ratio + 100), rel=1e-9)


def test_monotone_queries_need_half_the_noise():
    plain, monotone = (SparseVectorWithGap(epsilon=1.0, threshold_share=0.5, monotone=m) for m in (False, True))
    assert plain.tests.query_law(0) == Exponential(4.0)
    assert monotone.tests.query_law(0) == Exponential(2.0)
    assert plain.tests.threshold_law() == monotone.tests.threshold_law() == Exponential(2.0)


def test_thresholds_may_come_with_the_queries():
    mechanism = SparseVectorWithGap(epsilon=1.0, max_hits=9, threshold=1000, integer=True)
    _, answers = run(mechanism, [500, 500, 500], SeededNoise(1), thresholds=[5000, -5000, 5000])
    assert answers.hits.tolist() == [False, True, False]
    with pytest.raises(ValueError, match="thresholds must be one number or 2 numbers"):
        run(mechanism, [1, 2], SeededNoise(1), thresholds=[1, 2, 3])


def test_lower_bounds_hold_for_queries_that_hit_for_sure():
    runs, confidence = 1000, 0.9
    mechanism = SparseVectorWithGap(epsilon=1.0, max_hits=1, integer=True)
    root = SeededNoise(7)
    bounds = [
        mechanism.lower_bounds(run(mechanism, [5000], root.derive(i))[1], confidence)[0] <= 5000 for i in range(runs)
    ]
    slack = 6.5 * math.sqrt(confidence * (1 - confidence) / runs)
    assert confidence - slack <= np.mean(bounds) <= confidence + slack + 0.05


def test_empty_step():
    mechanism = SparseVectorWithGap(epsilon=1.0)
    state, answers = run(mechanism, [], SeededNoise(1))
    assert state == mechanism.initial_state()
    assert (answers.answered, len(answers.gaps), len(answers.branches)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"epsilon": 1, "threshold": 0.5, "integer": True}, TypeError, "threshold must be an integer, got float"),
        (
            {"epsilon": 1e-13},
            ValueError,
            "epsilon must give a noise scale in [1e-6, 1e11], got a noise scale of 2.5874e+13",
        ),
        (
            {"epsilon": 1, "monotone": True, "neighbouring": "replace_one"},
            ValueError,
            "monotone must be False for replace_one: one count may grow while another one shrinks",
        ),
    ],
)
def test_parameters_are_checked(options, error, message):
    with pytest.raises(error) as caught:
        SparseVectorWithGap(**options)
    assert str(caught.value) == message


def test_whole_numbers_have_geometric_noise():
    tests = SparseVectorWithGap(epsilon=4.0, max_hits=3, integer=True).tests
    assert tests.query_law(0) == Geometric(tests.query_scale)
