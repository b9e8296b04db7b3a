"""Events per second and core of the whole private pipeline, against plain Beam without privacy in the same run.

Usage: python benchmarks/heavy_hitters_throughput.py [--quick] [--repeats 2] [--users 200000 ..]

Every run has a process of its own, on the in-process FnApiRunner; privstream's is that of its command. Its CPU seconds,
of all threads, are counted from where options are parsed or the pipeline is built to where its output file is complete;
imports are not. Of several repeats the one with the least CPU counts. The plain pipelines take minutes, so they get
all events of 5% of the people. privstream is measured on these too, where its fixed costs weigh more. What streams cost
is measured on all events, with 95% of them in one of 2,000 streams, and with all of them in one.

Writes heavy_hitters_throughput.csv and .png to benchmarks/results.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from _plain_beam import arrow_alone, distinct_pairs, group_by_person
from _report import parser, results_folder
from _throughput import Files, Run, command, measure, one_of_each, report, start_beam
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.pipelines.simulate.simulation import write_simulation
from privstream.pipelines.simulate.streams import START_MICROS, SimulatedWindow, simulate_heavy_hitters
from privstream.transforms import ShiftingHeavyHitters

IN_THE_LARGEST = 0.95  # of the events
SHARE = 20  # one person in so many, for the plain pipelines
WINDOW = 3600
Parameters = dict[str, Any]


def plain(build: Callable[..., None], events: str, output: str, min_holders: int) -> None:
    with start_beam() as pipeline:
        build(pipeline, events, output, WINDOW, min_holders)


def arrow(events: str, output: str, min_holders: int) -> None:
    arrow_alone(events, f"{output}.parquet", WINDOW, min_holders)


def fastavro_alone(events: str, output: str) -> None:
    """Read every record and do nothing with it."""
    with open(events, "rb") as stream:
        for _ in fastavro.reader(stream):
            pass


def some_people(windows: Iterable[SimulatedWindow], users: int) -> Iterator[SimulatedWindow]:
    """Keep the events of the people with the lowest numbers."""
    first_left_out = f"u{users // SHARE:0{max(6, len(str(users - 1)))}}"
    for window in windows:
        yield replace(window, events=window.events.filter(pc.less(window.events["user"], first_left_out)))


def write_streams(path: str, output: str, streams: int) -> str:
    """Write the same events with a stream each: 95% of them in the first of so many."""
    rng, source = np.random.default_rng(1), pq.ParquetFile(path)
    with pq.ParquetWriter(output, source.schema_arrow.append(pa.field("stream", pa.string()))) as writer:
        for group in range(source.num_row_groups):
            events = source.read_row_group(group)
            number = np.where(rng.random(len(events)) < IN_THE_LARGEST, 0, rng.integers(streams, size=len(events)))
            names = pa.array([f"s{one}" for one in number.tolist()])
            writer.write_table(events.append_column("stream", names))
    return output


def write_events(folder: Path, options: argparse.Namespace) -> Files:
    """Write the events as Parquet and Avro, and those of some of the people; return paths and numbers of events."""
    simulate = partial(
        simulate_heavy_hitters,
        users=options.users,
        windows=options.windows,
        items=options.items,
        events_per_user_and_window=options.events / options.users / options.windows,
        trends=min(8, options.windows),
        seed=1,
    )
    made = {}
    for name, file, windows in (
        ("parquet", "events.parquet", simulate()),
        ("avro", "events.avro", simulate()),
        ("5% of the people", "people.parquet", some_people(simulate(), options.users)),
    ):
        path = str(folder / file)
        made[name] = (path, write_simulation(path, windows).events)
    for name, streams in (("parquet, one stream", 1), ("parquet, 2,000 streams", 2_000)):
        path, number = made["parquet"]
        made[name] = (write_streams(path, str(folder / f"streams-{streams}.parquet"), streams), number)
    return made


def plan_runs(options: argparse.Namespace) -> Iterator[Run]:
    parameters: Parameters = {
        "epsilon": 1.0,
        "delta": 1e-6,
        "max_hits": 16,
        "window": WINDOW,
        "horizon": options.windows,
        "method": "clock",
    }
    public = parameters | {"start": START_MICROS / 1e6}
    four = public | {"items_per_step": 4}
    status = four | {"method": "status"}
    holders = (ShiftingHeavyHitters(noise=KeyedNoise.random(), **public).detection_threshold,)
    for items in (1, 4):
        limit = {"items_per_step": items}
        each = f"{items} item{'s' if items > 1 else ''} a window"
        yield Run("privstream", f"public start, {each}", "parquet", command, ("heavy-hitters", public | limit))
        yield Run("privstream", f"cap per person, {each}", "parquet", command, ("heavy-hitters", parameters | limit))
    yield Run("privstream", "by status, 4 items a window", "parquet", command, ("heavy-hitters", status))
    yield Run("privstream", "public start, 4 items a window", "avro", command, ("heavy-hitters", four))
    streams = public | {"streams_per_person": 2, "stream_field": "stream"}
    for name in ("parquet, one stream", "parquet, 2,000 streams"):
        yield Run("privstream", "two streams a person, 1 item a window", name, command, ("heavy-hitters", streams))
    yield Run("library alone", "fastavro, reading only", "avro", fastavro_alone)
    yield Run("library alone", "pyarrow in one thread, all in memory", "parquet", arrow, holders)
    some = "5% of the people"
    yield Run("privstream", "public start, 4 items a window", some, command, ("heavy-hitters", four))
    yield Run("plain Beam", "GroupByKey per person, count per item", some, partial(plain, group_by_person), holders)
    yield Run("plain Beam", "Distinct, count per item", some, partial(plain, distinct_pairs), holders)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--users", type=int, default=200_000)
    arguments.add_argument("--items", type=int, default=50_000)
    arguments.add_argument("--windows", type=int, default=60)
    arguments.add_argument("--events", type=int, default=4_000_000, help="about so many")
    arguments.add_argument("--repeats", type=int, default=2)
    options = arguments.parse_args()
    if options.quick:
        options.users, options.items, options.windows, options.events, options.repeats = 2_000, 500, 6, 20_000, 1
    folder = results_folder(options)
    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as scratch:
        files = write_events(Path(scratch), options)
        rows = measure(one_of_each(plan_runs(options), options.quick), files, scratch, options.repeats)
    report(rows, "heavy hitters: events per second of one core", folder, "heavy_hitters_throughput")


if __name__ == "__main__":
    main()
