"""What a terminal shows: rows, the time that something takes, and no text of a file or an option that steers it."""

import io
import json
import logging
import os
import pty
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from apache_beam.utils.timestamp import Timestamp
from example_results import row_of
from privstream.pipelines import cli
from privstream.pipelines import console as clocks
from privstream.pipelines.console import clock, show
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.model.catalogue import QUESTIONS, question
from privstream.pipelines.sinks.row_files import read_row_file, write_json, write_row_file
from privstream.pipelines.sinks.terminal_table import print_rows, sparkline
from privstream.pipelines.terminal import json_text, one_line, printable, say
from privstream.transforms.events.event_fields import DeadLetter
from privstream.transforms.rows import Alert, HeavyHitter, KeyCount, KeySum, QuantileEstimate, RankedItem
from rich.console import Console
from rich.table import Table

UNSEEN = ["\x00", "\x07", "\x1b", "\x7f", "\x85", "\x9b", "\xad", "\u200f", "\u202e", "\u2028", "\u2066", "\ufeff"]
UNSEEN += ["\U000e0041", "\ud800", "\udcff"]
HOSTILE = "".join(f"a{one}[31m" for one in UNSEEN)


def unseen(text: str) -> list[str]:
    return [one for one in text if not one.isprintable() and one != "\n"]


@pytest.mark.parametrize("one", UNSEEN, ids=ascii)
def test_what_cannot_be_seen_is_escaped(one: str) -> None:
    shown = printable(f"é{one}日")
    assert shown.startswith("é\\") and shown.endswith("日")
    assert shown.isprintable()


def test_ends_of_lines_stay_or_become_spaces() -> None:
    assert printable("one\ntwo\r") == "one\ntwo\\r"
    assert one_line(" one \n  two\r\nthree ") == "one two three"


def test_json_says_the_same_with_escapes() -> None:
    value = {HOSTILE: [HOSTILE, "é日本 \u3000", 1.5, "line\nend"]}
    for indent in (None, 2):
        text = json_text(value, indent)
        assert json.loads(text) == value
        assert unseen(text) == []
    assert json_text({"ä": "日"}) == '{"ä": "日"}'
    with pytest.raises(ValueError, match="not JSON"):
        json_text(float("nan"))


def test_files_of_json_hold_escapes(tmp_path: Path) -> None:
    letters = [DeadLetter("reason", HOSTILE, "line 1", HOSTILE)]
    write_row_file(str(tmp_path / "letters.jsonl"), DeadLetter, letters)
    write_json(str(tmp_path / "guarantee.json"), {"run_id": HOSTILE})
    assert read_row_file(str(tmp_path / "letters.jsonl"), DeadLetter) == letters
    assert json.loads((tmp_path / "guarantee.json").read_text()) == {"run_id": HOSTILE}
    for path in tmp_path.iterdir():
        assert unseen(path.read_text()) == []


def test_tables_and_plans_hold_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    row = HeavyHitter(HOSTILE, Timestamp(0), Timestamp(60), f"{HOSTILE}\n[red]", 5.0, 3.0, 7.0, Timestamp(0), "started")
    stream = io.StringIO()
    print_rows([row], HeavyHitter, title=HOSTILE, console=Console(file=stream, width=4000))
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
    line = ["heavy-hitters", "--window", "60", "--epsilon", "1", "--delta", "1e-6", "--end", "2024-01-02"]
    assert cli.main([*line, "--input", str(events), "--output", str(tmp_path / "rows.jsonl")]) == 2
    told = capsys.readouterr().err
    assert unseen(told) == []
    assert "\\x9b.csv" in told
    with pytest.raises(SystemExit, match="2"):
        cli.main([*line, "\x1b]0;title\x07\u202e"])
    assert unseen(capsys.readouterr().err) == []


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_no_encoding_of_a_terminal_stops_a_table(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding=encoding))
    cli._prepare_terminal()
    show("日本", Table(), ["é"])
    sys.stdout.flush()
    assert re.match(rb"\\u65e5\\u672c", output.getvalue())


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("word", QUESTIONS)
def test_rows_of_all_questions_fit_into_a_terminal(word: str, width: int) -> None:
    row_type = question(word).row_type
    rows = [row_of(word, hour, name) for hour in range(3) for name in ("Gartenstühle", "Lampen")]
    if "smoothed" in row_type._fields:
        rows = [row._replace(smoothed=100.5, lower=90.0, upper=1200.0) for row in rows]
    if "category" in row_type._fields and "query" in row_type._fields:
        rows = [row._replace(query="histogram") for row in rows]  # not the name of a category
    lines = printed(rows, row_type, width=width, title=word).splitlines()
    assert max(map(len, lines)) <= width
    told = [line.split()[0] for line in lines]
    assert told.count("2024-01-01") == len(rows) or row_type._fields[0] == "query", "a row is a line"
    assert sum("Garten" in line for line in lines) == 3 or not {"item", "rule", "category"} & {*row_type._fields}


