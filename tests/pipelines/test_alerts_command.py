"""`privstream alerts`, and its plan, plot and simulation, from file to file."""

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from grids import some_quick
from privstream.mechanisms.free_gap.adaptive_sparse_vector import AdaptiveSparseVector
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.pipelines import cli
from privstream.pipelines.questions.public_lists import read_rules, write_rules
from privstream.pipelines.simulate.truths import RuleCount
from privstream.pipelines.simulate.worlds import rules_for
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.transforms import Alert, AlertRule, SparseVectorAlerts

USERS, WINDOWS = 4000, 48
OPTIONS = ["--window", "3600", "--start", "2024-01-01", "--end", "2024-01-03", "--epsilon", "4", "--min_alerts", "16"]
OPTIONS += ["--method", "sparse_vector"]


class Clinic(NamedTuple):
    folder: Path

    def __getitem__(self, name):
        return str(self.folder / name)


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    made = Clinic(tmp_path_factory.mktemp("clinic"))
    for ending in ("parquet", "csv"):
        given = ["--users", str(USERS), "--windows", str(WINDOWS), "--seed", "3", "--output", made[f"events.{ending}"]]
        assert cli.main(["simulate", "alerts", *given, "--truth", made["truth.jsonl"], "--rules", made["rules"]]) == 0
    Path(made["key"]).write_text("a key of this test alone\n")
    Path(made["key"]).chmod(0o600)
    return made


def watch(clinic, output, *options, events="events.parquet"):
    files = ["--input", clinic[events], "--output", str(output), "--rules", clinic["rules"]]
    return cli.main(["alerts", *files, "--noise_key_file", clinic["key"], *OPTIONS, *options])


@pytest.mark.slow
def test_alerts_keep_their_promise(clinic, tmp_path):
    output = tmp_path / "alerts.jsonl"
    same = ["--run_id", "same", "--ledger", "none"]
    assert watch(clinic, output, *same) == 0
    rows = read_row_file(str(output), Alert)
    promise = json.loads(Path(f"{output}.guarantee.json").read_text())
    assert promise["guarantee"]["unit"] == "one person over the whole run"
    assert promise["parameters"]["min_alerts"] == 16
    rules = [json.loads(line) for line in Path(clinic["rules"]).read_text().splitlines()]
    known = [{name: value for name, value in rule.items() if value is not None} for rule in rules]
    assert promise["public"]["rules"] == known
    first, last = promise["public"]["span"]
    assert last - first == WINDOWS * 3600 * 10**6
    assert clinic["key"] not in json.dumps(promise)
    margin = promise["accuracy"]["margin"]
    truth = {(row.window_start, row.rule): row.people for row in read_row_file(clinic["truth.jsonl"], RuleCount)}
    signs = {rule.name: rule.sign for rule in rules_for(USERS)}
    thresholds = {rule.name: rule.threshold for rule in rules_for(USERS)}
    fired = {(row.window_start, row.rule) for row in rows}
    assert {row.rule for row in rows} == {"flu", "line down"}
    clear = {place for place, n in truth.items() if signs[place[1]] * (n - thresholds[place[1]]) > margin}
    assert len(clear) > 3
    assert not any(row.stopped for row in rows[:-1])
    last = rows[-1].window_start if rows[-1].stopped else max(row[0] for row in truth)
    assert {place for place in clear if place[0] <= last} <= fired
    for row in rows:
        assert abs(row.estimate - truth[row.window_start, row.rule]) < margin
    other = tmp_path / "other.avro"
    assert watch(clinic, other, "--shards", "1", *same, events="events.csv") == 0
    assert read_row_file(str(other), Alert) == rows


