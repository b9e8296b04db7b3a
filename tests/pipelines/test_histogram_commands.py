"""`privstream histogram` and `flags`: from a file to a file."""

import json
from collections import Counter
from pathlib import Path

import pytest
from grids import some_quick
from privstream.pipelines import cli
from privstream.pipelines.simulate import DISTRICTS, city, write_simulation
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.transforms.row_types import CategoryFlag, HistogramEstimate
from questions import overridden

WINDOWS = 30
RUN = ["--window", "3600", "--start", "2024-01-01", "--end", "2024-01-02T06:00"]


@pytest.fixture(scope="module")
def trips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trips")
    write_simulation(str(folder / "events.parquet"), city(500, WINDOWS, 3))
    (folder / "domain.txt").write_text("\n".join(DISTRICTS))
    (folder / "key").write_text("a key of this test alone\n")
    (folder / "key").chmod(0o600)
    return folder


def command(trips: Path, name: str, output: object, *options: str) -> int:
    files = ["--input", str(trips / "events.parquet"), "--output", str(output), "--domain", str(trips / "domain.txt")]
    words = [name, *files, "--item", "district", "--key", str(trips / "key"), *RUN, "--epsilon", "1", *options]
    return cli.main(overridden(words))


def true_counts() -> dict[tuple[int, str], int]:
    """Return how many events each district has had by the end of each window."""
    so_far, found = Counter[str](), {}
    for window in city(500, WINDOWS, 3):
        so_far.update(window.events["district"].to_pylist())
        found |= {(window.end, name): so_far[name] for name in DISTRICTS}
    return found


@pytest.mark.slow
def test_all_numbers_keep_their_promise(trips: Path, tmp_path: Path) -> None:
    asked = ["--queries", "histogram,max,top:3,quantile:0.9"]
    assert command(trips, "histogram", tmp_path / "rows.parquet", *asked) == 0
    rows, truth = read_row_file(str(tmp_path / "rows.parquet"), HistogramEstimate), true_counts()
    assert len(rows) == WINDOWS * (8 + 1 + 3 + 1)
    for row in rows:
        counts = [truth[row.window_end.micros, name] for name in DISTRICTS]
        if row.category:
            true = truth[row.window_end.micros, row.category]
        else:
            true = max(counts) if row.query == "max" else sorted(counts)[7]
        assert abs(row.estimate - true) <= row.error_bound
    assert [(r.window_start, r.query) for r in rows] == sorted((r.window_start, r.query) for r in rows)
    promise = json.loads((tmp_path / "rows.parquet.guarantee.json").read_text())
    assert promise["guarantee"]["unit"] == "one event"
    assert promise["accuracy"]["largest"] == WINDOWS
    assert promise["parameters"]["queries"] == ["histogram", "max", "top:3", "quantile:0.9"]


def test_a_flag_is_raised_where_the_threshold_is_passed(trips: Path, tmp_path: Path) -> None:
    thresholds = dict.fromkeys(DISTRICTS, 10**9) | {"centre": 1}
    (tmp_path / "t.json").write_text(json.dumps(thresholds))
    options = ["--thresholds", str(tmp_path / "t.json"), "--epsilon", "500"]
    assert command(trips, "flags", tmp_path / "f.parquet", *options) == 0
    flags = read_row_file(str(tmp_path / "f.parquet"), CategoryFlag)
    assert len(flags) == WINDOWS * 8
    assert [row.category for row in flags if row.raised and row.window_end.micros == flags[-1].window_end.micros] == [
        "centre"
    ]


@some_quick("name", ["histogram", "flags"], "flags")
def test_events_are_counted_whether_they_have_a_user_or_not(tmp_path: Path, capsys, name: str) -> None:
    users = ['"user": "u", ', "", '"user": null, ', '"user": "", ', '"user": [1], ', '"user": 1.5, ']
    lines = [f'{{{user}"item": "tea", "time": "2024-01-01T00:00:01Z"}}\n' for user in users for _ in range(10)]
    (tmp_path / "events.jsonl").write_text("".join(lines))
    (tmp_path / "items").write_text("tea\ncoffee\n")
    (tmp_path / "events.csv").write_text("item,time\n" + "tea,2024-01-01T00:00:01Z\n" * 60)
    clock = ["--window", "60", "--start", "2024-01-01", "--end", "2024-01-01T00:01"]
    common = [*clock, "--epsilon", "1", "--domain", str(tmp_path / "items"), "--output", "-"]
    common += ["--thresholds", "5"] if name == "flags" else []
    for format in ("jsonl", "csv"):
        assert cli.main([name, "--input", str(tmp_path / f"events.{format}"), *common]) == 0
        assert "60 of 60 rows used" in capsys.readouterr().err
