"""`privstream plan counts --like SAMPLE`: what limits would leave out of public data, and what would be found."""

import json
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from privstream.pipelines import cli

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
WINDOWS = "--window 1d --start 2024-01-01 --end 2024-01-09"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The purchases of 400 people: each has two items on each of eight days; and two lines that cannot be used."""
    path = tmp_path_factory.mktemp("like") / "sample.csv"
    rng = np.random.default_rng(1)
    lines = ["who;what;when"]
    for person in range(400):
        for day in range(8):
            for item in rng.choice(12, 2, replace=False):
                at = BEGIN + timedelta(days=day, minutes=int(rng.integers(0, 1440)))
                lines += [f"p{person};item {item};{at:%d.%m.%Y %H:%M}"] * 2  # twice is once
    lines += ["p1;item 1;never", "p1;item 1;01.01.2030 00:00"]
    path.write_text("\n".join(lines))
    return path


def plan(sample: Path, options: str, windows: str = WINDOWS) -> int:
    fields = "--user_field who --item_field what --time_field when --time_format '%d.%m.%Y %H:%M' --time_zone UTC"
    return cli.main(shlex.split(f"plan counts --like {sample} {fields} {windows} --delta 1e-6 {options}"))


def predicted(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    (found,) = json.loads(capsys.readouterr().out)["budgets"]
    return dict(found)


@pytest.mark.slow
def test_what_limits_keep_is_exact(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(sample, "--epsilon 8 --max_contributions 10 --json") == 0
    found = predicted(capsys)
    assert (found["people"], found["contributions"], found["windows"]) == (400, 6_400, 8)
    kept = {each["limit"]: each["kept"] for each in found["limits"]}
    assert kept[10]["all"] == 0.625
    assert kept[10]["first"] == pytest.approx(kept[10]["last"], abs=0.1)
    assert kept[16] == {"all": 1.0, "first": 1.0, "last": 1.0}
    assert found["suggested"] == 16
    assert plan(sample, "--epsilon 8 --max_contributions 10 --json --where 'who < \"p1\"'") == 0
    assert predicted(capsys)["people"] == 1
    assert plan(sample, "--epsilon 8 --max_contributions 10 --selection first --json") == 0
    kept = {each["limit"]: each["kept"] for each in predicted(capsys)["limits"]}
    assert kept[10] == {"all": 0.625, "first": 1.0, "last": 0.0}
    assert plan(sample, "--epsilon 8 --max_contributions 8 --spread --json") == 0
    kept = {each["limit"]: each["kept"] for each in predicted(capsys)["limits"]}
    assert kept[8] == {"all": 0.5, "first": 0.5, "last": 0.5}


@pytest.mark.slow
def test_what_is_found_is_less_with_less_epsilon(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(sample, "--epsilon 0.05,8 --json") == 0
    little, much = json.loads(capsys.readouterr().out)["budgets"]
    shown = [{each["limit"]: each["shown"] for each in answer["limits"]}[16] for answer in (little, much)]
    assert shown[0]["found"] < 0.5
    assert shown[1]["found"] == 1.0
    assert shown[1]["count_error"] < 0.1
    assert little["suggested"] is None or little["suggested"] <= much["suggested"]


def test_a_table_says_that_it_is_not_private(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(sample, "--epsilon 8 --max_contributions 6") == 0
    shown = capsys.readouterr()
    text = " ".join(shown.out.split())
    assert "6 (given)" in text
    assert "Most of this sample is shown with --max_contributions" in text
    assert "these numbers are exact, protect nobody in it, and cost nothing" in text
    assert "12,800 events of the sample were used; 1 outside of the windows and 1 others were not" in shown.err


@pytest.mark.parametrize(
    ("options", "windows", "message"),
    [
        ("--epsilon 1", "--window 1d --start 2024-01-01", "--end or --windows must be given with like"),
        ("--epsilon 1", "--start 2024-01-01 --end 2024-01-09", "--window must be given with like"),
        ("--epsilon 1", "--window 1d --end 2024-01-09", "--start must be given with like"),
        ("--error 100", WINDOWS, "--epsilon must be given with like"),
        ("--epsilon 1 --items 5", WINDOWS, "--items must not be given with like"),
        ("--epsilon 1 --max_value 5", WINDOWS, "--max_value must not be given with like"),
        ("--epsilon 1 --over start", WINDOWS, "--over must be window with like, got start"),
        ("--epsilon 1 --forget", WINDOWS, "like needs items that stay found"),
        ("--epsilon 1", "--window 1d --start 2031-01-01 --windows 3", "it has none"),
        ("--epsilon nan", WINDOWS, "epsilon must be finite"),
    ],
)
def test_mistakes_are_named(options, windows, message, sample, capsys):
    assert plan(sample, options, windows) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_days_of_the_calendar_are_windows_of_a_sample(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    windows = WINDOWS.replace("1d", "1day")
    assert plan(sample, "--epsilon 8 --max_contributions 10 --json", windows) == 0
    found = predicted(capsys)
    assert (found["contributions"], found["windows"]) == (6_400, 8)
    assert {each["limit"]: each["kept"]["all"] for each in found["limits"]}[10] == 0.625


def test_a_topic_is_no_sample(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(Path("kafka://host:1/topic"), "--epsilon 1") == 2
    assert plan(Path("missing.csv"), "--epsilon 1") == 2
