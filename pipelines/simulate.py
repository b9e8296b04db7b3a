"""`privstream simulate`: what people of a simulated city search for, and the truth; `privstream demo` counts it."""

from __future__ import annotations

import itertools
import math
import os
import secrets
import shlex
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import checks
from privstream.pipelines import cli
from privstream.pipelines.command import Command, RunError, UsageError
from privstream.pipelines.report.result import read_promise
from privstream.pipelines.sinks.row_files import (
    arrow_schema,
    output_format,
    read_row_file,
    write_row_file,
    write_tables,
)
from privstream.pipelines.stores import check_destination, whole_file
from privstream.pipelines.terminal import printable, say, spinner
from privstream.transforms.row_types import KeyCount, Time
from privstream.transforms.timing.steps import HOUR, timestamp

START, START_MICROS = "2024-01-01", 1_704_067_200_000_000  # a Monday
SCHEMA = arrow_schema({"user": str, "item": str, "time": Time, "district": str, "milliseconds": int})

TRENDS, THINGS, PLACES = (
    text.split(", ")
    for text in (
        "marathon route, lantern festival, first snow, night market, bridge reopening, open air cinema, cup final, "
        "meteor shower, museum night, storm warning, new tram line, street piano day, book fair, flower parade, "
        "rooftop concert, giant pumpkin",
        "bakery, bicycle shop, library, swimming pool, noodle bar, bus timetable, pharmacy, playground, post office, "
        "coffee, hairdresser, parking, cinema, dentist, florist, garden centre, gym, ice cream, kindergarten, laundry, "
        "museum, optician, picnic spot, pizza, recycling, running track, shoe repair, tailor, theatre, vet, viewpoint, "
        "yoga",
        "harbour, old town, north gate, station, university, river bank, castle hill, east park, mill street, "
        "market square, lakeside, south bridge, cathedral, airport, town hall, west end, botanical garden, stadium, "
        "canal, observatory",
    )
)
DISTRICTS = ("centre", "north", "east", "south", "west", "harbour", "hills", "islands")
"""Where people live, most of them in the first ones."""

LEAST = 10  # items with fewer people are not in the truth
ZIPF_EXPONENT, ZIPF_SHIFT, PEAK_HOUR, SEARCHES = 1.1, 20.0, 19, 0.5
LATENCY, SLOW = 80.0, 3.0
"""Milliseconds of half of all searches, and how many times as long they take in the slow window."""


class Truth(NamedTuple):
    """The true number of people with an item in a window."""

    window_start: Timestamp
    window_end: Timestamp
    item: str
    number: int


class Window(NamedTuple):
    """One window of the city, from `start` to `end` in microseconds: events in order, and people by item."""

    start: int
    end: int
    events: pa.RecordBatch
    truth: Mapping[str, int]


def item_names(count: int) -> list[str]:
    """Return different names; when things and places have run out, numbers are added."""
    pairs = [f"{thing} {place}" for place, thing in itertools.product(PLACES, THINGS)]
    return [pairs[n % len(pairs)] + (f" {n // len(pairs) + 1}" if n >= len(pairs) else "") for n in range(count)]


def plan_trends(draw: np.random.Generator, users: int, windows: int, count: int) -> tuple[list[str], np.ndarray]:
    """Plan trends one after the other, each a bump that rises and falls; return names, and people by trend and window.

    Shares fall geometrically from 12% to 0.6% of all people, in random order over time.
    """
    every = windows / max(count, 1)
    shares = draw.permutation(np.geomspace(0.12, 0.006, count))
    peaks = (np.arange(count) + draw.uniform(0.3, 0.7, count)) * every - 0.5
    widths = draw.uniform(0.4, 0.8, count) * max(every, 1.0) / 2
    bumps = np.exp(-(((np.arange(windows) - peaks[:, None]) / widths[:, None]) ** 2) / 2)
    return draw.permutation(np.array(TRENDS))[:count].tolist(), np.rint(users * shares[:, None] * bumps).astype(int)


