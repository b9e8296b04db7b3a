"""Counts, sums and means per key of one window, beside PipelineDP and OpenDP (if installed), with the same budget.

Usage: python benchmarks/keyed_sums.py [--quick] [--runs 5]

100,000 people have 5 of 2,000 keys each, by Zipf's law, with whole values from 0 to 100 (exponential of mean 20, cut
off). Nobody knew the keys. All get epsilon = 1 and delta = 1e-6 for all that a person contributes, half of it for sums
(PipelineDP: a third each for keys, counts and sums). Errors are root mean squares over the keys that at least 500
people have; a mean is a noisy sum divided by a noisy count. PipelineDP selects keys by a noise of its own; OpenDP and
privstream by the noisy count that is released.

Writes keyed_sums.csv and a picture of it to benchmarks/results.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _keyed_peers import Integers, Released, installed, open_dp, pipeline_dp
from _report import load_average, parser, print_table, results_folder, write_csv
from matplotlib.figure import Figure
from privstream.mechanisms import KeyedCounts, KeyedStep, SeededNoise

EPSILON, DELTA = 1.0, 1e-6
CONTRIBUTIONS, LARGEST, FREQUENT = 5, 100, 500
Data = tuple[Integers, Integers, Integers]  # persons, keys and values
ERRORS = {
    "keys": "keys released",
    "count_rms": "error of counts",
    "sum_rms": "error of sums",
    "mean_rms": "error of means",
}


def draw(people: int, keys: int) -> Data:
    """Return contributions; a key that a person draws twice is contributed once."""
    rng = np.random.default_rng(3)
    popularity = np.cumsum(1 / np.arange(1, keys + 1))
    drawn = np.searchsorted(popularity, rng.random((people, CONTRIBUTIONS)) * popularity[-1])
    pairs = np.unique(np.repeat(np.arange(people), CONTRIBUTIONS) * keys + drawn.reshape(-1))
    values = np.minimum(rng.exponential(20, len(pairs)), LARGEST).astype(np.int64)
    return pairs // keys, pairs % keys, values


def totals(data: Data, keys: int) -> tuple[Integers, Integers]:
    """Return the true counts and sums."""
    sums = np.bincount(data[1], weights=data[2], minlength=keys)
    return np.bincount(data[1], minlength=keys), np.rint(sums).astype(np.int64)


def privstream(data: Data, keys: int, seed: int) -> Released:
    counts, sums = totals(data, keys)
    mechanism = KeyedCounts(epsilon=EPSILON, delta=DELTA, contributions=CONTRIBUTIONS, max_value=LARGEST)
    seen = np.flatnonzero(counts)
    given = KeyedStep(step=1, keys=seen.astype(np.uint64), counts=counts[seen], sums=sums[seen])
    _, rows = mechanism.step(mechanism.initial_state(), given, SeededNoise(seed))
    noisy = zip(rows.counts.tolist(), np.asarray(rows.sums).tolist(), strict=True)
    return dict(zip(rows.keys.tolist(), noisy, strict=True))


def by_pipeline_dp(data: Data, keys: int, seed: int) -> Released:
    rows = list(zip(*(column.tolist() for column in data), strict=True))
    return pipeline_dp(rows, EPSILON, DELTA, CONTRIBUTIONS, LARGEST)


def by_open_dp(data: Data, keys: int, seed: int) -> Released:
    return open_dp(*totals(data, keys), EPSILON, DELTA, CONTRIBUTIONS, LARGEST)


def methods() -> dict[str, Callable[[Data, int, int], Released]]:
    """Return what is installed."""
    found: dict[str, Callable[[Data, int, int], Released]] = {"privstream": privstream}
    if installed("pipeline_dp", "PipelineDP"):
        found["PipelineDP"] = by_pipeline_dp
    if installed("opendp", "OpenDP"):
        found["OpenDP"] = by_open_dp
    return found


def compare(data: Data, keys: int, runs: int) -> list[dict[str, Any]]:
    """Return a row for each library."""
    counts, sums = totals(data, keys)
    frequent = np.flatnonzero(counts >= FREQUENT)
    rows = []
    for name, release in methods().items():
        start, released = time.process_time(), [release(data, keys, run) for run in range(runs)]
        seconds = (time.process_time() - start) / runs
        noisy = np.array([[one.get(key, (np.nan, np.nan)) for key in frequent.tolist()] for one in released])
        off = {
            "count_rms": noisy[..., 0] - counts[frequent],
            "sum_rms": noisy[..., 1] - sums[frequent],
            "mean_rms": noisy[..., 1] / noisy[..., 0] - sums[frequent] / counts[frequent],
        }
        row = {"library": name, "runs": runs, "keys": round(float(np.mean([len(one) for one in released])), 1)}
        row |= {error: float(f"{np.sqrt(np.nanmean(values**2)):.4g}") for error, values in off.items()}
        missed = int(np.isnan(noisy[..., 0]).sum())
        rows.append(row | {"frequent_missed": missed, "cpu_seconds": round(seconds, 2), "load_average": load_average()})
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, len(ERRORS)), ERRORS.items(), strict=True):
        axes.bar([row["library"] for row in rows], [row[name] for row in rows], color="tab:blue")
        axes.set_title(title)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__)
    made.add_argument("--runs", type=int, default=5, help="releases of each library")
    options = made.parse_args()
    people, keys, runs = (5_000, 50, 1) if options.quick else (100_000, 2_000, options.runs)
    rows = compare(draw(people, keys), keys, runs)
    folder = results_folder(options)
    write_csv(folder / "keyed_sums.csv", rows)
    plot(rows, folder / "keyed_sums.png")
    print_table(f"{people:,} people, epsilon {EPSILON:g}, delta {DELTA:g}", rows)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
