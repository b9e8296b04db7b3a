"""Options of every command: help pages, what is taken, and that what is refused is refused in one clear line."""

import argparse
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from grids import some_quick
from privstream.pipelines import cli
from privstream.pipelines.command import HelpPage, Parser
from privstream.pipelines.option_checks import check_texts
from privstream.pipelines.questions import run_command
from privstream.pipelines.questions.asked import Asked
from privstream.pipelines.questions.catalogue import WORDS, question
from privstream.pipelines.questions.option_types import OPTION_TYPES, RULE, comma_separated, seconds
from privstream.pipelines.runners import launch
from questions import (
    EVENT,
    EXAMPLES,
    KEY,
    ONE_FOR_ALL,
    SHARED_OPTIONS,
    in_windows,
    options,
    plan_line,
    run_line,
    write_folder,
)

SECRET = "person-4711"
OF_NUMBERS = {
    "--epsilon 0": "epsilon must be finite and > 0, got 0.0",
    "--epsilon nan": "epsilon must be finite and > 0, got nan",
    "--epsilon inf": "epsilon must be finite and > 0, got inf",
    "--epsilon 1e300": "epsilon must be in [1e-09, 500], got 1e+300",
    "--epsilon 1e-300": "epsilon must be in [1e-09, 500], got 1e-300",
}
"""Each question has mechanisms of its own, which check these."""
OF_FILES = {
    "--noise_key_file none": "noise_key_file must be a readable file, got none",
    "--noise_key_file short": "noise_key_file must have at least 16 bytes, got 3",
    "--noise_key_file same": "noise_key_file must be random, with at least 8 different bytes, got 1",
    "--noise_key_file open": "noise_key_file must be readable by its owner alone, got open with mode 0644: chmod 600",
    "--noise_key_variable NO_SUCH_VARIABLE": "must not both be given",
    "--input none.jsonl": "--input must match at least one file: nothing matches none.jsonl",
    "--input 'none-*.parquet'": "none-*.parquet",
    "--input empty.avro": "empty.avro is empty",
    "--input noise.parquet": "noise.parquet is not a Parquet file",
    "--input noise.avro": "noise.avro is not an Avro file",
    "--output none/rows.jsonl": "--output must be in a folder that exists: there is no folder none",
    "--output rows.txt": "--output must end in .avro, .parquet, .jsonl, .csv, got rows.txt",
    "--output events.jsonl": "--output must not be written over --input",
    "--output key": "--output must",
    "--dead_letter events.jsonl": "--dead_letter must not be written over --input",
    "--dead_letter rows.jsonl": "--dead_letter must not be written over --output, got rows.jsonl",
    "--dead_letter rows.jsonl.guarantee.json": "--dead_letter must not be written over the guarantee",
    "--dead_letter none/d.jsonl": "--dead_letter must be in a folder that exists",
    "--watermark marks": "watermark must be given with --watch only",
    "--output_format avro": "output_format must be given with --watch only",
    "--kafka_setting a=b": "kafka_setting must be given with an --input or --output of kafka:// only",
    "--max-hits 3": "unknown option --max-hits",
    "--runner Foo": "--runner must be a runner that Beam knows",
}
"""What a run checks before it asks of which question it is."""
OF_PEOPLE = {
    "--input other.csv": "--user_field must name a field of other.csv: no `user` there, only: item, time",
    "--input '*.csv' --user_field nobody": "--user_field must name a field of",
}
IN_TIME = {
    "--window 0": "window must be > 0 and a whole number of milliseconds, got 0.0 seconds",
    "--window nan": "window must be finite, got nan",
    "--end 2023-01-01 --start 2024-01-01": "end must",
    "--start 1704067200.0001": "--start must be >= 0 and a whole number of milliseconds",
    "--allowed_lateness -1": "allowed_lateness must be >= 0",
    "--renew_every 90m": "--renew_every",
}
"""Each transform has windows of its own."""
TEXTS_OF_TIME = {
    "--window 1y": "--window: must be a number of seconds, or a number with its unit, such as",
    "--start yesterday": "such as 2030-01-31T12:00:00Z, or a number, got 'yesterday'",
    "--start 20240306T204748": "must be ISO 8601 text with dashes and colons, such as",
    "--watch 0": "watch must be",
}


