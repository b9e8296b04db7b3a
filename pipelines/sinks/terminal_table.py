"""Published rows as a table on a terminal: the newest window, the largest items; files have all rows and columns."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from privstream.pipelines.show.shown import BLOCKS, Shown
from privstream.pipelines.show.words import capital
from privstream.pipelines.terminal import printable
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

MOST_ROWS = 20
LEAST_TEXT, LONGEST_TEXT, WIDEST, GAP = 20, 80, 10_000, 2
"""Letters of a name that have room in a line, and that are printed; widths of what is measured, and between columns."""

LONGEST_TREND, SHORTEST_TREND = 24, 8  # windows of the numbers beside each row: as many as have room


def print_rows(
    table: pa.Table,
    record: Mapping[str, Any],
    *,
    name: str = "",
    path: str | None = None,
    limit: int = MOST_ROWS,
    nothing: str = "nothing is published",
    console: Console | None = None,
) -> None:
    """Print a table that fits a terminal, if names are not too long, and say where all rows are.

    Args:
        path: of all rows; None if they are not kept.
    """
    console = console or Console()
    shown = Shown(table, record, limit)
    heading = f"{name}: {shown.heading}" if name else shown.heading
    console.print(Text(printable(heading), style="bold"), soft_wrap=True)
    if not table.num_rows:
        console.print(Text(f"{capital(nothing)}."))
        return
    console.print(_fitting(shown, console), crop=False)
    console.print(Text(f"{shown.count}. All rows: {printable(path or '--output FILE')}"), soft_wrap=True)


def _fitting(shown: Shown, console: Console) -> Table:
    """Return the table; numbers of earlier windows go, and then the last columns, to make room."""
    columns, wide = dict(shown.columns), console.options.update(max_width=WIDEST)

    def width(longest: int = LONGEST_TEXT) -> int:
        return Measurement.get(console, wide, _drawn(shown, columns, longest)).maximum

    room = min(LONGEST_TREND, console.width - width() - GAP)
    if room >= SHORTEST_TREND and BLOCKS.encode(console.encoding, "replace").decode(console.encoding) == BLOCKS:
        heading, trend = shown.trends(room)
        if heading and len(heading) <= max(room, len(trend[0])):
            return _drawn(shown, columns | {heading: trend})
    while (needed := width(LEAST_TEXT)) > console.width and len(columns) > len(shown.keys) + 2:
        columns.popitem()
    table = _drawn(shown, columns)
    table.width = needed if needed > console.width else None
    return table


def _drawn(shown: Shown, columns: Mapping[str, list[str]], longest: int = LONGEST_TEXT) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        justify: Any = "right" if name in shown.numeric else "left"
        table.add_column(Text(printable(name)), justify=justify, overflow="fold", no_wrap=name not in shown.keys)
    for cells in zip(*columns.values(), strict=True):
        known = zip(columns, cells, strict=True)
        table.add_row(*(_cell(text, longest if name in shown.keys else LONGEST_TEXT) for name, text in known))
    return table


def _cell(text: str, longest: int) -> Text:
    """Return a text in which nothing steers a terminal, cut where it would fill lines."""
    cell = Text(printable(text).replace("\n", "\\n"))
    cell.truncate(longest, overflow="ellipsis")
    return cell


@contextmanager
def until_closed() -> Iterator[None]:
    """Print until nobody reads it any more, as `head` does; what is said of the run follows in any case."""
    try:
        yield
    except SystemExit as ended:  # rich ends the process
        if ended.code != 1:
            raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
