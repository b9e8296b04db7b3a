"""`privstream simulate queries`: where the people of a country live and how old they are, and questions about that."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import checks
from privstream.pipelines.command import Command
from privstream.pipelines.questions.queries_file import write_queries
from privstream.pipelines.simulate.simulation import add_simulation, write_files, write_lines
from privstream.pipelines.simulate.streams import START_MICROS, event_batch
from privstream.transforms import LinearQuery

REGIONS = ("north", "east", "south", "west", "coast", "hills", "city", "islands")
AGES = tuple(f"{age:02}-{age + 9:02}" for age in range(0, 100, 10))
DOMAIN = tuple(f"{region} {age}" for region, age in itertools.product(REGIONS, AGES))


class QueryTruth(NamedTuple):
    """How many people a query is about, in truth."""

    query: str
    people: int


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
        queries.append(LinearQuery(name, Timestamp(micros=i), items))
    return queries


def simulate_country(*, users: int, number: int, seed: int, window_seconds: float = 3600.0) -> Iterator[Country]:
    """Simulate people who are unevenly spread, most of them young in some regions and old in others.

    Args:
        users: number of people, >= 1.
        number: number of queries, >= 1.
        seed: of all random choices.
        window_seconds: time in which the events come.

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
    for query, people in country.people.items():
        yield QueryTruth(query, people)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_simulation(parser, truth="how many people each query is about", windows=False)
    parser.add_argument("--number", type=int, default=200, metavar="N", help="number of queries (default: 200)")
    parser.add_argument("--queries", metavar="PATH", help="the queries, as JSON lines")
    parser.add_argument("--domain", metavar="PATH", help="all items, one per line")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Write the files."""
    write_files(arguments, simulate_country, truth_type=QueryTruth, truth_of=query_truth, number=arguments.number)
    if arguments.queries is not None:
        write_queries(arguments.queries, random_queries(arguments.number, arguments.seed))
    write_lines(arguments.domain, DOMAIN)


COMMAND = Command(
    description="Writes simulated people with their region and age, and questions about them, to try queries out on; "
    "nothing in them is private.",
    add_arguments=add_arguments,
    run=run,
)
