"""What pictures of all questions have in common: bars, markers, axes, and what their points mean."""

import io
import json
import re
from typing import Any

import pytest
from apache_beam.utils.timestamp import Timestamp
from example_results import row_of
from privstream.pipelines.pictures import alerts, counts, top_k
from privstream.pipelines.plot import bands
from privstream.pipelines.plot.chart import COLOURS, MARKERS, PAGE
from privstream.pipelines.plot.picture_spec import Given, PictureSpec
from privstream.pipelines.plot.promise import Promise
from privstream.pipelines.questions.catalogue import WORDS, question
from privstream.pipelines.questions.spec import loaded
from privstream.transforms.rows import Alert, KeyCount, RankedItem

START, HOUR = 1_704_067_200, 3600


WINDOW = ("stream", "window_start", "window_end")


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


def test_every_line_has_a_marker_of_its_own() -> None:
    assert len(set(COLOURS)) == len(set(MARKERS)) == len(COLOURS) == len(MARKERS)


@pytest.mark.parametrize("word", WORDS)
def test_every_question_has_a_picture_also_of_nothing(word: str) -> None:
    picture = loaded(question(word).picture.path)
    found = drawn(picture, [])
    assert found["title"] and found["caption"] and found["notes"] == []


def test_noise_alone_is_told_in_words() -> None:
    rows = [
        RankedItem(*window(hour), rank, f"item {rank}", 3, 100.0, 750.0, 10.0, 190.0)
        for hour in range(3)
        for rank in (1, 2)
    ]
    found = drawn(top_k.PICTURE, rows)
    assert ">Nothing can be told apart: noise dominates</text>" in found["svg"]
    assert "up to 750 people" in found["caption"] and found["notes"] == []
    clear = drawn(top_k.PICTURE, [row._replace(error_bound=20.0) for row in rows])
    assert len(clear["notes"]) == 6 and "Nothing can be told" not in clear["svg"]


def test_without_a_list_bars_of_leading_items_are_the_intervals_of_rows() -> None:
    """They rest on a model, and are narrower than bounds, which do not."""
    intervals = {"hold": "the numbers of people who count", "note": "They rest on a model."}
    promise = Promise("", {"accuracy": {"stddev": 67.0, "intervals": intervals}})
    rows = [RankedItem(*window(hour), 1, "tea", None, 100.0, 750.0, 10.0, 190.0) for hour in range(3)]
    found = drawn(top_k.PICTURE, rows, promise)
    assert "Nothing can be told apart" not in found["svg"]
    bars = (
        "Bands: where the numbers of people who count are, with probability 95%, each by itself. They rest on a model."
    )
    assert bars in found["caption"]
    assert len(found["notes"]) == 3 and "100 (between 10 and 190)" in json.dumps(found["notes"])
    noise = drawn(top_k.PICTURE, [row._replace(lower=0.0) for row in rows], promise)
    assert "By the intervals, up to 90 people, the leading item of each of 3 windows" in noise["caption"]
    assert drawn(top_k.PICTURE, rows)["caption"].startswith("By the error bounds, up to 750 people"), "not known"


def test_a_single_window_has_its_moment_on_the_axis() -> None:
    so_far = Promise("", {"parameters": {"beta": 0.01, "over": "start"}})
    assert ">2024-01-01 04:00 UTC</text>" in drawn(counts.PICTURE, [count(3)], so_far)["svg"]
    assert ">1 Jan 2024, UTC</text>" in drawn(counts.PICTURE, [count(3)])["svg"], "it has a beginning, too"


@pytest.mark.parametrize(("hours", "days"), [((1, 5), "1 Jan 2024, UTC"), ((1, 50), "1 Jan 2024 - 3 Jan 2024, UTC")])
def test_an_axis_has_days(hours: tuple[int, int], days: str) -> None:
    assert f">{days}</text>" in drawn(counts.PICTURE, [count(hour) for hour in hours])["svg"]


def test_gaps_are_explained() -> None:
    rows = [count(0), count(2), count(1, "milk", 60)]
    promise = Promise(
        "", {"parameters": {"beta": 0.01}, "accuracy": {"threshold": 47, "intervals": {"scope": "all at once"}}}
    )
    caption = drawn(counts.PICTURE, rows, promise)["caption"]
    assert "below the threshold of 47 people, and is not published" in caption
    assert "with probability 95%, each by itself" in caption and "all at once" not in caption, "as the table has it"
    assert "below the threshold of the run" in drawn(counts.PICTURE, rows)["caption"]
    assert "gap" not in drawn(counts.PICTURE, rows[:2], promise)["caption"]


def test_an_alert_that_lasts_without_a_number_is_at_its_threshold() -> None:
    first = Alert(*window(0), "flu", 100.0, 300.0, 200.0, 20.0, 150.0, 0.0, 0.0, False, window(0)[1], "started")
    lasts = first._replace(window_start=window(1)[1], window_end=window(1)[2], status="continues")
    lasts = lasts._replace(estimate=None, gap=None, gap_stddev=None, gap_lower_bound=None)
    notes = drawn(alerts.PICTURE, [first, lasts])["notes"]
    assert [note["text"].split(", ")[-1] for note in notes] == ["started", "2024-01-01 01:00 UTC: continues"]
    assert "300, at least 250" in notes[0]["text"]
    assert notes[1]["y"] > notes[0]["y"]


