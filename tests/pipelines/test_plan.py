"""`privstream plan` of any question, with that of heavy hitters for an example."""

import json
import re
from typing import Any

import pytest
from grids import some_quick
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.pipelines import cli
from privstream.transforms import ShiftingHeavyHitters

METHODS = ["status", "clock", "target_charging", "paper", "counts"]
BASE = ["plan", "heavy-hitters", "--delta", "1e-6", "--max_hits", "4", "--count_share", "0"]
LISTED = ["--items", "1000", "--windows", "1000", "--beta", "0.01"]


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


PUBLISHED = {
    "status": (15.24, 337, 0.0),
    "clock": (15.0, 330, 0.0),
    "target_charging": (21.5, 794, 0.002),
    "paper": (49_487, 1.82e6, 0.005),
}
"""By method: scale of the noise, detection threshold, and how exactly that is said."""


def test_the_published_table(capsys: pytest.CaptureFixture[str]) -> None:
    answer = budget(capsys, *LISTED)
    for name, (noise_scale, detection_threshold, tolerance) in PUBLISHED.items():
        found = answer["methods"][name]
        assert found["noise_scale"] == pytest.approx(noise_scale, rel=4e-3), name
        assert found["detection_threshold"] == pytest.approx(detection_threshold, rel=tolerance), name
        assert 0 < found["threshold"] < found["detection_threshold"], name
        assert found["count_stddev"] == 0, name
    assert answer["taken"] == "status"
    assert answer["methods"]["clock"]["lasting_windows"] == 4
    assert "lasting_windows" not in answer["methods"]["status"]
    assert (answer["guarantee"]["epsilon"], answer["guarantee"]["delta"]) == (1.0, 1e-6)
    assert answer["guarantee"]["unit"] == "one person over the whole run"


def test_the_published_table_for_unknown_items(capsys: pytest.CaptureFixture[str]) -> None:
    answer = budget(capsys, "--horizon", "1000", "--beta", "0.01")
    assert answer["methods"]["clock"]["detection_threshold"] == 340
    assert answer["guarantee"]["horizon"] == 1000
    assert answer["taken"] == "counts"  # items that last are found with fewer people, over several windows
    assert any("counts at most 1,000 times in the whole run" in limit for limit in answer["guarantee"]["limits"])


