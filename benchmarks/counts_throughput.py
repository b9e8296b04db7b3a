"""Events per second and core of counts per key, against plain Beam without privacy in the same run.

Usage: python benchmarks/counts_throughput.py [--quick] [--repeats 2] [--users 200000 ..]

The events are those of heavy_hitters_throughput.py, and so is the way to measure. A person counts at most twenty times
in the whole run: about as often as there are events of one.

Writes counts_throughput.csv and .png to benchmarks/results.
"""

import argparse
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from _plain_beam import distinct_pairs
from _report import parser, results_folder
from _throughput import Run, command, measure, one_of_each, report
from heavy_hitters_throughput import WINDOW, arrow, plain, write_events
from privstream.pipelines.simulate.streams import START_MICROS

LEAST = 100


def plan_runs(options: argparse.Namespace) -> Iterator[Run]:
    start = START_MICROS / 1e6
    parameters: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": 1e-6,
        "window": WINDOW,
        "start": start,
        "end": start + options.windows * WINDOW,
        "max_contributions": 20,
    }
    day = parameters | {"over": min(24, options.windows) * WINDOW}
    all_so_far = parameters | {"over": "start"}
    some = "5% of the people"
    yield Run("privstream", "counts of a window", "parquet", command, ("counts", parameters))
    yield Run("privstream", "counts of a day, each hour", "parquet", command, ("counts", day))
    yield Run("privstream", "different people since the start", "parquet", command, ("counts", all_so_far))
    yield Run("library alone", "pyarrow in one thread, all in memory", "parquet", arrow, (LEAST,))
    yield Run("privstream", "counts of a window", some, command, ("counts", parameters))
    yield Run("plain Beam", "Distinct, count per item in windows", some, partial(plain, distinct_pairs), (LEAST,))


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--users", type=int, default=200_000)
    arguments.add_argument("--items", type=int, default=50_000)
    arguments.add_argument("--windows", type=int, default=60)
    arguments.add_argument("--events", type=int, default=4_000_000, help="about so many")
    arguments.add_argument("--repeats", type=int, default=2)
    options = arguments.parse_args()
    if options.quick:
        options.users, options.items, options.windows, options.events, options.repeats = 2_000, 500, 6, 20_000, 1
    folder = results_folder(options)
    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as scratch:
        files = write_events(Path(scratch), options)
        rows = measure(one_of_each(plan_runs(options), options.quick), files, scratch, options.repeats)
    report(rows, "counts per key: events per second of one core", folder, "counts_throughput")


if __name__ == "__main__":
    main()
