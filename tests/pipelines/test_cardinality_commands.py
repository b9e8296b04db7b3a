"""`privstream cardinality`, with its plan: from a file to a file."""

import json
from pathlib import Path

import pytest
from privstream.mechanisms import SetCardinality
from privstream.pipelines import cli
from privstream.pipelines.simulate import Truth, write_simulation
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.transforms.row_types import CardinalityEstimate
from questions import overridden
from small_doors import doors

WINDOWS = 48
RUN = ["--window", "1800", "--start", "2024-01-01", "--end", "2024-01-02"]
DOORS = ["--enter_values", "enter", "--leave_values", "leave"]


@pytest.fixture(scope="module")
def building(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("building")
    write_simulation(str(folder / "events.parquet"), doors(2000, WINDOWS, 1800), str(folder / "truth.jsonl"))
    (folder / "key").write_text("a key of this test alone\n")
    (folder / "key").chmod(0o600)
    return folder


def command(building: Path, output: object, *options: str) -> int:
    files = ["--input", str(building / "events.parquet"), "--output", str(output)]
    words = ["cardinality", *files, "--key", str(building / "key"), *RUN, "--epsilon", "1", *options]
    return cli.main(overridden(words))


def read(path: object) -> list[CardinalityEstimate]:
    return read_row_file(str(path), CardinalityEstimate)


def truth_of(building: Path) -> dict[int, int]:
    return {row.window_end.micros: row.number for row in read_row_file(str(building / "truth.jsonl"), Truth)}


def test_all_sizes_are_within_the_bound_that_is_promised(building: Path, tmp_path: Path) -> None:
    assert command(building, tmp_path / "rows.avro", *DOORS) == 0
    rows, truth = read(tmp_path / "rows.avro"), truth_of(building)
    assert [row.window_end.micros for row in rows] == sorted(truth)
    (promised,) = {row.error_bound for row in rows}
    assert 0 < max(abs(row.noisy - truth[row.window_end.micros]) for row in rows) <= promised
    promise = json.loads((tmp_path / "rows.avro.guarantee.json").read_text())
    assert promise["guarantee"]["unit"] == "one person over the whole run"
    assert promise["accuracy"]["error_bound"] == promised
    assert promise["accuracy"]["method"] == "counts"
    assert promise["parameters"]["leave_values"] == ["leave"]


@pytest.mark.slow
def test_an_estimate_whose_changes_are_used_up_stays_and_has_no_bound(building, tmp_path):
    assert command(building, tmp_path / "s.jsonl", *DOORS, "--max_updates", "5", "--method", "sparse_counter") == 0
    rows = read(tmp_path / "s.jsonl")
    assert rows[-1].error_bound == -1
    assert len({row.noisy for row in rows if row.error_bound == -1}) == 1


def test_limits_are_kept(building: Path, tmp_path: Path) -> None:
    asked = ["--max_contributions", "6", "--epsilon", "5"]
    assert command(building, tmp_path / "v.jsonl", *DOORS, *asked) == 0
    free, rows = truth_of(building), read(tmp_path / "v.jsonl")
    assert free[rows[-1].window_end.micros] > rows[-1].noisy + 2 * rows[-1].error_bound


def error(capsys: pytest.CaptureFixture[str], *options: str) -> int:
    """Return the error bound that a plan with epsilon 1 gives."""
    assert cli.main(["plan", "cardinality", "--epsilon", "1", "--json", *options]) == 0
    found: int = json.loads(capsys.readouterr().out)["budgets"][0]["accuracy"]["error_bound"]
    return found


def test_plan_knows_methods_and_limits(capsys: pytest.CaptureFixture[str]) -> None:
    windows = ("--window", "1", "--start", "0", "--end", "1000", "--timeout", "1")
    updates = (*windows, "--max_updates", "100000")
    sparse = error(capsys, *updates, "--method", "sparse_counter")
    assert sparse == SetCardinality(epsilon=1.0, horizon=1000, max_updates=100_000, mode="sparse").error(1000)
    assert sparse < error(capsys, *windows, "--method", "sparse_counter")
    assert error(capsys, *windows, "--max_contributions", "10") == pytest.approx(
        error(capsys, *windows) / 100, rel=0.02
    )
