"""Reading in the order of time, while windows are decided, publishes the rows of a reading in any order."""

import json

import pyarrow.parquet as pq
import pytest
import runner_harness
from lying_statistics import lie
from privstream.pipelines import cli
from privstream.pipelines.sources import readers
from test_watch_command import command, simulate

PRISM = [pytest.mark.prism, pytest.mark.slow]
FLINK = [pytest.mark.flink, pytest.mark.slow, pytest.mark.xdist_group("flink")]
CASES = [pytest.param("prism", "cardinality", marks=PRISM), pytest.param("flink", "heavy-hitters", marks=FLINK)]
ROW_GROUPS = 16


def options(runner):
    return runner_harness.command_options(runner, "--streaming", "--max_bundle_time_mills=100")


def cut(folder, name):
    """Write the simulated events in many row groups, shuffled, and some of them as CSV, which states no times."""
    simulate(folder, name)
    table = pq.read_table(folder / "events.parquet")
    size = len(table) // ROW_GROUPS
    groups = [table.slice(number * size, size) for number in range(ROW_GROUPS)]
    with pq.ParquetWriter(folder / "cut-1.parquet", table.schema) as writer:
        for number in range(ROW_GROUPS):
            writer.write_table(groups[number * 7 % ROW_GROUPS])
    rest = table.slice(ROW_GROUPS * size)
    lines = [",".join([*rest.column_names])]
    lines += [",".join(str(value) for value in row.values()) for row in rest.to_pylist()]
    (folder / "cut-2.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(("runner", "name"), CASES)
def test_rows_are_those_of_a_reading_in_any_order(tmp_path, monkeypatch, runner, name):
    monkeypatch.setattr(readers, "ROWS_AT_ONCE", 1)  # it pauses after each part
    on_runner = options(runner)
    cut(tmp_path, name)
    for output, chosen in (("any", ["--runner=FnApiRunner"]), ("order", on_runner)):
        assert cli.main([*command(tmp_path, name, "cut-*", f"{output}.jsonl"), *chosen]) == 0
    rows = (tmp_path / "any.jsonl").read_text()
    assert rows == (tmp_path / "order.jsonl").read_text()
    assert len({json.loads(line)["window_start"] for line in rows.splitlines()}) > 1


@pytest.mark.parametrize("runner", [pytest.param("prism", marks=PRISM)])
def test_what_the_statistics_deny_is_late_everywhere(tmp_path, monkeypatch, capsys, runner):
    """The first row group states a least time two hours after its first events: those of the first hour are late."""
    monkeypatch.setattr(readers, "ROWS_AT_ONCE", 1)
    on_runner = options(runner)
    name = "heavy-hitters"
    simulate(tmp_path, name)
    table = pq.read_table(tmp_path / "events.parquet").sort_by("time")
    path = tmp_path / "lying.parquet"
    pq.write_table(table, path, row_group_size=len(table) // 2)
    start = table["time"].cast("int64")[0].as_py()
    lie(path, start, start + 2 * 3600 * 10**6)
    words = command(tmp_path, name, "lying.parquet", "rows.jsonl")
    assert cli.main([*words, *on_runner]) == 0
    half, hour = len(table) // 2, 3_600_000_000
    hours = (table["time"].cast("int64").to_numpy()[:half] - start // hour * hour) // hour
    late = int((hours < 2).sum())
    assert late > 0
    assert f"{len(table) - late:,} of {len(table):,} rows used ({late:,} late)" in capsys.readouterr().err
