"""What benchmarks of whole pipelines share: runs in processes of their own, events per second of one core, pictures."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
from _measure import Cost, in_own_process
from _report import load_average, print_table, write_csv
from apache_beam.options.pipeline_options import PipelineOptions
from matplotlib.figure import Figure
from privstream.pipelines import cli
from privstream.pipelines.questions import run_command  # noqa: F401  (imports are not measured)

COLOURS = {"privstream": "tab:blue", "plain Beam": "tab:orange", "library alone": "tab:grey"}
UNSHOWN = ("number", "start_megabytes", "load_average")
Files = dict[str, tuple[str, int]]
"""Paths and numbers of events by what they hold."""


class Run(NamedTuple):
    """What is measured: whose it is, what it does, on which events; a function of their path, an output and more."""

    library: str
    pipeline: str
    events: str
    function: Callable[..., None]
    more: tuple[Any, ...] = ()


def command(events: str, output: str, question: str, options: dict[str, Any]) -> None:
    """Run `privstream QUESTION` as its users do, on the runner within the process and with its settings of it."""
    given = {"input": events, "output": f"{output}.parquet"} | options
    with redirect_stderr(io.StringIO()) as printed:
        status = cli.main([question, *(f"--{name}={value}" for name, value in given.items())])
    if status:
        raise RuntimeError(printed.getvalue())


def start_beam() -> beam.Pipeline:
    """Return a pipeline for the runner within the process, without what the command sets."""
    return beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))


def one_of_each(runs: Iterable[Run], quick: bool) -> Iterator[Run]:
    """Yield all runs, or only the first one of each library if it shall be quick: each loads Beam."""
    seen = set()
    for run in runs:
        if not quick or run.library not in seen:
            yield run
        seen.add(run.library)


def measure(runs: Iterable[Run], files: Files, scratch: str, repeats: int) -> list[dict[str, Any]]:
    """Make all runs, of several repeats the one with the least CPU, and compare with the faster plain pipeline."""
    rows = []
    for number, run in enumerate(runs):
        path, events = files[run.events]
        outputs = [f"{scratch}/output-{number}-{repeat}" for repeat in range(repeats)]
        costs = [(in_own_process(run.function, path, output, *run.more), load_average()) for output in outputs]
        rows.append(_describe(run, events, *min(costs)))
        rate = rows[-1]["events_per_cpu_second"]
        print(f"{run.library}: {run.pipeline} ({run.events}): {rate:,} events a second", flush=True)
    best = max(row["events_per_cpu_second"] for row in rows if row["library"] == "plain Beam")
    for row in rows:
        row["times_plain_beam"] = round(row["events_per_cpu_second"] / best, 1)
    return sorted(rows, key=lambda row: -row["events_per_cpu_second"])


def _describe(run: Run, events: int, cost: Cost, load: float) -> dict[str, Any]:
    return {
        "library": run.library,
        "pipeline": run.pipeline,
        "events": run.events,
        "number": events,
        "events_per_cpu_second": round(events / cost.cpu_seconds),
        "cpu_seconds": round(cost.cpu_seconds, 2),
        "wall_seconds": round(cost.wall_seconds, 2),
        "peak_megabytes": cost.peak_megabytes,
        "start_megabytes": cost.start_megabytes,
        "load_average": load,
    }


def report(rows: Sequence[dict[str, Any]], title: str, folder: Path, name: str) -> None:
    """Write the table and its picture, and print it."""
    write_csv(folder / f"{name}.csv", rows)
    labels = [f"{row['library']}: {row['pipeline']}  ({row['events']})" for row in rows]
    plot_rates(rows, labels, "events per second of one core", folder / f"{name}.png")
    print_table(title, rows, [column for column in rows[0] if column not in UNSHOWN])
    print(f"results: {folder}")


def plot_rates(rows: Sequence[dict[str, Any]], labels: Sequence[str], unit: str, path: Path) -> None:
    """Draw a bar for each row."""
    height = 0.24 + 0.18 * (1 + labels[0].count("\n"))
    figure = Figure(figsize=(9, height * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots()
    rates = [row["events_per_cpu_second"] for row in rows]
    bars = axes.barh(labels, rates, color=[COLOURS[row["library"]] for row in rows])
    axes.bar_label(bars, [f"{rate:,}" for rate in rates], padding=3)
    axes.set(xscale="log", xlabel=unit, xlim=(min(rates) / 3, max(rates) * 6))
    axes.spines[["top", "right"]].set_visible(False)
    axes.invert_yaxis()
    figure.savefig(path, dpi=150)
