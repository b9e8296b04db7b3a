"""Queries about points as JSON lines."""

from __future__ import annotations

from collections.abc import Sequence

from privstream.pipelines.sources.event_files import Damage, InputFileError
from privstream.pipelines.sources.text_lines import REASON, parse_line, read_lines


def read_point_queries(path: str, names: Sequence[str]) -> list[tuple[int, ...]]:
    """Read the queries of a file, numbers of these names; it is public, and small enough for memory.

    Raises:
        ValueError: there is no such file, or a line breaks a rule; names the line and the rule.
    """
    found: list[tuple[int, ...]] = []
    try:
        for lines in read_lines(path):
            if isinstance(lines, Damage):
                raise ValueError(f"--queries, {lines.position}: {lines.reason}")
            for row, text in enumerate(lines.texts):
                try:
                    found.append(_parse(text, names))
                except (TypeError, ValueError) as error:
                    raise ValueError(f"--queries, {lines.position(row)}: {error}") from None
    except InputFileError as error:
        raise ValueError(f"--queries must be a readable file: {error}") from None
    return found


def _parse(text: bytes, names: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of a query."""
    given = parse_line(text)
    if given is None:
        raise ValueError(REASON)
    if unknown := sorted(set(given) - set(names)):
        raise ValueError(f"fields must be {', '.join(names)}, got {', '.join(map(repr, unknown))}")
    for name in names:
        if isinstance(given.get(name), bool) or not isinstance(given.get(name), int):
            raise TypeError(f"{name} must be a whole number")
    return tuple(given[name] for name in names)
