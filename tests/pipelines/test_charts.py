"""Charts, as the specification that is drawn: fields, marks, domains; and that hostile text is drawn as text."""

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from apache_beam.utils.timestamp import Timestamp
from example_results import HOSTILE, HOUR, START, arrow_table, row_of, write
from privstream.pipelines import cli
from privstream.pipelines.model.catalogue import WORDS, question
from privstream.pipelines.show.charts import NARROW, WIDE, Chart
from privstream.pipelines.show.charts import chart_of as chart_of_table
from privstream.transforms.row_types import (
    Alert,
    AlertState,
    CategoryFlag,
    KeyCount,
    KeyRise,
    KeySum,
    NearestPoints,
    QuantileEstimate,
)

KINDS = {
    "counts": ["area", "line"],
    "quantiles": ["area", "line"],
    "histogram": ["area", "line"],
    "cardinality": ["area", "line"],
    "ranges": ["area", "line"],
    "heavy-hitters": ["bar"],
    "alerts": ["bar"],
    "flags": ["bar"],
    "predecessor": ["area", "line"],
    "top-k": ["rule", "point"],
    "queries": ["rule", "point"],
}
EXTREME = ["$\\frac{1}{2}$", "x" * 5000, "\x00\x01\x0b\ud800", "\u05e9\u05dc\u05d5\u05dd", "]]>&amp;", "a\nb"]


def chart_of(name: str, rows: list[Any], *, unit: str = "person", dropped: Any = None, **parameters: Any) -> Chart:
    """Return the chart of rows that a run with these parameters has published."""
    record: dict[str, Any] = {"made_by": {"command": f"privstream {name}"}, "parameters": parameters}
    record["limits"] = {"dropped": dropped}
    record |= {"guarantee": {"privacy_unit": {"what": unit}}}
    return chart_of_table(arrow_table(type(rows[0]) if rows else question(name).row_type, rows), record)


def marks(spec: dict[str, Any]) -> list[str]:
    return [layer["mark"]["type"] for layer in spec.get("layer", [spec])]


def values(spec: dict[str, Any], layer: int = 0) -> list[dict[str, Any]]:
    """Return the rows of a chart, of one of its layers."""
    named = {**spec, **spec.get("layer", [{}])[layer]}["data"]["name"]
    found: list[dict[str, Any]] = spec["datasets"][named]
    return found


def domain(spec: dict[str, Any], channel: str) -> list[Any]:
    first = spec["layer"][0] if "layer" in spec else spec
    found: list[Any] = first["encoding"][channel]["scale"]["domain"]
    return found


def count(hour: int, item: str, people: float, **fields: Any) -> KeyCount:
    row = row_of("counts", hour, item)._replace(people=people, lower=max(0.0, people - 20), upper=people + 20)
    changed: KeyCount = row._replace(**fields)
    return changed


def rises(item: str, rise: float | None) -> KeyRise:
    return KeyRise(*count(1, item, 100), *((None,) * 3 if rise is None else (rise, rise - 10, rise + 10)))


@pytest.mark.parametrize("word", WORDS)
def test_each_question_has_its_marks(word: str) -> None:
    rows = [row_of(word, hour, name) for hour in range(3) for name in ("tea", "coffee")]
    chart = chart_of(word, rows)
    spec = chart.spec()
    assert marks(spec) == KINDS[word] and spec["width"] == WIDE
    assert json.loads(json.dumps(spec, allow_nan=False)) == spec
    assert len(chart.caption.split()) <= 40 and ("95%" in chart.caption) <= (KINDS[word] != ["bar"])
    (shown, *_) = values(spec)
    if KINDS[word] != ["bar"] and word != "predecessor":
        assert shown["lower"] is not None and shown["upper"] is not None
    assert chart.spec(NARROW)["width"] == NARROW
    assert chart_of(word, []).png().startswith(b"\x89PNG")


