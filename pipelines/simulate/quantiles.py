"""`privstream simulate quantiles`: requests to a service and how long they take, with a slow hour."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import checks
from privstream.pipelines.command import Command
from privstream.pipelines.simulate.simulation import add_simulation, write_files
from privstream.pipelines.simulate.streams import EVENT_SCHEMA, START_MICROS

QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Those that the truth has."""

USUAL, SLOW = 80.0, 3.0
"""Milliseconds of half of all requests, and how many times as long they take in the slow hour."""


class TrueQuantile(NamedTuple):
    """A quantile of all values of a window, in truth."""

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    quantile: float
    value: float


@dataclass(frozen=True, eq=False)
class RequestWindow:
    """One window: `events`, whose items are milliseconds, and these milliseconds."""

    start: int
    end: int
    events: pa.RecordBatch
    latencies: np.ndarray


def simulate_requests(
    *, users: int, windows: int, seed: int, window_seconds: float = 3600.0, requests: float = 1.0
) -> Iterator[RequestWindow]:
    """Simulate requests: most are fast, some take long, and at two thirds of the run all take three times as long.

    Args:
        users: number of people, >= 1.
        windows: number of windows, >= 1.
        seed: of all random choices.
        window_seconds: length of a window.
        requests: of one person in a window on average, >= 0.

    Returns:
        The windows, made one at a time.
    """
    checks.integer("users", users, minimum=1)
    checks.integer("windows", windows, minimum=1)
    rate = checks.non_negative("requests", requests) * users
    rng = np.random.default_rng(checks.integer("seed", seed, minimum=0))
    length = round(checks.positive("window", window_seconds) * 1_000_000)
    for number in range(windows):
        start = START_MICROS + number * length
        count = rng.poisson(rate)
        usual = USUAL * (SLOW if number == 2 * windows // 3 else 1.0)
        latencies = np.rint(usual * np.exp(rng.normal(0, 0.7, count)) + 1).astype(np.int64)
        times = np.sort(rng.integers(length, size=count)) + start
        who = pa.array([f"u{user:06}" for user in rng.integers(users, size=count).tolist()], pa.string())
        columns = [who, pa.array(latencies).cast(pa.string()), pa.array(times).cast(pa.timestamp("us", "UTC"))]
        events = pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)
        yield RequestWindow(start, start + length, events, latencies)


def true_quantiles(window: RequestWindow) -> Iterator[TrueQuantile]:
    """Return the truth about one window; none if it has no values."""
    if not len(window.latencies):
        return
    values = np.quantile(window.latencies, QUANTILES, method="inverted_cdf")
    for quantile, value in zip(QUANTILES, values.tolist(), strict=True):
        yield TrueQuantile("", Timestamp(micros=window.start), Timestamp(micros=window.end), quantile, float(value))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_simulation(parser, truth="quantiles of all values of each window")
    parser.add_argument(
        "--requests", type=float, default=1.0, help="average number of requests of a person in a window (default: 1)"
    )


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Write the files."""
    write_files(
        arguments,
        simulate_requests,
        truth_type=TrueQuantile,
        truth_of=true_quantiles,
        windows=arguments.windows,
        requests=arguments.requests,
    )


COMMAND = Command(
    description="Writes simulated requests of people to a service, with a slow hour; the item of an event is how many "
    "milliseconds it took (read it with --value_field item). Nothing in them is private.",
    add_arguments=add_arguments,
    run=run,
)
