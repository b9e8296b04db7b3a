"""Counts per key: figures, noise, thresholds, refusals, means, and what shards, snapshots and repetitions do."""

import math
from dataclasses import replace

import numpy as np
import pytest
from privstream.mechanisms import KeyedCounts, KeyedStep, SeededNoise
from privstream.mechanisms.checks import HorizonExceeded
from privstream.mechanisms.noise.correlated import BufferedFactor
from scipy import linalg

BUDGET = {"epsilon": 1.0, "delta": 1e-6}
OVER = [
    {"over": "window", "horizon": 9, "public_keys": True},
    {"over": "start", "horizon": 9, "contributions": 4},
    {"over": "start", "horizon": 200, "contributions": 20},
    {"over": "start", "horizon": 9, "public_keys": True, "delta": 0.0},
    {"over": "window", "horizon": 9, "public_keys": True, "delta": 0.0},
    {"over": "start", "horizon": 9, "public_keys": True, "contributions": 9},
    {"over": "start", "horizon": 1000, "public_keys": True, "delta": 0.0},
    {"over": "start", "horizon": 9, "max_value": 50, "min_people": 2},
]


def made(**fields):
    """Return counts since the start of one step, if nothing else is asked for."""
    return KeyedCounts(**(BUDGET | {"over": "window" if fields.get("public_keys") else "start"} | fields))


def given(step, counts, sums=None, first=0):
    counts = np.asarray(counts, np.int64)
    keys = np.arange(first, first + len(counts), dtype=np.uint64)
    return KeyedStep(step=step, keys=keys, counts=counts, sums=sums)


def start(mechanism, keys):
    return mechanism.initial_state(np.arange(keys, dtype=np.uint64) if mechanism.public_keys else None)


def steps_of(mechanism, keys, last=9, seed=0):
    """Return steps in which some keys have many people, some few, and some nothing."""
    rng = np.random.default_rng(seed)
    found = []
    for step in range(1, last + 1):
        counts = rng.integers(0, 3, keys) * rng.integers(0, 200, keys)
        sums = None if mechanism.max_value is None else counts * rng.integers(0, mechanism.max_value + 1, keys)
        found.append(given(step, counts, sums))
    return found


def run(mechanism, state, inputs, seed=1):
    rows = []
    for one in inputs:
        state, row = mechanism.step(state, one, SeededNoise(seed))
        rows.append(row)
    return state, rows


def plain(rows):
    return [
        (row.step, row.keys.tolist(), row.counts.tolist(), None if row.sums is None else row.sums.tolist())
        for row in rows
    ]


@pytest.mark.parametrize(
    ("windows", "sigma", "threshold", "detected"),
    [(7, 11.5, 62, 117), (100, 43.7, 251, 459), (10_000, 437, 2824, 4899)],
)
def test_figures_of_a_step_are_those_of_half_of_delta_each_or_better(windows, sigma, threshold, detected):
    """The figures are those of continuous noise; integers cost hardly anything."""
    accuracy = made(contributions=windows).accuracy
    assert accuracy.numbers["stddev"] <= sigma + 0.15
    assert accuracy.numbers["stddev"] > 0.97 * sigma
    assert threshold * 0.98 < accuracy.numbers["threshold"] <= threshold * 1.01 + 1
    assert accuracy.error == accuracy.numbers["detection_threshold"]


def test_a_single_contribution_gets_laplace_noise():
    mechanism = made()
    assert mechanism.stddev(1) == pytest.approx(math.sqrt(2), rel=0.05)
    assert mechanism.threshold(1) == 1 + 14


@pytest.mark.parametrize(
    "fields", [{"delta": 0.0}, {"contributions": 40}, {"over": "start", "horizon": 90, "contributions": 40}]
)
def test_noise_of_sums_grows_with_the_largest_value(fields):
    mechanism = made(public_keys=True, max_value=50, **fields)
    assert mechanism.stddev(1, "sum") == pytest.approx(50 * mechanism.stddev(1), rel=0.02)


def noise_rows(factor):
    """Return the coefficients of z in the noise at all steps: A (R D)^-1."""
    columns = linalg.toeplitz(factor.coefficients, np.zeros(factor.horizon)) * factor.levels
    return np.tril(np.ones_like(columns)) @ np.linalg.inv(columns)


