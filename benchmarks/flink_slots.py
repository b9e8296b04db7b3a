"""Twice the slots, each with a core of its own: how many more events do counts per key carry on a Flink cluster?

Usage: python benchmarks/flink_slots.py [--quick] [--events 6000000 ..]

The job runs in one slot, then in two. All processes of the cluster (Java, Python workers, job manager) have as many
cores as the job has slots, so that one slot cannot borrow the other one's core. A job takes a while before its first
event, so each number of slots gets two inputs, all windows and an eighth of them, and what counts is what each further
event takes. Beam's job server and the command that submits are idle while the job runs.

Needs Java and two cores; Flink and the job server are fetched on first use. Writes flink_slots.csv and .png to
benchmarks/results.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from _flink import RunningCluster, cluster, job_server_jar
from _measure import Cost
from _report import load_average, parser, print_table, results_folder, write_csv
from apache_beam.options.pipeline_options import PipelineOptions
from flink_throughput import ALL, KEY, SOME, on_cluster, write_events
from heavy_hitters_throughput import WINDOW
from matplotlib.figure import Figure
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.pipelines.questions.catalogue import COUNTS as SPEC
from privstream.pipelines.simulate.streams import START_MICROS
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.pipelines.sinks.writers import WriteRows
from privstream.pipelines.sources.readers import ReadEvents
from privstream.transforms import KeyCount, KeyedCounts

SLOTS = (1, 2)
OVERS = ("window", "start")


def counts(options: list[str], events: str, output: str, parameters: dict[str, Any], slots: int) -> None:
    """The pipeline of `privstream counts`, in so many slots."""
    options = [option for option in options if not option.startswith("--parallelism=")]
    transform = KeyedCounts(noise=KeyedNoise(KEY), **parameters)
    with beam.Pipeline(options=PipelineOptions([*options, f"--parallelism={slots}"])) as pipeline:
        rows = (pipeline | "Read" >> ReadEvents(events)).events | "KeyedCounts" >> transform
        _ = rows | "Write" >> WriteRows(f"{output}.parquet", KeyCount, order=SPEC.order)


def measure(files: dict[str, tuple[str, int]], scratch: Path, options: Any) -> Iterator[dict[str, Any]]:
    """Run each kind of counts in one slot and in two."""
    start = START_MICROS / 1e6
    common = {"epsilon": 1.0, "delta": 1e-6, "window": WINDOW, "start": start, "max_contributions": 20}
    common |= {"end": start + options.windows * WINDOW, "shards": options.shards}
    with cluster(scratch / "cluster", job_server_jar(), f"--task-manager-memory={options.memory}") as running:
        for over in OVERS:
            parameters = common | {"over": over}
            run_in(running, files, scratch / "warm", SOME, parameters, 2)
            for slots in SLOTS:
                costs = {
                    name: run_in(running, files, scratch / f"{slots}", name, parameters, slots) for name in (ALL, SOME)
                }
                yield describe(over, slots, files, costs)
            same = [read_row_file(f"{scratch}/{slots} {over} {ALL}.parquet", KeyCount) for slots in SLOTS]
            assert same[0] == same[1], "two slots published other rows"


def run_in(
    running: RunningCluster,
    files: dict[str, tuple[str, int]],
    output: Path,
    name: str,
    parameters: dict[str, Any],
    slots: int,
) -> Cost:
    """Run one job with so many slots and cores."""
    running.use_cores(set(sorted(os.sched_getaffinity(0))[:slots]))
    path = f"{output} {parameters['over']} {name}"
    cost = on_cluster(running, counts, files[name][0], path, parameters, slots, mode="streaming")
    print(f"{parameters['over']}, {slots} slots, {name}: {cost.wall_seconds:.1f} s", flush=True)
    return cost


def describe(over: str, slots: int, files: dict[str, tuple[str, int]], costs: dict[str, Cost]) -> dict[str, Any]:
    """Return a row: what further events take."""
    more = files[ALL][1] - files[SOME][1]
    wall, cpu = (getattr(costs[ALL], field) - getattr(costs[SOME], field) for field in ("wall_seconds", "cpu_seconds"))
    return {
        "over": over,
        "slots": slots,
        "events": files[ALL][1],
        "wall_seconds": round(costs[ALL].wall_seconds, 1),
        "further_events_per_second": round(more / wall),
        "further_events_per_cpu_second": round(more / cpu),
        "load_average": load_average(),
    }


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw a bar for each row."""
    figure = Figure(figsize=(7, 2.8), layout="constrained")
    axes = figure.subplots()
    labels = [f"over {row['over']}, {row['slots']} slots" for row in rows]
    bars = axes.barh(labels, [row["further_events_per_second"] for row in rows], color="tab:blue")
    axes.bar_label(
        bars, [f"{row['further_events_per_second']:,}  ({row['times_one_slot']} times)" for row in rows], padding=3
    )
    axes.set(xlabel="further events per second", xlim=(0, 1.35 * max(row["further_events_per_second"] for row in rows)))
    axes.spines[["top", "right"]].set_visible(False)
    axes.invert_yaxis()
    figure.savefig(path, dpi=150)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--users", type=int, default=200_000)
    arguments.add_argument("--items", type=int, default=50_000)
    arguments.add_argument("--windows", type=int, default=60)
    arguments.add_argument("--events", type=int, default=6_000_000, help="about so many")
    arguments.add_argument("--shards", type=int, default=16, help="of people and items")
    arguments.add_argument("--memory", default="3g", help="of each of two task managers")
    options = arguments.parse_args()
    if options.quick:
        options.users, options.items, options.windows, options.events = 2_000, 500, 8, 20_000
    folder = results_folder(options)
    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as scratch:
        rows = list(measure(write_events(Path(scratch), options), Path(scratch), options))
    one = {row["over"]: row["further_events_per_second"] for row in rows if row["slots"] == 1}
    for row in rows:
        row["times_one_slot"] = round(row["further_events_per_second"] / one[row["over"]], 2)
    write_csv(folder / "flink_slots.csv", rows)
    plot(rows, folder / "flink_slots.png")
    print_table("counts per key in one slot and in two", rows)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
