"""A run that can use nothing of its input writes its rows, counts the reasons, and does not end as a success."""

import json
import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest
from grids import some_quick
from privstream.mechanisms.accuracy import Coverage, Limit
from privstream.pipelines import cli
from privstream.pipelines.model.catalogue import question
from privstream.pipelines.questions.run_report import RunReport
from privstream.pipelines.run import run as runs
from privstream.pipelines.runners import launch
from privstream.pipelines.sinks.row_files import COMPLETE
from questions import run_line, write_folder

NOTHING = Coverage()
PEOPLE = 150
GOOD = "2024-01-01T00:05:03Z"
APACHE = "17/May/2015:10:05:03 +0000"
SLASHES = "17/05/2015"
SYNTAX = "records with a time that is not ISO 8601 text such as 2030-01-31T12:00:00Z (give its form with --time_format)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, with all that the commands read beside events."""
    monkeypatch.chdir(tmp_path)
    return write_folder(tmp_path)


def write_events(folder: Path, events: Iterable[dict]) -> None:
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))


def people(time: str, item: str = "a") -> list[dict]:
    return [{"user": str(number % 60 + 1), "item": item, "time": time} for number in range(PEOPLE)]


def run(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = cli.main(shlex.split(line))
    return status, capsys.readouterr().err


@some_quick("command", ["counts", "flags", "cardinality"], "cardinality")
def test_times_that_cannot_be_read(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_events(folder, [*people(APACHE), *people(SLASHES)[:3], {"user": "1", "item": "a"}])
    status, told = run(run_line(command), capsys)
    assert status == 2
    why = f"153 {SYNTAX}, 1 record without a time in --time"
    assert f"--input must have records that can be used, and none of the first 154 can: {why} (--time time is" in told
    assert not list(folder.glob("*.ledger.jsonl")) and not (folder / "rows.jsonl").exists()


LEFT_OUT = {
    "top-k --domain domain": "150 events of items that are not in --domain",
    "histogram": "150 events of items that are not in --domain",
    "queries": "150 events of items that are not in --domain",
    "heavy-hitters --domain domain": "150 events of items that are not in --domain",
    "histogram --streams x": "150 events of streams that are not in --streams",
    "cardinality --enter_values in": "150 events that neither enter nor leave",
    "ranges --insert_values in": "150 events of actions that neither insert nor delete",
    "predecessor --universe 16 --user far": "150 events of points that are not in 1 .. --universe",
    "ranges --user item": "150 records whose point is not a whole number",
    "alerts --start 2015-05-17 --end 2015-05-17T01:00:00Z": "150 events outside of the windows of the run",
}


@some_quick("line", LEFT_OUT, "top-k --domain domain", "ranges --user item")
def test_whatever_else_leaves_out_everything(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    why = LEFT_OUT[line]
    of_stream = "--streams" in line
    field = {"stream": "y"} if of_stream else {}
    line = line.replace("--user item", "--user item --item user")
    write_events(folder, [event | field | {"far": "40"} for event in people(GOOD, "a" if of_stream else "other")])
    command, _, further = line.partition(" ")
    status, told = run(f"{run_line(command)} {further}", capsys)
    assert status == 3, told
    assert told.splitlines()[-1].endswith(f"noise alone: {why}")
    assert (folder / "rows.jsonl").is_file() and (folder / "rows.jsonl.guarantee.json").is_file()


def test_a_run_that_publishes_nothing_says_why(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_events(folder, people(GOOD, "rare")[:5])
    status, told = run(run_line("counts"), capsys)
    assert status == 0
    assert "0 counts published" in told
    assert (folder / "rows.jsonl").read_text() == ""


def test_input_without_events(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_events(folder, [])
    status, told = run(run_line("cardinality"), capsys)
    assert status == 3
    assert told.endswith("noise alone: the input has no events\n")


def test_queries_none_of_which_is_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_events(folder, people(GOOD))
    (folder / "linear").write_text('{"name": "y", "items": ["unknown"]}\n[]\n')
    status, told = run(run_line("queries"), capsys)
    assert status == 3
    assert told.endswith("error: no query could be answered: 2 lines that are not queries on the domain\n")


def test_much_that_is_left_out_is_said_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_events(folder, [*people(GOOD)[:60], *people(APACHE)[:90]])
    status, told = run(run_line("cardinality"), capsys)
    assert status == 0
    warned = (
        "\nWARNING: 60% of the records (90 of 150) could not be used, and no interval holds what they would add: 90 "
        f"{SYNTAX}.\n"
    )
    assert told.endswith(warned), "last, where it is seen"
    assert "60 of 150 events usable" in told and "accuracy   with probability" in told


def report(word: str = "cardinality", coverage: Coverage = NOTHING, over: str = "window", **counters: int) -> RunReport:
    return RunReport(counters | {COMPLETE: 1}, question(word), coverage, {"over": over})


def test_there_is_a_warning_from_5_percent_on() -> None:
    assert report().warnings() == report().notes() == []
    assert report(events_read=100, events_usable=100, events_late=4).warnings() == []
    (late,) = report(events_read=100, events_usable=100, events_late=5).warnings()
    assert late == (
        "WARNING: 5% of the records (5 of 100) could not be used, and no interval holds what they would add: 5 later "
        "than --allowed_lateness."
    )
    assert len(report(events_read=95, events_malformed=5, events_malformed_time_type=5).warnings()) == 1


def test_what_was_not_asked_for_is_noted_where_it_may_be_a_mistake() -> None:
    assert report(events_read=100, events_usable=51, events_outside_run=49).notes() == []
    few = report(events_read=100, events_usable=10, events_of_other_values=90)
    assert few.notes() == few.warnings() == []
    most = report("counts", events_read=100, events_usable=50, events_outside_domain=50)
    assert most.warnings() == [] and len(most.notes()) == 1
    assert len(report("quantiles", events_read=100, events_outside_run=90, events_of_other_streams=90).notes()) == 1
    rules = report("alerts", events_read=100, events_usable=2, events_outside_domain=98)
    assert rules.warnings() == rules.notes() == [], "items that no rule names are none of its business"
    assert rules.left_out(None) == ["98 events of items that no rule names (98%)"]


def limits(*options: str) -> Coverage:
    return Coverage(limits=tuple(Limit(option, "") for option in options))


@pytest.mark.parametrize(("left_out", "told"), [(96, "10%"), (94, "9%"), (500, "50%")])
def test_shares_are_written_in_percent(left_out: int, told: str) -> None:
    (warning,) = report("top-k", limits(), items_before_limit=1000, items_over_limit=left_out).warnings()
    assert f"limits have left out {told} of all" in warning


def test_reasons_come_by_their_number() -> None:
    told = report(
        events_read=7, events_of_other_values=7, events_malformed=12, events_malformed_user_missing=2,
        events_malformed_item_long=9, events_malformed_no_such_fault=1,
    ).nothing_usable(5)  # fmt: skip
    assert told is not None and told.endswith(
        "the rows are noise alone: 9 records with an item that is too long, 7 events that neither enter nor leave, "
        "2 records without a user in --user, 1 record refused as no such fault"
    )


def test_a_job_without_counters_says_so(folder, capsys, monkeypatch):
    monkeypatch.setattr(launch, "run", lambda *_: {})
    monkeypatch.setattr(runs, "fingerprint", lambda path: "of what is not there")
    write_events(folder, people(GOOD))
    status, told = run(run_line("cardinality"), capsys)
    assert status == 0
    assert "the runner has reported no counters" in told


def test_the_exit_status_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"\n  {status} " in shown for status in (0, 1, 2, 3, 130))
