"""What must still hold while code is written anew: one table of figures, each with its gate.

Usage: python benchmarks/gates.py [--quick] [--timings] [--only TEXT ..] [--keys N] [--workers 2] [--output FILE]

Every figure is measured through the command line, in this process, or by a program of its own. Noise keys are fixed, so
that figures repeat; a figure is the mean over keys, most often five of them, or one with `--quick`. Rows of time,
memory, audits and mutants need a quiet machine and up to hours: `--timings`, or one by `--only`.

Writes benchmarks/results/gates.md (with --quick or --only a table on the terminal). Ends with 1 if a gate falls.
"""

import argparse
import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import _gates as worlds
import numpy as np
from _gates import DAY, HERE, SHOWN, TIMINGS, TOLD, WEEK, Data, Figures, answers, held, mean, seen, top, window_of


class Gate(NamedTuple):
    """A row of the table.

    Attributes:
        row: what is measured, and the name of the figure.
        before: what was measured before the first cut, in words.
        low: least figure that is good enough, or None.
        high: largest one, or None.
        unit: of the figure: % of a share, or words.
    """

    row: str
    before: str
    low: float | None = None
    high: float | None = None
    unit: str = "%"

    def kept(self, figure: float) -> bool:
        """Tell whether a figure is good enough; nan is not."""
        low, high = (-math.inf if self.low is None else self.low), (math.inf if self.high is None else self.high)
        return low <= figure <= high

    def written(self, figure: float | None) -> str:
        """Return a figure as text."""
        if figure is None or math.isnan(figure):
            return ""
        return f"{100 * figure:.1f}%" if self.unit == "%" else f"{figure:,.4g} {self.unit}".strip()

    @property
    def text(self) -> str:
        """The gate as text."""
        ends = [f"{sign} {self.written(end)}" for sign, end in (("≥", self.low), ("≤", self.high)) if end is not None]
        return ", ".join(ends)


