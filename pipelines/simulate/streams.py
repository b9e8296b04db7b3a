"""What a simulated city searches for."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, pi, sin
from typing import Any, Self

import numpy as np
import pyarrow as pa
from privstream.mechanisms.checks import integer, non_negative, positive
from privstream.transforms.timing.steps import timestamp

TRENDS = (
    "marathon route",
    "lantern festival",
    "first snow",
    "night market",
    "bridge reopening",
    "open air cinema",
    "cup final",
    "meteor shower",
    "museum night",
    "storm warning",
    "new tram line",
    "street piano day",
    "book fair",
    "flower parade",
    "rooftop concert",
    "giant pumpkin",
)

THINGS = (
    "bakery",
    "bicycle shop",
    "library",
    "swimming pool",
    "noodle bar",
    "bus timetable",
    "pharmacy",
    "playground",
    "post office",
    "coffee",
    "hairdresser",
    "parking",
    "cinema",
    "dentist",
    "florist",
    "garden centre",
    "gym",
    "ice cream",
    "kindergarten",
    "laundry",
    "museum",
    "optician",
    "picnic spot",
    "pizza",
    "recycling",
    "running track",
    "shoe repair",
    "tailor",
    "theatre",
    "vet",
    "viewpoint",
    "yoga",
)

PLACES = (
    "harbour",
    "old town",
    "north gate",
    "station",
    "university",
    "river bank",
    "castle hill",
    "east park",
    "mill street",
    "market square",
    "lakeside",
    "south bridge",
    "cathedral",
    "airport",
    "town hall",
    "west end",
    "botanical garden",
    "stadium",
    "canal",
    "observatory",
)


def search_names(count: int) -> list[str]:
    """Return so many different names; when things and places have run out, numbers are added."""
    pairs = [f"{thing} {place}" for place, thing in product(PLACES, THINGS)]
    return [pairs[n % len(pairs)] + (f" {n // len(pairs) + 1}" if n >= len(pairs) else "") for n in range(count)]


START_MICROS = 1_704_067_200_000_000
"""2024-01-01 00:00 UTC, a Monday."""

EVENT_SCHEMA = pa.schema([("user", pa.string()), ("item", pa.string()), ("time", pa.timestamp("us", "UTC"))])

HOUR = 3600.0


@dataclass(frozen=True, eq=False)
class SimulatedWindow:
    """One window of a simulated stream.

    Attributes:
        start, end: microseconds since 1970 UTC.
        events: `user`, `item`, `time`, in the order of time.
        holders: item -> number of different people who sent it in this window; items with few people are left out.
    """

    start: int
    end: int
    events: pa.RecordBatch
    holders: dict[str, int]


@dataclass(frozen=True, eq=False)
class TrueWindow:
    """One window of a simulated stream: its events, and the rows of truth about it.

    Attributes:
        start, end: microseconds since 1970 UTC.
        events: `user`, `item`, `time`, in the order of time.
        truth: NamedTuples, which begin with the window's start and its end.
    """

    start: int
    end: int
    events: pa.RecordBatch
    truth: Sequence[Any]

    @classmethod
    def of(
        cls, start: int, length: int, columns: Iterable[Any], truth: Callable[..., Any], *told: Iterable[Any]
    ) -> Self:
        """Return the window of so many microseconds.

        Args:
            start: of the window, in microseconds since 1970 UTC.
            length: of the window, in microseconds.
            columns: of its events.
            truth: the type of rows of truth.
            *told: what rows say beside the window, each a column.
        """
        end = start + length
        window = timestamp(start), timestamp(end)
        return cls(start, end, event_batch(columns), [truth(*window, *row) for row in zip(*told, strict=True)])


def event_batch(columns: Iterable[Any]) -> pa.RecordBatch:
    """Return events, given a column of users, one of items, and one of times in microseconds."""
    arrays = [column if isinstance(column, pa.Array) else pa.array(column) for column in columns]
    cast = [array.cast(field.type) for array, field in zip(arrays, EVENT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=EVENT_SCHEMA)


def people(numbers: np.ndarray) -> pa.Array:
    """Return the names of people."""
    return pa.array([f"u{number:06}" for number in numbers.tolist()], pa.string())


def start_simulation(users: int, windows: int, seed: int, window_seconds: float) -> tuple[np.random.Generator, int]:
    """Check what simulations are given; return where their choices come from, and microseconds of a window.

    Args:
        users: number of people, >= 1.
        windows: number of windows, >= 1.
        seed: of all random choices, >= 0.
        window_seconds: length of a window, > 0.
    """
    integer("users", users, minimum=1)
    integer("windows", windows, minimum=1)
    rng = np.random.default_rng(integer("seed", seed, minimum=0))
    return rng, round(positive("window", window_seconds) * 1_000_000)


@dataclass(frozen=True)
class Trend:
    """An item that comes up and goes away again.

    Attributes:
        item: its name.
        peak: the window in which most people search for it (may lie between two windows).
        width: standard deviation of the bump, in windows.
        share: part of all people who search for it at the peak.
    """

    item: str
    peak: float
    width: float
    share: float

    def holders(self, window: int, users: int) -> int:
        """Return how many people search for it in a window."""
        return round(users * self.share * exp(-(((window - self.peak) / self.width) ** 2) / 2))


def plan_trends(count: int, windows: int, rng: np.random.Generator) -> tuple[Trend, ...]:
    """Plan trends one after the other, from one of which most of a city talks to ones that few notice.

    Shares fall geometrically from 12% to 0.6% of all people, in random order over time.
    """
    if count > len(TRENDS):
        raise ValueError(f"trends must be <= {len(TRENDS)}, got {count}")
    shares = rng.permutation(np.geomspace(0.12, 0.006, count))
    peaks = (np.arange(count) + rng.uniform(0.3, 0.7, count)) * windows / max(count, 1)
    widths = rng.uniform(0.4, 0.8, count) * max(windows / max(count, 1), 1.0) / 2
    names = rng.permutation(np.array(TRENDS))[:count]
    columns = zip(names.tolist(), peaks.tolist(), widths.tolist(), shares.tolist(), strict=True)
    return tuple(Trend(name, peak - 0.5, width, share) for name, peak, width, share in columns)


def simulate_heavy_hitters(
    *,
    users: int,
    windows: int,
    seed: int,
    window_seconds: float = HOUR,
    items: int = 5_000,
    zipf_exponent: float = 1.1,
    zipf_shift: float = 20.0,
    events_per_user_and_window: float = 0.5,
    trends: int = 8,
    truth_floor: int = 10,
    start_micros: int = START_MICROS,
) -> Iterator[SimulatedWindow]:
    """Simulate what a city searches for: a steady background, and trends that rise and fall.

    The background follows a Zipf-Mandelbrot law, with the r-th item drawn with weight (r + shift)^-exponent, and swells
    by half in the evening. In each window a planned number of people, chosen at random, send a trend.

    Args:
        users: number of people, >= 1; they are called u000000, u000001 and so on.
        windows: number of windows, >= 1.
        seed: of all random choices.
        window_seconds: length of a window.
        items: number of background items, >= 1.
        zipf_exponent: >= 0; 0 makes all items equally frequent.
        zipf_shift: >= 0; flattens the head, 0 is Zipf's law.
        events_per_user_and_window: average number of background events.
        trends: number of planted trends.
        truth_floor: items with fewer holders are left out of the truth.
        start_micros: first moment of the first window, in microseconds since 1970 UTC.

    Returns:
        The windows, made one at a time.
    """
    rng, length = start_simulation(users, windows, seed, window_seconds)
    integer("items", items, minimum=1)
    integer("trends", trends, minimum=0)
    rate = users * non_negative("events_per_user_and_window", events_per_user_and_window)
    exponent, shift = non_negative("zipf_exponent", zipf_exponent), non_negative("zipf_shift", zipf_shift)
    planned = plan_trends(trends, windows, rng)
    names = _Names(users, [*search_names(items), *[trend.item for trend in planned]])
    cumulative = np.cumsum((np.arange(1, items + 1) + shift) ** -exponent)
    cumulative /= cumulative[-1]

    def window(number: int) -> SimulatedWindow:
        start = start_micros + number * length
        count = rng.poisson(rate * _time_of_day(start))
        who, what = [rng.integers(users, size=count)], [np.searchsorted(cumulative, rng.random(count), side="right")]
        for place, trend in enumerate(planned):
            who.append(rng.choice(users, trend.holders(number, users), replace=False, shuffle=False))
            what.append(np.full(len(who[-1]), items + place))
        return names.window(start, length, np.concatenate(who), np.concatenate(what), truth_floor, rng)

    return map(window, range(windows))


class _Names:
    """Names people and items, and makes windows of their numbers."""

    def __init__(self, users: int, items: list[str]) -> None:
        digits = max(6, len(str(users - 1)))
        self.users = pa.array([f"u{number:0{digits}}" for number in range(users)])
        self.items = pa.array(items)

    def window(
        self, start: int, length: int, who: np.ndarray, what: np.ndarray, floor: int, rng: np.random.Generator
    ) -> SimulatedWindow:
        """Give events their times, and count who has what."""
        times = np.sort(rng.integers(length, size=len(who))) + start
        shuffled = rng.permutation(len(who))
        who, what = who[shuffled], what[shuffled]
        columns = [self.users.take(pa.array(who)), self.items.take(pa.array(what)), pa.array(times)]
        pairs = np.unique(what.astype(np.int64) * len(self.users) + who)
        items, counts = np.unique(pairs // len(self.users), return_counts=True)
        items, counts = items[counts >= floor], counts[counts >= floor]
        holders = dict(zip(self.items.take(pa.array(items)).to_pylist(), counts.tolist(), strict=True))
        return SimulatedWindow(start, start + length, event_batch(columns), holders)


def _time_of_day(micros: int) -> float:
    """Return how busy people are: most at 19:00 UTC, least at 7:00."""
    hours = micros / 3.6e9
    return 1 + 0.5 * sin((hours - 13) * 2 * pi / 24)