def test_a_table_on_the_terminal_and_what_happened(clinic, capsys):
    assert watch(clinic, "-", "--min_alerts", "1", "--branches", "1") == 0
    captured = capsys.readouterr()
    assert "alerts" in captured.out
    assert "1 alert published" in captured.err
    assert "1 runs of tests have stopped, because their budget is spent" in captured.err
    assert "one person over the whole run" in captured.err


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "--rules must have at least one rule"),
        ('{"name": "x"}', "line 1 of .*: rule 'x' must have one of at_least and at_most"),
        ('{"name": "x", "at_least": 1}\n\n[1]', "line 3 of .*: line must be one JSON object"),
        (
            '{"name": "x", "at_leest": 1}',
            "fields must be name, at_least, at_most, items, until, windows, got 'at_leest'",
        ),
        ('{"at_least": 1}', "rule must have a name"),
        ('{"name": "x", "at_least": "1"}', "threshold of rule 'x' must be a number, got str"),
        ('{"name": "x", "at_least": 1, "items": "abc"}', "items must be a list"),
        ('{"name": "x", "at_least": 1}\n{"name": "x", "at_least": 2}', "rules must have distinct names"),
        (
            '{"name": "x", "at_least": 5, "until": 6}',
            "line 1 of .*: until of rule 'x' must be <= at_least, or",
        ),
        ('{"name": "x", "at_most": 5, "until": 4}', "line 1 of .*: until of rule 'x' must be >= at_most"),
        ('{"name": "x", "at_least": 5, "until": "4"}', "until of rule 'x' must be a number, got str"),
        ('{"name": "x", "at_least": 5, "until": 4.5}', "until of rule 'x' must be an integer"),
        ('{"name": "x", "at_least": 5, "until": -1}', "until of rule 'x' must be >= 0, got -1"),
        ('{"name": "x", "at_least": 5, "until": 4}', "until of rule 'x' must not be given with the method"),
        ('{"name": "x", "at_least": 5, "windows": 0}', "line 1 of .*: windows of rule 'x' must be >= 1, got 0"),
        ('{"name": "x", "at_least": 5, "windows": "3"}', "windows of rule 'x' must be an integer, got str"),
        ('{"name": "x", "at_least": 5, "windows": 2}', "windows of rule 'x' must be 1 with the method"),
    ],
)
def test_bad_rules(clinic, tmp_path, capsys, lines, message):
    (tmp_path / "rules").write_text(lines)
    files = ["--input", clinic["events.csv"], "--output", str(tmp_path / "o.jsonl"), "--rules", str(tmp_path / "rules")]
    assert cli.main(["alerts", *files, *OPTIONS]) == 2
    error = capsys.readouterr().err
    assert error.startswith("privstream alerts: error: ")
    assert re.search(message, error)
    assert not (tmp_path / "o.jsonl").exists()


def test_streams_are_named(tmp_path):
    events = tmp_path / "events.csv"
    lines = [f"u{i},fever,2024-01-01T00:10:00Z,{'north' if i % 3 else 'south'}" for i in range(300)]
    events.write_text("\n".join(["user,item,time,stream", *lines]))
    write_rules(str(tmp_path / "rules"), [AlertRule(name="all", at_least=150)])
    files = ["--input", str(events), "--rules", str(tmp_path / "rules"), "--output", str(tmp_path / "o.jsonl")]
    options = ["--window", "3600", "--start", "2024-01-01", "--end", "2024-01-01T02:00", "--epsilon", "8"]
    assert cli.main(["alerts", *files, *options, "--streams", "south,north"]) == 0
    (row,) = read_row_file(str(tmp_path / "o.jsonl"), Alert)
    assert row.stream == "north"


def test_rules_are_read_as_written(tmp_path):
    rules = (AlertRule(name='a "b" ä', at_least=3, items=("x,y", "z: {}")), AlertRule(name="c", at_most=0, until=9))
    rules += (AlertRule(name="d", at_least=3, windows=7),)
    write_rules(str(tmp_path / "rules"), rules)
    assert (tmp_path / "rules").read_text().count("windows") == 1
    assert read_rules(str(tmp_path / "rules")) == rules


@some_quick("ending", ["png", "svg"], "png")
@pytest.mark.slow
def test_the_plot(clinic, tmp_path, ending):
    output, picture = tmp_path / "alerts.jsonl", tmp_path / f"alerts.{ending}"
    assert watch(clinic, output) == 0
    given = ["--input", str(output), "--truth", clinic["truth.jsonl"], "--output", str(picture)]
    assert cli.main(["plot", "alerts", *given]) == 0
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    assert ending == "png" or (b"<!-- flu -->" in content and b"<!-- line down -->" in content)


