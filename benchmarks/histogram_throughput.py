"""Events per second and core of live histograms, against a plain Beam count in windows without privacy in the same run.

Usage: python benchmarks/histogram_throughput.py [--quick] [--repeats 2] [--events 4000000 ..]

Every run has a process of its own, on the in-process FnApiRunner; privstream's is that of its command. Its CPU seconds,
of all threads, are counted from where options are parsed or the pipeline is built to where its output file is complete;
imports are not. Of several repeats the one with the least CPU counts. Plain Beam takes minutes, so it gets a twentieth
of the events; privstream is measured on these too, where its fixed costs weigh more.

Writes histogram_throughput.csv and .png to benchmarks/results.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from _plain_beam import to_line
from _report import parser, results_folder
from _throughput import Files, Run, command, measure, one_of_each, report, start_beam
from apache_beam.transforms.combiners import Count
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from privstream.pipelines.simulate.simulation import rows_of_truth, write_simulation
from privstream.pipelines.simulate.streams import START_MICROS
from privstream.pipelines.simulate.worlds import category_names, simulate_trips

SHARE = 20  # one event in so many, for plain Beam
WINDOW = 3600


def timestamped_item(row: dict[str, Any]) -> TimestampedValue[str]:
    return TimestampedValue(row["item"], row["time"].timestamp())


def plain(events: str, output: str) -> None:
    """What one writes without privstream: rows as dictionaries, event time, fixed windows, a count per item."""
    with start_beam() as pipeline:
        (
            pipeline
            | "Read" >> beam.io.ReadFromParquet(events, columns=["item", "time"])
            | "EventTime" >> beam.Map(timestamped_item)
            | "Window" >> beam.WindowInto(FixedWindows(WINDOW))
            | "Count" >> Count.PerElement()
            | "Line" >> beam.Map(to_line)
            | "Write" >> beam.io.WriteToText(output, file_name_suffix=".jsonl")
        )


def arrow(events: str, output: str) -> None:
    """The same counts by Arrow in one thread: no pipeline, no stream, everything in memory."""
    table = pq.read_table(events, columns=["item", "time"], use_threads=False)
    step = pc.divide(table["time"].cast(pa.int64()), WINDOW * 1_000_000)
    groups = table.append_column("step", step).group_by(["step", "item"], use_threads=False)
    pq.write_table(groups.aggregate([([], "count_all")]), f"{output}.parquet")


def write_events(folder: Path, options: argparse.Namespace) -> Files:
    """Write all events, and a twentieth of them; return paths and numbers of events."""
    made = {}
    for name, share in (("all", 1), ("5%", SHARE)):
        trips = options.events / options.users / options.windows / share
        windows = simulate_trips(
            users=options.users, windows=options.windows, seed=1, categories=options.categories, trips=trips
        )
        path = str(folder / f"events-{share}.parquet")
        made[name] = (path, write_simulation(path, windows, truth_of=rows_of_truth).events)
    return made


def plan_runs(options: argparse.Namespace, domain: Path) -> Iterator[Run]:
    start = START_MICROS / 1e6
    parameters: dict[str, Any] = {
        "epsilon": 1.0,
        "domain": domain,
        "window": WINDOW,
        "start": start,
        "end": start + options.windows * WINDOW,
    }
    user = parameters | {"unit": "person", "max_contributions": 10}
    anchored = parameters | {"method": "anchored_counters"}
    yield Run("privstream", "unit event", "all", command, ("histogram", parameters))
    yield Run("privstream", "unit event, anchored", "all", command, ("histogram", anchored))
    yield Run("privstream", "unit person, 10 events a person", "all", command, ("histogram", user))
    yield Run("library alone", "pyarrow in one thread, all in memory", "all", arrow)
    yield Run("privstream", "unit event", "5%", command, ("histogram", parameters))
    yield Run("plain Beam", "Count.PerElement in windows", "5%", plain)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--users", type=int, default=200_000)
    arguments.add_argument("--categories", type=int, default=100)
    arguments.add_argument("--windows", type=int, default=168)
    arguments.add_argument("--events", type=int, default=4_000_000, help="about so many")
    arguments.add_argument("--repeats", type=int, default=2)
    options = arguments.parse_args()
    if options.quick:
        options.users, options.categories, options.windows, options.events, options.repeats = 1_000, 20, 6, 20_000, 1
    folder = results_folder(options)
    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as scratch:
        files = write_events(Path(scratch), options)
        domain = Path(scratch, "categories.txt")
        domain.write_text("\n".join(category_names(options.categories)))
        rows = measure(one_of_each(plan_runs(options, domain), options.quick), files, scratch, options.repeats)
    report(rows, "live histograms: events per second of one core", folder, "histogram_throughput")


if __name__ == "__main__":
    main()