GATES = (
    Gate("flights by week, epsilon 1: true top ten", "88.5%", 0.85),
    Gate("flights by day, epsilon 8: true top ten", "97%", 0.93),
    Gate("flights by month, epsilon 1: true top ten", "83 to 88%", 0.80),
    Gate("flights by day: intervals that hold all people", "93 to 99%", 0.92),
    Gate("flights by week: intervals that hold all people", "93 to 99%", 0.92),
    Gate("flights by month: intervals that hold all people", "93 to 99%", 0.92),
    Gate("purchases: intervals that hold all people", "93 to 99%", 0.92),
    Gate("city by hour: intervals that hold all people", "93 to 99%", 0.92),
    Gate("flights by week: of what surely rose, not risen", "none", None, 0.05),
    Gate("all items fall: rows of what rose", "48", None, 0.0, "rows"),
    Gate("purchases, 13% dropped: least weekly mean of shown / true", "0.95", 0.94, None, ""),
    Gate("purchases, 13% dropped: largest", "1.00", None, 1.06, ""),
    Gate("purchases, 13% dropped: half a width of intervals / true", "29%", None, 0.30),
    Gate("purchases, 13% dropped: keys with lower bounds", "none", None, 0.15),
    Gate("purchases, 13% dropped: intervals that hold", "97%", 0.92),
    Gate("purchases, 52% dropped: keys with lower bounds", "none", 1.0),
    Gate("purchases, 52% dropped: intervals that hold", "84%", 0.99),
    Gate("long tail, epsilon 1: items found", "about 0", 5, None, "items"),
    Gate("long tail, epsilon 2: items found", "8", unit="items"),
    Gate("long tail, epsilon 4: items found", "36", 200, None, "items"),
    Gate("long tail, epsilon 1: true top ten", "0%", 0.30),
    Gate("long tail, epsilon 2: true top ten", "39%"),
    Gate("long tail, epsilon 4: true top ten", "61.5%", 0.55),
    Gate("long tail: more items found with more budget, at least", "0", 0, None, "items"),
    Gate("each comes once: what is said of the share is true", "4% of 50%", 1.0),
    Gate("each comes once: intervals of the top ten that hold", "16 to 23%", 0.99),
    Gate("DP-SQLP, 1,000,000 people: keys", "10,304", 9_789, None, ""),
    Gate("DP-SQLP, 1,000,000 people: l1", "2.21 M", None, 2.32e6, ""),
    Gate("DP-SQLP, 1,000,000 people: l2", "7,372", None, 7_741, ""),
    Gate("DP-SQLP, 100,000 people: keys", "1,179", 1_120, None, ""),
    Gate("DP-SQLP, 100,000 people: l1", "449,283", None, 4.72e5, ""),
    Gate("DP-SQLP, 100,000 people: l2", "3,169", None, 3_327, ""),
    Gate("latencies, median: error", "1.6%", None, 0.03),
    Gate("latencies, ninth decile: error", "1.6%", None, 0.03),
    Gate("latencies, median: intervals hold", "98.3%", 0.95),
    Gate("latencies, ninth decile: intervals hold", "99.2%", 0.95),
    Gate("people in a building: error, root mean square", "42", None, 46, "people"),
    Gate("people in a building: intervals hold", "97.9%", 0.92),
    Gate("alerts: told", "94.9%", 0.85),
    Gate("alerts: false ones of those told", "4.9%", None, 0.054),
    Gate("alerts by sparse vector: true ones", "19", 17, None, ""),
    Gate("alerts by sparse vector: false ones of those told", "0%", None, 0.05),
    Gate("top-k, flights by week: true top 5", "76.1%", 0.68),
    Gate("top-k by free gaps, list, epsilon 8: true top 5", "67.7%", 0.61),
    Gate("heavy-hitters, flights by week: true top 10", "87.9%", 0.79),
    Gate("heavy-hitters by clock, city: reported", "205", 184, None, "rows"),
    Gate("heavy-hitters by clock, city: rows of nobody", "0%", None, 0.01),
    Gate("heavy-hitters by status, city: reported", "378", 340, None, "rows"),
    Gate("heavy-hitters by status, city: rows of nobody", "0%", None, 0.01),
    Gate("events since the start, by counts: error, root mean square", "6.3", None, 7.0, "events"),
    Gate("histogram by Algorithm 2: error, root mean square", "1,584", None, 1_742, "events"),
    Gate("flags: wrong ones", "0.03%", None, 0.002),
    Gate("ranges: error, root mean square", "102", None, 113, "points"),
    Gate("predecessor: points passed over, mean", "632", None, 695, "points"),
    Gate("multiplicative weights: error, root mean square", "13.0%", None, 0.143),
    Gate("multiplicative weights: answered", "100%", 1.0),
    Gate("ten records: CPU", "1.3 s", None, 2.0, "s"),
    Gate("plan: CPU", "0.5 s", None, 1.0, "s"),
    Gate("20 million events: CPU / that of DuckDB on one thread, random limit", "0.6 to 0.9", None, 1.0, ""),
    Gate("20 million events: two workers faster by", "1.6", 1.5, None, "times"),
    Gate("20 million events: memory", "0.5 GB", None, 800, "MB"),
    Gate("a billion events: memory", "0.62 GB", None, 1_000, "MB"),
    Gate("Flink, folder: from a window's end to its row", "2.0 s", None, 3.0, "s"),
    Gate("Flink, Kafka: from a window's end to its row", "2.6 s", None, 3.0, "s"),
    Gate("Flink: same rows after a killed task manager", "the same", 1.0),
    Gate("audits: least measured / claimed epsilon of a question", "0.85 to 1.0", 0.8),
    Gate("mutants killed", "to be measured", unit="%"),
)
"""The table. What has no gate is shown alone: it says of what data the other rows are."""


def flights_by_week(key: int) -> Figures:
    """Return the figures of flights by week."""
    data = worlds.flights(WEEK, 53)
    rows, _ = answers("counts", data, key, epsilon=1, delta=1e-6, limit=212)
    risen, _ = answers("counts", data, key, epsilon=1, delta=1e-6, limit=212, rising=True)
    change = np.vstack([np.full((4, len(data.names)), np.nan), data.people[4:] - data.people[:-4]])
    at = {name: number for number, name in enumerate(data.names)}
    surely = [change[window_of(data, row), at[row["item"]]] for row in risen if (row["rise_lower"] or 0) > 0]
    return {
        "flights by week, epsilon 1: true top ten": top(data, seen(data, rows).ranked),
        "flights by week: of what surely rose, not risen": mean(np.array(surely) <= 0) if surely else 0.0,
    }


