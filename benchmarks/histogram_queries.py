"""Live histograms: error of all modes against the length of the stream, the number of columns, and the largest sum.

Usage: python benchmarks/histogram_queries.py [--quick]

Writes histogram_queries.csv, histogram_peers.csv and a picture of each to benchmarks/results. `bound` is what is stated
before a run, `row_bound` the largest that came with an answer of it. All at epsilon = 1. Rows
are independent in all columns, as in the published figures (476, 777 and 1,121 at largest sums of 10^3, 10^4 and 10^5
for 2^20 steps and 10 columns); in the part on columns each row has a single one. The peer, PipelineDP (if installed),
releases windows one by one under composition.
"""

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
from _histogram_peers import has_pipeline_dp, running_counts, window_counts
from _report import load_average, parser, print_table, results_folder, write_csv
from matplotlib.figure import Figure
from numpy.typing import NDArray
from privstream.mechanisms.counters.trees import BinaryTreeCounter
from privstream.mechanisms.histograms.histogram_queries import HistogramQueries
from privstream.mechanisms.noise.sources import SeededNoise

EPSILON, DELTA, BETA = 1.0, 1e-6, 0.05
METHODS = [("anchored", 0.0), ("direct", 0.0), ("paper", 0.0), ("binary tree", 0.0)]
METHODS += [("anchored", DELTA), ("direct", DELTA), ("paper", DELTA)]
COLOURS = {"anchored": "tab:blue", "direct": "tab:green", "paper": "tab:red", "binary tree": "tab:grey"}
PUBLISHED = {10**3: 476, 10**4: 777, 10**5: 1121}
BLOCK = 1 << 13  # steps at once


def sweeps(quick: bool) -> list[dict[str, Any]]:
    """Return what is varied, and what is kept."""
    if quick:
        return [{"sweep": "steps", "steps": 256, "columns": 4, "largest": 50, "row_columns": None}]
    base = {"steps": 1 << 16, "columns": 10, "largest": 10**4, "row_columns": None}
    found = [base | {"sweep": "steps", "steps": 1 << power} for power in range(10, 21, 2)]
    found += [base | {"sweep": "largest", "largest": 10**power} for power in range(2, 6)]
    narrow = {"steps": 1 << 10, "largest": 10**4, "row_columns": 1, "sweep": "columns"}
    return found + [narrow | {"columns": 10**power} for power in range(1, 5)]


def mechanism(method: str, delta: float, case: dict[str, Any]) -> Any:
    """Return a mechanism for a case."""
    options = {"epsilon": EPSILON, "delta": delta} | {name: case[name] for name in ("columns", "row_columns")}
    if method == "binary tree":
        return BinaryTreeCounter(horizon=case["steps"], **options)
    return HistogramQueries(mode=method, horizon=case["steps"], largest=case["largest"], beta=BETA, **options)


def bound(made: Any, case: dict[str, Any]) -> int:
    """Return what the mechanism states of its error."""
    return int(made.error(case["steps"], BETA) if isinstance(made, BinaryTreeCounter) else made.error(case["largest"]))


def row_bound(made: Any, case: dict[str, Any], state: Any) -> int:
    """Return the largest bound that came with an answer of a run."""
    if isinstance(made, BinaryTreeCounter):
        return bound(made, case)
    return max(
        made.error_bound(case["steps"], interval) for interval in {*range(min(state.interval, 5000)), state.interval}
    )


def measure(made: Any, case: dict[str, Any], seed: int) -> dict[str, float]:
    """Return the largest and the root mean squared error of a run, its bound, CPU seconds and snapshot size."""
    rng, state = np.random.default_rng(seed), made.initial_state()
    sums, worst, squares, seconds = np.zeros(case["columns"], np.int64), 0, 0.0, 0.0
    for start in range(0, case["steps"], BLOCK):
        shape = min(BLOCK, case["steps"] - start), case["columns"]
        rows = rng.poisson(case["largest"] / case["steps"], shape)
        begun = time.process_time()
        state, published = made.run(state, rows, SeededNoise(seed))
        seconds += time.process_time() - begun
        truth = sums + np.cumsum(rows, axis=0)
        sums = truth[-1]
        off = np.abs(published - truth)
        worst, squares = max(worst, int(off.max())), squares + float(np.square(off.astype(np.float64)).sum())
    cells = case["steps"] * case["columns"]
    size = len(made.snapshot(state))
    found = {"worst": worst, "rms": math.sqrt(squares / cells), "seconds": seconds, "state_bytes": size}
    return found | {"row_bound": row_bound(made, case, state)}


def compare(case: dict[str, Any], runs: int) -> list[dict[str, Any]]:
    """Return a row for each method."""
    rows = []
    for method, delta in METHODS:
        made = mechanism(method, delta, case)
        row = {**case, "mode": method, "delta": delta, "bound": bound(made, case)}
        found = [measure(made, case, seed) for seed in range(runs)]
        row["row_bound"] = float(np.median([one["row_bound"] for one in found]))
        row["measured_worst"] = float(np.median([one["worst"] for one in found]))
        row["measured_rms"] = float(np.mean([one["rms"] for one in found]))
        row["microseconds_per_step"] = found[0]["seconds"] / case["steps"] * 1e6
        row |= {"state_bytes": found[0]["state_bytes"], "runs": runs, "load_average": load_average()}
        rows.append(row)
    return rows


