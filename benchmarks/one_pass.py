"""CPU of a monitor of three questions about one file, beside that of the three commands.

Usage: python benchmarks/one_pass.py [--quick] [--events 2000000] [--repeats 3]

Counts, quantiles and the number of different people in hourly windows of two days: one monitor, and a command for each
question with the epsilon and the delta that `privstream plan` prints for it. One of 100,000 people has each event,
with one of 5,000 items by Zipf's law and a duration; a Parquet file in the order of time, and the same as CSV.

A *reading* is a program that reads and checks all fields of the same file, hashes people and items, and splits the
events by window and shard of people, on the same runner and by the same stages as a command, and answers nothing.
Every program is measured from its start to its end, imports included: CPU seconds of all its threads, by one process
(`--workers 1`). What one pass ought to cost is the three commands less two readings; the figure is the monitor over
that. Of several repeats, which take turns, the least CPU of each program counts.

Writes one_pass.csv and one_pass.png to benchmarks/results.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from _measure import of_program
from _report import load_average, parser, print_table, results_folder, write_csv
from matplotlib.figure import Figure

START, WINDOW, WINDOWS, ITEMS = 1_704_067_200, 3600, 48, 5_000  # 2024-01-01
READING = Path(__file__).with_name("_reading.py")
PRIVSTREAM = [sys.executable, "-c", "from privstream.pipelines.cli import main; raise SystemExit(main())"]
QUESTIONS: dict[str, dict[str, Any]] = {
    "counts": {"max_contributions": 20},
    "quantiles": {"value_field": "ms", "low": 1, "high": 60000, "quantiles": "0.5,0.99", "max_contributions": 20},
    "cardinality": {"timeout": "30m", "visits_per_person": 8},
}


def write_events(folder: Path, events: int, people: int) -> dict[str, Path]:
    """Write the events in both formats."""
    rng = np.random.default_rng(1)
    weights = 1 / np.arange(1, ITEMS + 1)
    times = np.sort(rng.integers(0, WINDOW * WINDOWS * 1_000_000, events)) + START * 1_000_000
    table = pa.table(
        {
            "user": pa.array(np.char.add("person ", rng.integers(0, people, events).astype(str))),
            "item": pa.array(np.char.add("/page/", rng.choice(ITEMS, events, p=weights / weights.sum()).astype(str))),
            "time": pa.array(times, pa.timestamp("us", "UTC")),
            "ms": pa.array(np.rint(rng.lognormal(6, 1, events)).astype(np.int64)),
        }
    )
    paths = {"parquet": folder / "events.parquet", "csv": folder / "events.csv"}
    pq.write_table(table, paths["parquet"])
    pacsv.write_csv(table, paths["csv"])
    return paths


def monitor(folder: Path, path: Path) -> Path:
    """Write the file of the monitor."""
    names = {"value_field": "value"}
    asked = {
        name: {"question": name} | {names.get(key, key): value for key, value in options.items()}
        for name, options in QUESTIONS.items()
    }
    found = {
        "data": {"input": str(path), "user": "user", "item": "item", "time": "time"},
        "window": WINDOW,
        "start": START,
        "end": START + WINDOWS * WINDOW,
        "privacy": {"epsilon": 2, "delta": 1e-6},
        "questions": asked,
        "output": {"folder": str(folder / "out"), "format": "parquet"},
    }
    made = folder / "monitor.yaml"
    made.write_text(json.dumps(found))
    return made


def programs(folder: Path, path: Path) -> dict[str, Sequence[str]]:
    """Return what is measured, by name: a reading, the monitor, and the commands."""
    file = monitor(folder, path)
    printed = subprocess.run([*PRIVSTREAM, "plan", str(file), "--json"], capture_output=True, text=True, check=True)
    paid = json.loads(printed.stdout)["questions"]
    account = ["--ledger", "none", "--workers", "1", "--overwrite"]
    found: dict[str, Sequence[str]] = {
        "reading": [sys.executable, str(READING), str(path), str(WINDOW), str(START), str(WINDOWS)],
        "monitor": [*PRIVSTREAM, "run", str(file), *account],
    }
    for name, options in QUESTIONS.items():
        given = options | {
            **{"input": path, "output": folder / f"{name}.parquet", "window": WINDOW, "start": START},
            **{"end": START + WINDOWS * WINDOW, "epsilon": paid[name]["epsilon"], "delta": paid[name]["delta"]},
        }
        found[name] = [*PRIVSTREAM, name, *(f"--{key}={value}" for key, value in given.items()), *account]
    return found


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the CPU seconds of the monitor beside those of the three commands less two readings."""
    figure = Figure(figsize=(8, 1 + len(rows)), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(rows))
    bars = (("monitor_cpu_seconds", "the monitor"), ("three_less_two_readings", "three commands, less two readings"))
    for number, (name, label) in enumerate(bars):
        axes.barh(places + 0.4 * number, [row[name] for row in rows], 0.4, label=label)
    axes.set_yticks(places + 0.2, [f"{row['format']}, {row['events']:,} events" for row in rows])
    axes.set(xlabel="CPU seconds")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--events", type=int, default=2_000_000)
    arguments.add_argument("--people", type=int, default=100_000)
    arguments.add_argument("--repeats", type=int, default=3)
    options = arguments.parse_args()
    if options.quick:
        options.events, options.people, options.repeats = 20_000, 1_000, 1
    rows = []
    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as scratch:
        files = write_events(Path(scratch), options.events, options.people)
        for format in ("parquet",) if options.quick else files:
            path = files[format]
            measured = programs(Path(scratch), path)
            seconds: dict[str, list[float]] = {name: [] for name in measured}
            for _ in range(options.repeats):
                for name, program in measured.items():
                    seconds[name].append(of_program(program).cpu_seconds)
            least = {name: min(each) for name, each in seconds.items()}
            due = sum(least[name] for name in QUESTIONS) - 2 * least["reading"]
            rows.append(
                {"format": format, "events": options.events}
                | {f"{name}_cpu_seconds": round(each, 2) for name, each in least.items()}
                | {"three_less_two_readings": round(due, 2), "times": round(least["monitor"] / due, 3)}
                | {"load_average": load_average()}
            )
            print(rows[-1], flush=True)
    folder = results_folder(options)
    write_csv(folder / "one_pass.csv", rows)
    draw(rows, folder / "one_pass.png")
    print_table("one pass for three questions: CPU seconds", rows)


if __name__ == "__main__":
    main()
