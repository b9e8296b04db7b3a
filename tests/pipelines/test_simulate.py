"""Simulations, `privstream simulate` and `privstream demo`."""

import json
import shlex
import stat
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from privstream.pipelines import cli
from privstream.pipelines.accounts.ledger import Ledger
from privstream.pipelines.simulate.simulation import write_simulation
from privstream.pipelines.simulate.streams import (
    START_MICROS,
    plan_trends,
    search_names,
    simulate_heavy_hitters,
)
from privstream.pipelines.simulate.truths import ItemHolders
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.transforms.rows import KeyCount

FORMATS = ["avro", "parquet", "jsonl", "csv"]
HOUR = 3_600_000_000


def small(**options):
    return list(simulate_heavy_hitters(**({"users": 2000, "windows": 6, "seed": 7, "items": 300} | options)))


def holders_by_hand(window):
    pairs = set(zip(window.events["user"].to_pylist(), window.events["item"].to_pylist(), strict=True))
    return Counter(item for _, item in pairs)


def test_the_truth_is_what_the_events_say():
    for window in small(truth_floor=1):
        assert window.holders == holders_by_hand(window)


def test_windows_follow_each_other_and_hold_their_events_in_order():
    windows = small()
    assert [window.start for window in windows] == [START_MICROS + number * HOUR for number in range(6)]
    for window in windows:
        times = window.events["time"].cast("int64").to_numpy()
        assert window.end == window.start + HOUR
        assert (np.diff(times) >= 0).all()
        assert window.start <= times[0] <= times[-1] < window.end


def test_planted_trends_have_the_planned_number_of_holders():
    planned = plan_trends(4, 6, np.random.default_rng(7))
    windows = small(trends=4, items=50, truth_floor=1)
    for trend in planned:
        for number, window in enumerate(windows):
            assert window.holders.get(trend.item, 0) == trend.holders(number, 2000)


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


CITY = ["simulate", "heavy-hitters", "--users", "500", "--windows", "3", "--seed", "11"]


def holders(events: Path) -> dict[tuple[int, str], set[str]]:
    """Count who sent what, by hour."""
    found = defaultdict(set)
    for event in pq.read_table(events).to_pylist():
        found[int(event["time"].timestamp()) // 3600, event["item"]].add(event["user"])
    return found


def test_the_truth_of_the_command_is_what_the_events_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events, truth = tmp_path / "e.parquet", tmp_path / "t.jsonl"
    assert cli.main([*CITY, "--output", str(events), "--truth", str(truth)]) == 0
    shown = capsys.readouterr()
    assert f"500 people in 3 windows of 1 hour: {events}" in shown.err
    assert str(truth) in shown.err
    counted = holders(events)
    rows = [json.loads(line) for line in truth.read_text().splitlines()]
    assert len(rows) == sum(len(people) >= 10 for people in counted.values()) > 0
    for row in rows:
        hour = int(row["window_start"][11:13])
        (people,) = (people for (at, item), people in counted.items() if at % 24 == hour and item == row["item"])
        assert row["holders"] == len(people)


def test_a_seed_gives_the_same_events_in_every_format(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet", "c.csv", "d.jsonl", "e.avro"):
        assert cli.main([*CITY, "--output", str(tmp_path / name)]) == 0
    first = pq.read_table(tmp_path / "a.parquet")
    assert first.equals(pq.read_table(tmp_path / "b.parquet"))
    assert pa_csv.read_csv(tmp_path / "c.csv")["user"].to_pylist() == first["user"].to_pylist()
    assert len((tmp_path / "d.jsonl").read_text().splitlines()) == len(first)
    other = [*CITY[:-1], "12", "--output", str(tmp_path / "f.parquet")]
    assert cli.main(other) == 0
    assert not first.equals(pq.read_table(tmp_path / "f.parquet"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*CITY, "--users", "0"], "users must be >= 1, got 0"),
        ([*CITY, "--windows", "-1"], "windows must be >= 1, got -1"),
        ([*CITY, "--seed", "-1"], "seed must be >= 0, got -1"),
        ([*CITY, "--window", "nan"], "window must be finite and > 0, got nan"),
        ([*CITY, "--trends", "99"], "trends must be <= 16, got 99"),
    ],
)
def test_numbers_out_of_range_are_refused_and_nothing_is_written(arguments, message, tmp_path, capsys):
    assert cli.main([*arguments, "--output", str(tmp_path / "e.csv")]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output", "e.xls"], "--output must end in .avro, .parquet, .jsonl, .csv, got e.xls"),
        (["--output", "none/e.csv"], "--output must be in a folder that exists"),
        (["--output", "e.csv", "--truth", "t.txt"], "--truth must end in"),
        (["--output", "e.csv", "--truth", "none/t.avro"], "--truth must be in a folder that exists"),
    ],
)
def test_paths_that_cannot_be_written_are_refused(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*CITY, *options]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


