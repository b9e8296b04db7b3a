"""`privstream plan` of any question, with that of heavy hitters for an example."""

import json
from typing import Any

import pytest
from privstream.pipelines import cli

BASE = ["plan", "heavy-hitters", "--delta", "1e-6"]


def budgets(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    """Return the JSON answer; options that come later count."""
    assert cli.main([*BASE, *options, "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    found: list[dict[str, Any]] = json.loads(shown.out)["budgets"]
    return found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--error", "0"], "--error must be finite and > 0, got 0.0"),
        (["--error", "1e-9", "--windows", "4"], "--error must be larger"),
        (["--error", "5", "--epsilon", "1"], "one of --epsilon and --error must be given"),
        (["--end", "2026-11-23", "--epsilon", "1"], "--window must be given"),
        (["--end", "2026-11-23", "--window", "1d", "--epsilon", "1"], "--start must be given"),
        (
            ["--start", "2026-08-31", "--end", "2026-11-23", "--window", "1d", "--windows", "84", "--epsilon", "1"],
            "both name the last",
        ),
    ],
)
def test_what_is_asked_of_a_plan_is_one_thing(options, message, capsys):
    assert cli.main([*BASE, *options, "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and message in shown.err


@pytest.mark.parametrize("days", ["1d", "1day"])
def test_a_plan_counts_windows_from_the_start_and_the_end_of_a_run(days, capsys):
    dates = ("--epsilon", "1", "--start", "2026-08-31", "--end", "2026-11-23", "--window", days)
    assert budgets(capsys, *dates) == budgets(capsys, "--epsilon", "1", "--windows", "84")
    assert budgets(capsys, *dates) != budgets(capsys, "--epsilon", "1", "--windows", "83")


def test_the_least_budget_has_the_error_that_is_wanted(capsys):
    size = ("--windows", "24", "--max_contributions", "20")
    (found,) = budgets(capsys, *size, "--error", "100")
    assert found["method"] == "counts" and found["error"] <= 100
    (less,) = budgets(capsys, *size, "--epsilon", str(0.99 * found["epsilon"]))
    assert less["error"] > 100