def city(users: int, windows: int, seed: int, *, items: int = 1000, trends: int = 8) -> Iterator[Window]:
    """Simulate searches: a steady background by the law of Zipf and Mandelbrot, and trends that rise and fall.

    Args:
        users, windows: their numbers, >= 1; users are called u000000, u000001 and so on, windows are hours.
        seed: of all random choices.
        items: of the background.
        trends: how many are planted.
    """
    for name, number in (("users", users), ("windows", windows), ("items", items)):
        checks.integer(name, number, minimum=1)
    draw = np.random.default_rng(checks.integer("seed", seed, minimum=0))
    found, planned = plan_trends(draw, users, windows, trends)
    people = pa.array([f"u{number:06}" for number in range(users)])
    homes = np.minimum(draw.geometric(0.3, users) - 1, len(DISTRICTS) - 1)
    names = pa.array([*item_names(items), *found])
    cumulative = np.cumsum((np.arange(1, items + 1) + ZIPF_SHIFT) ** -ZIPF_EXPONENT)
    for number in range(windows):
        start = START_MICROS + number * HOUR
        busy = 1 + 0.5 * np.cos((start / HOUR - PEAK_HOUR) * 2 * np.pi / 24)
        who = [draw.integers(users, size=draw.poisson(users * SEARCHES * busy))]
        what = [np.searchsorted(cumulative / cumulative[-1], draw.random(len(who[0])), side="right")]
        for place, searching in enumerate(planned[:, number].tolist()):
            who.append(draw.choice(users, searching, replace=False, shuffle=False))
            what.append(np.full(searching, items + place))
        order = draw.permutation(sum(map(len, who)))
        user, item = np.concatenate(who)[order], np.concatenate(what)[order]
        different = np.bincount(np.unique(item * users + user) // users, minlength=len(names)).tolist()
        usual = LATENCY * (SLOW if number == 2 * windows // 3 else 1.0)
        columns = [
            people.take(pa.array(user)),
            names.take(pa.array(item)),
            pa.array(np.sort(draw.integers(HOUR, size=len(user))) + start).cast(SCHEMA.field("time").type),
            pa.array(DISTRICTS).take(pa.array(homes[user])),
            pa.array(np.rint(usual * np.exp(draw.normal(0, 0.7, len(user))) + 1).astype(int)),
        ]
        truth = {name: count for name, count in zip(names.to_pylist(), different, strict=True) if count >= LEAST}
        largest = dict(sorted(truth.items(), key=lambda one: (-one[1], one[0])))
        yield Window(start, start + HOUR, pa.RecordBatch.from_arrays(columns, schema=SCHEMA), largest)


def write_simulation(path: str, windows: Iterable[Window], truth: str | None = None) -> int:
    """Write a simulated stream as one file, and its truth as another; return how many events there are.

    Raises:
        ValueError: a path cannot be written, before anything is simulated.
    """
    format = output_format(path)
    check_destination(path)
    if truth is not None:
        output_format(truth, option="--truth")
        check_destination(truth, "--truth")
    rows, sizes = list[Truth](), list[int]()

    def tables() -> Iterator[pa.Table]:
        for window in windows:
            sizes.append(len(window.events))
            if truth is not None:
                span = timestamp(window.start), timestamp(window.end)
                rows.extend(Truth(*span, item, number) for item, number in window.truth.items())
            yield pa.Table.from_batches([window.events])

    with whole_file(path) as stream:
        write_tables(stream, "Event", SCHEMA, tables(), format)
    if truth is not None:
        write_row_file(truth, Truth, rows)
    return sum(sizes)


def simulate(output: str, truth: str | None, domain: str | None, **given: Any) -> None:
    """Simulate the city, and write its files."""
    try:
        paths = [os.path.realpath(path) for path in (output, truth, domain) if path]
        if len({*paths}) < len(paths):
            raise ValueError("--output, --truth and --domain must be different files")
        if domain is not None:
            check_destination(domain, "--domain")
        with spinner("simulating"):
            events = write_simulation(output, city(**given), truth)
        if domain is not None:
            with whole_file(domain) as stream:
                stream.writelines(f"{name}\n".encode() for name in sorted([*item_names(given["items"]), *TRENDS]))
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    say(f"{events:,} events of {given['users']:,} people in {given['windows']:,} hours: {output}")


NAMES = ("events.parquet", "truth.jsonl", "counts.jsonl", "counts.png", "report.html", "noise.key")
"""What the demo leaves in its folder, besides the guarantee and the ledger."""


def demo(output: str, users: int, windows: int, seed: int) -> None:
    """Simulate, count, draw, and report, by commands that are shown."""
    events, truth, rows, picture, report, key = (os.path.join(output, name) for name in NAMES)
    try:
        for name, number, least in (("users", users, 1), ("windows", windows, 1), ("seed", seed, 0)):
            checks.integer(name, number, minimum=least)
        end = (datetime.fromisoformat(START) + timedelta(hours=windows)).isoformat()
        os.makedirs(output, exist_ok=True)
        left = os.listdir(output)
        if left and not ({*NAMES} <= {*left} and all(name.startswith(NAMES) for name in left)):
            raise ValueError(f"--output must be a new folder, or one of an earlier demo, got {output}")
        for name in left:
            os.remove(os.path.join(output, name))
        with open(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{secrets.token_hex(32)}\n")
    except (ValueError, OverflowError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"--output must be a folder that can be written: {error}") from error
    size = f"--users {users} --windows {windows} --seed {seed}".split()
    asked = f"--window 1h --start {START} --end {end} --epsilon 1 --delta 1e-6 --max-contributions 40".split()
    print("A city searches. What many people search for is published; what one person searches for is not.\n")
    for command in (
        ["simulate", *size, "--output", events, "--truth", truth],
        ["counts", "--input", events, "--output", rows, *asked, "--key", key],
        ["plot", rows, "--output", picture],
        ["report", rows, "--output", report, "--title", "What a simulated city searches for"],
    ):
        print(printable(f"$ privstream {shlex.join(command)}"), flush=True)
        if cli.main(command):
            raise RunError("the demo ends here")
        print()
    sure = int(read_promise(rows).promise.at("accuracy", "detection_threshold"))
    counts, known = read_row_file(rows, KeyCount), read_row_file(truth, Truth)
    holders = {(row.item, row.window_start): row.number for row in known}
    large = {item for (item, _), people in holders.items() if people >= sure}
    judged = [(row, true) for row in counts if (true := holders.get((row.item, row.window_start))) is not None]
    held = sum(row.lower <= true <= (math.inf if row.upper is None else row.upper) for row, true in judged)
    print(
        f"Of {len(large):,} items that at least {sure:,} people had in a window, "
        f"{len(large & {row.item for row in counts}):,} were found. "
        f"Of {len(judged):,} published counts with a known truth, {held:,} have it in their interval."
    )
    print(printable(f"\nPicture: {picture}\nReport: {report}\nLive page: privstream {shlex.join(['serve', output])}"))
    print("Your own events: privstream counts --help")


SIMULATE = Command(
    description="Writes what people of a simulated city search for, with trends that rise and fall. An event has a "
    "user, an item, a time, the district where the user lives, and how many milliseconds the search took, with a slow "
    "hour at two thirds. Nothing in it is private.",
    options={
        "--users": {"type": int, "required": True, "metavar": "N", "help": "number of people"},
        "--windows": {"type": int, "required": True, "metavar": "M", "help": "number of hours"},
        "--seed": {"type": int, "required": True, "metavar": "S", "help": "the same seed gives the same events"},
        "--output": {"required": True, "metavar": "PATH", "help": "events: .avro .parquet .jsonl .csv or .xlsx"},
        "--truth": {"metavar": "PATH", "help": "people with each item: .avro .parquet or .jsonl"},
        "--domain": {"metavar": "PATH", "help": "all items, one per line, whether they come up or not"},
        "--items": {"type": int, "default": 1000, "metavar": "N", "help": "items of the background (default: 1000)"},
    },
    run=simulate,
)
DEMO = Command(
    description="Simulates two days of searches in a city, counts with differential privacy how many people search "
    "for what, and says what was found and missed. It prints its commands, and keeps all files.",
    options={
        "--output": {"default": "demo-output", "metavar": "FOLDER", "help": "a folder (default: demo-output)"},
        "--users": {"type": int, "default": 40_000, "metavar": "N", "help": "people (default: 40,000)"},
        "--windows": {"type": int, "default": 48, "metavar": "M", "help": "hours (default: 48)"},
        "--seed": {"type": int, "default": 1, "metavar": "S", "help": "of the simulated events (default: 1)"},
    },
    run=demo,
)
