"""Reading in the order of time, while windows are decided, publishes the rows of a reading in any order."""

import json

import pyarrow.parquet as pq
import pytest
import runner_harness
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
