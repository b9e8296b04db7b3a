"""What limits leave out: how far a person moves its totals, its noise, and the intervals of full numbers."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.keyed_counts.left_out import (
    LEAST_SHARE,
    NOTHING_TOLD,
    Clips,
    Shares,
    full_counts,
)
from privstream.mechanisms.keyed_counts.part_told import part_left_out
from privstream.mechanisms.monitor.holdings import Charges, UserCounters
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.privacy.accounting import largest_shift
from privstream.transforms.counts.contributions import CountContributions, Totals
from privstream.transforms.events.bounding import Used

GIVEN = {"epsilon": 1.0, "delta": 1e-6, "contributions": 15, "horizon": 13, "full_share": 0.05}


def moved(
    came: tuple[int, ...], *, limit: int, totals: Totals, in_window: int | None = None
) -> tuple[float, float, float]:
    """How far one person with so many contributions in each window moves both totals, and how many people use up their
    limit in each, in L2 norm: as the stage does.
    """
    stage = CountContributions.__new__(CountContributions)
    stage.contributions = limit
    used, times, sums = Used({"left_out": UserCounters(), "times": UserCounters()}), 0, []
    for number in came:
        kept = min(number, limit - times, in_window or number)
        times += kept
        person = np.full(number, 7, np.uint64)
        added, charged = stage._added_up(totals, person, person[:kept], used)
        used = used.after({"left_out": charged, "times": Charges.of(person[:kept])})
        sums.append(added)
    return tuple(np.linalg.norm(np.array(sums), axis=0))


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "in_window"), [(1, None), (2, None), (3, None), (3, 1), (4, 2)])
def test_no_person_moves_totals_by_more_than_the_noise_pays_for(limit, in_window):
    windows = 4
    limits = {"contributions": limit, "contributions_per_window": in_window, "horizon": windows}
    found = KeyedCounts(**GIVEN | limits, public_keys=True).left_out
    clips = found.clips
    totals = Totals(clips, ("0",), 1)
    every = list(itertools.product(range(6), repeat=windows))
    norms = np.array([moved(came, limit=limit, totals=totals, in_window=in_window) for came in every])
    most = math.sqrt(clips.kept * limit), math.sqrt(clips.left_out * clips.in_all), 1.0
    assert np.all(norms.max(axis=0) <= np.array(most) + 1e-9)
    assert norms[:, 0].max() > 0 and norms[:, 1].max() > 0.5 * most[1]
    used_up = [float(sum(min(number, in_window or number) for number in came) >= limit) for came in every]
    assert norms[:, 2].tolist() == used_up
    # a stage that does not clip must break the bound
    unclipped = Totals(Clips(6, 6, 6 * windows), ("0",), 1)
    assert max(moved(came, limit=limit, totals=unclipped)[1] for came in every) > most[1]


@pytest.mark.parametrize("neighbouring, persons", [("add_remove", 1), ("replace_one", 2)])
@pytest.mark.parametrize("kind", [KeyedCounts, FoundKeys])
def test_squared_shifts_of_all_parts_add_up_to_the_budget(kind, neighbouring, persons):
    public = {"public_keys": True} if kind is KeyedCounts else {}
    made = kind(**GIVEN, neighbouring=neighbouring, **public)
    told, curve = made.left_out, made.law.curve
    shift = largest_shift(1.0, 1e-6) if public else curve.curve.shift
    kept, left_out = (noise.law.sigma for noise in told.noises)
    n = persons * made.contributions
    squares = [
        n * n / (n * (made.law.noises[0].law.sigma ** 2 - 4 / n)),
        persons * told.clips.kept * made.contributions / (kept**2 - 4),
        persons * told.clips.left_out * told.clips.in_all / (left_out**2 - 4),
        squared_shift_of_counter(told.counter, persons),
    ]
    assert sum(squares) == pytest.approx(shift**2, rel=1e-6)
    assert sum(squares[1:]) == pytest.approx(0.05 * shift**2, rel=1e-6)


@pytest.mark.parametrize("kind", [KeyedCounts, FoundKeys])
@pytest.mark.parametrize(("limit", "told"), [(1, 10), (3, 10), (4, 12)])
def test_where_only_windows_have_a_limit_baskets_are_told_and_all_of_the_share_is_theirs(kind, limit, told):
    public = {"public_keys": True} if kind is KeyedCounts else {}
    made = kind(**GIVEN | {"contributions": 13 * limit, "contributions_per_window": limit}, **public)
    law, curve = made.left_out, made.law.curve
    shift = largest_shift(1.0, 1e-6) if public else curve.curve.shift
    assert law.clips == (limit, told, 13 * told) and law.counter is None
    kept, left_out = (noise.law.sigma for noise in law.noises)
    most = 13 * limit**2 / (kept**2 - 4) + 13 * told**2 / (
        left_out**2 - 4
    )  # of a person whose basket is large each week
    assert most == pytest.approx(0.05 * shift**2, rel=1e-6)
    assert any(f"leave out at most {told} times" in text for text in made.guarantee.limits)
    assert "used_up_stddev" not in made.accuracy.numbers and "used up" not in made.accuracy.claim
    after = made.tell(1, np.array([500, 90, 0]), NOTHING_TOLD, SeededNoise(1))
    assert after.numbers[2].tolist() == [0] and law.used_up(0, 1) == (None, None, None)
    fewer = kind(**GIVEN | {"contributions": 13 * limit - 1, "contributions_per_window": limit}, **public)
    assert fewer.left_out.counter is not None and fewer.left_out.clips.left_out == min(limit, 13 * limit - 1)


def squared_shift_of_counter(counter, persons):
    """How far a person who uses up the limit at the first step moves z = R w, in squared deviations."""
    assert counter.factor.exact or counter.fraction
    if counter.factor.exact:
        return persons / (counter.law.sigma**2 - 4 / persons)
    square = persons * counter.factor.contribution_square(1)
    norm = math.ldexp(math.sqrt(square) * (1 + 1e-12), counter.fraction)
    norm += 2 * math.sqrt(persons * float(counter.factor.levels @ counter.factor.levels))
    return norm**2 / (counter.law.sigma**2 - 4)


def test_noise_is_never_smaller_than_its_proof_allows():
    large = FoundKeys(**GIVEN | {"epsilon": 20.0, "contributions": 1, "full_share": 0.5})
    assert all(noise.law.sigma >= 3 for noise in large.left_out.noises)  # Lemma 1 of counters.md


def test_totals_have_noise_of_their_own_bound_to_step_and_total():
    made = FoundKeys(**GIVEN)
    noise = SeededNoise(3)

    def drawn(step, sums, source=noise):
        return made.tell(step, np.array(sums), NOTHING_TOLD, source).numbers[:, -1] - sums

    assert drawn(2, [500, 40, 7]).tolist() == drawn(2, [500, 40, 7]).tolist()
    assert np.all(drawn(2, [500, 40, 7]) != drawn(3, [500, 40, 7]))
    assert np.all(drawn(2, [500, 40, 7]) != drawn(2, [501, 41, 8]))
    many = np.array([drawn(1, [0, 0, 0], SeededNoise(seed)) for seed in range(400)])
    scaled = many / np.array([*made.left_out.stddevs, math.sqrt(made.left_out.counter.variance(1))])
    assert np.all(np.abs(scaled.std(axis=0) - 1) < 0.25)  # 7 standard deviations
    assert np.abs(np.corrcoef(scaled.T) - np.eye(3)).max() < 0.35


@pytest.mark.slow
def test_people_who_used_up_their_limit_are_counted_since_the_start():
    made, came, runs = FoundKeys(**GIVEN), np.arange(13) * 10, 300
    assert made.left_out.counter.variance(13) < 5 * made.left_out.counter.variance(1)  # not one noise for each window
    off, held = np.zeros((runs, 13)), np.zeros((runs, 13), bool)
    for seed in range(runs):
        told = NOTHING_TOLD
        for step, number in enumerate(came, start=1):
            told = made.tell(step, np.array([0, 0, number]), told, SeededNoise(seed))
            found, lower, upper = made.left_out.used_up(int(told.numbers[2, -1]), step)
            held[seed, step - 1] = lower <= came[:step].sum() <= upper
            assert 0 <= lower <= found <= upper
        assert told.used_up == came.sum()
        off[seed] = told.numbers[2] - np.cumsum(came)
    deviations = [math.sqrt(made.left_out.counter.variance(step)) for step in range(1, 14)]
    assert np.all(np.abs(off.std(axis=0) / deviations - 1) < 0.3)  # 7 standard deviations
    assert held.mean() > 0.9


def test_without_a_share_nothing_changes():
    plain = FoundKeys(**GIVEN | {"full_share": 0.0})
    assert plain.left_out is None
    assert b"full_share" not in plain.parameters and b"totals" not in plain.parameters
    told = FoundKeys(**GIVEN)
    assert told.stddev(1) / plain.stddev(1) == pytest.approx(1 / math.sqrt(0.95), rel=0.02)
    assert told.guarantee.proof.endswith("Theorem 5")
    assert any("13 windows" not in limit and "limits leave out" in limit for limit in told.guarantee.limits)


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"full_share": 0.6}, "full_share must be <= 0.5, got 0.6"),
        ({"full_share": -0.1}, r"full_share must be in \(0, 1\), got -0.1"),
        ({"contributions_per_window": 16}, "contributions_per_window must be <= 15, contributions, got 16"),
        ({"contributions_per_window": 0}, "contributions_per_window must be >= 1, got 0"),
        ({"over": 2}, "full_share must be 0 without delta and a horizon"),
        ({"horizon": None}, "full_share must be 0 without delta and a horizon"),
        ({"unit": "event", "contributions": 1}, "full_share must be 0 without delta and a horizon"),
    ],
)
def test_what_cannot_be_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        KeyedCounts(**GIVEN | changed)


@pytest.mark.parametrize("last", [0.97, 0.75, 0.45])
def test_intervals_of_shares_and_of_full_numbers_hold(last):
    made, runs = FoundKeys(**GIVEN), 150
    true, came, chance = np.linspace(0.98, last, 13), 4000.0, np.random.default_rng(5)
    held, off = [], []
    for _ in range(runs):
        told = np.stack([came * true, came * (1 - true)]) + np.array(made.left_out.stddevs)[:, None] * (
            chance.standard_normal((2, 13))
        )
        shares = made.left_out.shares(np.rint(told).astype(np.int64))
        counts = np.rint(400 * true + made.stddev(1) * chance.standard_normal(13)).astype(np.int64)
        full = full_counts(counts, np.full(13, made.stddev(1)), shares.estimates, shares.stddevs)
        held.append((full.lower <= 400) & (full.upper >= 400))
        off.append(full.estimates / 400 - 1)
    assert np.mean(held) > 0.93
    assert abs(np.mean(off)) < 0.03


def shares_of_random_contributions(came, limit, runs):
    """The true share of each window if each person has so many there, float64 (people, windows), of which random ones
    count; and whether each interval of it holds, bool (runs, windows)."""
    law, chance = FoundKeys(**GIVEN | {"contributions": limit}).left_out, np.random.default_rng(7)
    kept = (came * np.minimum(1, limit / np.maximum(came.sum(axis=1), 1))[:, None]).sum(axis=0)
    totals = np.stack([kept, came.sum(axis=0) - kept])
    held = []
    for _ in range(runs):
        noise = np.array(law.stddevs)[:, None] * chance.standard_normal(totals.shape)
        shares = law.shares(np.rint(totals + noise).astype(np.int64), steady=True)
        held.append(np.abs(shares.estimates - kept / totals.sum(axis=0)) <= 1.96 * shares.stddevs)
    return kept / totals.sum(axis=0), np.array(held)


@pytest.mark.parametrize("newcomers", [500, 1500, 3000, 6000])
def test_intervals_hold_around_a_window_in_which_others_come(newcomers):
    """Steps of 0.03 at most smooth that window away: its interval then holds in 2 to 37% of runs, others' in none."""
    regular, others = np.full((3000, 13), 2.0), np.zeros((newcomers, 13))
    others[:, 11] = 6
    true, held = shares_of_random_contributions(np.concatenate([regular, others]), 13, 100)
    assert true[11] > true[10] + 0.15 and true[10] == true[12] == pytest.approx(0.5)
    assert held[:, 10:].mean(axis=0).min() > 0.75 and held.mean() > 0.9


