"""Queries that come into a folder: each is asked once, in order, and answered while others are still to come."""

import gzip
import json
import subprocess
import time
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path

import apache_beam as beam
import pytest
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.pipelines import cli
from privstream.pipelines.run.queries_file import WatchQueries, parse_query
from privstream.pipelines.sinks.window_files import WriteWindowFiles, moment
from privstream.pipelines.sources import watch_events
from privstream.pipelines.sources.polled_source import MICROS
from privstream.transforms import Domain, PrivateQueries, QueryAnswer
from runner_harness import run
from test_watch_command import MARKS, PRIVSTREAM, SECONDS, mark, options, put, same_noise, wait_for  # noqa: F401

USERS, FILES, LINES = 3000, 4, 3
CASES = [("prism", "marks"), ("flink", "arrival")]
EPOCH = 1_704_067_200
COARSE_SECONDS = 0.05  # files that come further apart have different times
OUTAGE_SECONDS = 12


def line(name: str, **more) -> str:
    return json.dumps({"name": name, "items": ["a"], **more}) + "\n"


def read(folder: Path, *more: str, **given):
    """Run to the end that `_END` says; return names with their microseconds, dead letters and counters."""
    (folder / "_END").touch()

    def build(pipeline):
        found = pipeline | WatchQueries(str(folder), 0.05, **given)
        return {"queries": found.events | beam.Map(name_and_time), "letters": found.dead_letters | beam.Map(tuple)}

    results = run("fn_api", build, "--streaming", *more)
    return dict(results.elements("queries")), results.elements("letters"), results.counters


def at(second: int) -> str:
    """Return a time in seconds since the new year 2024."""
    return datetime.fromtimestamp(EPOCH + second, UTC).isoformat()


def name_and_time(query) -> tuple[str, int]:
    return query.name, query.time.micros


def came(path: Path) -> int:
    return path.stat().st_ctime_ns // 1000


@contextmanager
def broken(folder: Path):
    """Let nothing be written into a folder for so long that a job goes back to a checkpoint, again and again."""
    folder.rename(folder.with_name("kept"))
    folder.touch()
    yield
    time.sleep(OUTAGE_SECONDS)
    folder.unlink()
    folder.with_name("kept").rename(folder)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(watch_events, "PAUSE_SECONDS", 0)


def test_queries_are_asked_in_the_order_in_which_they_came_and_bad_lines_are_dead_letters(tmp_path):
    (tmp_path / "b").write_text(line("first") + "no query\n\n" + line("second"))
    (tmp_path / "a.gz").write_bytes(gzip.compress(line("third", time=at(0)).encode() + b'{"name": "x", "who": 1}'))
    (tmp_path / "empty").touch()
    (tmp_path / "broken.gz").write_bytes(gzip.compress(line("never").encode())[:-8] + b"checksum")
    for name in (".hidden", "_other"):
        (tmp_path / name).write_text(line("hidden"))
    queries, letters, counters = read(tmp_path)
    start = came(tmp_path / "b")
    assert queries == {"first": start + 1, "second": start + 4, "third": EPOCH * MICROS}
    where = {(Path(source).name, position): reason for reason, source, position, _ in letters}
    assert set(where) == {("b", "line 2"), ("a.gz", "line 2"), ("broken.gz", "")}
    assert where["b", "line 2"] == "line must be one JSON object"
    assert where["a.gz", "line 2"] == "fields must be name, items, time, got 'who'"
    assert where["broken.gz", ""].endswith("it ends early, or it is damaged")
    assert counters["privstream:files_taken"] == 4
    assert counters["privstream:files_unreadable"] == 1


