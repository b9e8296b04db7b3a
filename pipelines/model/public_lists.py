"""Public lists of items, rules, thresholds and queries, from plain values and files.

Rules and queries are JSON lines, such as `{"name": "flu", "at_least": 500, "items": ["fever", "cough"]}`.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from privstream.pipelines.model.base import Model
from privstream.pipelines.model.monitor import Data
from privstream.pipelines.sources.files import EventFile, opened_events
from privstream.pipelines.sources.formats import UTF_8, Damage, InputFileError, encoding_of
from privstream.pipelines.sources.text_lines import REASON, parse_line, read_lines
from privstream.pipelines.stores import facts_of, reason
from privstream.pipelines.terminal import did_you_mean
from privstream.transforms.questions.by_counts import AlertRule
from privstream.transforms.questions.numbers import LinearQuery
from privstream.transforms.reading.domain import AS_WRITTEN, Domain, Spelling, listed_item
from pydantic import StrictInt

Read = TypeVar("Read")


class Reading(NamedTuple):
    """How lists beside the input are read: as the input is."""

    encoding: str = UTF_8
    spelling: Spelling = AS_WRITTEN

    @classmethod
    def of(cls, data: Data) -> Reading:
        """Return how lists beside such data are read."""
        flags = {"trim": data.trim, "normalize": data.normalize, "fold_case": data.fold_case}
        return cls(encoding_of(data.encoding or UTF_8), Spelling(null=data.null, **flags))


def domain(name: str, value: Any, reading: Reading) -> Domain:
    """Return the domain that a list or a path describes."""
    if isinstance(value, str):
        return Domain.from_file(value, name=name, encoding=reading.encoding, spelling=reading.spelling)
    return Domain(reading.spelling.listed(value), name)


def objects(name: str, value: Any, read: Callable[[Mapping[str, Any]], Read]) -> tuple[Read, ...]:
    """Return what is made of mappings, or of the lines of a public file of JSON objects, which has room in memory.

    Raises:
        ValueError: there is no such file, or a line breaks a rule: names the line and the rule, and may quote it.
    """
    found = [] if isinstance(value, str) else list(map(read, value))
    try:
        for lines in _lines(value) if isinstance(value, str) else ():
            if isinstance(lines, Damage):
                raise ValueError(f"--{name}, {lines.position} of {value}: {lines.reason}")
            for number, text in lines:
                try:
                    if (given := parse_line(text)) is None:
                        raise ValueError(REASON)
                    found.append(read(given))
                except (TypeError, ValueError) as error:
                    raise ValueError(f"--{name}, line {number} of {value}: {error}") from None
    except InputFileError as error:
        raise ValueError(f"--{name} must be a readable file: {error}") from None
    except OSError as error:
        raise ValueError(f"--{name} must be a readable file, got {value}: {reason(error)}") from None
    if not found:
        raise ValueError(f"--{name} must have at least one line, got {value} with none")
    return tuple(found)


def _lines(path: str) -> Iterator[list[tuple[int, bytes]] | Damage]:
    with opened_events(EventFile(path, facts_of(path).size, "jsonl")) as pieces:
        yield from read_lines(pieces)


class Point(Model):
    """A query for the nearest points."""

    point: StrictInt


class Range(Model):
    """A query for the points in a range."""

    low: StrictInt
    high: StrictInt


def points(name: str, value: Any, reading: Reading) -> tuple[int, ...]:
    """Return the points that are asked for."""
    return objects(name, value, lambda given: Point.read(given).point)


def ranges(name: str, value: Any, reading: Reading) -> tuple[tuple[int, int], ...]:
    """Return the ranges that are asked for."""
    return objects(name, value, lambda given: ((one := Range.read(given)).low, one.high))


def rules(name: str, value: Any, reading: Reading) -> tuple[AlertRule, ...]:
    """Return the rules of alerts."""
    return objects(name, value, lambda given: _about_items(AlertRule, given, reading))


def queries(name: str, value: Any, reading: Reading) -> tuple[LinearQuery, ...]:
    """Return the queries about people."""
    return objects(name, value, lambda given: _about_items(LinearQuery, given, reading))


def _about_items(kind: type[Read], given: Mapping[str, Any], reading: Reading) -> Read:
    """Return a rule or a query, with its items as those of events are read; integers are their decimal texts."""
    names = [each.name for each in dataclasses.fields(kind)]  # type: ignore[arg-type]
    if unknown := [name for name in given if name not in names]:
        raise ValueError(f"{unknown[0]}: unknown key{did_you_mean(unknown[0], names)}")
    if isinstance(items := given.get("items"), list | tuple):
        texts = [str(one) if type(one) is int else one for one in items]
        given = {**given, "items": reading.spelling.listed(texts)}
    return kind(**given)


def of_columns(given: Mapping[str, Any], columns: int) -> dict[str, Any]:
    """Return arguments of a transform whose items have several columns, with its public lists written as inside."""
    found = dict(given)
    for name, value in given.items():

        def inside(texts: Iterable[str], name: str = name) -> list[str]:
            return [listed_item(name, text, columns) for text in texts]

        if isinstance(value, Domain):
            found[name] = Domain(inside(value.texts.to_pylist()))
        elif isinstance(value, tuple) and value and isinstance(value[0], AlertRule | LinearQuery):
            found[name] = tuple(dataclasses.replace(one, items=one.items and inside(one.items)) for one in value)
        elif name == "thresholds" and isinstance(value, Mapping):
            found[name] = dict(zip(inside(value), value.values(), strict=True))
    return found


def thresholds(name: str, value: Any, reading: Reading) -> int | dict[str, int]:
    """Return a number, or a number for each category; a category that is an integer is its decimal text."""
    found = value
    if isinstance(value, str) and os.path.isfile(value):  # a device may never end
        with suppress(OSError, ValueError):
            found = json.loads(Path(value).read_text(encoding="utf-8-sig"))
    if isinstance(found, Mapping):
        return {reading.spelling.item(str(category)): number for category, number in found.items()}
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, or a file with a JSON object, got {value}")
    return value
