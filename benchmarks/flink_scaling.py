"""A second slot for a job that runs: how many events a second go through it before, and after?

Usage: python benchmarks/flink_scaling.py [--quick] [--seconds 40]

A cluster with Flink's adaptive scheduler has one task manager of one slot. Files come into a watched folder, and people
are counted by item in windows that are decided while the job runs. Then a second task manager is started
(`deploy/flink_cluster.py scale`), and nobody does anything else.

Each file waits when it has been read, as for a store that is far away, and a slot takes one file at a time. So what
counts is whether the second slot gets files, whatever else wants the cores. What two slots do where cores are what
there is too little of is measured by `flink_slots.py`.

Needs Java; Flink and the job server are fetched on first use. Writes flink_scaling.csv to benchmarks/results.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from os import getpid
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from _flink import RunningCluster, call, cluster, job_server_jar, meanwhile
from _report import load_average, parser, print_table, results_folder, write_csv
from apache_beam.options.pipeline_options import PipelineOptions
from flink_latency import events, into_folder
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.pipelines.questions.catalogue import COUNTS
from privstream.pipelines.runners.flink import FlinkJobOptions
from privstream.pipelines.sinks.window_files import WriteWindowFiles
from privstream.pipelines.sources.watch_events import WatchEvents
from privstream.transforms import KeyCount, KeyedCounts

WINDOW, LATENESS = 10, 10
PATIENCE = 400
BEHIND = 25  # seconds from the end of the newest window that is written; more than a window and its lateness need
WAIT = 0.5  # seconds of each file
FILES = 2.5  # that come each second: more than one slot takes, less than two do
EVENTS = 2_000  # of each file


class Passes(beam.DoFn):
    """Hands batches on after a wait, and notes when, and in which process."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Hand one on."""
        time.sleep(WAIT)
        with Path(self.folder, str(getpid())).open("a") as notes:
            notes.write(f"{time.time()} {batch.num_rows}\n")
        yield batch


@contextmanager
def coming(send: Callable[[pa.Table], None]) -> Iterator[None]:
    """Let files come meanwhile."""
    chance = np.random.default_rng(1)
    made = [events(0.0, chance, EVENTS) for _ in range(8)]

    def work(ended: threading.Event) -> None:
        due, number = time.time(), 0
        while not ended.is_set():
            table = made[number % len(made)]
            times = pa.array(np.full(len(table), int(time.time() * 1e6)), pa.timestamp("us", tz="UTC"))
            send(table.set_column(table.schema.get_field_index("time"), "time", times))
            due, number = due + 1 / FILES, number + 1
            ended.wait(max(0.0, due - time.time()))

    with meanwhile(work):
        yield


def submit(running: RunningCluster, folder: Path, scratch: Path) -> str:
    """Start the job in at most two slots; return its id."""
    notes, output = scratch / "notes", scratch / "rows"
    notes.mkdir()
    output.mkdir()
    start = int(time.time()) // WINDOW * WINDOW
    counts = KeyedCounts(
        epsilon=10.0,
        delta=1e-6,
        window=WINDOW,
        start=start,
        renew_every=360 * WINDOW,
        allowed_lateness=LATENESS,
        max_contributions=64,
        shards=8,
        noise=KeyedNoise(bytes(range(32))),
    )
    given = running.options("--unbounded", "--parallelism=2")
    given = [option for option in given if not option.startswith(("--checkpointing_i", "--checkpoint_t"))]
    given += ["--checkpointing_interval=2000", f"--checkpoint_timeout_millis={PATIENCE}000"]  # barriers wait for files
    options = PipelineOptions(given)
    options.view_as(FlinkJobOptions)  # says how they are written
    pipeline = beam.Pipeline(options=options)
    read = pipeline | "Read" >> WatchEvents(str(folder), seconds=0.5)
    passed = read.events | "Pass" >> beam.ParDo(Passes(str(notes))).with_output_types(pa.RecordBatch)
    _ = passed | "Count" >> counts | "Write" >> WriteWindowFiles(str(output), KeyCount, "jsonl", COUNTS.order)
    before = {job["jid"] for job in running.rest("/jobs/overview")["jobs"]}
    pipeline.run()
    until(lambda: {job["jid"] for job in running.rest("/jobs/overview")["jobs"]} - before, "the job")
    return str(running.newest_job()["jid"])


