"""What is shown by rich: pages with tables, and a line with how long something takes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from privstream.pipelines.terminal import is_quiet, printable
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

STANDARD_ERROR = 2


@contextmanager
def clock(text: str) -> Iterator[Progress]:
    """Show what is going on, and since when, while the block runs; then the line vanishes.

    Nothing is shown where standard error is no terminal. The text is a fixed one: it never quotes what is read.
    """
    with os.fdopen(os.dup(STANDARD_ERROR), "w") as stream:  # workers lose theirs
        console = Console(file=stream)
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        progress = Progress(
            *columns,
            console=console,
            transient=True,
            redirect_stdout=False,  # runs redirect these themselves
            redirect_stderr=False,
            disable=is_quiet() or not console.is_terminal,
        )
        with progress as shown:
            shown.add_task(printable(text), total=None)
            yield shown


WIDTH = 100
"""Columns of a page that is not printed on a terminal."""


def show(title: str, table: Table, sentences: Iterable[str]) -> None:
    """Print a page, wrapped to the width of the terminal, or to 100 columns elsewhere."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    for text in (Text(printable(title), style="bold"), table, *(Text(printable(text)) for text in sentences)):
        console.print(text)
