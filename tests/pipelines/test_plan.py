"""`privstream plan` of any question, with that of heavy hitters for an example."""

import json
from typing import Any

import pytest
from privstream.pipelines import cli

BASE = ["plan", "heavy-hitters", "--delta", "1e-6"]
DAYS = ["--window", "1d", "--start", "2026-08-31", "--end", "2026-11-23"]


def budgets(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    assert cli.main([*BASE, *options, "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    found: list[dict[str, Any]] = json.loads(shown.out)["budgets"]
    return found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([*DAYS, "--error", "0"], "--error must be finite and > 0, got 0.0"),
        ([*DAYS, "--error", "1e-9"], "--error must be larger"),
        ([*DAYS, "--error", "5", "--epsilon", "1"], "one of --epsilon and --error must be given"),
        ([*DAYS[2:], "--epsilon", "1"], "--window must be given"),
        ([*DAYS[:2], "--epsilon", "1"], "--start must be given"),
    ],
)
def test_what_is_asked_of_a_plan_is_one_thing(options, message, capsys):
    assert cli.main([*BASE, *options, "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and message in shown.err


def test_the_least_budget_has_the_error_that_is_wanted(capsys):
    size = ("--window", "1", "--start", "0", "--end", "24", "--max_contributions", "20")
    (found,) = budgets(capsys, *size, "--error", "100")
    assert found["method"] == "counts" and found["error"] <= 100
    (less,) = budgets(capsys, *size, "--epsilon", str(0.99 * found["epsilon"]))
    assert less["error"] > 100