def flights_by_day_and_month(key: int) -> Figures:
    """Return the figures of flights by day and by month."""
    days, months = worlds.flights(DAY, 365), worlds.flights(30 * DAY, 13)
    by_day, _ = answers("counts", days, key, epsilon=8, delta=1e-6, limit=400)
    by_month, _ = answers("counts", months, key, epsilon=1, delta=1e-6, limit=52)
    return {
        "flights by day, epsilon 8: true top ten": top(days, seen(days, by_day).ranked),
        "flights by month, epsilon 1: true top ten": top(months, seen(months, by_month).ranked),
    }


def intervals(key: int) -> Figures:
    """Return how many intervals hold the numbers of all people, at limits as `suggest` finds them."""
    cases: dict[str, tuple[Callable[[], Data], int, int]] = {
        "flights by day": (lambda: worlds.flights(DAY, 365), 5_000, 250),
        "flights by week": (lambda: worlds.flights(WEEK, 53), 5_000, 212),
        "flights by month": (lambda: worlds.flights(30 * DAY, 13), 5_000, 160),
        "purchases": (worlds.purchases, 10_000, 100),
        "city by hour": (worlds.city, 50_000, 40),
    }
    found = {}
    for name, (make, people, limit) in cases.items():
        data = make()
        shown = seen(data, answers("counts", data, key, epsilon=1, people=people, limit=limit)[0])
        found[f"{name}: intervals that hold all people"] = held(shown, data.people)
    return found


def weekly(key: int) -> Figures:
    """Return how good shown numbers of purchases are where limits drop a little, and half."""
    data = worlds.purchases()
    found: Figures = {}
    many = data.people >= 100
    for limit, text in ((60, "13% dropped"), (15, "52% dropped")):
        shown = seen(data, answers("counts", data, key, epsilon=1, delta=1e-6, limit=limit)[0])
        ratio, many_shown = shown.number / data.people, many & ~np.isnan(shown.number)
        weeks = [mean(one[there]) for one, there in zip(ratio, many_shown, strict=True)]
        width = float(np.median(((shown.upper - shown.lower) / 2 / data.people)[many_shown]))
        bound = math.isinf(width)  # a lower bound is no estimate
        found |= {
            f"purchases, {text}: least weekly mean of shown / true": math.nan if bound else min(weeks),
            f"purchases, {text}: largest": math.nan if bound else max(weeks),
            f"purchases, {text}: half a width of intervals / true": math.nan if bound else width,
            f"purchases, {text}: keys with lower bounds": float(bound),
            f"purchases, {text}: intervals that hold": held(shown, data.people, many),
        }
    return found


def long_tail(key: int) -> Figures:
    """Return what is found in baskets with a long tail."""
    data, number = worlds.baskets(), [0]
    found: Figures = {}
    for epsilon in (1, 2, 4):
        rows, _ = answers("counts", data, key, epsilon=epsilon, people=10_000)
        number.append(len({row["item"] for row in rows}))
        found[f"long tail, epsilon {epsilon}: items found"] = float(number[-1])
        found[f"long tail, epsilon {epsilon}: true top ten"] = top(data, seen(data, rows).ranked)
    return found | {"long tail: more items found with more budget, at least": float(np.diff(number).min())}


def each_once(key: int) -> Figures:
    """Return what is said of people who each come once, and are far beyond their limit."""
    data = worlds.once()
    rows, said = answers("counts", data, key, epsilon=1, delta=1e-6, limit=8)
    shown, largest = seen(data, rows), np.zeros_like(data.people, bool)
    np.put_along_axis(largest, np.argsort(-data.people, axis=1, kind="stable")[:, :10], True, axis=1)
    share, claims = data.dropped(8), [found for form in TOLD if (found := re.search(form, " ".join(said.split())))]
    true = float(not claims)
    if claims:
        told = claims[0].groupdict()
        true = float(float(told["lower"]) <= 100 * share <= float(told.get("upper", 100)))
    return {
        "each comes once: what is said of the share is true": true,
        "each comes once: intervals of the top ten that hold": held(shown, data.people, largest),
    }


def unknown_keys(key: int) -> Figures:
    """Return the figures of a tenth of the people of DP-SQLP's workload."""
    return _of_spoken(1_000_000, key)


