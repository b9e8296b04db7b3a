"""Every question by privstream and its peers, on the same events with the same budget: one page, results/peers.md.

Usage: python benchmarks/peers.py [--quick] [--questions counts ..] [--people 10000] [--large 5000000] [--no-flink]

Every answer is a program of its own, measured from its start to its end: CPU seconds of all its threads, imports
included, and the memory of its largest process; `start` is what it takes for 1,200 events. Peers that are not installed
are left out, and the page says so. DuckDB has one thread. With `--large` privstream, DuckDB and Flink SQL also count
many more events. Flink and what it needs to read Parquet are fetched on first use, by pip and Maven.

Writes peers.md, peers.csv, peers_large.csv and peers.png to benchmarks/results.
"""

import argparse
import csv
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import _flink_sql
import pyarrow.parquet as pq
from _measure import of_program
from _peer_page import picture, write_page
from _peer_workload import (
    CATEGORIES,
    CATEGORY,
    DELTA,
    EPSILON,
    HIGH,
    ITEM,
    LOW,
    QUANTILES,
    START,
    TOP,
    WINDOW,
    Answer,
    Workload,
)
from _report import load_average, parser, print_table, results_folder, write_csv

HERE = Path(__file__).parent
FEW, LARGE_ITEMS = 1_200, 20_000
Rows = list[dict[str, Any]]
Command = Callable[[str, str], list[str]]  # from the paths of events and output
Starts = dict[str, float]


class Peer(NamedTuple):
    """A library or an engine: its name here, in words, its module, its script, what it answers (None: everything)."""

    name: str
    title: str
    module: str
    script: str
    questions: tuple[str, ...] | None = None


PRIVATE, EXACT = "_peer_libraries.py", "_peer_engines.py"
COUNTED = ("counts", "heavy-hitters", "top-k", "histogram", "cardinality")
PEERS = (
    Peer("pipeline-dp", "PipelineDP", "pipeline_dp", PRIVATE),
    Peer("opendp", "OpenDP", "opendp", PRIVATE),
    Peer("dp-accounting", "numpy and dp-accounting, by hand", "dp_accounting", PRIVATE, COUNTED),
    Peer("jax-privacy", "jax-privacy", "jax_privacy", PRIVATE, ("histogram",)),
    Peer("beam", "plain Beam", "apache_beam", EXACT),
    Peer("duckdb", "DuckDB", "duckdb", EXACT),
)
FIELDS = {
    "counts": ("item", "count"),
    "heavy-hitters": ("item", "count"),
    "top-k": ("item", "estimate"),
    "histogram": ("category", "estimate"),
    "quantiles": ("quantile", "estimate"),
    "cardinality": (None, "estimate"),
}
"""Questions, and the fields of privstream's rows that name and count something."""


def privstream(question: str, windows: int, folder: Path, events: str, output: str) -> list[str]:
    """Return the command that answers a question about so many windows."""
    run = "import sys; from privstream.pipelines.cli import main; sys.exit(main())"
    end = START + windows * WINDOW
    budget = [f"--epsilon={EPSILON}", f"--delta={DELTA}"]
    own = {
        "counts": [f"--max_contributions={windows}", f"--end={end}"],
        "heavy-hitters": [f"--max_hits={windows}", f"--horizon={windows}"],
        "top-k": [f"--domain={folder / 'items.txt'}", f"--top={TOP}", f"--end={end}"],
        "histogram": [f"--domain={folder / 'categories.txt'}", "--item_field=category", f"--end={end}"],
        "quantiles": [
            *(f"--low={LOW}", f"--high={HIGH}", "--scale=log", f"--quantiles={','.join(map(str, QUANTILES))}"),
            *(f"--max_contributions={windows}", f"--end={end}"),
        ],
        "cardinality": ["--item_field=move", "--enter_values=in", "--leave_values=out", f"--end={end}"],
    }[question]
    given = [f"--input={events}", f"--output={output}.jsonl", f"--window={WINDOW}", f"--start={START}"]
    return [sys.executable, "-c", run, question, *given, *budget, *own]


def read_rows(question: str, path: str) -> Answer:
    """Read privstream's rows."""
    item, number = FIELDS[question]
    answer = {}
    with open(f"{path}.jsonl") as file:
        for row in map(json.loads, file):
            window = (datetime.fromisoformat(row["window_start"]).timestamp() - START) // WINDOW
            answer[int(window), str(row[item]) if item else ""] = float(row[number] or 0)
    return answer


def read_answer(path: str, *, running: bool) -> Answer:
    """Read a peer's rows; add up over windows what it has counted window by window."""
    answer: Answer = {}
    with open(path, newline="") as file:
        for window, item, number in sorted((int(window), item, number) for window, item, number in csv.reader(file)):
            before = answer.get((window - 1, item), 0.0) if running else 0.0
            answer[window, item] = before + float(number)
    return answer