def test_lines_have_the_largest_items_and_gaps_are_no_numbers() -> None:
    rows = [count(hour, f"item {n:02}", 10.0 * n) for n in range(12) for hour in range(4) if (n, hour) != (11, 2)]
    chart = chart_of("counts", rows)
    spec = chart.spec()
    assert domain(spec, "color") == [f"item {n:02}" for n in range(11, 3, -1)]
    assert "8 of 12, the largest. Gaps" in chart.caption
    (gap,) = [row for row in values(spec) if row["value"] is None]
    assert gap["name"] == "item 11" and gap["lower"] is None and gap["start"] == (START + 2 * HOUR) * 1e3
    assert {row["upper"] - row["lower"] for row in values(spec) if row["name"] == "item 10"} == {40.0}


def test_of_one_window_there_are_dots_and_of_many_the_newest() -> None:
    one = chart_of("counts", [count(0, "tea", 100), count(0, "coffee", 300)])
    assert marks(one.spec()) == ["rule", "point"] and domain(one.spec(), "y") == ["coffee", "tea"]
    assert "1 January 00:00 to 01:00" in one.title
    ranked = chart_of("top-k", [row_of("top-k", hour, f"item {hour}") for hour in range(3)])
    assert domain(ranked.spec(), "y") == ["item 2"]
    many = chart_of("counts", [count(hour, "tea", 100) for hour in range(700)])
    assert "The newest 500 of 700 windows." in many.caption and len(values(many.spec())) == 500


def test_times_are_those_of_the_run() -> None:
    rows = [count(hour, "tea", 100) for hour in range(3)]
    berlin = chart_of("counts", rows, time_zone="Europe/Berlin").spec()
    first = berlin["layer"][0]["encoding"]["x"]
    assert "Europe/Berlin" in first["axis"]["title"] and first["scale"]["type"] == "utc"
    assert first["scale"]["domain"] == [(START + HOUR) * 1e3, (START + 3 * HOUR) * 1e3]
    since = chart_of("counts", rows, over="start")
    assert since.spec()["layer"][0]["encoding"]["x"]["field"] == "end" and since.title.endswith("since the start")
    running = chart_of("histogram", [row_of("histogram", hour, "a") for hour in (0, 1)]).spec()
    assert running["layer"][1]["encoding"]["x"]["field"] == "end"


def test_what_numbers_count() -> None:
    rows = [count(hour, "tea", 100) for hour in range(3)]
    for parameters, title, axis in (
        ({}, "People per item", "people"),
        ({"unit": "event"}, "Events per item", "events"),
        ({"over": 86400.0}, "Contributions per item in day", "contributions"),
    ):
        chart = chart_of("counts", rows, **parameters)
        assert chart.title == title and chart.spec()["layer"][1]["encoding"]["y"]["title"] == axis
    latencies = [
        QuantileEstimate(Timestamp(START + h), Timestamp(START + h + 1), q, 9.0, 5.0, 20.0, 9.0)
        for h in (0, 1)
        for q in (0.5, 0.99)
    ]
    spec = chart_of("quantiles", latencies, scale="log", value="ms").spec()
    assert {row["name"] for row in values(spec)} == {"median", "99%"}
    y = spec["layer"][1]["encoding"]["y"]
    assert y["title"] == "ms" and y["scale"]["type"] == "log"


def test_windows_in_one_state_are_one_bar() -> None:
    def alert(hour: int, rule: str, status: str) -> Alert:
        ends = Timestamp(START + hour * HOUR), Timestamp(START + (hour + 1) * HOUR)
        return Alert(*ends, rule, 5.0, 9.0, 6.0, 12.0, ends[0], status)

    rows = [alert(hour, "flu", "continues") for hour in (2, 3, 4, 7)] + [alert(8, "flu", "ended")]
    spec = chart_of("alerts", rows).spec()
    assert [(row["start"] / 1e3 - START, row["end"] / 1e3 - START) for row in values(spec)] == [
        (2 * HOUR, 5 * HOUR),
        (7 * HOUR, 8 * HOUR),
    ]
    assert domain(spec, "x") == [(START + 2 * HOUR) * 1e3, (START + 8 * HOUR) * 1e3]
    time = Timestamp(START), Timestamp(START + HOUR)
    states = [
        AlertState(*time, name, 5.0, 4.0, 6.0, 3.0, state, time[0])
        for name, state in (("tea", "alert"), ("mate", "no data"), ("milk", "clear"))
    ]
    assert {row["name"]: row["state"] for row in values(chart_of("counts", states).spec())} == {
        "tea": "alert",
        "mate": "no data",
    }
    flags = [CategoryFlag(*time, name, name == "up", 9, 3) for name in ("up", "down")]
    assert [row["name"] for row in values(chart_of("flags", flags).spec())] == ["up"]