def test_where_all_windows_are_alike_shares_of_random_contributions_are_nearly_as_sure_as_one_share():
    people = np.full((4000, 13), 2.0)
    true, held = shares_of_random_contributions(people, 20, 100)
    assert true == pytest.approx(np.full(13, 20 / 26)) and held.mean() > 0.93
    law = FoundKeys(**GIVEN | {"contributions": 20}).left_out
    kept = np.rint(true * 8000).astype(np.int64)
    steady, free = (law.shares(np.stack([kept, 8000 - kept]), steady=way).stddevs.mean() for way in (True, False))
    assert steady < 0.8 * free


def test_what_seems_left_out_is_taken_to_be_so_evenly_from_one_to_four_standard_deviations():
    law = FoundKeys(**GIVEN).left_out
    sums = np.array([-5.0, 0.0, 0.9, 1.75, 2.5, 3.25, 4.0, 50.0]) * law.stddevs[1] * math.sqrt(13)
    weights = [law.weight(np.full(13, round(total / 13))) for total in sums]
    assert weights == pytest.approx([0, 0, 0, 0.25, 0.5, 0.75, 1, 1], abs=0.01)
    assert law.weight(np.array([round(2.5 * law.stddevs[1])])) == pytest.approx(0.5, abs=0.001)
    assert law.weight(np.zeros(0, np.int64)) == 0


