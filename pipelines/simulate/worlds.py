"""`privstream simulate QUESTION`: writes what a simulated city does as events, and the truth about it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from privstream.mechanisms.privacy.units import SECOND, in_words
from privstream.pipelines.command import Command, Option, RunError, UsageError, add_option, parsed
from privstream.pipelines.console import clock
from privstream.pipelines.model.types import SPANS, seconds
from privstream.pipelines.simulate import city
from privstream.pipelines.simulate.city import City, Truth, Window
from privstream.pipelines.sinks.row_files import (
    check_destination,
    output_format,
    whole_file,
    write_row_file,
)
from privstream.pipelines.sinks.row_formats import write_tables
from privstream.pipelines.terminal import say

FORMATS = ("avro", "parquet", "jsonl", "csv")
GROUP_ROWS = 1 << 19
"""Rows of a row group of Parquet, whatever windows are."""

Lines = Callable[[SimpleNamespace], Iterable[str]]
"""Returns the lines of a further file."""


def write_simulation(path: str, windows: Iterable[Window], truth: str | None = None) -> tuple[int, int]:
    """Write a simulated stream as one file, and its truth as another; return how many events and windows there are.

    Args:
        path: the events; ends in .avro, .parquet, .jsonl or .csv.
        windows: one after the other.
        truth: rows of `Truth`.

    Raises:
        ValueError: a path cannot be written, before anything is simulated.
    """
    format = path.rpartition(".")[2].lower()
    if format not in FORMATS:
        raise ValueError(f"--output must end in {', '.join('.' + known for known in FORMATS)}, got {path}")
    check_destination(path)
    if truth is not None:
        output_format(truth, option="--truth")
        check_destination(truth, "--truth")
    rows, sizes = list[Truth](), list[int]()

    def tables() -> Iterator[pa.Table]:
        waiting: list[pa.RecordBatch] = []
        for window in windows:
            sizes.append(len(window.events))
            waiting.append(window.events)
            if truth is not None:
                rows.extend(window.rows)
            if sum(map(len, waiting)) >= GROUP_ROWS:
                yield pa.Table.from_batches(waiting)
                waiting.clear()
        yield pa.Table.from_batches(waiting, city.SCHEMA)

    with whole_file(path) as stream:
        write_tables(stream, "Event", city.SCHEMA, tables(), format)
    if truth is not None:
        write_row_file(truth, Truth, rows)
    return sum(sizes), len(sizes)


def simulation(
    description: str,
    activity: city.Activity,
    truth: str,
    *options: Option,
    files: Mapping[str, tuple[str, Lines]] | None = None,
    spans: bool = False,
    windows: int | None = None,
) -> Command:
    """Return a command that writes what people of a city do.

    Args:
        description: what it writes, in a sentence.
        activity: returns the windows, given the city and the options.
        truth: what is true, in a few words.
        *options: of the activity.
        files: options of further files, what they have, and what returns their lines.
        spans: whether the truth may be about more than windows.
        windows: their number, unless it is asked for.
    """
    further = files or {}

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--users", type=int, required=True, metavar="N", help="number of people")
        parser.add_argument("--seed", type=int, required=True, metavar="S", help="the same seed gives the same events")
        parser.add_argument("--output", required=True, metavar="PATH", help="events: .avro .parquet .jsonl or .csv")
        parser.add_argument("--truth", metavar="PATH", help=f"{truth}: .avro .parquet or .jsonl")
        text = "length of a window in seconds, or such as 90s, 30m, 1h, 1day (default: 1h)"
        parser.add_argument("--window", type=parsed(seconds), default=3600.0, metavar="DURATION", help=text)
        if windows is None:
            parser.add_argument("--windows", type=int, required=True, metavar="M", help="number of windows")
        for option in options:
            add_option(parser, option)
        for name, (text, _) in further.items():
            parser.add_argument(f"--{name}", metavar="PATH", help=text)
        if spans:
            text = "what the truth is about, as of `counts` (default: window)"
            parser.add_argument("--over", choices=SPANS, default="window", help=text)

    def run(**values: Any) -> None:
        arguments = SimpleNamespace(**values)
        given = {name: getattr(arguments, name) for name in [option.name for option in options] + ["over"] * spans}
        paths = {name: path for name in ("output", "truth", *further) if (path := getattr(arguments, name)) is not None}
        try:
            taken: dict[str, str] = {}
            for name, path in paths.items():
                if (other := taken.setdefault(os.path.realpath(path), name)) != name:
                    raise ValueError(f"--{name} must not be written over --{other}, got {path}")
                if name in further:
                    check_destination(path, f"--{name}")
            people = City(arguments.users, windows or arguments.windows, arguments.seed, arguments.window)
            with clock("simulating"):
                events, number = write_simulation(arguments.output, activity(people, **given), arguments.truth)
            for name, (_, lines) in further.items():
                if name in paths:
                    with whole_file(paths[name]) as stream:
                        stream.writelines(f"{line}\n".encode() for line in lines(arguments))
        except (ValueError, TypeError) as error:
            raise UsageError(str(error)) from error
        except OSError as error:
            raise RunError(f"cannot write {error.filename or arguments.output}: {error.strerror or error}") from error
        span = f"{number:,} windows of {in_words(round(arguments.window * SECOND))}"
        say(f"{events:,} events of {arguments.users:,} people in {span}: {arguments.output}")
        if arguments.truth is not None:
            say(f"truth: {arguments.truth}")

    return Command(description=f"{description} Nothing in them is private.", add_arguments=add_arguments, run=run)


def _json(objects: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return objects as lines."""
    return [json.dumps(each, ensure_ascii=False) for each in objects]


