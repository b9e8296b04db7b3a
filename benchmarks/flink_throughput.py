"""The whole private pipeline on a Flink cluster of this machine, against one process, and against plain Beam on Flink.

Usage: python benchmarks/flink_throughput.py [--quick] [--users 200000 ..]

The cluster has two task managers of one slot. CPU seconds are those of all its processes, Python workers and their
imports included, from before the job is submitted until it has ended; the command that submits and Beam's job server
are not counted. One job that is not measured goes before, so that the task managers' Java is warm. The FnApiRunner runs
in a process of its own, measured as heavy_hitters_throughput.py does, from where the pipeline is built. The plain
pipeline gets all events of a few of the people, since it takes minutes otherwise. A job costs something before its
first event: starting workers above all. So the CPU seconds that each further event costs are given too, from the
difference between all events and those of a few of the people.

Needs Java; Flink and the job server are fetched on first use. Writes flink_throughput.csv and .png to
benchmarks/results.
"""

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
from _flink import RunningCluster, cluster, job_server_jar
from _measure import Cost, in_own_process
from _plain_beam import group_by_person
from _report import load_average, parser, print_table, results_folder, write_csv
from apache_beam.options.pipeline_options import PipelineOptions
from heavy_hitters_throughput import COLOURS, WINDOW, some_people
from matplotlib.figure import Figure
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.pipelines.commands.heavy_hitters import ORDER
from privstream.pipelines.simulate.event_writers import write_simulation
from privstream.pipelines.simulate.streams import START_MICROS, simulate_heavy_hitters
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.pipelines.sinks.writers import WriteRows
from privstream.pipelines.sources.readers import ReadEvents
from privstream.transforms import HeavyHitter, ShiftingHeavyHitters

KEY = b"a benchmark's key, known to all.."
Parameters = dict[str, Any]


def private(options: list[str], events: str, output: str, parameters: Parameters) -> None:
    """The pipeline of `privstream heavy-hitters`."""
    hitters = ShiftingHeavyHitters(noise=KeyedNoise(KEY), **parameters)
    with beam.Pipeline(options=PipelineOptions(options)) as pipeline:
        rows = (pipeline | "Read" >> ReadEvents(events)).events | "ShiftingHeavyHitters" >> hitters
        _ = rows | "Write" >> WriteRows(f"{output}.parquet", HeavyHitter, order=ORDER)


def plain(build: Any, options: list[str], events: str, output: str, min_holders: int) -> None:
    with beam.Pipeline(options=PipelineOptions(options)) as pipeline:
        build(pipeline, events, output, WINDOW, min_holders)


def write_events(folder: Path, options: argparse.Namespace) -> dict[str, tuple[str, int]]:
    """Write all events, and those of some of the people; return paths and numbers of events."""
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
    for name, windows in (("all", simulate()), ("5% of the people", some_people(simulate(), options.users))):
        path = str(folder / f"{len(made)}.parquet")
        made[name] = (path, write_simulation(path, windows).events)
    return made


def on_cluster(running: RunningCluster, run: Any, events: str, output: str, *rest: Any, mode: str) -> Cost:
    """Run a pipeline on the cluster; the peak of memory is not measured."""
    options = running.options()
    if mode == "batch":
        options[options.index("--streaming")] = "--environment_cache_millis=60000"
    before = running.cpu_seconds()
    run(options, events, output, *rest)
    job = running.newest_job()
    time.sleep(2)  # workers end a moment after their job
    return Cost(running.cpu_seconds() - before, job["duration"] / 1000, 0, 0)


def describe(library: str, what: str, runner: str, events: str, number: int, cost: Cost) -> dict[str, Any]:
    return {
        "library": library,
        "pipeline": what,
        "runner": runner,
        "events": events,
        "number": number,
        "events_per_cpu_second": round(number / cost.cpu_seconds),
        "events_per_second": round(number / cost.wall_seconds),
        "cpu_seconds": round(cost.cpu_seconds, 2),
        "wall_seconds": round(cost.wall_seconds, 2),
        "load_average": load_average(),
    }


