"""`privstream simulate`."""

import json
from collections import defaultdict
from pathlib import Path

import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from privstream.pipelines import cli

CITY = ["simulate", "heavy-hitters", "--users", "500", "--windows", "3", "--seed", "11"]
EXAMPLE = ["simulate", "heavy-hitters", "--workload", "example-1.4", "--users", "2000", "--seed", "11"]


def holders(events: Path) -> dict[tuple[int, str], set[str]]:
    """Count who sent what, by hour."""
    found = defaultdict(set)
    for event in pq.read_table(events).to_pylist():
        found[int(event["time"].timestamp()) // 3600, event["item"]].add(event["user"])
    return found


def test_the_truth_is_what_the_events_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_options_of_the_city(tmp_path: Path) -> None:
    events = tmp_path / "e.parquet"
    options = ["--items", "3", "--events_per_user", "2", "--trends", "0", "--window", "60", "--output", str(events)]
    assert cli.main([*CITY, *options]) == 0
    table = pq.read_table(events)
    assert len(set(table["item"].to_pylist())) == 3
    assert 2000 < len(table) < 4500  # 500 people, 3 windows, 2 events each, more or fewer by the time of day
    times = table["time"].to_pylist()
    assert (max(times) - min(times)).total_seconds() < 180


def test_in_example_1_4_everybody_takes_part_in_three_heavy_hitters(tmp_path: Path) -> None:
    events, truth = tmp_path / "e.parquet", tmp_path / "t.avro"
    assert cli.main([*EXAMPLE, "--output", str(events), "--truth", str(truth)]) == 0
    groups = defaultdict(set)
    for event in pq.read_table(events).to_pylist():
        if event["item"][0] in "ABC":
            groups[event["user"]].add(event["item"])
    assert len(groups) == 2000
    assert all(sorted(item[0] for item in items) == ["A", "B", "C"] for items in groups.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*CITY, "--users", "0"], "users must be >= 1, got 0"),
        ([*CITY, "--windows", "-1"], "windows must be >= 1, got -1"),
        ([*CITY, "--seed", "-1"], "seed must be >= 0, got -1"),
        ([*CITY, "--window", "nan"], "window must be finite and > 0, got nan"),
        ([*CITY, "--trends", "99"], "trends must be <= 16, got 99"),
        (CITY[:4] + CITY[6:], "windows must be given with --workload city"),
        ([*EXAMPLE, "--trends", "2"], "trends must not be given with --workload example-1.4"),
        ([*EXAMPLE, "--windows", "2"], "windows must not be given with --workload example-1.4"),
    ],
)
def test_numbers_out_of_range_are_refused_and_nothing_is_written(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*arguments, "--output", str(tmp_path / "e.csv")]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output", "e.xls"], "--output must end in .avro, .parquet, .jsonl, .csv, got e.xls"),
        (["--output", "none/e.csv"], "--output must be in a folder that exists"),
        (["--output", "e.csv", "--truth", "t.txt"], "--truth must end in .avro, .parquet, .jsonl, .csv, got t.txt"),
        (["--output", "e.csv", "--truth", "none/t.avro"], "--truth must be in a folder that exists"),
    ],
)
def test_paths_that_cannot_be_written_are_refused(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*CITY, *options]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
