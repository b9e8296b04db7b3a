"""One simulated city: what its people search for, report, ride, wait for, pay and visit, and what is true of it.

Every activity gives windows, made one at a time; nothing in them is private.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from privstream.mechanisms.checks import integer, non_negative, positive
from privstream.mechanisms.continual.ranges import LARGEST_UNIVERSE
from privstream.pipelines.sinks.row_formats import arrow_schema
from privstream.transforms import AlertRule, LinearQuery
from privstream.transforms.row_types import Time
from privstream.transforms.timing.steps import timestamp

if TYPE_CHECKING:
    from apache_beam.utils.timestamp import Timestamp

START_MICROS = 1_704_067_200_000_000
"""2024-01-01 00:00 UTC, a Monday."""

SCHEMA = arrow_schema({"user": str, "item": str, "time": Time})


class Truth(NamedTuple):
    """The true number of an item, or of what else rows are about, in a window."""

    window_start: Timestamp
    window_end: Timestamp
    item: str
    number: int


@dataclass(frozen=True, eq=False)
class Window:
    """One window of a simulated stream.

    Attributes:
        start, end: microseconds since 1970 UTC.
        events: `user`, `item`, `time`, in the order of time.
        truth: item, or what else rows are about -> its true number.
    """

    start: int
    end: int
    events: pa.RecordBatch
    truth: Mapping[str, int]

    @property
    def rows(self) -> list[Truth]:
        """The truth as rows."""
        window = timestamp(self.start), timestamp(self.end)
        return [Truth(*window, item, number) for item, number in self.truth.items()]


class City:
    """People, windows, and where all random choices come from.

    Args:
        users: number of people, >= 1, called u000000, u000001 and so on.
        windows: number of windows, >= 1.
        seed: of all random choices.
        window_seconds: length of a window.
    """

    def __init__(self, users: int, windows: int, seed: int, window_seconds: float = 3600.0) -> None:
        self.users, self.windows = integer("users", users, minimum=1), integer("windows", windows, minimum=1)
        self.seed, self.window_seconds = integer("seed", seed, minimum=0), positive("window", window_seconds)
        self.draw = np.random.default_rng(seed)
        digits = max(6, len(str(users - 1)))
        self.names = pa.array([f"u{number:0{digits}}" for number in range(users)])

    @property
    def starts(self) -> range:
        """When windows start, in microseconds since 1970."""
        length = round(self.window_seconds * 1_000_000)
        return range(START_MICROS, START_MICROS + self.windows * length, length)

    def crowd(self, start: int, rate: float, peak: int = 14) -> np.ndarray:
        """Draw who does something in a window: `rate` times for each person on average, by half more at the peak."""
        return self.draw.integers(self.users, size=self.draw.poisson(self.users * rate * busy(start, peak)))

    def window(self, start: int, who: Any, what: pa.Array, truth: Mapping[str, int]) -> Window:
        """Give events their times: people by their numbers, or users as text."""
        length = self.starts.step
        times = np.sort(self.draw.integers(length, size=len(who))) + start
        order = pa.array(self.draw.permutation(len(who)))
        users = who if isinstance(who, pa.Array) else self.names.take(pa.array(who))
        columns = [users.take(order).cast(pa.string()), what.take(order).cast(pa.string())]
        columns.append(pa.array(times, pa.int64()).cast(SCHEMA.field("time").type))
        return Window(start, start + length, pa.RecordBatch.from_arrays(columns, schema=SCHEMA), truth)


def busy(start: int, peak: int = 14) -> float:
    """Return how busy a window is: 1 on average, 1.5 at the peak, 0.5 twelve hours away."""
    return float(1 + 0.5 * np.cos((start / 3.6e9 - peak) * 2 * np.pi / 24))


def _listed(text: str) -> list[str]:
    return text.split(", ")


TRENDS = _listed(
    "marathon route, lantern festival, first snow, night market, bridge reopening, open air cinema, cup final, "
    "meteor shower, museum night, storm warning, new tram line, street piano day, book fair, flower parade, "
    "rooftop concert, giant pumpkin"
)
THINGS = _listed(
    "bakery, bicycle shop, library, swimming pool, noodle bar, bus timetable, pharmacy, playground, post office, "
    "coffee, hairdresser, parking, cinema, dentist, florist, garden centre, gym, ice cream, kindergarten, laundry, "
    "museum, optician, picnic spot, pizza, recycling, running track, shoe repair, tailor, theatre, vet, viewpoint, yoga"
)
PLACES = _listed(
    "harbour, old town, north gate, station, university, river bank, castle hill, east park, mill street, "
    "market square, lakeside, south bridge, cathedral, airport, town hall, west end, botanical garden, stadium, canal, "
    "observatory"
)

LEAST = 10
"""Items with fewer people are not in the truth."""

ZIPF_EXPONENT, ZIPF_SHIFT, EVENING = 1.1, 20.0, 19


def search_names(count: int) -> list[str]:
    """Return different names; when things and places have run out, numbers are added."""
    pairs = [f"{thing} {place}" for place, thing in itertools.product(PLACES, THINGS)]
    return [pairs[n % len(pairs)] + (f" {n // len(pairs) + 1}" if n >= len(pairs) else "") for n in range(count)]


def plan_trends(city: City, count: int) -> tuple[list[str], np.ndarray]:
    """Plan trends one after the other, each a bump that rises and falls; return names, and people by trend and window.

    Shares fall geometrically from 12% to 0.6% of all people, in random order over time.
    """
    if count > len(TRENDS):
        raise ValueError(f"trends must be <= {len(TRENDS)}, got {count}")
    every = city.windows / max(count, 1)
    shares = city.draw.permutation(np.geomspace(0.12, 0.006, count))
    peaks = (np.arange(count) + city.draw.uniform(0.3, 0.7, count)) * every - 0.5
    widths = city.draw.uniform(0.4, 0.8, count) * max(every, 1.0) / 2
    bumps = np.exp(-(((np.arange(city.windows) - peaks[:, None]) / widths[:, None]) ** 2) / 2)
    people = np.rint(city.users * shares[:, None] * bumps).astype(np.int64)
    return city.draw.permutation(np.array(TRENDS))[:count].tolist(), people


def searches(
    city: City,
    *,
    items: int = 1000,
    events_per_user: float = 0.5,
    trends: int = 8,
    over: Literal["window", "start"] = "window",
) -> Iterator[Window]:
    """Simulate searches: a steady background by the law of Zipf and Mandelbrot, and trends that rise and fall.

    Args:
        city: whose people search.
        items, events_per_user: of the background: number of items, and average events of a person in a window.
        trends: number of planted trends.
        over: whether people are counted in each window, or since the start.
    """
    integer("items", items, minimum=1)
    integer("trends", trends, minimum=0)
    non_negative("events_per_user", events_per_user)
    found, planned = plan_trends(city, trends)
    names = pa.array([*search_names(items), *found])
    cumulative = np.cumsum((np.arange(1, items + 1) + ZIPF_SHIFT) ** -ZIPF_EXPONENT)
    cumulative /= cumulative[-1]
    seen = np.empty(0, np.int64)
    for number, start in enumerate(city.starts):
        who = [city.crowd(start, events_per_user, EVENING)]
        what = [np.searchsorted(cumulative, city.draw.random(len(who[0])), side="right")]
        for place, people in enumerate(planned[:, number].tolist()):
            who.append(city.draw.choice(city.users, people, replace=False, shuffle=False))
            what.append(np.full(people, items + place))
        pairs = np.unique(np.concatenate(what).astype(np.int64) * city.users + np.concatenate(who))
        seen = np.union1d(seen, pairs) if over == "start" else pairs
        counts = np.bincount(seen // city.users, minlength=len(names)).tolist()
        truth = {name: count for name, count in zip(names.to_pylist(), counts, strict=True) if count >= LEAST}
        truth = dict(sorted(truth.items(), key=lambda pair: (-pair[1], pair[0])))
        yield city.window(start, np.concatenate(who), names.take(pa.array(np.concatenate(what))), truth)


REPORTS = ("fever", "cough", "rash", "headache", "checkup")
USUAL, OUTBREAK, OUTAGE = np.array([0.02, 0.03, 0.005, 0.04, 0.1]), np.array([0.1, 0.14, 0.0, 0.02, 0.0]), 0.05
"""Shares of people who report each item in a usual window, and at an outbreak besides; what an outage lets through."""


def rules_for(users: int) -> tuple[AlertRule, ...]:
    """Return rules that outbreaks and outages among this number of people meet."""
    return (
        AlertRule(name="flu", at_least=round(0.12 * users), items=("fever", "cough")),
        AlertRule(name="rash", at_least=round(0.03 * users), items=("rash",)),
        AlertRule(name="line down", at_most=round(0.05 * users)),
    )


def reports(city: City) -> Iterator[Window]:
    """Simulate reports to clinics: an outbreak that rises and falls, and a short outage; truth: people by rule."""
    middle, width = city.windows * city.draw.uniform(0.25, 0.45), max(city.windows / 25, 0.7)
    outage = range(round(city.windows * 0.7), round(city.windows * 0.7) + max(1, city.windows // 40))
    for number, start in enumerate(city.starts):
        share = USUAL + OUTBREAK * np.exp(-(((number - middle) / width) ** 2) / 2)
        sent = city.draw.random((city.users, len(REPORTS))) < share * (OUTAGE if number in outage else 1.0)
        who, what = np.nonzero(sent)
        truth = {}
        for rule in rules_for(city.users):
            asked = [REPORTS.index(item) for item in rule.items or REPORTS]
            truth[rule.name] = int(sent[:, asked].any(axis=1).sum())
        yield city.window(start, who, pa.array(REPORTS).take(pa.array(what)), truth)


MEANS = ("walk", "bike", "bus", "tram", "metro", "train", "car", "taxi", "scooter", "ferry", "cable car", "airport bus")
TRIPS_PER_USER = 0.2


def trips(city: City) -> Iterator[Window]:
    """Simulate trips: scooters come into fashion, ferries stop half-way; truth: trips by means since the start."""
    total = np.zeros(len(MEANS), np.int64)
    for number, start in enumerate(city.starts):
        weights = 1 / np.sqrt(np.arange(1, len(MEANS) + 1))
        weights[MEANS.index("scooter")] *= 6 * number / city.windows
        weights[MEANS.index("ferry")] *= number <= city.windows / 2
        who = city.crowd(start, TRIPS_PER_USER)
        what = city.draw.choice(len(MEANS), size=len(who), p=weights / weights.sum())
        total += np.bincount(what, minlength=len(MEANS))
        truth = dict(zip(MEANS, total.tolist(), strict=True))
        yield city.window(start, who, pa.array(MEANS).take(pa.array(what)), truth)


QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Those that the truth has."""

