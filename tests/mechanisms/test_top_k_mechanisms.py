"""Top-k with gaps, with measurements, and from noisy counts."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from grids import some_quick
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.free_gap.measured_top_k import MeasuredTopK
from privstream.mechanisms.free_gap.noisy_top_k import NoisyTopK, gaps_between, leaders
from privstream.mechanisms.guarantee_records import guarantee_record, read_guarantee
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace, Geometric
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.postprocess import blue_from_gaps
from privstream.mechanisms.privacy import noisy_counts
from scipy import stats

VARIANTS = [(law, integer) for law in ("exponential", "laplace") for integer in (False, True)]


@given(values=st.lists(st.integers(-4, 4), min_size=2, max_size=30), data=st.data())
def test_leaders_are_sorted_by_value_and_then_by_index(values, data):
    count = data.draw(st.integers(2, len(values)))
    noisy = np.array(values)
    order = leaders(noisy, count)
    assert order.tolist() == sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    gaps = gaps_between(noisy, order)
    assert (gaps >= 0).all()
    assert gaps[:-1].tolist() == [values[a] - values[b] for a, b in itertools.pairwise(order[:-1])]
    # The last gap is the most that the last one could lose and still be ahead of all that were not selected.
    last, rest = order[-2], [i for i in range(len(values)) if i not in order[:-1]]
    assert all((values[last] - gaps[-1], -last) > (values[i], -i) for i in rest)
    assert not all((values[last] - gaps[-1] - 1, -last) > (values[i], -i) for i in rest)


@pytest.mark.parametrize(("noise_law", "integer"), VARIANTS)
@pytest.mark.parametrize("top", [1, 5])
def test_finds_what_stands_out(noise_law, integer, top):
    values = np.zeros(200, dtype=np.int64)
    values[[150, 3, 77, 42, 199]] = [90_000, 70_000, 50_000, 30_000, 10_000]
    mechanism = NoisyTopK(epsilon=1.0, top=top, noise_law=noise_law, integer=integer)
    selection = mechanism.select(values, SeededNoise(1))
    assert selection.indices.tolist() == [150, 3, 77, 42, 199][:top]
    assert selection.gaps.dtype == (np.int64 if integer else np.float64)
    differences = [20_000, 20_000, 20_000, 20_000, 10_000][:top]
    np.testing.assert_allclose(selection.gaps, differences, atol=2 * mechanism.accuracy(200, 1e-9))
    assert selection.spent == 1.0


@pytest.mark.parametrize(("noise_law", "integer"), VARIANTS)
def test_noise_is_as_stated(noise_law, integer):
    for monotone, factor in ((False, 2), (True, 1)):
        mechanism = NoisyTopK(epsilon=0.7, top=10, monotone=monotone, noise_law=noise_law, integer=integer)
        scale = factor * 10 / 0.7
        assert mechanism.noise_scale == pytest.approx(scale)
        expected = scale**2 * (1 if noise_law == "exponential" else 2)
        assert mechanism.noise_variance == pytest.approx(expected, rel=1e-3 if integer else 1e-12)
        assert mechanism.gap_variance == 2 * mechanism.noise_variance


@pytest.mark.parametrize("noise_law", ["exponential", "laplace"])
@pytest.mark.slow
def test_gap_follows_the_difference_of_two_noises(noise_law):
    """Two queries far apart: the gap is their difference plus the difference of two discrete noises."""
    runs, law = 4000, (Geometric if noise_law == "exponential" else DiscreteLaplace)
    mechanism = NoisyTopK(epsilon=2.0, noise_law=noise_law, integer=True)
    root = SeededNoise(3)
    errors = np.array([mechanism.select([5000, 0], root.derive(run)).gaps[0] - 5000 for run in range(runs)])

    def p_value(scale):
        k = np.arange(-200, 201)
        noise = np.where((k >= 0) | (law is DiscreteLaplace), law(scale).pmf(k), 0.0)
        pmf = np.convolve(noise, noise[::-1])[len(k) - 1 - 200 : len(k) + 200]
        inner = slice(200 - 4, 200 + 5)
        expected = np.concatenate([[pmf[: inner.start].sum()], pmf[inner], [pmf[inner.stop :].sum()]])
        observed = np.bincount(np.clip(errors, -5, 5) + 5, minlength=11)
        return stats.chisquare(observed, runs * expected / expected.sum()).pvalue

    assert p_value(mechanism.noise_scale) > 1e-9
    assert p_value(1.3 * mechanism.noise_scale) < 1e-9


@pytest.mark.parametrize(("noise_law", "reduction"), [("laplace", 0.45), ("exponential", 0.6)])
@pytest.mark.slow
def test_gaps_cut_the_error_of_measurements(noise_law, reduction):
    """Half of the budget selects, half measures: by 50% or 66% for many queries, 45% or 60% for ten."""
    runs, top, epsilon = 1500, 10, 0.7
    mechanism = NoisyTopK(epsilon=epsilon / 2, top=top, integer=True, monotone=True, noise_law=noise_law)
    measure = DiscreteLaplace(top / (epsilon / 2))
    values = np.arange(20, 0, -1) * 5000
    root, direct, improved = SeededNoise(4), [], []
    for run in range(runs):
        selection = mechanism.select(values, root.derive("select", run))
        truth = values[selection.indices]
        measures = truth + measure.draw(root.derive("measure", run), top)
        estimates = blue_from_gaps(
            measures,
            selection.gaps[:-1],
            measure_variance=measure.variance,
            noise_variance=mechanism.noise_variance,
        )
        direct.append(np.square(measures - truth).mean())
        improved.append(np.square(estimates.values - truth).mean())
        expected = 1 - estimates.variance / measure.variance
    cut = 1 - np.mean(improved) / np.mean(direct)
    assert expected == pytest.approx(reduction, abs=0.001)
    assert cut == pytest.approx(expected, abs=6.5 * np.std(improved) / np.mean(direct) / math.sqrt(runs) + 0.04)


def test_other_parameters_have_other_noise():
    gaps = [
        NoisyTopK(epsilon=epsilon, integer=True).select([10**9, 0], SeededNoise(7)).gaps[0] - 10**9
        for epsilon in (0.01, 0.010000001)
    ]
    assert gaps[0] != gaps[1]


def test_order_of_labels_does_not_leak_into_the_inputs():
    values = np.arange(50)
    kept = values.copy()
    NoisyTopK(epsilon=1.0, top=4, integer=True).select(values, SeededNoise(8))
    np.testing.assert_array_equal(values, kept)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"epsilon": 1, "noise_law": "gaussian"},
            ValueError,
            "noise_law must be one of exponential, laplace, got 'gaussian'",
        ),
        ({"epsilon": 1, "monotone": 1}, TypeError, "monotone must be True or False, got int"),
        (
            {"epsilon": 1, "monotone": True, "neighbouring": "replace_one"},
            ValueError,
            "monotone must be False for replace_one: one count may grow while another one shrinks",
        ),
    ],
)
def test_parameters_are_checked(options, error, message):
    with pytest.raises(error) as caught:
        NoisyTopK(**options)
    assert str(caught.value) == message


def test_values_are_checked():
    mechanism = NoisyTopK(epsilon=1.0, top=2, integer=True)
    with pytest.raises(ValueError, match="values must contain more than 2 queries, got 2"):
        mechanism.select([1, 2], SeededNoise(1))
    with pytest.raises(TypeError, match="values must be integers with integer=True, got float64"):
        mechanism.select([1.0, 2.0, 3.0], SeededNoise(1))


def test_guarantee():
    guarantee = NoisyTopK(epsilon=0.3, top=4, neighbouring="replace_one").guarantee
    assert (guarantee.epsilon, guarantee.delta, guarantee.neighbouring) == (0.3, 0.0, "replace_one")
    assert "one selection" in guarantee.paragraph()
    assert guarantee.curve.delta(0.3) == 0


COUNTS = np.array([30, 700, 40, 900, 500, 0])


@pytest.mark.parametrize(("releases", "items", "top"), [(1, 1, 1), (24, 1, 10), (3, 5, 2), (5, 2, 7)])
def test_the_budget_is_divided_by_all_that_one_person_changes(releases, items, top):
    mechanism = MeasuredTopK(
        epsilon=0.8,
        top=top,
        releases=releases,
        items_per_release=items,
        measure_share=0.25,
    )
    # To select costs the same, however many counts a person moves in one direction; a measure costs each time.
    assert mechanism.selection.noise_scale == pytest.approx(top * releases / 0.6)
    assert isinstance(mechanism.measurement, DiscreteLaplace)
    assert mechanism.measurement.scale == pytest.approx(min(items, top) * releases / 0.2)
    assert mechanism.guarantee.epsilon == 0.8
    assert mechanism.guarantee.curve.epsilon(0.0) == 0.8


def composed_delta(mechanism):
    """Compose everything that one person of an add/remove pair touches, by dp-accounting alone."""
    interval = mechanism.selection.epsilon / math.ceil(20 + mechanism.selection.epsilon / 5e-4)  # its losses fit
    selection = pld.from_privacy_parameters(
        pld.common.DifferentialPrivacyParameters(mechanism.selection.epsilon, 0), value_discretization_interval=interval
    )
    measures = mechanism.releases * min(mechanism.top, mechanism.items_per_release)
    if isinstance(mechanism.measurement, DiscreteGaussian):
        measure = pld.from_discrete_gaussian_mechanism(
            mechanism.measurement.sigma, value_discretization_interval=interval, use_connect_dots=True
        )
    else:
        measure = pld.from_discrete_laplace_mechanism(
            1 / mechanism.measurement.scale, value_discretization_interval=interval, use_connect_dots=True
        )
    whole = selection.self_compose(mechanism.releases).compose(measure.self_compose(measures))
    return whole.get_delta_for_epsilon(mechanism.epsilon)


@pytest.mark.parametrize(
    ("releases", "items", "top", "law"),
    [
        (1, 1, 5, DiscreteLaplace),
        (1, 9, 10, DiscreteGaussian),
        (24, 1, 5, DiscreteGaussian),
        (200, 3, 4, DiscreteGaussian),
    ],
)
@pytest.mark.slow
def test_with_delta_there_is_less_noise_and_what_dp_accounting_composes_is_within_the_budget(releases, items, top, law):
    common = {"epsilon": 1.0, "top": top, "releases": releases, "items_per_release": items, "measure_share": 0.5}
    mechanism, pure = MeasuredTopK(delta=1e-6, **common), MeasuredTopK(**common)
    assert isinstance(mechanism.measurement, law)
    assert mechanism.selection.epsilon >= pure.selection.epsilon
    assert mechanism.measurement.variance <= pure.measurement.variance
    assert composed_delta(mechanism) <= 1e-6
    assert mechanism.guarantee.curve.delta(1.0) <= 1.02e-6
    if law is DiscreteGaussian:
        shrunk = replace(mechanism)
        shrunk.__dict__["measurement"] = DiscreteGaussian(mechanism.measurement.sigma * 0.7)
        assert composed_delta(shrunk) > 1e-6  # with 30% less noise the promise would be broken


@pytest.mark.parametrize(("epsilon", "releases"), [(3.71696, 4), (1.0, 1)])
def test_the_curve_promises_what_the_guarantee_says(epsilon, releases):
    """Rounded losses do not promise less: else the ledger could not be read after such a run."""
    mechanism = MeasuredTopK(epsilon=epsilon, delta=1.5e-5, releases=releases)
    assert read_guarantee(guarantee_record(mechanism.guarantee)) == mechanism.guarantee
    assert mechanism.guarantee.curve.delta(epsilon) <= 1.5e-5 * (1 + 1e-9)


def test_a_sigma_that_cannot_be_drawn_is_never_lowered(monkeypatch):
    monkeypatch.setattr(noisy_counts, "solve_sigma", lambda **_: 1.2e6)
    mechanism = MeasuredTopK(epsilon=5e-6, delta=1e-6, top=2, items_per_release=2)
    assert isinstance(mechanism.measurement, DiscreteLaplace)


def test_says_what_is_largest_by_how_much_and_how_large():
    found = MeasuredTopK(epsilon=50.0, top=3).release(COUNTS, SeededNoise(1))
    assert found.indices.tolist() == [3, 1, 4]
    np.testing.assert_allclose(found.gaps, [200, 200, 460], atol=6)
    np.testing.assert_allclose(found.estimates, [900, 700, 500], atol=6)
    assert np.all(np.abs(found.estimates - [900, 700, 500]) <= found.error_bounds + 6)
    assert found.gaps.dtype == np.int64


@pytest.mark.slow
def test_estimates_are_the_best_ones_and_their_variance_is_as_stated():
    """Counts far apart: the selection does not depend on the noise."""
    runs, counts = 4000, np.arange(12, 0, -1) * 5000
    mechanism = MeasuredTopK(epsilon=1.0, top=6, items_per_release=6, measure_share=0.5)
    errors = []
    for run in range(runs):
        found = mechanism.release(counts, SeededNoise(2).derive(run))
        assert found.indices.tolist() == [0, 1, 2, 3, 4, 5]
        errors.append(found.estimates - counts[:6])
    stated = mechanism.estimate_variance
    direct = mechanism.measurement.variance
    chained = blue_from_gaps([0.0] * 6, [0.0] * 5, measure_variance=direct, noise_variance=36 / 0.25)
    assert stated == pytest.approx(chained.variance, rel=1e-3)
    assert stated < 0.5 * direct
    within = 6.5 * math.sqrt(3 / len(errors))
    assert np.var(errors) == pytest.approx(stated, rel=within)
    assert np.var(errors) != pytest.approx(1.3**2 * stated, rel=within)


@pytest.mark.parametrize(("delta", "releases"), [(0.0, 4), (1e-5, 100)])
@pytest.mark.slow
def test_a_single_measure_has_the_stated_law(delta, releases):
    runs = 3300  # `samples_to_tell` for a law that is 30% wider: 3,264 with Laplace noise
    mechanism = MeasuredTopK(epsilon=releases / 2, delta=delta, releases=releases)
    noise = [mechanism.release([9000, 0], SeededNoise(3).derive(run)).estimates[0] - 9000 for run in range(runs)]
    law = mechanism.measurement
    assert isinstance(law, DiscreteGaussian if delta else DiscreteLaplace)
    reach = law.tail_quantile(0.02)
    observed = np.bincount(
        np.clip(np.rint(noise), -reach - 1, reach + 1).astype(int) + reach + 1, minlength=2 * reach + 3
    )

    def p_value(law):
        inner = law.pmf(np.arange(-reach, reach + 1))
        expected = np.concatenate([[(1 - inner.sum()) / 2], inner, [(1 - inner.sum()) / 2]])
        return stats.chisquare(observed, runs * expected).pvalue

    wider = DiscreteGaussian(1.3 * law.sigma) if isinstance(law, DiscreteGaussian) else DiscreteLaplace(1.3 * law.scale)
    assert p_value(law) > 1e-9
    assert p_value(wider) < 1e-9


@pytest.mark.parametrize(
    "counts",
    [
        np.zeros(40, np.int64),
        pytest.param(np.repeat([0, 9000], 20), marks=pytest.mark.slow),
    ],
)
@some_quick("items", [1, 8], 8)
@pytest.mark.slow
def test_error_bounds_hold_also_where_the_noise_selects(counts, items):
    runs, beta = 1500, 0.2
    mechanism = MeasuredTopK(epsilon=1.0, top=8, items_per_release=items)
    outside, tight = 0, 0
    for run in range(runs):
        found = mechanism.release(counts, SeededNoise(4).derive(items, run), beta)
        errors = np.abs(found.estimates - counts[found.indices])
        outside += (errors > found.error_bounds)[run % 8]
        tight += (errors > mechanism.measure_error(0.9))[run % 8]
    assert outside <= runs * beta + 6.2 * math.sqrt(runs * beta * (1 - beta))
    assert tight > runs * 0.5  # the errors are no smaller than what is promised without need


def test_selection_error_holds():
    runs, beta = 300, 0.2
    mechanism = MeasuredTopK(epsilon=1.0, top=3)
    alpha = mechanism.selection_error(12, beta)
    counts = np.repeat([math.floor(alpha) + 1, 0], [3, 9])
    wrong = sum(
        set(mechanism.release(counts, SeededNoise(5).derive(run)).indices.tolist()) != {0, 1, 2} for run in range(runs)
    )
    assert wrong <= runs * beta + 6.2 * math.sqrt(runs * beta * (1 - beta))


def test_a_replay_repeats_and_other_data_or_parameters_have_other_noise():
    mechanism, noise = MeasuredTopK(epsilon=1.0), SeededNoise(6)
    once, again = mechanism.release([9000, 0], noise), mechanism.release([9000, 0], noise)
    assert [column.tolist() for column in once] == [column.tolist() for column in again]
    moved = {mechanism.release([9000 + i, 0], noise).estimates[0] - once.estimates[0] - i for i in range(1, 30)}
    assert len(moved) > 3
    other = MeasuredTopK(epsilon=1.0, measure_share=0.2500001).release([10**9, 0], noise).estimates[0] - 10**9
    same = MeasuredTopK(epsilon=1.0).release([10**9, 0], noise).estimates[0] - 10**9
    more = MeasuredTopK(epsilon=1.0, releases=1, items_per_release=2).release([10**9, 0], noise).estimates[0] - 10**9
    assert len({other, same, more}) > 1


def test_beta_changes_nothing_but_the_bound():
    mechanism = MeasuredTopK(epsilon=1.0, top=2)
    one, other = (mechanism.release(COUNTS, SeededNoise(7), beta) for beta in (0.01, 0.3))
    assert one.estimates.tolist() == other.estimates.tolist()
    assert np.all(one.error_bounds > other.error_bounds)


def test_a_release_is_the_same_again_and_near_the_truth():
    mechanism = MeasuredTopK(epsilon=3.0, top=2, items_per_release=2)
    found, again = (mechanism.release(COUNTS, SeededNoise(8)) for _ in range(2))
    assert found.indices.tolist() == [3, 1]
    assert all(np.array_equal(one, other) for one, other in zip(found, again, strict=True))
    assert np.all(np.abs(found.estimates - [900, 700]) <= found.error_bounds)


def test_the_guarantee_says_what_it_covers():
    paragraph = MeasuredTopK(epsilon=1.0, releases=24, items_per_release=3).guarantee.paragraph()
    assert "Each person takes part in at most 24 releases and changes at most 3 of its counts" in paragraph


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"epsilon": 1, "releases": 500_001, "items_per_release": 2, "top": 3},
            ValueError,
            "releases times measures in each must be <= 1,000,000, got 1,000,002",
        ),
        ({"epsilon": 1, "measure_share": 0}, ValueError, r"measure_share must be in \(0, 1\), got 0"),
        ({"epsilon": 1, "measure_share": 1}, ValueError, r"measure_share must be in \(0, 1\), got 1"),
        ({"epsilon": 1, "noise_law": "gaussian"}, ValueError, "noise_law must be one of exponential, laplace"),
        ({"epsilon": 1, "neighbouring": "swap"}, ValueError, "neighbouring must be one of add_remove, replace_one"),
        ({"epsilon": 1e-30}, ValueError, "scale"),
    ],
)
def test_bad_parameters(options, error, message):
    with pytest.raises(error, match=message):
        MeasuredTopK(**options)


@pytest.mark.parametrize(
    ("counts", "beta", "error", "message"),
    [
        ([1, 2], 0.05, ValueError, "values must contain more than 2 queries, got 2"),
        ([1.0, 2.0, 3.0], 0.05, TypeError, "values must be integers"),
        ([1, 2, 3], 0.0, ValueError, r"beta must be in \(0, 1\), got 0.0"),
    ],
)
def test_bad_counts(counts, beta, error, message):
    with pytest.raises(error, match=message):
        MeasuredTopK(epsilon=1.0, top=2).release(counts, SeededNoise(1), beta)
