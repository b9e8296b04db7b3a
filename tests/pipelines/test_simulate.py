"""`privstream simulate` and `privstream demo`."""

import json
import math
import stat
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from privstream.pipelines import cli, simulate
from privstream.pipelines.simulate import DISTRICTS, LEAST, START_MICROS, Truth, write_simulation
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.transforms.row_types import KeyCount
from questions import overridden

FORMATS = ["avro", "parquet", "jsonl", "csv"]
HOUR = 3_600_000_000


def small(**options):
    return list(simulate.city(2000, 6, 7, **({"items": 300} | options)))


def test_windows_follow_each_other_and_hold_their_events_in_order_and_their_truth():
    windows, homes, middles = small(), {}, []
    assert [window.start for window in windows] == [START_MICROS + number * HOUR for number in range(6)]
    for window in windows:
        times = window.events["time"].cast("int64").to_numpy()
        assert window.end == window.start + HOUR and (np.diff(times) >= 0).all()
        assert window.start <= times[0] <= times[-1] < window.end
        pairs = {(row["user"], row["item"]) for row in window.events.to_pylist()}
        people = Counter(item for _, item in pairs)
        assert window.truth == {item: number for item, number in people.items() if number >= LEAST}
        for row in window.events.to_pylist():
            assert homes.setdefault(row["user"], row["district"]) == row["district"]
        middles.append(np.median(window.events["milliseconds"].to_numpy()))
    assert {*homes.values()} == {*DISTRICTS} and middles.index(max(middles)) == 4


@pytest.mark.parametrize("format", FORMATS)
def test_written_events_read_back_the_same(format, tmp_path, read):
    path = tmp_path / f"events.{format}"
    written = write_simulation(str(path), small())
    rows = [row for window in small() for row in window.events.to_pylist()]
    expected = [(row["user"], row["item"], round(row["time"].timestamp() * 1_000_000)) for row in rows]
    outcome = read(path)
    assert sorted((row["user"], row["item"], row["time"]) for row in outcome.rows) == sorted(expected)
    assert outcome.letters == []
    assert written == len(expected)


CITY = ["simulate", "--users", "500", "--windows", "3", "--seed", "11"]


def test_a_seed_gives_the_same_events_in_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.parquet", "b.parquet", "c.csv"):
        assert cli.main([*CITY, "--output", str(tmp_path / name), "--truth", str(tmp_path / "t.jsonl")]) == 0
    assert f"500 people in 3 hours: {tmp_path}/a.parquet" in capsys.readouterr().err
    assert json.loads((tmp_path / "t.jsonl").read_text().splitlines()[0])["number"] >= LEAST
    first = pq.read_table(tmp_path / "a.parquet")
    assert first.equals(pq.read_table(tmp_path / "b.parquet"))
    assert pa_csv.read_csv(tmp_path / "c.csv")["user"].to_pylist() == first["user"].to_pylist()
    other = [*CITY[:-1], "12", "--output", str(tmp_path / "f.parquet"), "--domain", str(tmp_path / "items")]
    assert cli.main(other) == 0
    second = pq.read_table(tmp_path / "f.parquet")
    assert not first.equals(second)
    assert {*second["item"].to_pylist()} <= {*(tmp_path / "items").read_text().splitlines()}


@pytest.mark.parametrize(
    "options",
    [
        ["--users", "0"],
        ["--output", "e.xls"],
        ["--output", "none/e.csv"],
        ["--truth", "e.csv"],
        ["--truth", "none/t.avro"],
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_is(options, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(overridden([*CITY, "--output", "e.csv", *options])) == 2
    assert options[0].removeprefix("--") in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


FILES = {"events.parquet", "counts.jsonl", "counts.jsonl.guarantee.json", "counts.png", "noise.key"}
FILES |= {"noise.key.ledger.jsonl", "report.html", "truth.jsonl"}


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
    assert items and all(len([row for row in rows if row.item == item]) == 4 for item in items)
    cells = " ".join(shown.out.replace("│", " ").split())
    threshold = json.loads((folder / "counts.jsonl.guarantee.json").read_text())["accuracy"]["detection_threshold"]
    assert f"items that at least {threshold:,} people had in a window" in " ".join(shown.out.split())
    assert "Report: demo-output/report.html" in shown.out
    page = (folder / "report.html").read_text()
    assert page.count("<figure") == 1 and "truth" not in page.partition("<main>")[2].partition("<details")[0]
    truth = {(row.item, row.window_start): row.number for row in read_row_file(str(folder / "truth.jsonl"), Truth)}
    known = [(row, truth[row.item, row.window_start]) for row in rows if (row.item, row.window_start) in truth]
    held = sum(row.lower <= true <= (math.inf if row.upper is None else row.upper) for row, true in known)
    assert f"Of {len(known)} published counts with a known truth, {held} have it" in cells and known
    assert "Picture: demo-output/counts.png" in shown.out
    assert "serve demo-output" in shown.out
    assert (folder / "counts.png").read_bytes().startswith(b"\x89PNG")
    assert stat.S_IMODE((folder / "noise.key").stat().st_mode) == 0o600
    assert run() == 0, "a demo can be run again"


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "events.parquet").write_bytes(b"mine")
    assert run("--output", str(tmp_path)) == 2
    assert "--output must be a new folder, or one of an earlier demo" in capsys.readouterr().err
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]
