"""Wrong options and files, on every command: one line that names the field and the rule, and nothing is written."""

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from grids import some_quick
from privstream.pipelines import cli
from privstream.pipelines.questions.catalogue import WORDS
from questions import EVENT, EXAMPLES, ONE_FOR_ALL, in_windows, plan_line, run_line, write_folder

SECRET = "person-4711"
OF_NUMBERS = {
    "--epsilon 0": "epsilon must be finite and > 0, got 0.0",
    "--epsilon nan": "epsilon must be finite and > 0, got nan",
    "--epsilon inf": "epsilon must be finite and > 0, got inf",
    "--epsilon 1e300": "epsilon must be in [1e-09, 500], got 1e+300",
    "--epsilon 1e-300": "epsilon must be in [1e-09, 500], got 1e-300",
    "--beta 1": r"beta must be in (0, 1), got 1.0",
    "--beta 1e-300": "beta must be >= 1e-15, got 1e-300",
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
    "--budget_limit 0": "must be EPSILON or EPSILON,DELTA with a finite epsilon > 0 and a delta in [0, 1), got '0'",
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
    "--streams a --stream_field ''": "streams must not be given when no stream is read",
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
    mistakes: dict[str, str] = {**OF_NUMBERS, **example.refused}
    if in_windows(word):
        mistakes |= IN_TIME
    if not example.of_events:
        mistakes |= OF_PEOPLE
    if word in ONE_FOR_ALL:
        mistakes |= OF_FILES | (TEXTS_OF_TIME if in_windows(word) else {})
    yield from ((f"{run} {mistake}", rule) for mistake, rule in mistakes.items())
    yield from ((f"{plan} {mistake}", rule) for mistake, rule in {**OF_NUMBERS, **example.refused_plans}.items())
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
    """Return all files of a folder."""
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


def test_a_plan_that_no_method_can_meet_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    line = "plan heavy-hitters --epsilon 1e-9 --delta 1e-6 --max_hits 2 --count_share 0"
    assert cli.main(shlex.split(line)) == 2
    assert "epsilon must be large enough for thresholds of at most 1,048,576 people" in capsys.readouterr().err


EDGES = [
    *[(word, f"--{name} {value}") for word in WORDS for name, value in (("epsilon", "1e-9"), ("epsilon", "500"))],
    *[(word, "--delta 1e-30") for word in WORDS if word != "alerts"],
    *[(word, "--beta 1e-15") for word in WORDS],
    pytest.param("heavy-hitters", "--epsilon 500 --max_hits 64 --delta 1e-12", marks=pytest.mark.slow),
    pytest.param("histogram", f"--windows {2**40}", marks=pytest.mark.slow),
    ("cardinality", f"--windows {2**40} --max_updates {2**40}"),
    ("ranges", f"--windows {2**40} --ranges {2**40} --universe {2**60}"),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("word", "options"), EDGES, ids=" ".join)
def test_a_plan_at_the_edge_of_what_is_allowed_answers_or_says_why(
    word: str, options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = cli.main(shlex.split(f"{plan_line(word)} {options} --json"))
    shown = capsys.readouterr()
    if status:
        assert re.fullmatch(rf"privstream plan {word}: error: [a-z_ -]+ must .*\n", shown.err)
    else:
        assert shown.err == ""
        assert json.loads(shown.out)
