"""The page and the picture of peers.py."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from _peer_workload import DELTA, EPSILON, LEAST_PEOPLE
from _report import load_average
from matplotlib.figure import Figure

Rows = Sequence[dict[str, Any]]
PACKAGES = (
    "privstream",
    "apache-beam",
    "pipeline-dp",
    "opendp",
    "dp-accounting",
    "jax-privacy",
    "duckdb",
    "numpy",
    "pyarrow",
)
FLINK_VERSION = Path(__file__).parents[1] / "deploy" / "flink_version"
COLOURS = {"private": "tab:orange", "exact": "tab:grey"}
ASKED = {
    "counts": "How many people have each item in each window? Nobody knew the items before.",
    "heavy-hitters": f"Which items do many people have in a window? Exact engines list those that {LEAST_PEOPLE} have.",
    "top-k": "Which ten items of a public list do most people have in each window? OpenDP's noisy top k pays for ten "
    "selections; where a person has one item, as here, privstream ranks noisy counts, and so do the others.",
    "histogram": "How many events of each of ten categories were there until the end of each window? One event is "
    "protected. Plain Beam counts window by window; the sums are taken afterwards.",
    "quantiles": "What are the quantiles 0.5, 0.9 and 0.99 of a number in each window? Plain Beam's are approximate.",
    "cardinality": "How many people are in the building at the end of each window? The peers, and plain Beam, need "
    "everybody to say so in every window, as here; privstream and DuckDB take the last word, privstream also where "
    "somebody sends nothing.",
}
PAGE = """# Peers, one report

Written by `make bench-peers` on {date}; do not edit. One run of each, on a machine with {cores} cores and {memory} of
memory: {system}, Python {python}; {versions}.
The load average was {load} (where it is above the number of cores, other programs ran too, and all are slower).

{people:,} people have one event in each of {windows} hourly windows, in a Parquet file: an item of 2,000, one of ten
categories, a value, and a move in or out. So no library drops or cuts anything, and errors are those of noise alone, in
one run: small differences are chance.
All private libraries get epsilon = {epsilon:g} and delta = {delta:g} for one person in all windows together. PipelineDP
composes by its naive accountant, OpenDP by zero-concentrated privacy, the program by hand and privstream by the exact
Gaussian curve. Every answer is a program of its own, from its start to its file of rows: CPU
seconds are those of all its threads, and memory that of its largest process. `start` is what the library takes for
1,200 events of its first question: imports, which are most of a short run. Exact engines have no privacy.

The libraries differ in more than speed: privstream reads a stream, remembers who has contributed, and restarts; OpenDP
and the program by hand get numbers that numpy has counted in memory.

![events per CPU second](peers.png)
{questions}{large}
## Left out

{left_out}
"""
LARGE = """
## Many events

The same kind of file with {events:,} events and up to 20,000 items: privstream, and engines without privacy on one core
each. For Java, `start` includes compiling. Flink SQL is tuned: windows by `TUMBLE`, two phases of aggregation,
mini-batches, state on the heap ([the queries](../_flink_sql.py)).

| question | engine | events per CPU second | CPU seconds | start | peak memory |
|---|---|---:|---:|---:|---:|
"""


def write_page(path: Path, rows: Rows, large: Rows, left_out: Sequence[str], workload: tuple[int, int]) -> None:
    """Write the page."""
    page = PAGE.format(
        date=datetime.now(UTC).date(),
        cores=os.cpu_count(),
        memory=_memory(),
        system=platform.system(),
        python=platform.python_version(),
        versions=_versions(flink=any("Flink" in row["engine"] for row in large)),
        load=_loads([*rows, *large]),
        people=workload[0],
        windows=workload[1],
        epsilon=EPSILON,
        delta=DELTA,
        questions="".join(_question(name, rows) for name in dict.fromkeys(row["question"] for row in rows)),
        large=_large(large) if large else "",
        left_out="\n".join(f"- {reason}." for reason in left_out),
    )
    path.write_text(page)


def _question(name: str, rows: Rows) -> str:
    own = [row for row in rows if row["question"] == name]
    lines = [f"\n## {name}\n\n{ASKED[name]}\n", f"Error: {own[0]['error_of'].partition(';')[0]}.\n"]
    lines.append("| | | events per CPU second | CPU seconds | start | peak memory | error | |")
    lines.append("|---|---|---:|---:|---:|---:|---:|---|")
    for row in own:
        note = row["error_of"].partition("; ")[2]
        speed = f"{row['events_per_cpu_second']:,} | {_seconds(row)} | {row['peak_megabytes']:,} MB"
        lines.append(f"| {row['library']} | {row['kind']} | {speed} | {row['error']:,g} | {note} |")
    return "\n".join(lines) + "\n"


def _large(rows: Rows) -> str:
    lines = [
        f"| {row['question']} | {row['engine']} | {row['events_per_cpu_second']:,} | {_seconds(row)} | "
        f"{row['peak_megabytes']:,} MB |\n"
        for row in rows
    ]
    return LARGE.format(events=rows[0]["events"]) + "".join(lines)


def _seconds(row: dict[str, Any]) -> str:
    start = row["start_cpu_seconds"]
    return f"{row['cpu_seconds']:.1f} | {'' if start is None else f'{start:.1f}'}"


def _versions(*, flink: bool) -> str:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join([*found, f"Flink {FLINK_VERSION.read_text().strip()}"] if flink else found)


def _memory() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB"


def _loads(rows: Rows) -> str:
    loads = [row["load_average"] for row in rows] or [load_average()]
    return f"{min(loads):g} to {max(loads):g}"


def picture(rows: Rows, path: Path) -> None:
    """Draw events per CPU second, one part for each question."""
    names = list(dict.fromkeys(row["question"] for row in rows))
    figure = Figure(figsize=(11, 2.2 * -(-len(names) // 2)), layout="constrained")
    axes = figure.subplots(-(-len(names) // 2), min(2, len(names)), squeeze=False, sharex=True).reshape(-1)
    for name, part in zip(names, axes, strict=False):
        own = [row for row in rows if row["question"] == name]
        colours = ["tab:blue" if row["library"] == "privstream" else COLOURS[row["kind"]] for row in own]
        bars = part.barh([row["library"] for row in own], [row["events_per_cpu_second"] for row in own], color=colours)
        part.bar_label(bars, [f"{row['events_per_cpu_second']:,}" for row in own], padding=3, fontsize=8)
        part.set(xscale="log", title=name, xlim=(300, 5e6))
        part.invert_yaxis()
        part.spines[["top", "right"]].set_visible(False)
    for part in axes[len(names) :]:
        part.set_visible(False)
    figure.supxlabel("events per CPU second, imports included", fontsize="medium")
    figure.savefig(path, dpi=130)