def until(condition: Callable[[], Any], what: str) -> float:
    """Wait until something holds; return when."""
    deadline = time.time() + PATIENCE
    while time.time() < deadline:
        if condition():
            return time.time()
        time.sleep(0.1)
    raise TimeoutError(f"waited {PATIENCE} s in vain for {what}")


def vertices(running: RunningCluster, job: str) -> list[dict[str, Any]]:
    """Return the steps of a job as Flink knows them."""
    found: list[dict[str, Any]] = running.rest(f"/jobs/{job}")["vertices"]
    return found


def first_notes(scratch: Path, since: float) -> list[float]:
    """Return when each process has handed on its first batch from a moment on."""
    found = []
    for file in (scratch / "notes").iterdir():
        moments = [float(line.split()[0]) for line in file.read_text().splitlines()]
        found += [moment for moment in moments if moment >= since][:1]
    return found


def noted(scratch: Path, since: float) -> dict[str, int]:
    """Return how many events each process has handed on from a moment on."""
    found = {}
    for file in (scratch / "notes").iterdir():
        lines = [line.split() for line in file.read_text().splitlines()]
        found[file.name] = sum(int(rows) for moment, rows in lines if since <= float(moment))
    return {name: number for name, number in found.items() if number}


def measure(running: RunningCluster, seconds: int, scratch: Path) -> dict[str, Any]:
    """Run the job in one slot, then in two."""
    folder = scratch / "in"
    send = into_folder(folder)
    job = submit(running, folder, scratch)
    until(lambda: {each["status"] for each in vertices(running, job)} == {"RUNNING"}, "all steps")
    with coming(send):
        began = until(lambda: noted(scratch, 0), "the first file")
        time.sleep(seconds / 2)
        before = time.time()
        time.sleep(seconds)
        one = sum(noted(scratch, before).values()) / seconds
        load_before, ordered = load_average(), time.time()
        call("scale", "--task-managers=2", f"--run={running.folder}")
        there = time.time()

        def slots() -> int:
            return int(max(each["parallelism"] for each in vertices(running, job)))

        scheduled = until(lambda: slots() == 2, "a job in two slots")
        until(lambda: len(first_notes(scratch, scheduled)) > 1, "files in both slots")
        both = sorted(first_notes(scratch, scheduled))[1]
        time.sleep(seconds / 2)
        after = time.time()
        time.sleep(seconds)
        two = sum(noted(scratch, after).values()) / (time.time() - after)
        load_after = load_average()
        caught_up = until(lambda: newest_end(scratch / "rows") > time.time() - BEHIND, "windows in time")
    running.cancel(job)
    return {
        "events_per_second_coming": round(FILES * EVENTS),
        "events_per_second_in_one_slot": round(one),
        "events_per_second_in_two": round(two),
        "times": round(two / one, 2),
        "seconds_until_task_manager": round(there - ordered, 1),
        "until_scheduled": round(scheduled - ordered, 1),
        "until_files_in_both": round(both - ordered, 1),
        "until_caught_up": round(caught_up - ordered),
        "windows_written": len(windows_in(scratch / "rows")),
        "seconds": round(time.time() - began),
        "load_average_before": load_before,
        "load_average_after": load_after,
    }


def windows_in(folder: Path) -> list[float]:
    """Return the ends of the windows that are written, in seconds since 1970."""
    ends = [file.stem.split("_")[1] for file in folder.glob("*_*.jsonl")]
    return [datetime.strptime(end, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp() for end in ends]


def newest_end(folder: Path) -> float:
    """Return the end of the newest window that is written; 0 for none."""
    return max(windows_in(folder), default=0.0)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=int, default=40, help="for which each number of slots is measured")
    options = arguments.parse_args()
    if options.quick:
        options.seconds = 10
    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as name:
        scratch = Path(name)
        given = ("--adaptive", "--task-managers=1", "--task-manager-memory=1500m")
        with cluster(scratch / "cluster", job_server_jar(), *given) as running:
            rows = [measure(running, options.seconds, scratch)]
    write_csv(results_folder(options) / "flink_scaling.csv", rows)
    print_table("a second slot for a job that runs", rows)


if __name__ == "__main__":
    main()
