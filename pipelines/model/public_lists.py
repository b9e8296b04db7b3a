"""Public lists of items, rules, thresholds and queries, from plain values and files.

Rules and queries are JSON lines, such as `{"name": "flu", "at_least": 500, "items": ["fever", "cough"]}`.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from privstream.pipelines.model.base import Model
from privstream.pipelines.model.data import Data
from privstream.pipelines.sources.event_files import UTF_8, Damage, InputFileError
from privstream.pipelines.sources.text_lines import REASON, encoding_of, parse_line, read_lines
from privstream.pipelines.suggestions import meant
from privstream.transforms.questions.alerts import AlertRule
from privstream.transforms.reading.domain import AS_WRITTEN, Domain, Spelling, listed_item
from privstream.transforms.row_types import LinearQuery
from privstream.transforms.timing.steps import timestamp
from pydantic import StrictInt, create_model

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


AS_UTF_8 = Reading()


def json_lines(option: str, path: str, parse: Callable[[dict[str, Any]], Read]) -> list[Read]:
    """Return what is made of each line of a public file of JSON objects, which is small enough for memory.

    Raises:
        ValueError: there is no such file, or a line breaks a rule: names the line and the rule, and may quote it.
    """
    found: list[Read] = []
    try:
        for lines in read_lines(path):
            if isinstance(lines, Damage):
                raise ValueError(f"--{option}, {lines.position} of {path}: {lines.reason}")
            for number, text in lines:
                try:
                    if (given := parse_line(text)) is None:
                        raise ValueError(REASON)
                    found.append(parse(given))
                except (TypeError, ValueError) as error:
                    raise ValueError(f"--{option}, line {number} of {path}: {error}") from None
    except InputFileError as error:
        raise ValueError(f"--{option} must be a readable file: {error}") from None
    return found


def point_queries(path: str, names: Sequence[str]) -> list[Any]:
    """Return the queries about points that the lines of a file describe: numbers of these names, or the one."""
    kinds: dict[str, Any] = {name: (StrictInt, ...) for name in names}
    line = create_model("PointQuery", __base__=Model, **kinds)
    found = json_lines("queries", path, lambda given: tuple(line.read(given).model_dump().values()))
    return [numbers[0] for numbers in found] if len(names) == 1 else found


class LinearLine(Model):
    """A line with a query about people."""

    name: Any
    items: tuple[Any, ...]


def linear_queries(path: str, reading: Reading = AS_UTF_8) -> tuple[LinearQuery, ...]:
    """Return the queries about people that the lines of a file describe; they are asked in the order of their lines."""
    found = enumerate(json_lines("queries", path, LinearLine.read), 1)
    item = reading.spelling.item
    return tuple(LinearQuery(one.name, timestamp(line), tuple(map(item, one.items))) for line, one in found)


def domain(name: str, value: Any, reading: Reading = AS_UTF_8) -> Domain:
    """Return the domain that a list or a path describes."""
    if isinstance(value, str):
        return Domain.from_file(value, name=name, encoding=reading.encoding, spelling=reading.spelling)
    return Domain(reading.spelling.listed(value), name)


def rules(name: str, value: str | Iterable[Mapping[str, Any]], reading: Reading = AS_UTF_8) -> tuple[AlertRule, ...]:
    """Return the rules that mappings, or the lines of a file, describe; of mappings, items may be whole numbers."""

    def rule(given: Mapping[str, Any]) -> AlertRule:
        names = [each.name for each in dataclasses.fields(AlertRule)]
        if unknown := [name for name in given if name not in names]:
            raise ValueError(f"unknown field {unknown[0]!r}{meant(unknown[0], names)}")
        return _about(AlertRule(**given), reading.spelling.listed)

    if isinstance(value, str):
        found = json_lines(name, value, rule)
    else:
        found = [rule({**one, "items": _texts(one.get("items"))} if "items" in one else one) for one in value]
    if not found:
        raise ValueError(f"--{name} must have at least one rule, got {value} with none")
    return tuple(found)


def _texts(items: Any) -> Any:
    """Return a list in which integers are their decimal texts; anything else is for the rule to refuse."""
    return [str(one) if type(one) is int else one for one in items] if isinstance(items, list | tuple) else items


def _about(rule: AlertRule, written: Callable[[Sequence[str]], Iterable[str]]) -> AlertRule:
    """Return a rule with its items written in another way."""
    return rule if rule.items is None else dataclasses.replace(rule, items=tuple(written(rule.items)))


def of_columns(given: Mapping[str, Any], columns: int) -> dict[str, Any]:
    """Return arguments of a transform whose items have several columns, with its public lists written as inside."""
    found = dict(given)
    for name, value in given.items():

        def inside(texts: Iterable[str], name: str = name) -> list[str]:
            return [listed_item(name, text, columns) for text in texts]

        if isinstance(value, Domain):
            found[name] = Domain(inside(value.texts.to_pylist()))
        elif name == "rules":
            found[name] = tuple(_about(rule, inside) for rule in value)
        elif name == "thresholds" and isinstance(value, Mapping):
            found[name] = dict(zip(inside(value), value.values(), strict=True))
    return found


def thresholds(name: str, value: Any, reading: Reading = AS_UTF_8) -> int | dict[str, int]:
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


READERS = {"domain": domain, "public_items": domain, "rules": rules, "thresholds": thresholds}
"""What reads public lists, by the options that they are."""
