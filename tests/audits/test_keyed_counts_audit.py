"""Exact privacy of counts per key: contributions one by one, both directions, and variants that must fail."""

import itertools
import math

import numpy as np
import pytest
from privstream.mechanisms import KeyedCounts
from privstream.mechanisms.keyed_counts.calibration import best_factor, l2_norm
from privstream.mechanisms.noise.correlated import BufferedFactor, LevelledFactor
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace
from privstream.mechanisms.privacy.accounting import GaussianCurve, largest_shift
from scipy import special

EPSILON, DELTA = 1.0, 1e-3


def noise_of(law):
    reach = math.ceil(9 * math.sqrt(law.variance)) + 12
    return np.arange(-reach, reach + 1)


def shared(law, threshold, others):
    """Return masses without and with u of what is published about a key that `others` people have anyway."""
    noise = noise_of(law)
    found = np.zeros((2, len(noise) + 2))  # the last place: unpublished
    for more in (0, 1):
        values = others + more + noise
        places = np.where(values >= threshold, values - others - noise[0], len(noise) + 1)
        np.add.at(found[more], places, law.pmf(noise))
    return found


def bare(law, threshold, people):
    """Return masses without and with u: unpublished, published."""
    noise = noise_of(law)
    tail = float(law.pmf(noise)[people + noise >= threshold].sum())
    return np.array([[1.0, 0.0], [1 - tail, tail]])


def value(kinds, looks, swapped=False):
    """Return the largest divergence that an adversary reaches who chooses each contribution by what was seen.

    By backward induction over the logarithm of the likelihood ratio, with u against without; `swapped`: of the world
    without u from the one with u.
    """
    grid = np.linspace(-10, 10, 4001)
    ahead = np.maximum(0, -np.expm1(EPSILON + grid) if swapped else -np.expm1(EPSILON - grid))
    for _ in range(looks):
        ahead = np.max([_after(masses, grid, ahead, swapped) for masses in kinds], axis=0)
    return float(np.interp(0.0, grid, ahead))


def _after(masses, grid, ahead, swapped):
    """Return the expectation, in the world that is told from the other, of what follows one look."""
    total = np.zeros_like(ahead)
    for q, p in masses.T[masses.any(axis=0)]:
        one, other = (q, p) if swapped else (p, q)
        if one > 0:
            total += one * (np.interp(grid + math.log(p / q), grid, ahead) if other > 0 else 1.0)
    return total


def kinds_of(law, threshold, people):
    return [bare(law, threshold, people), shared(law, threshold, people), shared(law, threshold, threshold + 200)]


@pytest.mark.parametrize("people", [1, 3])
@pytest.mark.parametrize("contributions", [1, 3, 6])
def test_adaptive_contributions_per_window_stay_within_delta(contributions, people):
    mechanism = KeyedCounts(epsilon=EPSILON, delta=DELTA, contributions=contributions, min_people=people)
    noise = mechanism.law.noises[0].law
    law = noise.digits[0] if hasattr(noise, "digits") else noise
    kinds = kinds_of(law, mechanism.threshold(1), people)
    forwards, backwards = (value(kinds, contributions, swapped=swapped) for swapped in (False, True))
    assert max(forwards, backwards) <= DELTA * 1.001
    assert forwards > 0.5 * DELTA


@pytest.mark.parametrize("contributions", [3, 6])
def test_bare_keys_that_are_not_charged_are_seen(contributions):
    """Negative control: all of delta is for the Gaussian noise, and thresholds are where noise hides nothing."""
    sigma = math.sqrt(contributions / largest_shift(EPSILON, DELTA) ** 2 + 4 / contributions)
    law = DiscreteGaussian(sigma)
    free = kinds_of(law, 1 + law.tail_quantile(0.01) + 1, 1)
    assert value(free, contributions) > 10 * DELTA
    assert value(free[1:], contributions) <= DELTA * 1.001


def test_the_largest_over_fixed_numbers_of_bare_keys_is_too_small():
    """Negative control: with all of delta for each part, any fixed choice is within delta, and an adaptive one not."""
    contributions, delta = 6, 1e-6
    law = DiscreteGaussian(math.sqrt(contributions) / largest_shift(EPSILON, delta))
    tail = delta / contributions
    alone = np.array([[1.0, 0.0], [1 - tail, tail]])
    fixed = [
        j * tail
        + (GaussianCurve(shift=math.sqrt(contributions - j) / law.sigma).delta(EPSILON) if j < contributions else 0)
        for j in range(contributions + 1)
    ]
    assert max(fixed) <= delta * 1.001
    assert value([alone, shared(law, 0, 200)], contributions) > 1.3 * delta


