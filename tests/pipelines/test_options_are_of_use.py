"""What a help page offers is taken: for each option of each command there is a call that is not refused."""

import argparse
import shlex
from pathlib import Path

import pytest
from grids import some_quick
from privstream.pipelines import cli
from privstream.pipelines.command import Parser
from privstream.pipelines.questions import run_command
from privstream.pipelines.questions.catalogue import WORDS
from privstream.pipelines.runners import launch
from questions import EVENT, EXAMPLES, ONE_FOR_ALL, SHARED_OPTIONS, options, write_folder

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
    "max_contributions": "2 --unit person",
    "max_hits": "3",
    "max_per_window": "1 --max_contributions 2 --unit person",
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
    "unit": "person --max_contributions 2",
    "user_field": "who",
    "value_field": "cents",
    "value_share": "0.4",
    "visits_per_person": "2 --method visit_counter",
    "watch": "1",
    "watermark": "marks --watch 1",
}
NEED_A_SERVER = ("kafka_setting", "copy")


def offered(name: str) -> list[argparse.Action]:
    """Return the options of a command that need not be given."""
    parser = Parser(prog=name)
    cli.load(cli.COMMANDS[name][0]).add_arguments(parser)
    return [each for each in parser._actions if not each.required and each.dest not in ("help", *NEED_A_SERVER)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with one file of everything; no pipeline runs."""
    more = {"who": "6", "thing": "b", "land": "a", "value": 3, "number": 4, "when": "2024-01-01T00:00:02Z"}
    write_folder(tmp_path, EVENT | more)
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("KEY", "0123456789abcdef")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "run", lambda *_: {})
    monkeypatch.setattr(run_command, "fingerprint", lambda path: "of what is not there")


@some_quick("name", WORDS, "top-k", "ranges")
def test_options_are_taken(name: str, folder: None, capsys: pytest.CaptureFixture[str]) -> None:
    values = VALUES | EXAMPLES[name].values
    for option in offered(name):
        if option.dest in SHARED_OPTIONS and name not in ONE_FOR_ALL:
            continue
        value = values.get(option.dest, "") if option.nargs == 0 else values[option.dest]
        call = f"{name} {options(name, key='')} {option.option_strings[0]} {value}"
        if "--watch" in call:
            watched = "--queries" if name == "queries" else "--input"
            call += f" {watched} in --output out --input_format jsonl --run_id watched"
        assert cli.main(shlex.split(call)) == 0, (call, capsys.readouterr().err)
        for made in Path().glob("rows.jsonl*"):
            made.unlink()


@pytest.mark.parametrize("name", WORDS)
def test_shared_options_are_offered_by_all(name: str) -> None:
    assert {*SHARED_OPTIONS} <= {each.dest for each in offered(name)} | {"item_field"}
