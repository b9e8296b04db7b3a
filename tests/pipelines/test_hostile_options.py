"""Whatever stands behind an option, of any command: it is taken, or refused in one line that steers no terminal."""

import argparse
import re
import shlex
from pathlib import Path

import pytest
from grids import some_quick
from privstream.pipelines import cli
from privstream.pipelines.command import Parser
from privstream.pipelines.option_checks import check_texts
from privstream.pipelines.questions import run_command
from privstream.pipelines.runners import launch
from questions import EXAMPLES, KEY, ONE_FOR_ALL, SHARED_OPTIONS, in_windows, options, run_line, write_folder

COMMANDS = {
    **{word: options(word) for word in EXAMPLES},
    "budget": "--ledger none",
    **{f"plan {word}": example.plan for word, example in EXAMPLES.items()},
    "report": "none.jsonl --output page.html",
    "serve": "none",
    "suggest": f"--input events.jsonl {KEY} --window 1h --start 2024-01-01 --windows 2 --dry_run",
    **{f"plot {name}": "--input none.jsonl --output picture.png" for name in cli.PLOTS},
    **{
        f"simulate {name}": "--users 5 --seed 1 --output new.jsonl" + " --windows 2" * in_windows(name)
        for name in cli.SIMULATIONS
    },
}
OF_TWO_WORDS = ("plan", "plot", "simulate")
STEERS = "\x1b]0;x\x07\x9b31m\u202e"
NOT_TEXT = ["\udcff", "a\0b"]
TEXTS = ["", STEERS, "folder", "a" * 5000, *NOT_TEXT]
NUMBERS = {float: ["nan", "-1", "1e400"], int: ["-1", "9" * 30, STEERS]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with one file of everything; no pipeline runs."""
    write_folder(tmp_path)
    (tmp_path / "binary").write_bytes(bytes(range(255, 0, -1)))
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "run", lambda *_: {})
    monkeypatch.setattr(run_command, "fingerprint", lambda path: "of what is not there")


def offered(words: list[str]) -> list[argparse.Action]:
    """Return the options of a command that take a value."""
    found: object = cli.COMMANDS
    for word in words:
        found = found[word][0]
    parser = Parser(prog="privstream")
    cli.load(found).add_arguments(parser)
    return [each for each in parser._actions if each.nargs != 0 and each.option_strings]


def call(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    try:
        status = cli.main(arguments)
    except SystemExit as error:
        status = int(str(error.code))
    shown = capsys.readouterr()
    assert all(one.isprintable() or one == "\n" for one in shown.out + shown.err), ascii(arguments)
    return status, shown.err


def test_no_command_is_forgotten() -> None:
    words = {word for word in cli.COMMANDS if word not in OF_TWO_WORDS}
    words |= {f"{word} {about}" for word in OF_TWO_WORDS for about in cli.COMMANDS[word][0]}
    assert set(COMMANDS) == words - {"demo", "audit"}, "the demo runs the others, and an audit takes numbers alone"


@some_quick("command", COMMANDS, "cardinality", "plan alerts", "plot histogram", "simulate cardinality")
def test_options_are_taken_or_refused_in_one_line(
    command: str, folder: None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command.split()
    for option in offered(words):
        if command in EXAMPLES and option.dest in SHARED_OPTIONS and command not in ONE_FOR_ALL:
            continue
        for value in NUMBERS.get(float if option.metavar == "DURATION" else option.type, TEXTS):
            given = [*words, *shlex.split(COMMANDS[command]), f"{option.option_strings[0]}={value}"]
            status, told = call(given, capsys)
            assert status in (0, 2), (ascii(given), told)
            assert status == 2 or value not in NOT_TEXT, ascii(given)
            if status == 2:
                assert re.fullmatch(rf"(noise key: .*\n)?privstream {command}: error: .*\n", told), (ascii(given), told)


@pytest.mark.parametrize("option", ["--runner", "--job_name", "--prism_location", STEERS, "--\udcff"])
@pytest.mark.parametrize("value", [STEERS, "\udcff"])
def test_options_of_beam(option: str, value: str, folder: None, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = call([*shlex.split(run_line("ranges")), f"{option}={value}"], capsys)
    assert status == 2 or (option in ("--job_name", "--runner", "--prism_location") and value == STEERS), told


def test_a_secret_that_is_no_text_is_not_quoted(folder: None, capsys: pytest.CaptureFixture[str]) -> None:
    given = [*shlex.split(run_line("heavy-hitters")), "--kafka_setting", "sasl.password=secret\udcff"]
    _, told = call(given, capsys)
    assert told == "privstream heavy-hitters: error: --kafka_setting must be valid UTF-8 text without a NUL character\n"


@pytest.mark.parametrize("option", ["output", "input", "copy", "dead_letter", "ledger"])
@pytest.mark.parametrize(
    "url",
    [
        "postgres://me:secret@h/d/t",
        "POSTGRESQL://me:sec/ret@h/d/t",
        "postgresql:/me:secret@h/d/t",
        " postgresql://me:secret@h/d/t",
        "postgres://me@h/d/t?sslmode=require&password=secret",
        "kafka://me:secret@h:9092/t",
        "s3://me:secret@bucket/rows.csv",
    ],
)
def test_a_password_in_an_address_is_not_quoted(
    option: str, url: str, folder: None, capsys: pytest.CaptureFixture[str]
) -> None:
    status, told = call([*shlex.split(run_line("counts")), f"--{option}={url}"], capsys)
    assert status == 2
    assert f"--{option} must be without a password" in told
    assert "ret" not in told  # of the password


@pytest.mark.parametrize("path", ["a:b@c.jsonl", "s3://bucket/a:b@c.jsonl", "gs://b/d?x=1", "kafka://me@h:9092/t"])
def test_an_address_without_a_password_is_one(path: str) -> None:
    check_texts(argparse.Namespace(output=path, kafka_setting=["sasl.password=secret"]), [])


def test_what_cannot_be_written_after_a_run_is_one_line(
    folder: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill_the_disk(*_: object) -> dict[str, int]:
        Path("rows.jsonl.guarantee.json").mkdir()
        return {}

    monkeypatch.setattr(launch, "run", fill_the_disk)
    status, told = call(shlex.split(run_line("cardinality")), capsys)
    assert status == 1
    assert told.startswith("privstream cardinality: error: ") and told.count("\n") == 1