def test_rises_are_drawn_and_distances_without_an_interval() -> None:
    spec = chart_of("counts", [rises("up", 50.0), rises("none", None)]).spec()
    (row,) = values(spec)
    assert (row["value"], row["lower"], row["upper"]) == (50.0, 40.0, 60.0)
    time = Timestamp(START), Timestamp(START + HOUR)
    near = [NearestPoints(*time, 50, 44, 53, 3, 2), NearestPoints(*time, 9, 0, 12, 3, 2)]
    found = values(chart_of("predecessor", near).spec())
    assert [(row["lower"], row["value"], row["upper"]) for row in found] == [(None, 3, None), (None, 3, None)]


def test_lower_bounds_are_named_first() -> None:
    rows = [count(hour, f"item {n}", 10.0 * n, upper=None) for hour in range(2) for n in range(9)]
    for share, upper, first in ((0.4, None, "Lower bounds: limits drop at least 39%. 8 of 9"), (0.04, 0.05, "8 of 9")):
        dropped = {"share": share, "lower": share - 0.01, "upper": upper}
        assert chart_of("counts", rows, dropped=dropped).caption.startswith(first)


def test_sums_are_drawn_and_not_their_people() -> None:
    rows = [KeySum(*count(hour, "tea", 100), 500, 0.0, 900.0, 5.0, 4.0) for hour in range(2)]
    chart = chart_of("counts", rows, value="Betrag", value_unit=0.01)
    assert {row["value"] for row in values(chart.spec())} == {500} and chart.title == "0.01 Betrag per item"


def test_a_number_that_is_none_is_not_drawn() -> None:
    rows = [count(0, "tea", 100), count(1, "tea", math.nan), count(2, "tea", 50)._replace(upper=math.inf)]
    spec = chart_of("counts", rows).spec()
    json.dumps(spec, allow_nan=False)
    assert [row["value"] for row in values(spec)] == [100, 50] and values(spec)[1]["upper"] is None


@pytest.mark.parametrize("word", WORDS)
def test_hostile_names_are_drawn_as_text(word: str) -> None:
    """A control character ends the whole process of the library that draws, unless it is written out before."""
    rows = [row_of(word, hour, each) for each in (*HOSTILE, *EXTREME) for hour in range(2)]
    chart = chart_of(word, rows, value=HOSTILE[0])
    text = chart.svg(NARROW)
    drawn = ElementTree.fromstring(text)
    tags = {element.tag.rpartition("}")[2] for element in drawn.iter()}
    assert tags <= {"svg", "g", "path", "rect", "line", "text", "tspan", "defs", "clipPath", "title"}
    given = {key.rpartition("}")[2] for element in drawn.iter() for key in element.attrib}
    assert not [key for key in given if key.startswith("on") or key in ("href", "style")]
    assert not set(text) & set("\u2028\u2029\u202e\u2066\x1b\x00\x01")
    assert HOSTILE[2] not in chart.img() and "<script" not in chart.img()


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_plot_writes_a_file(ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"x.{ending}"
    assert cli.main(["plot", str(write(tmp_path, "counts")), "--output", str(path)]) == 0
    begins = {"png": b"\x89PNG", "svg": b"<svg"}
    assert cli.main(["plot", str(tmp_path), "--output", str(path)]) == 2
    assert path.read_bytes().startswith(begins[ending]) and f"picture: {path}" in (told := capsys.readouterr().err)
    assert f"such as {tmp_path / 'counts'}" in told
