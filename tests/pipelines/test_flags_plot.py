"""Pictures of flags: what is up, since when, and whether that was early."""

import io
import re
from pathlib import Path

import pytest
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines import cli
from privstream.pipelines.pictures.histogram import MOST, caption_of_flags, draw_flags, flag_picture
from privstream.pipelines.simulate.truths import CategoryCount
from privstream.pipelines.sinks.row_files import write_row_file
from privstream.transforms.rows import CategoryFlag

HOUR = 3600
START = 1_704_067_200


def flag(hour: int, category: str, raised: bool) -> CategoryFlag:
    start = START + hour * HOUR
    return CategoryFlag("", Timestamp(start), Timestamp(start + HOUR), category, raised, 100, 9 + hour)


def counted(hour: int, category: str, events: int) -> CategoryCount:
    start = START + hour * HOUR
    return CategoryCount("", Timestamp(start), Timestamp(start + HOUR), category, events)


ROWS = [flag(hour, name, hour >= since) for hour in range(4) for name, since in {"late": 2, "soon": 1, "no": 9}.items()]
TRUTH = [counted(hour, name, 40 * hour) for hour in range(4) for name in ("late", "soon")]
TRUTH += [counted(hour, "no", 99) for hour in range(3)] + [counted(3, "no", 100)]


def micros(hour: int) -> int:
    return (START + hour * HOUR) * 1_000_000


def test_flags_and_counts_are_known_by_the_ends_of_their_windows() -> None:
    found = flag_picture("", ROWS, TRUTH, "95%", "the true numbers")
    assert list(found.thresholds) == ["soon", "late", "no"]
    assert found.raised == {"soon": micros(2), "late": micros(3)}
    assert found.passed == {"late": micros(4), "soon": micros(4), "no": micros(4)}
    assert found.span == (micros(0), micros(4))
    assert found.error_bound == 12


def test_the_caption_counts_what_was_early_and_what_is_missing() -> None:
    text = caption_of_flags(flag_picture("", ROWS, TRUTH, "95%", "the true numbers"))
    assert "2 of 3 flags went up" in text
    assert "In truth, counts that passed their thresholds: 3; flags that were early: 2, that are not up yet: 1." in text
    assert "In truth" not in caption_of_flags(flag_picture("", ROWS, None, "95%", "the true numbers"))
    assert caption_of_flags(flag_picture("", [], None, "95%", "the true numbers")) == "There are no rows."


@pytest.mark.parametrize("count", [0, 1, MOST + 3])
def test_any_number_of_categories_can_be_drawn(count: int) -> None:
    stream = io.BytesIO()
    flags = [flag(0, f"category <{i}>", False) for i in range(count)]
    draw_flags(flag_picture("north", flags, None, "95%", "the true numbers"), stream, "svg")
    shown = stream.getvalue().decode()
    assert ("no rows" in shown) == (count == 0)
    assert ("shown: 3 more" in " ".join(shown.split())) == (count > MOST)
    assert len(re.findall("<!-- category", shown)) == min(count, MOST)


def test_long_names_can_be_told_apart() -> None:
    names = [f"a category with a very long name that ends with number {i} of all categories" for i in range(3)]
    stream = io.BytesIO()
    draw_flags(flag_picture("", [flag(0, name, True) for name in names], None, "95%", ""), stream, "svg")
    shown = re.findall(r"<!-- (.*\(100\)) -->", stream.getvalue().decode())
    assert len({*shown}) == 3 and all("\u2026" in text or "&#8230;" in text for text in shown)


def test_the_command_draws(tmp_path: Path) -> None:
    write_row_file(str(tmp_path / "rows.avro"), CategoryFlag, ROWS)
    write_row_file(str(tmp_path / "truth.jsonl"), CategoryCount, TRUTH)
    files = ["--input", str(tmp_path / "rows.avro"), "--truth", str(tmp_path / "truth.jsonl")]
    assert cli.main(["plot", "flags", *files, "--output", str(tmp_path / "picture.svg")]) == 0
    assert "count passed the threshold" in (tmp_path / "picture.svg").read_text()
