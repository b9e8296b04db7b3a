"""`privstream heavy-hitters`, from a file to a file."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from privstream.mechanisms.monitor.monitor import ThresholdMonitor
from privstream.pipelines import cli, simulate
from privstream.pipelines.simulate import Truth
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.transforms.row_types import HeavyHitter
from questions import overridden

FORMATS = ("parquet", "avro", "jsonl", "csv")
USERS, WINDOWS = 3000, 4
SOMEBODY = re.compile(r"u\d{6}")
OPTIONS = ["--window", "3600", "--epsilon", "8", "--delta", "1e-6", "--start", "2024-01-01"]
OPTIONS += ["--max_hits", "4", "--max_per_window", "4", "--method", "clock", "--end", "2024-01-01T04:00:00Z"]
BAD_LINE = '{"user": "u000007", "item": "secret wish", "time": "yesterday"}'


class City(NamedTuple):
    """Events in every format, their truth, and a noise key."""

    folder: Path
    key: str
    truth: list[Truth]

    def events(self, format: str) -> str:
        return str(self.folder / f"events.{format}")


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> City:
    folder = tmp_path_factory.mktemp("city")
    for format in FORMATS:
        windows = simulate.city(USERS, WINDOWS, 5, items=5000, trends=10)
        simulate.write_simulation(str(folder / f"events.{format}"), windows, str(folder / "truth.jsonl"))
    (folder / "noise.key").write_text("a key of this test alone\n")
    (folder / "noise.key").chmod(0o600)
    truth = read_row_file(str(folder / "truth.jsonl"), Truth)
    return City(folder, str(folder / "noise.key"), truth)


def watch(
    city: City, output: object, *options: str, format: str = "parquet", common: Sequence[str] = tuple(OPTIONS)
) -> int:
    """Run the command; options that come later count."""
    files = ["--input", city.events(format), "--output", str(output), "--key", city.key]
    return cli.main(overridden(["heavy-hitters", *files, *common, *options]))


@pytest.fixture(scope="module")
def answer(city: City, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows of a run with the usual options, which many tests compare with."""
    output = tmp_path_factory.mktemp("answer") / "rows.jsonl"
    assert watch(city, output) == 0
    return output


@pytest.mark.slow
def test_all_formats_keep_their_promise(city: City, tmp_path: Path) -> None:
    """The same events from four formats, rows to three."""
    true = {(row.item, row.window_start): row.number for row in city.truth}
    for format, ending in zip(FORMATS, ("jsonl", "parquet", "avro", "jsonl"), strict=True):
        output = tmp_path / f"rows-of-{format}.{ending}"
        assert watch(city, output, "--ledger", "none", format=format) == 0
        rows = read_row_file(str(output), HeavyHitter)
        order = [(row.window_start, -row.people) for row in rows]
        assert order == sorted(order)
        assert all(row.lower <= row.people <= row.upper for row in rows)
    promise = json.loads((tmp_path / "rows-of-parquet.jsonl.guarantee.json").read_text())
    assert promise["guarantee"]["epsilon"] == 8.0
    assert "one person over the whole run" in promise["guarantee"]["paragraph"]
    threshold = promise["accuracy"]["detection_threshold"]
    assert f"every item is reported that at least {threshold:,} people have" in promise["accuracy"]["sentence"]
    people = [true[row.item, row.window_start] for row in rows]
    assert sum(number >= threshold for number in people) >= 3


@pytest.mark.slow
def test_the_installed_command_runs_a_pipeline(city: City, tmp_path: Path) -> None:
    entry = Path(sys.executable).with_name("privstream")
    output, here = tmp_path / "rows.jsonl", tmp_path / "here.jsonl"
    named = ["--run_id", "installed", "--ledger", "none"]  # without, the noise is that of the code, which tests hide
    assert watch(city, here, *named) == 0
    files = ["--input", city.events("parquet"), "--output", str(output), "--key", city.key]
    ran = subprocess.run([entry, "heavy-hitters", *files, *OPTIONS, *named], capture_output=True, text=True, check=True)
    assert "Traceback" not in ran.stderr
    assert "WARNING" not in ran.stderr
    assert output.read_bytes() == here.read_bytes()


@pytest.mark.slow
def test_dead_letters(city: City, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = tmp_path / "events.jsonl"
    events.write_text(Path(city.events("jsonl")).read_text() + f"{BAD_LINE}\nno json\n")
    rows, letters = tmp_path / "rows.jsonl", tmp_path / "letters.jsonl"
    assert watch(city, rows, "--input", str(events), "--dead_letter", str(letters)) == 0
    shown = capsys.readouterr()
    assert f"2 unusable: see {letters}" in shown.err
    assert "u000007" not in shown.out + shown.err
    assert "secret wish" not in shown.out + shown.err
    found = [json.loads(line) for line in letters.read_text().splitlines()]
    assert len(found) == 2
    assert letters.stat().st_mode & 0o077 == 0
    assert any("u000007" in letter["record"] for letter in found), "a dead letter holds its record"
    assert watch(city, tmp_path / "more.jsonl", "--input", str(events)) == 0
    assert "2 unusable: --dead-letter FILE keeps them" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["jsonl", "-"])
def test_a_failed_run_leaves_nothing_and_quotes_nobody(ending, city, tmp_path, monkeypatch, capfd, caplog):
    somebody = f"u{7:06}"

    def fail(*arguments: object) -> None:
        raise KeyError(somebody)

    output = "-" if ending == "-" else str(tmp_path / f"rows.{ending}")
    monkeypatch.setattr(ThresholdMonitor, "decide", fail)
    assert watch(city, output, "--dead_letter", str(tmp_path / "letters.jsonl")) == 1
    shown = capfd.readouterr()
    assert "privstream heavy-hitters: error: the run failed with KeyError" in shown.err
    assert not SOMEBODY.search(shown.err + caplog.text)
    assert [path for path in tmp_path.iterdir() if path.name != "letters.jsonl"] == []


@pytest.mark.slow
def test_a_failed_run_keeps_what_was_there(city, answer, tmp_path, monkeypatch):
    output = tmp_path / "rows.jsonl"
    for written in answer.parent.iterdir():
        shutil.copy(written, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*arguments: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(ThresholdMonitor, "decide", fail)
    assert watch(city, output, "--overwrite") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