def refused_by(word: str) -> Iterator[tuple[str, str]]:
    """Return command lines of a question, and what they must be answered."""
    run, plan, example = run_line(word), plan_line(word), EXAMPLES[word]
    known = question(word).signature.arguments
    of_numbers = {line: rule for line, rule in OF_NUMBERS.items() if line.split()[0].removeprefix("--") in known}
    mistakes: dict[str, str] = {**of_numbers, **example.refused}
    if in_windows(word):
        mistakes |= IN_TIME
    if not example.of_events:
        mistakes |= OF_PEOPLE
    if word in ONE_FOR_ALL:
        mistakes |= OF_FILES | (TEXTS_OF_TIME if in_windows(word) else {})
    yield from ((f"{run} {mistake}", rule) for mistake, rule in mistakes.items())
    yield from ((f"{plan} {mistake}", rule) for mistake, rule in {**of_numbers, **example.refused_plans}.items())
    if "--end" in run:
        yield re.sub(r"--end \S+ ", "", run), example.without_end
    if word in cli.SIMULATIONS:
        windows = "--windows 2" if in_windows(word) else ""
        same = f"simulate {word} --users 5 --seed 1 --output new.jsonl {windows} --truth ./new.jsonl"
        yield same, "--truth must not be written over --output, got ./new.jsonl"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, with one file of everything, also of what no command takes."""
    write_folder(tmp_path, EVENT | {"user": SECRET, "item": SECRET})
    files = {
        "other.csv": "item,time",
        "twice": "a\na",
        "empty": "",
        "empty.avro": "",
        "noise.avro": "no Avro",
        "noise.parquet": "no Parquet",
        "short": "abc",
        "same": "k" * 16,
        "open": "0123456789abcdef",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    for name in ("short", "same"):
        (tmp_path / name).chmod(0o600)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> Mapping[str, bytes]:
    return {name: (folder / name).read_bytes() for name in os.listdir(folder)}


@some_quick("word", WORDS, "heavy-hitters", "cardinality", "queries")
def test_mistakes_are_refused(word: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)
    for line, rule in refused_by(word):
        try:
            status = cli.main(shlex.split(line))
        except SystemExit as error:
            status = int(str(error.code))
        shown = capfd.readouterr()
        assert status == 2, (line, shown)
        assert rule in shown.err, line
        assert re.fullmatch(r"(noise key: .*\n)?privstream [\w -]+: error: .*\n", shown.err), line
        assert SECRET not in shown.err + shown.out, line
        assert contents(folder) == before, line


def test_every_question_has_an_example() -> None:
    assert tuple(EXAMPLES) == WORDS


EDGES = [
    *[(word, f"--{name} {value}") for word in WORDS for name, value in (("epsilon", "1e-9"), ("epsilon", "500"))],
    *[(word, "--delta 1e-30") for word in WORDS if word != "alerts"],
    pytest.param("heavy-hitters", "--epsilon 500 --max_hits 64 --delta 1e-12", marks=pytest.mark.slow),
    pytest.param("histogram", f"--windows {2**40}", marks=pytest.mark.slow),
    ("cardinality", f"--windows {2**40} --max_updates {2**40}"),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("word", "options"), EDGES, ids=" ".join)
def test_a_plan_at_the_edge_of_what_is_allowed_answers_or_says_why(word, options, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(write_folder(tmp_path))
    status = cli.main(shlex.split(f"{plan_line(word)} {options} --json"))
    shown = capsys.readouterr()
    if status:
        assert re.fullmatch(rf"privstream plan {word}: error: [a-z_ -]+ must .*\n", shown.err)
    else:
        assert shown.err == ""
        assert json.loads(shown.out)


COMMANDS = {
    **{word: options(word) for word in EXAMPLES},
    "budget": "--ledger none",
    **{f"plan {word}": example.plan for word, example in EXAMPLES.items()},
    "run": "monitor.yaml --dry_run",
    "init": "events.jsonl",
    "schema": "",
    "views": "monitor.yaml",
    "report": "none.jsonl --output page.html",
    "serve": "none",
    "suggest": f"--input events.jsonl {KEY} --window 1h --start 2024-01-01 --windows 2 --dry_run",
    "plot": "none.jsonl --output picture.png",
    **{
        f"simulate {name}": "--users 5 --seed 1 --output new.jsonl" + " --windows 2" * in_windows(name)
        for name in cli.SIMULATIONS
    },
}
MONITOR = """\
data: {input: events.jsonl}
window: 1h
start: 2024-01-01
windows: 2
privacy: {epsilon: 1, delta: 0}
questions:
  present: {question: cardinality, timeout: 30m}
