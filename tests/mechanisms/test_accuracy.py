"""What accuracy says of what counts, and of what limits leave out."""

import math

import pytest
from privstream.mechanisms.accuracy import EACH, TOGETHER, Accuracy, Coverage, Limit

LASTING = Limit.at_most("max_contributions", 15, "contribution", "in the whole run", "first", lasting=True)
WINDOW = Limit.at_most("", 1, "value", "in a window", "random")


def test_a_limit_says_what_counts_and_what_is_missing():
    counted = "each person counts with at most 15 contributions in the whole run (max_contributions), the first ones"
    assert LASTING.text == f"{counted}; who has 30 counts with half of them"
    assert (
        WINDOW.text
        == "each person counts with at most 1 value in a window, chosen at random; who has 2 counts with one of them"
    )
    several = Limit.at_most("categories_per_row", 2, "category", "", "last", unit="event")
    assert several.text.startswith("each event counts with at most 2 categories (categories_per_row), the last ones; ")
    assert several.text.endswith("an event that has 4 counts with half of them")
    other = Limit.at_most("", 3, "item", "", "those that are liked")
    assert (
        other.text
        == "each person counts with at most 3 items, those that are liked; who has 6 counts with half of them"
    )


def test_without_limits_nothing_is_said():
    found = Coverage()
    assert (found.leaves_out, found.scope, found.to_dict()["limits"]) == ("", TOGETHER, [])
    assert Accuracy(error=1.0, failure_probability=0.1, claim="All is well.").sentence == "All is well."


def test_limits_are_a_sentence_with_what_they_can_look_like():
    coverage = Coverage(holds="the numbers that count,", scope=EACH, limits=(LASTING, WINDOW), more=", or not")
    assert coverage.leaves_out == (
        f"{LASTING.text}; {WINDOW.text}; the numbers of all people may be larger, most so in later windows, which can "
        "look like a decline, or not. By how much is not published"
    )
    one = Coverage(limits=(WINDOW,), beyond="the quantiles of all values may be others")
    assert one.leaves_out == f"{WINDOW.text}; the quantiles of all values may be others. By how much is not published"
    made = Accuracy(error=math.inf, failure_probability=0.1, claim="Bounds hold.", coverage=coverage)
    assert made.sentence == f"Bounds hold. This is about the numbers that count: {coverage.leaves_out}."
    assert made.to_dict() == {
        "failure_probability": 0.1,
        "sentence": made.sentence,
        "intervals": coverage.to_dict() | {"probability": 0.9},
    }
    assert coverage.to_dict()["limits"] == ["max_contributions"]


def test_where_all_starts_afresh_limits_and_scopes_are_those_of_a_period():
    found = Coverage(limits=(LASTING,)).of_period
    assert "at most 15 contributions in one period (max_contributions)" in found.leaves_out
    assert "later windows of each period, which can look like a decline in it and a rise after it" in found.leaves_out
    assert found.scope == f"{TOGETHER}, in one period"
    assert Coverage(scope=EACH).of_period.scope == EACH


@pytest.mark.parametrize("wrong", [math.nan, -math.inf])
def test_an_error_is_a_number(wrong):
    with pytest.raises(ValueError, match="error must be finite"):
        Accuracy(error=wrong, failure_probability=0.1, claim="")
