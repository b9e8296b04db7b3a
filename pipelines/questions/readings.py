"""From plain values, of a command line or of Beam YAML, to the arguments of transforms; stand-ins for plans."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import date
from functools import cache
from typing import Any, NamedTuple

from privstream.pipelines.questions.alert_rules_file import read_rules
from privstream.pipelines.questions.option_types import seconds
from privstream.pipelines.questions.options import STREAMS, options_of, span
from privstream.pipelines.questions.spec import STREAMS_PER_PERSON, QuestionSpec, loaded
from privstream.transforms.alerts.rules import AlertRule
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.times import TIME_TEXT, read_micros
from privstream.transforms.timing.steps import MICROS

NOTHING: Mapping[str, Any] = {}

PER_WINDOW = "person_in_window"
"""The unit for which limits over the whole run mean nothing."""


class Reading(NamedTuple):
    """How values of a type are given.

    Attributes:
        plain: the type of the plain value in Beam YAML.
        read: from an argument's name and its plain value to the argument.
    """

    plain: Any
    read: Callable[[str, Any], Any]


def same(name: str, value: Any) -> Any:
    """Return a value as it is: the transform checks it."""
    return value


def number(name: str, value: Any) -> Any:
    """Return text as the number that it is: YAML reads 1e-6, without a point, as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"{name} must be a number, got {value!r}") from None


def duration(name: str, value: Any) -> Any:
    """Return seconds."""
    try:
        return seconds(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"{name} {error}, got {value!r}") from None


def moment(name: str, value: Any) -> float:
    """Return seconds since 1970 UTC."""
    if isinstance(value, date):
        raise TypeError(f"{name} must be {TIME_TEXT} in quotes, or seconds since 1970, got a {type(value).__name__}")
    try:
        return read_micros(name, value, "s") / MICROS
    except ValueError as error:
        raise ValueError(f"{error}, got {value!r}") from None  # it is public, as those of events are not


def over(name: str, value: Any) -> Any:
    """Return a word for a span, or seconds, which text may give in other units."""
    try:
        return span(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"{name} {error}, got {value!r}") from None


def numbers(name: str, values: Any) -> tuple[Any, ...]:
    """Return a list of numbers."""
    if not isinstance(values, list):
        raise TypeError(f"{name} must be a list of numbers, got {type(values).__name__}")
    return tuple(number(name, value) for value in values)


def texts(name: str, values: Any) -> tuple[str, ...]:
    """Return a list of texts; an integer is its decimal text, as in events."""
    if not isinstance(values, list):
        raise TypeError(f"{name} must be a list, got {type(values).__name__}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise TypeError(
                f"{name} must be a list of texts, in quotes where YAML reads something else: one is a "
                f"{type(value).__name__}"
            )
    return tuple(map(str, values))


def domain(name: str, value: Any) -> Domain:
    """Return the domain that a list or a path describes."""
    return Domain.from_file(value) if isinstance(value, str) else Domain(texts(name, value))


def rules(name: str, value: Any) -> tuple[AlertRule, ...]:
    """Return the rules that mappings, or the lines of a file, describe."""
    if isinstance(value, str):
        return read_rules(value)
    if not isinstance(value, list) or not all(isinstance(rule, Mapping) for rule in value):
        raise TypeError(f"{name} must be a path, or a list of mappings")
    lists = [{key: texts(key, field) if key == "items" else field for key, field in rule.items()} for rule in value]
    return tuple(map(AlertRule.from_fields, lists))


def thresholds(name: str, value: Any) -> int | dict[str, int]:
    """Return a number, or a number for each category; a category that is an integer is its decimal text."""
    found = _read_json(value) if isinstance(value, str) else value
    if isinstance(found, Mapping):
        return {str(category): number for category, number in found.items()}
    if isinstance(found, bool) or not isinstance(found, int):
        raise ValueError(f"{name} must be a whole number, or a file with a JSON object, got {value}")
    return found


def _read_json(path: str) -> Any:
    """Return the JSON object in a file, or None."""
    if not os.path.isfile(path):  # a device may never end
        return None
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


READINGS: Mapping[str, Reading] = {
    "float": Reading(float, number),
    "int": Reading(int, same),
    "str": Reading(str, same),
    "bool": Reading(bool, same),
    "Seconds": Reading(float | str, duration),
    "Span": Reading(float | str, over),
    "Moment": Reading(float | str, moment),
    "Path": Reading(str, same),
    "Domain": Reading(str | list[str], domain),
    "tuple[AlertRule, ...]": Reading(str | list[dict[str, Any]], rules),
    "Thresholds": Reading(int | str | dict[str, int], thresholds),
    "tuple[float, ...]": Reading(list[float], numbers),
    "tuple[str, ...]": Reading(list[str], texts),
    "tuple[str | Monotone, ...]": Reading(list[str], texts),
}
"""By the types that arguments of transforms have, but for None, which stays None."""


def read(type: str, name: str, value: Any) -> Any:
    """Return the argument that a plain value of a type gives."""
    return None if value is None else READINGS[type].read(name, value)


def arguments_of(
    spec: QuestionSpec, given: Mapping[str, Any], *, streams: bool, known: Mapping[str, Any] = NOTHING
) -> dict[str, Any]:
    """Return the arguments of a question's transform, but for the noise, from plain values.

    Args:
        spec: the question.
        given: plain values by name, of all options or some; None is as if it was not given.
        streams: whether events have a stream.
        known: arguments that are there already.

    Raises:
        ValueError, TypeError: a value breaks the rule of its type, or an option is about streams that are not read.
    """
    own = spec.signature.arguments
    kinds = {option.name: option.type for option in options_of(spec)}
    found = {
        name: read(kinds[name], name, given[name]) for name in own if name in kinds and given.get(name) is not None
    }
    if spec.prepare is not None:
        found |= loaded(spec.prepare)(given)
    found |= known
    if not streams:
        for name in (STREAMS, STREAMS_PER_PERSON):
            if found.get(name) is not None:
                raise ValueError(f"{name} must not be given when no stream is read: name its field with stream_field")
    elif found.get(STREAMS) is None and not spec.all_streams:
        raise ValueError("streams must be given with stream_field")
    elif spec.one_stream and found.get(STREAMS_PER_PERSON) is None and found.get("unit") != PER_WINDOW:
        found[STREAMS_PER_PERSON] = 1
    return found


MOST_NAMES = 10_000_000
FAR = 2**40


def any_names(number: int) -> tuple[str, ...]:
    """Return so many distinct names."""
    if number > MOST_NAMES:
        raise ValueError(f"must be <= {MOST_NAMES}, got {number}")
    return tuple(map(str, range(number)))


@cache
def any_domain(number: int) -> Domain:
    """Return a list of so many items."""
    return Domain(any_names(number))


@cache
def any_rules(number: int) -> tuple[AlertRule, ...]:
    """Return so many rules; their thresholds are not known, and so large that noise does not meet them."""
    return tuple(AlertRule(name=name, at_least=FAR) for name in any_names(number))


STAND_INS: Mapping[str, Callable[[int], Any]] = {
    "Domain": any_domain,
    "tuple[AlertRule, ...]": any_rules,
    "tuple[str, ...]": any_names,
}
"""By the type of the argument."""