def answers(question: str, given: Workload, folder: Path, starts: Starts | None) -> Iterator[dict[str, Any]]:
    """Ask privstream and all peers that are installed."""
    windows = len(given.items)

    def row(title: str, kind: str, command: Command, answer: Callable[[str], Answer]) -> dict[str, Any]:
        output = str(folder / f"{question} {title}")
        cost = costs(title, command, folder, "events", output, given.items.size, starts)
        error, what = given.error(question, answer(output))
        row = {"question": question, "library": title, "kind": kind} | cost
        return row | {"error": round(error, 1), "error_of": what}

    ours = partial(privstream, question, windows, folder)
    yield row("privstream", "private", ours, partial(read_rows, question))
    for peer in PEERS:
        if importlib.util.find_spec(peer.module) and question in (peer.questions or FIELDS):
            script = [sys.executable, "-W", "ignore", str(HERE / peer.script), peer.name, question]
            kind = "private" if peer.script == PRIVATE else "exact"
            running = (peer.name, question) == ("beam", "histogram")
            yield row(peer.title, kind, partial(with_paths, script), partial(read_answer, running=running))


def large(windows: int, folder: Path, starts: Starts, *, flink: bool) -> Iterator[dict[str, Any]]:
    """Count many events by privstream, and by engines without privacy."""
    events = pq.read_metadata(folder / "many.parquet").num_rows
    for question, asked in (("counts", "different people by hour and item"), ("last item", "last items, by hour")):
        word = "heavy-hitters" if question == "last item" else question
        runs: dict[str, Command] = {f"privstream {word}": partial(privstream, word, windows, folder)}
        if importlib.util.find_spec("duckdb"):
            runs["DuckDB"] = partial(with_paths, [sys.executable, str(HERE / EXACT), "duckdb", question])
        for mode in ("streaming", "batch") if flink else ():
            runs[f"Flink SQL, {mode}"] = partial(_flink_sql.command, mode, question)
        for title, command in runs.items():
            output = str(folder / f"large {question} {title}")
            cost = costs(title, command, folder, "many", output, events, starts)
            yield {"question": asked, "engine": title} | cost


def with_paths(script: list[str], events: str, output: str) -> list[str]:
    return [*script, events, output]


def costs(
    title: str, command: Command, folder: Path, name: str, output: str, events: int, starts: Starts | None
) -> dict[str, Any]:
    """Measure a program, and, if it is the first of this title, what it takes for a few events."""
    if starts is not None and title not in starts:
        starts[title] = of_program(command(str(folder / "few.parquet"), f"{output} few")).cpu_seconds
    cost = of_program(command(str(folder / f"{name}.parquet"), output))
    print(f"{Path(output).name}: {cost.cpu_seconds:.1f} CPU seconds", flush=True)
    return {
        "events": events,
        "events_per_cpu_second": round(events / cost.cpu_seconds),
        "cpu_seconds": round(cost.cpu_seconds, 2),
        "start_cpu_seconds": round(starts[title], 2) if starts is not None else None,
        "wall_seconds": round(cost.wall_seconds, 2),
        "peak_megabytes": cost.peak_megabytes,
        "load_average": load_average(),
    }


def left_out(options: argparse.Namespace) -> list[str]:
    """Say what is not compared, and why."""
    missing = [f"{peer.title} is not installed" for peer in PEERS if importlib.util.find_spec(peer.module) is None]
    missing.append(
        "Tumult Analytics asks for Spark, numpy 1 and pandas 1, which no environment of this project can have"
    )
    if not options.large:
        missing.append("Flink SQL counts many events only (--large), which this run did not")
    elif not options.flink:
        missing.append(f"Flink SQL: {_flink_sql.missing() or 'left out by --no-flink'}")
    return missing


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--questions", nargs="+", choices=list(FIELDS), default=list(FIELDS))
    made.add_argument("--people", type=int, default=10_000, help="people with one event in each of 12 windows")
    made.add_argument("--large", type=int, default=5_000_000, help="events for engines without privacy; 0 for none")
    made.add_argument("--no-flink", action="store_false", dest="flink", help="leave out Flink SQL")
    options = made.parse_args()
    windows, items = 12, 2_000
    if options.quick:
        options.questions, options.people, options.large, windows, items = ["counts"], 2_000, 0, 2, 20
    options.flink = options.flink and _flink_sql.missing() is None
    results, starts = results_folder(options), {} if not options.quick else None
    rows: Rows = []
    more: Rows = []

    def publish() -> None:
        for name, several in (("peers", rows), ("peers_large", more)):
            if several:
                write_csv(results / f"{name}.csv", several)
        picture(rows, results / "peers.png")
        write_page(results / "peers.md", rows, more, left_out(options), (options.people, windows))

    with tempfile.TemporaryDirectory(prefix="privstream-bench-") as scratch:
        folder = Path(scratch)
        given = Workload.draw(options.people, windows, items)
        given.write(folder / "events.parquet")
        (folder / "items.txt").write_text("\n".join(map(ITEM.format, range(items))))
        (folder / "categories.txt").write_text("\n".join(map(CATEGORY.format, range(CATEGORIES))))
        Workload.draw(FEW // windows, windows, items).write(folder / "few.parquet")
        for question in options.questions:
            rows += answers(question, given, folder, starts)
            publish()  # of what there is: a run takes long
        if options.large and starts is not None:
            Workload.draw(options.large // windows, windows, LARGE_ITEMS).write(folder / "many.parquet")
            more += large(windows, folder, starts, flink=options.flink)
            publish()
    print_table(f"epsilon {EPSILON:g}, delta {DELTA:g}", rows)
    print(f"results: {results}")


if __name__ == "__main__":
    main()
