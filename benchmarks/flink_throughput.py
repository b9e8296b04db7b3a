"""The whole private pipeline on a Flink cluster of this machine, against one process, and against plain Beam on Flink.

Usage: python benchmarks/flink_throughput.py [--quick] [--users 200000 ..]

The cluster has two task managers of one slot. CPU seconds are those of all its processes, Python workers and their
imports included, from before the job is submitted until it has ended; the command that submits and Beam's job server
are not counted. Jobs that are not measured go before, so that the task managers' Java is warm. The FnApiRunner runs
in a process of its own, measured as heavy_hitters_throughput.py does, from where the pipeline is built.

A job costs something before its first event: starting workers above all. So each pipeline gets two inputs, all windows
and an eighth of them. From both follow the events per CPU second once a job runs (`further`) and its fixed cost. The
plain pipeline gets the events of one person in twenty, in an eighth and a quarter of the windows: it takes minutes
otherwise.

Needs Java; Flink and the job server are fetched on first use. Writes flink_throughput.csv and .png to
benchmarks/results.
"""

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import apache_beam as beam
from _flink import RunningCluster, cluster, job_server_jar
from _measure import Cost, in_own_process
from _plain_beam import group_by_person
from _report import load_average, parser, print_table, results_folder, write_csv
from _throughput import plot_rates
from apache_beam.options.pipeline_options import PipelineOptions
from heavy_hitters_throughput import WINDOW, some_people
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.pipelines.questions.catalogue import HEAVY_HITTERS as SPEC
from privstream.pipelines.simulate.simulation import write_simulation
from privstream.pipelines.simulate.streams import START_MICROS, SimulatedWindow, simulate_heavy_hitters
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.pipelines.sinks.writers import WriteRows
from privstream.pipelines.sources.readers import ReadEvents
from privstream.transforms import HeavyHitter, ShiftingHeavyHitters

ALL, SOME, FEW = "all", "an eighth of the windows", "one person in twenty"
KEY = b"a benchmark's key, known to all.."
Parameters = dict[str, Any]


def private(options: list[str], events: str, output: str, parameters: Parameters) -> None:
    """The pipeline of `privstream heavy-hitters`."""
    hitters = ShiftingHeavyHitters(noise=KeyedNoise(KEY), **parameters)
    with beam.Pipeline(options=PipelineOptions(options)) as pipeline:
        rows = (pipeline | "Read" >> ReadEvents(events)).events | "ShiftingHeavyHitters" >> hitters
        _ = rows | "Write" >> WriteRows(f"{output}.parquet", HeavyHitter, order=SPEC.order)


def plain(build: Any, options: list[str], events: str, output: str, min_holders: int) -> None:
    with beam.Pipeline(options=PipelineOptions(options)) as pipeline:
        build(pipeline, events, output, WINDOW, min_holders)


