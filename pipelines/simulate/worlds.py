"""Simulated worlds to try questions with, other than searches, and the truth about each of their windows.

All of them take `users` (people, or what a world has in their place, >= 1), `windows` (their number, >= 1), `seed` (of
all random choices) and `window_seconds` (length of a window), and return their windows, made one at a time.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from privstream.mechanisms import checks
from privstream.mechanisms.points.dynamic_points import LARGEST_UNIVERSE
from privstream.pipelines.command import Command, Option
from privstream.pipelines.simulate.simulation import add_simulation, simulation, write_files, write_lines
from privstream.pipelines.simulate.streams import START_MICROS, TrueWindow, event_batch, people, start_simulation
from privstream.pipelines.simulate.truths import (
    CategoryCount,
    NearestTrue,
    PointsInRange,
    QueryTruth,
    RuleCount,
    SetSize,
    TrueQuantile,
)
from privstream.transforms import AlertRule, LinearQuery
from privstream.transforms.timing.steps import timestamp

REPORTS = ("fever", "cough", "rash", "headache", "checkup")
USUAL_REPORTS = np.array([0.02, 0.03, 0.005, 0.04, 0.1])
"""Part of all people who report each item in a usual window."""

OUTBREAK = np.array([0.1, 0.14, 0.0, 0.02, 0.0])
OUTAGE = 0.05
"""Part of the usual reports that come in while the line is down."""


def rules_for(users: int) -> tuple[AlertRule, ...]:
    """Return rules that outbreaks and outages of so many people meet."""
    return (
        AlertRule(name="flu", at_least=round(0.12 * users), items=("fever", "cough")),
        AlertRule(name="rash", at_least=round(0.03 * users), items=("rash",)),
        AlertRule(name="line down", at_most=round(0.05 * users)),
    )


def simulate_clinic(*, users: int, windows: int, seed: int, window_seconds: float = 3600.0) -> Iterator[TrueWindow]:
    """Simulate reports: every so often an outbreak that rises and falls, and once a short outage."""
    rng, length = start_simulation(users, windows, seed, window_seconds)
    names = np.array([f"u{i:06}" for i in range(users)])
    middle, width = windows * rng.uniform(0.25, 0.45), max(windows / 25, 0.7)
    outage = range(round(windows * 0.7), round(windows * 0.7) + max(1, windows // 40))
    rules = rules_for(users)
    for window in range(windows):
        start = START_MICROS + window * length
        share = USUAL_REPORTS + OUTBREAK * np.exp(-(((window - middle) / width) ** 2) / 2)
        reports = rng.random((users, len(REPORTS))) < share * (OUTAGE if window in outage else 1.0)
        who, what = np.nonzero(reports)
        times = start + rng.integers(0, length, len(who))
        order = np.argsort(times, kind="stable")
        columns = names[who[order]], np.array(REPORTS)[what[order]], times[order]
        met = [reports[:, [REPORTS.index(item) for item in rule.items or REPORTS]].any(axis=1) for rule in rules]
        counts = [int(np.count_nonzero(people)) for people in met]
        yield TrueWindow.of(start, length, columns, RuleCount, [rule.name for rule in rules], counts)


def _write_rules(arguments: argparse.Namespace) -> None:
    if arguments.rules is not None:
        write_lines(
            arguments.rules, (json.dumps(rule.given, ensure_ascii=False) for rule in rules_for(arguments.users))
        )


CLINIC = simulation(
    "Writes simulated reports to a clinic, with an outbreak and an outage, to try alerts out on; nothing in them is "
    "private.",
    simulate_clinic,
    RuleCount,
    "how many people met each rule",
    Option("rules", "Path", "rules that the outbreak and the outage meet, as JSON lines"),
    more=_write_rules,
)


MEANS = ("walk", "bike", "bus", "tram", "metro", "train", "car", "taxi", "scooter", "ferry", "cable car", "airport bus")
SCOOTER, FERRY = 8, 9


def category_names(count: int) -> tuple[str, ...]:
    """Return so many categories, the first of them the most frequent ones."""
    return (*MEANS[:count], *(f"route {number}" for number in range(len(MEANS) + 1, count + 1)))


def simulate_trips(
    *, users: int, windows: int, seed: int, window_seconds: float = 3600.0, categories: int = 12, trips: float = 0.2
) -> Iterator[TrueWindow]:
    """Simulate trips: busier by day, scooters that come into fashion, and ferries that stop running half-way.

    Args:
        categories: number of categories, >= 1; the r-th is taken 1 / sqrt(r) times as often as the first.
        trips: of one person in a window on average, >= 0.
    """
    rng, length = start_simulation(users, windows, seed, window_seconds)
    rate = checks.non_negative("trips", trips) * users
    names = category_names(checks.integer("categories", categories, minimum=1))
    usual = 1 / np.sqrt(np.arange(1, categories + 1))
    total = np.zeros(categories, np.int64)
    for number in range(windows):
        start = START_MICROS + number * length
        weights = usual.copy()
        if categories > SCOOTER:
            weights[SCOOTER] *= 6 * number / windows
        if categories > FERRY and number > windows / 2:
            weights[FERRY] = 0.0
        busy = 1 + 0.6 * np.sin((start / 3.6e9 - 9) * 2 * np.pi / 24)
        what = rng.choice(categories, size=rng.poisson(rate * busy), p=weights / weights.sum())
        total = total + np.bincount(what, minlength=categories)
        times = np.sort(rng.integers(length, size=len(what))) + start
        columns = people(rng.integers(users, size=len(what))), pa.array(names).take(pa.array(what)), times
        yield TrueWindow.of(start, length, columns, CategoryCount, names, total.tolist())


TRIPS = simulation(
    "Writes simulated trips in a city by means of transport: busier by day, with scooters that come into fashion and "
    "ferries that stop half-way. Nothing in them is private.",
    simulate_trips,
    CategoryCount,
    "counts of each category so far",
    Option("categories", "int", "number of categories", 12),
    Option("trips", "float", "average number of trips per person in a window", 0.2),
    Option("domain", "Path", "the categories, one per line, as `histogram` reads them"),
    more=lambda arguments: write_lines(arguments.domain, category_names(arguments.categories)),
)


QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Those that the truth has."""

