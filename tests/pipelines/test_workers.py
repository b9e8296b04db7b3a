"""Several processes share a run: the same bytes for any number of them, and one clear line when one of them ends."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from crew_tasks import square
from grids import some_quick
from privstream.pipelines import cli
from privstream.pipelines.command import RunError
from privstream.pipelines.run.asked import shards_for
from privstream.pipelines.runners import processes
from privstream.pipelines.runners.processes import BYTES_EACH, MOST, crew, workers_for
from privstream.transforms.spill import SMALLEST, fetch

PRIVSTREAM = [sys.executable, "-c", "from privstream.pipelines.cli import main; raise SystemExit(main())"]
HOURS = 4
ON_A_CLOCK = "--window 1h --start 2024-01-01 --end 2024-01-01T04:00"
FOUND = f"{ON_A_CLOCK} --epsilon 20 --delta 1e-6"
QUESTIONS = {
    "counts": f"counts {FOUND} --max_contributions 3",
    "counts since the start": f"counts {FOUND} --max_contributions 3 --over start",
    "counts of events": f"counts {FOUND} --unit event",
    "counts of a list": f"counts {ON_A_CLOCK} --epsilon 20 --delta 1e-6 --max_contributions 3 --domain items",
    "sums": f"counts {FOUND} --max_contributions 3 --value cents --max_value 900",
    "heavy hitters": f"heavy-hitters {FOUND} --max_hits 3 --method clock",
    "heavy hitters by status": f"heavy-hitters {FOUND} --max_hits 3 --method status",
    "top-k": f"top-k {ON_A_CLOCK} --epsilon 20 --delta 1e-6 --domain items --top 2",
    "alerts": f"alerts {ON_A_CLOCK} --epsilon 20 --delta 1e-6 --rules rules",
    "histogram": f"histogram {ON_A_CLOCK} --epsilon 5 --domain items",
    "flags": f"flags {ON_A_CLOCK} --epsilon 5 --domain items --thresholds 50",
    "quantiles": f"quantiles {ON_A_CLOCK} --epsilon 5 --delta 1e-6 --value cents --low 1 --high 1000 "
    "--max_contributions 3",
    "quantiles of events": f"quantiles {ON_A_CLOCK} --epsilon 5 --delta 1e-6 --value cents --low 1 --high 1000 "
    "--unit event",
    "cardinality": f"cardinality {ON_A_CLOCK} --epsilon 5 --delta 1e-6 --item move --enter_values in "
    "--leave_values out",
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("shop"), random.Random(5)
    (folder / "in").mkdir()
    for number in range(3):
        lines = []
        for _ in range(1500):
            when = f"2024-01-01T{rng.randrange(HOURS + 1):02}:{rng.randrange(60):02}:{rng.randrange(60):02}Z"
            sale = {"user": f"u{rng.randrange(400)}", "item": rng.choice(["tea", "tea", "cake", "milk", "salt"])}
            sale |= {"time": when, "cents": rng.randrange(1200), "shop": rng.choice(["north", "south", "west"])}
            lines.append(json.dumps(sale | {"move": rng.choice(["in", "out"])}))
        lines[7 * number] = '{"user": "u1", "item": "tea"}'
        (folder / "in" / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "key").write_text("a key of this test alone\n")
    (folder / "key").chmod(0o600)
    (folder / "items").write_text("cake\nmilk\ntea\n")
    (folder / "rules").write_text(
        '{"name": "many", "at_least": 200}\n{"name": "tea", "at_least": 90, "items": ["tea"]}\n'
    )
    return folder


@pytest.fixture
def temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def answer(
    shop: Path, output: Path, question: str, workers: int, capsys: pytest.CaptureFixture[str], *more: str
) -> list[bytes | list[str]]:
    """Run a question; return its rows, its guarantee, its dead letters in some order, and what it says."""
    letters = output.with_suffix(".letters.jsonl")
    files = f"--input in --output {output} --key key --ledger none --dead_letter {letters} --overwrite"
    before = os.getcwd()
    os.chdir(shop)
    try:
        given = [*QUESTIONS[question].split(), *files.split(), *more, f"--workers={workers}"]
        status = cli.main(given)
    finally:
        os.chdir(before)
    told = capsys.readouterr().err
    assert status == 0, told
    lines = told.splitlines()
    guarantee = Path(f"{output}.guarantee.json").read_bytes()
    return [output.read_bytes(), guarantee, sorted(letters.read_text().splitlines()), lines]


@some_quick("question", list(QUESTIONS), "quantiles of events")
def test_rows_messages_and_dead_letters_are_the_same(question, shop, tmp_path, capsys):
    numbers = (1, 2, 3) if question == "counts" else (1, 2)
    found = [answer(shop, tmp_path / "rows.jsonl", question, workers, capsys) for workers in numbers]
    assert found[0][0]
    assert all(each == found[0] for each in found)


@pytest.mark.slow
def test_a_monitor_is_shared_too(shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"""
data: {{input: {shop}/in}}
windows: {{window: 1h, start: 2024-01-01, end: 2024-01-01T04:00}}
privacy: {{epsilon: 20, delta: 1e-6}}
questions:
  sold: {{question: counts, max_contributions: 3}}
  all: {{question: top-k, domain: {shop}/items, top: 2, max_contributions: 3}}
  prices: {{question: quantiles, value: cents, low: 1, high: 1000, max_contributions: 3}}