def test_shares_that_are_shown_in_part_reach_down_to_where_they_did():
    shares = Shares(np.array([0.9, 0.4, 1.0, math.nan]), np.array([0.05, 0.1, 0.0, math.nan]), np.ones(4))
    for weight, expected in ((0.0, [1.0, 1.0, 1.0]), (0.5, [0.95, 0.7, 1.0]), (1.0, [0.9, 0.4, 1.0])):
        found = shares.shown(weight)
        assert found.estimates[:3].tolist() == expected and math.isnan(found.estimates[3])
        lower, before = (one.estimates - 1.96 * one.stddevs for one in (found, shares))
        assert lower[:3] == pytest.approx(before[:3]) and math.isnan(lower[3])


def test_the_part_left_out_has_an_interval_unless_noise_hides_everything():
    chance, variances, held = np.random.default_rng(3), (300.0**2, 500.0**2), []
    for kept, left_out in ((9000, 1000), (3000, 0), (2000, 1500)):
        noisy = np.array([kept, left_out]) + np.sqrt(variances) * chance.standard_normal((1000, 2))
        found = [part_left_out(*pair, variances) for pair in noisy]
        assert all(part is not None and 0 <= part[1] <= part[0] <= part[2] <= 1 for part in found)
        held.append(np.mean([part[1] <= left_out / (kept + left_out) <= part[2] for part in found]))
    assert (
        min(held) > 0.92 and max(held[0], held[2]) < 0.98
    )  # five standard deviations, and 0 is the end of what can be
    assert part_left_out(500.0, 500.0, variances) is None and part_left_out(-3000.0, 0.0, variances) is None


