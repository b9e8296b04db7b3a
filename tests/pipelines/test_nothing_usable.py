"""A run that can use nothing of its input writes its rows, counts the reasons, and does not end as a success."""

import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest
from grids import some_quick
from privstream.pipelines import cli
from questions import overridden, run_line, write_folder

PEOPLE = 150
GOOD = "2024-01-01T00:05:03Z"
APACHE = "17/May/2015:10:05:03 +0000"
SLASHES = "17/05/2015"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_folder(tmp_path)


def write_events(folder: Path, events: Iterable[dict]) -> None:
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))


def people(time: str, item: str = "a") -> list[dict]:
    return [{"user": str(number % 60 + 1), "item": item, "time": time} for number in range(PEOPLE)]


def run(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = cli.main(overridden(shlex.split(line)))
    return status, capsys.readouterr().err


@some_quick("command", ["counts", "flags", "cardinality"], "cardinality")
def test_times_that_cannot_be_read(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_events(folder, [*people(APACHE), *people(SLASHES)[:3], {"user": "1", "item": "a"}])
    status, told = run(run_line(command), capsys)
    assert status == 2
    assert re.search("none of the first 154 .*153 .*ISO 8601 .*--time-format.*, 1 without a time .--time time.;", told)
    assert not list(folder.glob("*.ledger.jsonl")) and not (folder / "rows.jsonl").exists()
    assert "fields within fields" in run(f"{run_line(command)} --time at.time", capsys)[1]


LEFT_OUT = {
    "top-k --domain domain": "150 .*--domain",
    "histogram": "150 .*--domain",
    "cardinality --enter_values in": "150 neither enter nor leave",
    "ranges --insert_values in": "150 neither insert nor delete",
    "predecessor --universe 16 --user far": "150 outside of the universe",
    "alerts --start 2015-05-17 --end 2015-05-17T01:00:00Z": "150 outside of --start to --end",
}


@some_quick("line", LEFT_OUT, "top-k --domain domain", "histogram")
def test_whatever_else_leaves_out_everything(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    why = LEFT_OUT[line]
    write_events(folder, [event | {"far": 40.0} for event in people(GOOD, "other")])
    command, _, further = line.partition(" ")
    status, told = run(f"{run_line(command)} {further}", capsys)
    assert status == 3, told
    assert re.search(f"noise alone: {why}", told.splitlines()[-1])
    assert (folder / "rows.jsonl").is_file() and (folder / "rows.jsonl.guarantee.json").is_file()


def test_a_run_that_publishes_nothing_says_why(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_events(folder, people(GOOD, "rare")[:5])
    status, told = run(run_line("counts"), capsys)
    assert status == 0
    assert "noise alone" not in told and "5 of 5 rows used" in told
    assert (folder / "rows.jsonl").read_text() == ""


def test_input_without_events(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_events(folder, [])
    status, told = run(run_line("cardinality"), capsys)
    assert status == 3
    assert told.endswith("noise alone: the input has no rows\n")


def test_much_that_is_not_used_is_said_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_events(folder, [*people(GOOD)[:60], *people(APACHE)[:90]])
    status, told = run(run_line("cardinality"), capsys)
    assert status == 0
    assert re.match("WARNING: 60% .*--time-format", told), "first, where it is seen"
    assert "60 of 150 rows used (90 unusable" in told and told.count("WARNING") == 1


def test_a_quiet_run_prints_nothing_but_errors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_events(folder, people(GOOD))
    assert cli.main([*shlex.split(run_line("cardinality")), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert cli.main([*shlex.split(run_line("cardinality")), "--quiet"]) == 2
    assert "--overwrite" in capsys.readouterr().err, "the rows are there"
