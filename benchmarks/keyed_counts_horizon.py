"""Counts per key of every window beside the clock, by the number of windows: who finds what, and how exactly.

Usage: python benchmarks/keyed_counts_horizon.py [--quick] [--windows 10 30 100 300 1000]

A million people, of whom one in twenty has one of 10,000 items in a window, by Zipf's law; the same items are popular
in all windows, and nobody knew them. epsilon = 1, delta = 1e-6 for one person over all windows. Counts are Gaussian,
for a person who takes part in every window; the clock lets a person be in 4 or 16 hits and then ignores that person.
`finds` is the number of people from which on an item is found with probability 0.99 in 10,000 tests at once.

Writes keyed_counts_horizon.csv and a picture of it to benchmarks/results.
"""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _methods import Task, monitor
from _report import load_average, parser, print_table, results_folder, write_csv
from _streams import Step, Zipf
from matplotlib.figure import Figure
from privstream.mechanisms import KeyedCounts, KeyedStep, SeededNoise

EPSILON, DELTA, BETA, TESTS, TOP = 1.0, 1e-6, 0.01, 10_000, 10


def counted(stream: Iterable[Step], mechanism: KeyedCounts) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the items that are published at each step, and their noisy counts."""
    state, noise = mechanism.initial_state(), SeededNoise(1)
    for number, step in enumerate(stream, start=1):
        items, counts = step.counts
        state, rows = mechanism.step(state, KeyedStep(step=number, keys=items, counts=counts), noise)
        yield rows.keys, rows.counts


def measured(stream: Iterable[Step], reports: Iterator[Any]) -> dict[str, Any]:
    """Return what was found in each window: items, the part of the true top ten, and the error of counts."""
    published, best, off = [], [], []
    for step, report in zip(stream, reports, strict=True):
        found, noisy = report if isinstance(report, tuple) else (report, None)
        items, counts = step.counts
        published.append(len(found))
        best.append(np.isin(items[np.argsort(-counts)[:TOP]], found).mean())
        if noisy is not None:
            off.append(noisy - counts[np.searchsorted(items, found)])
    errors = np.concatenate(off) if off else np.zeros(0)
    return {
        "items_per_window": round(float(np.mean(published)), 1),
        "top_ten_found": round(float(np.mean(best)), 3),
        "top_ten_found_at_the_end": round(float(np.mean(best[-len(best) // 10 :])), 3),
        "count_rms": round(float(np.sqrt(np.mean(errors**2))), 1) if len(errors) else None,
    }


def compare(data: Zipf) -> list[dict[str, Any]]:
    """Return a row for each method."""
    task = Task(epsilon=EPSILON, delta=DELTA, beta=BETA, steps=data.steps, tests=TESTS)
    mechanism = KeyedCounts(epsilon=EPSILON, delta=DELTA, horizon=data.steps, contributions=data.steps)
    start, rows = time.process_time(), []
    found = measured(data.stream(1), counted(data.stream(1), mechanism))
    first = {"method": "counts", "windows": data.steps, "finds": mechanism.detection(1, BETA, TESTS)}
    rows.append(first | found | {"cpu_seconds": round(time.process_time() - start, 1)})
    for hits in (4, 16):
        method, start = monitor(task, "clock", hits), time.process_time()
        found = measured(data.stream(1), method.report(data.stream(1), 1))
        first = {"method": method.name, "windows": data.steps, "finds": method.finds}
        rows.append(first | found | {"cpu_seconds": round(time.process_time() - start, 1)})
    return [row | {"load_average": load_average()} for row in rows]


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(11, 4), layout="constrained")
    titles = {"finds": "people with whom an item is found", "top_ten_found": "part of the true top ten found"}
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
    users, windows = (20_000, [10]) if options.quick else (1_000_000, options.windows)
    rows = []
    for steps in windows:
        rows += compare(Zipf(users=users, items=10_000, steps=steps, quietest=0.05, busiest=0.05))
        print(f"{steps:,} windows done", flush=True)
    folder = results_folder(options)
    write_csv(folder / "keyed_counts_horizon.csv", rows)
    plot(rows, folder / "keyed_counts_horizon.png")
    print_table(f"{users:,} people, epsilon {EPSILON:g}, delta {DELTA:g}", rows)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
