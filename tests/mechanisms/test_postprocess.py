import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.noise.continuous import Exponential, Laplace
from privstream.mechanisms.noise.discrete import DiscreteLaplace, Geometric
from privstream.mechanisms.noise.gaps import difference_tail, excess_quantile, mean
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.postprocess import (
    blue_from_gaps,
    combine_by_variance,
    gap_lower_bound,
    gap_p_value,
    ratio_bounds,
)
from scipy import integrate, stats

LAWS = [Exponential, Laplace, Geometric, DiscreteLaplace]
NUMBERS = st.floats(-1e6, 1e6)


def least_squares(measures, gaps, v, w):
    """The same estimates by generalised least squares with explicit matrices."""
    k = len(measures)
    differences = np.eye(k)[:-1] - np.eye(k)[1:]
    design = np.vstack([np.eye(k), differences])
    covariance = np.block(
        [
            [v * np.eye(k), np.zeros((k, k - 1))],
            [np.zeros((k - 1, k)), w * differences @ differences.T],
        ]
    )
    weighted = design.T @ np.linalg.inv(covariance)
    spread = np.linalg.inv(weighted @ design)
    return spread @ weighted @ np.concatenate([measures, gaps]), np.diag(spread)


@given(
    numbers=st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12),
    v=st.floats(0.1, 10),
    w=st.floats(0.1, 10),
)
def test_blue_is_generalised_least_squares(numbers, v, w):
    measures, gaps = np.array(numbers)[:, 0], np.array(numbers)[1:, 1]
    expected, variances = least_squares(measures, gaps, v, w)
    estimates = blue_from_gaps(measures, gaps, measure_variance=v, noise_variance=w)
    np.testing.assert_allclose(estimates.values, expected, rtol=1e-7, atol=1e-4)
    np.testing.assert_allclose(estimates.variance, variances, rtol=1e-7)


@pytest.mark.parametrize("top", [1, 2, 10, 50])
@pytest.mark.parametrize(
    ("ratio", "reduction"), [(1.0, lambda k: (k - 1) / 2 / k), (0.5, lambda k: (2 * k - 2) / 3 / k)]
)
def test_blue_cuts_the_error_as_published(top, ratio, reduction):
    """50% for Laplace noise and 66% for exponential noise on counting queries, as k grows."""
    estimates = blue_from_gaps(np.zeros(top), np.zeros(top - 1), measure_variance=8.0, noise_variance=8.0 * ratio)
    assert 1 - estimates.variance / 8 == pytest.approx(reduction(top), rel=1e-12, abs=1e-12)


def test_blue_with_exact_gaps_averages_all_measures():
    estimates = blue_from_gaps([10.0, 9.0, 8.5], [2.0, 1.0], measure_variance=3.0, noise_variance=0.0)
    assert estimates.values.tolist() == pytest.approx([10 + 5 / 6, 8 + 5 / 6, 7 + 5 / 6])
    assert estimates.variance == pytest.approx(1.0)


@pytest.mark.slow
def test_blue_variance_holds_in_simulation():
    runs, top, v, w = 20_000, 6, 2.0, 1.0
    rng = np.random.default_rng(11)
    errors = rng.exponential(math.sqrt(w), (runs, top))
    measures = rng.laplace(scale=math.sqrt(v / 2), size=(runs, top))
    estimates = [
        blue_from_gaps(m, e[:-1] - e[1:], measure_variance=v, noise_variance=w)
        for m, e in zip(measures, errors, strict=True)
    ]
    squares = np.array([estimate.values**2 for estimate in estimates])
    assert abs(squares.mean() - estimates[0].variance) < 6.5 * squares.mean(axis=1).std() / math.sqrt(runs)
    # With weights for other noise the error is larger: the test has power.
    wrong = [
        blue_from_gaps(m, e[:-1] - e[1:], measure_variance=v, noise_variance=0.1 * w).values
        for m, e in zip(measures, errors, strict=True)
    ]
    assert np.square(wrong).mean() > estimates[0].variance + 6.5 * squares.mean(axis=1).std() / math.sqrt(runs)


@given(first=NUMBERS, second=NUMBERS, v=st.floats(0.01, 100), w=st.floats(0.01, 100))
def test_combination_is_the_weighted_mean(first, second, v, w):
    combined = combine_by_variance([first], v, [second], w)
    expected = (first / v + second / w) / (1 / v + 1 / w)
    assert combined.values[0] == pytest.approx(expected, rel=1e-9, abs=1e-6)
    assert combined.variance == pytest.approx(1 / (1 / v + 1 / w), rel=1e-12)
    assert combined.variance <= min(v, w)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scales", [(1.3, 0.7), (0.7, 1.3), (2.0, 2.0), (5.0, 5.0001), (0.3, 4.0)])
def test_difference_of_noises_has_the_stated_tail(law, scales):
    query, threshold = law(scales[0]), law(scales[1])
    if law in (Geometric, DiscreteLaplace):
        k = np.arange(0 if law is Geometric else -500, 501)
        pmf = np.convolve(query.pmf(k), threshold.pmf(k)[::-1])
        support = np.arange(len(pmf)) - (len(k) - 1)
        for x in (-9, -1, 0, 1, 8):
            assert difference_tail(query, threshold, x) == pytest.approx(pmf[support > x].sum(), abs=1e-12)
        return
    density = stats.expon.pdf if law is Exponential else stats.laplace.pdf
    for x in (-9.0, -0.5, 0.0, 0.5, 8.0):

        def integrand(b, x=x):
            return float(density(b, scale=threshold.scale) * (1 - query.cdf(x + b)))

        start = 0.0 if law is Exponential else -200.0
        tail = integrate.quad(integrand, start, 200.0, points=[p for p in (0.0, -x) if start <= p], limit=500)[0]
        assert difference_tail(query, threshold, x) == pytest.approx(tail, abs=1e-7)


