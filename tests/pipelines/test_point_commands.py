"""`privstream ranges` and `privstream predecessor`, from a file to a file to a picture, and their plans."""

import json
from pathlib import Path

import numpy as np
import pytest
from privstream.pipelines import cli
from privstream.pipelines.simulate import Truth, city, write_simulation
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.transforms.row_types import NearestPoints, RangeCount
from questions import overridden
from small_doors import doors

WINDOWS = 6
RUN = ["--window", "3600", "--start", "2024-01-01", "--end", "2024-01-01T06:00:00"]
RANGES = ["ranges", *RUN, "--universe", "256", "--delete_values", "leave", "--epsilon", "2", "--delta", "1e-6"]
PARTS = ((1, 64), (65, 128), (129, 192), (1, 256))
NEAR = (20, 100, 400)
NEAREST = ["predecessor", *RUN, "--user", "milliseconds", "--universe", "65536", "--epsilon", "4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("points")
    (made / "key").write_text("a key of these tests alone, long enough\n")
    (made / "key").chmod(0o600)
    asked = {"ranges": [{"low": low, "high": high} for low, high in PARTS], "predecessor": [{"point": n} for n in NEAR]}
    for name, queries in asked.items():
        (made / f"{name}.queries").write_text("".join(f"{json.dumps(one)}\n" for one in queries))
    write_simulation(str(made / "ranges.parquet"), doors(256, WINDOWS, 3600, PARTS), str(made / "ranges.truth.jsonl"))
    write_simulation(str(made / "predecessor.parquet"), city(3000, WINDOWS, 3))
    return made


def watch(folder: Path, command: list[str], output: Path, *options: str) -> int:
    """Run a command; options that come later count."""
    name = command[0]
    files = ["--input", str(folder / f"{name}.parquet"), "--queries", str(folder / f"{name}.queries")]
    return cli.main(overridden([*command, *files, "--output", str(output), "--key", str(folder / "key"), *options]))


def test_counts_are_within_their_bounds_in_every_window(folder: Path, tmp_path: Path) -> None:
    assert watch(folder, RANGES, tmp_path / "rows.jsonl") == 0
    rows = read_row_file(str(tmp_path / "rows.jsonl"), RangeCount)
    truth = read_row_file(str(folder / "ranges.truth.jsonl"), Truth)
    true = {(row.window_end, row.item): row.number for row in truth}
    assert len(rows) == len(true)
    errors = [abs(row.estimate - true[row.window_end, f"{row.low} to {row.high}"]) for row in rows]
    assert max(errors) > 0
    assert all(error <= row.error_bound for error, row in zip(errors, rows, strict=True))
    promised = json.loads((tmp_path / "rows.jsonl.guarantee.json").read_text())
    assert promised["guarantee"]["epsilon"] == 2
    assert promised["accuracy"]["error_bound"] == max(row.error_bound for row in rows)


def test_what_is_near_has_few_points_between(folder: Path, tmp_path: Path) -> None:
    assert watch(folder, NEAREST, tmp_path / "rows.avro") == 0
    rows = read_row_file(str(tmp_path / "rows.avro"), NearestPoints)
    assert len(rows) == len(NEAR) * WINDOWS
    answered = [row for row in rows if row.predecessor]
    assert answered
    points = {window.end: window.events["milliseconds"].to_numpy() for window in city(3000, WINDOWS, 3)}
    for row in answered:
        seen = np.concatenate([found for end, found in points.items() if end <= row.window_end.micros])
        assert ((row.predecessor <= seen) & (seen <= row.query)).any()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "asked.jsonl: line must be one JSON object"),
        ('{"low": 1, "high": 2, "width": 3}', "asked.jsonl: width: unknown key"),
        ('{"low": 1, "high": true}', "asked.jsonl: high must be a valid integer, got True"),
        ('{"low": 9, "high": 2}', "queries: high must be >= 9, got 2"),
    ],
)
def test_bad_queries_are_refused(line, message, folder, tmp_path, capsys):
    (tmp_path / "asked.jsonl").write_text(f"{line}\n")
    assert watch(folder, RANGES, tmp_path / "rows.jsonl", "--queries", str(tmp_path / "asked.jsonl")) == 2
    assert f"{message}\n" in capsys.readouterr().err
    assert not (tmp_path / "rows.jsonl").exists()
