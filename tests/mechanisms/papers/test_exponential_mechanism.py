import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.noise.sources import KeyedNoise, SeededNoise
from privstream.mechanisms.papers.selection import ExponentialMechanismWithGap, truncated_logistic
from privstream.mechanisms.postprocess import gap_p_value
from scipy import stats

GOLDEN = (7, 0.438567, 1.342994)
UTILITIES = np.array([0.0, 1.0, 2.5, 1.0])


def chosen_with_gaps(mechanism, utilities, runs, seed):
    root = SeededNoise(seed)
    selections = [mechanism.select(utilities, root.derive(run)) for run in range(runs)]
    return np.array([s.candidate for s in selections]), np.array([s.gap for s in selections])


@given(theta=st.floats(-200, 700), uniform=st.floats(1e-12, 1 - 1e-12))
def test_truncated_logistic_inverts_its_survival(theta, uniform):
    gap = truncated_logistic(theta, uniform)
    assert gap >= 0
    # (1 + e^theta) / (e^theta + e^gap) in logarithms.
    assert np.logaddexp(0, theta) - np.logaddexp(theta, gap) == pytest.approx(math.log(uniform), rel=1e-9, abs=1e-9)


@pytest.mark.slow
def test_both_forms_have_the_law_of_theorem_10():
    """Candidates by their weights, gaps as a truncated logistic; the law of a scale that is 30% off is rejected."""
    runs, mechanism = 12_000, ExponentialMechanismWithGap(epsilon=2.0)
    assert mechanism.utility_scale == 1.0
    candidates, gaps = chosen_with_gaps(mechanism, UTILITIES, runs, 1)
    root = SeededNoise(2)
    drawn = np.array([mechanism.gap(UTILITIES, 2, root.derive(run)).gap for run in range(runs)])

    def p_values(scale):
        weights = np.exp(UTILITIES / scale)
        yield stats.chisquare(np.bincount(candidates, minlength=4), runs * weights / weights.sum()).pvalue
        theta = UTILITIES[2] / scale - math.log(weights.sum() - weights[2])

        def cdf(gap):
            return 1 - (1 + math.exp(theta)) / (math.exp(theta) + np.exp(gap))

        yield stats.kstest(gaps[candidates == 2], cdf).pvalue
        yield stats.kstest(drawn, cdf).pvalue

    assert min(p_values(1.0)) > 1e-9
    assert max(p_values(1.3)) < 1e-9


def test_mean_gap_is_theorem_6():
    """The mean over a fine grid of uniform numbers: an integral, without chance."""
    mechanism = ExponentialMechanismWithGap(epsilon=2.0)
    theta = mechanism.location(UTILITIES, 2)
    assert theta == pytest.approx(2.5 - math.log(1 + 2 * math.e))
    mean = np.mean([truncated_logistic(theta, uniform) for uniform in (np.arange(20_000) + 0.5) / 20_000])
    assert mean == pytest.approx((1 + math.exp(-theta)) * math.log1p(math.exp(theta)), rel=1e-4)


@pytest.mark.slow
def test_p_values_are_valid_and_have_power():
    """Rejected at level alpha no more often than alpha when another candidate is better, often when it is not."""
    runs, mechanism = 6000, ExponentialMechanismWithGap(epsilon=1.0)
    utilities = np.array([0.0, 0.05, -1.0, -2.0])
    candidates, gaps = chosen_with_gaps(mechanism, utilities, runs, 4)
    worse = gap_p_value(gaps[candidates != 1])
    for alpha in (0.01, 0.05, 0.3):
        assert (worse <= alpha).mean() <= alpha + 6.2 * math.sqrt(alpha * (1 - alpha) / len(worse))
    _, clear = chosen_with_gaps(mechanism, np.array([0.0, 30.0]), 300, 5)
    assert (gap_p_value(clear) <= 0.05).mean() > 0.9


def test_accuracy_holds():
    runs, beta, mechanism = 2000, 0.2, ExponentialMechanismWithGap(epsilon=1.0, sensitivity=3.0)
    alpha = mechanism.accuracy(10, beta)
    candidates, _ = chosen_with_gaps(mechanism, np.repeat([alpha, 0.0], [1, 9]), runs, 6)
    assert (candidates != 0).sum() <= runs * beta + 6.2 * math.sqrt(runs * beta * (1 - beta))


def test_monotone_utilities_need_half_the_scale():
    assert ExponentialMechanismWithGap(epsilon=1.0, sensitivity=3.0).utility_scale == 6.0
    assert ExponentialMechanismWithGap(epsilon=1.0, sensitivity=3.0, monotone=True).utility_scale == 3.0


def test_extreme_utilities():
    mechanism = ExponentialMechanismWithGap(epsilon=2.0)
    selection = mechanism.select([-1e9, 0.0, 1e9], SeededNoise(1))
    assert selection.candidate == 2
    assert selection.gap == pytest.approx(1e9, rel=1e-6)
    assert mechanism.gap([-1e9, 0.0, 1e9], 2, SeededNoise(1)).gap == pytest.approx(1e9, rel=1e-6)
    assert 0 <= mechanism.gap([-1e9, 0.0, 1e9], 0, SeededNoise(1)).gap < 100


def test_replay_with_other_data_draws_other_noise():
    mechanism, noise = ExponentialMechanismWithGap(epsilon=2.0), SeededNoise(6)
    for gap in (
        lambda shift: mechanism.select([90.0 + shift, 0.0], noise).gap,
        lambda shift: mechanism.gap([90.0 + shift, 0.0], 0, noise).gap,
    ):
        assert gap(0) == gap(0)
        assert len({round(gap(shift) - shift, 6) for shift in range(10)}) == 10


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: ExponentialMechanismWithGap(epsilon=1, sensitivity=-1),
            ValueError,
            "sensitivity must be finite and > 0, got -1",
        ),
        (
            lambda: ExponentialMechanismWithGap(epsilon=1e-200, sensitivity=1e200),
            ValueError,
            "epsilon must give a finite utility scale > 0, got 1e-200",
        ),
        (
            lambda: ExponentialMechanismWithGap(epsilon=1, monotone=True, neighbouring="replace_one"),
            ValueError,
            "monotone must be False for replace_one: one count may grow while another one shrinks",
        ),
        (
            lambda: ExponentialMechanismWithGap(epsilon=1).select([1.0], SeededNoise(1)),
            ValueError,
            "utilities must be one-dimensional and at least 2, got shape (1,)",
        ),
        (
            lambda: ExponentialMechanismWithGap(epsilon=1).select([1.0, math.inf], SeededNoise(1)),
            ValueError,
            "utilities must be finite, also in units of utility_scale",
        ),
        (
            lambda: ExponentialMechanismWithGap(epsilon=1).gap([1.0, 2.0], 2, SeededNoise(1)),
            ValueError,
            "index must be < 2, got 2",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_guarantee():
    guarantee = ExponentialMechanismWithGap(epsilon=0.3, sensitivity=2.0).guarantee
    assert (guarantee.epsilon, guarantee.delta) == (0.3, 0.0)
    assert "no utility by more than 2" in guarantee.paragraph()


def test_golden():
    mechanism, key = ExponentialMechanismWithGap(epsilon=1.0), KeyedNoise(b"a key for tests only", "golden")
    utilities = np.arange(10.0) * 3 % 11
    selection = mechanism.select(utilities, key)
    assert (selection.candidate, *np.round([selection.gap, mechanism.gap(utilities, 7, key).gap], 6)) == GOLDEN
