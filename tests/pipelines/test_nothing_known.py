"""Intervals that say nothing: the rule, and that tables and pages say so in the same words."""

import numpy as np
import pytest
from example_results import row_of
from privstream.pipelines.promise import NOTHING_KNOWN, covers_all, in_words
from privstream.transforms.rows import QuantileEstimate

ROW: QuantileEstimate = row_of("quantiles", 0, "")
FEW = {"low": 88.0, "high": 203.0}
"""A range of which the interval of the example, from 90 to 200, is nearly all."""


@pytest.mark.parametrize(
    ("lower", "upper", "parameters", "nothing"),
    [
        (0.0, 100.0, {"low": 0, "high": 100}, True),
        (0.0, 96.0, {"low": 0, "high": 100, "scale": "linear"}, True),
        (2.0, 96.0, {"low": 0, "high": 100}, False),
        (1.1, 9500.0, {"low": 1, "high": 10_000, "scale": "log"}, True),
        (10.0, 10_000.0, {"low": 1, "high": 10_000}, True),
        (10.0, 10_000.0, {"low": 1, "high": 10_000, "scale": "log"}, False),
        (0.0, 100.0, {}, False),
        (0.0, 100.0, {"low": 0, "high": None}, False),
    ],
)
def test_an_interval_says_nothing_if_it_covers_nearly_the_whole_range(lower, upper, parameters, nothing):
    assert covers_all(lower, upper, parameters) == nothing
    assert covers_all(np.array([lower, lower]), np.array([upper, lower]), parameters).tolist() == [nothing, False]


def test_a_row_has_words_in_place_of_its_estimate() -> None:
    assert in_words(ROW, FEW) == ROW._replace(estimate=NOTHING_KNOWN, smoothed=NOTHING_KNOWN)  # type: ignore[arg-type]
    assert in_words(ROW, {"low": 0.0, "high": 1000.0}) is ROW
    other = row_of("counts", 0, "tea")
    assert in_words(other, FEW) is other