def test_what_a_narrow_terminal_has_no_room_for_is_said() -> None:
    rows = [
        alert(number, 100.0, 27.3)._replace(stream=stream) for stream, number in (("north", 100.8), ("south", 134.2))
    ]
    text = printed(rows, Alert, width=50)
    note = " ".join(text[text.index("In all rows") :].split())
    same = "rule kettles, threshold 100, since 2024-01-01, status started"
    assert note == f"In all rows: {same}."
    assert max(map(len, text.splitlines())) <= 50 and "80 and 189" in text


def test_queries_without_a_time_show_none() -> None:
    rows = [row_of("queries", 0, name)._replace(time=Timestamp(micros=place)) for place, name in enumerate(("a", "b"))]
    text = printed(rows, question("queries").row_type, title="answers")
    assert "1970" not in text and text.splitlines()[0].strip() == "answers"
    asked = [row._replace(time=MONDAY) for row in rows]
    assert "2024-01-01" in printed(asked, question("queries").row_type, title="answers")


def test_points_keep_their_bounds_in_a_narrow_terminal() -> None:
    rows = [
        row_of("predecessor", hour, "")._replace(predecessor=16_257, successor=16_512 + hour, query=60_000 * hour)
        for hour in range(3)
    ]
    rows = [row._replace(predecessor=row.query - 9, error_bound=row.query // 9) for row in rows]
    text = printed(rows, question("predecessor").row_type, width=60)
    assert "bound" in text and "Only in files: distance." in text


DAY = 86_400
MONDAY = Timestamp(1_704_067_200)


def printed(rows, row_type, width=80, **options):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    print_rows(rows, row_type, console=console, **options)
    return console.file.getvalue()


def count(item, number, smoothed=None, rise=None, **more):
    values = {
        "stream": "",
        "window_start": MONDAY,
        "window_end": MONDAY + 7 * DAY,
        "item": item,
        "count": number,
        "count_stddev": 21.4,
        "smoothed": smoothed,
        "lower": number - 42 if smoothed is None else smoothed - 20.12,
        "upper": number + 42 if smoothed is None else smoothed + 20.12,
        "reported_at": MONDAY + 7 * DAY,
        "backfilled": False,
        "rise": rise,
        "rise_lower": None if rise is None else rise - 30.5,
        "rise_upper": None if rise is None else rise + 30.5,
    }
    return KeyCount(**values | more)


def test_counts_show_the_smoothed_number_and_its_interval_and_are_sorted_by_it():
    rows = [count("Kettle, stainless steel, 1.5 l", 412, 339.4, rise=14.2), count("Toaster", 400, 358.7, rise=-3.1)]
    text = printed(rows, KeyCount, title="counts")
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "counts, windows of 7 days, times in UTC"
    first = next(line for line in lines if line.startswith("2024-01-01"))
    assert first.split()[:2] == ["2024-01-01", "Toaster"], "the largest number that is shown is first"
    assert "Kettle, stainless steel, 1.5 l" in lines[-2], "names are whole"
    assert lines[-2].split()[-5:] == ["339", "319", "and", "360", "14"]
    assert "412" not in text and "error" not in text and "±" not in text and "likely" not in text
    wide = printed(rows, KeyCount, width=120).splitlines()
    assert wide[-1].split()[-4:] == ["14", "-16", "and", "45"], "the rise has its interval where there is room"


def test_rows_that_are_not_smoothed_show_counts_between_the_ends_of_their_row():
    lines = printed([count("tea", 412), count("milk", 1390)], KeyCount).splitlines()
    assert lines[-2].split() == ["2024-01-01", "tea", "412", "370", "and", "454"]
    assert lines[-1].split() == ["2024-01-01", "milk", "1,390", "1,348", "and", "1,432"]
    assert "count" in lines[1] and "between" in lines[1]


def test_sums_are_numbers_with_thousands_and_the_digits_of_noise_are_left_out():
    row = KeySum(
        *count("tea", 412, 339.4), sum=335_300, sum_stddev=1234.5, mean=987.23, mean_lower=956.0, mean_upper=1018.0
    )
    line = printed([row], KeySum, width=120).splitlines()[-1].split()
    assert line[-7:] == ["335,300", "±", "1,234", "987", "956", "and", "1,018"]


def alert(estimate, threshold, stddev):
    ends = (estimate - 2 * stddev, estimate + 2 * stddev, MONDAY, "started")
    return Alert("", MONDAY, MONDAY + DAY, "kettles", threshold, estimate, *ends)


def test_means_are_rounded_by_their_noise():
    line = printed([alert(100.8571428, 100.0, 27.3)], Alert).splitlines()[-1]
    assert line.split()[2:] == ["100", "101", "46", "and", "155", "2024-01-01", "started"]
    line = printed([alert(335_300.123, 1000.0, 0.31)], Alert, width=100).splitlines()[-1]
    assert "335,300  335,300 and 335,301" in line and "e+" not in line
    assert "since, threshold" in printed([alert(1e6, 1e6, 1e5)], Alert, width=60)


def test_what_an_alert_costs_is_shown_where_it_costs() -> None:
    spent = alert(100.0, 90.0, 5.0)._replace(epsilon_left=0.25)
    assert "left" in printed([spent], Alert) and "stopped" not in printed([spent], Alert)
    assert "stopped" in printed([spent._replace(stopped=True)], Alert)


def test_numbers_have_no_digits_that_noise_hides():
    row = QuantileEstimate("", MONDAY, MONDAY + DAY, 0.9, 0.12344, 0.10121, 0.14516)
    assert printed([row], QuantileEstimate).splitlines()[-1].split()[-4:] == ["0.123", "0.101", "and", "0.145"]
    row = row._replace(estimate=123.44, lower=101.21, upper=1451.6)
    assert printed([row], QuantileEstimate).splitlines()[-1].split()[-4:] == ["123", "101", "and", "1,452"]


def test_ranks_show_one_interval():
    row = RankedItem("", MONDAY, MONDAY + DAY, 1, "tea", 12.0, 412.3, 377.1, 447.5)
    text = printed([row], RankedItem)
    assert text.splitlines()[-1].split() == ["2024-01-01", "1", "tea", "12", "412", "377", "and", "448"]
    assert "151" not in text and "error" not in text


def test_ranks_fit_a_terminal_of_sixty_columns():
    hour = (MONDAY, MONDAY + 3600)
    rows = [RankedItem("", *hour, rank, "bicycle shop harbour", 12.0, 1412.3, 1377.1, 1447.5) for rank in (1, 2)]
    text = printed(rows, RankedItem, width=60)
    assert max(map(len, text.splitlines())) <= 60 and "1,377 and 1,448" in text
    assert "Only in files:" in text and "rank" in text.split("Only in files:")[1]


def test_hitters_of_an_hour_say_when_it_begins():
    row = HeavyHitter("", MONDAY, MONDAY + 3600, "tea", 412.0, 370.0, 454.0, MONDAY, "started")
    assert printed([row], HeavyHitter).splitlines()[-1].startswith("2024-01-01 00:00"), "an hour is no day"


INTERVALS = {
    "hold": "the numbers of people who count",
    "scope": "all of a window together",
    "leave_out": "",
    "note": "",
}


@pytest.fixture(scope="module")
def searches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("searches")
    given = ["--users", "3000", "--windows", "4", "--seed", "1", "--output", str(folder / "e.avro")]
    assert cli.main(["simulate", "heavy-hitters", *given]) == 0
    (folder / "key").write_text("0123456789abcdef0123456789abcdef\n")
    (folder / "key").chmod(0o600)
    return folder


def test_a_run_prints_a_table_of_eighty_columns(searches, capsys):
    given = ["--input", str(searches / "e.avro"), "--window", "1h", "--start", "2024-01-01"]
    given += ["--end", "2024-01-01T04:00:00Z", "--epsilon", "4", "--delta", "1e-6", "--max_contributions", "12"]
    assert cli.main(["counts", *given, "--output", "-", "--run_id", "same", "--key", str(searches / "key")]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "night market " in shown and "Between: 95% intervals" in " ".join(shown.split())


@contextmanager
def terminal() -> Iterator[list[str]]:
    """Make a terminal of standard error; gives what was printed on it, when the block has ended."""
    ours, theirs = pty.openpty()
    kept, shown = os.dup(clocks.STANDARD_ERROR), [""]
    os.dup2(theirs, clocks.STANDARD_ERROR)
    try:
        yield shown
    finally:
        os.dup2(kept, clocks.STANDARD_ERROR)
        os.set_blocking(ours, False)
        with suppress(BlockingIOError):
            while True:
                shown[0] += os.read(ours, 1 << 16).decode()
        for file in (ours, theirs, kept):
            os.close(file)


def test_what_takes_long_shows_a_line_that_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(clocks, "DELAY_SECONDS", 0.01)
    with terminal() as shown, clock("adding [bold]up\x1b"):
        time.sleep(0.3)
    assert "adding [bold]up\\x1b" in shown[0] and "0:00:00" in shown[0]
    assert shown[0].endswith("\x1b[2K")  # the line is erased


def test_what_is_short_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with terminal() as shown, clock("adding up"):
        pass
    assert "adding" not in shown[0]


def test_nothing_is_shown_elsewhere(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "DELAY_SECONDS", 0.01)
    with pytest.raises(KeyError), clock("adding up"):
        time.sleep(0.1)
        raise KeyError
    assert capfd.readouterr() == ("", "")


def in_hour(hour: int, item: str, number: int) -> KeyCount:
    start = 1_704_067_200 + 3600 * hour
    return count(item, number)._replace(window_start=Timestamp(start), window_end=Timestamp(start + 3600))


def test_a_trend_stands_beside_numbers_where_the_terminal_has_room_and_letters_for_it() -> None:
    rows = [in_hour(hour, "tea", number) for hour, number in enumerate((100, 50, 200))]
    rows += [in_hour(2, "cake", 10)]
    lines = printed(rows, KeyCount, width=90).splitlines()
    assert [line.split()[-1] for line in lines if "tea" in line] == ["▅", "▅▃", "▅▃█"]
    assert next(line[-14:].rstrip() for line in lines if "cake" in line).endswith("  █"), "no row, no block"
    assert "Trend: the last 12 windows until that of the row" in " ".join(" ".join(lines).split())
    narrow = printed(rows, KeyCount, width=44)
    assert "trend" not in narrow.lower() and max(map(len, narrow.splitlines())) <= 44
    one = printed(rows[:1], KeyCount, width=90)
    assert "trend" not in one.lower(), "one window has none"


def test_a_terminal_without_blocks_has_plain_text() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    rows = [in_hour(hour, "tea", 100 + hour) for hour in range(3)]
    print_rows(rows, KeyCount, console=Console(file=stream, width=120))
    stream.flush()
    text = stream.buffer.getvalue().decode("latin-1")  # type: ignore[attr-defined]
    assert "tea" in text and "102" in text and "trend" not in text


@pytest.mark.parametrize(
    ("numbers", "blocks"), [([], ""), ([0, 0], "▁▁"), ([-5, 8], "▁█"), ([None, 4.0, 8.0], " ▅█"), ([1, 2, 3], "▂▃▄")]
)
def test_blocks_go_from_nothing_to_the_largest(numbers: list[float | None], blocks: str) -> None:
    assert sparkline(numbers, 8.0 if 8 in numbers or 3 in numbers else 0.0) == blocks


def test_times_are_those_of_the_zone_also_where_clocks_are_put_back() -> None:
    clocks = Clocks("Europe/Berlin", "1 day")
    days = [(1_711_753_200, 1_711_839_600), (1_711_839_600, 1_711_922_400)]  # the second one has 23 hours
    rows = [count("tea", 9)._replace(window_start=Timestamp(a), window_end=Timestamp(b)) for a, b in days]
    lines = printed(rows, KeyCount, title="counts", clocks=clocks).splitlines()
    assert lines[0] == "counts, windows of 1 day, times in Europe/Berlin"
    assert [line.split()[0] for line in lines if "tea" in line] == ["2024-03-30", "2024-03-31"]
    twice = [in_hour(hour, "tea", 9) for hour in range(2)]
    autumn = 1_729_987_200 - 1_704_067_200  # 27 October 2024, 02:00 summer time
    moved = [row._replace(window_start=row.window_start + autumn, window_end=row.window_end + autumn) for row in twice]
    text = printed(moved, KeyCount, clocks=Clocks("Europe/Berlin"))
    assert "2024-10-27 02:00 CEST" in text and "2024-10-27 02:00 CET" in text