def _searches(items: int = 1000, *, spans: bool = False) -> Command:
    """Return the command that writes searches."""
    every = "all items, one per line, as `top-k` reads them"  # whether they come up or not
    return simulation(
        "Writes what people of a simulated city search for, with trends that rise and fall.",
        city.searches,
        "people with each item",
        Option("items", "int", "number of items that are always searched for", items),
        Option("events_per_user", "float", "average number of events per person in a window", 0.5),
        Option("trends", "int", "number of items that become popular and fade again", 8),
        files={"domain": (every, lambda given: sorted({*city.search_names(given.items), *city.TRENDS}))},
        spans=spans,
    )


COUNTS = _searches(spans=True)
HEAVY_HITTERS, TOP_K = _searches(5000), _searches()
CLINIC = simulation(
    "Writes reports of people of a simulated city to clinics, with an outbreak and an outage.",
    city.reports,
    "people who met each rule",
    files={
        "rules": (
            "rules that the outbreak and the outage meet, as JSON lines",
            lambda given: _json(rule.given for rule in city.rules_for(given.users)),
        )
    },
)
TRIPS = simulation(
    "Writes trips of people of a simulated city by means of transport: scooters come into fashion, and ferries stop.",
    city.trips,
    "trips by each means so far",
    files={"domain": ("the means, one per line, as `histogram` reads them", lambda given: city.MEANS)},
)
REQUESTS = simulation(
    "Writes requests of people of a simulated city, with a slow hour; the item of an event is how many milliseconds it "
    "took (read it with --value item).",
    city.requests,
    "quantiles of all values of each window",
    Option("events_per_user", "float", "average number of requests per person in a window", 1.0),
)
BUILDING = simulation(
    "Writes who enters and leaves a building of a simulated city (items `enter` and `leave`), with a fire drill, and "
    "doors that sometimes report twice.",
    city.doors,
    "people who are in at the end of each window",
)
RANGES = simulation(
    "Writes what happens on a car park of a simulated city: the user is the slot, the item is `park` or `leave`.",
    city.parking,
    "cars in each part at the end of each window",
    Option("slots", "int", "slots of the car park", 4096),
    files={
        "queries": (
            "queries about the parts, as `ranges` reads them",
            lambda given: _json({"low": low, "high": high} for low, high in city.parts(given.slots)),
        )
    },
)
PREDECESSOR = simulation(
    "Writes trades of people of a simulated city, one of each in a window: the user is the price, the item is `trade`.",
    city.trades,
    "the next level below each query at each window's end",
    Option("universe", "int", "number of levels, from 1", 1 << 20),
    files={
        "queries": (
            "queries about levels, as `predecessor` reads them",
            lambda given: _json({"point": level} for level in city.levels(given.universe)),
        )
    },
)
COUNTRY = simulation(
    "Writes people of a simulated city with their region and age, and questions about them.",
    city.homes,
    "people that each query is about",
    Option("number", "int", "number of queries", 200),
    files={
        "queries": (
            "the queries, as JSON lines",
            lambda given: _json(
                {"name": query.name, "items": list(query.items)}
                for query in city.random_queries(given.number, given.seed)
            ),
        ),
        "domain": ("all items, one per line", lambda given: city.DOMAIN),
    },
    windows=1,
)
