"""Laws of noise, on integers and on numbers: exact masses, tails, draws, and what is refused."""

import math
from bisect import bisect_right
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import mass, words
from privstream.mechanisms.noise import discrete
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace, Geometric, IntegerLaw
from privstream.mechanisms.noise.sources import KeyedNoise
from scipy import special, stats

NOISE = KeyedNoise(b"integer laws test key")
DRAWS = 100_000
FALSE_ALARM = 1e-10
ONE = 1 << 128

scales = st.floats(1e-3, 1e4) | st.floats(1e-3, 1e12)


def p_value(sample, survival):
    """Chi-square of integers against a law, in bins of 200 expected draws or more."""
    edges = np.unique(np.quantile(np.append(sample, -sample), np.linspace(0, 1, 60)).astype(np.int64))
    masses = -np.diff(np.concatenate([[1.0], survival(edges), [0.0]]))
    counts = np.bincount(np.searchsorted(edges, sample), minlength=len(masses))
    observed, expected, pending = [], [], [0, 0.0]
    for count, likely in zip(counts, masses, strict=True):
        pending = [pending[0] + count, pending[1] + likely * len(sample)]
        if pending[1] >= 200:
            observed.append(pending[0])
            expected.append(pending[1])
            pending = [0, 0.0]
    observed[-1] += pending[0]
    expected[-1] += pending[1]
    return stats.chisquare(observed, expected).pvalue if len(observed) > 1 else float(observed[0] == len(sample))


def geometric_survival(scale):
    return lambda k: np.where(k < 0, 1.0, np.exp(-(k + 1) / scale))


def laplace_survival(scale):
    q = math.exp(-1 / scale)
    return lambda k: np.where(k >= 0, np.exp(-(k + 1.0) / scale) / (1 + q), 1 - np.exp(k / scale) / (1 + q))


def gaussian_survival(sigma):
    if sigma > 100:  # midpoint rule, error of order 1 / (24 sigma^2)
        return lambda k: special.ndtr(-(k + 0.5) / sigma)
    support = np.arange(-math.ceil(40 * sigma) - 1, math.ceil(40 * sigma) + 2)
    weights = np.exp(-0.5 * (support / sigma) ** 2)
    above = np.append(np.cumsum(weights[::-1])[::-1] / weights.sum(), 0.0)
    return lambda k: above[np.clip(k + 1 - support[0], 0, len(support))]


LAWS = [
    *((Geometric, scale, geometric_survival) for scale in (0.3, 4.0, 91.9, 92.1, 1000.0, 1e6, 1e12)),
    *((DiscreteLaplace, scale, laplace_survival) for scale in (0.4, 7.0, 45.9, 46.1, 3000.0, 1e9, 1e12)),
    *((DiscreteGaussian, sigma, gaussian_survival) for sigma in (0.6, 3.0, 250.0, 1000.0, 1000.5, 1e6, 5e8)),
]


@pytest.mark.parametrize(("law", "scale", "survival"), LAWS)
def test_the_law_is_accepted_and_one_30_percent_off_is_rejected(law, scale, survival):
    sample = law(scale).draw(NOISE.derive(law.__name__, str(scale)), DRAWS)
    assert sample.dtype == np.int64
    assert p_value(sample, survival(scale)) > FALSE_ALARM
    assert p_value(sample, survival(1.3 * scale)) < FALSE_ALARM


@pytest.mark.parametrize("sigma", [3e3, 1e9])
def test_wide_noise_is_as_wide_as_it_says_down_to_the_lowest_bits(sigma):
    sample = DiscreteGaussian(sigma).draw(NOISE.derive("width"), 2 * DRAWS)
    assert sample.var() == pytest.approx(sigma**2, rel=0.02)  # six deviations
    assert np.bincount(sample % 8).max() < 1.1 * len(sample) / 8


