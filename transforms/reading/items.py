"""Items of several columns: one text inside, from which the columns can be told again."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

MOST_COLUMNS = 16
"""So many columns an item has at most."""

QUOTED = re.compile('[",]')
_PART = re.compile(r'"((?:[^"]|"")*)"|([^",]*)')


def column_names(text: str) -> tuple[str, ...]:
    """Return the names of the columns of an item, as in a line of CSV: a name with a comma stands in quotes.

    Raises:
        ValueError: they are not such a line, too many, or not distinct.

    >>> column_names("country,page"), column_names('"a,b",c')
    (('country', 'page'), ('a,b', 'c'))
    """
    names = line_of_csv("item", text) if text else ("",)
    if len(names) > MOST_COLUMNS:
        raise ValueError(f"item must name at most {MOST_COLUMNS} columns, got {len(names)}")
    if len(names) > 1 and "" in names:
        raise ValueError("item must be names with commas between them, none of them empty")
    if len(set(names)) < len(names):
        raise ValueError(f"item must name different columns, got {', '.join(names)}")
    return names


def line_of_csv(name: str, text: str) -> tuple[str, ...]:
    """Return the fields of a line of CSV.

    Raises:
        ValueError: it is none.
    """
    try:
        rows = list(csv.reader([text], strict=True))
    except csv.Error:
        rows = []
    if len(rows) != 1:
        raise ValueError(f"{name} must have the form of a line of CSV, quotes around a text with commas, got {text!r}")
    return tuple(rows[0])


def join_item(parts: Sequence[str]) -> str:
    """Return one text for an item of several columns; different items give different texts.

    >>> join_item(["de", "/error"]), join_item(["a,b", "c"]), join_item(["a", "b,c"])
    ('de, /error', '"a,b", c', 'a, "b,c"')
    """
    doubled = [part.replace('"', '""') for part in parts]
    return ", ".join(f'"{two}"' if QUOTED.search(one) else one for one, two in zip(parts, doubled, strict=True))


def join_columns(columns: Sequence[pa.Array]) -> pa.Array:
    """Return the texts of `join_item` for columns of text, without nulls, of equal length."""
    texts = []
    for column in columns:
        doubled = pc.replace_substring(column, '"', '""')
        quoted = pc.binary_join_element_wise('"', doubled, '"', "")
        texts.append(pc.if_else(pc.match_substring_regex(column, QUOTED.pattern), quoted, column))
    return pc.binary_join_element_wise(*texts, ", ")


def split_item(text: str, columns: int) -> tuple[str, ...]:
    """Return the columns of an item from the text that `join_item` made.

    Raises:
        ValueError: it did not make it of so many.

    >>> split_item('"a,b", c', 2)
    ('a,b', 'c')
    """
    parts, place = [], 0
    while found := _PART.match(text, place):
        quoted, plain = found.groups()
        parts.append(plain if quoted is None else quoted.replace('""', '"'))
        place = found.end()
        if not text.startswith(", ", place):
            break
        place += 2
    if place < len(text) or len(parts) != columns:
        raise ValueError(f"item must be one of {columns} columns")
    return tuple(parts)


def listed_item(name: str, text: str, columns: int) -> str:
    """Return an item of a public list, which is written as a line of CSV, as the text that stands for it inside.

    Raises:
        ValueError: it has another number of columns, or an empty one; items of lists are public and may be quoted.
    """
    parts = line_of_csv(name, text)
    if len(parts) != columns or "" in parts:
        raise ValueError(f"{name} must have items of {columns} columns, each a line of CSV, none empty, got {text!r}")
    return join_item(parts)
