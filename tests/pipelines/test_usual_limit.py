"""Where nobody gives a limit of people a run says what that costs, unless people surely use the limit up."""

import json
import shlex
from pathlib import Path

import pytest
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines import cli
from privstream.pipelines.sinks.left_out import UsedUp, used_up
from privstream.transforms.methods import USUAL_CONTRIBUTIONS
from privstream.transforms.rows import KeyCount

HOURS = 4
COSTS = "max_contributions is not given, so that a person counts at most 100 times"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "key").write_bytes(bytes(range(32)))
    (tmp_path / "key").chmod(0o600)
    return tmp_path


def visits(folder: Path, people: int, items: int) -> Path:
    """Write events: everybody has so many items in each hour."""
    path = folder / f"{people} people.csv"
    lines = [
        f"u{person},i{item},2024-01-01T{hour:02}:00:00Z"
        for person in range(people)
        for item in range(items)
        for hour in range(HOURS)
    ]
    path.write_text("\n".join(["user,page,time", *lines]))
    return path


def notes(capsys: pytest.CaptureFixture[str], folder: Path, path: Path, *options: str) -> list[str]:
    """Count, and return the notes on a limit that is not given."""
    line = f"counts --input {shlex.quote(str(path))} --output {folder}/rows.avro --overwrite --ledger none --epsilon 4"
    line += f" --delta 1e-3 --window 1h --start 2024-01-01 --windows {HOURS} --noise_key_file {folder}/key"
    assert cli.main([*shlex.split(line), "--item_field", "page", *options]) == 0
    return [line for line in capsys.readouterr().err.splitlines() if "max_contributions is not given" in line]


@pytest.mark.slow
def test_a_run_says_what_the_usual_limit_costs_and_its_command_finds_another(folder, capsys):
    path = visits(folder, people=400, items=2)
    (note,) = notes(capsys, folder, path)
    assert note.startswith(f"NOTE: {COSTS}") and "With 25 it would be about half of that." in note
    assert "By the last window about " in note and "have used it up" in note
    assert "where a few have much of everything, it leaves that out, and makes them worse" in note
    said, command, rest = note.partition("privstream suggest ")
    words = shlex.split(rest)
    assert command and words[:2] == ["--input", str(path)] and "u1" not in said
    assert cli.main(["suggest", *words, "--epsilon", "2", "--ledger", "none"]) == 0
    assert "--max_contributions " in capsys.readouterr().out
    (page,) = report(folder)
    assert page.endswith(rest.replace(shlex.quote(str(path)), "FILE").replace(f"{folder}/key", "KEY"))
    assert not notes(capsys, folder, path, "--max_contributions", "20") and not report(folder)


def report(folder: Path) -> list[str]:
    """Return the lines of a report that say it."""
    assert cli.main(["report", f"{folder}/rows.avro", "--output", f"{folder}/page.html"]) == 0
    page = (folder / "page.html").read_text().replace("&#x27;", "'").replace("&amp;", "&")
    return [part.partition("<")[0] for part in page.split(">") if part.startswith(COSTS)]


@pytest.mark.slow
def test_a_run_is_silent_where_people_use_the_limit_up(folder, capsys):
    """Nothing is left out of 25 items in each of four hours, and more could not be known of a smaller limit."""
    assert not notes(capsys, folder, visits(folder, people=120, items=USUAL_CONTRIBUTIONS // HOURS))
    assert not report(folder)


def test_a_plan_says_what_the_usual_limit_costs(capsys):
    plan = shlex.split("plan counts --epsilon 1 --windows 13 --delta")
    said = {}
    for options in (
        "1e-6",
        "0 --items 200",
        "1e-6 --max_contributions 100",
        "1e-6 --unit event",
        "1e-6 --items 3",
    ):
        assert cli.main([*plan, *options.split()]) == 0
        said[options] = " ".join(capsys.readouterr().out.split())
    silent = [options for options, text in said.items() if "max_contributions is not given" not in text]
    assert silent == [*said][2:], "limits that are given, or that a short list gives, are as somebody wanted them"
    assert "about half of that" in said["1e-6"] and "about a quarter of that" in said["0 --items 200"]
    assert all("privstream suggest chooses one" in text for text in [*said.values()][:2])


@pytest.mark.slow
def test_a_monitor_says_it_with_options_of_the_command_alone(folder, capsys):
    path = visits(folder, people=200, items=2)
    (folder / "monitor.yaml").write_text(
        f"data: {{input: '{path}', user: user, time: time, item: page}}\nwindow: 1h\nstart: 2024-01-01\n"
        f"windows: {HOURS}\nprivacy: {{epsilon: 4, delta: 1e-3}}\nquestions:\n  pages: {{question: counts}}\n"
        f"output: {{folder: {folder}/out}}\n"
    )
    assert cli.main(["run", f"{folder}/monitor.yaml", "--noise_key_file", f"{folder}/key", "--ledger", "none"]) == 0
    (note,) = [line for line in capsys.readouterr().err.splitlines() if "max_contributions is not given" in line]
    assert note.startswith("NOTE: pages: max_contributions is not given") and "--item_field page --window 3600 " in note


def row(hour: int, kept: int, left_out: int, people: tuple[int, int, int]) -> KeyCount:
    start, end = Timestamp(3600 * hour), Timestamp(3600 * hour + 3600)
    made = KeyCount("", start, end, "tea", 9, 1.0, 5, 7, 11, None, None, None, end, False)
    names = ("used_up", "used_up_lower", "used_up_upper")
    return made._replace(kept=kept, left_out=left_out, **dict(zip(names, people, strict=True)))


def test_what_is_told_of_people_is_that_of_the_last_window():
    rows = [row(2, 600, 5, (9, 0, 30)), row(1, 400, -5, (4, 0, 20)), row(1, 400, -5, (4, 0, 20))]
    assert used_up(rows, 10.0) == UsedUp(9, 0, 30, 1000.0)
    assert used_up([row(1, 400, 100, (4, 0, 20))], 30.0) is None, "much is surely left out"
    assert used_up([row(1, 400, 100, (4, 0, 20))], 40.0) is not None
    assert used_up([row(1, 400, 1, (4, 0, 20))._replace(used_up=None)], 1.0) is None and used_up([], 1.0) is None
    assert UsedUp(9, 1, 30, 1000.0).surely(50) and not UsedUp(9, 1, 30, 1000.0).surely(49)
    assert not UsedUp(0, 0, 30, -50.0).surely(100)


def test_the_plan_of_a_program_has_the_sentence_too(capsys):
    assert cli.main(shlex.split("plan counts --epsilon 1 --windows 13 --delta 1e-6 --json")) == 0
    (budget,) = json.loads(capsys.readouterr().out)["budgets"]
    assert budget["usual_limit"].startswith(COSTS)