def assert_rounded(table, cdf):
    """Check the 128-bit numbers of a table (of long tables about 1000) to be nearest multiples of 2^-128."""
    cumulative = words(table)
    with mpmath.workprec(400):
        for j in range(0, len(cumulative), 1 + len(cumulative) // 1000):
            got = cumulative[j]
            assert abs(got - mpmath.ldexp(cdf(table.first + j), 128)) <= mpmath.mpf("0.5000001")


@pytest.mark.parametrize("scale", [0.01, 0.7, 5.3, 46.0])
def test_laplace_table_is_exact(scale):
    (table,) = discrete._geometric_tables(Fraction(scale), two_sided=True)

    def cdf(k):
        q = mpmath.exp(-1 / mpmath.mpf(scale))
        return q**-k / (1 + q) if k < 0 else 1 - q ** (k + 1) / (1 + q)

    assert_rounded(table, cdf)
    # What is beyond the table has less than half a unit of mass on either side.
    assert mpmath.ldexp(cdf(table.first - 1), 128) <= 0.5
    assert mpmath.ldexp(1 - cdf(table.first + len(table.high)), 128) <= 0.5


@pytest.mark.parametrize("scale", [0.01, 3.0, 5000.0, 1e9, 1e12])
@pytest.mark.slow
def test_geometric_digits_are_exact(scale):
    leading, *digits = discrete._geometric_tables(Fraction(scale), two_sided=False)
    unit = 8192 ** len(digits)

    def below(steps, unit):
        return -mpmath.expm1(-mpmath.mpf(steps * unit) / mpmath.mpf(scale))

    assert_rounded(leading, lambda k, u=unit: below(k + 1, u))
    for table in digits:
        unit //= 8192
        assert (table.first, len(table.high)) == (0, 8191)
        assert_rounded(table, lambda k, u=unit: below(k + 1, u) / below(8192, u))
    assert unit == 1


@given(scales, st.booleans(), st.floats(0, 30))
@settings(max_examples=30)
def test_digits_multiply_to_the_mass_function(scale, two_sided, times):
    tables = discrete._geometric_tables(Fraction(scale), two_sided=two_sided)
    k = int(times * scale)
    for value in {k, -1 - k} if two_sided else {k}:
        rest, expected = (value if value >= 0 else -1 - value), 1.0
        for table in reversed(tables[1:]):
            rest, digit = divmod(rest, 8192)
            expected *= mass(table, digit)
        expected *= mass(tables[0], rest if value >= 0 else -1 - rest)
        law = DiscreteLaplace(scale) if two_sided else Geometric(scale)
        assert expected == pytest.approx(float(law.pmf(value)), rel=1e-11)


@pytest.mark.parametrize("sigma", [0.05, 0.8, 6.5, 70.0])
def test_gaussian_table_is_exact(sigma):
    table = discrete._gaussian_table(Fraction(sigma))
    with mpmath.workprec(400):
        reach = math.ceil(20 * sigma) + 2
        weights = [mpmath.exp(-(k**2) / (2 * mpmath.mpf(sigma) ** 2)) for k in range(-reach, reach + 1)]
        sums = [mpmath.mpf(0)]
        for weight in weights:
            sums.append(sums[-1] + weight)
    assert_rounded(table, lambda k: sums[k + reach + 1] / sums[-1])


def weight(k, sigma):
    return mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * sigma**2))


@pytest.mark.parametrize("sigma", [1000.0001, 1500.0])
@pytest.mark.slow
def test_every_mass_is_that_of_a_discrete_gaussian(sigma):
    """The convolution of both digits, with 50 digits: off by up to 4e-33 at the narrowest law, by none beyond."""
    low, high = map(mpmath.mpf, DiscreteGaussian(sigma).digits)
    with mpmath.workdps(50):
        whole = mpmath.sqrt(low**2 + 256**2 * high**2)
        totals = [
            mpmath.fsum(weight(k, s) for k in range(-reach, reach + 1)) for s, reach in ((low, 9800), (high, 100))
        ]
        for value in (0, 64, 128, 192, 1000, 8000):
            mass = mpmath.fsum(weight(k, high) * weight(value - 256 * k, low) for k in range(-60, 61))
            ideal = weight(value, whole) / (whole * mpmath.sqrt(2 * mpmath.pi))
            assert abs(mass / (totals[0] * totals[1]) / ideal - 1) < (1.03e-32 if sigma < 1001 else 1e-40)


