"""What a help page offers is taken: for each option of each command there is a call that is not refused."""

import argparse
import json
import shlex
from pathlib import Path

import pytest
from privstream.pipelines import cli
from privstream.pipelines.help_page import Parser
from privstream.pipelines.questions import run_command
from privstream.pipelines.runners import launch

EVENTS = "--input events.jsonl --output rows.jsonl"
CLOCK = f"{EVENTS} --window 3600 --start 2024-01-01 --end 2024-01-01T02:00:00Z"
COMMANDS = {
    "heavy-hitters": f"{EVENTS} --window 3600 --epsilon 1 --delta 1e-6 --max_hits 2 --horizon 5",
    "counts": f"{EVENTS} --window 3600 --epsilon 1 --delta 1e-6 --max_contributions 2 --max_value 9",
    "top-k": f"{CLOCK} --top 1 --epsilon 1 --domain domain",
    "alerts": f"{CLOCK} --epsilon 1 --rules rules",
    "histogram": f"{CLOCK} --epsilon 1 --domain domain",
    "quantiles": f"{CLOCK} --epsilon 1 --delta 1e-6 --max_contributions 2 --low 0 --high 9",
    "flags": f"{CLOCK} --epsilon 1 --domain domain --thresholds 5",
    "cardinality": f"{CLOCK} --epsilon 1 --timeout 60",
    "ranges": f"{CLOCK} --epsilon 1 --universe 64 --queries ranges",
    "predecessor": f"{CLOCK} --epsilon 1 --universe 64 --queries points",
    "queries": f"{EVENTS} --epsilon 1 --queries linear --domain domain --records 300",
}
VALUES = {
    "allowed_lateness": "60",
    "alpha": "0.3",
    "answers": "5",
    "beta": "0.1",
    "branches": "3",
    "budget": "per_rule",
    "budget_limit": "2,1e-3 --ledger accounts.jsonl",
    "categories_per_row": "2 --separator ,",
    "count_share": "0.5",
    "dataset": "people",
    "dead_letter": "dead.jsonl",
    "delete_values": "out",
    "delta": "1e-6",
    "domain": "domain",
    "duplicates": "counted",
    "end": "2024-01-01T03:00:00Z",
    "enter_values": "in",
    "horizon": "9",
    "input_format": "jsonl",
    "insert_values": "in",
    "item_field": "thing",
    "items_per_step": "2",
    "largest": "100",
    "ledger": "accounts.jsonl",
    "leave_values": "out",
    "max_contributions": "2 --unit user",
    "max_hits": "3",
    "max_per_window": "1 --max_contributions 2 --unit user",
    "max_updates": "50",
    "max_value": "500",
    "measure_share": "0.5",
    "method": "auto",
    "min_alerts": "3",
    "min_people": "20",
    "neighbouring": "replace_one",
    "noise_key_file": "key",
    "noise_key_variable": "KEY",
    "output_format": "avro --watch 1",
    "participation_cap": "2",
    "period": "1800",
    "planned": "10",
    "quantiles": "0.5",
    "queries": "max",
    "quiet": "2",
    "records": "200",
    "renew_every": "1h",
    "resolution": "20",
    "run_id": "another",
    "selection": "first",
    "separator": ",",
    "shards": "2",
    "start": "2024-01-01",
    "stream_field": "land --streams a,b",
    "streams": "a,b --stream_field land",
    "streams_per_person": "1 --streams a,b --stream_field land",
    "time_field": "when",
    "time_unit": "s",
    "timeout": "30",
    "unit": "user --max_contributions 2",
    "user_field": "who",
    "value_field": "cents",
    "value_share": "0.4",
    "visits_per_person": "2 --method visit_counter",
    "watch": "1",
    "watermark": "marks --watch 1",
}
OF_COMMANDS = {
    "heavy-hitters": {"renew_every": "1h --start 2024-01-01"},
    "counts": {
        "renew_every": "1h --start 2024-01-01",
        "over": "2h --start 2024-01-01 --end 2024-01-01T02:00:00Z",
        "top": "3",
        "unit": "person",
        "max_contributions": "3",
        "horizon": "9 --start 2024-01-01 --over start",
        "domain": "domain --start 2024-01-01 --end 2024-01-01T02:00:00Z",
    },
    "quantiles": {
        "over": "2h",
        "value_field": "number",
        "scale": "log --low 1",
        "max_contributions": "3",
        "unit": "person",
    },
    "top-k": {"unit": "person_in_window"},
    "cardinality": {"unit": "event"},
    "predecessor": {"delta": "1e-6 --delete_values out"},
}
NEED_A_SERVER = ("kafka_setting", "copy")


def offered(name: str) -> list[argparse.Action]:
    """Return the options of a command that need not be given."""
    parser = Parser(prog=name)
    cli.load(cli.COMMANDS[name][0]).add_arguments(parser)
    return [each for each in parser._actions if not each.required and each.dest not in ("help", *NEED_A_SERVER)]


QUICK = ("top-k", "cardinality", "ranges")
CASES = [
    pytest.param(name, option, marks=[] if name in QUICK else [pytest.mark.slow], id=f"{name}-{option.dest}")
    for name in COMMANDS
    for option in offered(name)
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with one file of everything."""
    event = {
        "user": "5",
        "item": "a",
        "time": "2024-01-01T00:00:01Z",
        "who": "6",
        "thing": "b",
        "land": "a",
        "value": 3,
        "number": 4,
    }
    files = {
        "events.jsonl": json.dumps(event | {"when": "2024-01-01T00:00:02Z"}),
        "domain": "a\nb\nc",
        "key": "0123456789abcdef",
        "rules": '{"name": "r", "at_least": 5}',
        "ranges": '{"low": 1, "high": 5}',
        "points": '{"point": 5}',
        "linear": '{"name": "y", "items": ["a"]}',
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "key").chmod(0o600)
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("KEY", "0123456789abcdef")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("name", "option"), CASES)
def test_an_option_is_taken(
    name: str,
    option: argparse.Action,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(launch, "run", lambda *_: {})
    monkeypatch.setattr(run_command, "fingerprint", lambda path: "of what is not there")
    value = "" if option.nargs == 0 else (VALUES | OF_COMMANDS.get(name, {}))[option.dest]
    call = f"{name} {COMMANDS[name]} {option.option_strings[0]} {value}"
    if "--watch" in call:
        watched = "--queries" if name == "queries" else "--input"
        call += f" {watched} in --output out --input_format jsonl --run_id watched"
    assert cli.main(shlex.split(call)) == 0, capsys.readouterr().err
