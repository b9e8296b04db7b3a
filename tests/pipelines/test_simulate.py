from collections import Counter

import numpy as np
import pytest
from privstream.pipelines.simulate.simulation import ItemHolders, write_simulation
from privstream.pipelines.simulate.streams import (
    START_MICROS,
    THINGS,
    TRENDS,
    Trend,
    plan_trends,
    search_names,
    simulate_example_1_4,
    simulate_heavy_hitters,
)
from privstream.pipelines.sinks.row_files import read_row_file

FORMATS = ["avro", "parquet", "jsonl", "csv"]
HOUR = 3_600_000_000


def small(**options):
    return list(simulate_heavy_hitters(**({"users": 2000, "windows": 6, "seed": 7, "items": 300} | options)))


def holders_by_hand(window):
    pairs = set(zip(window.events["user"].to_pylist(), window.events["item"].to_pylist(), strict=True))
    return Counter(item for _, item in pairs)


@pytest.mark.parametrize("workload", ["city", "example"])
def test_the_truth_is_what_the_events_say(workload):
    windows = (
        small(truth_floor=1) if workload == "city" else list(simulate_example_1_4(users=500, seed=3, truth_floor=1))
    )
    for window in windows:
        assert window.holders == holders_by_hand(window)


def test_items_with_few_holders_are_left_out_of_the_truth():
    for full, floored in zip(small(truth_floor=1), small(truth_floor=9), strict=True):
        assert floored.holders == {item: holders for item, holders in full.holders.items() if holders >= 9}
        assert floored.events == full.events


def test_windows_follow_each_other_and_hold_their_events_in_order():
    windows = small()
    assert [window.start for window in windows] == [START_MICROS + number * HOUR for number in range(6)]
    for window in windows:
        times = window.events["time"].cast("int64").to_numpy()
        assert window.end == window.start + HOUR
        assert (np.diff(times) >= 0).all()
        assert window.start <= times[0] <= times[-1] < window.end


def test_a_seed_repeats_itself_and_another_does_not():
    assert [window.events for window in small()] == [window.events for window in small()]
    assert small()[0].events != small(seed=8)[0].events


def test_planted_trends_have_the_planned_number_of_holders():
    planned = plan_trends(4, 6, np.random.default_rng(7))
    windows = small(trends=4, items=50, truth_floor=1)
    for trend in planned:
        for number, window in enumerate(windows):
            assert window.holders.get(trend.item, 0) == trend.holders(number, 2000)


def test_trends_rise_and_fall():
    counts = [Trend("x", 3.0, 1.0, 0.1).holders(window, 1000) for window in range(7)]
    assert counts == sorted(counts[:4]) + sorted(counts[4:], reverse=True)
    assert counts[3] == 100
    assert counts[0] == counts[6] == 1


def test_the_most_talked_of_trend_peaks_at_twelve_percent_of_people():
    planned = plan_trends(len(TRENDS), 48, np.random.default_rng(1))
    assert max(trend.share for trend in planned) == pytest.approx(0.12)
    assert min(trend.share for trend in planned) == pytest.approx(0.006)
    assert len({trend.item for trend in planned}) == len(TRENDS)


def test_the_background_follows_its_law():
    # Draws from 4 items, in 4 cells: a deviation of 7 standard deviations has probability below 1e-10. A law scaled by
    # 30% is then told apart from (7 + 7 / 2)**2 / (0.3 * 0.48)**2 = 5,317 draws on; these are 12,000.
    (window,) = small(
        users=4_000, windows=1, items=4, trends=0, zipf_exponent=1.0, zipf_shift=0.0, events_per_user_and_window=3
    )
    total = window.events.num_rows
    names = search_names(4)
    counts = Counter(window.events["item"].to_pylist())
    weights = np.array([1, 1 / 2, 1 / 3, 1 / 4]) / (1 + 1 / 2 + 1 / 3 + 1 / 4)
    for name, weight in zip(names, weights, strict=True):
        assert abs(counts[name] - total * weight) < 7 * np.sqrt(total * weight * (1 - weight))
    assert abs(counts[names[0]] - total * weights[0] * 1.3) > 7 * np.sqrt(total)  # a law scaled by 30% is told apart


def test_names_are_different_and_readable():
    names = search_names(5000)
    assert len(set(names)) == 5000
    assert not set(names) & set(TRENDS)
    assert names[0].startswith(THINGS[0])
    assert small()[0].events["user"][0].as_py()[0] == "u"