def test_a_limit_for_each_window_makes_totals_more_exact_and_counts_no_noisier():
    free, limited = (
        FoundKeys(**GIVEN | {"contributions": 120, "contributions_per_window": each}) for each in (None, 9)
    )
    assert limited.left_out.stddevs[0] < 0.6 * free.left_out.stddevs[0]
    assert limited.stddev(1) == free.stddev(1)
    assert "at most 9 times in a window" in limited.guarantee.limits[0]
    assert free.parameters != limited.parameters
    assert b"per_window" not in free.parameters  # runs of earlier versions have the same noise


def test_shares_of_several_windows_are_weighted_by_what_came():
    shares = Shares(np.array([1.0, 0.5, 0.2]), np.array([0.1, 0.2, 0.4]), np.array([100.0, 100.0, 300.0]))
    assert shares.of_sums(1) is shares
    found = shares.of_sums(2)
    assert found.estimates.tolist() == [1.0, 0.75, 0.275]
    assert found.stddevs.tolist() == [0.1, 0.15, 0.35]


def test_there_is_no_full_number_where_the_share_may_be_small():
    shares, errors = np.array([0.5, 0.3, LEAST_SHARE]), np.array([0.05, 0.1, 0.01])
    found = full_counts(np.array([100, 100, 100]), np.full(3, 10.0), shares, errors)
    assert found.estimates.tolist()[0] == 200.0
    assert np.isnan(np.stack(found)[:, 1:]).all()


def test_shares_of_nothing_are_not_known():
    made = replace(FoundKeys(**GIVEN))
    assert np.isnan(made.left_out.shares(np.array([[20, -40], [7, 3]])).estimates).all()
    assert len(made.left_out.shares(np.zeros((2, 0), np.int64)).estimates) == 0
