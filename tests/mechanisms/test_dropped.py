"""Which share of contributions limits drop: how far a person moves the numbers, their noise, and the interval."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from privstream.mechanisms import FoundKeys, KeyedCounts
from privstream.mechanisms.keyed_counts.dropped import KNOTS, WHOLE, DroppedShare
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.privacy.accounting import GaussianCurve, PureDp

SHIFT = 0.2367  # of epsilon 1, delta 1e-6
BUDGETS = {"gaussian": GaussianCurve(shift=SHIFT), "pure": PureDp(1.0)}
WHOLE_BUDGET = BUDGETS["gaussian"]


def moved(made, came, limit):
    """What one person with so many contributions in each window adds to the numbers, window by window, int64 (n, m)."""
    used, before, found = 0, np.zeros(1, np.int64), []
    for number in came:
        counted = min(number, limit - used)
        used += counted
        sums, now = made.of_people(np.array([number]), np.array([counted]), before)
        before = before + now
        found.append(sums)
    return np.array(found)


@pytest.mark.parametrize(("limit", "largest"), [(1, None), (2, None), (2, 40), (2, 8), (3, 4)])
def test_one_person_moves_all_readings_by_no_more_than_noise_pays_for(limit, largest):
    made = DroppedShare(limit, SHIFT, largest, readings=3)
    assert made.clip == min(KNOTS[-1] * limit, (largest or math.inf) - limit)
    most = largest or 15 * limit
    every = [came for came in itertools.product(range(0, most + 1, 2), repeat=3) if sum(came) <= most]
    read = np.cumsum([moved(made, came, limit) for came in every], axis=1)  # each reading has all until then
    assert read.min() >= 0
    squares = np.square(read / [law.sigma for law in made.laws]).sum(axis=(1, 2))
    assert 0.9 * SHIFT**2 < squares.max() <= SHIFT**2
    pure = dataclasses.replace(made, shift=0.0, epsilon=0.5)
    losses = np.abs(read / [law.scale for law in pure.laws]).sum(axis=(1, 2))
    assert 0.9 * 0.5 < losses.max() <= 0.5


@pytest.mark.parametrize("limit", [1, 3])
def test_sums_are_those_of_a_plain_reference_however_windows_part_what_people_have(limit):
    rng = np.random.default_rng(7)
    made = DroppedShare(limit, SHIFT)
    for _ in range(200):
        came = rng.integers(0, 12 * limit, rng.integers(1, 6))
        total = int(came.sum())
        dropped = max(0, total - limit)
        found = moved(made, came.tolist(), limit).sum(axis=0)
        assert found[0] == min(total, limit) and found[1:].sum() <= WHOLE
        assert np.count_nonzero(found[1:]) <= 2
        assert made.knots @ found[1:] / WHOLE == pytest.approx(min(dropped, made.clip), abs=made.clip / WHOLE)


def population(kind, people, rng):
    """Contributions of people: some alike, some of a long tail."""
    if kind == "spread":
        return np.minimum(rng.geometric(0.12, people) * rng.geometric(0.4, people), 300)
    return rng.integers(3, 91, people) if kind == "even" else (rng.pareto(1.2, people) * 8 + 1).astype(np.int64)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("kind", ["spread", "even", "tail"])
@pytest.mark.parametrize("limit", [8, 15, 25, 40, 80, 300])
def test_the_interval_holds_the_true_share_or_says_at_least(kind, limit, budget):
    rng = np.random.default_rng(limit)
    came = np.minimum(population(kind, 6_000, rng), 5_000)
    counted = np.minimum(came, limit)
    made = DroppedShare.of(limit, BUDGETS[budget], math.inf)
    sums, _ = made.of_people(came, counted, np.zeros(len(came), np.int64))
    truth = 1 - counted.sum() / came.sum()
    found = [made.share(made.release(1, sums, SeededNoise(seed))) for seed in range(400)]
    held = [one is None or (one.lower <= truth and (one.upper is None or truth <= one.upper)) for one in found]
    assert sum(held) >= (240 if kind == "tail" else 366)  # of 400: noise hides a few people with very much more
    assert limit > 40 or None not in found


def test_the_upper_end_is_wrong_if_the_clip_is_not_told():
    rng = np.random.default_rng(1)
    came = population("tail", 6_000, rng)
    made = DroppedShare.of(8, WHOLE_BUDGET, math.inf)
    sums, _ = made.of_people(came, np.minimum(came, 8), np.zeros(len(came), np.int64))
    truth = 1 - np.minimum(came, 8).sum() / came.sum()
    noisy = made.release(1, sums, SeededNoise(3))
    assert made.share(noisy).upper is None
    noisy[-1] = 0
    assert made.share(noisy).upper < truth


def test_where_noise_hides_it_nothing_is_said():
    made = DroppedShare.of(100, WHOLE_BUDGET, math.inf)
    few, _ = made.of_people(np.full(20, 150), np.full(20, 100), np.zeros(20, np.int64))
    assert sum(made.share(made.release(1, few, SeededNoise(seed))) is None for seed in range(400)) >= 396
    assert made.share(np.zeros(4, np.int64)) is None
    assert made.share(np.array([10**7, 0, 0, 0]), readings=0) is None


def test_readings_have_noise_of_their_own_and_periods_an_interval_for_all_of_it():
    made = dataclasses.replace(DroppedShare.of(10, WHOLE_BUDGET, math.inf), readings=2)
    sums, noise = np.array([70_000, 2_000 * WHOLE, 0, 0]), SeededNoise(5)
    one, other = (made.release(reading, sums, noise) - sums for reading in (1, 2))
    assert np.all(one != other)
    assert np.array_equal(one, made.release(1, sums, noise) - sums)  # a repetition draws the same
    assert np.all(one != made.release(1, sums + 1, noise) - sums - 1)  # other totals have other noise
    wide, same, narrow = (made.share(sums, readings) for readings in (4, 2, 1))
    assert wide.lower < narrow.lower and wide.upper > narrow.upper and same == narrow


@pytest.mark.parametrize("fields", [{"max_value": 5}, {"horizon": 1}, {}])
@pytest.mark.parametrize("kind", [KeyedCounts, FoundKeys])
def test_counts_sums_list_and_share_spend_the_budget_once(kind, fields):
    """What each is moved by at most, in deviations of its noise, against the shift that is stated."""
    fields = {"contributions": 60, "horizon": 40, "dropped": True, "public_keys": kind is KeyedCounts} | fields
    mechanism = kind(epsilon=1.0, delta=1e-6, **fields)
    spent = mechanism.dropped_share.shift**2
    for noise, largest in zip(mechanism.law.noises, (1, 5), strict=False):
        spent += 60 * largest**2 / noise.law.sigma**2
    if kind is FoundKeys and mechanism.law.people is not None:
        spent += sum(mechanism.listed / noise.law.sigma**2 for noise in mechanism.law.people.noises)
    assert 0.97 < spent / mechanism.law.curve.shift**2 <= 1


def test_nothing_is_released_where_public_parameters_leave_nothing_to_drop():
    assert DroppedShare.of(12, WHOLE_BUDGET, 12) is None and DroppedShare.of(12, WHOLE_BUDGET, 5) is None
    assert DroppedShare.of(12, WHOLE_BUDGET, 13).largest == 13
    with pytest.raises(ValueError, match="largest must be above 12"):
        DroppedShare(12, SHIFT, 12)
