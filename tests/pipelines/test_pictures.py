"""What pictures of all questions have in common: bars, markers, axes, and what their points mean."""

import io
import json
from typing import Any

import pytest
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines.pictures import alerts, counts
from privstream.pipelines.plot.chart import PAGE
from privstream.pipelines.plot.picture_spec import Given, PictureSpec
from privstream.pipelines.plot.promise import Promise
from privstream.pipelines.questions.catalogue import WORDS, question
from privstream.pipelines.questions.spec import loaded
from privstream.transforms.rows import Alert, KeyCount

START, HOUR = 1_704_067_200, 3600


def window(hour: int) -> tuple[str, Timestamp, Timestamp]:
    return "", Timestamp(START + hour * HOUR), Timestamp(START + (hour + 1) * HOUR)


def count(hour: int, item: str = "tea", number: int = 100) -> KeyCount:
    return KeyCount(
        *window(hour), item, number, 5.0, 9, number - 9, number + 9, None, None, None, window(hour)[2], False
    )


def drawn(picture: PictureSpec, rows: list[Any], promise: Promise | None = None) -> dict[str, Any]:
    """Return a picture for a page."""
    stream = io.BytesIO()
    picture.prepare(Given(stream="", rows=rows, promise=promise, options=picture.options))(stream, PAGE)
    found: dict[str, Any] = json.loads(stream.getvalue())
    return found


@pytest.mark.parametrize("word", WORDS)
def test_every_question_has_a_picture_also_of_nothing(word: str) -> None:
    picture = loaded(question(word).picture.path)
    found = drawn(picture, [])
    assert found["title"] and found["caption"] and found["notes"] == []


def test_an_alert_that_lasts_without_a_number_is_at_its_threshold() -> None:
    first = Alert(*window(0), "flu", 100.0, 300.0, 200.0, 20.0, 150.0, 0.0, 0.0, False, window(0)[1], "started")
    lasts = first._replace(window_start=window(1)[1], window_end=window(1)[2], status="continues")
    lasts = lasts._replace(estimate=None, gap=None, gap_stddev=None, gap_lower_bound=None)
    notes = drawn(alerts.PICTURE, [first, lasts])["notes"]
    assert [note["text"].split(", ")[-1] for note in notes] == ["started", "2024-01-01 01:00 UTC: continues"]
    assert "300, at least 250" in notes[0]["text"]
    assert notes[1]["y"] > notes[0]["y"]


def test_a_thousand_alerts_of_many_rules_are_few_shapes() -> None:
    rows = [
        Alert(*window(hour), f"rule {hour % 100}", 100.0, 300.0, 200.0, 20.0, 150.0, 0.0, 9.0, False, when, "started")
        for hour in range(1000)
        for when in window(hour)[1:2]
    ]
    found = drawn(alerts.PICTURE, rows)
    assert found["svg"].count("<g id=") < 250 and len(found["notes"]) > 990
    assert ">rule 11<" in found["svg"] and ">rule 12<" not in found["svg"]
    assert ">88 other rules<" in found["svg"]


def test_smoothed_counts_are_lines_and_counts_are_dots() -> None:
    rows = [
        count(hour)._replace(
            smoothed=97.5, smoothed_lower=90.0, smoothed_upper=105.0 + hour, count=-30 if hour else 100
        )
        for hour in range(4)
    ]
    found = drawn(counts.PICTURE, rows)
    assert [note["text"].split(": ")[1] for note in found["notes"]] == [
        f"97.5 (between 90 and {105 + hour})" for hour in range(4)
    ]
    assert (
        "Lines: counts smoothed over windows. In colour, dots: the counts with noise; bands: where" in found["caption"]
    )
    assert "with probability 95%, each by itself, if they stay near levels that move" in found["caption"]
    assert "dots" not in drawn(counts.PICTURE, [count(hour) for hour in range(4)])["caption"]