@pytest.mark.parametrize("horizon", [1, 2, 9, 300])
def test_variances_of_levelled_noise_are_those_of_its_matrices(horizon):
    factor = BufferedFactor(horizon)
    assert factor.squares == pytest.approx(np.sum(noise_rows(factor) ** 2, axis=1), rel=1e-9)


@pytest.mark.parametrize("fields", OVER)
def test_noise_has_the_stated_variance(fields):
    """Keys that many people have: also with Laplace noise the mean square leaves 12% with probability 1e-10 at most."""
    keys, large = 15_000, 10**5
    mechanism = made(**fields)
    state, last = start(mechanism, keys), mechanism.horizon or 2
    checked = {1, 2, min(9, last)}
    for step in range(1, max(checked) + 1):
        sums = None if mechanism.max_value is None else np.full(keys, 7, np.int64)
        state, rows = mechanism.step(state, given(step, np.full(keys, large), sums), SeededNoise(5))
        if step in checked:
            noise = rows.counts - np.median(rows.counts)
            assert len(rows.keys) == keys
            assert np.mean(noise**2) / mechanism.stddev(step) ** 2 == pytest.approx(1, abs=0.125)
            if sums is not None:
                noise = rows.sums - np.median(rows.sums)
                assert np.mean(noise**2) / mechanism.stddev(step, "sum") ** 2 == pytest.approx(1, abs=0.125)


def test_a_key_that_comes_late_has_the_noise_of_all_steps():
    mechanism = made(over="start", horizon=9)
    _, rows = mechanism.step(mechanism.initial_state(), given(9, np.full(5000, 10**4)), SeededNoise(3))
    assert np.mean((rows.counts - 10**4) ** 2) / mechanism.stddev(9) ** 2 == pytest.approx(1, abs=0.125)
    assert mechanism.stddev(9) > 1.15 * mechanism.stddev(1)


@pytest.mark.parametrize("together", [1, 1000, 1 << 18])
def test_a_key_that_comes_late_remembers_what_steps_one_by_one_leave(together, monkeypatch):
    monkeypatch.setattr("privstream.mechanisms.noise.running._TOGETHER", together)
    noise = made(horizon=50, contributions=10).law.noises[0]
    keys, source = np.arange(70, dtype=np.uint64), SeededNoise(1)
    found, wanted = np.zeros((2, noise.rows, len(keys)))
    noise.remember(found, 31, keys, source)
    for step in range(1, 31):
        noise.advance(wanted, step, keys, np.zeros(len(keys), np.int64), source)
    assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize(
    "options", [{"horizon": 9}, {"over": "start", "horizon": 9, "contributions": 50}, {"over": "start", "horizon": 9}]
)
def test_a_repetition_in_which_totals_agree_again_shows_no_exact_difference(options):
    """One person counts in step 5 and not in step 2: at step 5 totals are the same and answers are not."""
    mechanism, keys = made(**options, public_keys=True), np.arange(300, dtype=np.uint64)

    def fifth(now, later):
        state = mechanism.initial_state(keys)
        for step, more in ((1, 0), (2, now), (5, later)):
            counts = np.full(len(keys), 10**4 + more)
            state, rows = mechanism.step(state, KeyedStep(step=step, keys=keys, counts=counts), SeededNoise(3))
        return rows.counts

    differences = fifth(0, 1) - fifth(1, 0)
    assert fifth(0, 1).tolist() == fifth(0, 1).tolist()
    assert len(np.unique(differences)) > 3


@pytest.mark.parametrize("people", [1, 5])
def test_bare_keys_are_published_as_seldom_as_stated(people):
    """Keys that exactly `min_people` people have, at a delta so large that some are published."""
    mechanism = made(delta=0.1, contributions=40, min_people=people)
    counts = np.full(200_000, people)
    _, rows = mechanism.step(mechanism.initial_state(), given(1, counts), SeededNoise(4))
    allowed = mechanism.law.slack / 40 * len(counts)
    assert 0.3 * allowed < len(rows.keys) < allowed + 6 * math.sqrt(allowed)
    fewer = given(1, counts - 1)
    assert not len(mechanism.step(mechanism.initial_state(), fewer, SeededNoise(4))[1].keys)


