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

from privstream.pipelines.model.data import Data
from privstream.pipelines.sources.event_files import UTF_8, Damage, InputFileError
from privstream.pipelines.sources.text_lines import REASON, encoding_of, parse_line, read_lines
from privstream.transforms.questions.alerts import AlertRule
from privstream.transforms.reading.domain import AS_WRITTEN, Domain, Spelling, listed_item
from privstream.transforms.row_types import LinearQuery
from privstream.transforms.timing.steps import timestamp

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


def _check_fields(given: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse fields that a line does not have."""
    if unknown := sorted(set(given) - set(names)):
        raise ValueError(f"fields must be {', '.join(names)}, got {', '.join(map(repr, unknown))}")


def point_queries(path: str, names: Sequence[str]) -> list[Any]:
    """Return the queries about points that the lines of a file describe: numbers of these names, or the one."""

    def query(given: dict[str, Any]) -> Any:
        _check_fields(given, names)
        if wrong := [name for name in names if type(given.get(name)) is not int]:
            raise TypeError(f"{wrong[0]} must be a whole number")
        return given[names[0]] if len(names) == 1 else tuple(given[name] for name in names)

    return json_lines("queries", path, query)


def linear_queries(path: str, reading: Reading = AS_UTF_8) -> tuple[LinearQuery, ...]:
    """Return the queries about people that the lines of a file describe; they are asked in the order of their lines."""

    def query(given: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
        _check_fields(given, ("name", "items"))
        if len(given) < 2:
            raise ValueError("name and items must be given")
        if not isinstance(given["items"], list):
            raise TypeError("items must be a list")
        return given["name"], tuple(map(reading.spelling.item, given["items"]))

    found = json_lines("queries", path, query)
    return tuple(LinearQuery(name, timestamp(line), items) for line, (name, items) in enumerate(found, 1))


def domain(name: str, value: Any, reading: Reading = AS_UTF_8) -> Domain:
    """Return the domain that a list or a path describes."""
    if isinstance(value, str):
        return Domain.from_file(value, name=name, encoding=reading.encoding, spelling=reading.spelling)
    return Domain(reading.spelling.listed(value), name)


def rules(name: str, value: str | Iterable[Mapping[str, Any]], reading: Reading = AS_UTF_8) -> tuple[AlertRule, ...]:
    """Return the rules that mappings, or the lines of a file, describe; of mappings, items may be whole numbers."""

    def rule(given: Mapping[str, Any]) -> AlertRule:
        _check_fields(given, [each.name for each in dataclasses.fields(AlertRule)])
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