LATENCY, SLOW = 80.0, 3.0
"""Milliseconds of half of all requests, and how many times as long they take in the slow window."""


def requests(city: City, *, events_per_user: float = 1.0) -> Iterator[Window]:
    """Simulate requests: items are milliseconds, three times as many at two thirds of the run; truth: quantiles."""
    non_negative("events_per_user", events_per_user)
    for number, start in enumerate(city.starts):
        who = city.crowd(start, events_per_user)
        usual = LATENCY * (SLOW if number == 2 * city.windows // 3 else 1.0)
        took = np.rint(usual * np.exp(city.draw.normal(0, 0.7, len(who))) + 1).astype(np.int64)
        values = np.quantile(took, QUANTILES, method="inverted_cdf").tolist() if len(took) else []
        truth = {str(quantile): int(value) for quantile, value in zip(QUANTILES, values, strict=False)}
        yield city.window(start, who, pa.array(took), truth)


STAY_SECONDS, REPEATED = 4 * 3600.0, 0.05
"""How long somebody stays on average, and the part of all events at doors that are sent twice."""

PARTS = 4
"""Parts of the car park that are asked for."""


def moves(city: City, places: int, likely: np.ndarray | float) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield what is taken, by persons or slots, at each window's end, and what changed: most is taken at two o'clock.

    Once, in the busiest window of the second half, everything is left.

    Args:
        city: whose people come and go.
        places: number of persons or slots.
        likely: how likely each is to be taken, against others.
    """
    taken = np.zeros(places, bool)
    leaving = -np.expm1(-city.window_seconds / STAY_SECONDS)
    crowded = [0.9 * (busy(start + city.starts.step // 2) - 0.5) + 0.05 for start in city.starts]
    half = city.windows // 2
    drill = half + int(np.argmax(crowded[half:])) if city.windows > 2 else -1
    for number, (start, full) in enumerate(zip(city.starts, crowded, strict=True)):
        chance = city.draw.random(places)
        changed = taken.copy() if number == drill else chance < np.where(taken, 1.2 - full, full * likely) * leaving
        taken = taken ^ changed
        yield start, taken, np.flatnonzero(changed)


def doors(city: City) -> Iterator[Window]:
    """Simulate who enters and leaves a building, with a fire drill; some events come twice; truth: people inside."""
    kinds = pa.array(["leave", "enter"])
    for start, inside, changed in moves(city, city.users, 1.0):
        who = np.concatenate([changed, changed[city.draw.random(len(changed)) < REPEATED]])
        yield city.window(start, who, kinds.take(pa.array(inside[who].astype(np.int64))), {"": int(inside.sum())})


def parts(slots: int) -> list[tuple[int, int]]:
    """Return the ranges that are asked for: equal parts of all slots, and all of them."""
    edges = np.unique(np.linspace(0, slots, PARTS + 1).astype(np.int64)).tolist()
    return sorted({*((low + 1, high) for low, high in itertools.pairwise(edges)), (1, slots)})


def parking(city: City, *, slots: int = 4096) -> Iterator[Window]:
    """Simulate a car park, whose near slots fill first; users are slots; truth: cars in each part of it.

    Args:
        city: whose people have a car each.
        slots: their number, >= 1; they are called 1, 2, ..
    """
    integer("slots", slots, minimum=1)
    kinds = pa.array(["leave", "park"])
    near = np.linspace(1.5, 0.5, slots) * min(1.0, city.users / slots)
    for start, taken, changed in moves(city, slots, near):
        truth = {f"{low} to {high}": int(taken[low - 1 : high].sum()) for low, high in parts(slots)}
        what = kinds.take(pa.array(taken[changed].astype(np.int64)))
        yield city.window(start, pa.array(changed + 1), what, truth)


LEVELS_ASKED = 3


def levels(universe: int) -> list[int]:
    """Return the levels that are asked for, evenly spread."""
    return sorted({*np.linspace(1, universe, LEVELS_ASKED + 2)[1:-1].astype(np.int64).tolist()})


def trades(city: City, *, universe: int = 1 << 20) -> Iterator[Window]:
    """Simulate trades whose prices spread from one level over all but a gap; truth: the next level below, or 0.

    Args:
        city: each of whose people trades once in a window; a user is a price.
        universe: levels are 1 .. universe, at least 4.
    """
    if integer("universe", universe, minimum=4) > LARGEST_UNIVERSE:
        raise ValueError(f"universe must be <= 2**60, got {universe}")
    seen = np.empty(0, np.int64)
    for number, start in enumerate(city.starts):
        width = universe * (0.05 + 0.45 * (number + 1) / city.windows)
        traded = np.rint(city.draw.normal(universe / 4, width / 2, city.users)).astype(np.int64)
        traded = traded[(traded >= 1) & (traded <= universe) & (abs(traded - universe // 2) > universe // 16)]
        seen = np.union1d(seen, traded)
        truth = {str(level): int(seen[seen <= level].max(initial=0)) for level in levels(universe)}
        yield city.window(start, pa.array(traded), pa.repeat("trade", len(traded)), truth)


REGIONS = ("north", "east", "south", "west", "coast", "hills", "city", "islands")
AGES = tuple(f"{age:02}-{age + 9:02}" for age in range(0, 100, 10))
DOMAIN = tuple(f"{region} {age}" for region, age in itertools.product(REGIONS, AGES))


def random_queries(number: int, seed: int) -> list[LinearQuery]:
    """Return questions about ranges of ages in some regions."""
    draw = np.random.default_rng([integer("seed", seed, minimum=0), 1])
    queries = []
    for place in range(integer("number", number, minimum=1)):
        regions = sorted(draw.choice(len(REGIONS), size=draw.integers(1, 5), replace=False).tolist())
        first, last = sorted(draw.integers(0, len(AGES), 2).tolist())
        items = [f"{REGIONS[region]} {age}" for region in regions for age in AGES[first : last + 1]]
        name = f"{place + 1:05}: {' + '.join(REGIONS[one] for one in regions)}, {AGES[first][:2]}-{AGES[last][3:]}"
        queries.append(LinearQuery(name, timestamp(place), items))
    return queries


def homes(city: City, *, number: int = 200) -> Iterator[Window]:
    """Simulate where everybody lives and how old they are, unevenly; truth: people that each query is about.

    Args:
        city: whose people say so once in each window.
        number: number of queries, >= 1.
    """
    queries = random_queries(number, city.seed)
    sizes = city.draw.dirichlet(np.full(len(REGIONS), 0.7))
    middles = city.draw.uniform(0, len(AGES), len(REGIONS))
    ages = np.exp(-((np.arange(len(AGES)) - middles[:, None]) ** 2) / 8)
    law = (sizes[:, None] * ages / ages.sum(axis=1, keepdims=True)).ravel()
    what = city.draw.choice(len(DOMAIN), size=city.users, p=law)
    people = dict(zip(DOMAIN, np.bincount(what, minlength=len(DOMAIN)).tolist(), strict=True))
    truth = {query.name: sum(people[item] for item in query.items) for query in queries}
    for start in city.starts:
        yield city.window(start, np.arange(city.users), pa.array(DOMAIN).take(pa.array(what)), truth)


Activity = Callable[..., Iterator[Window]]
"""What people of a city do, given the city and options."""
