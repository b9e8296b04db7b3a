"""What can be read in pictures of all questions: words that do not collide, nothing cut off, and times of the run."""

import io
import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from apache_beam.utils.timestamp import Timestamp
from example_results import row_of
from grids import some_quick
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.pictures import alerts, counts, histogram, quantiles
from privstream.pipelines.plot.bands import MANY_WINDOWS, Band, draw_bands, nothing_sure
from privstream.pipelines.plot.chart import DAY, INK, Label, short
from privstream.pipelines.plot.chart import place as place_labels
from privstream.pipelines.plot.picture_spec import Given
from privstream.pipelines.plot.promise import Promise
from privstream.pipelines.questions.catalogue import WORDS, question
from privstream.pipelines.questions.spec import loaded
from privstream.transforms.rows import Alert, CategoryFlag, KeyCount, QuantileEstimate

HOUR = 3600
MONDAY = 1_772_406_000
"""2 March 2026, midnight in Berlin; three weeks later clocks change."""

NAMES = (
    "tea",
    "an item of the shop whose name has some eighty letters, as those of real goods often do",
    "Käse & Wein",
)
OTHERS = ("日本語の長い商品名、検索語句として入力されたもの", "$\\frac{a}{b}$ mathdefault", "latte", "milk", "rice")
SHAPES = {
    "ordinary": (12, 8),
    "one window": (1, 8),
    "one item": (12, 1),
    "one number": (1, 1),
    "a thousand windows": (1000, 2),
    "nothing": (0, 0),
}
BERLIN = {"time_zone": "Europe/Berlin", "window": "1week", "beta": 0.05}