def unknown_keys_quickly(key: int) -> Figures:
    """Return the same of a hundredth of the people."""
    return _of_spoken(100_000, key)


def _of_spoken(people: int, key: int) -> Figures:
    data, records = worlds.spoken(people)
    rows, _ = answers("counts", data, key, epsilon=6, delta=1e-9, limit=32, since_start=True)
    last = [row for row in rows if window_of(data, row) == data.windows - 1]
    told = np.zeros(len(records))
    for row in last:
        told[int(row["item"].split()[1])] = row["noisy"]
    name, errors = f"DP-SQLP, {people:,} people", told - records
    return {f"{name}: keys": len(last), f"{name}: l1": float(abs(errors).sum()), f"{name}: l2": math.hypot(*errors)}


def medians(key: int) -> Figures:
    """Return how far off medians and ninth deciles of latencies are, in the median."""
    data = worlds.latencies()
    found: Figures = {}
    bounds = {"low": 1, "high": 60_000, "scale": "log", "quantiles": "0.5,0.9", "value": "value"}
    rows, _ = answers("quantiles", data, key, epsilon=1, delta=1e-6, **bounds)
    values = data.table["value"].to_numpy()
    for part, name in ((0.5, "median"), (0.9, "ninth decile")):
        true = np.array([np.quantile(values[data.window == window], part) for window in range(data.windows)])
        off, inside = [], []
        for row in rows:
            if row["quantile"] == part:
                number, lower, upper = next(names for names in SHOWN if row.get(names[0]) is not None)
                one = true[window_of(data, row)]
                off.append(abs(row[number] - one) / one)
                inside.append(row[lower] <= one <= row[upper])
        found |= {
            f"latencies, {name}: error": float(np.median(off)),
            f"latencies, {name}: intervals hold": mean(inside),
        }
    return found


def set_sizes(key: int) -> Figures:
    """Return how far off the number of people in a building is."""
    data, true = worlds.building()
    names = {"enter_values": "enter", "leave_values": "leave"}
    rows, _ = answers("cardinality", data, key, epsilon=1, delta=1e-6, limit=300, **names)
    shown = np.zeros((3, data.windows))
    for row in rows:
        columns = next(names for names in SHOWN if row.get(names[0]) is not None)
        shown[:, window_of(data, row)] = [row.get(name) for name in columns]
    return {
        "people in a building: error, root mean square": float(np.sqrt(np.mean((shown[0] - true) ** 2))),
        "people in a building: intervals hold": mean((shown[1] <= true) & (true <= shown[2])),
    }


def alerts(key: int) -> Figures:
    """Return which alerts are told, and which of them are false: by the usual method, and by sparse vector."""
    data = worlds.bursts()
    found: Figures = {}
    rules = [{"name": name, "items": [name], "at_least": 200} for name in data.names]
    true = data.people >= 200
    for method, text, given in (
        (None, "alerts", {"epsilon": 1, "delta": 1e-6}),
        ("sparse_vector", "alerts by sparse vector", {"epsilon": 4}),
    ):
        more = {} if method is None else {"method": method}
        rows, _ = answers("alerts", data, key, rules=rules, **given, **more)
        told = np.zeros_like(true)
        for row in rows:
            if row.get("status") != "ended":
                told[window_of(data, row), data.names.index(row["rule"])] = True
        told_true = float((told & true).sum())
        found[f"{text}: false ones of those told"] = 1 - told_true / max(1, told.sum())
        found |= {f"{text}: told": told_true / true.sum()} if method is None else {f"{text}: true ones": told_true}
    return found


def fallen(key: int) -> Figures:
    """Return how many items are said to have risen most where all fall."""
    data = worlds.falling()
    rows, _ = answers("counts", data, key, epsilon=4, delta=1e-6, falling=True)
    return {"all items fall: rows of what rose": len(rows)}


