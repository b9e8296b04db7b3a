"""Public lists of items, rules and thresholds, and moments, from plain values and files.

Rules of alerts are JSON lines: `{"name": "flu", "at_least": 500, "items": ["fever", "cough"]}`.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from privstream.pipelines.model.data import Data
from privstream.pipelines.sources.event_files import UTF_8, Damage, InputFileError
from privstream.pipelines.sources.json_events import REASON, parse_line
from privstream.pipelines.sources.text_lines import encoding_of, read_lines
from privstream.transforms.questions.alerts import AlertRule
from privstream.transforms.reading.domain import Domain
from privstream.transforms.reading.texts import AS_WRITTEN, Spelling, listed_item

FIELDS = tuple(field.name for field in dataclasses.fields(AlertRule))


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


def domain(name: str, value: Any, reading: Reading = AS_UTF_8) -> Domain:
    """Return the domain that a list or a path describes."""
    if isinstance(value, str):
        return Domain.from_file(value, name=name, encoding=reading.encoding, spelling=reading.spelling)
    return Domain(reading.spelling.listed(value), name)


def rules(name: str, value: Any, reading: Reading = AS_UTF_8) -> tuple[AlertRule, ...]:
    """Return the rules that mappings, or the lines of a file, describe."""
    if isinstance(value, str):
        return read_rules(value, reading)
    return tuple(_spelled(AlertRule.from_fields(_with_texts(rule)), reading) for rule in value)


def _with_texts(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rule whose items are texts, as those of events are; what is no list stays, to be refused."""
    items = rule.get("items")
    return {**rule, "items": [*map(str, items)]} if isinstance(items, list | tuple) else dict(rule)


def read_rules(path: str, reading: Reading = AS_UTF_8) -> tuple[AlertRule, ...]:
    """Read the rules of a file, one on each line.

    Raises:
        ValueError: naming the line and what it breaks; rules are public and may be quoted.
    """
    rules = []
    try:
        for lines in read_lines(path):
            if isinstance(lines, Damage):
                raise ValueError(f"--rules: {lines.position} of {path}: {lines.reason}")
            for row, text in enumerate(lines.texts):
                try:
                    rules.append(_spelled(_rule(text), reading))
                except (TypeError, ValueError) as error:
                    raise ValueError(f"--rules: {lines.position(row)} of {path}: {error}") from None
    except InputFileError as error:
        raise ValueError(f"--rules must be a readable file: {error}") from None
    if not rules:
        raise ValueError(f"--rules must have at least one rule, got {path} with none")
    return tuple(rules)


def _rule(text: bytes) -> AlertRule:
    """Read one line."""
    found = parse_line(text)
    if found is None:
        raise ValueError(REASON)
    return AlertRule.from_fields(found)


def _spelled(rule: AlertRule, reading: Reading) -> AlertRule:
    """Return a rule with its items as those of events are read."""
    return rule if rule.items is None else dataclasses.replace(rule, items=tuple(reading.spelling.listed(rule.items)))


def of_columns(given: Mapping[str, Any], columns: int) -> dict[str, Any]:
    """Return arguments of a transform whose items have several columns, with its public lists written as inside.

    Raises:
        ValueError: an item of a list has another number of columns.
    """
    found = dict(given)
    for name, value in given.items():
        if isinstance(value, Domain):
            found[name] = Domain([listed_item(name, text, columns) for text in value.texts.to_pylist()])
        elif name == "rules":
            found[name] = tuple(_rule_of_columns(name, rule, columns) for rule in value)
        elif name == "thresholds" and isinstance(value, Mapping):
            found[name] = {listed_item(name, text, columns): number for text, number in value.items()}
    return found


def _rule_of_columns(name: str, rule: AlertRule, columns: int) -> AlertRule:
    """Return a rule with its items as they are inside."""
    if rule.items is None:
        return rule
    return dataclasses.replace(rule, items=tuple(listed_item(name, text, columns) for text in rule.items))


def thresholds(name: str, value: Any, reading: Reading = AS_UTF_8) -> int | dict[str, int]:
    """Return a number, or a number for each category; a category that is an integer is its decimal text."""
    found = _read_json(value) if isinstance(value, str) else value
    if isinstance(found, Mapping):
        return {reading.spelling.item(str(category)): number for category, number in found.items()}
    if isinstance(found, bool) or not isinstance(found, int):
        raise ValueError(f"{name} must be a whole number, or a file with a JSON object, got {value}")
    return found


def _read_json(path: str) -> Any:
    """Return the JSON object in a file, or None."""
    if not os.path.isfile(path):  # a device may never end
        return None
    try:
        with open(path, encoding="utf-8") as file:
            found = json.loads(file.read().removeprefix("\ufeff"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


READERS = {"domain": domain, "public_items": domain, "rules": rules, "thresholds": thresholds}
"""What reads public lists, by the options that they are."""