def rows_of(word: str, shape: str) -> list[Any]:
    """Return rows with names that are long, or not Latin, of so many windows and items."""
    windows, items = SHAPES[shape]
    rows = []
    for hour in range(windows):
        for place, name in enumerate((*NAMES, *OTHERS)[:items]):
            row = row_of(word, hour, name)
            if "quantile" in row._fields:
                row = row._replace(quantile=(place + 1) / 10)
            if "query" in row._fields and isinstance(row.query, int):
                row = row._replace(query=100 + place)
            if "stopped" in row._fields:
                row = row._replace(stopped=False)
            if "low" in row._fields:
                row = row._replace(low=place, high=10 * place + 1)
            rows.append(row)
    return rows


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Return the list into which figures go that are drawn, and not written."""
    found: list[Figure] = []

    def drawn(figure: Figure, *given: Any, **more: Any) -> None:
        FigureCanvasAgg(figure).draw()
        found.append(figure)

    monkeypatch.setattr(Figure, "savefig", drawn)
    return found


def draw(word: str, rows: list[Any], parameters: dict[str, Any] | None = None) -> None:
    """Draw a picture."""
    picture = loaded(question(word).picture.path)
    promise = None if parameters is None else Promise("", {"parameters": parameters})
    given = Given(stream="", rows=rows, promise=promise, options=picture.options)
    picture.prepare(given)(io.BytesIO(), "png")


def words_in(figure: Figure) -> Iterator[tuple[str, Bbox]]:
    """Yield the texts that can be seen, and where they are."""
    renderer = figure.canvas.get_renderer()
    hidden = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
        for label in (tick.label1, tick.label2)
    }
    for text in figure.findobj(Text):
        if text.get_text().strip() and text.get_visible() and text not in hidden:
            yield text.get_text(), text.get_window_extent(renderer)


def texts(figure: Figure) -> list[str]:
    return [text for text, _ in words_in(figure)]


def caption_of(figure: Figure) -> str:
    return str(figure.caption)  # type: ignore[attr-defined]


def ticks(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("word", WORDS)
@some_quick("shape", SHAPES, "ordinary", "one window")
def test_words_do_not_collide_and_nothing_is_cut_off(word: str, shape: str, figures: list[Figure]) -> None:
    draw(word, rows_of(word, shape))
    (figure,) = figures
    found = list(words_in(figure))
    assert found
    for text, box in found:
        assert "mathdefault" not in text.replace(OTHERS[1], "").replace(short(OTHERS[1]), ""), "no markup of axes"
        assert box.x0 > -1 and box.y0 > -1 and box.x1 < figure.bbox.x1 + 1 and box.y1 < figure.bbox.y1 + 1, text
    for (text, box), (other, taken) in itertools.combinations(found, 2):
        across, up = (min(a[1], b[1]) - max(a[0], b[0]) for a, b in zip(_sides(box), _sides(taken), strict=True))
        assert across < 2 or up < 2, f"{text!r} is written over {other!r}"


def _sides(box: Bbox) -> tuple[tuple[float, float], tuple[float, float]]:
    return (box.x0, box.x1), (box.y0, box.y1)


def count(week: int, item: str, number: int, **more: Any) -> KeyCount:
    """Return a count of a week in Berlin."""
    start = MONDAY + week * 7 * 24 * HOUR - HOUR * (week > 3)  # summer time
    end = MONDAY + (week + 1) * 7 * 24 * HOUR - HOUR * (week + 1 > 3)
    row = row_of("counts", 0, item)._replace(window_start=Timestamp(start), window_end=Timestamp(end), count=number)
    return row._replace(**{"lower": max(0, number - 10), "upper": number + 10} | more)


def test_weeks_are_those_of_the_time_zone_also_where_clocks_change(figures: list[Figure]) -> None:
    draw("counts", [count(week, "tea", 100 + week) for week in range(6)], BERLIN)
    (axes,) = figures[0].axes
    assert ticks(axes) == ["2 Mar", "9 Mar", "16 Mar", "23 Mar", "30 Mar", "6 Apr"]
    assert axes.get_xlabel() == "2 Mar 2026 - 12 Apr 2026, Europe/Berlin"
    assert figures[0].notes[0].text.startswith("2026-03-02 00:00 CET: ")  # type: ignore[attr-defined]
    assert figures[0].notes[-1].text.startswith("2026-04-06 00:00 CEST: ")  # type: ignore[attr-defined]


def test_without_a_zone_times_are_utc(figures: list[Figure]) -> None:
    for parameters in (None, {}, {"time_zone": "Mars/Olympus", "window": 7}, {"window": "9 parsecs"}):
        draw("counts", [count(week, "tea", 100) for week in range(3)], parameters)
        assert figures[-1].axes[0].get_xlabel() == "1 Mar 2026 - 22 Mar 2026, UTC"


def test_a_zone_may_stand_in_the_window() -> None:
    assert Clocks.of({"window": "1month Europe/Berlin"}) == Clocks("Europe/Berlin", "1 month")
    assert Clocks.of({"window": "2weeks", "time_zone": "Asia/Tokyo"}) == Clocks("Asia/Tokyo", "2 weeks")


def test_months_have_their_names(figures: list[Figure]) -> None:
    months = [int(datetime(2024 + n // 12, n % 12 + 1, 1, tzinfo=UTC).timestamp()) for n in range(9, 15)]
    rows = [
        count(0, "tea", 100)._replace(window_start=Timestamp(start), window_end=Timestamp(end))
        for start, end in itertools.pairwise(months)
    ]
    draw("counts", rows, {"window": "1month"})
    assert ticks(figures[0].axes[0]) == ["Oct", "Nov", "Dec", "2025", "Feb"]


def test_the_day_of_an_alert_can_be_read(figures: list[Figure]) -> None:
    day = 24 * HOUR

    def row(number: int, since: int) -> Alert:
        start = Timestamp(MONDAY + number * day)
        begun, status = Timestamp(MONDAY + since * day), "started" if since == number else "continues"
        return Alert(
            "", start, start + day, "flu", 100.0, 300.0 + number, 200.0, 20.0, 150.0, 0.0, 0.0, False, begun, status
        )

    span = [MONDAY * 10**6, (MONDAY + 90 * day) * 10**6]
    rules = [{"name": "flu", "at_least": 100}]
    promise = Promise("", {"parameters": {"time_zone": "Europe/Berlin"}, "public": {"rules": rules, "span": span}})
    rows = [row(11, 11), row(12, 11), row(20, 20)]
    alerts.PICTURE.prepare(Given(stream="", rows=rows, promise=promise))(io.BytesIO(), "png")
    found = texts(figures[0])
    assert {"13 Mar", "22 Mar"} <= {*found} and "14 Mar" not in found, "the days on which alerts begin"
    assert "days: when alerts begin" in caption_of(figures[0])
    many = [row(2 * number, 2 * number) for number in range(25)]
    alerts.PICTURE.prepare(Given(stream="", rows=many, promise=promise))(io.BytesIO(), "png")
    assert "days: when 24 of them begin" in caption_of(figures[1])


def test_a_tick_alone_names_its_day(figures: list[Figure]) -> None:
    """A window of two days from New Year on, whose start is the only tick: it read 2024."""
    year = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp())
    row = CategoryFlag("", Timestamp(year), Timestamp(year + 48 * HOUR), "tea", True, 50, 3)
    histogram.FLAGS.prepare(Given(stream="", rows=[row]))(io.BytesIO(), "png")
    assert ticks(figures[0].axes[0]) == ["1 Jan"]


def test_a_set_in_one_window_has_a_bar_and_no_line(figures: list[Figure]) -> None:
    for shape, words in (("one window", {"Bar"}), ("ordinary", {"Line", "Band"})):
        draw("cardinality", [row._replace(smoothed=5.0, smoothed_lower=1.0, smoothed_upper=9.0)
                             for row in rows_of("cardinality", shape)[:: SHAPES[shape][1]]])  # fmt: skip
        assert {word for word in ("Bar", "Line", "Band") if f"{word}: " in caption_of(figures[-1])} == words


def test_the_moment_of_a_flag_can_be_read(figures: list[Figure]) -> None:
    rows = [CategoryFlag("", Timestamp(0), Timestamp(end * HOUR), "tea", end > 5, 50, 3) for end in range(1, 9)]
    histogram.FLAGS.prepare(Given(stream="", rows=rows))(io.BytesIO(), "png")
    assert "1 Jan 06:00" in texts(figures[0])


@pytest.mark.parametrize("windows", [1, 12])
def test_numbers_below_their_interval_are_inside_the_axes(figures: list[Figure], windows: int) -> None:
    """Noise may bring a count below 0, where an interval does not go."""
    drawn([band(name, windows, -50.0, 3.0, ends=np.array([[0.0] * windows, [90.0] * windows])) for name in "ab"])
    for axes in figures[0].axes:
        for line in axes.lines:
            ends = axes.viewLim.intervalx if windows == 1 else axes.viewLim.intervaly
            numbers = np.asarray(line.get_xdata() if windows == 1 else line.get_ydata(), np.float64)
            assert min(ends) < numbers.min() <= numbers.max() < max(ends)


def test_quantiles_of_one_window_are_not_said_to_be_lines(figures: list[Figure]) -> None:
    for shape in ("one window", "ordinary"):
        draw("quantiles", [row._replace(smoothed=5.0, smoothed_lower=1.0, smoothed_upper=9.0)
                           for row in rows_of("quantiles", shape)[:: SHAPES[shape][1]]])  # fmt: skip
        assert ("Lines" in caption_of(figures[-1])) == (shape == "ordinary")


def test_a_logarithmic_axis_is_named_and_has_plain_numbers(figures: list[Figure]) -> None:
    rows = [
        QuantileEstimate(*row_of("quantiles", hour, "")[:3], 0.5, estimate=40.0 + hour, lower=20.0, upper=900.0)
        for hour in range(3)
    ]
    promise = Promise("", {"parameters": {"value_field": "amount"}})
    quantiles.PICTURE.prepare(Given(stream="", rows=rows, promise=promise))(io.BytesIO(), "png")
    assert figures[0].axes[0].get_ylabel() == "amount, logarithmic axis"
    assert {"20", "50", "100", "200", "500"} <= {*texts(figures[0])}
    narrow = [row._replace(upper=60.0) for row in rows]
    quantiles.PICTURE.prepare(Given(stream="", rows=narrow, promise=promise))(io.BytesIO(), "png")
    assert figures[1].axes[0].get_ylabel() == "amount"


def band(name: str, windows: int, level: float, reach: float, **more: Any) -> Band:
    times = (np.arange(windows, dtype=np.int64) + 1) * HOUR * 10**6
    return Band(
        name, times, level + np.arange(windows) % 5, np.full(windows, reach), starts=times - HOUR * 10**6, **more
    )


def drawn(bands: list[Band], **more: Any) -> None:
    draw_bands(bands, io.BytesIO(), "png", values="people", title="Title", caption="Caption.", **more)


def test_what_would_cover_other_lines_is_drawn_one_by_one(figures: list[Figure]) -> None:
    apart = [band("low", 12, 10.0, 3.0), band("high", 12, 300.0, 3.0)]
    drawn(apart)
    covering = [band(name, 12, level, 90.0) for name, level in (("a", 100.0), ("b", 110.0), ("c", 90.0))]
    drawn(covering)
    drawn([band(name, MANY_WINDOWS + 1, level, 3.0) for name, level in (("low", 10.0), ("high", 300.0))])
    assert [len(figure.axes) for figure in figures] == [1, 3, 2]
    assert [axes.get_title(loc="left") for axes in figures[1].axes] == ["b", "a", "c"], "the largest first"
    assert [caption_of(figure).endswith("by itself, with a scale of its own.") for figure in figures] == [
        False,
        True,
        True,
    ]
    assert all(axes.collections for axes in figures[1].axes), "with their bands"


def test_notes_stand_where_their_points_are_in_each_picture(figures: list[Figure]) -> None:
    drawn([band(name, 12, level, 90.0) for name, level in (("a", 100.0), ("b", 110.0))])
    of_axes = [{note.name for note in figures[0].notes if note.axes is axes} for axes in figures[0].axes]  # type: ignore[attr-defined]
    assert of_axes == [{"b"}, {"a"}]


def test_numbers_of_one_window_are_rows_with_bars(figures: list[Figure]) -> None:
    drawn(
        [band(name, 1, level, 5.0) for name, level in (("small", 20.0), (NAMES[1], 90.0))], clocks=Clocks("Asia/Tokyo")
    )
    (axes,) = figures[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [short(NAMES[1], 40), "small"]
    assert axes.get_xlabel().splitlines() == ["people", "1970-01-01 09:00 JST to 1970-01-01 10:00 JST"]
    (bar,) = axes.collections[0].get_segments()  # type: ignore[attr-defined]
    assert bar[:, 0].tolist() == [85.0, 95.0]


def test_noise_alone_says_so(figures: list[Figure]) -> None:
    noise = [band("a", 6, 10.0, 50.0), band("b", 6, 20.0, 60.0)]
    assert nothing_sure(noise) and not nothing_sure([*noise, band("c", 6, 80.0, 60.0)])
    drawn(noise)
    assert caption_of(figures[0]).startswith("No number is surely above 0: what is seen may be noise alone. ")


def test_points_are_drawn_near_the_points_that_are_asked_for(figures: list[Figure]) -> None:
    rows = [row._replace(predecessor=95, successor=104) for row in rows_of("predecessor", "a thousand windows")]
    draw("predecessor", rows)
    assert [axes.get_title(loc="left") for axes in figures[0].axes] == [
        f"{side} {query}" for side, query in (("above", 100), ("above", 101), ("below", 100), ("below", 101))
    ]
    for axes in figures[0].axes:
        (dotted,) = (line for line in axes.lines if len({*line.get_ydata()}) == len(line.get_ydata()) - 1)  # type: ignore
        query = float(axes.get_title(loc="left").split()[1])
        assert [*dotted.get_ydata()] == [query, query] and axes.get_ylim()[0] > 80  # type: ignore[arg-type]


def test_answers_without_a_point_are_no_missing_rows(figures: list[Figure]) -> None:
    draw("predecessor", [row._replace(predecessor=0, successor=0) for row in rows_of("predecessor", "ordinary")])
    assert "no answer has a point" in texts(figures[0]) and "no rows" not in texts(figures[0])
    assert "at most 9 points lie on either side of a query" in caption_of(figures[0])
    draw("predecessor", rows_of("predecessor", "one window"))
    assert "Points: the nearest points" in caption_of(figures[1]) and "Lines" not in caption_of(figures[1])


def test_queries_have_whole_numbers_and_noise_alone_says_so(figures: list[Figure]) -> None:
    one = rows_of("queries", "one number")
    draw("queries", one)
    assert {"1", "0.8", "1.2"} & {*texts(figures[0])} == {"1"}
    assert "reaches up to 99.5 above the answer." in caption_of(figures[0])
    draw("queries", [row._replace(estimate=5.0, lower=0.0, upper=9.0) for row in rows_of("queries", "ordinary")])
    assert caption_of(figures[1]).startswith("No number is surely above 0: what is seen may be noise alone. ")
    assert not caption_of(figures[0]).startswith("No number")
    draw("queries", [])
    assert not ticks(figures[2].axes[0]) and caption_of(figures[2]) == "There are no rows."
    draw("queries", rows_of("queries", "a thousand windows"))
    assert "2,000" in ticks(figures[3].axes[0])


@pytest.mark.parametrize("word", ["counts", "top-k", "ranges", "quantiles", "histogram"])
def test_intervals_of_a_single_window_are_bars(word: str, figures: list[Figure]) -> None:
    draw(word, rows_of(word, "one window"))
    draw(word, rows_of(word, "ordinary"))
    one, several = map(caption_of, figures)
    assert "Bars: where" in one and "Bands" not in one
    assert "Bands: where" in several and "Bars" not in several


def test_the_truth_of_a_single_window_is_seen(figures: list[Figure]) -> None:
    found = band("a", 1, 10.0, 5.0)
    drawn([replace(found, truth=np.array([12.0]))])
    (dash,) = (line for line in figures[0].axes[0].lines if line.get_ydata()[0] == 12.0)  # type: ignore[index]
    assert dash.get_marker() == "_"


def test_bands_do_not_reach_below_nothing() -> None:
    assert band("a", 2, 10.0, 50.0).interval.tolist() == [[0.0, 0.0], [60.0, 61.0]]
    assert band("a", 1, -10.0, 50.0).interval.tolist() == [[-10.0], [40.0]]


def test_renewals_are_marked(figures: list[Figure]) -> None:
    rows = [row_of("counts", hour, "tea") for hour in range(9)]
    start = datetime.fromtimestamp(rows[0].window_start.micros / 1e6, UTC).isoformat()
    draw("counts", rows, {"start": start, "renew_every": 3.0 * HOUR})
    assert caption_of(figures[0]).endswith(" Vertical lines: limits start afresh.")
    first = rows[0].window_start.micros / DAY
    marks = [line.get_xdata()[0] for line in figures[0].axes[0].lines if len({*line.get_xdata()}) == 1]  # type: ignore
    assert np.allclose(sorted(marks), [first + 3 / 24, first + 6 / 24])
    draw("counts", rows, {"start": start, "renew_every": 30.0 * HOUR})
    assert "afresh" not in caption_of(figures[1])


def test_full_numbers_are_lines_above_those_that_count() -> None:
    more = {"smoothed": 100.0, "smoothed_lower": 90.0, "smoothed_upper": 110.0, "kept": 500, "left_out": 500}
    ends = {"full": 200.0, "full_lower": 180.0, "full_upper": 230.0}
    rows = [count(week, "tea", number, **ends, **more) for week, number in enumerate((140, 60, 120, 80))]
    (found,) = counts.bands(rows, [], each=True, full=True)
    assert found.points is None and found.estimates.tolist() == [200.0] * 4
    assert found.counted is not None and found.counted.tolist() == [100.0] * 4
    assert found.interval.T.tolist() == [[180.0, 230.0]] * 4 and found.texts[0] == "200 (between 180 and 230)"


def test_counts_have_the_intervals_of_their_rows() -> None:
    """Those of tables on a terminal, 95% for each row, which need not reach as far to both sides."""
    rows = [count(week, "tea", 100, error_bound=90, lower=95, upper=120) for week in range(2)]
    (found,) = counts.bands([row._replace(smoothed=None) for row in rows], [], each=True)
    assert found.interval.T.tolist() == [[95.0, 120.0]] * 2 and found.texts[0] == "100 (between 95 and 120)"


@pytest.mark.parametrize(("windows", "apart"), [(1, False), (12, False), (12, True)], ids=["rows", "lines", "panels"])
def test_long_names_that_differ_in_the_middle_are_told_apart(windows: int, apart: bool, figures: list[Figure]) -> None:
    places = ("bakery", "library", "ferry")
    names = [f"an item of the shop with a name that is very long indeed: {place} of the harbour" for place in places]
    drawn([band(name, windows, 100.0 + 100 * n * (not apart), 90.0 if apart else 3.0) for n, name in enumerate(names)])
    found = texts(figures[0])
    assert all([text for text in found if place in text] == [f"…{place} of the harbour"] for place in places)
    assert len(figures[0].axes) == (3 if apart else 1)


def test_a_long_name_keeps_both_ends() -> None:
    assert short(NAMES[1]).startswith("an item of") and short(NAMES[1]).endswith("often do")
    assert len(short(NAMES[1])) == 28 and short("tea") == "tea"
    assert len(short(OTHERS[0] * 2)) <= 15, "letters of Chinese are two wide"


def test_labels_stand_off_each_other_and_off_points_while_there_is_room() -> None:
    """By the boxes of matplotlib itself. A label of which no point is inside of the axes is left out."""
    draws = np.random.default_rng(7)
    figure = Figure(figsize=(8, 5), dpi=144)
    axes = figure.add_subplot(xlim=(0, 10), ylim=(1, 100), yscale="log")
    points = draws.uniform((1, 3), (10, 60), (36, 2))
    labels = [Label("x" * (2 + number % 7), [(20, 5), tuple(point)], INK) for number, point in enumerate(points)]
    place_labels(axes, [*labels, Label("outside", [(20, 5), (5, 0.1)], INK)], [tuple(point) for point in points])
    notes = [note for note in axes.texts if note.get_text()]
    assert [note.get_text() for note in notes] == [label.text for label in labels]
    assert {note.get_horizontalalignment() for note in notes} == {"center", "left", "right"}
    boxes = [note.get_window_extent().padded(1.4) for note in notes]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    assert not any(box.contains(*spot) for box in boxes for spot in axes.transData.transform(points))
    low, high = axes.get_window_extent().get_points()
    assert all((low <= box.min).all() and (box.max <= high).all() for box in boxes)


def test_without_room_a_label_covers_points_and_then_is_left_out() -> None:
    figure = Figure(figsize=(3, 2))
    axes = figure.add_subplot(xlim=(0, 1), ylim=(0, 1))
    everywhere = [(x / 40, y / 40) for x in range(41) for y in range(41)]
    place_labels(axes, [Label("x" * 12, [(0.5, 0.5)], INK)] * 60, everywhere)
    shown = sum(1 for note in axes.texts if note.get_text())
    assert 1 < shown < 60
