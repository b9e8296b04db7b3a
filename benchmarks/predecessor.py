"""Predecessor search and range counts: errors against t and u, and the CPU time and state of ten million updates.

Usage: python benchmarks/predecessor.py [--quick] [--updates 10000000]

Writes predecessor_errors.csv, predecessor_speed.csv and predecessor.png to benchmarks/results. Errors: what is promised
before any data (beta = 0.05, all queries at all steps), and for 300 random queries at the last step of one run the
largest bound that came with an answer and the largest error seen, beside the orders of Theorem 2 and Lemma 26 of
Henzinger, Sricharan and Steiner (2023), with constant 1 and natural logarithms.
"""

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
from _report import load_average, parser, print_table, results_folder, write_csv
from matplotlib.figure import Figure
from privstream.mechanisms import DynamicPredecessor, IncrementalPredecessor, RangeCounter, SeededNoise, Updates
from privstream.mechanisms.points.dynamic_predecessor import NO_POINT

EPSILON, BETA, QUERIES = 1.0, 0.05, 300
STEPS, UNIVERSE = 64, 1 << 16
BATCHES = 100  # of updates whose time is taken: one in each step
COLOURS = {"range counts": "#1f6fb4", "dynamic": "#2b8a3e", "incremental": "#b3261e"}


def order(method: str, steps: int, universe: int) -> float:
    """Return the order of the published bound."""
    log_u, log_t = math.log(universe), math.log(steps)
    if method == "incremental":
        return 2 * log_u * math.log(universe / BETA) * math.sqrt(math.log(steps / BETA))  # 1 + 1/epsilon = 2
    return math.pow(log_u * log_t, 1.5) * math.sqrt(math.log(universe * steps / BETA))


def errors(steps: int, universe: int, size: int) -> list[dict[str, Any]]:
    """Return promised errors and those seen of each method, after `size` random points in so many steps."""
    rng = np.random.default_rng(1)
    batches = np.array_split(rng.integers(1, universe + 1, size), steps)
    queries, others = rng.integers(1, universe + 1, QUERIES), rng.integers(1, universe + 1, QUERIES)
    noise = SeededNoise(1)
    shared: dict[str, Any] = {"epsilon": EPSILON, "universe": universe, "horizon": steps}
    counter = RangeCounter(**shared)
    dynamic, incremental = DynamicPredecessor(**shared), IncrementalPredecessor(**shared)
    state, marks = counter.initial_state(), incremental.initial_state()
    for batch in batches:
        state = counter.update(state, Updates(batch))
        marks = incremental.update(marks, Updates(batch), noise)
    low, high = np.minimum(queries, others), np.maximum(queries, others)
    held = state.points
    off = np.abs(counter.count(state, low, high, noise) - (held.below(high + 1) - held.below(low)))
    every: dict[str, Any] = {"answers": universe * (universe + 1) // 2, "every_step": True}
    found = {"range counts": (counter.error(steps, BETA), counter.errors_at(steps, low, high, BETA, **every), off)}
    for name, promised, near in (
        ("dynamic", dynamic.error(steps), dynamic.answer(state, queries, noise)),
        ("incremental", incremental.error(steps), incremental.answer(marks, queries)),
    ):
        above = np.where(near.successors == NO_POINT, universe, near.successors)
        below = held.below(queries + 1) - held.below(near.predecessors)
        found[name] = promised, near.errors, np.maximum(below, held.below(above + 1) - held.below(queries))
    return [
        {"steps": steps, "universe": universe, "method": name, "promised": promised}
        | {"largest_bound": int(bounds.max()), "mean_bound": round(float(bounds.mean()))}
        | {"largest_seen": int(seen.max()), "published_order": round(order(name, steps, universe))}
        for name, (promised, bounds, seen) in found.items()
    ]


def speed(updates: int) -> list[dict[str, Any]]:
    """Return CPU time and bytes of state at u = 2^32, for insertions."""
    rows = []
    noise, universe = SeededNoise(1), 1 << 32
    counter = RangeCounter(epsilon=EPSILON, universe=universe, horizon=BATCHES)
    incremental = IncrementalPredecessor(epsilon=EPSILON, universe=universe, horizon=BATCHES)
    batches = np.array_split(np.random.default_rng(2).integers(1, universe + 1, updates), BATCHES)
    methods: dict[str, Any] = {"range counts and dynamic": counter, "incremental": incremental}
    for name, mechanism in methods.items():
        state: Any = mechanism.initial_state()
        start = time.process_time()
        for batch in batches:
            more = (noise,) if mechanism is incremental else ()
            state = mechanism.update(state, Updates(batch), *more)
        took = time.process_time() - start
        size, held = len(mechanism.snapshot(state)), sum(map(len, state.points.runs))
        row = {"method": name, "updates": updates, "cpu_seconds": round(took, 2)}
        row |= {
            "updates_per_cpu_second": round(updates / took),
            "microseconds_per_update": round(1e6 * took / updates, 3),
        }
        row |= {"points_held": held, "state_bytes": size, "bytes_per_point": round(size / held, 2)}
        rows.append(row | {"load_average": load_average()})
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw errors against the number of steps and against the universe."""
    figure = Figure(figsize=(12.5, 5.5), dpi=130, layout="constrained")
    choices = (("steps", "universe", UNIVERSE), ("universe", "steps", STEPS))
    for axes, (by, fixed, value) in zip(figure.subplots(1, 2), choices, strict=True):
        for name, colour in COLOURS.items():
            line = sorted((r for r in rows if r["method"] == name and r[fixed] == value), key=lambda row: row[by])
            places = [row[by] for row in line]
            shown = (
                ("promised", "--", f"{name}: promised for any answer"),
                ("largest_bound", "-", "largest bound of an answer"),
                ("largest_seen", ".", "largest error seen"),
                ("published_order", ":", "published order"),
            )
            for column, style, label in shown:
                axes.plot(places, [max(1, row[column]) for row in line], style, color=colour, label=label, markersize=8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(f"{by}; {fixed} = {value:,}")
        axes.grid(color="#dddddd", linewidth=0.6)
    figure.axes[0].set_ylabel("error, in points")
    figure.axes[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle(f"Range counts and predecessors, epsilon = {EPSILON:g}", x=0.01, ha="left")
    figure.savefig(path)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--updates", type=int, default=10_000_000, help="for time and state (default: 10000000)")
    options = made.parse_args()
    folder = results_folder(options)
    by_steps = [4, STEPS] if options.quick else [4, 16, STEPS, 256, 1024]
    by_universe = [1 << 10] if options.quick else [1 << 10, 1 << 24, 1 << 32]
    points = [(steps, UNIVERSE) for steps in by_steps] + [(STEPS, universe) for universe in by_universe]
    found = [row for steps, universe in points for row in errors(steps, universe, 50_000)]
    write_csv(folder / "predecessor_errors.csv", found)
    draw(found, folder / "predecessor.png")
    print_table("Errors", found)
    timed = speed(100_000 if options.quick else options.updates)
    write_csv(folder / "predecessor_speed.csv", timed)
    print_table("Time", timed)


if __name__ == "__main__":
    main()
