"""`privstream alerts --method status` and `--renew_every`, from file to file, and what they refuse."""

import json
from pathlib import Path

import pytest
from privstream.pipelines import cli
from privstream.pipelines.questions.public_lists import write_rules
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.transforms import Alert, AlertRule

RULES = [AlertRule(name="many", at_least=60, until=40), AlertRule(name="few", at_most=15)]
CROWDS = (80, 80, 50, 20, 5, 5)
"""How many people have an event in each hour from half past ten."""

OPTIONS = ["--window", "1h", "--epsilon", "60", "--delta", "1e-2", "--max_hits", "9", "--method", "status"]
CLOCK = ["--start", "2024-01-01T10:30", "--end", "2024-01-01T16:30"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Work in a folder with events and rules; one event is from before the start."""
    lines = ["user,item,time", "early,x,2024-01-01T10:29:59Z"]
    for hour, crowd in enumerate(CROWDS):
        lines += [f"u{hour} {i},x,2024-01-01T{10 + hour}:{30 + i % 29}:00Z" for i in range(crowd)]
    (tmp_path / "events.csv").write_text("\n".join(lines))
    (tmp_path / "key").write_text("a key of this test alone\n")
    (tmp_path / "key").chmod(0o600)
    write_rules(str(tmp_path / "rules"), RULES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def watch(*options, output="alerts.jsonl"):
    files = ["--input", "events.csv", "--output", output, "--rules", "rules", "--noise_key_file", "key"]
    return cli.main(["alerts", *files, *OPTIONS, *CLOCK, *options])


def test_alerts_start_continue_and_end(folder, capsys):
    assert watch() == 0
    rows = read_row_file("alerts.jsonl", Alert)
    found = [(row.rule, row.window_start.to_utc_datetime().strftime("%H:%M"), row.status) for row in rows]
    assert found == [
        ("many", "10:30", "started"),
        ("many", "11:30", "continues"),
        ("many", "12:30", "continues"),
        ("many", "13:30", "ended"),
        ("few", "14:30", "started"),
        ("few", "15:30", "continues"),
    ]
    assert {row.since for row in rows if row.rule == "many"} == {rows[0].window_start}
    assert "1 events outside of the windows of the run" in capsys.readouterr().err
    record = json.loads(Path("alerts.jsonl.guarantee.json").read_text())
    assert record["guarantee"]["proof"] == "docs/proofs/status_monitor.md, section 6"
    assert "Each person is charged for at most 9 changes and then no longer counted." in record["guarantee"]["limits"]
    assert record["accuracy"]["end_margin"] == record["accuracy"]["margin"]


def test_the_table_has_no_numbers_where_nobody_was_charged(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert watch(output="-") == 0
    shown = capsys.readouterr().out
    (line,) = [line for line in shown.splitlines() if "few" in line and "continues" in line]
    assert line.split()[2:7] == ["few", "15", "-", "-", "-"]
    assert "±" in shown
    assert "epsilon" not in shown


def test_everything_starts_afresh_at_the_boundary(folder):
    assert watch("--renew_every", "2h") == 0
    rows = read_row_file("alerts.jsonl", Alert)
    found = [(row.rule, row.window_start.to_utc_datetime().strftime("%H:%M"), row.status) for row in rows]
    assert found == [
        ("many", "10:30", "started"),
        ("many", "11:30", "continues"),
        ("few", "14:30", "started"),
        ("few", "15:30", "continues"),
    ], "fifty people do not start an alert that eighty have started in the period before"
    record = json.loads(Path("alerts.jsonl.guarantee.json").read_text())["guarantee"]
    assert record["unit"] == "one person in one window of 2 hours, counted from 30 minutes after 1970 UTC"
    text = "All limits and budgets start afresh every 2 hours, counted from 2024-01-01T10:30:00Z."
    assert text in record["limits"]


def test_the_picture_shows_how_long_alerts_last(folder, capsys):
    assert watch() == 0
    assert cli.main(["plot", "alerts", "--input", "alerts.jsonl", "--output", "alerts.svg"]) == 0
    text = Path("alerts.svg").read_text()
    assert "Alerts: 2, of 2 rules; thick lines show how long they last." in text
    assert "hollow where an alert ends" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--renew_every", "90m"], "renew_every must be a multiple of 1 hour, by which windows follow each other, and"),
        (["--renew_every", "90m"], "at least one window, got 90 minutes"),
        (["--renew_every", "30m"], "at least one window, got 30 minutes"),
        (["--renew_every", "0"], "renew_every must be > 0"),
        (["--renew_every", "often"], "--renew_every: must be a number of seconds, or a number with its unit"),
        (["--quiet", "1"], "quiet must be 0 for status, which charges nobody while an alert lasts, got 1"),
        (["--max_hits", "1"], "max_hits must be >= the number of rules, got 1 < 2"),
        (["--delta", "0"], "delta must be > 0 for status"),
        (["--method", "counts"], "until of rule 'many' must not be given with the method 'counts'"),
        (["--method", "sparse_vector"], "until of rule 'many' must not be given with the method 'sparse_vector'"),
        (["--end", "2024-01-01T11:00"], "end must leave room for one window after start"),
    ],
)
def test_bad_options(folder, capsys, options, message):
    try:
        status = watch(*options)
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert message in capsys.readouterr().err
    assert not Path("alerts.jsonl").exists()


def test_a_run_whose_events_are_all_from_before_the_start_is_no_success(folder, capsys):
    assert watch("--start", "2024-02-01", "--end", "2024-02-02") == 3
    told = capsys.readouterr().err
    assert f"{sum(CROWDS) + 1} events outside of the windows of the run" in told