def test_the_least_count_that_is_published_is_the_threshold():
    mechanism = made(contributions=40)
    counts = np.full(20_000, mechanism.threshold(1))
    _, rows = mechanism.step(mechanism.initial_state(), given(1, counts), SeededNoise(6))
    assert rows.counts.min() == mechanism.threshold(1)


def test_detection_is_as_likely_as_stated():
    mechanism = made(contributions=30)
    counts = np.full(50_000, mechanism.detection(1, 0.02))
    _, rows = mechanism.step(mechanism.initial_state(), given(1, counts), SeededNoise(6))
    assert 0.975 < len(rows.keys) / len(counts) < 0.99


@pytest.mark.parametrize("fields", OVER)
def test_snapshots_shards_and_gaps_change_nothing(fields):
    mechanism = made(**fields)
    inputs = [one for one in steps_of(mechanism, 40) if one.step not in (4, 5)]
    _, whole = run(mechanism, start(mechanism, 40), inputs)
    assert any(len(row.keys) for row in whole)
    state, halves = start(mechanism, 40), []
    for one in inputs:
        state, row = mechanism.step(mechanism.restore(mechanism.snapshot(state)), one, SeededNoise(1))
        halves.append(row)
    assert plain(halves) == plain(whole)
    odd = np.arange(40) % 2 == 1
    parts = []
    for mask in (odd, ~odd):
        columns = [
            (one, one.keys[mask], one.counts[mask], None if one.sums is None else one.sums[mask]) for one in inputs
        ]
        shard = [replace(one, keys=keys, counts=counts, sums=sums) for one, keys, counts, sums in columns]
        first = mechanism.initial_state(np.arange(40, dtype=np.uint64)[mask] if mechanism.public_keys else None)
        parts.append(run(mechanism, first, shard)[1])
    for row, left, right in zip(whole, *parts, strict=True):
        joined = dict(
            zip(left.keys.tolist() + right.keys.tolist(), left.counts.tolist() + right.counts.tolist(), strict=True)
        )
        assert joined == dict(zip(row.keys.tolist(), row.counts.tolist(), strict=True))
    nothing = None if mechanism.max_value is None else np.zeros(0, np.int64)
    filled = sorted([*inputs, *(given(step, [], nothing) for step in (4, 5))], key=lambda one: one.step)
    _, every = run(mechanism, start(mechanism, 40), filled)
    assert plain(row for row in every if row.step not in (4, 5)) == plain(whole)


@pytest.mark.parametrize("fields", OVER)
def test_noise_is_that_of_names_whatever_the_numbers_are(fields):
    mechanism = made(**fields)
    inputs, names = steps_of(mechanism, 40), np.arange(40, dtype=np.uint64)[::-1].copy()
    turned = [replace(one, keys=names[one.keys], names=names) for one in inputs]
    _, rows = run(mechanism, start(mechanism, 40), inputs)
    _, others = run(mechanism, start(mechanism, 40), turned)
    for row, other in zip(rows, others, strict=True):
        by_name = dict(zip(names[other.keys].tolist(), other.counts.tolist(), strict=True))
        assert by_name == dict(zip(row.keys.tolist(), row.counts.tolist(), strict=True))


def test_columns_that_cannot_be_right_are_refused():
    mechanism, right = made(), given(1, [3, 4])
    for changes, error, rule in (
        ({"keys": np.array([5, 5], np.uint64)}, ValueError, "keys must be distinct"),
        ({"counts": np.array([3])}, TypeError, "counts must be an array of int64, one for each key"),
        ({"keys": np.array([0, 1])}, TypeError, "keys must be an array of uint64"),
        ({"counts": np.array([3, -1])}, ValueError, "counts must be from 0 to"),
        ({"names": np.array([7], np.uint64)}, ValueError, "names must be"),
        ({"names": np.array([7, 8])}, ValueError, "names must be"),
    ):
        with pytest.raises(error, match=rule):
            mechanism.step(mechanism.initial_state(), replace(right, **changes), SeededNoise(1))


