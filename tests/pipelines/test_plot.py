"""`privstream plot`, and where it puts names."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from apache_beam.utils.timestamp import Timestamp
from matplotlib.figure import Figure
from matplotlib.image import imread
from privstream.pipelines import cli
from privstream.pipelines.pictures.truth import Key, judge, key
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
