"""Events per second and core of the whole private pipeline, against plain Beam without privacy in the same run.

Usage: python benchmarks/heavy_hitters_throughput.py [--quick] [--repeats 2] [--users 200000 ..]

Every run has a process of its own, on the in-process FnApiRunner. Its CPU seconds, of all threads, are counted from
where the pipeline is built to where its output file is complete; imports are not. Of several repeats the one with the
least CPU counts. The plain pipelines take minutes, so they get all events of 5% of the people. privstream is measured
on these too, where its fixed costs weigh more.

Writes heavy_hitters_throughput.csv and .png to benchmarks/results.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import fastavro
import pyarrow.compute as pc
from _measure import Cost, in_own_process
from _plain_beam import arrow_alone, distinct_pairs, group_by_person
from _report import load_average, parser, print_table, results_folder, write_csv
from apache_beam.options.pipeline_options import PipelineOptions
from matplotlib.figure import Figure
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.pipelines.commands.heavy_hitters import ORDER
from privstream.pipelines.simulate.event_writers import write_simulation
from privstream.pipelines.simulate.streams import START_MICROS, SimulatedWindow, simulate_heavy_hitters
from privstream.pipelines.sinks.writers import WriteRows
from privstream.pipelines.sources.readers import ReadEvents
from privstream.transforms import HeavyHitter, ShiftingHeavyHitters

SHARE = 20  # one person in so many, for the plain pipelines
WINDOW = 3600
COLOURS = {"privstream": "tab:blue", "plain Beam": "tab:orange", "library alone": "tab:grey"}
Parameters = dict[str, Any]


def start_beam() -> beam.Pipeline:
    return beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))


def private(events: str, output: str, parameters: Parameters) -> None:
    """The pipeline of `privstream heavy-hitters`."""
    hitters = ShiftingHeavyHitters(noise=KeyedNoise.random(), **parameters)
    with start_beam() as pipeline:
        read = pipeline | "Read" >> ReadEvents(events)
        rows = read.events | "ShiftingHeavyHitters" >> hitters
        rows | "Write" >> WriteRows(f"{output}.parquet", HeavyHitter, order=ORDER)


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


def write_events(folder: Path, options: argparse.Namespace) -> dict[str, tuple[str, int]]:
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
    return made


def plan_runs(options: argparse.Namespace) -> Iterator[tuple[str, str, str, Callable[..., None], tuple[Any, ...]]]:
    """Yield library, what it does, which events, and the function with its arguments after the paths."""
    parameters: Parameters = {
        "epsilon": 1.0,
        "delta": 1e-6,
        "max_hits": 16,
        "window": WINDOW,
        "horizon": options.windows,
    }
    public = parameters | {"start": START_MICROS / 1e6}
    min_holders = ShiftingHeavyHitters(noise=KeyedNoise.random(), **public).detection_threshold
    for items in (1, 4):
        limit = {"items_per_step": items}
        each = f"{items} item{'s' if items > 1 else ''} a window"
        yield "privstream", f"public start, {each}", "parquet", private, (public | limit,)
        yield "privstream", f"cap per person, {each}", "parquet", private, (parameters | limit,)
    yield "privstream", "public start, 4 items a window", "avro", private, (public | {"items_per_step": 4},)
    yield "library alone", "fastavro, reading only", "avro", fastavro_alone, ()
    yield "library alone", "pyarrow in one thread, all in memory", "parquet", arrow, (min_holders,)
    yield "privstream", "public start, 4 items a window", "5% of the people", private, (public | {"items_per_step": 4},)
    yield (
        "plain Beam",
        "GroupByKey per person, count per item",
        "5% of the people",
        partial(plain, group_by_person),
        (min_holders,),
    )
    yield "plain Beam", "Distinct, count per item", "5% of the people", partial(plain, distinct_pairs), (min_holders,)


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


def add_ratio(rows: list[dict[str, Any]]) -> None:
    """Compare with the faster of the plain pipelines."""
    best = max(row["events_per_cpu_second"] for row in rows if row["library"] == "plain Beam")
    for row in rows:
        row["times_plain_beam"] = round(row["events_per_cpu_second"] / best, 1)


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
    arguments.add_argument("--items", type=int, default=50_000)
    arguments.add_argument("--windows", type=int, default=60)
    arguments.add_argument("--events", type=int, default=4_000_000, help="about so many")
    arguments.add_argument("--repeats", type=int, default=2)
    options = arguments.parse_args()
    if options.quick:
        options.users, options.items, options.windows, options.events, options.repeats = 2_000, 500, 6, 20_000, 1
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
    add_ratio(rows)
    rows.sort(key=lambda row: -row["events_per_cpu_second"])
    write_csv(folder / "heavy_hitters_throughput.csv", rows)
    plot(rows, folder / "heavy_hitters_throughput.png")
    shown = [name for name in rows[0] if name not in ("number", "start_megabytes", "load_average")]
    print_table("heavy hitters: events per second of one core", rows, shown)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
