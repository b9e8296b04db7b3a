"""`privstream plot`, and where it puts names."""

import io
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from apache_beam.utils.timestamp import Timestamp
from matplotlib.figure import Figure
from matplotlib.image import imread
from privstream.pipelines import cli
from privstream.pipelines.pictures import heavy_hitters as timeline
from privstream.pipelines.pictures.truth import Key, detection_threshold, judge, key
from privstream.pipelines.plot.chart import Label, place
from privstream.pipelines.plot.promise import Promise
from privstream.pipelines.simulate.truths import ItemHolders
from privstream.pipelines.sinks.row_files import write_row_file
from privstream.transforms.rows import HeavyHitter

HOUR = 3600
START = 1_704_067_200


def row(hour: int, item: str, count: int, stream: str = "") -> HeavyHitter:
    start = START + hour * HOUR
    ends = float(count), max(0.0, count - 20.0), count + 20.0
    return HeavyHitter(stream, Timestamp(start), Timestamp(start + HOUR), item, *ends, Timestamp(start), "started")


def held(hour: int, item: str, holders: int, stream: str = "") -> ItemHolders:
    start = START + hour * HOUR
    return ItemHolders(stream, Timestamp(start), Timestamp(start + HOUR), item, holders)


ROWS = [row(0, "first snow", 120), row(1, "first snow", 480), row(3, "first snow", 150), row(1, "café & <crème>", 90)]
TRUTH = [
    held(0, "first snow", 125),
    held(1, "first snow", 490),
    held(2, "first snow", 300),  # missed
    held(3, "first snow", 149),
    held(1, "café & <crème>", 95),  # found below the threshold
    held(2, "storm", 210),  # missed
    held(2, "quiet", 20),
]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write_row_file(str(tmp_path / "rows.jsonl"), HeavyHitter, ROWS)
    write_row_file(str(tmp_path / "truth.avro"), ItemHolders, TRUTH)
    (tmp_path / "rows.jsonl.guarantee.json").write_text(json.dumps({"accuracy": {"detection_threshold": 100}}))
    return tmp_path


def plot(folder: Path, output: str, *options: str, rows: str = "rows.jsonl") -> int:
    files = ["--input", str(folder / rows), "--output", str(folder / output)]
    return cli.main(["plot", "heavy-hitters", *files, *options])


def words(folder: Path, output: str, *options: str, rows: str = "rows.jsonl") -> str:
    """Return the text of a picture; matplotlib keeps it in comments of an SVG."""
    assert plot(folder, output, *options, rows=rows) == 0
    return " ".join(re.findall(r"<!-- (.*?) -->", (folder / output).read_text(), re.DOTALL))