def test_example_1_4_gives_everybody_three_heavy_hitters():
    windows = list(simulate_example_1_4(users=3000, seed=1, group_factor=5.0, background=0.02))
    shared = [
        (item, user)
        for window in windows
        for user, item in zip(window.events["user"].to_pylist(), window.events["item"].to_pylist(), strict=True)
        if item[0] in "ABC"
    ]
    letters = Counter((user, item[0]) for item, user in shared)
    assert set(letters.values()) == {1}
    assert len(letters) == 3 * 3000
    sizes = {
        letter: [count for window in windows for item, count in window.holders.items() if item[0] == letter]
        for letter in "ABC"
    }
    unit = 5 * np.log(3000)
    for letter, power in (("A", 0), ("B", 1 / 4), ("C", 1 / 3)):
        assert sum(sizes[letter]) == 3000
        assert np.mean(sizes[letter]) == pytest.approx(unit * 3000**power, rel=0.3)
    assert all(len(window.holders) == 1 for window in windows)


def test_example_1_4_has_no_other_item_twice():
    items = Counter()
    for window in simulate_example_1_4(users=1000, seed=2):
        items.update(item for item in window.events["item"].to_pylist() if item[0] not in "ABC")
    assert set(items.values()) == {1}


@pytest.mark.parametrize("format", FORMATS)
def test_written_events_read_back_the_same(format, tmp_path, read):
    path = tmp_path / f"events.{format}"
    written = write_simulation(str(path), small())
    expected = sorted(
        (
            {"user": row["user"], "item": row["item"], "time": time}
            for window in small()
            for row, time in zip(
                window.events.to_pylist(), window.events["time"].cast("int64").to_pylist(), strict=True
            )
        ),
        key=lambda row: (row["time"], row["user"], row["item"]),
    )
    outcome = read(path)
    assert outcome.rows == expected
    assert outcome.letters == []
    assert written == (len(expected), 6)


def test_the_truth_file_and_the_progress(tmp_path):
    seen = []
    truth = tmp_path / "truth.parquet"
    write_simulation(str(tmp_path / "e.parquet"), small(), str(truth), seen.append)
    rows = read_row_file(str(truth), ItemHolders)
    windows = small()
    assert seen == [1, 2, 3, 4, 5, 6]
    assert len(rows) == sum(len(window.holders) for window in windows)
    for row in rows:
        window = windows[(row.window_start.micros - START_MICROS) // HOUR]
        assert row.holders == window.holders[row.item]
        assert row.window_end.micros == window.end


def test_a_simulation_that_fails_leaves_nothing(tmp_path):
    def windows():
        yield from small()
        raise RuntimeError("midway")

    for format in FORMATS:
        with pytest.raises(RuntimeError, match="midway"):
            write_simulation(str(tmp_path / f"e.{format}"), windows())
    assert list(tmp_path.iterdir()) == []


def test_paths_are_checked_before_anything_is_simulated(tmp_path):
    with pytest.raises(ValueError, match=r"--output must end in \.avro, \.parquet, \.jsonl, \.csv, got .*x\.txt"):
        write_simulation(str(tmp_path / "x.txt"), small())
    with pytest.raises(ValueError, match="--truth must be in a folder that exists"):
        write_simulation(str(tmp_path / "x.csv"), small(), str(tmp_path / "nix" / "t.avro"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"users": 0}, "users must be >= 1, got 0"),
        ({"windows": 0}, "windows must be >= 1, got 0"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"items": 0}, "items must be >= 1, got 0"),
        ({"window_seconds": float("nan")}, "window must be finite and > 0, got nan"),
        ({"zipf_exponent": -1}, "zipf_exponent must be finite and >= 0, got -1"),
        ({"events_per_user_and_window": float("inf")}, "events_per_user_and_window must be finite and >= 0, got inf"),
        ({"trends": 99}, f"trends must be <= {len(TRENDS)}, got 99"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"users": 1}, "users must be >= 2, got 1"),
        ({"group_factor": 0}, "group_factor must be finite and > 0, got 0"),
        ({"background": 1.0}, r"background must be in \[0, 1\), got 1.0"),
    ],
)
def test_arguments_of_example_1_4_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        simulate_example_1_4(**({"users": 10, "seed": 1} | options))
