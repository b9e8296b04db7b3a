"""Checkpoints of a job on a Flink cluster of this machine, by number of people who have been charged, and of streams.

Usage: python benchmarks/flink_checkpoints.py [--quick] [--people 10000 100000 1000000 10000000] [--streams 10]

Everybody holds one item in one window, a million people in each, is charged for it, and stays in state; then time goes
on without events, and checkpoints, one every few seconds, hold what has been charged. Size and time are Flink's own
account of the newest one after its first three, and of the one that had most to write; two task managers of one slot,
RocksDB, incremental. With several streams the largest number of people is spread over them. One job that is not
measured goes before.

Needs Java; Flink and the job server are fetched on first use. Writes flink_checkpoints.csv and .png to
benchmarks/results. The law of growth is in docs/scaling.md.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from _flink import RunningCluster, cluster, job_server_jar
from _report import load_average, parser, print_table, results_folder, write_csv
from apache_beam.options.pipeline_options import PipelineOptions
from matplotlib.figure import Figure
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.pipelines.runners.flink import FlinkJobOptions
from privstream.pipelines.sources.polled_source import Answer, PolledSource, poll_parts
from privstream.transforms import ShiftingHeavyHitters

START = 1_700_000_000  # event time of the first window, in seconds
BATCH = 100_000
WINDOW_PEOPLE = 1_000_000
BYTES_PER_PERSON = 10
INTERVAL_MILLISECONDS = 2000
SETTLED = 3  # checkpoints after the last row
WAIT_SECONDS = 600
MICROS = 1_000_000


class EverybodyOnce(PolledSource):
    """Everybody holds one item in one window, a batch of people at a time; afterwards time goes on."""

    def __init__(self, people: int, streams: int) -> None:
        super().__init__(seconds=0.1)
        self.people, self.streams = people, streams

    def poll(self, part: bytes, position: bytes | None, watermark: int) -> Answer:
        """Send the next people, if there are more."""
        start = int(position or b"0")
        end = min(start + BATCH, self.people)
        reached = end // WINDOW_PEOPLE if end < self.people else count_windows(self.people) + 10
        return Answer(self._events(start, end), b"%d" % end, (START + reached) * MICROS)

    def _events(self, start: int, end: int) -> Iterator[tuple[Any, int]]:
        if start == end:
            return
        users = [f"user {number}" for number in range(start, end)]
        at = (START + start // WINDOW_PEOPLE) * MICROS + MICROS // 2
        columns = {
            "user": users,
            "item": ["the item"] * len(users),
            "time": pa.array([at] * len(users), pa.timestamp("us")),
        }
        if self.streams > 1:
            columns["stream"] = [f"stream {number % self.streams}" for number in range(start, end)]
        yield pa.RecordBatch.from_pydict(columns), at


def count_windows(people: int) -> int:
    """Return in how many windows people come."""
    return -(-people // WINDOW_PEOPLE)


class Tell(beam.DoFn):
    """Leaves a file for each row."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def process(self, row: Any) -> None:
        """Leave it."""
        Path(self.folder, f"{row.stream} {row.window_start.micros}").touch()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {WAIT_SECONDS} s in vain")
        time.sleep(0.2)


def newest_checkpoint(running: RunningCluster, job: str) -> dict[str, Any]:
    """Return Flink's account of the last complete checkpoint, or one without a number."""
    return running.rest(f"/jobs/{job}/checkpoints")["latest"]["completed"] or {"id": 0}


def largest_checkpoint(running: RunningCluster, job: str) -> dict[str, Any]:
    """Return Flink's account of the complete checkpoint, of those it remembers, for which most was written."""
    found = running.rest(f"/jobs/{job}/checkpoints")["history"]
    complete = [checkpoint for checkpoint in found if checkpoint["status"] == "COMPLETED"]
    return max(complete, key=lambda checkpoint: checkpoint["checkpointed_size"])


def measure(running: RunningCluster, people: int, streams: int, scratch: Path) -> dict[str, Any]:
    rows = scratch / f"rows {people} {streams}"
    rows.mkdir(exist_ok=True)
    options = PipelineOptions(running.options("--unbounded"))
    options.view_as(FlinkJobOptions).checkpointing_interval = INTERVAL_MILLISECONDS
    hitters = ShiftingHeavyHitters(
        epsilon=1,
        delta=1e-6,
        max_hits=4,
        window=1,
        start=START,
        horizon=100,
        method="clock",
        streams_per_person=1 if streams > 1 else None,
        noise=KeyedNoise(b"a benchmark's key, known to all.."),
    )
    pipeline = beam.Pipeline(options=options)
    events = poll_parts(pipeline, [b"all"], EverybodyOnce(people, streams), Any)
    _ = events | "ShiftingHeavyHitters" >> hitters | "Tell" >> beam.ParDo(Tell(str(rows)))
    pipeline.run()
    wait_until(lambda: any(job["state"] == "RUNNING" for job in running.rest("/jobs/overview")["jobs"]))
    job = running.newest_job()["jid"]
    try:
        wait_until(lambda: len(list(rows.iterdir())) == streams * count_windows(people))
        after = newest_checkpoint(running, job)["id"] + SETTLED
        wait_until(lambda: newest_checkpoint(running, job)["id"] >= after)
        newest, largest = newest_checkpoint(running, job), largest_checkpoint(running, job)
    finally:
        running.cancel(job)
    for file in rows.iterdir():
        file.unlink()
    return {
        "people": people,
        "streams": streams,
        "checkpoint_megabytes": round(newest["state_size"] / 1e6, 3),
        "written_megabytes": round(newest["checkpointed_size"] / 1e6, 3),
        "log_megabytes_counted": round(people * BYTES_PER_PERSON / 1e6, 3),
        "bytes_per_person": round(newest["state_size"] / people, 1),
        "checkpoint_seconds": newest["end_to_end_duration"] / 1000,
        "largest_written_megabytes": round(largest["checkpointed_size"] / 1e6, 3),
        "largest_seconds": largest["end_to_end_duration"] / 1000,
        "load_average": load_average(),
    }


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    mine = [row for row in rows if row["streams"] == 1]
    people = np.array([row["people"] for row in mine])
    for name, label in (
        ("checkpoint_megabytes", "checkpoint, all of it"),
        ("largest_written_megabytes", "most that one had to write"),
        ("log_megabytes_counted", "10 bytes a person"),
    ):
        axes.loglog(people, [row[name] for row in mine], "-o", label=label)
    axes.set(xlabel="people charged so far", ylabel="megabytes", title="Checkpoints on Flink")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--people", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
    arguments.add_argument("--streams", type=int, nargs="*", default=[10])
    options = arguments.parse_args()
    if options.quick:
        options.people, options.streams = [2_000], [2]
    folder = results_folder(options)
    jar, rows = job_server_jar(), []
    plan = [(people, 1) for people in options.people] + [(max(options.people), many) for many in options.streams]
    with (
        tempfile.TemporaryDirectory(prefix="privstream-bench-") as scratch,
        cluster(Path(scratch, "run"), jar) as running,
    ):
        measure(running, min(options.people), 1, Path(scratch))
        for people, streams in plan:
            rows.append(measure(running, people, streams, Path(scratch)))
            print(f"{people:,} people, {streams} streams: {rows[-1]['checkpoint_megabytes']:,} MB", flush=True)
    write_csv(folder / "flink_checkpoints.csv", rows)
    plot(rows, folder / "flink_checkpoints.png")
    print_table("checkpoints on Flink", rows)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
