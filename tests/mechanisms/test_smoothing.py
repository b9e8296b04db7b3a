import numpy as np
import pytest
from privstream.mechanisms import smoothing
from privstream.mechanisms.smoothing import LevelState, LocalLevel
from privstream.mechanisms.snapshots import pack, unpack

NOISE = 20.0
MODEL = LocalLevel(NOISE)


def noisy(counts, seed):
    return counts + np.rint(NOISE * np.random.default_rng(seed).standard_normal(np.shape(counts)))


def walks(windows, keys, seed):
    """Random walks with all drifts from the least to the largest of the grid, noisy and exact."""
    rng = np.random.default_rng(seed)
    drifts = NOISE * np.exp(rng.uniform(np.log(0.01), np.log(2), keys))
    exact = 5000 + np.cumsum(drifts * rng.standard_normal((windows, keys)), axis=0)
    return noisy(exact, seed + 1), exact


def late(values):
    """The same series, but half of the keys have their first window later."""
    first = np.arange(values.shape[1]) % 6 - 2
    return np.where(np.arange(len(values))[:, None] < first, np.nan, values)


def run(values):
    """States after each window, of keys that are there from the first one."""
    states = [MODEL.join(MODEL.start(), values[:1])]
    for row in values[1:]:
        states.append(MODEL.advance(states[-1], row))
    return states


def equal(left, right):
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(left, right, strict=True))


def covered(smoothed, exact):
    return ((smoothed.lower <= exact) & (exact <= smoothed.upper)).mean()


def alone(monkeypatch):
    """Leave one model: a drift of 0.3 without scatter or bursts."""
    monkeypatch.setattr(smoothing, "_GRID", [(0.3, 0.0, 0.0)])
    monkeypatch.setattr(smoothing, "_ONWARD", 1)
    monkeypatch.setattr(smoothing, "_PRIOR", np.ones((1, 1)))
    monkeypatch.setattr(smoothing, "_BURST", 1e-12)


def test_one_model_is_the_exact_posterior(monkeypatch):
    """Least squares with explicit matrices: noisy counts, and steps of the level."""
    alone(monkeypatch)
    values = walks(12, 1, seed=1)[0]
    steps = np.diff(np.eye(12), axis=0) / (0.3 * NOISE)
    precision = np.eye(12) / NOISE**2 + steps.T @ steps
    found = LocalLevel(NOISE).smooth(values)
    np.testing.assert_allclose(found.estimates[:, 0], np.linalg.solve(precision, values[:, 0] / NOISE**2), atol=0.06)
    deviations = np.sqrt(np.diag(np.linalg.inv(precision)))
    np.testing.assert_allclose((found.upper - found.lower)[:, 0], 2 * 1.96 * deviations, atol=0.15)


def test_models_are_mixed_with_what_lies_within_and_between(monkeypatch):
    one = np.ones((1, 1))
    monkeypatch.setattr(smoothing, "_GRID", [(0.3, 0.0, 0.0), (0.3, 0.0, 0.0)])
    parts = smoothing._parts(np.array([15.0]), np.array([[10.0], [14.0]]), np.ones((2, 1)), 9.0, np.ones((2, 1)))
    apart = smoothing._mixed(parts, np.ones((2, 1)))
    assert np.round(apart, 1).ravel().tolist() == [12.0, 7.6, 16.4]  # variance 1 + 4
    monkeypatch.setattr(smoothing, "_GRID", [(0.3, 1.0, 0.0)])
    parts = smoothing._parts(np.array([15.0]), 9 * one, 4 * one, 9.0, one)  # half of the distance is scatter
    scattered = smoothing._mixed(parts, one)
    assert np.round(scattered, 1).ravel().tolist() == [12.0, 7.4, 16.6]  # variance 9 / 2 + 4 / 4


@pytest.mark.parametrize(("size", "held"), [(0, 0.99), (5, 0.78), (7, 0.9), (10, 0.7)])
def test_a_burst_of_one_window_stands_as_it_is(size, held):
    """Without that, intervals held 29%, 45% and 69% of bursts of 5, 7 and 10 deviations in a file."""
    exact = np.full((64, 3000), 150.0)
    exact[40] += size * NOISE
    values = noisy(exact, seed=size)
    both, forward = MODEL.smooth(values), MODEL.read(run(values[:41])[-1])
    assert np.mean((both.lower[40] <= exact[40]) & (exact[40] <= both.upper[40])) > held
    assert np.mean((forward.lower <= exact[40]) & (exact[40] <= forward.upper)) > min(held, 0.7)
    rest = np.delete(np.arange(64), 40)
    assert covered(smoothing.Smoothed(*(ends[rest] for ends in both)), exact[rest]) > 0.98
    assert np.sqrt(np.mean((both.estimates[rest] - 150) ** 2)) < 0.42 * NOISE