noise_key_file: key
output: {folder: out}
"""
ALONE = {"budget": "show"}
"""What a command does where no other word follows."""

OF_TWO_WORDS = ("plan", "simulate")
STEERS = "\x1b]0;x\x07\x9b31m\u202e"
NOT_TEXT = ["\udcff", "a\0b"]
TEXTS = ["", STEERS, "folder", "a" * 5000, *NOT_TEXT]
NUMBERS = {float: ["nan", "-1", "1e400"], int: ["-1", "9" * 30, STEERS]}


@pytest.fixture
def folder_hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with one file of everything; no pipeline runs, but `suggest`, which has none, reads it."""
    write_folder(tmp_path)
    (tmp_path / "binary").write_bytes(bytes(range(255, 0, -1)))
    (tmp_path / "folder").mkdir()
    (tmp_path / "monitor.yaml").write_text(MONITOR)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "run", lambda *_: {})
    monkeypatch.setattr(run_command, "fingerprint", lambda path: "of what is not there")
    monkeypatch.setattr(Asked, "explain", lambda asked, path, counted: counted)


def named(words: list[str]) -> list[str]:
    """Return the words of the command that these stand for."""
    return [*words, ALONE[words[-1]]] if words[-1] in ALONE else words


def offered(words: list[str]) -> list[argparse.Action]:
    """Return the options of a command that take a value."""
    found: object = cli.COMMANDS
    for word in named(words):
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


@some_quick("command", COMMANDS, "plan alerts", "plot", "simulate cardinality")
def test_options_are_taken_or_refused_in_one_line(command, folder_hostile, capsys):
    words = command.split()
    for option in offered(words):
        if command in EXAMPLES and option.dest in SHARED_OPTIONS and command not in ONE_FOR_ALL:
            continue
        for value in NUMBERS.get(float if option.metavar == "DURATION" else option.type, TEXTS):
            given = [*words, *shlex.split(COMMANDS[command]), f"{option.option_strings[0]}={value}"]
            status, told = call(given, capsys)
            assert status in ((0, 2, 3) if command == "suggest" else (0, 2)), (ascii(given), told)
            assert status == 2 or value not in NOT_TEXT, ascii(given)
            if status == 2:
                meant = " ".join(named(words))
                assert re.fullmatch(rf"(noise key: .*\n)?privstream {meant}: error: .*\n", told), (ascii(given), told)


