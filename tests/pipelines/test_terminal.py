"""What a terminal shows: rows, the time that something takes, and no text of a file or an option that steers it."""

import io
import json
import logging
from pathlib import Path

import pytest
from apache_beam.utils.timestamp import Timestamp
from example_results import arrow_table, row_of
from privstream.pipelines import cli
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.model.catalogue import QUESTIONS, question
from privstream.pipelines.show.shown import moments
from privstream.pipelines.sinks.row_files import read_row_file, write_row_file
from privstream.pipelines.sinks.terminal_table import print_rows
from privstream.pipelines.stores import write_json
from privstream.pipelines.terminal import say, show
from privstream.transforms.reading.fields import DeadLetter
from privstream.transforms.row_types import HeavyHitter
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

UNSEEN = ["\x00", "\x07", "\x1b", "\x7f", "\x85", "\x9b", "\xad", "\u200f", "\u202e", "\u2028", "\u2066", "\ufeff"]
UNSEEN += ["\U000e0041", "\ud800", "\udcff"]
HOSTILE = "".join(f"a{one}[31m" for one in UNSEEN)


def unseen(text: str) -> list[str]:
    return [one for one in text if not one.isprintable() and one != "\n"]


def test_files_of_json_hold_escapes(tmp_path: Path) -> None:
    letters = [DeadLetter("reason", HOSTILE, "line 1", HOSTILE)]
    write_row_file(str(tmp_path / "letters.jsonl"), DeadLetter, letters)
    write_json(str(tmp_path / "guarantee.json"), {HOSTILE: [HOSTILE, "é日本 \u3000", 1.5]})
    shown = HOSTILE.encode(errors="backslashreplace").decode()
    assert read_row_file(str(tmp_path / "letters.jsonl"), DeadLetter) == [DeadLetter("reason", shown, "line 1", shown)]
    assert json.loads((tmp_path / "guarantee.json").read_text()) == {HOSTILE: [HOSTILE, "é日本 \u3000", 1.5]}
    for path in tmp_path.iterdir():
        assert unseen(path.read_text()) == []


def test_tables_and_plans_hold_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    row = HeavyHitter(Timestamp(0), Timestamp(60), f"\n[red]{HOSTILE}", 5.0, 3.0, 7.0, Timestamp(0), "started")
    stream = io.StringIO()
    table = arrow_table(HeavyHitter, [row._replace(item=row.item.encode(errors="replace").decode())])
    print_rows(table, record("heavy-hitters"), name=HOSTILE, path=HOSTILE, console=Console(file=stream, width=4000))
    show(HOSTILE, Table(), [HOSTILE])
    told = stream.getvalue() + capsys.readouterr().out
    assert unseen(told) == []
    assert "\\n[red]" in told


def test_what_is_said_and_logged_holds_escapes(capfd: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE)
    cli._prepare_terminal()
    record = logging.LogRecord("library", logging.WARNING, "", 1, "path %s", (HOSTILE,), None)
    logging.getLogger().handlers[-1].format(record)
    assert unseen(capfd.readouterr().err) == []


def test_keys_of_json_reach_the_terminal_with_escapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = tmp_path / "events\x9b.csv"
    events.write_text("who,item,ti\x1b[31mme\u202e\n1,2,3\n")
    options = "--window 60 --epsilon 1 --delta 1e-6 --end 2024-01-02 --start 2024-01-01"
    line = ["heavy-hitters", *options.split()]
    assert cli.main([*line, "--input", str(events), "--output", str(tmp_path / "rows.jsonl")]) == 2
    told = capsys.readouterr().err
    assert unseen(told) == []
    assert "\\x9b.csv" in told
    assert cli.main([*line, "\x1b]0;title\x07\u202e"]) == 2
    assert unseen(capsys.readouterr().err) == []


HOUR, MONDAY = 3600, Timestamp(1_704_067_200)


def record(word: str, window: object = 3600.0, **parameters: object) -> dict:
    made = {"command": f"privstream {word}", "version": "0"}
    return {"made_by": made, "parameters": {"window": window} | parameters, "guarantee": {"horizon": 3}}


