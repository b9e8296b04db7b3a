"""No text of a file or an option steers a terminal; files of JSON hold what cannot be seen as escapes."""

import io
import json
import logging
import re
import sys
from pathlib import Path

import pytest
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines import cli
from privstream.pipelines.console import show
from privstream.pipelines.sinks.row_files import read_row_file, write_json, write_row_file
from privstream.pipelines.sinks.writers import print_rows
from privstream.pipelines.terminal import json_text, one_line, printable, say
from privstream.transforms.events.dead_letters import DeadLetter
from privstream.transforms.rows import HeavyHitter
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
    row = HeavyHitter.in_time(
        HOSTILE, Timestamp(0), Timestamp(60), f"{HOSTILE}\n[red]", 5, 1.0, Timestamp(0), "started"
    )
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
    line = ["heavy-hitters", "--window", "60", "--epsilon", "1", "--delta", "1e-6", "--max_hits", "1", "--horizon", "5"]
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
