"""Pictures of estimates with bands."""

import io
import re

import numpy as np
import pytest
from privstream.pipelines.plot.bands import Band, _beginnings, draw_bands, tell_bounds, too_wide
from privstream.pipelines.plot.chart import UTC

HOUR = 3_600_000_000
START = 1_704_067_200_000_000


def band(name: str, count: int, level: float = 100.0) -> Band:
    times = START + HOUR * np.arange(count)
    values = level + np.arange(count, dtype=np.float64)
    return Band(name, times, values, np.full(count, 5.0), np.where(np.arange(count) % 2, np.nan, values))


def drawn(bands: list[Band], top: int = 10) -> str:
    stream = io.BytesIO()
    draw_bands(bands, stream, "svg", values="events", title="Histogram", caption="what is seen", top=top)
    return stream.getvalue().decode()


@pytest.mark.parametrize("count", [0, 1, 2, 500])
def test_any_number_of_windows_can_be_drawn(count: int) -> None:
    picture = drawn([band("alpha", count), band("beta <&>", count, 300.0)])
    assert "Histogram" in picture and "what is seen" in picture
    assert ("no rows" in picture) == (count == 0)
    assert ("<!-- alpha -->" in picture) == (count > 0)


@pytest.mark.slow
def test_only_the_largest_have_names_and_the_picture_is_the_same_every_time() -> None:
    bands = [band(f"band {i}", 24, 100.0 * i) for i in range(20)]
    picture = drawn(bands, top=3)
    assert [f"<!-- band {i} -->" in picture for i in (16, 17, 18, 19)] == [False, True, True, True]
    assert drawn(bands, top=3) == picture
    assert drawn([]) == drawn([])


def test_bands_that_would_cover_all_lines_are_drawn_one_by_one() -> None:
    low, high = band("low", 24), band("high", 24, 300.0)
    assert tell_bounds([low, high], "What bands are.") == " What bands are. The widest reach 5 upwards."
    covering = Band("wide", low.times, low.estimates, np.full(24, 200.0))
    assert tell_bounds([covering], "").endswith("reach 200 upwards.")
    unknown = Band("unknown", low.times, np.full(24, np.nan), np.full(24, np.nan))
    assert tell_bounds([unknown], "") == tell_bounds([], "") == ""
    assert not too_wide([unknown, low])
    assert "Each is drawn by itself" in drawn([covering, high]) and "by itself" not in drawn([low, high])
    assert "Only the 2 largest are shown. Each" in drawn([covering, high, low], top=2)
    assert "largest" not in drawn([covering, high], top=2)


@pytest.mark.parametrize(("gaps", "alone"), [([1, 3], 3), ([2], 0), ([0, 2], 1), ([], 0)])
def test_an_estimate_without_neighbours_has_a_bar_for_its_error(gaps: list[int], alone: int) -> None:
    given = band("alpha", 5)
    given.estimates[gaps] = np.nan
    picture = drawn([given])
    bars = re.search('<g id="LineCollection_1">(.*?)</g>', picture, re.DOTALL)
    assert (bars[1].count("<path") if bars else 0) == alone


def test_intervals_of_what_may_be_below_0_are_not_cut_off_there() -> None:
    """A rise of 10 that may be a fall of 5 has a bar to -5; a count has none below 0."""
    ends = np.array([[-5.0], [25.0]])
    rise = Band("tea", np.array([1]), np.array([10.0]), np.array([15.0]), ends=ends, signed=True)
    assert rise.interval.tolist() == [[-5.0], [25.0]]
    assert Band("tea", np.array([1]), np.array([10.0]), np.array([15.0]), ends=ends).interval.tolist() == [
        [0.0],
        [25.0],
    ]


def test_the_day_of_an_alert_is_told_once_for_windows_that_follow_each_other() -> None:
    day = 86_400_000_000
    windows = [(day, 2 * day), (2 * day, 3 * day), (40 * day, 41 * day)]
    labels = _beginnings(windows, [300.0], UTC)
    assert [(label.text, list(label.points)) for label in labels] == [
        ("2 Jan", [(1.0, 300.0)]),
        ("10 Feb", [(40.0, 300.0)]),
    ]
    assert _beginnings((), [300.0], UTC) == []