def test_a_png_is_a_picture_with_something_on_it(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plot(files, "picture.png", "--truth", str(files / "truth.avro")) == 0
    assert f"picture: {files / 'picture.png'}" in capsys.readouterr().err
    pixels = imread(files / "picture.png")
    assert pixels.shape == (900, 1650, 4)
    assert 0.01 < (pixels[..., :3].min(axis=2) < 0.9).mean() < 0.3
    border = np.concatenate([pixels[:3].ravel(), pixels[-3:].ravel(), pixels[:, :3].ravel(), pixels[:, -3:].ravel()])
    assert border.min() == 1.0, "nothing is cut off at the border"


def test_a_picture_says_what_was_found_and_missed(files: Path) -> None:
    text = words(files, "picture.svg", "--truth", str(files / "truth.avro"))
    assert "first snow" in text
    assert "café" in text
    assert "first snow (missed)" in text
    assert "storm (missed)" in text
    assert "quiet" not in text
    assert "100 people" in text
    sentence = (
        "Of 5 items that at least 100 people had in a window, 3 were reported and 2 missed. Reported items that fewer "
    )
    sentence += "people had: 1"
    assert sentence in " ".join(text.split())


def test_without_truth_nothing_is_missed(files: Path) -> None:
    text = words(files, "picture.svg")
    assert "first snow" in text
    assert "missed" not in text


def test_without_the_guarantee_what_is_missed_is_unknown(files: Path) -> None:
    (files / "rows.jsonl.guarantee.json").unlink()
    text = words(files, "picture.svg", "--truth", str(files / "truth.avro"))
    assert "Missed items are not shown" in text
    assert "100 people" not in text


def test_only_the_top_items_have_names(files: Path) -> None:
    text = words(files, "picture.svg", "--top", "1")
    assert "first snow" in text
    assert "café" not in text


def test_the_same_rows_give_the_same_picture(files: Path) -> None:
    for name in ("a.svg", "b.svg"):
        assert plot(files, name, "--truth", str(files / "truth.avro")) == 0
    assert (files / "a.svg").read_bytes() == (files / "b.svg").read_bytes()


def test_no_rows_give_an_empty_picture(files: Path) -> None:
    write_row_file(str(files / "none.parquet"), HeavyHitter, [])
    assert "No heavy hitters were published" in words(files, "picture.svg", rows="none.parquet")
    (files / "none.parquet.guarantee.json").write_text(json.dumps({"accuracy": {"detection_threshold": 100}}))
    text = words(files, "picture.svg", "--truth", str(files / "truth.avro"), rows="none.parquet")
    assert "0 were reported and 5 missed" in " ".join(text.split())


def test_names_that_are_no_text_for_pictures(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = ["$\\frac{", "新しい電車", "line\nbreak", "\x1b[31mred", "x" * 5000, "%s {0} \\n"]
    write_row_file(str(files / "odd.jsonl"), HeavyHitter, [row(n, name, 100 + n) for n, name in enumerate(names)])
    text = words(files, "picture.svg", rows="odd.jsonl")
    assert "$\\frac{" in text
    assert "line break" in text
    assert "x" * 18 + "…" + "x" * 9 in text
    assert "x" * 19 not in text
    assert len(capfd.readouterr().err.splitlines()) == 1, "no warnings"


def test_a_stream_is_chosen(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(0, "ours", 100, "a"), row(0, "theirs", 100, "b")]
    write_row_file(str(files / "two.jsonl"), HeavyHitter, rows)
    assert plot(files, "picture.svg", rows="two.jsonl") == 2
    assert "stream must be given, one of a, b" in capsys.readouterr().err
    assert not (files / "picture.svg").exists()
    assert plot(files, "picture.svg", "--stream", "c", rows="two.jsonl") == 2
    assert "stream must be one of 'a', 'b', got 'c'" in capsys.readouterr().err
    text = words(files, "picture.svg", "--stream", "b", rows="two.jsonl")
    assert "theirs" in text
    assert "ours" not in text
    assert "Heavy hitters of b" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output", "p.pdf"], "--output must end in .png or .svg, got p.pdf"),
        (["--output", "none/p.png"], "--output must be in a folder that exists: there is no folder none"),
        (["--top", "0"], "top must be >= 1, got 0"),
        (["--top", "13"], "top must be <= 12, got 13"),
        (["--input", "none.jsonl"], "--input must be a file that exists, got none.jsonl"),
        (["--input", "rows.txt"], "--input must end in .avro, .parquet, .jsonl, .csv, got rows.txt"),
        (["--input", "broken.jsonl"], "--input must have HeavyHitter rows that privstream wrote, got broken.jsonl"),
        (["--input", "broken.avro"], "--input must have HeavyHitter rows that privstream wrote, got broken.avro"),
        (["--truth", "rows.jsonl"], "--truth must have ItemHolders rows that privstream wrote, got rows.jsonl"),
        (["--truth", "daily.jsonl"], "truth must be about windows as long as those of the rows"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, message, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    (files / "broken.jsonl").write_text('{"item": "secret wish"}\n')
    (files / "broken.avro").write_bytes(b"Obj\x01 secret wish")
    day = ItemHolders("", Timestamp(START), Timestamp(START + 24 * HOUR), "first snow", 900)
    write_row_file("daily.jsonl", ItemHolders, [day])
    before = sorted(files.iterdir())
    assert plot(files, "picture.png", *options) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert "secret wish" not in shown.err
    assert len(shown.err.splitlines()) == 1
    assert sorted(files.iterdir()) == before


def test_a_guarantee_that_is_none_is_refused(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "rows.jsonl.guarantee.json").write_text("{}")
    assert plot(files, "picture.png") == 2
    assert (
        "rows.jsonl.guarantee.json must be a guarantee that privstream wrote, with accuracy.detection_threshold"
        in capsys.readouterr().err
    )


def test_a_picture_that_cannot_be_finished_leaves_what_was_there(files, monkeypatch, capsys):
    (files / "picture.png").write_bytes(b"old")

    def full(self: Figure, stream: io.BytesIO, **options: object) -> None:
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    assert plot(files, "picture.png") == 1
    assert "No space left on device" in capsys.readouterr().err
    assert (files / "picture.png").read_bytes() == b"old"
    assert len(list(files.iterdir())) == 4


def test_lines_are_cut_where_a_window_is_left_out() -> None:
    runs = timeline._runs([row(3, "x", 1), row(0, "x", 1), row(1, "x", 1), row(5, "x", 1), row(6, "x", 1)])
    assert [[round((hit.window_start.micros / 1e6 - START) / HOUR) for hit in run] for run in runs] == [
        [0, 1],
        [3],
        [5, 6],
    ]


def _spread(labels: Sequence[Label]) -> Figure:
    figure = Figure(figsize=(8, 5))
    axes = figure.add_subplot()
    axes.set_xlim(0, 10)
    axes.set_ylim(0, 10)
    figure.draw_without_rendering()
    place(axes, labels, [point for label in labels for point in label.points])
    return figure


def test_labels_do_not_overlap_and_stay_inside() -> None:
    rng = np.random.default_rng(4)
    crowd = [Label(f"somewhat long {n}", [tuple(rng.uniform(4, 6, 2).tolist())], "black") for n in range(8)]
    corners = [Label("in a corner", [corner], "black") for corner in itertools.product((0.0, 10.0), repeat=2)]
    figure = _spread([*crowd, *corners])
    (axes,) = figure.axes
    boxes = [note.get_window_extent() for note in axes.texts if note.get_text()]
    assert len(boxes) == 12
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    canvas = axes.get_window_extent()
    assert all(canvas.x0 <= box.x0 and box.x1 <= canvas.x1 for box in boxes)
    assert all(canvas.y0 <= box.y0 and box.y1 <= canvas.y1 for box in boxes)


def test_a_label_without_room_is_left_out() -> None:
    figure = _spread([Label("wide " * 200, [(5, 5)], "black"), Label("fits", [(5, 5)], "black")])
    assert [note.get_text() for note in figure.axes[0].texts if note.get_text()] == ["fits"]


def test_verdict() -> None:
    extra = row(2, "nobody", 130)
    verdict = judge([*ROWS, extra], TRUTH, 100)
    assert verdict.found == tuple(map(key, ROWS[:3]))
    assert verdict.missed == (key(TRUTH[2]), key(TRUTH[5]))
    assert verdict.below == (key(ROWS[3]),)
    assert verdict.false == (Key("", extra.window_start, extra.window_end, "nobody"),)
    assert verdict.sentence(100).startswith("Of 5 items that at least 100 people had in a window, 3 were reported")


def test_a_row_that_says_that_an_item_has_ended_reports_it_no_longer() -> None:
    ended = ROWS[2]._replace(status="ended", since=ROWS[0].window_start)
    verdict = judge([*ROWS[:2], ended], TRUTH, 100)
    assert verdict.found == tuple(map(key, ROWS[:2]))
    assert key(ended) in verdict.missed


def uncounted(hour: int) -> HeavyHitter:
    return row(hour, "first snow", 0)._replace(count=None, lower=None, upper=None)


def test_an_item_that_continues_without_a_count_is_dotted(files: Path) -> None:
    going_on = [uncounted(hour)._replace(status="continues") for hour in (2, 3)]
    write_row_file(str(files / "rows.jsonl"), HeavyHitter, [*ROWS[:2], *going_on])
    text = words(files, "picture.svg")
    assert "Dotted: the item continues" in text
    assert "Bars: where the numbers of what counts within the limits" in text
    assert "Dotted" not in words(files, "other.svg", rows=_all_counted(files))


def test_rows_without_counts_are_drawn_at_0(files: Path) -> None:
    write_row_file(str(files / "rows.jsonl"), HeavyHitter, [uncounted(0), uncounted(1), uncounted(3)])
    text = words(files, "picture.svg")
    assert "There are no counts." in text
    assert "first snow" in text


def _all_counted(files: Path) -> str:
    write_row_file(str(files / "counted.jsonl"), HeavyHitter, ROWS)
    return "counted.jsonl"


def test_detection_threshold_beside_rows(files: Path) -> None:
    found = (
        detection_threshold(Promise.read(f"{files / name}.guarantee.json")) for name in ("rows.jsonl", "others.jsonl")
    )
    assert tuple(found) == (100, None)