account: {{key: {shop}/key}}
"""
    found = []
    for workers in (1, 2):
        folder = tmp_path / f"answers{workers}"
        (tmp_path / "monitor.yaml").write_text(f"{text}output: {{path: {folder}}}\n")
        given = ["run", str(tmp_path / "monitor.yaml"), "--ledger", "none", f"--workers={workers}"]
        assert cli.main(given) == 0, capsys.readouterr().err
        told = capsys.readouterr().err.replace(str(folder), "FOLDER").splitlines()
        found.append([*(path.read_bytes() for path in sorted(folder.glob("*.*"))), told])
    assert len(found[0]) == 7 + 1
    assert found[0] == found[1]


def test_how_many_processes_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda _: range(4))
    assert [workers_for(None, size) for size in (0, BYTES_EACH, 3 * BYTES_EACH, 99 * BYTES_EACH)] == [1, 1, 3, 4]
    assert workers_for(7, 0) == 7
    for given in (0, MOST + 1):
        with pytest.raises(ValueError, match=f"workers must be from 1 to 256, .*got {given}"):
            workers_for(given, 0)


def test_processes_and_large_files_have_shards_of_people_of_their_own() -> None:
    assert [shards_for(workers) for workers in (1, 2, 3, 8)] == [4, 4, 6, 8]
    assert [shards_for(workers, 7 << 30) for workers in (1, 2)] == [7, 8]


def test_a_crew_answers_in_order_and_reads_each_others_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with crew(2, square) as tell:
        assert list(tmp_path.iterdir()) == []  # files have no names
        assert tell([3, 4]) == [9, 16]
        first, second = tell(["file", "file"])
        assert tell([second, first]) == [2 * SMALLEST] * 2
        assert len(fetch(first)) == 2 * SMALLEST
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("task", "said"), [("fail", "this is said"), ("killed", "it was killed")])
def test_who_fails_or_is_killed_ends_all(task: str, said: str) -> None:
    began = time.monotonic()
    with pytest.raises(RunError, match=said), crew(2, square) as tell:
        tell(["wait", task])
    assert time.monotonic() - began < 30


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["command", "worker"])
def test_an_interrupt_and_a_kill_end_everything_cleanly(victim: str, temporary: Path, tmp_path: Path) -> None:
    """A run that is interrupted, or loses a process, says so in a line, and leaves neither rows nor processes."""
    lines = [f'{{"user": "u{i}", "item": "i{i % 97}", "time": "2024-01-01T00:00:{i % 60:02}Z"}}\n' for i in range(1000)]
    (tmp_path / "in").mkdir()
    for number in range(4):
        (tmp_path / "in" / f"{number}.jsonl").write_text("".join(lines) * 400)
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # shells turn it off behind an &
    program = f"{heard}; from privstream.pipelines.cli import main; raise SystemExit(main())"  # no guard: it runs once
    files = f"--input {tmp_path}/in --output {tmp_path}/rows.jsonl --ledger none --workers 2"
    command = [sys.executable, "-c", program, *f"counts {FOUND} --max_contributions 3 {files}".split()]
    environment = os.environ | {"TMPDIR": str(temporary)}
    started = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    workers = _wait_for(lambda: _workers(started.pid) if started.poll() is None else pytest.fail("it has ended"))
    time.sleep(1)  # they read
    if victim == "command":
        os.killpg(started.pid, signal.SIGINT)  # as a terminal does: to all of them
    else:
        os.kill(workers[0], signal.SIGKILL)
    _, told = started.communicate(timeout=60)
    said = "interrupted" if victim == "command" else "a worker process has ended before its work was done"
    assert said in told.splitlines()[-1]
    assert started.returncode == (130 if victim == "command" else 1)
    _wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    assert list(tmp_path.glob("rows*")) == []
    assert list(temporary.iterdir()) == []


def _workers(command: int) -> list[int]:
    """Return the processes whose parent was started by a command, if they are the two of a crew."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            number, _, rest = stat.read_text().partition(" (")
            parents[int(number)] = int(rest.rpartition(")")[2].split()[1])
    found = [number for number, parent in parents.items() if parents.get(parent) == command]
    return found if len(found) == 2 else []


def _wait_for(found: Callable[[], Any]) -> Any:
    end = time.monotonic() + 240
    while not (what := found()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return what
