"""A year of hourly windows: what each method of heavy hitters reports, how soon, and how many people it uses up.

Usage: python benchmarks/heavy_hitters_year.py [--quick] [--people 30000 100000] [--hits 1 4 16 64]

Nobody has two items in a window. Four favourites last all year; two items come every evening
for five hours, two all weekend; they have the same people every time, each in 60% of the windows. Every two days, on
average, a burst of an hour to twelve has 600 to 3,000 people of any kind. 500 people have rare items, by Zipf's law.
Nobody knew the items before. All methods keep the same (epsilon, delta) for one person over the year; those of
privstream are made as its command makes them, noisy counts included. The histograms get fresh Gaussian or Laplace noise
in every window.

An item is asked for in a window if as many people have it as "status" with 4 charges detects. Recall is the part of
what is asked for that is reported, precision the part of reports with at least half as many people. An episode is an
unbroken sequence of windows in which an item is asked for; its delay is the number of windows until it is reported.

Writes heavy_hitters_year.csv (a row for each number of people, method and kind of item), recall by month as
heavy_hitters_year_months.csv, and a picture of it to benchmarks/results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from _methods import Task
from _report import load_average, parser, print_table, results_folder, write_csv
from _standard_methods import StandardMethod, histogram_per_step, laplace_per_step
from _year import DAY, KINDS, Hour, Year
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from privstream.mechanisms import KeyedStep, SeededNoise
from privstream.mechanisms.monitor.holdings import Holdings
from privstream.mechanisms.noise.continuous import Gaussian, Laplace
from privstream.transforms import ShiftingHeavyHitters

EPSILON, DELTA, BETA = 1.0, 1e-6, 0.05
MONTH = 30 * DAY
WINDOW = 3600
ALL_KINDS = (*KINDS, "burst")

Report = Callable[[Hour, np.ndarray, np.ndarray], np.ndarray]
"""From a window, its items and how many people have each, to the items that are reported."""


@dataclass(frozen=True, eq=False)
class Method:
    """A method: its name, what it detects, what it reports, and how large a part of all people it has used up."""

    name: str
    detects: int
    report: Report
    used_up: Callable[[], int] = field(default=lambda: 0)


def monitored(hitters: ShiftingHeavyHitters, hits: int) -> Method:
    """Return a method that charges people."""
    monitor, noise = hitters.answer.monitor, SeededNoise(hits)
    states = [monitor.initial_state()]

    def report(hour: Hour, items: np.ndarray, counts: np.ndarray) -> np.ndarray:
        state, found = monitor.step(states.pop(), Holdings(step=hour.number, users=hour.users, items=hour.items), noise)
        states.append(state)
        return found.items if hitters.method != "status" else found.items[np.isin(found.items, state.up.items)]

    def used_up() -> int:
        return int(np.count_nonzero(states[0].counters.compact().values >= hits))

    name = f"{hitters.method}, {hits} {'charge' if hits == 1 else 'charges'}"
    return Method(name, hitters.detection_threshold, report, used_up)


def counted(hitters: ShiftingHeavyHitters) -> Method:
    """Return the method that counts all items of every window."""
    counts_of, noise = hitters.answer.counts, SeededNoise(0)
    states = [counts_of.initial_state()]

    def report(hour: Hour, items: np.ndarray, counts: np.ndarray) -> np.ndarray:
        state, rows = counts_of.step(states.pop(), KeyedStep(step=hour.number + 1, keys=items, counts=counts), noise)
        states.append(state)
        return rows.keys[rows.counts >= hitters.answer.threshold]

    return Method("counts", hitters.detection_threshold, report)


def histogram(name: str, plan: StandardMethod, law: Gaussian | Laplace) -> Method:
    """Return fresh noise on all items of every window."""
    noise = SeededNoise(0)

    def report(hour: Hour, items: np.ndarray, counts: np.ndarray) -> np.ndarray:
        return items[counts + law.draw(noise.derive(name, hour.number), len(counts)) >= plan.threshold]

    return Method(name, plan.detection_threshold, report)


def methods_for(hours: int, hits: Sequence[int]) -> list[Method]:
    """Return all methods; "status" with 4 charges first."""

    def made(method: str, max_hits: int) -> ShiftingHeavyHitters:
        return ShiftingHeavyHitters(
            epsilon=EPSILON, delta=DELTA, max_hits=max_hits, window=WINDOW, start=0, horizon=hours,
            method=method, forget=method == "counts", beta=BETA, noise=SeededNoise(0),
        )  # fmt: skip

    task = Task(epsilon=EPSILON, delta=DELTA, beta=BETA, steps=hours, tests=1_000_000)
    gauss, laplace = (plan(task.budget(), steps=hours) for plan in (histogram_per_step, laplace_per_step))
    several = sorted({4, *hits}, key=lambda number: (number != 4, number))
    return [
        *(monitored(made("status", number), number) for number in several),
        *(monitored(made("clock", number), number) for number in several),
        counted(made("counts", 1)),
        histogram("histogram, Gaussian", gauss, Gaussian(gauss.noise_scale)),
        histogram("histogram, Laplace", laplace, Laplace(laplace.noise_scale)),
    ]


@dataclass(eq=False)
class Outcome:
    """What a method has reported.

    Attributes:
        reported: bool (items, hours): of the items that many people have.
        good, all: numbers of reports with enough people, and of all reports.
        used_up: numbers of people after a month and at the end.
        seconds: CPU.
    """

    reported: np.ndarray
    good: int = 0
    all: int = 0
    used_up: list[int] = field(default_factory=list)
    seconds: float = 0.0


def watch(year: Year, methods: Sequence[Method]) -> tuple[np.ndarray, list[Outcome]]:
    """Return how many people have each item in each window, int32 (items, hours), and what methods report."""
    enough, shape = methods[0].detects / 2, (len(year.items), year.hours)
    truth, outcomes = np.zeros(shape, np.int32), [Outcome(np.zeros(shape, bool)) for _ in methods]
    for hour in year.stream():
        items, counts = np.unique(hour.items, return_counts=True)
        known = items < shape[0]
        truth[items[known].astype(np.int64), hour.number] = counts[known]
        for method, outcome in zip(methods, outcomes, strict=True):
            began = time.process_time()
            found = method.report(hour, items, counts)
            outcome.seconds += time.process_time() - began
            outcome.reported[found[found < shape[0]].astype(np.int64), hour.number] = True
            outcome.all += len(found)
            outcome.good += int(np.count_nonzero(np.isin(found, items[counts >= enough])))
            if hour.number + 1 in (min(MONTH, year.hours), year.hours):
                outcome.used_up.append(method.used_up())
    return truth, outcomes


def delays(asked: np.ndarray, reported: np.ndarray) -> list[float]:
    """Return the delay of each episode of an item, infinite for one that is never reported."""
    edges = np.diff(np.concatenate([[False], asked, [False]]).astype(np.int8))
    found = []
    for start, end in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
        places = np.flatnonzero(reported[start:end])
        found.append(float(places[0]) if len(places) else np.inf)
    return found


def rows_of(
    year: Year, methods: Sequence[Method], truth: np.ndarray, outcomes: Sequence[Outcome]
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield what each method does with the items of each kind, in all and by month."""
    least = methods[0].detects
    for method, outcome in zip(methods, outcomes, strict=True):
        for kind in ALL_KINDS:
            chosen = [number for number, item in enumerate(year.items) if item.kind == kind]
            counts, reported = truth[chosen], outcome.reported[chosen]
            asked = counts >= least
            late = [delay for one, told in zip(asked, reported, strict=True) for delay in delays(one, told)]
            seen = [delay for delay in late if np.isfinite(delay)]
            about = {"people": year.people, "method": method.name, "kind": kind}
            parts = [slice(start, start + MONTH) for start in range(0, year.hours, MONTH)]
            months = [share(reported[:, part][asked[:, part]]) for part in parts]
            row = about | {
                "detects": method.detects,
                "asked": int(asked.sum()),
                "recall": share(reported[asked]),
                "first_month": months[0],
                "last_month": share(reported[:, -MONTH:][asked[:, -MONTH:]]),
                "recall_of_what_it_detects": share(reported[counts >= method.detects]),
                "episodes": len(late),
                "episodes_reported": round(len(seen) / len(late), 4) if late else None,
                "delay": round(float(np.mean(seen)), 2) if seen else None,
                "precision": round(outcome.good / outcome.all, 4) if outcome.all else None,
                "used_up_after_a_month": round(outcome.used_up[0] / year.people, 4),
                "used_up_at_the_end": round(outcome.used_up[-1] / year.people, 4),
                "cpu_seconds": round(outcome.seconds, 1),
                "load_average": load_average(),
            }
            yield row, [about | {"month": month, "recall": value} for month, value in enumerate(months, start=1)]