def printed(rows: list, word: str, width: int = 80, window: object = 3600.0, **options: object) -> str:
    stream = io.StringIO()
    zone = {"time_zone": options.pop("zone", "UTC")}
    table = arrow_table(type(rows[0]) if rows else question(word).row_type, rows)
    console = Console(file=stream, width=width, force_terminal=False)
    print_rows(table, record(word, window, **zone), console=console, **options)
    return stream.getvalue()


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("word", QUESTIONS)
def test_rows_of_all_questions_fit_into_a_terminal(word: str, width: int) -> None:
    rows = [row_of(word, hour, name) for hour in range(3) for name in ("Gartenst\u00fchle", "Lampen \u65e5\u672c")]
    lines = printed(rows, word, width, path="rows.csv").splitlines()
    assert max(map(len, lines[1:])) <= width
    assert "rows.csv" in lines[-1] and lines[-1][0].isdigit()
    keyed = {"item", "category"} & {*rows[0]._fields}
    assert sum("Garten" in line for line in lines) == 1 or not keyed, "the newest window alone"
    if "lower" in rows[0]._fields:
        assert any(f"{rows[0].lower:g} to {rows[0].upper:g}" in line for line in lines), "the ends that the file has"


def in_hour(hour: int, item: str, number: float, **more: object) -> HeavyHitter:
    start = MONDAY + HOUR * hour
    row = HeavyHitter(start, start + HOUR, item, number, number - 42, number + 42.0, start, "started")
    return row._replace(**more)


def test_the_largest_rows_of_the_newest_window_come_first_with_all_windows_beside_them() -> None:
    rows = [in_hour(hour, f"i{item}", 100.0 * hour + item) for hour in range(3) for item in range(174)]
    lines = printed(rows, "heavy-hitters", path="week.csv").splitlines()
    assert "UTC" in lines[0] and "1 January 02:00" in lines[0] and "the last of 3 hours" in lines[0]
    assert lines[1].split()[:2] == ["item", "people"] and "95% interval" in lines[1] and "3 hours" in lines[1]
    assert [line.split()[0] for line in lines[2:-1]] == [f"i{173 - place}" for place in range(20)]
    assert lines[2].split()[1:5] == ["373", "331", "to", "415"]
    assert lines[-1].startswith("20 of 174 ") and lines[-1].endswith("week.csv")


def test_what_all_rows_have_in_common_is_shown() -> None:
    table = arrow_table(HeavyHitter, [in_hour(0, "tea", 9.0)]).add_column(2, "country", [["de"]])
    stream = io.StringIO()
    print_rows(table, record("heavy-hitters"), console=Console(file=stream, width=80))
    assert stream.getvalue().splitlines()[2].split()[:3] == ["de", "tea", "9"]


def test_a_window_without_a_row_has_no_block() -> None:
    rows = [in_hour(hour, "tea", number) for hour, number in enumerate((100, 50, 200))] + [in_hour(2, "cake", 45.0)]
    lines = printed(rows, "heavy-hitters").splitlines()
    assert "\u2585\u2583\u2588" in lines[2] and "  \u2588" in lines[3]
    assert "\u2588" not in printed([rows[2]], "heavy-hitters"), "one window has none"
    assert "3 rows" in printed([row_of("cardinality", hour, "") for hour in range(3)], "cardinality"), "one a window"


def test_a_terminal_without_blocks_has_plain_text() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    rows = [in_hour(hour, "tea", 100.0 + hour) for hour in range(3)]
    table = arrow_table(HeavyHitter, rows)
    print_rows(table, record("heavy-hitters"), console=Console(file=stream, width=120))
    stream.flush()
    assert b"102" in stream.buffer.getvalue()


def test_lower_bounds_and_missing_numbers_are_no_numbers() -> None:
    rows = [in_hour(0, "tea", 759.0, lower=728.2, upper=None), in_hour(0, "cake", 3.0, people=None, lower=None)]
    text = printed(rows, "heavy-hitters")
    assert "728 or more" in text and "nan" not in text.lower() and "None" not in text


def test_long_names_are_cut_and_letters_of_two_columns_fit() -> None:
    rows = [in_hour(0, "\u65e5" * 300, 9.0), in_hour(0, "x" * 5000, 8.0), in_hour(0, "two words", -0.0)]
    lines = printed(rows, "heavy-hitters").splitlines()
    assert len(lines) < 12 and all(cell_len(line) <= 80 for line in lines[1:])
    assert "-0" not in "".join(lines)


def test_times_are_those_of_the_zone_also_where_clocks_are_put_back() -> None:
    berlin, autumn = Clocks("Europe/Berlin"), 1_729_987_200_000_000  # 27 October 2024, 02:00 summer time
    twice = moments([autumn, autumn + HOUR * 1_000_000], berlin)
    assert twice == ["27 October 02:00 CEST", "27 October 02:00 CET"]
    days = [1_711_753_200_000_000, 1_711_839_600_000_000]  # the second one has 23 hours
    assert moments(days, berlin) == ["30 March", "31 March"]
    assert moments([0], Clocks(), others=[days[0]]) == ["1 January 1970 00:00"]