def normal(x, mean, deviation):
    return np.exp(-0.5 * ((x - mean) / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))


def test_a_key_that_is_bare_and_then_shared_stays_within_delta():
    """Two steps since the start: u alone at step 1, another person at step 2; what is not published tells as well."""
    mechanism = KeyedCounts(
        epsilon=EPSILON, delta=DELTA, over="start", horizon=2, contributions=2, contributions_per_key=1
    )
    first, second = (mechanism.stddev(step) for step in (1, 2))
    factor = mechanism.law.noises[0].factor
    late = 1 / factor.levels[1]  # the noise of step 2 is z_1 (1 - r_1 late) + z_2 late
    correlation = (1 - factor.coefficients[1] * late) / math.hypot(1 - factor.coefficients[1] * late, late)
    low = mechanism.threshold(1) - 1.5  # noise of step 1, before rounding, that publishes the bare key
    noise = np.linspace(-12 * second, 12 * second, 200_001)
    given = correlation * first / second * noise
    hidden = special.ndtr((low - given) / (first * math.sqrt(1 - correlation**2)))
    values = noise + 2  # answers at step 2 with u
    with_u = normal(values, 2, second) * hidden
    without = normal(values, 1, second)
    width, published = noise[1] - noise[0], values >= mechanism.threshold(2) - 0.5
    event = special.ndtr(-low / first)
    for one, other, alone in ((with_u, without, event), (without, with_u, 0.0)):
        excess = np.maximum(0, one - math.exp(EPSILON) * other)[published].sum() * width
        silent = max(0.0, (one - math.exp(EPSILON) * other)[~published].sum() * width)
        assert alone + excess + silent <= DELTA
    assert event > 0.01 * DELTA


def laplace(scale):
    """Return numbers and their probabilities."""
    numbers = np.arange(-math.ceil(60 * scale), math.ceil(60 * scale) + 1)
    weights = np.exp(-abs(numbers) / scale)
    return numbers, weights / weights.sum()


def test_a_key_that_is_bare_and_then_shared_stays_within_delta_with_laplace_noise():
    """The same with few contributions, exactly: noise 1 of both steps, noise 2 of the second alone."""
    mechanism = KeyedCounts(epsilon=EPSILON, delta=DELTA, over="start", horizon=2)
    assert isinstance(mechanism.law.noises[0].law, DiscreteLaplace)
    numbers, weights = laplace(mechanism.law.noises[0].law.scale)
    both = weights[:, None] * weights
    answers = numbers[:, None] + numbers
    least, largest = int(answers.min()) + 1, int(answers.max()) + 2

    def seen(count, kept):
        """Return how likely each answer of step 2 is, with those that are not published together."""
        found = np.bincount((answers + count - least)[kept], both[kept], largest - least + 1)
        hidden = np.arange(least, largest + 1) < mechanism.threshold(2)
        return np.append(found[~hidden], found[hidden].sum())

    everything = np.ones(both.shape, bool)
    bare = np.broadcast_to(1 + numbers[:, None] < mechanism.threshold(1), both.shape)
    with_u, without = seen(2, bare), seen(1, everything)
    event = 1 - with_u.sum()
    assert event + np.maximum(0, with_u - math.exp(EPSILON) * without).sum() <= DELTA
    assert np.maximum(0, without - math.exp(EPSILON) * with_u).sum() <= DELTA
    assert event > 0.01 * DELTA
    cheaper = 1 - weights[1 + numbers < mechanism.threshold(1) - 5].sum()
    assert cheaper > DELTA / 2, "thresholds are not far too high"


@pytest.mark.parametrize("times", [1, 2, 3])
def test_one_person_alone_is_seen_with_a_probability_of_delta_however_often_it_contributes(times):
    """Counts of the last 3 of 9 windows, Laplace noise: u alone has the key at the last steps; any step may show it."""
    delta = 1e-8
    mechanism = KeyedCounts(epsilon=EPSILON, delta=delta, over=3, horizon=9, contributions=3)
    assert isinstance(mechanism.law.noises[0].law, DiscreteLaplace)
    _, weights = laplace(mechanism.law.noises[0].law.scale)
    sums = np.convolve(np.convolve(weights, weights), weights)
    values = np.arange(len(sums)) - len(sums) // 2
    counts = [min(number, times) for number in range(1, 4)]
    shown = [
        sums[values + count >= mechanism.threshold(step)].sum() for step, count in zip((7, 8, 9), counts, strict=True)
    ]
    assert delta / 1000 < sum(shown) <= delta * times / 3


