"""Whatever options are given, a command ends soon, with a clear status and one clear line, and half-writes nothing."""

import json
import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fuzz_commands import ITEMS, run
from fuzz_manners import check_manners
from fuzz_options import hostile_call, hostile_plan
from fuzz_seeds import run_cases
from privstream.pipelines.questions.catalogue import WORDS
from questions import plan_line

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