def test_rules_without_an_alert_and_time_without_one_are_shown() -> None:
    row = Alert(*window(5), "flu", 100.0, 300.0, 200.0, 20.0, 150.0, 1.0, 0.0, False, window(5)[1], "started")
    start = window(0)[1].micros
    rules = [{"name": "flu", "at_least": 100}, {"name": "quiet", "at_most": 3}]
    public = {"rules": rules, "span": [start, start + 72 * HOUR * 10**6]}
    found = drawn(alerts.PICTURE, [row], Promise("", {"parameters": {"beta": 0.05}, "public": public}))
    assert "Alerts: 1, of 2 rules;" in found["caption"]
    assert "Alerts: 1, of 1 rule;" in drawn(alerts.PICTURE, [row])["caption"]
    assert ">flu</text>" in found["svg"] and ">quiet: no alert</text>" in found["svg"]
    assert ">1 Jan 2024 - 3 Jan 2024, UTC</text>" in found["svg"]


def test_rules_with_long_names_can_be_told_apart() -> None:
    names = [f"at least so many people of the region in the {place} have it" for place in ("north", "south")]
    rows = [
        Alert(*window(5), name, 100.0, 300.0, 200.0, 20.0, 150.0, 1.0, 0.0, False, window(5)[1], "started")
        for name in names
    ]
    shown = drawn(alerts.PICTURE, rows)["svg"]
    assert all(len(re.findall(rf">…{place} have it</text>", shown)) == 1 for place in ("north", "south"))


def test_time_after_a_stop_is_marked() -> None:
    row = Alert(*window(0), "flu", 100.0, 300.0, 200.0, 20.0, 150.0, 1.0, 0.0, True, window(0)[1], "started")
    caption = drawn(alerts.PICTURE, [row])["caption"]
    assert "At the dotted line the budget was spent: where it is hatched, nothing was tested." in caption


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


def test_gaps_of_the_largest_are_no_thresholds() -> None:
    promise = Promise("", {"parameters": {"beta": 0.01, "top": 5}, "accuracy": {"threshold": 47}})
    caption = drawn(counts.PICTURE, [count(0), count(2), count(1, "milk", 60)], promise)["caption"]
    assert "Where a line has a gap, the item was not among the 5 largest of the window." in caption


def test_a_name_stands_at_the_peak_of_a_line_that_ends_far_below() -> None:
    rows = [count(hour, number=900 if hour == 5 else 20) for hour in range(30)]
    (label,) = [bands._label(band, "tea", "red") for band in counts.bands(rows, [], each=True)]
    assert label.points[0][1] == 900
    (steady,) = [
        bands._label(band, "tea", "red") for band in counts.bands([count(h) for h in range(30)], [], each=True)
    ]
    assert steady.points[0][0] > steady.points[-1][0]


@pytest.mark.parametrize("word", ["counts", "top-k", "alerts", "heavy-hitters"])
def test_windows_of_weeks_have_their_first_days_below_them(word: str) -> None:
    picture = loaded(question(word).picture.path)
    week, monday = 7 * 24 * HOUR, 1_772_409_600  # 2 March 2026
    rows = []
    for number in range(6):
        start = Timestamp(monday + number * week)
        row = row_of(word, 0, "tea")
        rows.append(row._replace(window_start=start, window_end=start + week))
    svg = drawn(picture, rows)["svg"]
    ticks = [day for day in re.findall(r">(\d+ [A-Z][a-z][a-z])</text>", svg)]
    ticks = ticks[:6] if word == "alerts" else ticks  # then there are the days on which alerts begin
    assert ticks == ["2 Mar", "9 Mar", "16 Mar", "23 Mar", "30 Mar", "6 Apr"]
    many = [
        row._replace(window_start=row.window_start + 6 * k * week, window_end=row.window_end + 6 * k * week)
        for k in range(5)
        for row in rows
    ]
    ticks = re.findall(r">(\d+ [A-Z][a-z][a-z])</text>", drawn(picture, many)["svg"])
    assert ticks[:3] == ["2 Mar", "23 Mar", "13 Apr"] and len(ticks) == 10 + (word == "alerts")
    berlin = [row._replace(window_start=row.window_start - HOUR, window_end=row.window_end - HOUR) for row in rows]
    svg = drawn(picture, berlin)["svg"]
    assert ">1 Mar</text>" in svg and svg.count(">23:00</text>") == 6, "weeks of another zone say when they begin"


def test_captions_of_a_single_window_are_about_points() -> None:
    """There are no lines, which could have gaps, and no dots beside them."""
    rows = [
        count(0, item)._replace(smoothed=97.5, smoothed_lower=90.0, smoothed_upper=105.0) for item in ("tea", "milk")
    ]
    caption = drawn(counts.PICTURE, rows)["caption"]
    assert "Points: counts, smoothed by what counts may be; bars: where" in caption and "Lines:" not in caption
    ranked = [RankedItem(*window(0), rank, f"{rank}", 5, 100.0, 7.0, 93.0, 107.0) for rank in (1, 2)]
    assert "gap, its item" not in drawn(top_k.PICTURE, ranked)["caption"]
    assert (
        "gap, its item"
        in drawn(top_k.PICTURE, [*ranked, ranked[0]._replace(**dict(zip(WINDOW, window(1), strict=True)))])["caption"]
    )
