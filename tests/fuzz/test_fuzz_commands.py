"""Whole commands: one person's record changes no other's rows, and whatever options are given, the end is clear."""

import json
import os
import random
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fuzz_avro import avro_case
from fuzz_cases import NUMBERS, Case, Crowd, honest_events
from fuzz_commands import ITEMS, QUESTIONS, Ran, arguments_of, run
from fuzz_damage import damaged_file, mislabelled_file, misshapen_file
from fuzz_manners import check_manners
from fuzz_meaning import Event, Rules
from fuzz_options import hostile_call, hostile_plan
from fuzz_parquet import parquet_case
from fuzz_seeds import run_cases
from fuzz_text_files import text_case
from fuzz_values import CANARY
from privstream.pipelines.questions.catalogue import WORDS
from questions import EXAMPLES, in_windows, plan_line

CASES = {"jsonl": text_case, "csv": text_case, "avro": avro_case, "parquet": parquet_case}
PEOPLE = 120
WITH_NUMBERS = ("quantiles",)
"""Commands that read a number in place of an item."""

Saved = dict[tuple[object, ...], Ran]


def crowd(name: str, rules: Rules) -> Crowd:
    """Return the honest majority of a command, always the same; its users are numbers, as points must be."""
    chance = random.Random(f"crowd {name}")
    events = honest_events(chance, rules, 4 * PEOPLE)
    plain = [event for event in events if event.item.startswith(CANARY) or event.item in NUMBERS][:PEOPLE]
    return Crowd(rules, [event._replace(user=str(number % 60 + 1)) for number, event in enumerate(plain)])


def write_plainly(events: list[Event], path: Path) -> None:
    """Write events as nobody can misunderstand them."""
    rows = [{"user": e.user, "item": e.item, "time": e.time * 1000, "stream": e.stream} for e in events]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run_plainly(name: str, events: list[Event], rules: Rules, folder: Path, saved: Saved) -> Ran:
    """Run a command on events that are plainly written; once for the same events."""
    place = (name, rules.stream, *events)
    if place not in saved:
        folder = folder / str(len(saved))
        folder.mkdir(parents=True)
        write_plainly(events, folder / "plain.jsonl")
        call = arguments_of(
            name, folder / "plain", folder / "plain.jsonl", stream="stream" if rules.stream else "", unit="ns"
        )
        saved[place] = run(call, folder / "plain")
        check_manners(saved[place])
        assert saved[place].status == 0, f"an honest run fails\n{saved[place]}"
    return saved[place]


def hostile_files(chance: random.Random, folder: Path, whole: Crowd) -> list[Case]:
    """Spread the crowd over some files of several formats, each with one record more."""
    formats = chance.sample(list(CASES), chance.choice([1, 1, 2, 4]))
    cases = []
    for place, format in enumerate(formats):
        share = Crowd(whole.rules, whole.events[place :: len(formats)])
        inner = folder / f"of {format}"
        inner.mkdir()
        case = CASES[format](chance, inner, format, share)
        endings = "".join(case.added.suffixes)
        case.added = case.added.rename(folder / f"events-{chance.randrange(100)}-{place}{endings}")
        cases.append(case)
    return cases


def check_rows(name: str, saved: Saved, plain: Path) -> Callable[[random.Random, Path], None]:
    """Return the check of one command."""

    def check(chance: random.Random, folder: Path) -> None:
        stream = chance.choice(["", "", "stream", "place"]) if in_windows(name) else ""
        unit = chance.choice([None, None, "s", "ms", "us", "ns"])
        reads = {"reads_users": not EXAMPLES[name].of_events, "numbers": name in WITH_NUMBERS}
        whole = crowd(name, Rules(stream=stream, time_unit=unit, **reads))
        cases = hostile_files(chance, folder, whole)
        call = arguments_of(name, folder / "run", folder / "events-*", stream=stream, unit=unit)
        ran = run(call, folder / "run")
        about = "\n".join(map(str, cases))
        assert ran.status == 0, f"records decide whether a run succeeds\n{about}\n{ran}"
        check_manners(ran)
        events = [event for case in cases for event in case.expected()] + [
            case.meaning for case in cases if case.meaning
        ]
        expected = run_plainly(name, sorted(events), whole.rules, plain, saved)
        assert ran.rows == expected.rows, f"published rows are others\n{about}\n{ran}"
        promised = [json.loads(each.guarantee or "{}") for each in (ran, expected)]
        assert promised[0]["guarantee"] == promised[1]["guarantee"], f"the guarantee is another one\n{about}\n{ran}"

    return check


def test_one_record_decides_for_itself(tmp_path):
    run_cases("command histogram", 1, check_rows("histogram", {}, tmp_path / "plain"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_many_records_decide_for_themselves(name, tmp_path):
    run_cases(f"many {name}", 3, check_rows(name, {}, tmp_path / "plain"), tmp_path)


DAMAGED = {"damaged": damaged_file, "mislabelled": mislabelled_file, "misshapen": misshapen_file}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGED)
@pytest.mark.parametrize("format", CASES)
def test_damaged_files_end_in_one_clear_line(kind, format, tmp_path):
    def check(chance, folder):
        damaged = DAMAGED[kind](chance, folder, format)
        name = chance.choice(["heavy-hitters", "histogram", "cardinality"])
        ran = run(arguments_of(name, folder / "run", damaged.path), folder / "run")
        check_manners(ran)
        if ran.status == 1:
            assert damaged.path.name in ran.err, f"the file is not named\n{damaged}\n{ran}"

    run_cases(f"run {kind} {format}", 3, check, tmp_path)


SECONDS = 100
"""No case may take longer, on a slow and busy machine."""


@contextmanager
def in_time() -> Iterator[None]:
    """End what takes too long."""

    def end(*_):
        raise TimeoutError(f"a command takes longer than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def events_in(folder: Path) -> Path:
    """Write a few events of people whose names are points."""
    rows = [
        {"user": str(n % 40 + 1), "item": ITEMS[n % 3], "time": f"2024-01-01T00:00:{n % 50:02}Z"} for n in range(60)
    ]
    path = folder / "events.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def check_call(chance, folder):
    """Run a command with hostile options, in a folder of its own, since some of them are names of files."""
    call = hostile_call(chance, folder / "run", events_in(folder))
    before = Path.cwd()
    os.chdir(folder)
    try:
        with in_time():
            ran = run(call, folder / "run")
    finally:
        os.chdir(before)
    check_manners(ran, typed=call)


def check_plan(chance, folder):
    """Ask for a plan with hostile numbers."""
    call = hostile_plan(chance)
    with in_time():
        check_manners(run(call, folder), typed=call)


def test_hostile_options(tmp_path):
    run_cases("options", 8, check_call, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_many_hostile_options(part, tmp_path):
    run_cases(f"options {part}", 40, check_call, tmp_path)


@pytest.mark.parametrize("word", WORDS)
def test_the_plans_are_good_ones(word, tmp_path):
    ran = run(shlex.split(plan_line(word)), tmp_path)
    assert ran.status == 0, str(ran)


@pytest.mark.slow
def test_hostile_plans(tmp_path):
    run_cases("plans", 30, check_plan, tmp_path)
