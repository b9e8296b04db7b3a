"""Published rows as a table on a terminal: the newest window, the largest items; files have all rows and columns."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from privstream.pipelines.show.shown import BLOCKS, WINDOW, Shown
from privstream.pipelines.terminal import printable
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

MOST_ROWS = 20
LEAST_TEXT, LONGEST_TEXT, WIDEST, GAP = 20, 80, 10_000, 2
"""Cells of a column of texts at least, of a text at most, of a table that is measured, and between columns."""

SPARED = ("since", "gap", "distance", "threshold", "status", "rank", "stopped", "measurements left", "epsilon left")
"""Columns that have no room in a narrow terminal, the first ones first."""

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
    shown = Shown.of(table, record, limit)
    heading = f"{name}: {shown.heading}" if name else shown.heading
    console.print(Text(printable(heading), style="bold"), soft_wrap=True)
    if not table.num_rows:
        console.print(Text(f"{nothing[:1].upper()}{nothing[1:]}."))
        return
    width, (drawn, least) = console.width, _fitting(shown, console)
    console.width = max(width, least)
    console.print(drawn, crop=False)
    console.width = width
    count = f"{shown.rows.num_rows:,}" + (f" of {shown.all:,}" if shown.all > shown.rows.num_rows else "")
    noun = shown.noun if shown.all > 1 else shown.noun.removesuffix("s")
    console.print(Text(f"{count} {noun}. All rows: {printable(path) if path else '--output FILE'}"), soft_wrap=True)


def _fitting(shown: Shown, console: Console) -> tuple[Table, int]:
    """Return the table, and how narrow it can be; numbers of earlier windows go, and then columns, to make room."""
    columns = dict(shown.columns)
    names = [Text(each).cell_len for key in shown.keys for each in columns.get(key, ())]
    folded = min(max(0, max(names, default=0) - LEAST_TEXT), LONGEST_TEXT - LEAST_TEXT)
    wide = console.options.update(max_width=WIDEST)
    wished = Measurement.get(console, wide, _drawn(shown, columns)).maximum
    room = (
        min(LONGEST_TREND, console.width - wished - GAP)
        if BLOCKS.encode(console.encoding, "replace").decode(console.encoding) == BLOCKS
        else 0
    )
    heading, trend = shown.trends(room if room >= SHORTEST_TREND else 0)
    if heading and len(heading) <= max(room, len(trend[0])):
        return _drawn(shown, columns | {heading: trend}), 0
    for spared in SPARED:
        if wished - folded <= console.width:
            break
        columns.pop(spared, None)
        wished = Measurement.get(console, wide, _drawn(shown, columns)).maximum
    return _drawn(shown, columns), wished - folded


def _drawn(shown: Shown, columns: Mapping[str, list[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, column in columns.items():
        is_text, field = name in shown.keys, name.replace(" ", "_")
        is_time = field in shown.rows.column_names and pa.types.is_timestamp(shown.rows[field].type)
        right = not is_text and name != WINDOW and not is_time and any(one.lstrip("-")[:1].isdigit() for one in column)
        widest = max(map(len, column), default=0)
        table.add_column(
            Text(printable(name)),
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=not is_text,
            min_width=min(LEAST_TEXT, widest) if is_text else None,
        )
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*map(_cell, cells))
    return table


def _cell(text: str) -> Text:
    """Return a text in which nothing steers a terminal, cut where it would fill lines."""
    cell = Text(printable(text).replace("\n", "\\n"))
    cell.truncate(LONGEST_TEXT, overflow="ellipsis")
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
