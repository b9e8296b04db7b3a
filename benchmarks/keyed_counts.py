"""Counts per key, of keys that nobody knew before: the synthetic workload of DP-SQLP, in full size.

Usage: python benchmarks/keyed_counts.py [--quick] [--steps 100 1000] [--contributions 24 32 40 48]

Ten million people, a million keys, 61 million records (_keyed_workload.py); epsilon = 6, delta = 1e-9. What is
published at the last step is compared with the true number of records of each key; a key that is not published counts
as zero. Zhang et al., Differentially Private Stream Processing at Scale (VLDB 2024), section 5.1, describe the
workload. Their figures, in REPORTED, are those of their Table 1 as the public code of Confidential Storm cites them,
which repeats that experiment with true numbers that leave out what a person has beyond 32 records. So `cut` says
against which numbers errors are: those of all records, or of the first 32 of each person. The limit of 32 is theirs;
others are tried by hand.

Writes keyed_counts.csv and a picture of it to benchmarks/results.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
from _keyed_workload import KEYS, PEOPLE, Contributions, contributions
from _measure import megabytes
from _report import load_average, parser, print_table, results_folder, write_csv
from matplotlib.figure import Figure
from numpy.typing import NDArray
from privstream.mechanisms import KeyedCounts, KeyedStep, SeededNoise

CELLS = 25_000_000  # steps times keys of a shard
BUDGET = {"epsilon": 6.0, "delta": 1e-9}
LIMIT = 32
REPORTED: dict[int, dict[str, float]] = {
    100: {"keys": 28_338, "largest_error": 1_391, "l1_error": 17_741_225, "l2_error": 50_039},
    1000: {"keys": 22_280, "largest_error": 1_563, "l1_error": 19_395_721, "l2_error": 58_237},
}
FIGURES = {"keys": "keys published", "largest_error": "largest error", "l1_error": "l1 error", "l2_error": "l2 error"}

Integers = NDArray[np.int64]


def published(mechanism: KeyedCounts, steps: int, given: Contributions) -> Integers:
    """Return the counts that are published at the last step, (keys,); 0 where nothing is."""
    estimates = np.zeros(len(given.records), np.int64)
    shard = CELLS // steps
    for low in range(0, len(estimates), shard):
        brought = given.per_step(mechanism.contributions, steps, low, min(low + shard, len(estimates)))
        state = mechanism.initial_state()
        for step, counts in enumerate(brought, start=1):
            keys = np.flatnonzero(counts)
            each = KeyedStep(step=step, keys=(low + keys).astype(np.uint64), counts=counts[keys])
            state, rows = mechanism.step(state, each, SeededNoise(2))
        estimates[rows.keys.astype(np.int64)] = rows.counts
    return estimates


def figures(estimates: Integers, true: Integers) -> dict[str, float]:
    """Return the four figures of the paper."""
    errors = np.abs(estimates - true).astype(np.float64)
    return {
        "keys": int(np.count_nonzero(estimates)),
        "largest_error": int(errors.max()),
        "l1_error": int(errors.sum()),
        "l2_error": int(np.sqrt(errors @ errors)),
    }


def compare(limit: int, steps: int, given: Contributions) -> list[dict[str, Any]]:
    """Return the rows of one limit of contributions."""
    mechanism = KeyedCounts(**BUDGET, over="start", horizon=steps, contributions=limit, contributions_per_key=1)
    start = time.process_time()
    estimates = published(mechanism, steps, given)
    seconds = time.process_time() - start
    cost = {
        "threshold": mechanism.threshold(steps),
        "stddev": round(mechanism.stddev(steps), 1),
        "cpu_seconds": round(seconds, 1),
        "megabytes": megabytes("VmHWM"),
        "load_average": load_average(),
    }
    name = {"method": "privstream", "steps": steps, "contributions": limit}
    truths = {"": given.records, f"{LIMIT} records": given.first_records} if limit == LIMIT else {"": given.records}
    return [{**name, "cut": cut, **figures(estimates, true), **cost} for cut, true in truths.items()]


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the four figures by the limit, as parts of what DP-SQLP reported."""
    figure = Figure(figsize=(14, 3.8), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, len(FIGURES)), FIGURES.items(), strict=True):
        for steps, colour in zip(dict.fromkeys(row["steps"] for row in rows), ("tab:blue", "tab:orange"), strict=False):
            several = [row for row in rows if row["steps"] == steps and not row["cut"]]
            ours = [row for row in several if row["method"] == "privstream"]
            limits = [row["contributions"] for row in ours]
            axes.plot(limits, [row[name] for row in ours], "o-", color=colour, label=f"privstream, {steps:,} steps")
            for row in several:
                if row["method"] != "privstream":
                    axes.plot(row["contributions"], row[name], "*", color=colour, markersize=12, label="DP-SQLP")
        axes.set(title=title, xlabel="contributions of a person, at most", ylim=(0, None))
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__)
    made.add_argument("--steps", type=int, nargs="+", default=[100, 1000], help="micro-batches")
    made.add_argument("--contributions", type=int, nargs="+", default=[24, 32, 40, 48], help="most of a person")
    made.add_argument("--part", type=int, default=1, help="one in so many people and keys")
    options = made.parse_args()
    steps, limits, part = options.steps, options.contributions, options.part
    if options.quick:
        steps, limits, part = [5, 10], [16, LIMIT], 1000
    given, rows = contributions(PEOPLE // part, KEYS // part, max(limits), LIMIT), []
    folder = results_folder(options)
    for number in steps:
        for limit in limits:
            rows += compare(limit, number, given)
            print(f"{number:,} steps with at most {limit} contributions done", flush=True)
        if number in REPORTED and part == 1:
            theirs = {"method": "DP-SQLP, as cited", "steps": number, "contributions": LIMIT, "cut": ""}
            rows.append(dict.fromkeys(rows[0]) | theirs | REPORTED[number])
        write_csv(folder / "keyed_counts.csv", rows)
    print_table(f"{PEOPLE // part:,} people, epsilon 6, delta 1e-9", rows)
    plot(rows, folder / "keyed_counts.png")
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