def test_noise_that_begins_with_the_key_shows_when_the_key_came():
    """Negative control: u has the key at step 1, another person at the last step; m = 1."""
    mechanism = KeyedCounts(epsilon=EPSILON, delta=1e-6, over="start", horizon=64, contributions_per_key=1)
    old, new = mechanism.stddev(64), mechanism.stddev(1)
    values = np.linspace(-15 * old, 15 * old, 200_001)
    width = values[1] - values[0]
    late = np.maximum(0, normal(values, 2, old) - math.exp(EPSILON) * normal(values, 1, new)).sum() * width
    right = np.maximum(0, normal(values, 2, old) - math.exp(EPSILON) * normal(values, 1, old)).sum() * width
    assert late > 100 * 1e-6
    assert right <= 1e-6


@pytest.mark.parametrize("over", ["start", 3])
@pytest.mark.parametrize("per_key", [1, 2, 3])
def test_no_choice_of_steps_moves_answers_further_than_stated(over, per_key):
    """All ways for one person to contribute up to 3 times to a key in 7 steps; the naive claims are off."""
    mechanism = KeyedCounts(
        epsilon=EPSILON, delta=1e-6, over=over, horizon=7, contributions=3, contributions_per_key=per_key
    )
    for factor in {
        best_factor(mechanism.bounds),
        BufferedFactor(7),
        *([LevelledFactor(7)] if per_key == 1 else []),
    }:
        column = factor.coefficients
        shifted = [np.concatenate([np.zeros(s), column[: 7 - s]]) * factor.levels[s] for s in range(7)]
        norms = [
            np.linalg.norm(sum(shifted[s] for s in chosen)) ** 2 for chosen in itertools.combinations(range(7), per_key)
        ]
        most = max(norms) * (3 // per_key)  # 3 // per_key keys, each with as many as may be
        stated = l2_norm(factor, mechanism.bounds) ** 2
        assert most <= stated * (1 + 1e-9)
        assert stated <= 3 * per_key * float(column @ column) * (1 + 1e-6)


def test_repeated_contributions_claimed_as_different_keys_are_seen():
    """Negative control: sqrt(C) |r| is claimed, while a person counts in 8 successive steps for one key."""
    mechanism = KeyedCounts(
        epsilon=EPSILON,
        delta=1e-6,
        over="start",
        horizon=64,
        contributions=8,
        contributions_per_key=1,
        public_keys=True,
    )
    factor, curve = mechanism.law.noises[0].factor, mechanism.law.curve
    column = factor.coefficients
    repeated = np.linalg.norm(sum(factor.levels[s] * np.append(np.zeros(s), column[: 64 - s]) for s in range(8)))
    claimed = math.sqrt(8) * np.linalg.norm(column)
    true = GaussianCurve(shift=curve.shift * float(repeated / claimed))
    assert true.delta(EPSILON) > 1000 * 1e-6
    honest = KeyedCounts(epsilon=EPSILON, delta=1e-6, over="start", horizon=64, contributions=8, public_keys=True)
    stated = l2_norm(best_factor(honest.bounds), honest.bounds)
    column = best_factor(honest.bounds).coefficients
    assert stated >= np.linalg.norm(sum(np.append(np.zeros(s), column[: 64 - s]) for s in range(8)))
    with pytest.raises(ValueError, match="most must be 1"):
        l2_norm(factor, honest.bounds)


@pytest.mark.parametrize("horizon", [2, 9, 64, 500])
def test_levels_make_no_column_longer_than_the_first_and_larger_ones_would(horizon):
    """The second half is the negative control: the next level would move answers further than is paid for."""
    factor = LevelledFactor(horizon)
    norms = np.sqrt(np.cumsum(factor.coefficients**2))
    assert np.all(factor.levels * norms[::-1] <= norms[-1] * (1 + 1e-9))
    assert np.all((factor.levels + 1 / 32) * norms[::-1] > norms[-1])
    assert factor.levels[0] == 1 and np.all(np.diff(factor.levels) >= 0)
