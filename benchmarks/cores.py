"""Counts of many events by one process and by several on one machine, beside DuckDB in the same run.

Usage: python benchmarks/cores.py [--quick] [--events 20000000] [--people 2000000] [--workers 1 2] [--repeats 1]
           [--engines privstream duckdb] [--events_file FILE]

One event in 48 hourly windows has a person out of `--people`, and an item of 20,000 by Zipf's law; a Parquet file in
the order of time. privstream counts the people who have each item in each window, each person at most 20 times in all,
random ones of the run; DuckDB, on one thread, counts the same with this limit written in SQL, and without privacy. A
billion events, with one engine at a time, and a file of events that is made once and kept:

    python benchmarks/cores.py --events 1000000000 --people 2000000 --workers 1 --engines privstream \\
        --events_file /var/tmp/billion.parquet --folder /var/tmp

Seconds by the clock mean little where other programs want the same cores. So CPU seconds of every process are read from
/proc ten times a second: all together, and those of the command and of its busiest worker, one after the other, which
is how long the run takes where each process has a core.

Writes cores.csv to benchmarks/results, for other numbers of events or people cores_EVENTS.csv. Needs Linux, and DuckDB
for the comparison.
"""

import argparse
import importlib.util
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from _report import load_average, parser, print_table, results_folder, write_csv

START, WINDOW, WINDOWS, ITEMS, LIMIT = 1_704_067_200, 3600, 48, 20_000, 20  # 2024-01-01
EVENTS, PEOPLE = 20_000_000, 2_000_000
ROWS_TOGETHER = 1 << 18
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
SECONDS = 0.1

LIMITED = f"""
    WITH contributions AS (
        SELECT DISTINCT (epoch_us(time) // 1000000 - {START}) // {WINDOW} AS step, user, item
        FROM read_parquet('{{input}}')
    ), counted AS (
        SELECT step, item FROM contributions
        QUALIFY row_number() OVER (PARTITION BY user ORDER BY hash(user, item, step)) <= {LIMIT}
    )
    SELECT step, item, count(*) FROM counted GROUP BY step, item"""
DUCKDB = """
import duckdb, sys
engine = duckdb.connect(config={"threads": 1, "preserve_insertion_order": False, "temp_directory": sys.argv[3]})
engine.execute(f"COPY ({sys.argv[1]}) TO '{sys.argv[2]}' (FORMAT parquet)")
"""
PRIVSTREAM = "from privstream.pipelines.cli import main; raise SystemExit(main())"


class Used(NamedTuple):
    """What a run has used: seconds by the clock, CPU seconds by process, the first being the command's, megabytes of
    memory, and of files without a name: batches that wait on disk.
    """

    wall: float
    command: float
    others: Sequence[float]
    megabytes: int
    on_disk: int


def made_events(path: Path, events: int, people: int) -> int:
    """Write events where there is no such file yet, which appears whole or not at all; return how many there are."""
    if not path.exists():
        part = path.with_name(f"{path.name}.part")
        write_events(part, events, people)
        part.rename(path)
    if (found := pq.read_metadata(path).num_rows) != events // WINDOWS * WINDOWS:
        raise ValueError(f"--events_file must have {events // WINDOWS * WINDOWS:,} events, got {found:,}")
    return int(found)