@pytest.mark.parametrize("option", ["--runner", "--job_name", "--prism_location", STEERS, "--\udcff"])
@pytest.mark.parametrize("value", [STEERS, "\udcff"])
def test_options_of_beam(option: str, value: str, folder_hostile: None, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = call([*shlex.split(run_line("ranges")), f"{option}={value}"], capsys)
    assert status == 2 or (option in ("--job_name", "--runner", "--prism_location") and value == STEERS), told


def test_a_secret_that_is_no_text_is_not_quoted(folder_hostile: None, capsys: pytest.CaptureFixture[str]) -> None:
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
def test_a_password_in_an_address_is_not_quoted(option, url, folder_hostile, capsys):
    status, told = call([*shlex.split(run_line("counts")), f"--{option}={url}"], capsys)
    assert status == 2
    assert f"--{option} must be without a password" in told
    assert "ret" not in told  # of the password


@pytest.mark.parametrize("path", ["a:b@c.jsonl", "s3://bucket/a:b@c.jsonl", "gs://b/d?x=1", "kafka://me@h:9092/t"])
def test_an_address_without_a_password_is_one(path: str) -> None:
    check_texts(argparse.Namespace(output=path, kafka_setting=["sasl.password=secret"]), [])


def test_what_cannot_be_written_after_a_run_is_one_line(folder_hostile, monkeypatch, capsys):
    def fill_the_disk(*_: object) -> dict[str, int]:
        Path("rows.jsonl.guarantee.json").mkdir()
        return {}

    monkeypatch.setattr(launch, "run", fill_the_disk)
    status, told = call(shlex.split(run_line("cardinality")), capsys)
    assert status == 1
    assert told.startswith("privstream cardinality: error: ") and told.count("\n") == 1


VALUES = {
    "allowed_lateness": "60",
    "alpha": "0.3",
    "answers": "5",
    "beta": "0.1",
    "branches": "3",
    "budget": "per_rule",
    "categories_per_row": "2 --separator ,",
    "count_share": "0.5",
    "dataset": "people",
    "dead_letter": "dead.jsonl",
    "delete_values": "out",
    "delta": "1e-6",
    "decimal": ",",
    "delimiter": ", --input events.csv",
    "encoding": "windows-1252",
    "quote": "double",
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
    "noise_key_file": "key",
    "noise_key_variable": "KEY",
    "null": "NA",
    "output": "taken.jsonl",
    "output_format": "avro --watch 1",
    "participation_cap": "2",
    "period": "1800",
    "planned": "10",
    "query": "'FROM events' --input events.duckdb",
    "quantiles": "0.5",
    "queries": "max",
    "quiet": "2",
    "records": "200",
    "renew_every": "1h",
    "resolution": "20",
    "run_id": "another",
    "separator": ",",
    "shards": "2",
    "start": "2024-01-01",
    "time_field": "when",
    "time_format": "%Y-%m-%dT%H:%M:%SZ --time_zone UTC",
    "time_unit": "s",
    "time_zone": "Europe/Berlin",
    "timeout": "30",
    "unit": "person --max_contributions 2",
    "user_field": "who",
    "value_field": "cents",
    "value_unit": "0.01 --max_value 500",
    "value_share": "0.4",
    "watch": "1",
    "watermark": "marks --watch 1",
    "where": "'time is not null'",
    "workers": "1",
}
NEED_A_SERVER = ("kafka_setting", "copy")


def offered_taken(name: str) -> list[argparse.Action]:
    """Return the options of a command that need not be given."""
    parser = Parser(prog=name)
    cli.load(cli.COMMANDS[name][0]).add_arguments(parser)
    apart = ("help", *NEED_A_SERVER)
    return [
        each
        for each in parser._actions
        if not each.required and each.dest not in apart and each.option_strings != ["--people"]  # in place of --delta
    ]


@pytest.fixture
def folder_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with one file of everything; no pipeline runs."""
    more = {"who": "6", "thing": "b", "land": "a", "value": 3, "number": 4, "when": "2024-01-01T00:00:02Z"}
    write_folder(tmp_path, EVENT | more)
    (tmp_path / "events.csv").write_text("user,item,time,value\n1,a,2024-01-01T00:00:00Z,2\n")
    rows = pa.Table.from_pylist([EVENT | more])
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(tmp_path / "events.duckdb") as connection:
        connection.register("rows", rows)
        connection.execute("CREATE TABLE events AS FROM rows")
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("KEY", "0123456789abcdef")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "run", lambda *_: {})
    monkeypatch.setattr(run_command, "fingerprint", lambda path: "of what is not there")
    monkeypatch.setattr(Asked, "explain", lambda asked, path, counted: counted)


@some_quick("name", WORDS, "top-k", "ranges")
def test_options_are_taken(name: str, folder_taken: None, capsys: pytest.CaptureFixture[str]) -> None:
    values = VALUES | EXAMPLES[name].values
    for option in offered_taken(name):
        if option.dest in SHARED_OPTIONS and name not in ONE_FOR_ALL:
            continue
        value = values.get(option.dest, "") if option.nargs == 0 else values[option.dest]
        call = f"{name} {options(name, key='')} {option.option_strings[0]} {value}"
        if option.dest == "public_items":  # they stand beside items that are found
            call = call.replace("--domain domain", "")
        if "--watch" in call:
            watched = "--queries" if name == "queries" else "--input"
            call += f" {watched} in --output out --input_format jsonl --run_id watched"
        assert cli.main(shlex.split(call)) == 0, (call, capsys.readouterr().err)
        for made in Path().glob("rows.jsonl*"):
            made.unlink()


@pytest.mark.parametrize("name", WORDS)
def test_shared_options_are_offered_by_all(name: str) -> None:
    assert {*SHARED_OPTIONS} <= {each.dest for each in offered_taken(name)} | {"item_field"}


def pages(commands: cli.Commands = cli.COMMANDS) -> Iterator[list[str]]:
    """Return the words of everything that has a help page."""
    for word, (what, _) in commands.items():
        yield [word]
        if isinstance(what, Mapping):
            yield from ([word, *words] for words in pages(what))


PAGES = [[], *pages()]


def commands_of(commands: cli.Commands = cli.COMMANDS) -> Iterator[tuple[str, object]]:
    """Return the words of every command, and what makes it."""
    for word, (what, _) in commands.items():
        if isinstance(what, Mapping):
            yield from ((f"{word} {words}", one) for words, one in commands_of(what))
        else:
            yield word, what


def page(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit, match="0"):
        cli.main([*words, "--help"])
    return capsys.readouterr().out


WIDE = ([], ["heavy-hitters"])
"""Pages that are also shown on a wide terminal."""
SIZES = [(words, columns) for words in PAGES for columns in (80, 300) if columns == 80 or words in WIDE]


@pytest.mark.parametrize(
    ("words", "columns"), SIZES, ids=lambda value: " ".join(value) if value in PAGES else str(value)
)
def test_help_fits(words, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = page(words, capsys)
    examples = [line for line in shown.splitlines() if line.startswith("  {")]
    assert max(len(line) for line in shown.splitlines() if line not in examples) <= min(columns, 100)
    what = dict(commands_of()).get(" ".join(words))
    assert what is None or cli.load(what).description.split()[0] in shown


def test_every_option_is_explained() -> None:
    for words, what in commands_of():
        parser = Parser(prog=words)
        cli.load(what).add_arguments(parser)
        assert [action.dest for action in parser._actions if not action.help] == [], words


def test_queries_speak_of_their_number_by_its_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    """`--queries` is their file."""
    shown = " ".join(page(["queries"], capsys).split())
    assert "number of queries for which errors are bounded" in shown
    assert "of --queries" not in shown
    assert "if --queries is given" not in shown


FREE = (
    ["schema"],
    *(["demo"], ["budget"], ["plan", "cardinality"], ["plan", "counts"], ["plan", "quantiles"]),
    *(["audit", word] for word in cli.AUDITS),
)
"""Commands of which no one option must be given; budget and plan need one of two."""


@pytest.mark.parametrize("words", [words for words in PAGES if len(words) == 1 and words not in FREE], ids=" ".join)
def test_usage_names_what_must_be_given(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    usage = page(words, capsys).split("\n\n")[0]
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    needed = re.findall(r"--\w+", capsys.readouterr().err.split(";")[0])
    assert [option for option in re.findall(r"--\w+", usage) if option != "--help"] == needed


def test_delta_follows_from_the_people_that_there_can_be(tmp_path, monkeypatch, capsys):
    """It is the same run as with that delta; one of both is asked for, and both together are refused."""
    monkeypatch.chdir(tmp_path)
    line = "plan counts --epsilon 1 --max_contributions 4 --windows 4 --json"
    assert cli.main([*line.split(), "--people", "10000"]) == 0
    by_people = capsys.readouterr()
    assert "delta is 1e-06, 1 / (100 x 10,000), from the number of people" in by_people.err
    assert cli.main([*line.split(), "--delta", "1e-6"]) == 0
    assert capsys.readouterr().out == by_people.out
    assert cli.main(line.split()) == 2
    assert "--delta must be > 0" in (shown := capsys.readouterr().err) and "--people N" in shown
    for more, message in (
        ("--people 5 --delta 1e-6", "argument --delta: not allowed with argument --people"),
        ("--people 0", "argument --people: must be a whole number from 1 to 100,000,000,000, got '0'"),
    ):
        with pytest.raises(SystemExit, match="2"):
            cli.main([*line.split(), *more.split()])
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["plan", "heavy-hitters", "--epsilon", "1"])
    assert "--delta or --people must be given; people is an upper bound" in capsys.readouterr().err


ONE_OF_EACH = (["heavy-hitters"], ["plan"], ["plan", "counts"], ["report"], ["budget"])
"""Commands on which all kinds of mistakes are tried; those of the others are read in the same way."""
MISTAKES = [
    (words, mistake)
    for words in PAGES[1:]
    for mistake in ([], ["--no-such"], ["no\nsuch"], ["--epsilon", "\n\n"], ["--input"])
    if mistake == ["--no-such"] or (words in ONE_OF_EACH and (mistake or words not in FREE))
]


@pytest.mark.parametrize(("words", "mistake"), MISTAKES, ids=lambda words: ascii(" ".join(words)))
def test_a_mistake_is_told_in_one_line(words, mistake, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main([*words, *mistake])
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.fullmatch(r"privstream( [\w-]+)*: error: .*\n", shown.err)
    assert shown.err.endswith(f"; see privstream {' '.join(named(words))} --help\n")


def test_paragraphs_are_wrapped_and_lists_keep_their_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = (
        "numbers:\n"
        f"  margin    {'people ' * 12}\n"
        "            and more\n"
        f'  {{"name": "{"x" * 90}"}}\n'
        f"{'Words ' * 10}\n"
        f"{'go on ' * 10}\n"
    )
    lines = HelpPage("privstream")._fill_text(text, 70, "").splitlines()
    assert lines[0] == "numbers:"
    assert lines[1].startswith("  margin    people") and lines[2].startswith(" " * 12 + "people")
    example = lines.index(f'  {{"name": "{"x" * 90}"}}')
    assert lines[example - 1].endswith("and more")
    assert max(map(len, lines[:example] + lines[example + 1 :])) <= 70
    assert " ".join(lines[example + 1 :]).split() == ["Words"] * 10 + ["go", "on"] * 10


def test_options_have_full_names_only(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="tool")
    parser.add_argument("--epsilon", type=float)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["--eps", "1"])
    assert capsys.readouterr().err == "tool: error: unrecognized arguments: --eps 1; see tool --help\n"


DURATION = OPTION_TYPES["Seconds"]
LENGTHS = {
    "90": 90,
    "1e2": 100,
    "500ms": 0.5,
    "90s": 90,
    "30m": 1800,
    "1h": 3600,
    "1.5h": 5400,
    "1d": 86_400,
    "1w": 604_800,
    "90seconds": 90,
    "1.5hours": 5400,
    "1day": 86_400,
    "2weeks": 1_209_600,
}


@pytest.mark.parametrize(("text", "length"), LENGTHS.items())
def test_a_duration_is_a_number_with_or_without_a_unit(text: str, length: float) -> None:
    assert seconds(text) == DURATION.read("window", text) == DURATION.read("window", length) == length


@pytest.mark.parametrize("text", ["", "s", "1y", "1h30m", "1dd", "1 day", "1month", "week", "1weekss", "h1", "0x1d"])
def test_what_is_no_duration_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="window must be a number of seconds, or a number with its unit, such as"):
        DURATION.read("window", text)
    options = ["--users", "5", "--windows", "1", "--seed", "1", "--output", "e.csv"]
    with pytest.raises(SystemExit, match="2"):
        cli.main(["simulate", "heavy-hitters", *options, "--window", text])
    assert f"argument --window: {RULE}, got {text!r}" in capsys.readouterr().err


def test_a_list_is_texts_with_commas_or_the_lines_of_a_file(tmp_path: Path) -> None:
    names = tmp_path / "names"
    names.write_bytes("\ufeffMünchen\r\na,b\n@x\n".encode())
    assert comma_separated("a,b") == ["a", "b"]
    assert comma_separated(f"@{names}") == ["München", "a,b", "@x"]


def test_a_file_that_is_named_like_a_text_is_refused_before_anything_is_spent(tmp_path, monkeypatch):
    """Of a run with such a name as its only stream no event is usable, and its budget is spent."""
    monkeypatch.chdir(tmp_path)
    assert comma_separated("shops.txt") == ["shops.txt"], "a stream may have any name"
    Path("shops.txt").write_text("north\nsouth\n")
    Path("north").write_text("")
    with pytest.raises(ValueError, match=r"or @shops\.txt for the lines of this file"):
        comma_separated("shops.txt")
    assert comma_separated("north") == ["north"]
    assert comma_separated("@shops.txt") == ["north", "south"]


def test_nothing_but_the_end_of_a_line_parts_names(tmp_path: Path) -> None:
    names = tmp_path / "names"
    kept = ["a\u2028b", "\x0cc", "d\x85", "e\rf", "\0"]
    names.write_bytes("\n".join(kept).encode())
    assert comma_separated(f"@{names}") == kept


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no line empty"),
        (b"a\n\nb\n", "no line empty"),
        (b"\xff\n", "must be a file in UTF-8"),
        (None, "must be a file that can be read"),
    ],
)
def test_files_that_are_no_lists_are_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    names = tmp_path / "names"
    if content is not None:
        names.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        comma_separated(f"@{names}")