def write_events(folder: Path, options: argparse.Namespace) -> dict[str, tuple[str, int]]:
    """Write the events of all windows and of some, and those of some of the people; return paths and numbers."""
    made: dict[str, tuple[str, int]] = {}
    for name, share, few in (
        (ALL, 1, False),
        (SOME, 8, False),
        (f"{FEW}, a quarter of the windows", 4, True),
        (f"{FEW}, an eighth", 8, True),
    ):
        windows = max(1, options.windows // share)
        events: Iterable[SimulatedWindow] = simulate_heavy_hitters(
            users=options.users,
            windows=windows,
            items=options.items,
            events_per_user_and_window=options.events / options.users / options.windows,
            trends=min(8, windows),
            seed=1,
        )
        path = str(folder / f"{len(made)}.parquet")
        made[name] = (path, write_simulation(path, some_people(events, options.users) if few else events).events)
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
    parameters |= {"start": START_MICROS / 1e6, "items_per_step": 4, "method": "clock"}
    min_holders = ShiftingHeavyHitters(noise=KeyedNoise(KEY), **parameters).detection_threshold
    local, rows = ["--runner=FnApiRunner"], []

    def add(library: str, what: str, runner: str, events: str, cost: Cost) -> None:
        rows.append(describe(library, what, runner, events, files[events][1], cost))
        print(f"{library}, {what}, {runner}: {rows[-1]['events_per_cpu_second']:,} events a CPU second", flush=True)

    for events in (ALL, SOME):
        output = str(scratch / f"local {events}")
        cost = in_own_process(private, local, files[events][0], output, parameters)
        add("privstream", "4 items a window", "FnApiRunner", events, cost)
    jar = job_server_jar()
    with cluster(scratch / "cluster", jar, f"--task-manager-memory={options.memory}") as running:
        for number in range(2):
            on_cluster(running, private, files[SOME][0], str(scratch / f"warm {number}"), parameters, mode="streaming")
        for mode, events in product(options.modes, (ALL, SOME)):
            output = str(scratch / f"{mode} {events}")
            cost = on_cluster(running, private, files[events][0], output, parameters, mode=mode)
            add("privstream", "4 items a window", f"Flink, {mode}", events, cost)
            same = [read_row_file(f"{scratch}/{name} {events}.parquet", HeavyHitter) for name in ("local", mode)]
            assert same[0] == same[1], "Flink published other rows"
        run = partial(plain, group_by_person)
        for events in files:
            if events.startswith(FEW):
                cost = on_cluster(running, run, files[events][0], str(scratch / "plain"), min_holders, mode="streaming")
                add("plain Beam", "GroupByKey per person, count per item", "Flink, streaming", events, cost)
    return rows


def add_ratios(rows: list[dict[str, Any]]) -> None:
    """Add what further events and the job itself cost, and compare with one process and with the plain pipeline."""
    pairs: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        pairs[row["pipeline"], row["runner"]].append(row)
    for large, small in pairs.values():
        more = large["cpu_seconds"] - small["cpu_seconds"]
        further = (large["number"] - small["number"]) / more if more > 0 else float("nan")
        for row in (large, small):
            row["further_events_per_cpu_second"] = round(further) if more > 0 else None
            row["fixed_cpu_seconds"] = round(large["cpu_seconds"] - large["number"] / further, 2) if more > 0 else None
    local = {row["events"]: row for row in rows if row["runner"] == "FnApiRunner"}
    best = max((row for row in rows if row["library"] == "plain Beam"), key=lambda row: row["events_per_cpu_second"])
    for row in rows:
        for rate in ("events_per_cpu_second", "further_events_per_cpu_second"):
            one = local.get(row["events"], {}).get(rate)
            row[f"{rate}_of_one_process"] = round(row[rate] / one, 3) if row[rate] and one else None
            row[f"{rate}_times_plain_beam"] = round(row[rate] / best[rate], 1) if row[rate] and best[rate] else None


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--users", type=int, default=200_000)
    arguments.add_argument("--items", type=int, default=50_000)
    arguments.add_argument("--windows", type=int, default=120)
    arguments.add_argument("--events", type=int, default=8_000_000, help="about so many")
    arguments.add_argument("--memory", default="3g", help="of each of two task managers; the input has to fit")
    modes = ["streaming", "batch"]
    arguments.add_argument("--modes", choices=modes, nargs="+", default=modes)
    options = arguments.parse_args()
    if options.quick:
        options.users, options.items, options.windows, options.events = 2_000, 500, 8, 20_000
    folder = results_folder(options)
    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as scratch:
        rows = measure(options, Path(scratch))
    add_ratios(rows)
    write_csv(folder / "flink_throughput.csv", rows)
    labels = [f"{row['library']}, {row['runner']}\n{row['number']:,} events" for row in rows]
    plot_rates(rows, labels, "events per CPU second", folder / "flink_throughput.png")
    print_table("on a Flink cluster of this machine", rows)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
