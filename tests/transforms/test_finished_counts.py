"""Counts of a finished run are smoothed over all windows; what all items have in common by weekday or hour is kept."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import FoundKeys
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.privacy.units import SECOND
from privstream.mechanisms.smoothing import LocalLevel
from privstream.transforms import Domain
from privstream.transforms.counts.finished import FULL, SmoothFinished, _random_effects, season
from privstream.transforms.counts.transform import KeyedCounts
from privstream.transforms.rows import KeyCount
from privstream.transforms.timing.steps import Steps

HOUR, DAY = 3600, 86_400
NOISE = 10.0


def row(item: str, start: int, count: int, length: int, stream: str = "") -> KeyCount:
    """Return a row as it comes from the pipeline."""
    start_of, end = Timestamp(start), Timestamp(start + length)
    return KeyCount(stream, start_of, end, item, count, NOISE, 40, count - 20, count + 20, 0.0, 0.0, 0.0, end, False)


def rows_of(counts: np.ndarray, length: int, first: int = 0) -> list[KeyCount]:
    """Return rows of windows that follow each other, counts (windows, items)."""
    return [
        row(f"item {i}", (first + t) * length, int(count), length)
        for t, some in enumerate(counts)
        for i, count in enumerate(some)
    ]


def smoothed(rows, length):
    """Return the smoothed columns of rows, (3, rows)."""
    found = SmoothFinished(length * SECOND, NOISE)(rows)
    assert [r._replace(smoothed=0.0, smoothed_lower=0.0, smoothed_upper=0.0) for r in found] == rows
    return np.array([(r.smoothed, r.smoothed_lower, r.smoothed_upper) for r in found]).T


def test_each_item_and_stream_is_smoothed_by_itself_and_gaps_part_it():
    chance = np.random.default_rng(1)
    counts = chance.integers(0, 300, 12)
    series = [row("a", 60 * t, int(counts[t]), 60) for t in range(4)]
    late = [row("a", 60 * t, int(counts[t]), 60) for t in range(6, 9)]
    other = [row("a", 60 * t, int(counts[t]), 60, "s") for t in range(9, 12)]
    rows = [*series, *late, *other]
    order = chance.permutation(len(rows))
    found = smoothed([rows[i] for i in order], 60)[:, np.argsort(order)]
    model = LocalLevel(NOISE)
    expected = [np.array(model.smooth(counts[some, None]))[:, :, 0] for some in (slice(4), slice(6, 9), slice(9, 12))]
    assert np.array_equal(found, np.concatenate(expected, axis=1))
    assert SmoothFinished(60 * SECOND, NOISE)([]) == []


@pytest.mark.parametrize(("length", "season"), [(DAY, 7), (HOUR, 24)])
def test_a_season_is_kept(length, season):
    chance = np.random.default_rng(season)
    factors = np.ones(season)
    factors[[2, 3]] = 0.1, 1.6
    exact = 120 * np.tile(factors, 8)[:, None] * np.linspace(0.5, 1.5, 12)
    values = np.rint(exact + chance.normal(0, NOISE, exact.shape))
    found = smoothed(rows_of(values, length, first=5), length).reshape(3, *exact.shape)
    inside = (found[1] <= exact) & (exact <= found[2])
    assert inside.mean() > 0.93 and inside[(np.arange(len(exact)) % season) == 2].mean() > 0.9
    assert np.std(found[0] - exact) < 0.3 * np.std(LocalLevel(NOISE).smooth(values).estimates - exact)


def test_rises_are_those_of_each_item_and_none_reaches_over_a_gap():
    counts = np.random.default_rng(2).integers(0, 300, 12)
    series = [row("a", 60 * t, int(counts[t]), 60) for t in range(5)]
    late = [row("a", 60 * t, int(counts[t]), 60) for t in range(7, 12)]
    found = SmoothFinished(60 * SECOND, NOISE, rising=2)([*late, *series])
    assert [r.rise is None for r in found] == [True, True, False, False, False] * 2
    for some, of in ((found[:5], slice(7, 12)), (found[5:], slice(5))):
        expected = LocalLevel(NOISE).smooth_rises(counts[of, None], 2)[1]
        low, high = expected.interval
        for number, r in enumerate(some):
            if r.rise is not None:
                assert (
                    r.rise == expected.differences[number, 0] == pytest.approx(r.smoothed - some[number - 2].smoothed)
                )
                assert (r.rise_lower, r.rise_upper) == (low[number, 0], high[number, 0])
                assert r.rise_probability == expected.probabilities[number, 0]
    assert all(r.rise is None for r in SmoothFinished(60 * SECOND, NOISE)(series))


def test_a_season_that_is_not_known_well_widens_rises():
    chance = np.random.default_rng(3)
    factors = np.tile(np.array([1.0, 1.0, 0.3, 1.0, 1.0, 1.0, 1.7]), 6)[:, None] * chance.uniform(0.9, 1.1, (42, 1))
    exact = 3000 * factors * np.ones(4)
    rows = rows_of(np.rint(exact + chance.normal(0, NOISE, exact.shape)), DAY)
    assert all(season(DAY * SECOND, np.arange(42), exact[:, 0], NOISE)[1] > 0)
    for back, share in ((1, 0.8), (7, 0.8)):
        found = SmoothFinished(DAY * SECOND, NOISE, rising=back)(rows)
        low, high = (np.array([getattr(r, name) for r in found[4 * back :]]) for name in ("rise_lower", "rise_upper"))
        true = (exact[back:] - exact[:-back]).ravel()
        assert np.mean((low <= true) & (true <= high)) > share
        narrow = LocalLevel(NOISE).smooth_rises(np.array([r.count for r in rows], float).reshape(-1, 4), back)[1]
        assert back == 7 or np.median(high - low) > 2 * np.nanmedian(narrow.interval[1] - narrow.differences)


def test_small_numbers_are_left_out_when_they_are_final():
    counts = np.array([[100, 5], [90, 8], [3, 6], [95, 120]])
    everything = SmoothFinished(60 * SECOND, NOISE)(rows_of(counts, 60))
    shown = SmoothFinished(60 * SECOND, NOISE, at_least=20)(rows_of(counts, 60))
    assert shown == [r for r in everything if r.smoothed >= 20] and 0 < len(shown) < len(everything)
    assert SmoothFinished(60 * SECOND, NOISE, at_least=20)([]) == []


def test_counts_of_several_windows_are_sums_and_none_reaches_over_a_gap():
    mechanism = FoundKeys(epsilon=1.0, delta=1e-3, contributions=9, horizon=20, over=3)
    chance = np.random.default_rng(2)
    counts = chance.integers(0, 300, 12)
    series = [row("a", 60 * t, int(counts[t]), 60) for t in range(5)]
    late = [row("a", 60 * t, int(counts[t]), 60) for t in range(7, 12)]
    rows = [*late, *series]
    order = chance.permutation(len(rows))
    shuffled = SmoothFinished(60 * SECOND, mechanism.stddev(1), windows=mechanism.windows, sums=mechanism)(
        [rows[i] for i in order]
    )
    found = [shuffled[i] for i in np.argsort(order)]
    for some, of in ((found[:5], slice(7, 12)), (found[5:], slice(5))):
        ends = LocalLevel(mechanism.stddev(1)).smooth_sums(counts[of, None], 3)[1]
        for number, r in enumerate(some):
            windows = min(3, number + 1)
            assert r.count == counts[of][number + 1 - windows : number + 1].sum()
            assert r.count_stddev == pytest.approx(mechanism.stddev(1) * windows**0.5)
            spread = mechanism.law.noises[0].summed(3).tail_bound(windows, 0.025)
            assert (r.lower, r.upper) == (max(0, r.count - spread), r.count + spread)
            assert (r.smoothed, r.smoothed_lower, r.smoothed_upper) == tuple(part[number, 0] for part in ends)
    least = round(np.median([r.smoothed for r in found]))
    hidden = SmoothFinished(
        60 * SECOND, mechanism.stddev(1), at_least=least, windows=mechanism.windows, sums=mechanism
    )(rows)
    assert hidden == [r for r in found if r.smoothed >= least] and 0 < len(hidden) < len(found)


@pytest.mark.parametrize("windows", [7, 14, 10])
def test_whole_seasons_have_no_error_of_factors_and_the_rest_has(windows):
    chance = np.random.default_rng(3)
    factors = np.tile(np.array([1.0, 1.0, 0.3, 1.0, 1.0, 1.0, 1.7]), 6)[:, None] * chance.uniform(0.9, 1.1, (42, 1))
    exact = 3000 * factors * np.ones(4)
    mechanism = FoundKeys(epsilon=1.0, delta=1e-3, contributions=9, horizon=42, over=windows)
    rows = rows_of(np.rint(exact + chance.normal(0, NOISE, exact.shape)), DAY)
    found = SmoothFinished(DAY * SECOND, NOISE, windows=mechanism.windows, sums=mechanism)(rows)
    low, high = (
        np.array([getattr(r, name) for r in found[4 * windows :]]) for name in ("smoothed_lower", "smoothed_upper")
    )
    true = np.array([exact[t - windows + 1 : t + 1].sum(axis=0) for t in range(windows, 42)]).ravel()
    assert np.mean((low <= true) & (true <= high)) > 0.9
    most = np.array([abs(r.smoothed - r.count) + r.upper - r.count for r in found[4 * windows :]])
    reach = (high - [r.smoothed for r in found[4 * windows :]]) / most
    assert np.allclose(reach, 1, atol=0.01) == (windows == 10), "here as far as the noise of the count"


def test_what_is_no_season_changes_next_to_nothing():
    values = np.rint(100 + np.random.default_rng(8).normal(0, NOISE, (56, 5)))
    found = smoothed(rows_of(values, DAY), DAY).reshape(3, *values.shape)
    off = np.abs(found - np.array(LocalLevel(NOISE).smooth(values)))
    assert off[0].max() < 0.05 * NOISE and off.max() < 0.2 * NOISE


@pytest.mark.parametrize("common", [0.0, 0.7])
@pytest.mark.parametrize("change", ["each window differs", "a part of the first window", "a burst", "one day in seven"])
def test_what_comes_in_each_window_is_kept(change, common):
    """Errors are smaller than without it, and intervals hold; part of the noise may be common to all of a window."""
    off, alone, held = [], [], []
    for seed in range(8):
        chance = np.random.default_rng(seed)
        exact = np.tile(2000 / np.arange(2, 32), (6 if change == "a part of the first window" else 26, 1))
        if change == "each window differs":
            exact *= 1 + 0.1 * chance.normal(size=(26, 1))
        elif change == "a part of the first window":
            exact[0] *= 0.5
        elif change == "a burst":
            exact[20] *= 3
        else:
            exact[3::7] *= 0.5
        shared = common * NOISE * chance.normal(size=(len(exact), 1))
        values = np.rint(exact + shared + NOISE * np.sqrt(1 - common**2) * chance.normal(size=exact.shape))
        smooth = SmoothFinished(60 * SECOND, NOISE, common=common * NOISE)
        estimates, lower, upper = smooth.of_series(values, 60 * SECOND * np.arange(len(exact)))
        off.append(np.mean(np.square(estimates - exact)))
        alone.append(np.mean(np.square(LocalLevel(NOISE).smooth(values).estimates - exact)))
        held.append(np.mean((lower <= exact) & (exact <= upper)))
    assert np.mean(held) > 0.94
    assert np.mean(off) < (0.9 if common == 0 else 1.02) * np.mean(alone)


@pytest.mark.parametrize("end", ["first", "last"])
def test_a_window_that_is_cut_short_is_not_drawn_too_high(end):
    """All items have a fifth in it; one more rises there, and keeps what it has."""
    chance = np.random.default_rng(3)
    exact = np.tile(np.linspace(40, 160, 300), (20, 1))
    place = 0 if end == "first" else 19
    exact[place] *= 0.2
    exact[place, 0] = 400
    values = np.rint(exact + chance.normal(0, NOISE, exact.shape))
    found = smoothed(rows_of(values, 60), 60).reshape(3, *exact.shape)[:, place]
    assert np.sqrt(np.mean(np.square(found[0] - exact[place])[1:])) < 0.7 * NOISE
    assert np.mean((found[1] <= exact[place]) & (exact[place] <= found[2])) > 0.9
    assert abs(found[0, 0] - 400) < 3 * NOISE
    plain = np.array(LocalLevel(NOISE).smooth(values))[:, place]
    assert np.mean(plain[0, 1:] - exact[place, 1:]) > 0.1 * NOISE, "without the factor it is"
    assert abs(np.mean(found[0, 1:] - exact[place, 1:])) < 0.05 * NOISE


@pytest.mark.parametrize(("largest", "part"), [(60, 0.45), (30, 0.6)])
def test_a_single_day_of_many_on_which_all_items_fall_is_seen(largest, part):
    """As on the day of a storm, where no item alone shows it: the less surely it is so, the wider are intervals."""
    off, held = [], []
    for seed in range(4):
        chance = np.random.default_rng(seed)
        exact = np.tile(np.linspace(largest / 3, largest, 30), (182, 1))
        exact[40] *= part
        estimates, lower, upper = SmoothFinished(DAY * SECOND, NOISE).of_series(
            np.rint(exact + chance.normal(0, NOISE, exact.shape)), DAY * SECOND * np.arange(182)
        )
        off.append(estimates[40].sum() / exact[40].sum() - 1)
        held.append(np.mean((lower <= exact) & (exact <= upper), axis=1)[[39, 40, 41]])
    assert abs(np.mean(off)) < 0.2 and np.min(np.mean(held, axis=0)) > 0.9, (off, held)


@pytest.mark.parametrize(
    ("part", "length"),
    [
        (np.where(np.arange(30) == 7, 0.0, 1.0), 60),
        (np.where(np.arange(30) == 29, 0.02, 1.0), 60),
        (np.where(np.arange(30) % 10 < 2, 1.0, 0.0), 60),
        (np.where(np.arange(56) % 7 < 6, 1.0, 0.0), DAY),
    ],
    ids=["one of 30 closed", "hardly begun", "six of 30 open", "weekdays"],
)
def test_intervals_hold_windows_in_which_hardly_anything_comes(part, length):
    """A factor is never as small as nothing: how far it is from that belongs to what is not known of it."""
    chance, closed = np.random.default_rng(5), part < 0.05
    exact = part[:, None] * 1000 / np.arange(1, 41) ** 0.7
    model, starts = SmoothFinished(length * SECOND, NOISE), np.arange(len(exact)) * length * SECOND
    held = []
    for _ in range(5):
        found, lower, upper = model.of_series(np.rint(exact + NOISE * chance.normal(size=exact.shape)), starts)
        held.append((lower <= exact) & (exact <= upper))
        assert np.sqrt(np.mean(np.square(found - exact))) < NOISE / 2
    holds = np.mean(held, axis=0)
    assert holds[closed].mean() > 0.95 and holds[~closed].mean() > 0.95
    assert holds[closed, :3].mean() > 0.85, "of the largest"


@pytest.mark.parametrize("over", [7, 14])
def test_sums_are_right_where_hardly_anything_comes_in_most_windows(over):
    chance, part = np.random.default_rng(5), np.where(np.arange(30) % 10 < 2, 1.0, 0.0)
    exact = part[:, None] * 1000 / np.arange(1, 41) ** 0.7
    sums = np.cumsum(exact, axis=0)
    sums[over:] -= sums[:-over].copy()
    model, starts = SmoothFinished(60 * SECOND, NOISE, windows=over), np.arange(30) * 60 * SECOND
    held = []
    for _ in range(10):
        found, lower, upper = model.of_series(np.rint(exact + NOISE * chance.normal(size=exact.shape)), starts)
        held.append((lower - 0.5 <= sums) & (sums <= upper + 0.5))
        assert np.sqrt(np.mean(np.square(found - sums))) < 0.55 * NOISE * np.sqrt(over)
    assert np.mean(held) > 0.97 and np.mean(held, axis=0)[:, :3].mean() > 0.95


def test_days_keep_what_comes_in_them_beside_a_day_on_which_nothing_does():
    """The noise of a closed day, as a part of the little that is usual on it, hides no item."""
    chance, part = np.random.default_rng(5), np.where(np.arange(56) % 7 < 6, 1.0, 0.0)
    exact = (part * (1 + 0.1 * chance.normal(size=56)))[:, None] * 1000 / np.arange(1, 41) ** 0.7
    values = np.rint(exact + NOISE * chance.normal(size=exact.shape))
    found, lower, upper = SmoothFinished(DAY * SECOND, NOISE).of_series(values, np.arange(56) * DAY * SECOND)
    assert np.sqrt(np.mean(np.square(found - exact))) < 0.35 * NOISE
    assert np.mean((lower <= exact) & (exact <= upper)) > 0.97


def test_one_large_item_that_falls_is_no_window_that_is_cut_short():
    chance = np.random.default_rng(4)
    exact = np.tile(np.linspace(40, 160, 15), (20, 1))
    exact[:, 0] = 5000
    exact[-1, 0] = 100
    values = np.rint(exact + chance.normal(0, NOISE, exact.shape))
    expected = np.array(LocalLevel(NOISE).smooth(values))
    assert np.array_equal(smoothed(rows_of(values, 60), 60).reshape(3, *exact.shape), expected)


def test_sums_and_rises_know_that_a_window_is_cut_short():
    chance = np.random.default_rng(5)
    exact = np.tile(np.linspace(40, 160, 15), (20, 1))
    exact[-1] *= 0.2
    values = np.rint(exact + chance.normal(0, NOISE, exact.shape))
    rises = SmoothFinished(60 * SECOND, NOISE, rising=1)(rows_of(values, 60))[-15:]
    fell = exact[-1] - exact[-2]
    assert np.mean([r.rise_lower <= by <= r.rise_upper for r, by in zip(rises, fell, strict=True)]) > 0.8
    assert all(r.rise < -20 for r in rises)
    sums = FoundKeys(epsilon=1.0, delta=1e-3, contributions=3, horizon=20, over=3)
    added = SmoothFinished(60 * SECOND, NOISE, windows=sums.windows, sums=sums)(rows_of(values, 60))[-15:]
    totals = exact[-3:].sum(axis=0)
    assert np.mean([r.smoothed_lower <= t <= r.smoothed_upper for r, t in zip(added, totals, strict=True)]) > 0.8


def test_full_numbers_of_sums_rest_on_the_share_of_all_their_windows():
    given = {"epsilon": 8.0, "delta": 1e-2, "max_contributions": 3, "full_share": 0.3, "noise": SeededNoise(1)}
    made = KeyedCounts(**given, window=HOUR, start=0, windows=8, over=3 * HOUR)
    share = [0.9] * 4 + [0.5] * 4
    rows = [
        one._replace(kept=round(100_000 * part), left_out=round(100_000 * (1 - part)), used_up=0)
        for one, part in zip(rows_of(np.array([[1000 * part] for part in share]), HOUR), share, strict=True)
    ]
    found = made.finish(rows)
    assert [row.count for row in found] == [900, 1800, 2700, 2700, 2300, 1900, 1500, 1500]
    assert [row.full for row in found] == pytest.approx([1000, 2000] + [3000] * 6, rel=0.02)
    assert all(row.full_lower <= row.full <= row.full_upper for row in found)


def table_of(rows: list[KeyCount]) -> pa.Table:
    """Return rows as a table, times in microseconds."""
    plain = [[value.micros if isinstance(value, Timestamp) else value for value in r] for r in rows]
    return pa.table([pa.array(column) for column in zip(*plain, strict=True)], list(KeyCount._fields))


@pytest.mark.parametrize("kind", ["windows", "rises", "at least", "sums", "told", "everything"])
def test_a_table_is_finished_as_its_rows_are(kind):
    chance = np.random.default_rng(6)
    rows = [
        row(f"item {n}", DAY * t, int(chance.integers(0, 40 * n)), DAY, stream)
        for stream in ("s", "")
        for n in (1, 2, 10)
        for t in range(30)
        if (n, t) != (2, 7)
    ]
    rows = [rows[place] for place in chance.permutation(len(rows))]
    smooth = SmoothFinished(DAY * SECOND, NOISE)
    sums = FoundKeys(epsilon=1.0, delta=1e-3, contributions=9, horizon=30, over=3)
    if kind in ("told", "everything"):
        told = FoundKeys(epsilon=1.0, delta=1e-6, contributions=15, horizon=30, full_share=0.05).left_out
        steps = Steps.of(window=DAY, start=0, windows=30)
        smooth = replace(smooth, steps=steps, left_out=told) if kind == "told" else smooth
        kept = {t: int(chance.integers(3000, 4000)) for t in range(30)}
        rows = [
            r._replace(kept=kept[r.window_start.micros // (DAY * SECOND)], left_out=1000, used_up=7, used_up_lower=0)
            if kind == "told"
            else r._replace(full=float(r.count), full_lower=1.0, full_upper=500.0)
            for r in rows
        ]
    smooth = {
        "rises": replace(smooth, rising=2),
        "at least": replace(smooth, at_least=20),
        "sums": replace(smooth, windows=3, sums=sums),
        "everything": replace(smooth, windows=3, sums=sums),
    }.get(kind, smooth)
    found, expected = smooth.in_columns(table_of(rows)), smooth(rows)
    assert found.equals(table_of(expected).cast(found.schema)) and len(expected) > 0
    assert (found.num_rows < len(rows)) == (kind == "at least")
    assert kind != "rises" or found["rise"].null_count == 2 * (2 * 2 + 4), "two of each item, and again after a gap"
    assert kind != "told" or found["full"].null_count < len(rows)
    if kind == "everything":
        for of_all, counted in zip(FULL, ("smoothed", "smoothed_lower", "smoothed_upper"), strict=True):
            assert found[of_all].equals(found[counted]), "limits leave out nothing, so that the same numbers are full"
    assert smooth.in_columns(table_of(rows)[:0]).num_rows == 0


WEEKS, ITEMS = 13, 12


def told_by(counts: np.ndarray, share: float) -> tuple[SmoothFinished, list[KeyCount]]:
    """Return what smooths counts of weeks, and their rows: all items of a week have `share` of what came in it."""
    made = FoundKeys(epsilon=1.0, delta=1e-6, contributions=15, horizon=WEEKS, full_share=0.05)
    steps = Steps.of(window=7 * DAY, start=0, windows=WEEKS)
    smooth = SmoothFinished(7 * DAY * SECOND, NOISE, steps=steps, left_out=made.left_out)
    came = round(100 * made.left_out.stddevs[1])
    rows = rows_of(counts, 7 * DAY)
    told = {"kept": round(came * share), "left_out": round(came * (1 - share)), "used_up": 0}
    return smooth, [one._replace(**told) for one in rows]


def test_noise_of_what_is_left_out_moves_no_smoothed_count():
    """Until more is left out than noise explains, intervals of what counts are as narrow as without a share."""
    chance = np.random.default_rng(5)
    counts = np.rint(600 / np.arange(1, ITEMS + 1) + chance.normal(0, NOISE, (WEEKS, ITEMS)))
    smooth, rows = told_by(counts, 1.0)
    smooth = replace(smooth, steady=True)
    noise = np.rint(chance.normal(0, smooth.left_out.stddevs[1], WEEKS))
    plain = SmoothFinished(smooth.length, NOISE)(rows)
    for part, same in ((0, True), (10, False)):
        left_out = noise + part * smooth.left_out.stddevs[1]
        found = smooth([row._replace(left_out=round(left_out[number // ITEMS])) for number, row in enumerate(rows)])
        smoothed = [(row.smoothed, row.smoothed_lower, row.smoothed_upper) for row in found]
        assert (smoothed == [(row.smoothed, row.smoothed_lower, row.smoothed_upper) for row in plain]) is same
        assert all(row.full is not None for row in found)


def of_draws(part: float, runs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the levels of full numbers and of smoothed ones, and how many intervals of full numbers hold, of each run.

    Random contributions leave out so much of everything, as a multiple of the noise of the totals of the run.
    """
    true = 600 / np.arange(1, ITEMS + 1) * np.ones((WEEKS, 1))
    smooth, _ = told_by(true, 1.0)
    smooth, of_kept, of_left_out = replace(smooth, steady=True), *smooth.left_out.stddevs
    came = 5 * of_left_out
    share = 1 - part * of_left_out / (WEEKS**0.5 * came)
    full, smoothed, held = np.empty(runs), np.empty(runs), np.empty(runs)
    for seed in range(runs):
        chance = np.random.default_rng(seed)
        counts = np.rint(share * true + chance.normal(0, NOISE, true.shape))
        told = [(came * share, of_kept), (came * (1 - share), of_left_out)]
        kept, left_out = (np.rint(level + chance.normal(0, spread, WEEKS)).astype(int) for level, spread in told)
        rows = [
            row._replace(kept=int(kept[number // ITEMS]), left_out=int(left_out[number // ITEMS]), used_up=0)
            for number, row in enumerate(rows_of(counts, 7 * DAY))
        ]
        found = smooth(rows)
        full[seed], smoothed[seed] = (sum(getattr(r, n) for r in found) / true.sum() for n in ("full", "smoothed"))
        held[seed] = np.mean([r.full_lower <= x <= r.full_upper for r, x in zip(found, true.ravel(), strict=True)])
    return full, smoothed, held


@pytest.mark.parametrize("part", [0, 2.5])
def test_full_numbers_are_centred_on_smoothed_ones_until_more_is_left_out_than_noise_explains(part):
    full, smoothed, held = of_draws(part, 20)
    assert held.mean() > 0.95
    assert np.all(full >= smoothed - 0.001) and full.mean() - 1 < 0.03, "noise moves a share only down"
    assert full.mean() > smoothed.mean() + (0.05 if part else -0.001)
    if not part:
        assert np.mean(full < smoothed + 0.001) > 0.5


def test_full_numbers_keep_what_all_items_have_in_common_and_have_less_noise_than_counts():
    season = np.where(np.arange(WEEKS) % 4 == 3, 1.4, 1.0)[:, None]
    true = season * (600 / np.arange(1, ITEMS + 1))
    counts = np.rint(0.8 * true + np.random.default_rng(4).normal(0, NOISE, true.shape))
    smooth, rows = told_by(counts, 0.8)
    found = smooth(rows)
    full = np.array([row.full for row in found]).reshape(true.shape)
    off, of_counts = np.abs(full - true).mean(), np.abs(counts / 0.8 - true).mean()
    assert off < 0.7 * of_counts
    held = [row.full_lower <= number <= row.full_upper for row, number in zip(found, true.ravel(), strict=True)]
    assert np.mean(held) > 0.93
    busy = season[:, 0] > 1
    assert np.abs(full.sum(axis=1) / true.sum(axis=1) - 1)[busy].mean() < 0.05


def test_a_season_of_everything_is_kept_where_noise_explains_what_limits_leave_out():
    """Peaks are no lower and troughs no higher by smoothing, also of small items, with or without what is told."""
    season = 1 + 0.6 * np.sin(np.arange(WEEKS) / WEEKS * 2 * np.pi)[:, None]
    true = season * (300 / np.arange(1, ITEMS + 1))
    told, untold = np.empty((4, 2)), np.empty((4, 2))
    peak, trough = season[:, 0] > 1.4, season[:, 0] < 0.6
    for seed in range(4):
        counts = np.rint(true + np.random.default_rng(seed).normal(0, NOISE, true.shape))
        smooth, rows = told_by(counts, 1.0)
        for found, of in ((told, replace(smooth, steady=True)), (untold, SmoothFinished(smooth.length, NOISE))):
            smoothed = np.array([row.smoothed for row in of(rows)]).reshape(true.shape)[:, 4:]
            found[seed] = [smoothed[some].sum() / true[some][:, 4:].sum() for some in (peak, trough)]
    for levels in (told, untold):
        assert np.all(np.abs(levels.mean(axis=0) - 1) < 0.08), levels


def test_items_that_move_by_themselves_say_little_of_all():
    """An item with nearly half of everything that comes and goes does not move the others."""
    chance = np.random.default_rng(8)
    true = np.tile(np.array([3000.0, *(300.0,) * (ITEMS - 1)]), (WEEKS, 1))
    true[1::2, 0] = 1000.0
    smooth, rows = told_by(np.rint(true + chance.normal(0, NOISE, true.shape)), 0.9)
    smoothed = np.array([row.smoothed for row in smooth(rows)]).reshape(true.shape)
    assert np.abs(smoothed[:, 1:] / true[:, 1:] - 1).max() < 0.08
    assert np.abs(smoothed[:, 0] / true[:, 0] - 1).max() < 0.05


def test_random_effects_know_what_errors_have_in_common():
    """Means of many groups of values with such errors are off by as much as is said; where it moves values by different
    parts, which looks as if they differed, by no more."""
    chance, groups = np.random.default_rng(3), np.repeat(np.arange(4000), 4)
    for usual, least in (([1.0, 1.0, 1.0, 1.0], 0.85), ([1.0, 2.0, 4.0, 8.0], 0.3)):
        own, common = np.tile(0.03 / np.array(usual), 4000), np.tile(0.04 / np.array(usual), 4000)
        values = 1 + own * chance.normal(size=16000) + common * np.repeat(chance.normal(size=4000), 4)
        means, variances, _ = _random_effects(groups, values, own**2, common)
        assert least < np.mean((means - 1) ** 2 / variances) < 1.15
        if usual[-1] == 1:
            assert np.mean((means - 1) ** 2 / _random_effects(groups, values, own**2)[1]) > 3


def test_finishing_a_list_knows_the_noise_that_its_counts_have_in_common():
    given = {"window": DAY, "start": 0, "end": 13 * DAY, "epsilon": 1.0, "delta": 1e-6, "noise": SeededNoise(1)}
    for items, shares in ((10, True), (400, False)):
        made = KeyedCounts(**given, domain=Domain(map(str, range(items)))).to_finish()
        assert (made.mechanism.common_stddev > 0) == shares == ("noise in common" in made.prediction.claim)
        assert made.finish.common == made.mechanism.common_stddev
        assert made.finish.stddev == made.mechanism.stddev(1)


def test_random_effects_are_those_of_a_meta_analysis():
    """Without differences between items the mean is weighted by precision alone, and with large ones by nothing."""
    groups, variances = np.repeat([0, 1], 3), np.array([1.0, 4.0, 4.0, 1.0, 1.0, 2.0])
    means, errors, apart = _random_effects(groups, np.array([2.0, 2.5, 1.5, 5.0, 5.0, 5.0]), variances)
    assert means == pytest.approx([2.0, 5.0]) and errors == pytest.approx([1 / 1.5, 1 / 2.5])
    assert apart.tolist() == [0.0, 0.0]
    means, errors, apart = _random_effects(groups, np.array([0.0, 300.0, 600.0, 0.0, 300.0, 600.0]), variances)
    assert means == pytest.approx([300.0, 300.0], rel=1e-3) and np.all(errors > 20_000) and np.all(apart > 20_000)
    _, _, apart = _random_effects(groups, np.array([0.0, 300.0, 600.0, 5.0, 5.0, 5.0]), variances)
    assert apart[0] > 20_000 and apart[1] == 0
    groups, values = np.repeat(np.arange(50), 100), np.ones(5000)
    values[7] = 101.0  # of the first group, whose plain mean is 2
    means, _, _ = _random_effects(groups, values, np.full(5000, 0.01))
    assert abs(means[0] - 1) < 0.1 and np.all(means[1:] == 1)


def test_a_window_in_which_some_items_rise_is_unsure_about_all_of_them():
    """Every second item has 30% more in two windows. The mean moves those that have not risen, too."""
    usual = 2000 / np.arange(1, 31) ** 0.8
    true = np.tile(usual, (WEEKS, 1))
    true[np.ix_([4, 9], np.arange(0, 30, 2))] *= 1.3
    held = np.zeros(WEEKS)
    for draw in range(6):
        noise = np.random.default_rng(draw).normal(0, NOISE, true.shape)
        smooth, rows = told_by(np.rint(true + noise), 1.0)
        lower, upper = np.transpose([(row.smoothed_lower, row.smoothed_upper) for row in smooth(rows)])
        held += ((lower <= true.ravel()) & (true.ravel() <= upper)).reshape(true.shape).mean(axis=1) / 6
    assert held[[4, 9]].min() > 0.93 and held.mean() > 0.95


@pytest.mark.parametrize("others", [1.0, 0.0])
def test_what_is_not_known_of_a_window_leaves_a_count_as_sure_as_its_noise(others):
    """Three items have a burst of two windows: items differ by far more there than noise explains."""
    usual = np.tile(300 / np.arange(1, ITEMS + 1) ** 0.5, (WEEKS, 1))
    usual[:, :3] *= others
    usual[5:7, :3] = 3000
    held = []
    for draw in range(4):
        smooth, rows = told_by(np.rint(usual + np.random.default_rng(draw).normal(0, NOISE, usual.shape)), 1.0)
        for row, true in zip(replace(smooth, rising=1)(rows), usual.ravel().tolist(), strict=True):
            assert row.smoothed_upper - row.smoothed <= abs(row.smoothed - row.count) + 2.12 * NOISE + 0.1
            assert row.rise is None or row.rise_upper - row.rise < 10 * NOISE
            held.append(row.smoothed_lower <= true <= row.smoothed_upper)
    assert np.mean(held) > 0.93


def test_an_item_with_half_of_everything_does_not_say_how_much_comes():
    true = np.full((WEEKS, ITEMS), 100.0)
    true[:, 0] = np.where(np.arange(WEEKS) == 6, 4000.0, 2000.0)
    smooth, rows = told_by(np.rint(true + np.random.default_rng(5).normal(0, NOISE, true.shape)), 0.9)
    window, item = np.divmod(np.arange(true.size), ITEMS)
    order = np.lexsort((window, item))
    counts = np.array([row.count for row in rows], np.float64)[order]
    factors, unsure = smooth._activity(window[order], item[order], counts, np.ones(true.size))
    assert np.all(factors == 1) and np.all(unsure == 0)
    others = item[order] > 0
    factors, unsure = smooth._activity(
        window[order][others], item[order][others] - 1, counts[others], np.ones(others.sum())
    )
    assert np.all(np.abs(factors - 1) < 0.2) and np.all(unsure < 0.2)


@pytest.mark.parametrize(("many", "alike"), [(60, None), (4, 0.6), (4, 1.0), (4, 2.1), (4, 3.0)])
def test_small_items_do_not_make_a_window_look_as_if_it_were_cut_short(many, alike):
    """Items that become smaller and smaller, or a thousand that are all of a size that noise may hide."""
    chance = np.random.default_rng(6)
    sizes = 12 * NOISE / np.arange(1, 201) if alike is None else np.full(1000, alike * NOISE)
    true = np.tile(sizes, (WEEKS, 1))
    item, window = np.divmod(np.arange(true.size), WEEKS)
    for _ in range(many):
        counts = np.rint(true + chance.normal(0, NOISE, true.shape)).T.ravel()
        factors, unsure = SmoothFinished(7 * DAY * SECOND, NOISE)._cut_short(window, item, counts)
        assert np.all(factors == 1) and np.all(unsure == 0)


def test_noise_that_a_window_has_in_common_does_not_make_it_look_as_if_it_were_cut_short():
    """Without knowing of it, every sixth file would be taken to end too early; where one does, it is seen."""
    chance, wrong = np.random.default_rng(7), 0
    true = np.tile(np.linspace(4, 8, 200) * NOISE, (WEEKS, 1))
    item, window = np.divmod(np.arange(true.size), WEEKS)

    def counts(true):
        common = chance.normal(0, 0.8 * NOISE, (WEEKS, 1))
        return np.rint(true + common + chance.normal(0, 0.6 * NOISE, true.shape)).T.ravel()

    knows, does_not = (SmoothFinished(7 * DAY * SECOND, NOISE, common=part) for part in (0.8 * NOISE, 0.0))
    for _ in range(40):
        noisy = counts(true)
        assert np.all(knows._cut_short(window, item, noisy)[0] == 1)
        wrong += np.any(does_not._cut_short(window, item, noisy)[0] != 1)
    assert wrong >= 3
    large = 10 * true
    large[-1] *= 0.2
    factors, unsure = knows._cut_short(window, item, counts(large))
    assert np.allclose(factors[window == WEEKS - 1], 0.2, atol=0.05)
    assert np.all(unsure[window == WEEKS - 1] > 0.05)