@pytest.mark.parametrize("t", [0.0, 0.3, 2.0, 11.0])
@pytest.mark.parametrize(("e0", "e1"), [(0.5, 1.7), (1.7, 0.5), (0.9, 0.9)])
def test_laplace_tail_is_lemma_3(e0, e1, t):
    lemma = 1 - (
        (2 + e0 * t) / 4 * math.exp(-e0 * t)
        if e0 == e1
        else (e0**2 * math.exp(-e1 * t) - e1**2 * math.exp(-e0 * t)) / (2 * (e0**2 - e1**2))
    )
    assert 1 - difference_tail(Laplace(1 / e1), Laplace(1 / e0), t) == pytest.approx(lemma, rel=1e-12)


@pytest.mark.parametrize("law", LAWS)
@given(a=st.floats(0.2, 1e6), c=st.floats(0.2, 1e6), beta=st.floats(1e-6, 0.9))
def test_quantile_inverts_the_tail(law, a, c, beta):
    query, threshold = law(a), law(c)
    x = excess_quantile(query, threshold, beta) + mean(query) - mean(threshold)
    if law in (Geometric, DiscreteLaplace):
        assert difference_tail(query, threshold, round(x)) <= beta < difference_tail(query, threshold, round(x) - 1)
    else:
        assert difference_tail(query, threshold, x + 1e-5 * (a + c)) <= beta + 1e-12
        assert difference_tail(query, threshold, x - 1e-5 * (a + c)) >= beta - 1e-12


@pytest.mark.parametrize("law", LAWS)
def test_lower_bound_covers_as_often_as_it_says_and_not_more(law):
    runs, confidence = 100_000, 0.9
    query, threshold = law(30.0), law(20.0)
    centre = mean(query) - mean(threshold)
    errors = query.draw(SeededNoise(1), runs) - threshold.draw(SeededNoise(2), runs) - centre
    covered = gap_lower_bound(errors, confidence=confidence, query_law=query, threshold_law=threshold) <= 0
    slack = 6.5 * math.sqrt(confidence * (1 - confidence) / runs)
    assert confidence - slack <= covered.mean() <= confidence + slack + 0.01
    # Bounds for noise that is 30% smaller fail.
    wrong = gap_lower_bound(errors, confidence=confidence, query_law=law(21.0), threshold_law=law(14.0)) <= 0
    assert wrong.mean() < confidence - slack


def test_p_value_is_valid_at_the_edge_of_the_hypothesis():
    """Two equally good candidates: the hypothesis is only just false, and p-values are uniform."""
    uniform = (np.arange(1000) + 0.5) / 1000
    gaps = np.log((2 - uniform) / uniform)  # survival 2 / (1 + e^g)
    np.testing.assert_allclose(gap_p_value(gaps), uniform, rtol=1e-12)
    assert gap_p_value([math.log(2 / 0.05 - 1)])[0] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: gap_p_value([-0.1]), ValueError, "gaps must be >= 0"),
        (lambda: gap_p_value([math.nan]), ValueError, "gaps must be finite"),
        (
            lambda: blue_from_gaps([1.0], [1.0], measure_variance=1, noise_variance=1),
            ValueError,
            "gaps must be one fewer than measures, got 1 for 1",
        ),
        (
            lambda: blue_from_gaps([1.0], [], measure_variance=0, noise_variance=1),
            ValueError,
            "measure_variance must be finite and > 0, got 0",
        ),
        (lambda: combine_by_variance([1.0], 0.0, [1.0], 1.0), ValueError, "first_variance must be > 0"),
        (
            lambda: gap_lower_bound([1.0], confidence=1.0, query_law=Laplace(1.0), threshold_law=Laplace(1.0)),
            ValueError,
            "confidence must be in (0, 1), got 1.0",
        ),
        (
            lambda: gap_lower_bound([1.0], confidence=0.9, query_law=Laplace(1.0), threshold_law=Geometric(1.0)),
            TypeError,
            "laws must be of one kind, got Laplace and Geometric",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def ratios_held(scale, runs=20_000):
    """Return the share of intervals that hold a ratio of 0.3, of those that are bounded, if noise is so much larger."""
    rng = np.random.default_rng(3)
    above, below = 30 + 5 * scale * rng.standard_normal(runs), 100 + 20 * scale * rng.standard_normal(runs)
    found = ratio_bounds(above, np.full(runs, 5.0), below, np.full(runs, 20.0))
    known = ~np.isnan(found.values)
    assert known.mean() > 0.98
    return np.mean((found.lower <= 0.3) & (found.upper >= 0.3) & known) / known.mean()


def test_ratios_are_in_their_intervals():
    """In 95% of cases; not with noise that is larger by 30%."""
    assert abs(ratios_held(1.0) - 0.95) < 6 * math.sqrt(0.95 * 0.05 / 20_000)
    assert ratios_held(1.3) < 0.95 - 6 * math.sqrt(0.95 * 0.05 / 20_000)


def test_ratios_of_what_may_be_nothing_are_not_given():
    found = ratio_bounds([5.0, 5.0, -1.0], [1.0] * 3, [1.9, 2.1, 50.0], [1.0] * 3)
    assert np.isnan(found.values).tolist() == [True, False, False]
    assert found.values[2] == found.lower[2] == 0.0 < found.upper[2] < 0.1
    exact = ratio_bounds([1.0], [0.0], [4.0], [0.0])
    assert (exact.values, exact.lower, exact.upper) == (0.25, 0.25, 0.25)
    with pytest.raises(ValueError, match="denominator_stddevs must be >= 0"):
        ratio_bounds([1.0], [1.0], [1.0], [-1.0])