def peers(windows: int, columns: int, events: float) -> list[dict[str, Any]]:
    """Return errors of windows released one by one, and of one continual mechanism, on the same events."""
    data: NDArray[np.int64] = np.random.default_rng(1).poisson(events, (windows, columns))
    truth, rows = np.cumsum(data, axis=0), []
    for delta in (0.0, DELTA):
        options = {"epsilon": EPSILON, "delta": delta, "columns": columns, "row_columns": 1, "horizon": windows}
        ours = HistogramQueries(largest=int(truth.max()), beta=BETA, **options)
        begun = time.process_time()
        _, published = ours.run(ours.initial_state(), data, SeededNoise(1))
        answers = [(f"privstream, {ours.chosen_mode}", published, time.process_time() - begun)]
        if has_pipeline_dp():
            for name, count in (("each window, added up", window_counts), ("all so far, each time", running_counts)):
                found = count(data, EPSILON, delta)
                answers.append((f"PipelineDP, {name}", found.sums, found.seconds))
        for name, sums, seconds in answers:
            off = np.abs(sums - truth)
            for window in range(windows):
                if (window + 1) & window == 0:  # powers of two
                    row = {"method": name, "delta": delta, "windows": windows, "columns": columns, "window": window + 1}
                    row["rms_up_to_it"] = float(np.sqrt(np.mean(off[: window + 1] ** 2)))
                    row["rms_around_it"] = float(np.sqrt(np.mean(off[(window + 1) // 2 : window + 1] ** 2)))
                    row["worst_up_to_it"] = float(off[: window + 1].max())
                    rows.append(row | {"cpu_seconds_of_run": seconds, "load_average": load_average()})
    return rows


def plot_sweeps(rows: list[dict[str, Any]], path: Path) -> None:
    titles = {
        "steps": "10 columns, sums up to 10,000",
        "largest": "10 columns, 2^16 steps",
        "columns": "2^10 steps, sums up to 10,000, rows with a single one",
    }
    names = {"steps": "steps", "largest": "largest sum", "columns": "columns"}
    chosen = [sweep for sweep in titles if any(row["sweep"] == sweep for row in rows)]
    figure = Figure(figsize=(5.6 * len(chosen), 5), layout="constrained")
    for axes, sweep in zip(np.atleast_1d(figure.subplots(1, len(chosen))), chosen, strict=True):
        for method, delta in METHODS:
            several = [row for row in rows if (row["sweep"], row["mode"], row["delta"]) == (sweep, method, delta)]
            at, colour, style = [row[sweep] for row in several], COLOURS[method], "--" if delta else "-"
            label = f"{method}, delta {delta:g}"
            axes.plot(at, [row["bound"] for row in several], style, color=colour, label=label)
            fill = "none" if delta else colour
            measured = [row["measured_worst"] for row in several]
            axes.plot(at, measured, "o", color=colour, markersize=5, markerfacecolor=fill)
        if sweep == "largest":
            axes.plot(list(PUBLISHED), list(PUBLISHED.values()), "k*", markersize=10, label="published, 2^20 steps")
            axes.legend(handles=axes.lines[-1:], fontsize=8, loc="upper left")
        axes.set(xscale="log", yscale="log", xlabel=names[sweep], title=titles[sweep])
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("largest error of a run")
    figure.axes[-1].legend(fontsize=8, loc="upper left")
    figure.suptitle("epsilon = 1. Lines: error(), with probability 95%. Dots: measured (open for delta = 1e-06).")
    figure.savefig(path, dpi=130)


def plot_peers(rows: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    colours = {"privstream": "tab:blue", "PipelineDP, each": "tab:orange", "PipelineDP, all": "tab:red"}
    for axes, delta in zip(figure.subplots(1, 2, sharey=True), (0.0, DELTA), strict=True):
        for name in dict.fromkeys(row["method"] for row in rows if row["delta"] == delta):
            several = [row for row in rows if (row["method"], row["delta"]) == (name, delta)]
            colour = next(colour for start, colour in colours.items() if name.startswith(start))
            axes.plot(
                [row["window"] for row in several],
                [row["rms_around_it"] for row in several],
                "o-",
                color=colour,
                label=name,
            )
        axes.set(xscale="log", yscale="log", xlabel="window", title=f"delta = {delta:g}")
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=9)
    figure.axes[0].set_ylabel("root mean squared error of the sums so far")
    figure.suptitle(f"{rows[0]['columns']} categories, {rows[0]['windows']:,} windows, epsilon = 1 for one event")
    figure.savefig(path, dpi=130)


def main() -> None:
    options = parser(__doc__).parse_args()
    folder = results_folder(options)
    rows: list[dict[str, Any]] = []
    for case in sweeps(options.quick):
        rows += compare(case, runs=1)
        print(f"{case} done", flush=True)
    write_csv(folder / "histogram_queries.csv", rows)
    plot_sweeps(rows, folder / "histogram_queries.png")
    shown = (
        "sweep",
        "steps",
        "columns",
        "largest",
        "mode",
        "delta",
        "bound",
        "row_bound",
        "measured_worst",
        "microseconds_per_step",
    )
    print_table("largest errors", rows, shown)
    found = peers(*((8, 2, 5) if options.quick else (128, 10, 20)))
    if not has_pipeline_dp():
        print("PipelineDP is not installed: pip install 'privstream[bench]'")
    write_csv(folder / "histogram_peers.csv", found)
    plot_peers(found, folder / "histogram_peers.png")
    print_table("windows one by one", [row for row in found if row["window"] == row["windows"]])
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
