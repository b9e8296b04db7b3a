"""What all benchmarks share: options, the load of the machine, and results as a CSV and a table on the terminal."""

import argparse
import csv
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
WIDTH = 200  # of tables that go to a file


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="a tiny workload, to see that it runs; figures mean nothing")
    made.add_argument("--results", type=Path, help="folder for CSV and PNG (default: results; a new one with --quick)")
    return made


def results_folder(options: argparse.Namespace) -> Path:
    """Return the folder for results, made if need be; a quick run never overwrites real ones."""
    folder = options.results or (Path(tempfile.mkdtemp(prefix="privstream-bench-")) if options.quick else RESULTS)
    folder.mkdir(parents=True, exist_ok=True)
    return Path(folder)


def load_average() -> float:
    """Return how many processes wanted a core in the last minute; with more than there are cores, figures are low."""
    return round(os.getloadavg()[0], 1)


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows with equal keys."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def print_table(title: str, rows: Sequence[dict[str, Any]], columns: Sequence[str] = ()) -> None:
    """Print rows, or some of their columns."""
    table = Table(title=title, title_justify="left")
    names = list(columns) or list(rows[0])
    for name in names:
        table.add_column(name.replace("_", " "), justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in names))
    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(table)


def _cell(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return value or "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
