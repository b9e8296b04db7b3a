"""`privstream plan` of any question, with that of heavy hitters for an example."""

import json
from contextlib import suppress

import pytest
from privstream.pipelines import cli

BASE = ["plan", "heavy-hitters", "--delta", "1e-6"]
DAYS = ["--window", "1d", "--start", "2026-08-31", "--end", "2026-11-23"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([*DAYS, "--epsilon", "1,x"], "--epsilon must be a valid number, got x"),
        ([*DAYS, "--epsilon", "1,501"], "--epsilon must be"),
        (DAYS, "required: --epsilon"),
        ([*DAYS[2:], "--epsilon", "1"], "--window must be given"),
        ([*DAYS[:2], "--epsilon", "1"], "--start must be given"),
    ],
)
def test_what_a_plan_needs_is_named(options, message, capsys):
    with suppress(SystemExit):
        assert cli.main([*BASE, *options, "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and message in shown.err


def test_more_budget_has_less_error(capsys):
    assert cli.main([*BASE, *DAYS, "--epsilon", "0.5,1,2", "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    found = json.loads(shown.out)["budgets"]
    assert [each["epsilon"] for each in found] == [0.5, 1, 2] and found[0]["method"] == "counts"
    assert found[0]["error"] > found[1]["error"] > found[2]["error"]