def leaders(key: int) -> Figures:
    """Return what `top-k` and `heavy-hitters` show, of flights with the 4 contributions a week of `before`."""
    week, city = worlds.flights(WEEK, 53), worlds.city()
    given = {"epsilon": 1, "delta": 1e-6}
    limited = given | {"limit": 212}
    found: Figures = {}
    for text, word, data, more in (
        ("top-k, flights by week", "top-k", week, limited | {"top": 5}),
        (
            "top-k by free gaps, list, epsilon 8",
            "top-k",
            week,
            limited | {"epsilon": 8, "top": 5, "free_gaps": True, "listed": week.names},
        ),
        ("heavy-hitters, flights by week", "heavy-hitters", week, limited),
        ("heavy-hitters by clock, city", "heavy-hitters", city, given | {"method": "clock"}),
        ("heavy-hitters by status, city", "heavy-hitters", city, given | {"method": "status"}),
    ):
        rows, _ = answers(word, data, key, **more)
        if "by" in text.split(",")[0].split() and word == "heavy-hitters":
            there = {(window_of(data, row), row["item"]) for row in rows if row.get("status") != "ended"}
            true = [data.people[window, data.names.index(item)] for window, item in there]
            found |= {f"{text}: reported": float(len(there)), f"{text}: rows of nobody": mean(np.array(true) == 0)}
        else:
            size = 5 if word == "top-k" else 10
            found[f"{text}: true top {size}"] = top(data, seen(data, rows).ranked, size)
    return found


def running_sums(key: int) -> Figures:
    """Return how far off live histograms and flags are."""
    data = worlds.flights(WEEK, 53)
    index = np.searchsorted(np.array(data.names), data.table["item"].to_numpy(zero_copy_only=False).astype(str))
    events = np.zeros((data.windows, len(data.names)))
    np.add.at(events, (data.window, index), 1)
    true, found = np.cumsum(events, axis=0), {}
    since = {"over": "start", "unit": "event"}
    for text, word, name, number, more in (
        ("events since the start, by counts", "counts", "item", "noisy", since),
        ("histogram by Algorithm 2", "histogram", "category", "estimate", {}),
    ):
        rows, _ = answers(word, data, key, epsilon=1, listed=data.names, **more)
        off = [row[number] - true[window_of(data, row), data.names.index(row[name])] for row in rows]
        found[f"{text}: error, root mean square"] = float(np.sqrt(np.mean(np.square(off))))
    rows, _ = answers("flags", data, key, epsilon=1, listed=data.names, thresholds=2000)
    off = [
        raised != (true[window_of(data, row), data.names.index(row["category"])] >= 2000)
        for row in rows
        if (raised := row["raised"]) is not None
    ]
    return found | {"flags: wrong ones": mean(off)}


def of_points(key: int) -> Figures:
    """Return how far off range counts and nearest points are, in points."""
    data, point = worlds.points()
    spots = np.random.default_rng(41).integers(1, 65_537, (100, 2))
    ranges = [{"low": int(low), "high": int(high)} for low, high in np.sort(spots, axis=1).tolist()]
    rows, _ = answers("ranges", data, key, epsilon=1, universe=65_536, queries=ranges)
    until = {window: np.sort(point[data.window <= window]) for window in range(data.windows)}

    def between(window: int, low: int, high: int) -> int:
        """Count the points from low to high."""
        return int(np.searchsorted(until[window], high, side="right") - np.searchsorted(until[window], low))

    off = [row["estimate"] - between(window_of(data, row), row["low"], row["high"]) for row in rows]
    rows, _ = answers(
        "predecessor", data, key, epsilon=1, universe=65_536, queries=[{"point": low} for low, _ in spots.tolist()]
    )
    skipped = [between(window_of(data, row), row["predecessor"] + 1, row["query"]) for row in rows]
    return {
        "ranges: error, root mean square": float(np.sqrt(np.mean(np.square(off)))),
        "predecessor: points passed over, mean": mean(skipped),
    }


def weights(key: int) -> Figures:
    """Return how far off answers of multiplicative weights are, as a part of all people."""
    data = worlds.ages()
    first = np.random.default_rng(43).integers(0, 50, (300, 2))
    asked = [[f"item {one}" for one in range(low, low + 2 + size % 25) if one < 60] for low, size in first.tolist()]
    given = [{"name": f"q{number}", "items": items} for number, items in enumerate(asked)]
    rows, _ = answers(
        "queries", data, key, epsilon=1, weights=True, listed=[f"item {one}" for one in range(60)], queries=given
    )
    people = dict(zip(data.names, data.people[0].tolist(), strict=True))
    true = {f"q{number}": sum(people.get(item, 0) for item in items) for number, items in enumerate(asked)}
    off = [(row["estimate"] - true[row["query"]]) / 100_000 for row in rows if row["estimate"] is not None]
    return {
        "multiplicative weights: error, root mean square": float(np.sqrt(np.mean(np.square(off)))),
        "multiplicative weights: answered": len(off) / len(asked),
    }