@pytest.mark.parametrize(
    ("runner", "watermark"), [pytest.param(*case, marks=MARKS[case[0]], id="-".join(case)) for case in CASES]
)
def test_answers_come_out_one_by_one_and_equal_a_bounded_run(tmp_path, runner, watermark):
    on_runner = options(runner)
    given = [f"--users={USERS}", f"--number={FILES * LINES}", "--seed=3", f"--output={tmp_path}/people.parquet"]
    public = [f"--queries={tmp_path}/queries", f"--domain={tmp_path}/domain"]
    assert cli.main(["simulate", "queries", *given, *public]) == 0
    asked = [json.loads(text) for text in (tmp_path / "queries").read_text().splitlines()]
    assert len(asked) == FILES * LINES
    if watermark == "marks":
        asked = [query | {"time": at(number)} for number, query in enumerate(asked)]
    (tmp_path / "queries").write_text("".join(json.dumps(query) + "\n" for query in asked))
    (tmp_path / "noise.key").write_bytes(bytes(range(32)))
    (tmp_path / "noise.key").chmod(0o600)
    incoming, answers, letters = tmp_path / "in", tmp_path / "answers", tmp_path / "letters"
    for folder in (incoming, answers, letters):
        folder.mkdir()
    command = ["queries", f"--input={tmp_path}/people.parquet", f"--domain={tmp_path}/domain", f"--records={USERS}"]
    command += ["--alpha=0.1", "--epsilon=100", f"--key={tmp_path}/noise.key"]
    command += ["--run_id=same", "--ledger=none"]
    assert cli.main([*command, f"--queries={tmp_path}/queries", f"--output={tmp_path}/expected.jsonl"]) == 0
    expected = [json.loads(text) for text in (tmp_path / "expected.jsonl").read_text().splitlines()]
    assert {row["source"] for row in expected} == {"measured", "hypothesis"}

    def published() -> list[dict]:
        return [json.loads(text) for file in sorted(answers.glob("2*.jsonl")) for text in file.read_text().splitlines()]

    watch = [f"--queries={incoming}", f"--output={answers}", f"--dead_letter={letters}", "--watch=0.3"]
    put(incoming, "poison.gz", lambda path: path.write_bytes(b"no gzip"))
    call = [*PRIVSTREAM, *command, *watch, f"--watermark={watermark}", *on_runner]
    process = subprocess.Popen(call, stderr=subprocess.PIPE, text=True)
    times = []
    try:
        for number in range(FILES):
            part = asked[number * LINES : (number + 1) * LINES]
            late = [{"name": "late", "items": part[0]["items"], "time": at(-1)}] if number else []
            text = "".join(json.dumps(query) + "\n" for query in part + late)
            assert len(published()) == number * LINES
            with broken(answers) if runner == "flink" and number == 1 else nullcontext():
                put(incoming, f"{FILES - number}", lambda path, text=text: path.write_text(text))
                start = came(incoming / f"{FILES - number}")
            times += [start + 1 + row for row in range(LINES)]
            if watermark == "marks":
                mark(incoming, EPOCH + (number + 1) * LINES)
            wait_for(process, lambda number=number: len(published()) == (number + 1) * LINES)
        put(incoming, "_END", Path.touch)
        _, said = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, said
    rows = published()
    if watermark == "arrival":
        assert [parse_query(json.dumps({"time": row["time"]}).encode(), None).time.micros for row in rows] == times
        rows, expected = ([row | {"time": None} for row in some] for some in (rows, expected))
    assert rows == expected
    assert {file.name for file in answers.glob("_*")} == {"_END", "_guarantee.json"}
    refused = [json.loads(text) for file in letters.glob("*.jsonl") for text in file.read_text().splitlines()]
    sources = [Path(letter["source"]).name for letter in refused]
    assert set(sources) == {"late query", "poison.gz"}
    assert sources.count("late query") >= FILES - 1  # more where a job goes back


def late_person(number: int) -> tuple[str, str]:
    time.sleep(1.5)
    return f"person {number}", "a"


@pytest.mark.prism
def test_queries_that_come_before_the_data_wait_for_it(tmp_path):
    incoming, answers = tmp_path / "in", tmp_path / "answers"
    for folder in (incoming, answers):
        folder.mkdir()
    for name in "ab":
        put(incoming, name, lambda path, name=name: path.write_text(line(name)))
        time.sleep(COARSE_SECONDS)
    put(incoming, "_END", Path.touch)
    domain = Domain(("a", "b"))
    ask = PrivateQueries(epsilon=20, records=2, domain=domain, noise=KeyedNoise(bytes(range(32))))

    def build(pipeline):
        people = pipeline | "People" >> beam.Create([0]) | beam.Map(late_person)
        queries = (pipeline | WatchQueries(str(incoming), 0.1)).events
        return {"events": people, "queries": queries} | ask | WriteWindowFiles(str(answers), QueryAnswer, "jsonl")

    run("prism", build, "--streaming")
    names = [moment((came(incoming / name) // 1000 + 1) * 1000) for name in "ab"]
    assert sorted(file.name for file in answers.iterdir()) == [*(f"{name}.jsonl" for name in names), "_END"]