def write_events(path: Path, events: int, people: int) -> None:
    """Write events, window by window, always the same."""
    rng, each = np.random.default_rng(7), events // WINDOWS
    names = pa.array([f"item{number:05}" for number in range(ITEMS)])
    popularity = np.cumsum(1 / np.arange(1, ITEMS + 1))
    types = {"user": pa.string(), "item": pa.string(), "time": pa.timestamp("us", "UTC")}
    schema = pa.schema(list(types.items()))
    with pq.ParquetWriter(path, schema, use_dictionary=["item"]) as writer:
        for window in range(WINDOWS):
            begin = (START + window * WINDOW) * 1_000_000
            for number in np.diff([*range(0, each, ROWS_TOGETHER), each]).tolist():  # in order, group after group
                numbers = pa.array(rng.integers(people, size=number)).cast(pa.string())
                items = np.searchsorted(popularity, rng.random(number) * popularity[-1])
                times = np.sort(rng.integers(WINDOW * 1_000_000 * number // each, size=number)) + begin
                begin += WINDOW * 1_000_000 * number // each
                users = pc.binary_join_element_wise("u", numbers, "")
                table = pa.table([users, names.take(pa.array(items)), pa.array(times, types["time"])], schema=schema)
                writer.write_table(table, row_group_size=ROWS_TOGETHER)


def privstream(events: Path, output: Path, key: Path, workers: int) -> list[str]:
    """Return a command that counts."""
    times = [f"--window={WINDOW}", f"--start={START}", f"--end={START + WINDOWS * WINDOW}"]
    budget = ["--epsilon=1", "--delta=1e-6", f"--max_contributions={LIMIT}", "--ledger=none"]
    files = [f"--input={events}", f"--output={output}", f"--key={key}"]
    return [sys.executable, "-c", PRIVSTREAM, "counts", *files, *times, *budget, f"--workers={workers}"]


def used_by(command: Sequence[str], folder: Path) -> Used:
    """Run a program, whose temporary files go into a folder, and add up what all of its processes use.

    Raises:
        RuntimeError: it failed; with the last line that it printed.
    """
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        environment = os.environ | {"TMPDIR": str(folder)}
        started = subprocess.Popen(command, start_new_session=True, stderr=said, env=environment)
        seconds: dict[int, float] = {}
        peak = waiting = 0
        while started.poll() is None:
            pages = 0
            for number, cpu, resident in _processes(started.pid):
                seconds[number], pages = cpu, pages + resident
            peak, waiting = max(peak, pages), max(waiting, _without_names(seconds))
            time.sleep(SECONDS)
        wall = time.perf_counter() - began
        if started.returncode:
            said.seek(0)
            raise RuntimeError(said.read().strip().splitlines()[-1])
    own = seconds.pop(started.pid)
    return Used(wall, own, sorted(seconds.values()), peak * PAGE // 2**20, waiting // 2**20)


def _processes(session: int) -> Iterator[tuple[int, float, int]]:
    """Yield the processes of a session: their numbers, CPU seconds, and pages in memory."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                yield int(path.parent.name), (int(fields[11]) + int(fields[12])) / TICKS, int(fields[21])


def _without_names(processes: Iterable[int]) -> int:
    """Return the bytes on disk of files without a name that processes have open."""
    found: dict[tuple[int, int], int] = {}
    for process in processes:
        with suppress(OSError):
            for path in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):
                    file = path.stat()
                    if stat.S_ISREG(file.st_mode) and not file.st_nlink:
                        found[file.st_dev, file.st_ino] = file.st_blocks * 512
    return sum(found.values())


def row(engine: str, events: int, people: int, workers: int, used: Used) -> dict[str, Any]:
    """Return what is told of a run."""
    longest = used.command + max(used.others, default=0.0)
    return {
        "engine": engine,
        "events": events,
        "people": people,
        "workers": workers,
        "cpu_seconds": round(used.command + sum(used.others), 2),
        "command_cpu_seconds": round(used.command, 2),
        "longest_cpu_seconds": round(longest, 2),
        "wall_seconds": round(used.wall, 2),
        "peak_megabytes": used.megabytes,
        "disk_megabytes": used.on_disk,
        "events_per_longest_second": round(events / longest),
        "load_average": load_average(),
    }


def main() -> None:
    made: argparse.ArgumentParser = parser(__doc__)
    made.add_argument("--events", type=int, default=EVENTS, help="about so many")
    made.add_argument("--people", type=int, help="who have them; without it a tenth as many as events")
    made.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    made.add_argument("--repeats", type=int, default=1, help="of which the one with the least CPU counts")
    made.add_argument("--engines", nargs="+", choices=["privstream", "duckdb"], default=["privstream", "duckdb"])
    made.add_argument("--events_file", type=Path, help="the events: made if it is not there, and kept")
    made.add_argument("--folder", type=Path, help="on whose disk events and waiting batches are")
    options = made.parse_args()
    if options.quick:
        options.events, options.workers, options.repeats = 4_800, [2], 1
    people = options.people or max(1, options.events // 10)
    rows = []
    with tempfile.TemporaryDirectory(prefix="privstream-bench-", dir=options.folder) as scratch:
        folder = Path(scratch)
        events = options.events_file or folder / "events.parquet"
        number = made_events(events, options.events, people)
        (folder / "key").write_bytes(bytes(range(32)))
        (folder / "key").chmod(0o600)
        written = set()
        for workers in options.workers if "privstream" in options.engines else ():
            outputs = [folder / f"rows-{workers}-{repeat}.parquet" for repeat in range(options.repeats)]
            runs = [used_by(privstream(events, output, folder / "key", workers), folder) for output in outputs]
            written |= {output.read_bytes() for output in outputs}
            least = min(runs, key=lambda used: used.command + sum(used.others))
            rows.append(row("privstream", number, people, workers, least))
        if len(written) > 1:
            raise RuntimeError("rows must be the same for any number of workers")
        if "duckdb" in options.engines and importlib.util.find_spec("duckdb"):
            query = LIMITED.format(input=events)
            command = [sys.executable, "-c", DUCKDB, query, str(folder / "exact.parquet"), scratch]
            runs = [used_by(command, folder) for _ in range(options.repeats)]
            rows.append(
                row(
                    "DuckDB, one thread", number, people, 1, min(runs, key=lambda used: used.command + sum(used.others))
                )
            )
    folder = results_folder(options)
    usual = options.quick or (options.events, people) == (EVENTS, PEOPLE)
    name = "cores" if usual else f"cores_{options.events}"
    write_csv(folder / f"{name}.csv", rows)
    print_table("counts of 48 windows, each person 20 times at most", rows)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
