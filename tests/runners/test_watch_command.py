"""`privstream heavy-hitters --watch`: windows come out while the stream goes on, and equal those of a bounded run."""

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import flink_job_server
import pyarrow.parquet as pq
import pytest
import runner_harness

PRIVSTREAM = [sys.executable, "-c", "import sys; from privstream.pipelines.cli import main; sys.exit(main())"]
PRIVACY = ["--window=3600", "--epsilon=4", "--delta=1e-6", "--max_hits=4", "--horizon=4"]
HOUR = 3600
SECONDS = 120

on_streaming_runners = pytest.mark.parametrize(
    "runner",
    [
        pytest.param("prism", marks=[pytest.mark.prism, pytest.mark.slow]),
        pytest.param("flink", marks=[pytest.mark.flink, pytest.mark.slow, pytest.mark.xdist_group("flink")]),
    ],
)


def options(runner: str) -> list[str]:
    runner_harness.require(runner)
    if runner == "prism":
        return ["--runner=PrismRunner", f"--prism_location={runner_harness.prism_location()}"]
    job_server = [f"--flink_job_server_jar={flink_job_server.jar()}", f"--flink_version={flink_job_server.FLINK_LINE}"]
    local = ["--runner=FlinkRunner", "--flink_master=[local]", "--environment_type=LOOPBACK", "--parallelism=2"]
    return [*local, *job_server, "--checkpointing_interval=1000", "--max_bundle_time_mills=200"]


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    folder = tmp_path_factory.mktemp("events")
    (folder / "noise.key").write_bytes(bytes(range(32)))
    (folder / "noise.key").chmod(0o600)
    simulate = ["simulate", "heavy-hitters", "--users=5000", "--windows=4", "--seed=7", "--items=300"]
    subprocess.run([*PRIVSTREAM, *simulate, f"--output={folder / 'events.parquet'}"], check=True)
    return folder


@pytest.fixture(scope="module")
def expected(events):
    subprocess.run([*command(events, "events.parquet", "expected.jsonl")], check=True)
    rows = [json.loads(line) for line in (events / "expected.jsonl").read_text().splitlines()]
    assert len({row["window_start"] for row in rows}) >= 3
    return rows


def command(events: Path, source: str | Path, output: str | Path) -> list[str]:
    key = f"--noise_key_file={events / 'noise.key'}"
    return [*PRIVSTREAM, "heavy-hitters", f"--input={events / source}", f"--output={events / output}", *PRIVACY, key]


def hours(events: Path) -> list[tuple[int, object]]:
    """Cut the simulated events into hours."""
    table = pq.read_table(events / "events.parquet")
    times = table["time"].cast("int64").to_numpy() // (HOUR * 1_000_000)
    return [(int(hour) * HOUR, table.filter(times == hour)) for hour in sorted(set(times.tolist()))]


def put(folder: Path, name: str, write) -> None:
    """Let a file appear whole."""
    write(folder.parent / f"{folder.name}-{name}")
    os.rename(folder.parent / f"{folder.name}-{name}", folder / name)


def mark(folder: Path, until: int) -> None:
    put(folder, f"_UNTIL_{datetime.fromtimestamp(until, UTC):%Y%m%dT%H%M%SZ}", Path.touch)


def windows(rows: Path) -> set[int]:
    """Return the starts of the windows that have a file."""
    starts = [file.name.partition("_")[0] for file in rows.glob("*.jsonl")]
    return {int(datetime.strptime(start, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()) for start in starts}


def wait_for(process: subprocess.Popen, condition) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


@on_streaming_runners
def test_windows_come_out_one_by_one_and_equal_a_bounded_run(events, expected, tmp_path, runner):
    incoming, rows, letters = tmp_path / "in", tmp_path / "rows", tmp_path / "letters"
    for folder in (incoming, rows, letters):
        folder.mkdir()
    put(incoming, "poison.parquet", lambda path: path.write_bytes(b"this is no Parquet"))
    watch = [
        "--input_format=parquet",
        "--watch=0.3",
        "--watermark=marks",
        f"--dead_letter={letters}",
        "--stream_field=",
    ]
    process = subprocess.Popen(
        [*command(events, incoming, rows), *watch, *options(runner)], stderr=subprocess.PIPE, text=True
    )
    due = {int(datetime.fromisoformat(row["window_start"]).timestamp()) for row in expected}
    try:
        for number, (start, table) in enumerate(hours(events)):
            half = len(table) // 2
            put(incoming, f"{number}a.parquet", lambda path, part=table[:half]: pq.write_table(part, path))
            put(incoming, f"{number}b.parquet", lambda path, part=table[half:]: pq.write_table(part, path))
            assert windows(rows) == {window for window in due if window < start}
            mark(incoming, start + HOUR + 1)
            wait_for(process, lambda start=start: windows(rows) == {window for window in due if window <= start})
        put(incoming, "_END", Path.touch)
        _, said = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, said
    published = [json.loads(line) for file in sorted(rows.glob("*.jsonl")) for line in file.read_text().splitlines()]
    assert published == expected
    assert {file.name for file in rows.glob("_*")} == {"_END", "_guarantee.json"}
    refused = [json.loads(line) for file in letters.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert [Path(letter["source"]).name for letter in refused] == ["poison.parquet"]