def share(found: np.ndarray) -> float | None:
    """Return the part of entries that are true."""
    return round(float(found.mean()), 4) if len(found) else None


def plot(months: Sequence[dict[str, Any]], path: Path) -> None:
    several = list(dict.fromkeys(row["people"] for row in months))
    names = list(dict.fromkeys(row["method"] for row in months))
    figure = Figure(figsize=(14, 0.6 + 3 * len(several)), layout="constrained")
    panels = figure.subplots(len(several), len(ALL_KINDS), sharey=True, squeeze=False)
    for people, line in zip(several, panels, strict=True):
        for kind, axes in zip(ALL_KINDS, line, strict=True):
            for place, name in enumerate(names):
                about = (people, name, kind)
                found = [row for row in months if (row["people"], row["method"], row["kind"]) == about]
                values = [np.nan if row["recall"] is None else row["recall"] for row in found]
                style = {"status": "-", "clock": "--"}.get(name.split(",")[0], ":")
                axes.plot([row["month"] for row in found], values, style, marker=".", color=f"C{place}", label=name)
            axes.set(title=f"{people:,} people, {kind} items", xlabel="month", ylim=(-0.03, 1.03))
            axes.yaxis.set_major_formatter(PercentFormatter(1))
            axes.grid(alpha=0.3)
        line[0].set_ylabel("reported, of what was asked for")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__)
    made.add_argument("--people", type=int, nargs="+", default=[30_000, 100_000])
    made.add_argument("--hits", type=int, nargs="+", default=[1, 4, 16, 64])
    options = made.parse_args()
    hours = 8 * DAY if options.quick else 365 * DAY
    rows, months = [], []
    for people in options.people[:1] if options.quick else options.people:
        year = Year(people=people, hours=hours, seed=1)
        methods = methods_for(hours, [4] if options.quick else options.hits)
        truth, outcomes = watch(year, methods)
        for row, by_month in rows_of(year, methods, truth, outcomes):
            rows.append(row)
            months += by_month
    folder = results_folder(options)
    write_csv(folder / "heavy_hitters_year.csv", rows)
    write_csv(folder / "heavy_hitters_year_months.csv", months)
    plot(months, folder / "heavy_hitters_year.png")
    columns = [name for name in rows[0] if name not in ("asked", "cpu_seconds", "load_average")]
    print_table(f"{hours:,} hours, epsilon {EPSILON:g}, delta {DELTA:g}", rows, columns)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