def test_sums_over_windows_have_the_noise_of_all_of_them():
    """They are a view: what is drawn is that of single windows, whatever sums are asked for."""
    single, summed = (made(over=over, horizon=9, public_keys=True) for over in ("window", 3))
    inputs = [given(step, [5000]) for step in (1, 2, 3)]
    rows = [run(mechanism, start(mechanism, 1), inputs)[1] for mechanism in (single, summed)]
    assert plain(rows[0]) == plain(rows[1])
    assert summed.stddev(9) == pytest.approx(math.sqrt(3) * single.stddev(9))


def test_unknown_keys_need_a_delta_that_is_not_large():
    for delta in (0.0, 0.2):
        with pytest.raises(ValueError, match=r"delta must be .* unless the list of items is public"):
            made(delta=delta)


def test_what_comes_is_checked_against_the_parameters():
    mechanism = made(over="start", horizon=3, max_value=5)
    state = mechanism.initial_state()
    with pytest.raises(ValueError, match="sums must be given where max_value is"):
        mechanism.step(state, given(1, [3]), SeededNoise(1))
    for wrong in (16, -1):
        with pytest.raises(ValueError, match="sums must be within") as caught:
            mechanism.step(state, given(1, [3], np.array([wrong])), SeededNoise(1))
        assert str(wrong) not in str(caught.value)
    with pytest.raises(HorizonExceeded, match="step must be <= horizon 3"):
        mechanism.step(state, given(4, [3], np.array([9])), SeededNoise(1))
    state, _ = mechanism.step(state, given(2, [3], np.array([9])), SeededNoise(1))
    with pytest.raises(ValueError, match="step must be > 2"):
        mechanism.step(state, given(2, [3], np.array([9])), SeededNoise(1))
    public = made(public_keys=True, horizon=3)
    with pytest.raises(ValueError, match="keys must be on the public list"):
        public.step(public.initial_state(np.arange(3, dtype=np.uint64)), given(1, [1], first=3), SeededNoise(1))
    with pytest.raises(ValueError, match="keys must not be given"):
        made().initial_state(np.arange(3, dtype=np.uint64))


RUN = {"epsilon": 0.2, "delta": 1e-6, "horizon": 1000, "contributions": 1000, "public_keys": True}


def test_noise_whose_sums_floats_would_round_is_refused():
    with pytest.raises(ValueError, match=f"must be (smaller|shorter) for .*{2**40:,}"):
        KeyedCounts(**RUN, over="start", max_value=2**40)
    assert KeyedCounts(**RUN, over="start", max_value=2**10).law


def test_the_low_bits_of_sums_say_nothing():
    largest = 2**40
    while True:  # the largest value that is not refused
        try:
            mechanism = KeyedCounts(**RUN, over="start", max_value=largest)
            break
        except ValueError:
            largest //= 2
    keys = np.arange(4000, dtype=np.uint64)
    state, given = mechanism.initial_state(keys), np.full(len(keys), 5)
    for number in range(1, 4):
        came = KeyedStep(step=number, keys=keys, counts=given, sums=given)
        state, rows = mechanism.step(state, came, SeededNoise(3))
    often = np.bincount(rows.sums % 8, minlength=8)
    assert np.abs(often - 500).max() < 150  # seven standard deviations


@pytest.mark.parametrize("waiting", [False, True])
def test_sums_that_do_not_fit_are_refused_and_never_wrap(waiting):
    often = {"epsilon": 1.0, "delta": 1e-6, "over": "start", "horizon": 9, "max_value": 2**36}
    mechanism = KeyedCounts(**often, min_people=2**30 if waiting else 1)
    counts = np.array([2**25, 1])
    came = {"keys": np.arange(2, dtype=np.uint64), "counts": counts, "sums": counts * 2**36}
    state, _ = mechanism.step(mechanism.initial_state(), KeyedStep(step=1, **came), SeededNoise(1))
    state, _ = mechanism.step(state, KeyedStep(step=2, **came), SeededNoise(1))
    with pytest.raises(ValueError, match="a key must have at most 67,108,864 contributions"):
        mechanism.step(state, KeyedStep(step=3, **came), SeededNoise(1))
    with pytest.raises(ValueError, match="counts must be from 0 to 67,108,864"):
        wrapped = came | {"counts": counts * 3}
        mechanism.step(mechanism.initial_state(), KeyedStep(step=1, **wrapped), SeededNoise(1))