@pytest.mark.parametrize("size", [1.5, 3.0])
def test_a_step_in_a_long_series_is_followed_by_all_models(size):
    """It is no jump: models that hardly move go on from where others are, or they would be off for long."""
    exact = np.where(np.arange(365)[:, None] < 180, 150.0, 150.0 + size * NOISE) * np.ones(300)
    both = MODEL.smooth(noisy(exact, seed=3))
    assert covered(both, exact) > 0.97
    assert np.sqrt(np.mean((both.estimates - exact) ** 2)) < 0.22 * NOISE


def test_quiet_series_are_nearly_as_well_known_as_by_their_mean():
    exact = np.full((365, 300), 150.0)
    values = noisy(exact, seed=4)
    error = np.sqrt(np.mean((MODEL.smooth(values).estimates - exact) ** 2))
    assert error < 2.2 * np.sqrt(np.mean((values.mean(axis=0) - 150) ** 2))


@pytest.mark.parametrize("windows", [16, 64])
def test_the_error_of_a_constant_count_falls_with_the_root_of_the_windows(windows):
    values = noisy(np.full((windows, 1000), 300.0), seed=windows)
    forward, both = MODEL.read(run(values)[-1]), MODEL.smooth(values)
    for estimates, bound in ((forward.estimates, 2.1), (both.estimates[windows // 2], 1.8)):
        error = np.sqrt(np.mean((estimates - 300) ** 2)) * np.sqrt(windows) / NOISE
        assert 0.8 < error < bound


@pytest.mark.parametrize("size", [200, 2000, 200_000])
def test_a_jump_is_followed_at_once_and_not_spread(size):
    exact = np.where(np.arange(30)[:, None] < 20, 100.0, 100.0 + size) + np.zeros(500)
    values = noisy(exact, seed=size)
    both, forward = MODEL.smooth(values), MODEL.read(run(values[:21])[-1])
    assert np.sqrt(np.mean((forward.estimates - exact[20]) ** 2)) < 1.5 * NOISE
    assert np.sqrt(np.mean((both.estimates - exact) ** 2)) < 0.6 * NOISE
    assert covered(both, exact) > 0.93
    assert covered(forward, exact[20]) > 0.83


def test_a_burst_of_three_windows_after_a_long_quiet_time_is_kept():
    """It is four and a half deviations high: none of its windows is a jump by itself."""
    chance = np.random.default_rng(8)
    exact = chance.poisson(8, (100, 400)).astype(np.float64)
    exact[60:63] += 4.5 * NOISE
    both = MODEL.smooth(noisy(exact, seed=8))
    assert covered(both, exact) > 0.95
    inside = smoothing.Smoothed(*(ends[60:63] for ends in both))
    assert covered(inside, exact[60:63]) > 0.85
    assert np.mean(exact[60:63] - inside.estimates) < NOISE


def test_levels_may_be_multiplied_by_known_factors():
    factors = np.where(np.arange(70) % 7 == 5, 0.2, 1.0)[:, None]
    exact = 300 * factors * np.ones((70, 200))
    values = noisy(exact, seed=9)
    found, plain = MODEL.smooth(values, factors), MODEL.smooth(values)
    assert covered(found, exact) > 0.95
    assert np.std(found.estimates - exact) < 0.5 * np.std(plain.estimates - exact)
    assert all(np.array_equal(*ends) for ends in zip(MODEL.smooth(values, 1.0), plain, strict=True))
    wide = np.broadcast_to(factors, values.shape)
    assert all(np.array_equal(*ends) for ends in zip(MODEL.smooth(values, wide), found, strict=True))


def test_intervals_hold_random_walks():
    values, exact = walks(40, 4000, seed=3)
    assert 0.93 < covered(MODEL.smooth(values), exact) < 0.97
    forward = [covered(MODEL.read(state), row) for state, row in zip(run(values), exact, strict=True)]
    assert 0.93 < np.mean(forward) < 0.97


@pytest.mark.parametrize(("windows", "held"), [(16, 0.85), (52, 0.93)])
def test_items_that_rise_and_fall_in_turn(windows, held, request):
    """By 1.4 deviations of the noise to either side: with what streams try 56% and 37% were in their intervals."""
    exact = np.where((np.arange(windows)[:, None] + np.arange(1500)) % 2, 160.0, 40.0)
    model, values = LocalLevel(42.0), exact + np.rint(42 * np.random.default_rng(3).standard_normal(exact.shape))
    smoothed = model.smooth(values)
    assert covered(smoothed, exact) > held
    assert np.sqrt(np.square(smoothed.estimates - exact).mean()) < 0.95 * 42
    request.getfixturevalue("models_of_streams")
    assert covered(model.smooth(values), exact) < 0.6


@pytest.mark.usefixtures("models_of_streams")
def test_the_last_window_of_a_file_is_that_of_a_stream():
    values = late(walks(15, 40, seed=4)[0])
    state = MODEL.join(MODEL.start(), values)
    assert equal(MODEL.read(state), [column[-1] for column in MODEL.smooth(values)])


@pytest.mark.parametrize("keys", [1, 2, 3, 9, 40])
def test_keys_have_the_same_bits_among_others(keys, monkeypatch):
    values = late(walks(15, 40, seed=5)[0])
    together, some = MODEL.join(MODEL.start(), values), MODEL.join(MODEL.start(), values[:, :keys])
    assert equal(together.select(np.arange(keys))._arrays, some._arrays)
    for rows in np.random.default_rng(9).random((20, 18, 40)):
        assert np.array_equal(smoothing._sum(rows[:, :keys].copy()), smoothing._sum(rows)[:keys])
    whole = MODEL.smooth(values)
    monkeypatch.setattr(smoothing, "_TOGETHER", 15 * 20 * keys)
    assert equal(MODEL.smooth(values), whole)


def test_joining_with_a_history_is_having_been_there():
    values = walks(15, 40, seed=6)[0]
    early, state = run(values), run(values[:8, :25])[-1]
    state = MODEL.join(state, values[:8, 25:])
    assert equal(state._arrays, early[7]._arrays)
    state = MODEL.advance(state, values[8])
    assert equal(MODEL.read(state), MODEL.read(early[8]))
    assert len(MODEL.start()) == 0
    assert len(state.select(np.arange(40) % 2 == 0)) == 20


def test_a_state_does_not_change_with_the_array_it_came_from():
    values = walks(2, 3, seed=10)[0]
    state = run(values)[-1]
    before = [array.copy() for array in state._arrays]
    values[:] = 0
    assert equal(state._arrays, before)


def test_a_state_comes_back_from_a_snapshot():
    state = run(walks(5, 7, seed=7)[0])[-1]
    restored = LevelState(**unpack("levels", 1, pack("levels", 1, vars(state))))
    assert equal(restored._arrays, state._arrays)


def test_rows_are_counts_with_one_decimal():
    found = MODEL.smooth(late(noisy(np.zeros((10, 30)), seed=8)))
    for column in found:
        shown = column[~np.isnan(column)]
        assert shown.tolist() == [float(f"{value:.1f}") for value in shown]
        assert not np.signbit(shown).any()
    assert np.isnan(found.estimates[0]).sum() == np.isnan(found.lower[0]).sum() == 15
    assert np.all((found.lower <= found.estimates) & (found.estimates <= found.upper) | np.isnan(found.lower))
    assert MODEL.smooth(np.zeros((3, 0))).upper.shape == (3, 0)


@pytest.mark.parametrize("noise", [1e-6, 1e16])
def test_the_largest_counts_and_noises_give_numbers(noise):
    model, values = LocalLevel(noise), [[2.0**63], [-(2.0**63)], [0.0]]
    assert np.isfinite(model.smooth(values)).all()


def test_decay_is_exponential():
    x = np.linspace(0, 13, 1000)
    np.testing.assert_allclose(smoothing._decayed(x), np.exp(-x), rtol=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LocalLevel(0.0), "noise_stddev must be finite and > 0, got 0.0"),
        (lambda: LocalLevel(1e17), r"noise_stddev must be in \[1e-06, 1e\+16\], got 1"),
        (lambda: MODEL.smooth([1.0]), "values must be two-dimensional, got 1 dimensions"),
        (lambda: MODEL.smooth(np.zeros((0, 2))), "values must have at least one window"),
        (lambda: MODEL.smooth([[1.0], [np.nan]]), "values must be nan only before the first window of a key"),
        (lambda: MODEL.smooth([[np.inf]]), r"values must be at most 2\^63 in size"),
        (lambda: MODEL.advance(MODEL.start(), [1.0]), "values must be 0 finite numbers, one for each key, got 1"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_rise_has_the_exact_posterior_of_one_model(monkeypatch):
    """As above, with explicit matrices: windows that are near each other share most of their error."""
    alone(monkeypatch)
    values = walks(12, 1, seed=1)[0]
    steps = np.diff(np.eye(12), axis=0) / (0.3 * NOISE)
    law = np.linalg.inv(np.eye(12) / NOISE**2 + steps.T @ steps)
    for back in (1, 3, 11):
        rises = LocalLevel(NOISE).smooth_rises(values, back)[1]
        assert np.isnan(rises.differences[:back]).all() and np.isnan(rises.probabilities[:back]).all()
        for now in range(back, 12):
            contrast = np.eye(12)[now] - np.eye(12)[now - back]
            assert rises.stddevs[now, 0] == pytest.approx(np.sqrt(contrast @ law @ contrast), rel=0.01)
            mean = contrast @ law @ values[:, 0] / NOISE**2
            assert rises.differences[now, 0] == pytest.approx(mean, abs=0.11)


def test_a_sum_has_the_exact_posterior_of_one_model(monkeypatch):
    """As above; errors of neighbours add up, and those of all windows are less than theirs side by side."""
    alone(monkeypatch)
    values = 500 + walks(14, 1, seed=1)[0]
    steps = np.diff(np.eye(14), axis=0) / (0.3 * NOISE)
    law = np.linalg.inv(np.eye(14) / NOISE**2 + steps.T @ steps)
    for windows in (1, 2, 3, 7, 13, 20):
        single, sums = LocalLevel(NOISE).smooth_sums(values, windows)
        for now in range(14):
            over = np.zeros(14)
            over[max(0, now - windows + 1) : now + 1] = 1
            assert sums.estimates[now, 0] == pytest.approx(over @ law @ values[:, 0] / NOISE**2, abs=0.11)
            assert sums.estimates[now, 0] == pytest.approx(over @ single.estimates[:, 0], abs=0.05 * windows + 0.06)
            reach = 2.1788 * np.sqrt(over @ law @ over)
            assert (sums.upper - sums.lower)[now, 0] == pytest.approx(2 * reach, rel=0.01)


@pytest.mark.usefixtures("models_of_streams")
def test_a_sum_is_that_of_the_smoothed_counts_and_a_stream_reads_the_same():
    values = late(walks(20, 12, seed=4)[0])
    factors = np.tile([[0.5], [1.5]], (10, 1))
    single, sums = MODEL.smooth_sums(values, 3, factors)
    assert equal(single, MODEL.smooth(values, factors))
    added = np.array([np.nansum(single.estimates[max(0, t - 2) : t + 1], axis=0) for t in range(20)])
    assert np.allclose(sums.estimates, np.where(np.isnan(values), np.nan, added), atol=0.21, equal_nan=True)
    assert equal(MODEL.smooth_sums(values[:, 5:6], 3, factors)[1], (part[:, 5:6] for part in sums)), (
        "no other key counts"
    )
    state = MODEL.join(MODEL.start(), values[:1])
    for now in range(2, 20):  # as a stream does it: what is known up to now
        if now > 2:
            state = MODEL.advance(state, values[now - 2])
        newest = MODEL.read_sum(state, values[now - 1 : now + 1])
        until = MODEL.smooth_sums(values[: now + 1], 3)[1]
        assert all(
            np.allclose(left, right[-1], atol=0.11, equal_nan=True) for left, right in zip(newest, until, strict=True)
        )


def test_a_long_series_has_the_sums_of_a_short_one(monkeypatch):
    values = walks(300, 3, seed=5)[0]
    whole = MODEL.smooth_sums(values, 20)[1]
    monkeypatch.setattr(smoothing, "_LONGEST", 50)
    monkeypatch.setattr(smoothing, "_MARGIN", 200)
    parts = MODEL.smooth_sums(values, 20)[1]
    assert all(np.allclose(one, other, rtol=0, atol=40) for one, other in zip(whole, parts, strict=True)), "of 96,000"


def test_intervals_of_sums_hold_what_they_say():
    exact = np.rint(walks(40, 3000, seed=8)[1])
    sums = MODEL.smooth_sums(noisy(exact, 9), 7)[1]
    true = np.array([exact[max(0, t - 6) : t + 1].sum(axis=0) for t in range(40)])
    held = (sums.lower <= true) & (true <= sums.upper)
    assert 0.93 < held.mean() < 0.995


@pytest.mark.usefixtures("models_of_streams")
def test_a_rise_is_that_of_the_smoothed_counts():
    values = late(walks(20, 12, seed=4)[0])
    smoothed, rises = MODEL.smooth_rises(values, 3)
    assert equal(smoothed, MODEL.smooth(values))
    assert np.allclose(rises.differences[3:], smoothed.estimates[3:] - smoothed.estimates[:-3], equal_nan=True)
    state, counts = MODEL.join(MODEL.start(), values[:1]), values[1:]
    for now in range(3, 20):  # as a stream does it: what is known up to now
        if now > 3:
            state = MODEL.advance(state, values[now - 3])
        newest, risen = MODEL.read_rise(state, counts[now - 3 : now])
        until = MODEL.smooth_rises(values[: now + 1], 3)
        assert equal(newest, (part[-1] for part in until[0])) and equal(risen, (part[-1] for part in until[1]))
    alone = MODEL.smooth_rises(values[:, 5:6], 3)[1]
    assert equal(alone, (part[:, 5:6] for part in rises)), "other keys change no bit"


def test_a_season_that_is_known_is_no_rise():
    factors = np.tile([[1.0], [3.0]], (20, 1))
    values = noisy(200 * factors + np.zeros(300), seed=6)
    rises = MODEL.smooth_rises(values, 2, factors)[1]
    assert abs(rises.differences[-1].mean()) < 10
    rises = MODEL.smooth_rises(values, 1, factors)[1]
    low, high = rises.interval
    assert ((low[-1] <= 400) & (high[-1] >= 400)).mean() > 0.9


def test_of_what_is_likely_to_have_risen_as_much_has_risen():
    exact = np.rint(walks(40, 3000, seed=8)[1])
    rises = MODEL.smooth_rises(noisy(exact, 9), 4)[1]
    rose, told = exact[4:] > exact[:-4], rises.probabilities[4:]
    for least, most, share in ((0.9, 0.95, (0.88, 0.99)), (0.5, 0.75, (0.5, 0.78)), (0.05, 0.1, (0.01, 0.1))):
        inside = (least <= told) & (told < most)
        assert inside.sum() > 500 and share[0] < rose[inside].mean() < share[1]
    assert told.min() >= 0.001 and told.max() <= 0.999
    low, high = rises.interval
    held = (low[4:] <= exact[4:] - exact[:-4]) & (exact[4:] - exact[:-4] <= high[4:])
    assert 0.92 < held.mean() < 0.995


@pytest.mark.parametrize(
    ("windows", "message"), [(0, "windows must be >= 1, got 0"), (1025, "must be <= 1024, got 1025")]
)
def test_windows_of_a_sum_are_limited(windows, message):
    with pytest.raises(ValueError, match=message):
        MODEL.smooth_sums([[1.0]], windows)


def test_probabilities_are_never_0_or_1():
    found = smoothing.Rises(np.array([-1e15, 0.0, 0.5, 1e15, np.nan]), np.array([1.0, 0.0, 1.0, 0.0, 1.0]))
    assert found.probabilities[:4].tolist() == [0.001, 0.001, 0.5, 0.999] and np.isnan(found.probabilities[4])


@pytest.mark.parametrize(
    ("rising", "message"), [(-1, "rising must be >= 0, got -1"), (65, "rising must be <= 64, got 65")]
)
def test_windows_to_look_back_are_limited(rising, message):
    with pytest.raises(ValueError, match=message):
        MODEL.smooth_rises([[1.0]], rising)


def test_close_tries_counts_that_are_less_noisy_around_their_level():
    """Of 168 windows that alternate by less than the noise: without it intervals are too narrow for them."""
    rng, true = np.random.default_rng(5), 100 + 80 * (-1.0) ** np.arange(168)[:, None]
    values = true + rng.normal(0, 100, (168, 40))
    held = []
    for close in (False, True):
        found = LocalLevel(100.0, close=close).smooth(values)
        held.append(float(np.mean((found.lower <= true) & (true <= found.upper))))
    assert held[0] < 0.85 and held[1] > 0.93
    quiet = rng.normal(100, 100, (168, 40))
    widths = [np.subtract(*LocalLevel(100.0, close=close).smooth(quiet)[:0:-1]).mean() for close in (False, True)]
    assert widths[0] <= widths[1] < 2 * widths[0]
