"""What accuracy says of what counts, and of what limits leave out."""

import math

import pytest
from privstream.mechanisms.accuracy import EACH, TOGETHER, Accuracy, Coverage, Limit

LASTING = Limit.at_most("max_contributions", 15, "contribution", "in the whole run", "first", lasting=True)
WINDOW = Limit.at_most("", 1, "value", "in a window", "random")


def test_a_limit_says_what_counts_and_what_is_missing():
    counted = "of each person at most 15 contributions in the whole run count (max_contributions), the first ones"
    assert LASTING.text == f"{counted}, so that of 30 half are missing"
    assert WINDOW.text == (
        "of each person at most 1 value in a window counts, chosen at random, so that of 2 one is missing"
    )
    several = Limit.at_most("categories_per_row", 2, "category", "of it", "last", unit="event")
    assert several.text.startswith(
        "of each event at most 2 categories of it count (categories_per_row), the last ones,"
    )


def test_without_limits_nothing_is_said():
    assert Coverage().leaves_out == ""
    assert Coverage().to_dict() == {"hold": "the true numbers", "scope": TOGETHER, "leave_out": "", "note": ""}
    assert Accuracy(error=1.0, failure_probability=0.1, claim="All is well.").sentence == "All is well."


def test_limits_are_a_sentence_with_what_they_can_look_like():
    coverage = Coverage(holds="the numbers of people who count", scope=EACH, limits=(LASTING, WINDOW))
    assert coverage.leaves_out == (
        f"{LASTING.text}; {WINDOW.text}; the numbers of all people may be larger, most so in later windows, which can "
        "look like a decline, and by how much is not published"
    )
    one = Coverage(limits=(WINDOW,), beyond="the quantiles of all values may be others")
    assert (
        one.leaves_out == f"{WINDOW.text}; the quantiles of all values may be others, and by how much is not published"
    )
    made = Accuracy(error=math.inf, failure_probability=0.1, claim="Bounds hold.", coverage=coverage)
    assert made.sentence == f"Bounds hold. This is about the numbers of people who count: {coverage.leaves_out}."
    assert made.to_dict() == {
        "failure_probability": 0.1,
        "sentence": made.sentence,
        "intervals": coverage.to_dict(),
    }


def test_where_all_starts_afresh_limits_are_those_of_a_period():
    assert "at most 15 contributions in one period count" in Coverage(limits=(LASTING,)).of_period.leaves_out


@pytest.mark.parametrize("wrong", [math.nan, -math.inf])
def test_an_error_is_a_number(wrong):
    with pytest.raises(ValueError, match="error must be finite"):
        Accuracy(error=wrong, failure_probability=0.1, claim="")
