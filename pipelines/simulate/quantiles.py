"""`privstream simulate quantiles`: requests to a service and how long they take, with a slow hour."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import checks
from privstream.pipelines.questions.spec import Option
from privstream.pipelines.simulate.simulation import simulation
from privstream.pipelines.simulate.streams import START_MICROS, TrueWindow, people, start_simulation

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


def simulate_requests(
    *, users: int, windows: int, seed: int, window_seconds: float = 3600.0, requests: float = 1.0
) -> Iterator[TrueWindow]:
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
    rng, length = start_simulation(users, windows, seed, window_seconds)
    rate = checks.non_negative("requests", requests) * users
    for number in range(windows):
        start = START_MICROS + number * length
        count = rng.poisson(rate)
        usual = USUAL * (SLOW if number == 2 * windows // 3 else 1.0)
        latencies = np.rint(usual * np.exp(rng.normal(0, 0.7, count)) + 1).astype(np.int64)
        times = np.sort(rng.integers(length, size=count)) + start
        columns = people(rng.integers(users, size=count)), latencies, times
        quantiles = QUANTILES if count else ()  # where there are no values
        values = np.quantile(latencies, quantiles, method="inverted_cdf").tolist() if count else []
        yield TrueWindow.of(start, length, columns, TrueQuantile, quantiles, map(float, values))


COMMAND = simulation(
    "Writes simulated requests of people to a service, with a slow hour; the item of an event is how many milliseconds "
    "it took (read it with --value_field item). Nothing in them is private.",
    simulate_requests,
    TrueQuantile,
    "quantiles of all values of each window",
    Option("requests", "float", "average number of requests of a person in a window", 1.0),
)
