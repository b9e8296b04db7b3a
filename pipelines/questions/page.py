"""How plans are printed: a title, a table, and what it says."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from privstream.pipelines.terminal import printable
from rich.console import Console
from rich.table import Table
from rich.text import Text


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the choice of a form for machines."""
    parser.add_argument_group("output").add_argument("--json", action="store_true", help="print one JSON object")


def show(title: str, table: Table, sentences: Iterable[str]) -> None:
    """Print a page; its lines are wrapped on a terminal and left whole elsewhere."""
    console = Console(highlight=False)
    for text in (Text(printable(title), style="bold"), table, *(Text(printable(text)) for text in sentences)):
        console.print(text, soft_wrap=isinstance(text, Text) and not console.is_terminal)
