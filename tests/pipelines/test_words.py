"""What a run prints besides its rows: numbers that are said are true, there are few of them, and one warning first."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee, guarantee_record
from privstream.mechanisms.privacy.units import EVENT, PERSON, PrivacyUnit
from privstream.pipelines import cli
from privstream.pipelines.model.catalogue import QUESTIONS, Suggest
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.report.result import regime_in_words
from privstream.pipelines.show import shown, words
from privstream.pipelines.show.words import Budget, QuestionFacts, summary
from privstream.transforms.row_types import LimitShare

WEEK = 7 * 86_400.0
ONE = PrivacyGuarantee(unit=PERSON, epsilon=1.0, delta=1e-6, horizon=13)
FOUND = {"stddev": 12.4, "likely_in_1": 160, "likely_in_4": 70, "likely_in_13": 40, "sentence": "Many words. More."}
BUDGET = Budget(dataset="shop", runs=4, spent=2.1, delta=1e-5, limit=4.0)


def record(word: str = "counts", dropped: Any = None, accuracy: Any = None, **parameters: Any) -> dict[str, Any]:
    given = {"window": WEEK, "over": "window"} | parameters
    limits = {"max_contributions": 60, "max_per_window": None, "dropped": dropped}
    return {
        "made_by": {"command": f"privstream {word}", "version": "0"},
        "parameters": given,
        "guarantee": guarantee_record(ONE),
        "accuracy": FOUND if accuracy is None else accuracy,
        "limits": limits,
    }


def said(*asked: QuestionFacts, **more: Any) -> tuple[list[str], list[str]]:
    found = summary(asked, record()["guarantee"], **{"budget": BUDGET, "path": "week.parquet", **more})
    return list(found.before), list(found.after)


def counters(used: int, **more: int) -> dict[str, int]:
    return {"events_read": used, "events_usable": used, "outputs_complete": 1} | more


def dropped(share: float, lower: float, upper: float | None) -> dict[str, float | None]:
    return {"share": share, "lower": lower, "upper": upper}


def test_a_plain_run_says_each_number_once_in_twelve_lines() -> None:
    counted = counters(53_062, events_malformed=16, events_malformed_time_syntax=16)
    before, after = said(QuestionFacts("", counted, record(dropped=dropped(0.03, 0.01, 0.05))))
    assert before == ["53,062 of 53,078 rows used (16 unusable: --dead-letter FILE keeps them)"]
    assert [line.split()[0] for line in after] == ["privacy", "accuracy", "limits", "budget", "more"]
    text = " ".join(after)
    numbers = ("epsilon 1, delta 1e-06", "13 weeks", "160 people in one week", "40 every week", "3% (1% to 5%)")
    numbers += ("noise about 12 people", "60 contributions", "4 runs", "2.1 of 4 at delta 1e-05", "week.parquet")
    for number in numbers:
        assert text.count(number) == 1, number
    assert len(before + after) <= 12 and len(" ".join(before + after).split()) <= 110


def test_a_budget_says_for_whom_it_is_and_which_runs_it_adds_up() -> None:
    week = PrivacyUnit(what="person", window=604_800_000_000, origin=7)
    assert ", for one person in one budget period of 7 days (n periods" in BUDGET._replace(unit=week).in_words()
    assert BUDGET._replace(silent=2).in_words().startswith("4 of 6 runs on 'shop', those that protect one person: ")
    assert BUDGET._replace(runs=1, silent=2).in_words().startswith("1 of 3 runs on 'shop', those that")


@pytest.mark.parametrize(
    ("counted", "option"),
    [
        (counters(100), None),
        (counters(96, events_malformed=4, events_malformed_time_syntax=4), None),
        (counters(95, events_malformed=5, events_malformed_time_syntax=5), "--time-format"),
        (counters(100, events_late=5), "--allowed-lateness"),
        (counters(100) | {"events_usable": 51, "events_outside_run": 49}, None),
        (counters(100) | {"events_usable": 50, "events_outside_run": 50}, "--start, --end|--start to --end"),
        (counters(100) | {"events_usable": 10, "events_of_other_values": 90}, None),
        (counters(100, values_over_limit=5, values_before_limit=100), "--max-per-window"),
        (counters(100, values_over_limit=4, values_before_limit=100), None),
        (counters(100, values_clipped=5), "--max-value"),
        (counters(100, values_clipped=2, sums_over_limit=5, sums_before_limit=100), "5% of the sum .*--max-value"),
        (counters(100, values_rounded=5), "--value-unit"),
        (counters(100, records_over_limit=68, records_before_limit=100), "68% of records .* one counts per person"),
        (counters(100, records_of_many_lines=1), "--quote"),
        (counters(100, queries_refused=1), "--epsilon"),
    ],
)
def test_there_is_a_warning_with_the_option_that_mends_it(counted: dict[str, int], option: str | None) -> None:
    before, after = said(
        QuestionFacts("", counted, {name: each for name, each in record().items() if name != "limits"})
    )
    assert len(before) == 1 + (option is not None) and not any(words.WARNING in line for line in after)
    if option is not None:
        assert before[0].startswith(words.WARNING) and re.search(option, before[0])


def test_an_option_of_suggest_says_where_its_share_is_not_known() -> None:
    for least, unsure in ((0.0, True), (0.8, False)):
        rows = [LimitShare(24.0, 32.0, 90, 60, 120, 0.91, least, 0.95, 28.6, 172, 89, "--max-contributions 32")]
        rows.append(LimitShare(32.0, None, 0, 0, 60, None, None, None, None, None, None, ""))
        monitor = Monitor.of(Suggest(), data={"input": "a.csv"}, privacy={"epsilon": 0.05, "delta": 1e-6})
        texts = [str(text) for text in shown.limits_below(rows, monitor)]
        assert texts[-1].startswith("--max-contributions 32") and ("not known" in texts[-1]) == unsure


def test_counts_say_nothing_exact_of_what_limits_drop() -> None:
    counted = counters(100, contributions_over_limit=50, contributions_before_limit=100)
    before, after = said(QuestionFacts("", counted, record()))
    assert len(before) == 1 and not any("50%" in line for line in (*before, *after))


def test_one_warning_stands_first_that_of_lower_bounds_before_others() -> None:
    counted = counters(50, events_malformed=50, events_malformed_time_syntax=50)
    found = QuestionFacts("", counted, record(dropped=dropped(0.31, 0.2, 0.4)))
    before, _ = said(found, budget=BUDGET)
    assert len(before) == 2 and "--max-contributions" in before[0] and "suggest" in before[0]
    assert "time-format" in said(found._replace(record=record()))[0][0]


@pytest.mark.parametrize(
    ("found", "bound", "told"),
    [
        (dropped(0.2, 0.1, 0.3), False, "20%"),
        (dropped(0.21, 0.1, 0.3), True, "21%"),
        (dropped(0.02, 0.01, None), True, "at least 1%"),
        (dropped(0.0, 0.0, 0.0), False, "nothing"),
    ],
)
def test_limits_say_what_was_released(found: dict[str, float | None], bound: bool, told: str) -> None:
    assert bool(words.lower_bounds(record(dropped=found))) == bound
    assert told in words.limits_in_words(record(dropped=found))
    assert "lower bound" in regime_in_words(found) or not bound


def test_nothing_that_could_be_used_has_its_reasons_by_their_number() -> None:
    counted = counters(7, events_malformed=12, events_malformed_user_missing=2, events_malformed_item_long=9)
    counted |= {"events_usable": 0, "events_of_other_values": 7, "events_malformed_no_such_fault": 1}
    facts = [QuestionFacts("", counted, record())]
    nothing = summary(facts, record()["guarantee"]).nothing
    assert "alone" not in (summary(facts, record()["guarantee"], dry_run=True).nothing or "alone")
    assert nothing is not None and re.search(r"noise alone: 9 .*, 7 .*, 2 .*, 1 refused as no such fault", nothing)


EVENTS = PrivacyGuarantee(unit=EVENT, epsilon=1.0, delta=0.0)


def test_numbers_have_no_digits_that_noise_hides() -> None:
    assert shown.rounded(0.12344, 0.011) == "0.123" and shown.rounded(335_300.1, 0.3) == "335,300"
    assert shown.rounded(-0.4, 1.0) == "0" and shown.rounded(-7.4, 1.0) == "-7" and shown.rounded(-0.0, None) == "0"
    assert shown.interval(728.3, None) == "728 or more" and shown.interval(715.2, 803.1) == "715 to 803"


def test_a_result_is_explained_by_its_guarantee_file_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rare = "Hashes of 64 bits may collide: add m / 2^64."
    said = {"limits": ("At most 60 contributions count.",), "caveats": (rare, "A key is secret.")}
    promised = PrivacyGuarantee(unit=PERSON, epsilon=1.0, delta=1e-6, horizon=13, **said)
    found = record(dropped=dropped(0.031, 0.01, 0.05)) | {"guarantee": guarantee_record(promised)}
    beside = tmp_path / "week.csv.guarantee.json"
    beside.write_text(json.dumps(found))
    for path in (tmp_path / "week.csv", beside):
        assert cli.main(["explain", str(path)]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        for fact in ("3% (1% to 5%)", "60 contributions", "A key is secret.", "epsilon = 1", "13 windows"):
            assert fact in shown
        assert rare not in shown, "what is negligible stands in the file alone"
        assert all(f" {name}: " in shown for name in ("window_start", "item", "lower, upper"))


def test_columns_of_sums_and_rises_are_explained_with_the_unit_of_values(tmp_path: Path, capsys) -> None:
    for option, name in (("max_value", "mean_margin"), ("rising", "rise_lower, rise_upper")):
        found = record(value="Betrag", value_unit=0.01, **{option: 1})
        (tmp_path / "a.csv.guarantee.json").write_text(json.dumps(found))
        assert cli.main(["explain", str(tmp_path / "a.csv")]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f" {name}: " in shown and "as in" not in shown and "None" not in shown
        assert ("In 0.01 Betrag" in shown) == (option == "max_value")


def test_every_question_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for word in QUESTIONS:
        found = record(word, accuracy={"sentence": "It is as it is."})
        (tmp_path / f"{word}.guarantee.json").write_text(json.dumps(found))
        assert cli.main(["explain", str(tmp_path / word)]) == 0
        assert len(words.accuracy_in_words(found)) > 5 and words.title_of(found)
    capsys.readouterr()
