"""Counts per key, of keys that nobody knew before: the synthetic workload of DP-SQLP, in full size.

Usage: python benchmarks/keyed_counts.py [--quick] [--steps 100] [--contributions 32 40]

Ten million people have each a number of records by Zipf and Mandelbrot's law (N = 100,000, q = 26, s = 6.738) about a
million keys (N = 1,000,000, q = 1000, s = 1.4), at times that are uniform; epsilon = 6, delta = 1e-9. What is published
at the last step is compared with the true number of records of each key; a key that is not published counts as zero.
Zhang et al., Differentially Private Stream Processing at Scale (VLDB 2024), section 5.1, describe the workload. Their
figures, in REPORTED, are second-hand: we have not seen the table that they come from.

Writes keyed_counts_STEPS.csv to benchmarks/results.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from _report import load_average, parser, print_table, results_folder, write_csv
from numpy.typing import NDArray
from privstream.mechanisms import KeyedCounts, KeyedStep, SeededNoise

PEOPLE, KEYS = 10_000_000, 1_000_000
CHUNK = 500_000  # people at once
SHARD = 250_000  # keys of one state
BUDGET = {"epsilon": 6.0, "delta": 1e-9}
REPORTED: dict[int, dict[str, float]] = {
    100: {"keys": 28_338, "largest_error": 1_391, "l1_error": 17.74e6, "l2_error": 50_039},
    1000: {"keys": 22_280, "largest_error": 1_563, "l1_error": 19.40e6, "l2_error": 58_237},
}

Counts = NDArray[np.uint16]


def zipf_mandelbrot(size: int, offset: float, exponent: float) -> NDArray[np.float64]:
    """Return the cumulative law of ranks 1 .. `size`, with weights (rank + offset)^-exponent."""
    weights = (np.arange(1, size + 1) + offset) ** -exponent
    return np.cumsum(weights / weights.sum())


def records(people: int, steps: int, rng: np.random.Generator) -> Iterator[tuple[NDArray[Any], ...]]:
    """Yield persons, keys and steps of all records of some people, ordered by person and then by time."""
    numbers, popularity = zipf_mandelbrot(100_000, 26, 6.738), zipf_mandelbrot(KEYS, 1000, 1.4)
    for first in range(0, people, CHUNK):
        each = np.searchsorted(numbers, rng.random(min(CHUNK, people - first))) + 1
        who = np.repeat(np.arange(len(each)), each)
        keys = np.minimum(np.searchsorted(popularity, rng.random(len(who))), KEYS - 1)
        when = rng.random(len(who))
        order = np.argsort(who + when)
        yield who, keys, (when[order] * steps).astype(np.int64)


def contributions(people: int, steps: int, limits: list[int]) -> tuple[NDArray[np.int64], dict[int, Counts]]:
    """Return the records of each key, and for each limit the contributions (steps, keys) that people may make.

    A person contributes to a key once, at the first record about it, and to as many keys as the limit says.
    """
    rng = np.random.default_rng(1)
    true = np.zeros(KEYS, np.int64)
    kept = {limit: np.zeros((steps, KEYS), np.uint16) for limit in limits}
    for chunk in records(people, steps, rng):
        true += np.bincount(chunk[1], minlength=KEYS)
        first = np.sort(np.unique(chunk[0] * KEYS + chunk[1], return_index=True)[1])
        who, keys, when = (column[first] for column in chunk)
        starts = np.flatnonzero(np.diff(who, prepend=-1))
        rank = np.arange(len(who)) - np.repeat(starts, np.diff(starts, append=len(who)))
        for limit in limits:
            chosen = rank < limit
            np.add.at(kept[limit].reshape(-1), when[chosen] * KEYS + keys[chosen], np.uint16(1))
    return true, kept


def published(mechanism: KeyedCounts, kept: Counts) -> dict[int, int]:
    """Return what the mechanism publishes at the last step, by key."""
    found: dict[int, int] = {}
    for low in range(0, KEYS, SHARD):
        state = mechanism.initial_state()
        for step, brought in enumerate(kept[:, low : low + SHARD], start=1):
            keys = np.flatnonzero(brought)
            given = KeyedStep(step=step, keys=(low + keys).astype(np.uint64), counts=brought[keys].astype(np.int64))
            state, rows = mechanism.step(state, given, SeededNoise(2))
        found |= dict(zip(rows.keys.tolist(), rows.counts.tolist(), strict=True))
    return found


def row(limit: int, steps: int, true: NDArray[np.int64], kept: Counts) -> dict[str, Any]:
    """Return the figures of one limit."""
    mechanism = KeyedCounts(**BUDGET, over="start", horizon=steps, contributions=limit, contributions_per_key=1)
    start = time.process_time()
    found = published(mechanism, kept)
    seconds = time.process_time() - start
    estimates = np.zeros(KEYS)
    estimates[list(found)] = list(found.values())
    errors = np.abs(estimates - true)
    return {
        "method": f"privstream, {limit} contributions",
        "steps": steps,
        "keys": len(found),
        "largest_error": float(errors.max()),
        "l1_error": float(errors.sum()),
        "l2_error": float(np.sqrt(errors @ errors)),
        "threshold": mechanism.threshold(steps),
        "stddev": round(mechanism.stddev(steps), 1),
        "cpu_seconds": round(seconds, 1),
        "load_average": load_average(),
    }


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__)
    made.add_argument("--steps", type=int, default=100, help="micro-batches")
    made.add_argument("--contributions", type=int, nargs="+", default=[32, 40], help="of a person, at most")
    options = made.parse_args()
    steps, people = (5, 20_000) if options.quick else (options.steps, PEOPLE)
    true, kept = contributions(people, steps, options.contributions)
    rows = [row(limit, steps, true, kept.pop(limit)) for limit in options.contributions]
    if steps in REPORTED:
        rows.append(dict.fromkeys(rows[0]) | {"method": "DP-SQLP, as reported", "steps": steps} | REPORTED[steps])
    print_table(f"{people:,} people, {steps} steps, epsilon 6, delta 1e-9", rows)
    write_csv(results_folder(options) / f"keyed_counts_{steps}.csv", rows)


if __name__ == "__main__":
    main()
