"""Continual counters: error against the length of the stream and the number of columns, theory beside measurement, and
time per step.

Usage: python benchmarks/continual_counters.py [--quick]

Writes continual_counters_error.csv, continual_counters_columns.csv, continual_counters_time.csv and a picture of each
to benchmarks/results. All at epsilon = 1, for rows that change one column by 1. The peer, jax-privacy (if installed),
gives its buffered linear Toeplitz mechanism the same (epsilon, delta), with continuous noise.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
from _counters import (
    BETA,
    DELTA,
    JAX,
    KINDS,
    LONGEST_SQUARE_ROOT,
    JaxCounter,
    Kind,
    counter,
    has_jax,
    largest_of_columns,
    measured,
    rms,
    spend,
    state_bytes,
)
from _measure import in_own_process
from _report import load_average, parser, print_table, results_folder, write_csv
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

CELLS = 1 << 23  # noise variables of a measured run: steps times columns
MOST_COLUMNS = 1000
COLOURS = {
    "binary tree": "tab:red",
    "bottom-up tree": "tab:orange",
    "k-ary tree": "tab:blue",
    "unknown horizon": "tab:grey",
    "unknown horizon, repeatable": "tab:pink",
    "square root": "tab:green",
    "buffered, 3": "tab:cyan",
    "buffered, 4": "tab:blue",
    JAX: "tab:purple",
}


def errors(kind: Kind, steps: int) -> dict[str, Any]:
    """Return the error of a counter at one length."""
    made = counter(kind, steps)
    row: dict[str, Any] = {
        "counter": kind.name,
        "delta": kind.delta,
        "steps": steps,
        "rms": rms(made, steps),
        "rms_of_last_step": math.sqrt(made.variance(steps)),
        "largest_95": made.error(steps, BETA),
    }
    row |= {"measured_rms": None, "measured_largest_95": None, "columns_measured": 0}
    if kind.name != "square root" or steps <= LONGEST_SQUARE_ROOT:
        columns = min(MOST_COLUMNS, CELLS // steps)
        found = measured(kind, steps, columns, seed=steps)
        row |= {"measured_rms": found[0], "measured_largest_95": found[1], "columns_measured": columns}
    return row


def column_errors(kind: Kind, steps: int, columns: int) -> dict[str, Any]:
    """Return the error of a counter with so many columns."""
    runs = max(3, 100 // columns)
    stated, found = largest_of_columns(kind, steps, columns, runs)
    row = {"counter": kind.name, "delta": kind.delta, "steps": steps, "columns": columns}
    return row | {"largest_95": stated, "measured_largest_50": found, "runs": runs}


def jax_errors(steps: int) -> dict[str, Any]:
    """Return the error of the peer: it states no mean and no quantile."""
    peer = JaxCounter(steps)
    columns = min(MOST_COLUMNS, CELLS // steps)
    noise, _ = peer.noise(steps, columns, block=min(steps, 1 << 14))
    return {
        "counter": JAX,
        "delta": DELTA,
        "steps": steps,
        "rms": None,
        "rms_of_last_step": peer.last_rms(),
        "largest_95": None,
        "measured_rms": math.sqrt(float(np.mean(noise**2))),
        "measured_largest_95": float(np.quantile(np.abs(noise).max(axis=0), 0.95)),
        "columns_measured": columns,
    }


def times(kind: Kind, steps: int, columns: int) -> dict[str, Any]:
    """Return what a run costs."""
    cost = in_own_process(_spend, KINDS.index(kind), steps, columns)
    return {
        "counter": kind.name,
        "delta": kind.delta,
        "steps": steps,
        "columns": columns,
        "seconds_per_million_steps": cost.cpu_seconds / steps * 1e6,
        "state_bytes": state_bytes(kind, steps, columns),
        "peak_megabytes": cost.peak_megabytes,
        "load_average": load_average(),
    }


def _spend(index: int, steps: int, columns: int) -> None:
    spend(KINDS[index], steps, columns)


def jax_times(steps: int, columns: int) -> dict[str, Any]:
    """Return what the peer's noise costs."""
    peer = JaxCounter(max(steps, 10_000))
    _, seconds = peer.noise(steps, columns)
    return {
        "counter": JAX,
        "delta": DELTA,
        "steps": steps,
        "columns": columns,
        "seconds_per_million_steps": seconds / steps * 1e6,
        "state_bytes": 8 * columns * (peer.buffers + 1),
        "peak_megabytes": None,
        "load_average": load_average(),
    }