MEASURED: dict[Callable[[int], Figures], tuple[int, int]] = {
    unknown_keys: (0, 2),
    long_tail: (1, 3),
    intervals: (1, 3),
    leaders: (1, 8),
    flights_by_day_and_month: (1, 5),
    flights_by_week: (1, 5),
    unknown_keys_quickly: (1, 0),
    weekly: (1, 12),
    each_once: (1, 5),
    set_sizes: (1, 5),
    alerts: (1, 5),
    running_sums: (1, 30),
    medians: (1, 20),
    of_points: (1, 16),
    weights: (1, 5),
    fallen: (1, 5),
}
"""What is measured, the longest first, and with how many noise keys: quickly, and in full."""


def measured(name: str, key: int) -> tuple[str, Figures | str]:
    """Return the figures of a measure, or why there are none."""
    try:
        return name, next(one for one in MEASURED if one.__name__ == name)(key)
    except (Exception, SystemExit) as error:  # one measure that fails hides no other
        return name, f"{type(error).__name__}: {error}"


def collected(tasks: Sequence[tuple[str, int]], workers: int) -> tuple[Figures, list[str]]:
    """Return the means of all figures over keys, and what failed; nan is no figure."""
    several: dict[str, list[float]] = {}
    failed = []
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for name, found in pool.map(measured, *zip(*tasks, strict=True)):
            if isinstance(found, str):
                failed.append(f"{name}: {found}")
                continue
            for row, figure in found.items():
                several.setdefault(row, []).append(figure)
    return {row: float(np.nanmean(figures)) for row, figures in several.items()}, failed


def table(figures: Figures) -> tuple[str, int]:
    """Return the table, and how many gates fell."""
    lines, fell = ["| row | before | gate | measured | ok |", "|---|---:|---:|---:|---|"], 0
    for gate in GATES:
        if (figure := figures.get(gate.row)) is None:
            continue
        kept = gate.kept(figure)
        fell += not kept
        said = ("yes" if kept else "**no**") if gate.text else ""
        lines.append(f"| {gate.row} | {gate.before} | {gate.text} | {gate.written(figure)} | {said} |")
    return "\n".join(lines) + "\n", fell


def main() -> None:
    """Measure, write the table, and end with 1 if a gate falls."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="one noise key, and no row that takes long")
    made.add_argument("--timings", action="store_true", help="rows of time, memory, Flink, audits and mutants as well")
    made.add_argument("--only", nargs="+", default=[], help="measures by the beginnings of their names, see the source")
    made.add_argument("--keys", type=int, help="noise keys of each row, in place of the usual ones")
    made.add_argument("--workers", type=int, default=2, help="processes that share the measures")
    made.add_argument("--output", type=Path, help="file for the table")
    options = made.parse_args()
    began, chosen = time.monotonic(), tuple(options.only) or ("",)
    usual = {measure.__name__: numbers[not options.quick] for measure, numbers in MEASURED.items()}
    keys = {
        name: options.keys or 1 if options.only else min(number, options.keys or number)
        for name, number in usual.items()
    }
    tasks = [(name, key) for name in keys if name.startswith(chosen) for key in range(1, 1 + keys[name])]
    figures, failed = collected(tasks, options.workers) if tasks else ({}, [])
    for timing in TIMINGS if options.timings or options.only else ():
        if timing.__name__.startswith(chosen):
            figures |= timing()
    text, fell = table(figures)
    print(text)
    print("\n".join([*failed, f"{fell} gates fell, {len(failed)} measures failed, {time.monotonic() - began:.0f} s"]))
    output = options.output or (None if options.quick or options.only else HERE / "results" / "gates.md")
    if output is not None:
        output.write_text(f"# Gates\n\nWritten by `benchmarks/gates.py`; what it measures stands there.\n\n{text}")
    sys.exit(1 if fell or failed else 0)


if __name__ == "__main__":
    main()
