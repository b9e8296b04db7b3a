"""`privstream plan` of any question, with that of heavy hitters for an example."""

import json
from typing import Any

import pytest
from privstream.pipelines import cli

BASE = ["plan", "heavy-hitters", "--delta", "1e-6"]


def ask(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """Return the JSON answer; options that come later count."""
    assert cli.main([*BASE, *options, "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    answer: dict[str, Any] = json.loads(shown.out)
    return answer


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what was printed, as if no line had been wrapped."""
    return " ".join(capsys.readouterr().out.split())


def budget(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    (found,) = ask(capsys, "--epsilon", "1", *options)["budgets"]
    return dict(found)


@pytest.mark.slow
def test_an_error_that_the_least_budget_has(capsys: pytest.CaptureFixture[str]) -> None:
    plan = ["plan", "flags", "--categories", "12", "--windows", "48", "--error", "1e9"]
    assert cli.main(plan) == 0
    assert "An epsilon of 0.001 is enough" in printed(capsys)


def test_a_plan_says_what_a_list_finds_where_others_come_in_each_window(capsys: pytest.CaptureFixture[str]) -> None:
    found = budget(capsys, "--windows", "365")["methods"]
    assert found["counts"]["needed_by_others_in_64"] < found["counts"]["needed_in_64"]
    counted = ["plan", "counts", *BASE[2:4], "--max_contributions", "365", "--windows", "365", "--epsilon", "1"]
    for asked in ([*BASE, "--epsilon", "1", "--windows", "365"], counted):
        assert cli.main(asked) == 0
        shown = printed(capsys)
        assert ", if others │" in shown and "│ clock │ -" not in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--error", "0"], "--error must be finite and > 0, got 0.0"),
        (["--error", "5", "--epsilon", "1"], "one of --epsilon and --error must be given"),
        ([], "one of --epsilon and --error must be given"),
    ],
)
def test_what_is_asked_of_a_plan_is_one_thing(options, message, capsys):
    assert cli.main([*BASE, *options, "--json"]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"privstream plan heavy-hitters: error: {message}\n")


@pytest.mark.slow
def test_a_plan_says_that_a_run_without_delta_is_more_accurate(capsys: pytest.CaptureFixture[str]) -> None:
    def least(*options: str) -> tuple[float, float | None]:
        asked = ["plan", "histogram", "--epsilon", "1", "--categories", "2", *options]
        assert cli.main([*asked, "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["budgets"]
        return found["methods"][found["taken"]]["error_bound"], found["error_without_delta"]

    pure, nothing = least("--windows", "60")
    assert nothing is None
    noisy, better = least("--windows", "60", "--delta", "1e-6")
    assert noisy > pure == better
    asked = ["plan", "histogram", "--epsilon", "1", "--categories", "2", "--windows", "60", "--delta", "1e-6"]
    assert cli.main(asked) == 0
    assert f"Without --delta the error is smaller: {pure} events." in printed(capsys)


def test_a_delta_is_no_reason_for_more_noise_in_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    for windows in ("1", "4", "40"):
        asked = ["plan", "cardinality", "--epsilon", "1", "--windows", windows, "--delta", "1e-6", "--json"]
        assert cli.main(asked) == 0
        (found,) = json.loads(capsys.readouterr().out)["budgets"]
        assert found["error_without_delta"] is None


@pytest.mark.parametrize("days", ["1d", "1day"])
def test_a_plan_counts_windows_from_the_start_and_the_end_of_a_run(days, capsys):
    dates = ("--start", "2026-08-31", "--end", "2026-11-23", "--window", days)
    assert budget(capsys, *dates) == budget(capsys, "--windows", "84")
    assert budget(capsys, *dates) != budget(capsys, "--windows", "83")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--end", "2026-11-23"), "--window must be given with end"),
        (("--end", "2026-11-23", "--window", "1d"), "--start must be given with end"),
        (("--start", "2026-08-01", "--end", "2026-11-23", "--window", "1month"), "must be where a window"),
        (("--start", "2026-08-31", "--end", "2026-11-23", "--window", "1d", "--windows", "84"), "both name the last"),
    ],
)
def test_a_plan_refuses_dates_that_are_not_of_windows(given, message, capsys):
    assert cli.main([*BASE, "--epsilon", "1", *given]) == 2
    assert message in capsys.readouterr().err


def test_an_error_needs_a_budget_by_each_method(capsys):
    """The default method is counts; the least epsilon is that with which its error is as small as wished."""
    line = "plan heavy-hitters --delta 1e-6 --windows 24 --max_contributions 20 --error 100 --json"
    assert cli.main(line.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["taken"] == "counts" and set(found["epsilons"]) == {"counts", "clock", "status"}
