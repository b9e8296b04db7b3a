"""Every command that watches events, over a folder: windows come out while the stream goes on, as in a bounded run."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest
import runner_harness
from privstream.pipelines import cli, simulate
from privstream.pipelines.accounts.run_identity import RunIdentity
from privstream.pipelines.runners import launch
from privstream.pipelines.sinks import writers
from questions import overridden

PRIVSTREAM = [
    *[sys.executable, "-c"],
    "import sys; from privstream.pipelines.cli import main; from privstream.pipelines.accounts.run_identity import "
    "RunIdentity; RunIdentity.label = lambda self, run_id: run_id; sys.exit(main())",
]
"""Noise that depends on the key and --run_id alone: a file and a folder are different releases, and are compared."""

HOUR = 3600
SECONDS = 120
ON_A_CLOCK = ["--start=2024-01-01", "--end=2024-01-01T04:00", "--epsilon=2"]


SMOOTHED = ("people", "value", "lower", "upper")


@pytest.fixture(autouse=True)
def same_noise(monkeypatch):
    monkeypatch.setattr(RunIdentity, "label", lambda self, run_id: run_id)


class Watch(NamedTuple):
    """A command to be tried: how its events are simulated, its options, and the lines of `{}/asked`."""

    simulate: list[str]
    options: list[str]
    asked: str = ""


DISTRICTS = "\n".join(simulate.DISTRICTS)
RULES = """{"name": "parks", "at_least": 60, "items": ["bakery harbour", "library harbour"]}
{"name": "all", "at_least": 500}"""
PARTS = '{"low": 1, "high": 128}\n{"low": 1, "high": 512}'
COMMANDS = {
    "heavy-hitters": Watch(
        ["--users=5000", "--items=300"],
        [*ON_A_CLOCK, "--epsilon=4", "--delta=1e-6", "--max_hits=4", "--method=clock"],
    ),
    "counts": Watch(
        ["--users=5000", "--items=300"],
        [*ON_A_CLOCK, "--delta=1e-6", "--max_contributions=4", "--max_per_window=1", "--over=2h", "--min_people=5"],
    ),
    "top-k": Watch(
        ["--users=2000", "--items=50", "--domain={}/domain"],
        [*ON_A_CLOCK, "--domain={}/domain", "--top=3", "--max_per_window=4", "--method=gaps"],
    ),
    "alerts": Watch(
        ["--users=4000", "--items=50"],
        [*ON_A_CLOCK, "--rules={}/asked", "--delta=1e-6", "--method=status", "--renew_every=2h"],
        RULES,
    ),
    "histogram": Watch(
        ["--users=2000"],
        [*ON_A_CLOCK, "--item=district", "--domain={}/asked", "--delta=1e-6"],
        DISTRICTS,
    ),
    "quantiles": Watch(
        ["--users=2000"],
        [*ON_A_CLOCK, "--delta=1e-6", "--max_contributions=4", "--low=1", "--high=1000", "--value=milliseconds"],
    ),
    "cardinality": Watch(["--users=500"], [*ON_A_CLOCK, "--timeout=90m", "--max_updates=200"]),
    "ranges": Watch(
        ["--users=200"],
        [*ON_A_CLOCK, "--delta=1e-6", "--user=milliseconds", "--universe=512", "--queries={}/asked"],
        PARTS,
    ),
}
STEP_BY_STEP = {"prism": ("counts", "alerts", "cardinality"), "flink": ("histogram",)}
"""Of different stages; test_kafka.py has hitters on Prism, test_flink_faults.py hitters and alerts on Flink."""

EVERYWHERE = [(runner, name) for runner, names in STEP_BY_STEP.items() for name in names]
AT_ONCE = ("heavy-hitters", "top-k", "alerts", "histogram", "quantiles", "ranges")
MARKS = {
    "prism": [pytest.mark.prism, pytest.mark.slow],
    "flink": [pytest.mark.flink, pytest.mark.slow, pytest.mark.xdist_group("flink")],
}


def options(runner: str, checkpoint_seconds: int = 1, *, own_server: bool = False) -> list[str]:
    checkpoints = f"--checkpointing_interval={checkpoint_seconds * 1000}"
    return runner_harness.command_options(runner, checkpoints, own_server=own_server)


def simulated(folder: Path, name: str) -> None:
    run = [word.format(folder) for word in COMMANDS[name].simulate]
    assert cli.main(["simulate", *run, "--windows=4", "--seed=7", f"--output={folder}/events.parquet"]) == 0
    (folder / "asked").write_text(COMMANDS[name].asked)
    (folder / "noise.key").write_bytes(bytes(range(32)))
    (folder / "noise.key").chmod(0o600)


def command(folder: Path, name: str, source: str, output: str) -> list[str]:
    key = [f"--key={folder / 'noise.key'}", "--run_id=same", "--ledger=none"]
    run = [word.format(folder) for word in COMMANDS[name].options]
    files = [f"--input={folder / source}", f"--output={folder / output}"]
    return overridden([name, *files, "--window=3600", *key, *run])


def expected_rows(folder: Path, name: str) -> list[dict]:
    """Return the rows of a file as `comparable` leaves them."""
    assert cli.main([*command(folder, name, "events.parquet", "expected.jsonl"), "--runner=FnApiRunner"]) == 0
    rows = [json.loads(line) for line in (folder / "expected.jsonl").read_text().splitlines()]
    assert len({row["window_start"] for row in rows}) >= 2
    return comparable(rows)


def comparable(rows: list[dict]) -> list[dict]:
    """Leave out what is smoothed over all windows of a file when it ends, and its interval."""
    return [{name: value for name, value in row.items() if "noisy" not in row or name not in SMOOTHED} for row in rows]


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


def published(rows: Path) -> list[dict]:
    """Return the rows of all windows, in order of time."""
    return [json.loads(line) for file in sorted(rows.glob("*.jsonl")) for line in file.read_text().splitlines()]


def wait_for(process: subprocess.Popen, condition) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("runner", "name"), [pytest.param(*case, marks=MARKS[case[0]], id="-".join(case)) for case in EVERYWHERE]
)
def test_windows_come_out_one_by_one_and_equal_a_run_on_all(tmp_path, runner, name):
    """Flink takes its first checkpoint long after the run: none is needed for windows to come out."""
    on_runner = options(runner, checkpoint_seconds=3600)
    simulated(tmp_path, name)
    expected = rows_at_once(tmp_path, name)
    incoming, rows, letters = tmp_path / "in", tmp_path / "rows", tmp_path / "letters"
    for folder in (incoming, rows, letters):
        folder.mkdir()
    put(incoming, "poison.parquet", lambda path: path.write_bytes(b"this is no Parquet"))
    watch = ["--input_format=parquet", "--watch=0.3", "--watermark=marks", f"--dead_letter={letters}"]
    call = [*PRIVSTREAM, *command(tmp_path, name, "in", "rows"), *watch, *on_runner]
    process = subprocess.Popen(call, stderr=subprocess.PIPE, text=True)
    due = {int(datetime.fromisoformat(row["window_start"]).timestamp()) for row in expected}
    try:
        for number, (start, table) in enumerate(hours(tmp_path)):
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
    assert comparable(published(rows)) == expected
    assert {file.name for file in rows.glob("_*")} == {"_END", "_guarantee.json"}
    refused = [json.loads(line) for file in letters.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert [Path(letter["source"]).name for letter in refused] == ["poison.parquet"]


def rows_at_once(tmp_path: Path, name: str) -> list[dict]:
    """Return the rows of a folder that is complete."""
    incoming, rows = tmp_path / "complete", tmp_path / "rows of all"
    for folder in (incoming, rows):
        folder.mkdir()
    shutil.copy(tmp_path / "events.parquet", incoming)
    mark(incoming, hours(incoming)[-1][0] + HOUR + 1)
    put(incoming, "_END", Path.touch)
    watch = ["--input_format=parquet", "--watch=0.3", "--watermark=marks", "--runner=FnApiRunner"]
    assert cli.main([*command(tmp_path, name, incoming.name, rows.name), *watch]) == 0
    return comparable(published(rows))


@pytest.mark.slow
@pytest.mark.parametrize("name", AT_ONCE)
def test_windows_of_a_folder_that_is_complete_equal_a_bounded_run(tmp_path, name):
    simulated(tmp_path, name)
    assert rows_at_once(tmp_path, name) == expected_rows(tmp_path, name)


@pytest.fixture
def words(tmp_path) -> list[str]:
    """Return a command that watches a folder that is complete, with a ledger."""
    simulated(tmp_path, "cardinality")
    for folder in ("in", "rows"):
        (tmp_path / folder).mkdir()
    (tmp_path / "events.parquet").rename(tmp_path / "in" / "events.parquet")
    put(tmp_path / "in", "_END", Path.touch)
    watch = ["--watch=0.3", "--watermark=marks", "--input_format=parquet", "--runner=FnApiRunner"]
    return overridden([*command(tmp_path, "cardinality", "in", "rows"), f"--ledger={tmp_path / 'ledger'}", *watch])


def test_a_second_run_is_refused_while_the_first_goes_on(words, tmp_path, capsys, monkeypatch):
    """Nothing is recorded of it; it runs when the first has ended, even if that was killed."""
    script = "import sys, time; from privstream.pipelines.sinks.writers import alone_in as a\n"
    script += "with a(sys.argv[1:]): print(flush=True); time.sleep(600)"
    with monkeypatch.context() as patched:
        patched.setattr(writers, "LET_GO_SECONDS", 0.1)
        holder = [sys.executable, "-c", script, str(tmp_path / "rows")]
        with subprocess.Popen(holder, stdout=subprocess.PIPE) as first:
            assert first.stdout.readline() == b"\n"
            assert cli.main(words) == 2
            first.kill()
    assert "rows must be a folder into which no other run writes, but one on this" in capsys.readouterr().err
    assert not (tmp_path / "ledger").exists()
    assert list((tmp_path / "rows").iterdir()) == []
    assert cli.main(words) == 0
    assert (tmp_path / "rows" / "_END").exists()


def test_a_run_that_was_charged_and_stopped_can_go_on(words, tmp_path, monkeypatch):
    def stopped(pipeline):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(launch, "_started", stopped)
        cli.main(words)
    assert (tmp_path / "ledger").exists() and cli.main(words) == 0


def test_a_run_whose_output_is_gone_is_refused_for_other_events_would_get_the_same_noise(words, tmp_path, capsys):
    """Of two streams of one name nothing but what was published tells that their events are others."""
    assert cli.main(words) == 0
    before = {file.name: file.read_bytes() for file in (tmp_path / "rows").glob("*.jsonl")}
    (tmp_path / "rows" / "_END").unlink()
    (tmp_path / "other").write_bytes(bytes(range(9, 41)))
    (tmp_path / "other").chmod(0o600)
    assert cli.main(overridden([*words, f"--key={tmp_path / 'other'}"])) == 2
    assert "is of another one, which differs in what is read or drawn" in capsys.readouterr().err
    assert cli.main(words) == 0, "it starts again"
    assert {file.name: file.read_bytes() for file in (tmp_path / "rows").glob("*.jsonl")} == before
    (tmp_path / "rows").rename(tmp_path / "away")
    (tmp_path / "rows").mkdir()
    capsys.readouterr()
    lines = (tmp_path / "ledger").read_text()
    assert cli.main(words) == 2
    assert "must be the folder in which this run was begun" in capsys.readouterr().err
    assert not list((tmp_path / "rows").iterdir()) and (tmp_path / "ledger").read_text() == lines