@some_quick("neighbouring", ["add_remove", "replace_one"], "add_remove")
def test_the_plan_is_what_a_run_promises(neighbouring: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--horizon", "24", "--items_per_step", "3", "--neighbouring", neighbouring, "--streams_per_person", "2"]
    options += ["--streams", "5", "--count_share", "0.25"]
    planned = budget(capsys, *options)["methods"]
    for method in METHODS:
        hitters = ShiftingHeavyHitters(
            epsilon=1.0,
            delta=1e-6,
            max_hits=4,
            window=60,
            start=0,
            horizon=24,
            items_per_step=3,
            neighbouring=neighbouring,
            streams=tuple("abcde"),
            streams_per_person=2,
            count_share=0.25,
            method=method,
            noise=KeyedNoise(b"0123456789abcdef"),
        )
        assert planned[method] == hitters.to_finish().accuracy.to_dict(), method
    unbounded = budget(capsys, "--unbounded", *options)["methods"]["counts"]
    assert unbounded == hitters.accuracy.to_dict() != planned["counts"]


def test_what_cannot_be_says_why_and_the_rest_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    (answer,) = ask(capsys, "--epsilon", "500", *LISTED)["budgets"]
    assert "inner noise scale >= 2" in answer["methods"]["paper"]["reason"]
    assert answer["methods"]["clock"]["detection_threshold"] < 20
    unending = budget(capsys)
    assert unending["methods"]["clock"]["detection_threshold"] > 100
    assert unending["methods"]["status"]["detection_threshold"] > 100
    for name in METHODS[2:]:
        assert re.search("horizon|participation_cap", unending["methods"][name]["reason"])


def test_several_budgets(capsys: pytest.CaptureFixture[str]) -> None:
    budgets = ask(capsys, "--epsilon", "0.5,1,2", *LISTED)["budgets"]
    assert [each["epsilon"] for each in budgets] == [0.5, 1.0, 2.0]
    found = [each["methods"]["clock"]["detection_threshold"] for each in budgets]
    assert found == sorted(found, reverse=True)
    assert found[1] == 330


def test_the_budget_for_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    epsilons = ask(capsys, "--error", "330", *LISTED)["epsilons"]
    assert 0.98 < epsilons["clock"] <= 1.0
    assert epsilons["clock"] < epsilons["status"] < epsilons["target_charging"]
    assert cli.main([*BASE, *LISTED, "--error", "330"]) == 0
    shown = re.search(r"Least epsilon, rounded up: ([0-9.]+), by status\.", printed(capsys))
    assert shown is not None, "the clock needs less, but a run does not take it"
    assert epsilons["status"] <= float(shown[1]) < epsilons["status"] + 0.01
    assert cli.main([*BASE, *LISTED, "--error", "1"]) == 0
    shown_text = printed(capsys)
    assert "No method reaches this error with an epsilon up to 500." in shown_text
    assert "clock: the error with epsilon 500 is larger" in shown_text


@pytest.mark.slow
def test_an_error_that_the_least_budget_has(capsys: pytest.CaptureFixture[str]) -> None:
    plan = ["plan", "flags", "--categories", "12", "--windows", "48", "--error", "1e9"]
    assert cli.main(plan) == 0
    assert "An epsilon of 0.001 is enough" in printed(capsys)


def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*BASE, *LISTED, "--epsilon", "1"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 100
    for cell in ("status (taken)", "337", "clock", "330", "target_charging", "paper", "49,487"):
        assert cell in shown
    shown = " ".join(shown.split())
    assert "With probability 0.99, every item that at least 337 people have in a window" in shown
    assert "An item that at most 46 people still have ends in the next window with probability 0.99" in shown
    assert "who was charged 4 times (max_hits), for starts and ends, no longer counts" in shown
    assert cli.main([*BASE, "--epsilon", "1"]) == 0
    assert "This number is for the first window; it rises to" in printed(capsys)


def test_a_plan_says_how_many_people_an_item_needs_by_the_windows_that_it_lasts(capsys):
    methods = budget(capsys, "--windows", "64")["methods"]
    even, likely = ([methods["counts"][f"{name}_in_{n}"] for n in (1, 4, 16, 64)] for name in ("needed", "likely"))
    assert even == sorted(even, reverse=True) and likely == sorted(likely, reverse=True)
    assert all(more > less for more, less in zip(likely, even, strict=True))
    assert "needed_in_256" not in methods["counts"]  # the run is shorter
    assert [methods["clock"][f"needed_in_{n}"] is None for n in (1, 4, 16, 64)] == [False, False, True, True]
    assert cli.main([*BASE, "--epsilon", "1", "--windows", "64"]) == 0
    shown = printed(capsys)
    assert "│ 1 window │ 4 windows │ 16 windows │ 64 windows │".replace("│", "┃") in shown
    assert f"{even[1]} ({likely[1]})" in shown and "in brackets, with probability 0.95" in shown
    plain = ["plan", "counts", *BASE[2:4], "--max_contributions", "256", "--windows", "64", "--epsilon", "1"]
    assert cli.main([*plain, "--full_share", "0"]) == 0
    assert f"│ the only method │ {even[0]} ({likely[0]}) │ {even[1]} ({likely[1]}) │" in printed(capsys)


def test_a_plan_says_what_a_list_finds_where_others_come_in_each_window(capsys: pytest.CaptureFixture[str]) -> None:
    found = budget(capsys, "--windows", "365")["methods"]
    same, others = (found["counts"][f"needed{whose}_in_64"] for whose in ("", "_by_others"))
    assert others < same and "needed_by_others_in_64" not in found["status"]
    assert found["clock"]["needed_in_64"] is None and found["clock"]["needed_by_others_in_64"] > 0
    counted = ["plan", "counts", *BASE[2:4], "--max_contributions", "365", "--windows", "365", "--epsilon", "1"]
    for asked in ([*BASE, "--epsilon", "1", "--windows", "365"], counted):
        assert cli.main(asked) == 0
        shown = printed(capsys)
        assert ", if others │" in shown and "If others: no person has the item in two windows." in shown
    renewed = budget(capsys, "--windows", "30", "--renew_every", "30")
    assert renewed["advice"].startswith("A period of renew_every has 30 windows, so items are looked for in at most 16")


def test_a_plan_says_what_its_error_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    about = "how many people are enough for a report in the window itself, in all tests together"
    assert cli.main([*BASE, *LISTED, "--error", "330"]) == 0
    assert f"The error is {about}." in printed(capsys)
    with pytest.raises(SystemExit):
        cli.main(["plan", "heavy-hitters", "--help"])
    assert about in printed(capsys)


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
    assert least("--windows", "4", "--delta", "1e-6") == least("--windows", "4"), "short runs have the same noise"
    assert least("--windows", "1000", "--delta", "1e-6")[1] is None
    asked = ["plan", "histogram", "--epsilon", "1", "--categories", "2", "--windows", "60", "--delta", "1e-6"]
    assert cli.main(asked) == 0
    assert f"Without --delta the error is smaller: {pure} events." in printed(capsys)


def test_a_delta_is_no_reason_for_more_noise_in_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    for windows in ("1", "4", "40"):
        asked = ["plan", "cardinality", "--epsilon", "1", "--windows", windows, "--delta", "1e-6", "--json"]
        assert cli.main(asked) == 0
        (found,) = json.loads(capsys.readouterr().out)["budgets"]
        assert found["error_without_delta"] is None


def test_a_plan_keeps_silent_about_a_delta_that_a_run_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert budget(capsys, "--horizon", "1")["error_without_delta"] is None


@pytest.mark.slow
def test_methods_that_nobody_can_have_are_no_errors(capsys):
    given = ["plan", "top-k", "--delta", "1e-6", "--top", "5", "--windows", "8"]
    for asked in (["--epsilon", "1"], ["--error", "100"]):
        assert cli.main([*given, *asked]) == 0
        shown = capsys.readouterr().out
        assert "counts" in shown and "_gaps" not in shown and "method must be" not in shown
    assert cli.main([*given, "--epsilon", "1", "--items", "100"]) == 0
    assert "exponential_gaps" in capsys.readouterr().out


def test_items_that_last_the_whole_run_are_told(capsys):
    given = ["plan", "counts", "--delta", "1e-6", "--max_contributions", "30", "--epsilon", "1", "--windows", "8"]
    assert cli.main(given) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 window ┃ 4 windows ┃ 8 windows" in shown
    assert re.search(r"by \d+ people in each of 4 windows, or \d+ people in each of 8 windows", shown)
    assert "surely found in one" in shown and "Some are found at the end of the run alone" in shown
    assert cli.main([*given, "--unbounded"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "by 74 people in each of 4 windows" in shown and "at the end of the run" not in shown


@pytest.mark.slow
def test_the_plan_of_alerts_says_how_often_noise_alone_meets_a_rule(tmp_path, capsys):
    rules = tmp_path / "rules"
    rules.write_text('{"name": "kettle", "at_least": 15}\n{"name": "far", "at_least": 5000}\n')
    given = ["plan", "alerts", "--epsilon", "1", "--delta", "1e-6", "--windows", "40"]
    assert cli.main([*given, "--rules", str(rules)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "With nobody at all, noise alone is to meet rule 'kettle' in about" in shown
    assert "NOTE: some alerts will be noise alone" in shown and "'far'" not in shown
    assert cli.main([*given, "--rules", "3"]) == 0
    assert "nobody" not in capsys.readouterr().out, "of rules that are not known nothing is said"


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