def measure(options: argparse.Namespace, scratch: Path) -> list[dict[str, Any]]:
    """Run everything."""
    files = write_events(scratch, options)
    parameters = {"epsilon": 1.0, "delta": 1e-6, "max_hits": 16, "window": WINDOW, "horizon": options.windows}
    parameters |= {"start": START_MICROS / 1e6, "items_per_step": 4}
    min_holders = ShiftingHeavyHitters(noise=KeyedNoise(KEY), **parameters).detection_threshold
    local, rows = ["--runner=FnApiRunner"], []

    def add(library: str, what: str, runner: str, events: str, cost: Cost) -> None:
        rows.append(describe(library, what, runner, events, files[events][1], cost))
        print(f"{library}, {what}, {runner}: {rows[-1]['events_per_cpu_second']:,} events a CPU second", flush=True)

    for events in files:
        output = str(scratch / f"local {events}")
        cost = in_own_process(private, local, files[events][0], output, parameters)
        add("privstream", "4 items a window", "FnApiRunner", events, cost)
    jar = job_server_jar()
    few = files["5% of the people"][0]
    with cluster(scratch / "cluster", jar) as running:
        on_cluster(running, private, few, str(scratch / "warm"), parameters, mode="streaming")
        for mode, events in (("streaming", "all"), ("streaming", "5% of the people"), ("batch", "all")):
            output = str(scratch / f"{mode} {events}")
            cost = on_cluster(running, private, files[events][0], output, parameters, mode=mode)
            add("privstream", "4 items a window", f"Flink, {mode}", events, cost)
            same = [read_row_file(f"{scratch}/{name} {events}.parquet", HeavyHitter) for name in ("local", mode)]
            assert same[0] == same[1], "Flink published other rows"
        run = partial(plain, group_by_person)
        cost = on_cluster(running, run, few, str(scratch / "plain"), min_holders, mode="streaming")
        add("plain Beam", "GroupByKey per person, count per item", "Flink, streaming", "5% of the people", cost)
    return rows


def add_ratios(rows: list[dict[str, Any]]) -> None:
    """Add what further events cost, and compare with one process and with the plain pipeline."""
    few = {(row["pipeline"], row["runner"]): row for row in rows if row["events"] != "all"}
    for row in rows:
        other = few.get((row["pipeline"], row["runner"]), row)
        more = row["cpu_seconds"] - other["cpu_seconds"]
        row["further_events_per_cpu_second"] = round((row["number"] - other["number"]) / more) if more > 0 else None
    best = max(row["events_per_cpu_second"] for row in rows if row["library"] == "plain Beam")
    local = {row["events"]: row["events_per_cpu_second"] for row in rows if row["runner"] == "FnApiRunner"}
    for row in rows:
        row["of_one_process"] = round(row["events_per_cpu_second"] / local[row["events"]], 3)
        row["times_plain_beam"] = round(row["events_per_cpu_second"] / best, 1)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(9, 0.45 * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots()
    labels = [f"{row['library']}: {row['pipeline']}, {row['runner']}  ({row['events']})" for row in rows]
    rates = [row["events_per_cpu_second"] for row in rows]
    bars = axes.barh(labels, rates, color=[COLOURS[row["library"]] for row in rows])
    axes.bar_label(bars, [f"{rate:,}" for rate in rates], padding=3)
    axes.set(xscale="log", xlabel="events per CPU second", xlim=(min(rates) / 3, max(rates) * 6))
    axes.spines[["top", "right"]].set_visible(False)
    axes.invert_yaxis()
    figure.savefig(path, dpi=150)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--users", type=int, default=200_000)
    arguments.add_argument("--items", type=int, default=50_000)
    arguments.add_argument("--windows", type=int, default=60)
    arguments.add_argument("--events", type=int, default=4_000_000, help="about so many")
    options = arguments.parse_args()
    if options.quick:
        options.users, options.items, options.windows, options.events = 2_000, 500, 6, 20_000
    folder = results_folder(options)
    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as scratch:
        rows = measure(options, Path(scratch))
    add_ratios(rows)
    write_csv(folder / "flink_throughput.csv", rows)
    plot(rows, folder / "flink_throughput.png")
    print_table("on a Flink cluster of this machine", rows)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
