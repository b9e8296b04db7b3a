"""Which items rose most, and how that is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from privstream.pipelines.local_time import Clocks
from privstream.pipelines.promise import Promise
from privstream.pipelines.terminal import printable
from privstream.transforms.row_types import KeyRise
from rich.table import Table
from rich.text import Text

SHOWN = 10
"""Items in a terminal."""

MODEL = "between: 95%, each by itself, if counts stay near levels that move"


def risers(rows: Sequence[KeyRise], most: int) -> list[KeyRise]:
    """Return, of each item that surely rose, the row with its largest rise; the largest rise first."""
    largest: dict[str, KeyRise] = {}
    for row in rows:
        name = row.item
        surely = row.rise is not None and (row.rise_lower or 0) > 0
        if surely and (name not in largest or _rise(row) > _rise(largest[name])):
            largest[name] = row
    return sorted(largest.values(), key=lambda row: (-_rise(row), row.item))[:most]


def newest(rows: Sequence[KeyRise]) -> list[KeyRise]:
    """Return the rows of the last window that has rows with a rise."""
    risen = [row for row in rows if getattr(row, "rise", None) is not None]  # heavy hitters have no such column
    last = max((row.window_end.micros for row in risen), default=None)
    return [row for row in rows if row.window_end.micros == last]


def below(rows: Sequence[KeyRise], promise: Promise, arguments: Any = None) -> Iterator[Any]:
    """Yield what a terminal shows below the rows: what surely rose most in the last window."""
    back = promise.maybe("parameters", "rising")
    if back is not None and not rows:
        yield Text(printable(f"Nothing surely rose in any window, against {before(back)}."))
    last = newest(rows)
    if not last:
        return
    if not risers(last, SHOWN):
        yield Text(printable(none_rose(last, back, promise.clocks)))
        return
    title = f"what rose most {window_of(last, promise.clocks)}, against {before(back)}"
    table = Table(title=Text(printable(title)), title_justify="left", caption=MODEL, caption_justify="left")
    for name in ("item", "now", "rise", "between"):
        table.add_column(name, justify="left" if name == "item" else "right")
    for row in risers(last, SHOWN):
        table.add_row(Text(printable(row.item)), f"{row.people:,.0f}", *cells(row))
    yield table


def none_rose(last: Sequence[KeyRise], back: Any, clocks: Clocks) -> str:
    """Say that no item surely rose in a window, and how many perhaps did."""
    return f"Nothing surely rose {window_of(last, clocks)}, against {before(back)}."


def window_of(rows: Sequence[KeyRise], clocks: Clocks) -> str:
    """Say in which window rows are."""
    return f"in the window until {clocks.moment(rows[0].window_end.micros)}"


def before(back: Any) -> str:
    """Say with what windows are compared."""
    if not isinstance(back, int):
        return "a window before"
    return "the window before" if back == 1 else f"{back} windows before"


def cells(row: KeyRise) -> tuple[str, str]:
    """Return a rise and its interval, as texts."""
    return f"{row.rise:+,.0f}", f"{row.rise_lower:+,.0f} to {row.rise_upper:+,.0f}"


def _rise(row: KeyRise) -> float:
    return row.rise or 0.0