def plot_errors(rows: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(12, 5), layout="constrained")
    for axes, delta in zip(figure.subplots(1, 2, sharey=True), (0.0, DELTA), strict=True):
        for name, colour in COLOURS.items():
            several = [row for row in rows if (row["counter"], row["delta"]) == (name, delta)]
            if not several:
                continue
            stated = [row for row in several if row["largest_95"] is not None]
            if stated:
                at = [row["steps"] for row in stated]
                axes.plot(at, [row["largest_95"] for row in stated], color=colour, label=name)
            found = [row for row in several if row["measured_largest_95"] is not None]
            label = None if stated else f"{name} (measured)"
            at, heights = [row["steps"] for row in found], [row["measured_largest_95"] for row in found]
            axes.plot(at, heights, "o" if stated else "x", color=colour, markersize=5, label=label)
        axes.set(xscale="log", yscale="log", xlabel="steps", title=f"delta = {delta:g}")
        axes.set_xscale("log", base=2)
        axes.set_yticks([30, 50, 100, 200, 500], ["30", "50", "100", "200", "500"])
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="upper left")
    figure.axes[0].set_ylabel("largest error of a run, 95% quantile")
    figure.suptitle("One column at epsilon = 1. Lines: what error() states. Dots: measured.")
    figure.savefig(path, dpi=130)


def plot_columns(rows: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(12, 5), layout="constrained")
    for axes, delta in zip(figure.subplots(1, 2, sharey=True), (0.0, DELTA), strict=True):
        for name, colour in COLOURS.items():
            several = [row for row in rows if (row["counter"], row["delta"]) == (name, delta)]
            if several:
                at = [row["columns"] for row in several]
                axes.plot(at, [row["largest_95"] for row in several], color=colour, label=name)
                axes.plot(at, [row["measured_largest_50"] for row in several], "o", color=colour, markersize=5)
        axes.set(xscale="log", yscale="log", xlabel="columns", title=f"delta = {delta:g}")
        axes.set_yticks([50, 100, 200, 300], ["50", "100", "200", "300"])
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="lower right" if delta == 0 else "upper left")
    figure.axes[0].set_ylabel("largest error in any column")
    title = f"{rows[0]['steps']:,} steps, rows with a single one, epsilon = 1"
    figure.suptitle(f"{title}. Lines: error(), with probability 95%. Dots: measured, medians.")
    figure.savefig(path, dpi=130)


def plot_times(rows: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(8, 0.4 * len(rows) + 1.3), layout="constrained")
    axes = figure.subplots()
    labels = [f"{row['counter']}, delta {row['delta']:g}" for row in rows]
    heights = [row["seconds_per_million_steps"] for row in rows]
    bars = axes.barh(labels, heights, color=[COLOURS[row["counter"]] for row in rows])
    notes = [f" (from {row['steps']:,} steps; grows)" if row["counter"] == "square root" else "" for row in rows]
    axes.bar_label(bars, [f"{height:.3g} s{note}" for height, note in zip(heights, notes, strict=True)], padding=3)
    axes.set(xscale="log", xlabel=f"CPU seconds for a million steps of {rows[0]['columns']} columns")
    axes.set_xlim(right=50 * max(heights))
    axes.invert_yaxis()
    figure.savefig(path, dpi=130)


def main() -> None:
    options = parser(__doc__).parse_args()
    folder = results_folder(options)
    lengths = [1 << power for power in ((6, 8) if options.quick else range(10, 21, 2))]
    steps, columns = (200, 4) if options.quick else (200_000, 100)
    rows = []
    for length in lengths:
        rows += [errors(kind, length) for kind in KINDS]
        if has_jax() and not options.quick and length in lengths[::2]:  # its optimisation takes minutes
            rows.append(jax_errors(length))
        print(f"errors at {length:,} steps done", flush=True)
    write_csv(folder / "continual_counters_error.csv", rows)
    plot_errors(rows, folder / "continual_counters_error.png")
    print_table("errors", [row for row in rows if row["steps"] == lengths[-1]])
    wide = [10**power for power in ((0, 1) if options.quick else range(5))]
    by_columns = [column_errors(kind, lengths[0], columns) for columns in wide for kind in KINDS]
    write_csv(folder / "continual_counters_columns.csv", by_columns)
    plot_columns(by_columns, folder / "continual_counters_columns.png")
    costs = []
    for kind in (KINDS[0], KINDS[-1]) if options.quick else KINDS:  # each in a process of its own
        costs.append(times(kind, min(steps, LONGEST_SQUARE_ROOT) if kind.name == "square root" else steps, columns))
        print(f"{kind.name}, delta {kind.delta:g}: {costs[-1]['seconds_per_million_steps']:.3g} s", flush=True)
    if has_jax() and not options.quick:
        costs.append(jax_times(20_000, columns))
    elif not has_jax():
        print("jax-privacy is not installed: pip install 'privstream[bench]'")
    write_csv(folder / "continual_counters_time.csv", costs)
    plot_times(costs, folder / "continual_counters_time.png")
    print_table(f"time and memory, {columns} columns", costs)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
