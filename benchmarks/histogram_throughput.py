"""Events per second and core of live histograms, against a plain Beam count in windows without privacy in the same run.

Usage: python benchmarks/histogram_throughput.py [--quick] [--repeats 2] [--events 4000000 ..]

Every run has a process of its own, on the in-process FnApiRunner. Its CPU seconds, of all threads, are counted from
where the pipeline is built to where its output file is complete; imports are not. Of several repeats the one with the
least CPU counts. Plain Beam takes minutes, so it gets a twentieth of the events; privstream is measured on these too,
where its fixed costs weigh more.

Writes histogram_throughput.csv and .png to benchmarks/results.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from _measure import Cost, in_own_process
from _report import load_average, parser, print_table, results_folder, write_csv
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.combiners import Count
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from matplotlib.figure import Figure
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.pipelines.commands.histogram import ORDER
from privstream.pipelines.simulate.event_writers import write_simulation
from privstream.pipelines.simulate.histogram import category_counts, category_names, simulate_trips
from privstream.pipelines.simulate.streams import START_MICROS
from privstream.pipelines.sinks.writers import WriteRows
from privstream.pipelines.sources.readers import ReadEvents
from privstream.transforms import ContinualHistogram, Domain, HistogramEstimate

SHARE = 20  # one event in so many, for plain Beam
WINDOW = 3600
COLOURS = {"privstream": "tab:blue", "plain Beam": "tab:orange", "library alone": "tab:grey"}


def start_beam() -> beam.Pipeline:
    return beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))


def private(events: str, output: str, parameters: dict[str, Any]) -> None:
    """The pipeline of `privstream histogram`."""
    histogram = ContinualHistogram(noise=KeyedNoise.random(), **parameters)
    with start_beam() as pipeline:
        read = pipeline | "Read" >> ReadEvents(events)
        rows = read.events | "ContinualHistogram" >> histogram
        rows | "Write" >> WriteRows(f"{output}.parquet", HistogramEstimate, order=ORDER)


def timestamped_item(row: dict[str, Any]) -> TimestampedValue[str]:
    return TimestampedValue(row["item"], row["time"].timestamp())


def to_line(counted: tuple[str, int], window: Any = beam.DoFn.WindowParam) -> str:
    item, count = counted
    return json.dumps({"window_start": float(window.start), "item": item, "count": count})


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


def write_events(folder: Path, options: argparse.Namespace) -> dict[str, tuple[str, int]]:
    """Write all events, and a twentieth of them; return paths and numbers of events."""
    made = {}
    for name, share in (("all", 1), ("5%", SHARE)):
        trips = options.events / options.users / options.windows / share
        windows = simulate_trips(
            users=options.users, windows=options.windows, seed=1, categories=options.categories, trips=trips
        )
        path = str(folder / f"events-{share}.parquet")
        made[name] = (path, write_simulation(path, windows, truth_of=category_counts).events)
    return made


def plan_runs(options: argparse.Namespace) -> Iterator[tuple[str, str, str, Callable[..., None], tuple[Any, ...]]]:
    """Yield library, what it does, which events, and the function with its arguments after the paths."""
    start = START_MICROS / 1e6
    parameters: dict[str, Any] = {
        "epsilon": 1.0,
        "domain": Domain(category_names(options.categories)),
        "window": WINDOW,
        "start": start,
        "end": start + options.windows * WINDOW,
    }
    user = parameters | {"unit": "user", "max_contributions": 10}
    yield "privstream", "unit event", "all", private, (parameters,)
    yield "privstream", "unit event, anchored", "all", private, (parameters | {"mode": "anchored"},)
    yield "privstream", "unit user, 10 events a person", "all", private, (user,)
    yield "library alone", "pyarrow in one thread, all in memory", "all", arrow, ()
    yield "privstream", "unit event", "5%", private, (parameters,)
    yield "plain Beam", "Count.PerElement in windows", "5%", plain, ()


def describe(library: str, what: str, events: str, number: int, cost: Cost, load: float) -> dict[str, Any]:
    return {
        "library": library,
        "pipeline": what,
        "events": events,
        "number": number,
        "events_per_cpu_second": round(number / cost.cpu_seconds),
        "cpu_seconds": round(cost.cpu_seconds, 2),
        "wall_seconds": round(cost.wall_seconds, 2),
        "peak_megabytes": cost.peak_megabytes,
        "start_megabytes": cost.start_megabytes,
        "load_average": load,
    }


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(9, 0.42 * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots()
    labels = [f"{row['library']}: {row['pipeline']}  ({row['events']})" for row in rows]
    rates = [row["events_per_cpu_second"] for row in rows]
    bars = axes.barh(labels, rates, color=[COLOURS[row["library"]] for row in rows])
    axes.bar_label(bars, [f"{rate:,}" for rate in rates], padding=3)
    axes.set(xscale="log", xlabel="events per second of one core", xlim=(min(rates) / 3, max(rates) * 6))
    axes.spines[["top", "right"]].set_visible(False)
    axes.invert_yaxis()
    figure.savefig(path, dpi=150)


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
    rows = []
    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as scratch:
        files = write_events(Path(scratch), options)
        for number, (library, what, events, run, rest) in enumerate(plan_runs(options)):
            path, count = files[events]
            outputs = [f"{scratch}/output-{number}-{repeat}" for repeat in range(options.repeats)]
            costs = [(in_own_process(run, path, output, *rest), load_average()) for output in outputs]
            rows.append(describe(library, what, events, count, *min(costs)))
            print(f"{library}: {what} ({events}): {rows[-1]['events_per_cpu_second']:,} events a second", flush=True)
    best = max(row["events_per_cpu_second"] for row in rows if row["library"] == "plain Beam")
    for row in rows:
        row["times_plain_beam"] = round(row["events_per_cpu_second"] / best, 1)
    rows.sort(key=lambda row: -row["events_per_cpu_second"])
    write_csv(folder / "histogram_throughput.csv", rows)
    plot(rows, folder / "histogram_throughput.png")
    shown = [name for name in rows[0] if name not in ("number", "start_megabytes", "load_average")]
    print_table("live histograms: events per second of one core", rows, shown)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
