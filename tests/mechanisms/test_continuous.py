import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.noise.continuous import Exponential, Gaussian, Gumbel, Laplace, signs, uniforms
from privstream.mechanisms.noise.sources import KeyedNoise
from scipy import stats

NOISE = KeyedNoise(b"continuous laws test key")
DRAWS = 100_000
FALSE_ALARM = 1e-10
LAWS = {
    Exponential: stats.expon,
    Laplace: stats.laplace,
    Gaussian: stats.norm,
    Gumbel: stats.gumbel_r,
}
GOLDEN = {
    Exponential: [2.1410505751729083, 0.6727218062895723, 0.45056807525113735],
    Laplace: [-2.1410505751729083, -0.6727218062895723, 0.45056807525113735],
    Gaussian: [1.5652201317988403, 0.6583430829506578, -0.47152477225000783],
    Gumbel: [2.0791858843492537, 0.3368744661690902, -0.013987308557142385],
}

laws = pytest.mark.parametrize("law", LAWS)


@laws
@pytest.mark.parametrize("scale", [0.01, 1.0, 2.5e6])
def test_the_law_is_accepted_and_one_30_percent_off_is_rejected(law, scale):
    sample = law(scale).draw(NOISE.derive(law.__name__), DRAWS)
    assert stats.kstest(sample, LAWS[law](scale=scale).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(sample, law(scale).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(sample, LAWS[law](scale=1.3 * scale).cdf).pvalue < FALSE_ALARM


@laws
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_closed_forms(law, scale):
    peer = LAWS[law](scale=scale)
    x = np.linspace(-5, 20, 101)
    np.testing.assert_allclose(law(scale).cdf(x), peer.cdf(x), rtol=1e-12, atol=1e-300)
    assert law(scale).mean == pytest.approx(peer.mean(), rel=1e-12, abs=1e-12)
    assert law(scale).variance == pytest.approx(peer.var(), rel=1e-12)
    for beta in (1e-300, 1e-20, 1e-6, 0.3, 0.5, 0.9):
        assert law(scale).tail_quantile(beta) == pytest.approx(peer.isf(beta), rel=1e-9, abs=1e-12)


@laws
def test_extreme_words_are_finite(law):
    top = 2**64 - 1
    words = np.array([[[0, 0]], [[0, 1]], [[top, 0]], [[top, top]]], dtype=np.uint64)

    class Extreme:
        def words(self, labels, lanes=1):
            return words

    sample = law(1.0).draw(Extreme(), 4)
    assert np.isfinite(sample).all()
    assert np.abs(sample).max() > 3.5


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), min_size=1))
def test_uniforms_are_inside_the_open_interval(pairs):
    words = np.array(pairs, dtype=np.uint64)
    u = uniforms(words)
    assert ((u > 0) & (u < 1)).all()
    exact = np.array([(high + 0.5) / 2**64 for high, _ in pairs])
    np.testing.assert_allclose(u, exact, rtol=2**-52)
    assert signs(words).tolist() == [1 - 2 * (low % 2) for _, low in pairs]


def test_uniforms_never_reach_zero_or_one():
    u = uniforms(np.array([[0, 0], [2**64 - 1, 0]], dtype=np.uint64))
    assert u.tolist() == [2.0**-65, 1 - 2.0**-53]


@laws
@given(st.integers(0, 30))
def test_batches_do_not_matter(law, cut):
    labels = np.arange(30, dtype=np.uint64)
    whole = law(2.0).draw(NOISE, labels)
    parts = [law(2.0).draw(NOISE, labels[:cut]), law(2.0).draw(NOISE, labels[cut:])]
    # Vector units may round the last digit of a logarithm differently at the end of an array.
    np.testing.assert_array_max_ulp(np.concatenate(parts), whole, maxulp=4)


@laws
def test_golden(law):
    np.testing.assert_allclose(law(1.0).draw(NOISE, 3), GOLDEN[law], rtol=1e-13)


@laws
def test_arguments(law):
    for scale, shown in [(0, "0"), (-1.0, "-1.0"), (math.nan, "nan"), (math.inf, "inf")]:
        with pytest.raises(ValueError, match=f"scale must be finite and > 0, got {shown}"):
            law(scale)
    with pytest.raises(TypeError, match="scale must be a number, got bool"):
        law(True)
    with pytest.raises(ValueError, match=r"beta must be in \(0, 1\), got 0"):
        law(1.0).tail_quantile(0)
    assert pickle.loads(pickle.dumps(law(2.0))) == law(2.0)
