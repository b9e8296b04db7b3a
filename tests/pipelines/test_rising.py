"""`privstream counts --rising` and `--at_least`: what rose, and what is hidden, from file to file."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines import cli
from privstream.pipelines.accounts.ledger import Ledger
from privstream.pipelines.frames import ask
from privstream.pipelines.pictures.counts import PICTURE
from privstream.pipelines.plot.picture_spec import Given
from privstream.pipelines.plot.promise import Promise
from privstream.pipelines.questions.risers import newest, percent, risers
from privstream.transforms.rows import KeyCount
from small_shop import open_shop

PEOPLE = {"tea": [400] * 6, "cake": [60, 60, 60, 60, 60, 200], "milk": [300, 300, 300, 60, 60, 60]}
RUN = ["--window", "1h", "--start", "2024-01-01", "--end", "2024-01-01T06:00", "--epsilon", "20", "--delta", "1e-6"]
COLUMNS = ("rise", "rise_lower", "rise_upper", "rise_probability")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return open_shop(tmp_path_factory.mktemp("shop"), PEOPLE)


def run(shop: Path, output: Path | str, *options: str, ledger: str = "none") -> int:
    files = ["--input", f"{shop}/sales.jsonl", "--noise_key_file", f"{shop}/key", "--ledger", ledger]
    limits = ["--max_contributions", "18", "--runner", "FnApiRunner"]
    return cli.main(["counts", *files, "--output", str(output), *RUN, *limits, *options])


def rows_of(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {(row["item"], int(row["window_start"][11:13])): row for row in rows}


@pytest.mark.slow
def test_rises_are_in_the_rows_and_cost_nothing(shop: Path, tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger.jsonl")
    for name, options in (("plain", []), ("one", ["--rising"]), ("three", ["--rising", "3", "--at_least", "100"])):
        assert run(shop, tmp_path / f"{name}.jsonl", *options, ledger=ledger) == 0
    assert len({entry.release for entry in Ledger(ledger).read()}) == 1, "views of what is published already"
    plain, one, three = (rows_of(tmp_path / f"{name}.jsonl") for name in ("plain", "one", "three"))
    assert plain.keys() == one.keys() == {(item, hour) for item in PEOPLE for hour in range(6)}
    for (item, hour), row in one.items():
        assert {**row, **dict.fromkeys(COLUMNS)} == plain[item, hour]
        assert (row["rise"] is None) == (hour == 0)
        if hour:
            assert row["rise"] == pytest.approx(row["smoothed"] - one[item, hour - 1]["smoothed"])
            assert row["rise_lower"] <= PEOPLE[item][hour] - PEOPLE[item][hour - 1] <= row["rise_upper"]
    assert one["cake", 5]["rise_probability"] == 0.999 and one["milk", 3]["rise_probability"] == 0.001
    assert three.keys() == {place for place, row in plain.items() if row["smoothed"] >= 100}
    assert {hour for item, hour in three if item == "cake"} == {5}, "its rows come back when it passes again"
    assert three["cake", 5]["rise"] > 100 and three["milk", 1]["rise"] is None


def test_the_top_is_what_rose_most(shop: Path, tmp_path: Path) -> None:
    assert run(shop, tmp_path / "rows.jsonl", "--rising", "--top", "1") == 0
    rows = rows_of(tmp_path / "rows.jsonl")
    assert ("cake", 5) in rows and len(rows) == 5 and not [at for _, at in rows if at == 0], "no rise is known then"


def test_a_list_has_rises_when_the_run_has_ended(shop: Path, tmp_path: Path) -> None:
    assert run(shop, tmp_path / "rows.jsonl", "--rising", "2", "--domain", f"{shop}/items", "--at_least", "20") == 0
    rows = rows_of(tmp_path / "rows.jsonl")
    assert len(rows) == 18 and rows["cake", 5]["rise"] > 100 and rows["cake", 1]["rise"] is None


@pytest.mark.slow
def test_the_terminal_and_pictures_show_what_rose(shop, tmp_path, capsys):
    assert run(shop, "-", "--rising", "2") == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "what rose most in the window until 2024-01-01 06:00 UTC, against 2 windows before" in shown
    table = shown.partition("what rose most")[2]
    assert "cake" in table and "99.9%" in table and "milk" not in table, "it fell"
    rows, picture = tmp_path / "rows.jsonl", tmp_path / "rows.svg"
    assert run(shop, rows, "--rising", "2") == 0
    assert cli.main(["plot", "counts", "--input", str(rows), "--output", str(picture), "--rising"]) == 0
    words = " ".join(picture.read_text().split())
    assert "what rose most" in words and "cake" in words and "against 2 windows before" in words
    assert "milk" not in words
    assert cli.main(["plot", "counts", "--input", str(rows), "--output", str(picture)]) == 0
    assert "milk" in picture.read_text() and "what rose most" not in picture.read_text()
    assert cli.main(["report", str(rows), "--output", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert page.count("<figure") == 2 and page.count("what rose most") >= 1
    assert run(shop, rows, "--overwrite") == 0
    capsys.readouterr()
    assert cli.main(["plot", "counts", "--input", str(rows), "--output", str(picture), "--rising"]) == 2
    assert "--rising must be given to the run of the rows: these have no rises" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rising", "0"], "--rising must be >= 1, got 0"),
        (["--rising", "65"], "--rising must be <= 64, got 65"),
        (
            ["--rising", "6"],
            "--rising must be < 6, the number of windows of the run or of a period that is renewed, got 6: no window",
        ),
        (["--rising", "3", "--renew_every", "3h"], "--rising must be < 3, the number of windows of the run or of a"),
        (
            ["--rising", "7", "--domain", "items"],
            "--rising must be < 6, the number of windows of the run or of a period",
        ),
        (["--rising", "--forget"], "--rising must not be given where windows forget or counts span windows: give"),
        (["--rising", "--over", "2h"], "--rising must not be given where windows forget or counts span windows"),
        (
            ["--rising", "--domain", "items", "--top", "2"],
            "--rising must not be given with domain and top: counts of a list",
        ),
        (
            ["--at_least", "1"],
            "--at_least must be >= 3, one standard deviation of the noise of a count, got 1: smaller",
        ),
        (["--at_least", "9", "--over", "start"], "--at_least must not be given where windows forget, or counts span"),
        (["--at_least", "9", "--over", "2h", "--forget"], "--at_least must not be given where windows forget, or"),
        (
            ["--at_least", "4", "--over", "5h"],
            "--at_least must be >= 7, one standard deviation of the noise of a count",
        ),
    ],
)
def test_refused(options, message, shop, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(shop)
    assert run(shop, tmp_path / "rows.jsonl", *options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "rows.jsonl").exists()


def test_windows_of_a_period_are_not_compared_with_those_before_it(shop: Path, tmp_path: Path) -> None:
    """Limits begin anew with a period, and so numbers may rise where nothing does."""
    assert run(shop, tmp_path / "rows.jsonl", "--rising", "2", "--renew_every", "3h", "--max_contributions", "9") == 0
    rows = rows_of(tmp_path / "rows.jsonl")
    assert {hour for (item, hour), row in rows.items() if row["rise"] is not None} == {2, 5}
    assert rows["cake", 5]["rise"] > 100


def drawn(rows: list[KeyCount], **promised: Any) -> str:
    """Return what stands in a picture of what rose."""
    promise = Promise("rows.guarantee.json", {"parameters": promised}) if promised else None
    picture = io.BytesIO()
    PICTURE.prepare(Given(stream="", rows=rows, promise=promise, options=PICTURE.options | {"rising": True}))(
        picture, "svg"
    )
    return " ".join(picture.getvalue().decode().split())


def test_a_picture_says_of_which_window_its_rises_are() -> None:
    """Rows of the last window may have none, such as those of an item that is found in it."""
    rows = [row("a", 1, None), row("a", 2, 9.0), row("d", 3, None)]
    assert "Rises in the window until 1970-01-01 03:00 UTC, against the window before, with" in drawn(rows, rising=1)
    told = drawn([row("a", 2, -1.0), row("d", 3, None)])
    none = "No item surely rose in the window until 1970-01-01 03:00 UTC, against a window before, with a probability"
    assert f"{none} of 90%; none more likely rose than not." in " ".join(told.split())
    assert "There are no rows." in drawn([], rising=1)


@pytest.mark.parametrize(
    ("promised", "reason"),
    [
        ({"rising": 3}, "these rows, which have no rises: there is no count to compare with, of 3 windows before"),
        ({"rising": None, "over": "window"}, "rising must be given to the run of the rows: these have no rises"),
        ({}, "have no rises: the run was not given it, or there is no count to compare with, of a window before"),
    ],
)
def test_a_picture_without_rises_says_why(promised: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        drawn([row("a", 1, None)], **promised)


def test_in_python_a_flag_is_a_window_before() -> None:
    people = [(f"u{n}", "tea", 3600 * hour) for hour in range(3) for n in range(200 + 100 * hour)]
    users, items, times = zip(*people, strict=True)
    frame = pa.table({"user": users, "item": items, "time": pa.array(times, pa.timestamp("s", "UTC"))})
    given = {"epsilon": 9, "delta": 1e-6, "window": "1h", "start": 0, "end": 10_800, "max_contributions": 3}
    for rising in (True, 1):
        table = ask("counts", frame, **given, rising=rising, ledger="none").table
        assert [rise is None for rise in table["rise"].to_pylist()] == [True, False, False]
        assert all(rise > 50 for rise in table["rise"].to_pylist()[1:])
    assert ask("counts", frame, **given, rising=False, ledger="none").table["rise"].null_count == 3


def row(item: str, hour: int, rise: float | None, stream: str = "", sure: float = 0.9) -> KeyCount:
    start, end = Timestamp(3600 * hour), Timestamp(3600 * hour + 3600)
    return KeyCount(stream, start, end, item, 9, 2.0, 9, 4, 14, 9.0, 5.0, 13.0, end, False, rise, rise, rise, sure)


def test_each_item_is_told_once_by_its_largest_rise() -> None:
    rows = [
        row("a", 1, 5.0),
        row("a", 2, 9.0),
        row("b", 2, -1.0),
        row("c", 2, 9.0),
        row("c", 3, 0.0),
        row("e", 2, 40.0, sure=0.89),
        row("d", 3, None),
    ]
    assert risers(rows, 9) == [rows[1], rows[3]]
    assert risers(rows, 1) == [rows[1]] and risers([], 3) == []
    assert newest(rows) == [rows[4], rows[6]] and newest([row("d", 3, None)]) == []
    both = [row("a", 1, 3.0, "s"), row("a", 1, 4.0, "t")]
    assert risers(both, 2) == [both[1], both[0]], "streams have items of their own"


def test_probabilities_near_the_ends_have_a_digit_more() -> None:
    assert [percent(part) for part in (0.001, 0.012, 0.5, 0.989, 0.991, 0.999, None)] == [
        "0.1%", "1%", "50%", "99%", "99.1%", "99.9%", "0.0%"]  # fmt: skip
