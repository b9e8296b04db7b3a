"""How plans are printed: a title, a table, and what it says."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from privstream.pipelines.terminal import printable
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 100
"""Columns of a page that is not printed on a terminal."""


def show(title: str, table: Table, sentences: Iterable[str]) -> None:
    """Print a page, wrapped to the width of the terminal, or to 100 columns elsewhere."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    for text in (Text(printable(title), style="bold"), table, *(Text(printable(text)) for text in sentences)):
        console.print(text)
