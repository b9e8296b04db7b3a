"""Counts since the start of keys that nobody knew, by the number of windows, beside PipelineDP (if installed).

Usage: python benchmarks/keyed_counts_peers.py [--quick] [--windows 10 30 100 300 1000]

A hundredth of the workload of DP-SQLP (_keyed_workload.py): 100,000 people and 10,000 keys, for PipelineDP's local
runner takes minutes for more. A person counts once per key, for at most 32 keys in all; epsilon = 6, delta = 1e-9. At
the last window estimates are compared with the numbers of people of all keys that count; a key that is not published
counts as zero.

PipelineDP selects keys privately, in two ways that publish at every window. Windows added up: each window publishes
keys and counts of its own; this is one aggregation of pairs of window and key, so that nothing is lost by composition.
All so far: keys and counts of everything until now at each window, each with a share of the budget by the exact
composition of Gaussian noise; only the last window is computed.

Writes keyed_counts_peers.csv and a picture of it to benchmarks/results.
"""

import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from _keyed_peers import Integers, installed, pipeline_dp
from _keyed_workload import KEYS, PEOPLE, Contributions, contributions
from _report import load_average, parser, print_table, results_folder, write_csv
from matplotlib.figure import Figure
from privstream.mechanisms import KeyedCounts, KeyedStep, SeededNoise
from privstream.mechanisms.privacy.accounting import GaussianCurve, largest_shift

EPSILON, DELTA, LIMIT = 6.0, 1e-9, 32
Estimates = dict[int, float]


def privstream(given: Contributions, windows: int) -> Estimates:
    mechanism = KeyedCounts(
        epsilon=EPSILON, delta=DELTA, over="start", horizon=windows, contributions=LIMIT, contributions_per_key=1
    )
    state = mechanism.initial_state()
    for step, counts in enumerate(given.per_step(LIMIT, windows, 0, len(given.records)), start=1):
        keys = np.flatnonzero(counts)
        brought = KeyedStep(step=step, keys=keys.astype(np.uint64), counts=counts[keys])
        state, rows = mechanism.step(state, brought, SeededNoise(2))
    return dict(zip(rows.keys.tolist(), rows.counts.tolist(), strict=True))


def windows_added_up(given: Contributions, windows: int) -> Estimates:
    window = (given.times * np.float64(windows)).astype(np.int64)
    pairs = list(zip(window.tolist(), given.keys.tolist(), strict=True))
    rows = [(person, pair, 0.0) for person, pair in zip(given.people.tolist(), pairs, strict=True)]
    sums: Counter[int] = Counter()
    for (_, key), (count, _) in pipeline_dp(rows, EPSILON, DELTA, LIMIT, None).items():
        sums[key] += count
    return dict(sums)


def all_so_far(given: Contributions, windows: int) -> Estimates:
    rows = [(person, key, 0.0) for person, key in zip(given.people.tolist(), given.keys.tolist(), strict=True)]
    each = DELTA / (4 * windows)  # selections and counts get half of delta for their noise, and half for the rest
    shift = largest_shift(EPSILON, DELTA / 2) / math.sqrt(2 * windows)
    released = pipeline_dp(rows, 2 * GaussianCurve(shift=shift).epsilon(each), 2 * each, LIMIT, None)
    return {key: count for key, (count, _) in released.items()}


METHODS = {
    "privstream": privstream,
    "PipelineDP, windows added up": windows_added_up,
    "PipelineDP, all so far": all_so_far,
}


def measure(name: str, given: Contributions, windows: int, people: Integers) -> dict[str, Any]:
    """Return the figures of a method."""
    start = time.process_time()
    found = METHODS[name](given, windows)
    seconds = time.process_time() - start
    estimates = np.zeros(len(people))
    estimates[list(found)] = list(found.values())
    errors = np.abs(estimates - people)
    published = errors[list(found)]
    return {
        "method": name,
        "windows": windows,
        "keys": len(found),
        "rms_published": round(float(np.sqrt(np.mean(published**2))), 1) if len(published) else None,
        "largest_error": round(float(errors.max())),
        "l1_error": round(float(errors.sum())),
        "l2_error": round(float(np.sqrt(errors @ errors))),
        "cpu_seconds": round(seconds, 1),
        "load_average": load_average(),
    }


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(11, 4), layout="constrained")
    titles = {"keys": "keys published", "l2_error": "l2 error, of all keys"}
    for axes, (column, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        for name in dict.fromkeys(row["method"] for row in rows):
            several = [row for row in rows if row["method"] == name]
            axes.plot([row["windows"] for row in several], [row[column] for row in several], "o-", label=name)
        axes.set(xscale="log", xlabel="windows", title=title, ylim=(0, None))
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__)
    made.add_argument("--windows", type=int, nargs="+", default=[10, 30, 100, 300, 1000])
    options = made.parse_args()
    part, windows = (5000, [2, 4]) if options.quick else (100, options.windows)
    given = contributions(PEOPLE // part, KEYS // part, LIMIT, LIMIT)
    people = np.bincount(given.keys, minlength=KEYS // part)
    names = list(METHODS) if installed("pipeline_dp", "PipelineDP") else ["privstream"]
    rows = []
    for number in windows:
        rows += [measure(name, given, number, people) for name in names]
        print(f"{number:,} windows done", flush=True)
    folder = results_folder(options)
    write_csv(folder / "keyed_counts_peers.csv", rows)
    plot(rows, folder / "keyed_counts_peers.png")
    print_table(f"{PEOPLE // part:,} people, epsilon 6, delta 1e-9", rows)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