FILES = {
    "commands.sh",
    "events.parquet",
    "counts.jsonl",
    "counts.jsonl.guarantee.json",
    "counts.png",
    "noise.key",
    "noise.key.ledger.jsonl",
    "report.html",
    "truth.jsonl",
}


def run(*options: str) -> int:
    return cli.main(["demo", "--users", "9000", "--windows", "4", *options])


@pytest.mark.slow
def test_the_demo_shows_what_it_promises(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run() == 0
    shown = capsys.readouterr()
    folder = tmp_path / "demo-output"
    assert {path.name for path in folder.iterdir()} == FILES
    assert "privacy    epsilon 1, delta 1e-06, for all that one person does in the " in shown.err
    rows = read_row_file(str(folder / "counts.jsonl"), KeyCount)
    items = {row.item for row in rows}
    assert len(items) >= 3 and all(len([row for row in rows if row.item == item]) == 4 for item in items)
    cells = " ".join(shown.out.replace("│", " ").split())
    threshold = json.loads((folder / "counts.jsonl.guarantee.json").read_text())["accuracy"]["detection_threshold"]
    assert f"items that at least {threshold:,} people had in a window" in " ".join(shown.out.split())
    assert "Report: demo-output/report.html" in shown.out
    page = (folder / "report.html").read_text()
    assert page.count("<figure") == 1 and "truth" not in page.partition("<main>")[2].partition("<details")[0]
    truth = {
        (row.item, row.window_start): row.holders for row in read_row_file(str(folder / "truth.jsonl"), ItemHolders)
    }
    known = [(row, truth[row.item, row.window_start]) for row in rows if (row.item, row.window_start) in truth]
    held = sum(row.lower <= true <= row.upper for row, true in known)
    assert f"Of {len(known)} published counts with a known truth, {held} have it" in cells and known
    assert "Picture, with the simulated truth: demo-output/counts.png" in shown.out
    assert "serve demo-output --ledger demo-output/noise.key.ledger.jsonl" in shown.out
    assert (folder / "counts.png").read_bytes().startswith(b"\x89PNG")
    assert stat.S_IMODE((folder / "noise.key").stat().st_mode) == 0o600


@pytest.mark.slow
def test_the_commands_that_are_shown_give_the_same_files_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run("--output", "a folder", "--seed", "2") == 0
    shown = [line.removeprefix("$ ") for line in capsys.readouterr().out.splitlines() if line.startswith("$ ")]
    written = (tmp_path / "a folder" / "commands.sh").read_text().splitlines()
    assert written[0].startswith("#")
    assert written[1:] == shown
    assert len(shown) == 3
    folder, guarantee = tmp_path / "a folder", "counts.jsonl.guarantee.json"
    names = FILES - {
        "noise.key.ledger.jsonl",
        "report.html",
        guarantee,
    }  # these have the time, or the line of the ledger

    def contents() -> dict[str, Any]:
        promised = json.loads((folder / guarantee).read_text())
        return {name: (folder / name).read_bytes() for name in names} | {guarantee: promised | {"ledger": None}}

    kept = contents()
    for command in shown:
        program, *arguments = shlex.split(command)
        assert Path(program).name == "privstream"
        assert cli.main(arguments) == 0
    assert contents() == kept
    first, again = Ledger(str(tmp_path / "a folder" / "noise.key.ledger.jsonl")).read()
    assert first.release == again.release, "a repetition"


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("events.parquet", "commands.sh"):
        (tmp_path / name).write_bytes(b"mine")
        assert run("--output", str(tmp_path)) == 2
        assert "--output must be a new folder, or one that a demo has made" in capsys.readouterr().err
        assert (tmp_path / name).read_bytes() == b"mine"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--users", "0"], "users must be >= 1, got 0"),
        (["--windows", "0"], "windows must be >= 1, got 0"),
        (["--seed", "-1"], "seed must be >= 0, got -1"),
        (["--output", "file/folder"], "--output must be a folder that can be written"),
    ],
)
def test_what_cannot_work_is_refused(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert run(*options) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
