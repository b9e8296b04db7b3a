"""Intervals that say nothing: the rule, and that pictures, tables and pages say so in the same words."""

import io
import json

import numpy as np
import pytest
from example_results import row_of
from privstream.pipelines.pictures.quantiles import caption, draw_lines, lines
from privstream.pipelines.plot.chart import PAGE
from privstream.pipelines.plot.promise import NOTHING_KNOWN, covers_all, in_words
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
    assert in_words(ROW, FEW) == ROW._replace(estimate=NOTHING_KNOWN)  # type: ignore[arg-type]
    assert in_words(ROW, {"low": 0.0, "high": 1000.0}) is ROW
    other = row_of("counts", 0, "tea")
    assert in_words(other, FEW) is other


@pytest.mark.parametrize("known", [0, 1, 3])
def test_a_picture_has_crosses_at_its_foot(known: int) -> None:
    rows = [row_of("quantiles", hour, "") for hour in range(3)]
    rows = [row._replace(lower=99.0, upper=101.0) if hour < known else row for hour, row in enumerate(rows)]
    found = lines(rows, [], each=True, parameters=FEW)
    assert found[0].unknown.tolist() == [hour >= known for hour in range(3)]
    told = caption(rows, found, "")
    assert (f"{3 - known} of 3: {NOTHING_KNOWN}" in told) == (known < 3)
    drawn = io.BytesIO()
    draw_lines(found, drawn, PAGE, title="", caption=told)
    page = json.loads(drawn.getvalue())
    notes = page["notes"]
    assert [NOTHING_KNOWN in note["text"] for note in notes] == found[0].unknown.tolist()
    assert all("(between 9" in note["text"] for note in notes)
    feet = [note["y"] for note in notes[known:]]
    assert len(set(feet)) <= 1
    assert all(foot > note["y"] for foot in feet for note in notes[:known])  # further down
    assert all(foot > 0.8 * page["size"][1] for foot in feet)