@pytest.mark.parametrize("law", [Geometric(6.0), DiscreteLaplace(6.0), DiscreteGaussian(6.0), DiscreteGaussian(0.3)])
def test_mass_functions(law):
    k = np.arange(-700, 701)
    masses = law.pmf(k)
    assert masses.sum() == pytest.approx(1, rel=1e-13)
    mean = masses @ k
    assert masses @ (k - mean) ** 2 == pytest.approx(law.variance, rel=1e-12)
    if isinstance(law, Geometric):
        assert mean == pytest.approx(law.mean, rel=1e-12)
        np.testing.assert_allclose(masses[k >= 0], stats.geom(-math.expm1(-1 / 6)).pmf(k[k >= 0] + 1), rtol=1e-9)
    if isinstance(law, DiscreteLaplace):
        np.testing.assert_allclose(masses, stats.dlaplace(1 / 6).pmf(k), rtol=1e-12)


@pytest.mark.parametrize("beta", [1e-30, 1e-9, 0.01, 0.2, 0.4999, 0.5, 0.7, 0.999])
@pytest.mark.parametrize("law", [*(law(scale) for law, scale, _ in LAWS if scale <= 1000)])
def test_tail_quantile_is_the_least(law, beta):
    z = law.tail_quantile(beta)
    reach = 80 * (law.sigma if isinstance(law, DiscreteGaussian) else law.scale)
    above = math.fsum(law.pmf(np.arange(z + 1, z + 5 + int(reach))))
    assert above <= beta * (1 + 1e-9)
    assert above + float(law.pmf(z)) > beta * (1 - 1e-9)


cumulative_lists = st.lists(st.integers(0, ONE - 1) | st.integers(ONE - 3, ONE - 1) | st.just(1 << 64), max_size=30)


@given(cumulative_lists.map(sorted), st.integers(-(2**40), 2**40), st.lists(st.integers(0, ONE - 1), max_size=5))
def test_quantile_is_bisection_on_128_bits(cumulative, first, others):
    # At, just below and just above every boundary, and wherever only the low words differ.
    points = {p for c in cumulative for d in (-1, 0, 1) if 0 <= (p := c + d) < ONE}.union(others, {0, ONE - 1})
    points |= {p ^ 1 << bit for p in points for bit in (1, 40, 63, 64, 90)}
    points = sorted(points)
    asked = np.array([(p >> 64, p & (2**64 - 1)) for p in points], dtype=np.uint64)
    law = IntegerLaw.from_cumulative(first, cumulative)
    assert law.quantile(asked).tolist() == [first + bisect_right(cumulative, p) for p in points]
    assert law.quantile(asked[:, None, :]).shape == (len(points), 1)


PARAMETERS = [Geometric(5.0), Geometric(1e7), DiscreteLaplace(5.0), DiscreteLaplace(1e7)]
PARAMETERS += [DiscreteGaussian(5.0), DiscreteGaussian(2e4), DiscreteGaussian(1000.0)]


@pytest.mark.parametrize("law", PARAMETERS)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=30), st.integers(0, 30))
@settings(max_examples=30)
def test_draws_do_not_depend_on_the_batch(law, labels, cut):
    labels = np.array(labels, dtype=np.uint64)
    whole = law.draw(NOISE, labels)
    assert np.concatenate([law.draw(NOISE, labels[:cut]), law.draw(NOISE, labels[cut:])]).tolist() == whole.tolist()
    assert law.draw(NOISE, labels[::-1])[::-1].tolist() == whole.tolist()
    assert law.draw(NOISE, len(labels)).tolist() == law.draw(NOISE, np.arange(len(labels), dtype=np.uint64)).tolist()