def test_the_plot_of_nothing_and_of_something_else(clinic, tmp_path, capsys):
    (tmp_path / "none.jsonl").write_text("")
    given = ["--input", str(tmp_path / "none.jsonl"), "--output", str(tmp_path / "none.png")]
    assert cli.main(["plot", "alerts", *given]) == 0
    given = ["--input", clinic["truth.jsonl"], "--output", str(tmp_path / "none.png")]
    assert cli.main(["plot", "alerts", *given]) == 2
    assert "--input must have Alert rows" in capsys.readouterr().err


def plan(capsys, *options):
    """Return what the plan says of sparse vector with epsilon 1."""
    assert cli.main(["plan", "alerts", "--epsilon", "1", "--windows", "100", "--json", *options]) == 0
    (budget,) = json.loads(capsys.readouterr().out)["budgets"]
    return budget["methods"]["sparse_vector"]


def test_the_plan_says_what_the_mechanism_says(capsys):
    given = ["--rules", "3", "--min_alerts", "4", "--streams", "2"]
    found = plan(capsys, *given)
    shared = AdaptiveSparseVector(epsilon=1.0, min_hits=4, integer=True, monotone=True)
    assert found["margin"] == shared.accuracy(600, 0.05)
    assert (found["min_alerts"], found["max_alerts"], found["runs"]) == (4, 7, 1)
    state, _ = shared.step(shared.initial_state(), [10**6] * 20, SeededNoise(1))
    assert state.hits == 7
    each = AdaptiveSparseVector(epsilon=1 / 3, min_hits=4, integer=True, monotone=True)
    by_rule = plan(capsys, *given, "--budget", "per_rule")
    assert (by_rule["margin"], by_rule["runs"]) == (each.accuracy(200, 0.05), 3)
    assert cli.main(["plan", "alerts", "--epsilon", "1", "--delta", "1e-6", *given]) == 0
    assert "of the first 1,000 windows" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_the_plan_compares_all_methods(capsys):
    given = ["--epsilon", "1", "--rules", "3"]
    for windows, more, taken in (
        (24, [], "counts"),
        (24, ["--delta", "1e-6"], "counts"),
        (720, ["--delta", "1e-6"], "status"),
    ):
        assert cli.main(["plan", "alerts", *given, "--windows", str(windows), *more, "--json"]) == 0
        (budget,) = json.loads(capsys.readouterr().out)["budgets"]
        margins = {name: found["margin"] for name, found in budget["methods"].items() if "margin" in found}
        assert len(margins) == (3 if more else 2)
        assert budget["taken"] == taken
        assert margins["sparse_vector"] < margins["counts"] or more, "but it stops"
        assert budget["guarantee"]["delta"] == (1e-6 if more else 0.0)
    assert budget["methods"]["status"]["end_margin"] == budget["methods"]["status"]["margin"]
    assert cli.main(["plan", "alerts", *given, "--windows", "720", "--delta", "1e-6"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "status (taken)" in shown
    assert "until the run stops" not in shown
    assert "who was charged 4 times (max_hits), for starts and ends of alerts, no longer counts" in shown


def test_the_plan_says_why_a_method_cannot_answer(capsys, tmp_path):
    write_rules(str(tmp_path / "until"), [AlertRule(name="flu", at_least=500, until=400)])
    given = ["plan", "alerts", "--epsilon", "1", "--windows", "24", "--delta", "1e-6"]
    assert cli.main([*given, "--rules", str(tmp_path / "until")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "counts: until of rule 'flu' must not be given with the method 'counts'" in shown
    assert cli.main([*given, "--rules", "2", "--quiet", "3"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "status: --quiet must be 0 for status, which charges nobody while an alert lasts, got 3" in shown
    assert cli.main(["plan", "alerts", "--epsilon", "1", "--windows", "24", "--rules", str(tmp_path / "until")]) == 2
    assert "--delta must be > 0 for status" in capsys.readouterr().err


def test_the_plan_says_what_to_give_where_every_method_may_stop(capsys):
    assert cli.main(["plan", "alerts", "--epsilon", "1", "--rules", "3"]) == 2
    error = capsys.readouterr().err
    assert "error: --windows or --renew_every must be given for counts" in error, "a plan has no end"
    assert "delta must be > 0 for status" in error
    assert "sparse_vector, which stops when its budget is spent, is taken by its name alone" in error
    for more in (["--windows", "9"], ["--renew_every", "9"], ["--delta", "1e-6"]):
        assert cli.main(["plan", "alerts", "--epsilon", "1", "--rules", "3", *more]) == 0


@pytest.mark.slow
def test_rules_over_several_windows(clinic, tmp_path, capsys):
    """The mean over six hours is off by less than a half of what one hour is; the first five hours have no alert."""
    flu, _, down = rules_for(USERS)
    rules = [flu, AlertRule(name="six hours of flu", at_least=400, items=flu.items, windows=6), down]
    write_rules(str(tmp_path / "rules"), rules)
    given = [
        "--input",
        clinic["events.parquet"],
        "--output",
        str(tmp_path / "o.jsonl"),
        "--rules",
        str(tmp_path / "rules"),
    ]
    options = ["--window", "1h", "--start", "2024-01-01", "--end", "2024-01-03", "--epsilon", "4", "--delta", "1e-6"]
    assert cli.main(["alerts", *given, *options, "--noise_key_file", clinic["key"]]) == 0
    promise = json.loads((tmp_path / "o.jsonl.guarantee.json").read_text())
    assert promise["accuracy"]["method"] == "counts"
    assert promise["public"]["rules"][1] == {
        "name": "six hours of flu",
        "at_least": 400,
        "items": ["fever", "cough"],
        "windows": 6,
    }
    margins = promise["accuracy"]["margins"]
    assert margins["six hours of flu"] < margins["flu"] / 2 == promise["accuracy"]["margin"] / 2
    truth = sorted(
        (row.window_start.micros, row.people)
        for row in read_row_file(clinic["truth.jsonl"], RuleCount)
        if row.rule == "flu"
    )
    means = {when: sum(people for _, people in truth[i - 5 : i + 1]) / 6 for i, (when, _) in enumerate(truth) if i >= 5}
    rows = {
        row.window_start.micros: row
        for row in read_row_file(str(tmp_path / "o.jsonl"), Alert)
        if row.rule == "six hours of flu"
    }
    clear = {when for when, mean in means.items() if mean > 400 + margins["six hours of flu"]}
    assert len(clear) > 3 and clear <= set(rows) <= set(means)
    assert all(abs(row.estimate - means[when]) <= margins["six hours of flu"] for when, row in rows.items())
    assert cli.main(["plot", "alerts", "--input", str(tmp_path / "o.jsonl"), "--output", str(tmp_path / "o.svg")]) == 0
    assert "of six hours of flu, means over 6 windows in a row" in re.sub(r"\s+", " ", (tmp_path / "o.svg").read_text())


def test_the_plan_of_rules_in_a_file_knows_their_directions(capsys, tmp_path):
    rules = [AlertRule(name=name, at_least=5) for name in "abc"]
    write_rules(str(tmp_path / "same"), rules)
    write_rules(str(tmp_path / "both"), [*rules[:2], AlertRule(name="c", at_most=5)])
    margin = plan(capsys, "--rules", "3")["margin"]
    assert plan(capsys, "--rules", str(tmp_path / "same"))["margin"] == margin
    assert plan(capsys, "--rules", str(tmp_path / "both"))["margin"] > 1.5 * margin


def test_the_plan_finds_the_least_epsilon(capsys):
    assert cli.main(["plan", "alerts", "--error", "50", "--rules", "3", "--windows", "100", "--json"]) == 0
    epsilon = json.loads(capsys.readouterr().out)["epsilons"]["sparse_vector"]

    def margin(epsilon):
        return AdaptiveSparseVector(epsilon=epsilon, min_hits=10, integer=True, monotone=True).accuracy(300, 0.05)

    assert margin(epsilon) <= 50 < margin(epsilon * 0.99)


@pytest.mark.parametrize("neighbouring", ["add_remove", "replace_one"])
@pytest.mark.parametrize("budget", ["shared", "per_rule"])
def test_the_plan_of_streams_with_a_budget_of_their_own_is_that_of_the_transform(capsys, neighbouring, budget):
    given = ["--rules", "2", "--streams", "5", "--streams_per_person", "2", "--budget", budget]
    found = plan(capsys, *given, "--neighbouring", neighbouring)
    made = SparseVectorAlerts(
        epsilon=1.0,
        rules=tuple(AlertRule(name=name, at_least=5) for name in "ab"),
        window=1,
        start=0,
        end=100,
        noise=SeededNoise(1),
        budget=budget,
        neighbouring=neighbouring,
        streams=tuple("vwxyz"),
        streams_per_person=2,
        method="sparse_vector",
    )
    assert found["margin"] == made.margin()
    assert found["runs"] == 5 * len(made.plan.groups)


def test_the_simulation_is_what_it_says(clinic):
    truth = read_row_file(clinic["truth.jsonl"], RuleCount)
    assert len(truth) == WINDOWS * 3
    assert {row.rule for row in truth} == {"flu", "rash", "line down"}
    rules = {rule.name: rule for rule in rules_for(USERS)}
    assert read_rules(clinic["rules"]) == rules_for(USERS)
    down = [row for row in truth if row.rule == "line down" and row.people <= rules["line down"].threshold]
    ill = [row for row in truth if row.rule == "flu" and row.people >= rules["flu"].threshold]
    assert len(down) == 1
    assert 3 < len(ill) < WINDOWS / 2


RULES = [AlertRule(name="many", at_least=60, until=40), AlertRule(name="few", at_most=15)]
CROWDS = (80, 80, 50, 20, 5, 5)
"""How many people have an event in each hour from half past ten."""

STATUS_OPTIONS = ["--window", "1h", "--epsilon", "60", "--delta", "1e-2", "--max_hits", "9", "--method", "status"]
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


def watch_status(*options, output="alerts.jsonl"):
    files = ["--input", "events.csv", "--output", output, "--rules", "rules", "--noise_key_file", "key"]
    return cli.main(["alerts", *files, *STATUS_OPTIONS, *CLOCK, *options])


def test_alerts_start_continue_and_end(folder, capsys):
    assert watch_status() == 0
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


@pytest.mark.slow
def test_the_table_has_no_numbers_where_nobody_was_charged(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert watch_status(output="-") == 0
    shown = capsys.readouterr().out
    (line,) = [line for line in shown.splitlines() if "few" in line and "continues" in line]
    assert line.split()[2:7] == ["few", "15", "-", "-", "-"]
    assert "±" in shown
    assert "epsilon" not in shown


def test_everything_starts_afresh_at_the_boundary(folder):
    assert watch_status("--renew_every", "2h") == 0
    rows = read_row_file("alerts.jsonl", Alert)
    found = [(row.rule, row.window_start.to_utc_datetime().strftime("%H:%M"), row.status) for row in rows]
    assert found == [
        ("many", "10:30", "started"),
        ("many", "11:30", "continues"),
        ("few", "14:30", "started"),
        ("few", "15:30", "continues"),
    ], "fifty people do not start an alert that eighty have started in the period before"
    record = json.loads(Path("alerts.jsonl.guarantee.json").read_text())["guarantee"]
    assert record["unit"] == "one person in one window of 2 hours, counted from 1970-01-01 00:30:00 UTC"
    text = "All limits and budgets start afresh every 2 hours, counted from 2024-01-01T10:30:00Z."
    assert text in record["limits"]


@pytest.mark.slow
def test_the_picture_shows_how_long_alerts_last(folder, capsys):
    assert watch_status() == 0
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
        status = watch_status(*options)
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert message in capsys.readouterr().err
    assert not Path("alerts.jsonl").exists()


def test_a_run_whose_events_are_all_from_before_the_start_is_no_success(folder, capsys):
    assert watch_status("--start", "2024-02-01", "--end", "2024-02-02") == 3
    told = capsys.readouterr().err
    assert f"{sum(CROWDS) + 1} events outside of the windows of the run" in told