USUAL_LATENCY, SLOW = 80.0, 3.0
"""Milliseconds of half of all requests, and how many times as long they take in the slow hour."""


def simulate_requests(
    *, users: int, windows: int, seed: int, window_seconds: float = 3600.0, requests: float = 1.0
) -> Iterator[TrueWindow]:
    """Simulate requests: most are fast, some take long, and at two thirds of the run all take three times as long.

    Args:
        requests: of one person in a window on average, >= 0.
    """
    rng, length = start_simulation(users, windows, seed, window_seconds)
    rate = checks.non_negative("requests", requests) * users
    for number in range(windows):
        start = START_MICROS + number * length
        count = rng.poisson(rate)
        usual = USUAL_LATENCY * (SLOW if number == 2 * windows // 3 else 1.0)
        latencies = np.rint(usual * np.exp(rng.normal(0, 0.7, count)) + 1).astype(np.int64)
        times = np.sort(rng.integers(length, size=count)) + start
        columns = people(rng.integers(users, size=count)), latencies, times
        quantiles = QUANTILES if count else ()  # where there are no values
        values = np.quantile(latencies, quantiles, method="inverted_cdf").tolist() if count else []
        yield TrueWindow.of(start, length, columns, TrueQuantile, quantiles, map(float, values))


REQUESTS = simulation(
    "Writes simulated requests of people to a service, with a slow hour; the item of an event is how many milliseconds "
    "it took (read it with --value item). Nothing in them is private.",
    simulate_requests,
    TrueQuantile,
    "quantiles of all values of each window",
    Option("requests", "float", "average number of requests per person in a window", 1.0),
)


DAY_SECONDS = 86_400.0
KINDS = np.array(["enter", "leave"])
REPEATED = 0.05
"""Part of all events that are sent twice."""


def simulate_building(
    *, users: int, windows: int, seed: int, window_seconds: float = 3600.0, stay: float = 4 * 3600.0
) -> Iterator[TrueWindow]:
    """Simulate people at doors: many in the morning, fewer at night; once, everybody has to leave, and comes back.

    Some events are sent twice.

    Args:
        stay: seconds that a person stays on average, > 0.
    """
    rng, length = start_simulation(users, windows, seed, window_seconds)
    leaving = -np.expm1(-window_seconds / checks.positive("stay", stay))
    busy = _busy(window_seconds * (np.arange(windows) + 0.5))
    drill = round(0.5 * windows) + int(np.argmax(busy[round(0.5 * windows) :]))
    inside = np.zeros(users, bool)
    for number in range(windows):
        start = START_MICROS + number * length
        if windows > 2 and number == drill:
            moves = inside.copy()
        elif windows > 2 and number == drill + 1:
            moves = ~inside & (rng.random(users) < 0.6 * busy[number])
        else:
            moves = rng.random(users) < np.where(inside, leaving * (1.2 - busy[number]), leaving * busy[number])
        who = np.flatnonzero(moves)
        kinds = inside[who].astype(np.int64)  # those inside leave
        inside[who] ^= True
        times = start + rng.integers(0, length, len(who))
        again = np.flatnonzero(rng.random(len(who)) < REPEATED)
        who, kinds, times = (np.concatenate([part, part[again]]) for part in (who, kinds, times))
        order = np.argsort(times, kind="stable")
        columns = people(who[order]), KINDS[kinds[order]], times[order]
        yield TrueWindow.of(start, length, columns, SetSize, [int(inside.sum())])


def _busy(seconds: np.ndarray | float) -> np.ndarray:
    """Return how busy a place is at these seconds after midnight: from 0.05 at two to 0.95 at fourteen o'clock."""
    return np.asarray(0.5 - 0.45 * np.cos(2 * np.pi * (seconds / DAY_SECONDS - 1 / 12)))


BUILDING = simulation(
    "Writes simulated events of people who enter and leave a building (items `enter` and `leave`), with busy days, a "
    "fire drill, and doors that sometimes report twice. Nothing in them is private.",
    simulate_building,
    SetSize,
    "how many people are in at the end of each window",
    Option("stay", "float", "average length of a stay, in seconds", 4 * 3600.0),
)


ACTIONS = np.array(["leave", "park"])
PARTS = 4
"""Parts of the car park that are asked for."""


def parts(slots: int) -> list[tuple[int, int]]:
    """Return the ranges that are asked for: equal parts of all slots, and all of them."""
    edges = np.unique(np.linspace(0, slots, PARTS + 1).astype(np.int64)).tolist()
    found = [(low + 1, high) for low, high in itertools.pairwise(edges)]
    return sorted({*found, (1, slots)})


def simulate_park(
    *, users: int, windows: int, seed: int, window_seconds: float = 3600.0, slots: int = 4096
) -> Iterator[TrueWindow]:
    """Simulate a car park that fills from slot 1 on: full by day, nearly empty by night.

    Args:
        slots: number of slots, >= 1.
    """
    rng, length = start_simulation(users, windows, seed, window_seconds)
    ranges = parts(checks.integer("slots", slots, minimum=1))
    taken = np.zeros(slots, np.bool_)
    for number in range(windows):
        start = START_MICROS + number * length
        wanted = min(users, slots) * _busy(window_seconds * (number + 0.5))
        leaving = np.flatnonzero(taken & (rng.random(slots) < 0.2))
        taken[leaving] = False
        free = np.flatnonzero(~taken)
        coming = min(len(free), max(0, round(float(wanted)) - int(taken.sum())))
        parking = np.sort(rng.choice(free, coming, replace=False, p=_near(len(free)))) if coming else free[:0]
        taken[parking] = True
        middle = length // 2  # in the first half of a window cars leave, in the second they come
        times = start + np.concatenate(
            [rng.integers(0, middle, len(leaving)), rng.integers(middle, length, len(parking))]
        )
        slot = np.concatenate([leaving, parking]) + 1
        kinds = np.repeat([0, 1], [len(leaving), len(parking)])
        order = np.argsort(times, kind="stable")
        full = np.flatnonzero(taken) + 1
        inside = [int(np.count_nonzero((full >= low) & (full <= high))) for low, high in ranges]
        columns = slot[order], ACTIONS[kinds[order]], times[order]
        yield TrueWindow.of(start, length, columns, PointsInRange, *zip(*ranges, strict=True), inside)


def _near(slots: int) -> np.ndarray:
    """Return how likely each free slot is to be taken: near ones are three times as likely as far ones."""
    weights = np.linspace(3.0, 1.0, slots)
    return np.asarray(weights / weights.sum())


def _write_ranges(arguments: argparse.Namespace) -> None:
    if arguments.queries is not None:
        queries = (json.dumps({"low": low, "high": high}) for low, high in parts(arguments.slots))
        write_lines(arguments.queries, queries)


RANGES = simulation(
    "Writes simulated events of a car park: the user field is the slot, the item is `park` or `leave`. Nothing in them "
    "is private.",
    simulate_park,
    PointsInRange,
    "how many cars stand in each part at the end of each window",
    Option("slots", "int", "slots of the car park", 4096),
    Option("queries", "Path", "queries about the parts, as `ranges` reads them"),
    more=_write_ranges,
)


LEVELS_ASKED = 3


def asked(universe: int) -> list[int]:
    """Return the levels that are asked for, evenly spread."""
    return [int(level) for level in np.unique(np.linspace(1, universe, LEVELS_ASKED + 2).astype(np.int64)[1:-1])]


def simulate_trades(
    *, users: int, windows: int, seed: int, window_seconds: float = 3600.0, universe: int = 1 << 20
) -> Iterator[TrueWindow]:
    """Simulate trades whose prices spread from one level over all of them, and leave a gap in the middle.

    Args:
        users: number of trades in a window, >= 1.
        universe: levels are 1 .. universe, at least 4.
    """
    rng, length = start_simulation(users, windows, seed, window_seconds)
    if checks.integer("universe", universe, minimum=4) > LARGEST_UNIVERSE:
        raise ValueError(f"universe must be <= 2**60, got {universe}")
    queries = asked(universe)
    levels = np.empty(0, np.int64)
    for number in range(windows):
        start = START_MICROS + number * length
        width = universe * (0.05 + 0.45 * (number + 1) / windows)
        traded = np.rint(rng.normal(universe / 4, width / 2, users)).astype(np.int64)
        traded = traded[(traded >= 1) & (traded <= universe) & (abs(traded - universe // 2) > universe // 16)]
        times = np.sort(start + rng.integers(0, length, len(traded)))
        levels = np.union1d(levels, traded)
        near = [(levels[levels <= query], levels[levels >= query]) for query in queries]
        below = [int(side[-1]) if len(side) else 0 for side, _ in near]
        above = [int(side[0]) if len(side) else 0 for _, side in near]
        columns = traded, pa.repeat("trade", len(traded)), times
        yield TrueWindow.of(start, length, columns, NearestTrue, queries, below, above)


def _write_points(arguments: argparse.Namespace) -> None:
    if arguments.queries is not None:
        write_lines(arguments.queries, (json.dumps({"point": point}) for point in asked(arguments.universe)))


PREDECESSOR = simulation(
    "Writes simulated trades, in each window as many as there are users: the user field is the price level, the item "
    "is `trade`. Nothing in them is private.",
    simulate_trades,
    NearestTrue,
    "the nearest levels with trades at each window's end",
    Option("universe", "int", "number of levels, from 1", 1 << 20),
    Option("queries", "Path", "queries about levels, as `predecessor` reads them"),
    users="trades in each window",
    more=_write_points,
)


REGIONS = ("north", "east", "south", "west", "coast", "hills", "city", "islands")
AGES = tuple(f"{age:02}-{age + 9:02}" for age in range(0, 100, 10))
DOMAIN = tuple(f"{region} {age}" for region, age in itertools.product(REGIONS, AGES))


@dataclass(frozen=True, eq=False)
class Country:
    """All people: `events` that say where they live and how old they are, and the number for each query."""

    events: pa.RecordBatch
    people: dict[str, int]


def random_queries(number: int, seed: int) -> list[LinearQuery]:
    """Return questions about ranges of ages in some regions."""
    rng = np.random.default_rng([checks.integer("seed", seed, minimum=0), 1])
    queries = []
    for i in range(checks.integer("number", number, minimum=1)):
        regions = sorted(rng.choice(len(REGIONS), size=rng.integers(1, 5), replace=False).tolist())
        first, last = sorted(rng.integers(0, len(AGES), 2).tolist())
        items = [f"{REGIONS[region]} {age}" for region in regions for age in AGES[first : last + 1]]
        name = f"{i + 1:05}: {' + '.join(REGIONS[region] for region in regions)}, {AGES[first][:2]}-{AGES[last][3:]}"
        queries.append(LinearQuery(name, timestamp(i), items))
    return queries


def simulate_country(*, users: int, number: int, seed: int, window_seconds: float = 3600.0) -> Iterator[Country]:
    """Simulate people who are unevenly spread, most of them young in some regions and old in others.

    Args:
        number: number of queries, >= 1.

    Returns:
        One country.
    """
    checks.integer("users", users, minimum=1)
    queries = random_queries(number, seed)
    length = round(checks.positive("window", window_seconds) * 1_000_000)
    rng = np.random.default_rng(seed)
    sizes = rng.dirichlet(np.full(len(REGIONS), 0.7))
    middles = rng.uniform(0, len(AGES), len(REGIONS))
    ages = np.exp(-((np.arange(len(AGES)) - middles[:, None]) ** 2) / 8)
    law = (sizes[:, None] * ages / ages.sum(axis=1, keepdims=True)).ravel()
    what = rng.choice(len(DOMAIN), size=users, p=law)
    times = START_MICROS + np.sort(rng.integers(0, length, users))
    columns = np.array([f"u{i:07}" for i in range(users)]), np.array(DOMAIN)[what], times
    counts = dict(zip(DOMAIN, np.bincount(what, minlength=len(DOMAIN)).tolist(), strict=True))
    people = {query.name: sum(counts[item] for item in query.items) for query in queries}
    yield Country(event_batch(columns), people)


def query_truth(country: Country) -> Iterator[QueryTruth]:
    """Return the truth about all queries."""
    for query, number in country.people.items():
        yield QueryTruth(query, number)


def _add_country(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_simulation(parser, truth="how many people each query is about", windows=False)
    parser.add_argument("--number", type=int, default=200, metavar="N", help="number of queries (default: 200)")
    parser.add_argument("--queries", metavar="PATH", help="the queries, as JSON lines")
    parser.add_argument("--domain", metavar="PATH", help="all items, one per line")


def _write_country(arguments: argparse.Namespace, others: list[str]) -> None:
    """Write the files."""
    write_files(arguments, simulate_country, truth_type=QueryTruth, truth_of=query_truth, number=arguments.number)
    asked = random_queries(arguments.number, arguments.seed)
    write_lines(arguments.queries, (json.dumps({"name": each.name, "items": list(each.items)}) for each in asked))
    write_lines(arguments.domain, DOMAIN)


COUNTRY = Command(
    description="Writes simulated people with their region and age, and questions about them, to try queries out on; "
    "nothing in them is private.",
    add_arguments=_add_country,
    run=_write_country,
)
