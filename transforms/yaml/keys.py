"""What stands in a configuration of Beam YAML, and what it means to a transform."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any, NamedTuple

from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms.alerts.rules import AlertRule
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.event_rows import to_micros
from privstream.transforms.histograms.events import LISTED
from privstream.transforms.timing.steps import MICROS

GOOD = "good"  # Beam YAML's name for the output beside the one of `error_handling`
UNBOUNDED = "unbounded"
REQUIRED: Any = object()
SAME: Any = object()

_LOGGER = logging.getLogger(__name__)


class Key(NamedTuple):
    """A key of configurations.

    Attributes:
        type: of its plain values.
        text: what it is.
        read: from its name and value to the transform's argument, which may be of another type.
        default: REQUIRED if there is none; SAME for that of the transform.
    """

    type: Any
    text: str
    read: Callable[[str, Any], Any]
    default: Any = SAME


def same(name: str, value: Any) -> Any:
    """Return a value as it is: the transform checks it."""
    return value


def number(name: str, value: Any) -> Any:
    """Return text as the number that it is: YAML reads 1e-6, without a point, as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"{name} must be a number, got {value!r}") from None


def _moment(name: str, value: Any) -> float | None:
    """Return seconds since 1970 UTC."""
    if isinstance(value, date):
        raise TypeError(f"{name} must be ISO 8601 text in quotes or seconds since 1970, got a {type(value).__name__}")
    return None if value is None else to_micros(name, value, "s") / MICROS


def _texts(name: str, values: Any) -> tuple[str, ...] | None:
    """Return a list of texts; an integer is its decimal text, as in events."""
    if values is None:
        return None
    if not isinstance(values, list):
        raise TypeError(f"{name} must be a list, got {type(values).__name__}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise TypeError(
                f"{name} must hold texts, in quotes where YAML reads something else: one is a {type(value).__name__}"
            )
    return tuple(map(str, values))


def _domain(name: str, value: Any) -> Domain | None:
    """Return the domain that a list or a path describes."""
    if value is None:
        return None
    return Domain.from_file(value) if isinstance(value, str) else Domain(_texts(name, value) or ())


def _horizon(name: str, value: Any) -> Any:
    """Return a number of windows, or None for no bound."""
    return None if value == UNBOUNDED else value


def _rules(name: str, values: Any) -> tuple[AlertRule, ...]:
    """Return the rules that mappings describe."""
    if not isinstance(values, list) or not all(isinstance(value, Mapping) for value in values):
        raise TypeError(f"{name} must be a list of mappings")
    lists = [{key: _texts(key, field) if key == "items" else field for key, field in one.items()} for one in values]
    return tuple(map(AlertRule.from_fields, lists))


def _thresholds(name: str, value: Any) -> Any:
    """Return a number, or a number for each category; a category that is an integer is its decimal text."""
    return {str(category): each for category, each in value.items()} if isinstance(value, Mapping) else value


def _separator(name: str, value: Any) -> Any:
    """Return what stands between categories; without one they come as lists."""
    return LISTED if value is None else value


TEXTS = list[str]
TIME = float | str
KEYS: Mapping[str, Key] = {
    "start": Key(TIME, "start of the first window, ISO 8601 in quotes or seconds since 1970 UTC.", _moment),
    "end": Key(TIME, "no window ends after this, ISO 8601 in quotes or seconds since 1970 UTC.", _moment),
    "horizon": Key(
        int | str, "windows that one person takes part in at most, or the word unbounded.", _horizon, REQUIRED
    ),
    "domain": Key(str | TEXTS, "public list of items, or the path of a file with one item per line.", _domain),
    "streams": Key(TEXTS, "public names of the streams, if the rows have a stream.", _texts),
    "rules": Key(
        list[dict[str, Any]], "public rules: mappings with name, at_least or at_most, and perhaps items.", _rules
    ),
    "thresholds": Key(
        int | dict[str, int], "public number for all categories, or a mapping from each to its number.", _thresholds
    ),
    "queries": Key(TEXTS, "some of histogram, max, min, median, quantile:Q and top:K.", _texts),
    "separator": Key(str, "text between the categories of an event. Default: they come as a list.", _separator, None),
    "enter_values": Key(TEXTS, "items that say that a person enters. Default: all others.", _texts),
    "leave_values": Key(TEXTS, "items that say that a person leaves, if there is no timeout.", _texts),
}
"""The arguments of transforms that are no plain values, or for which there is a better word."""

ADDED: Mapping[str, Key] = {
    "noise_key_file": Key(
        str, "file with the noise key, readable by every worker. Default: a new random key.", same, None
    ),
    "noise_key_variable": Key(str, "environment variable with the noise key, set on every worker.", same, None),
    "run_id": Key(str, "public name of the run. A run on other data needs another.", same, ""),
    "user_field": Key(
        str, "field with the person, text or an integer. Where the unit is an event, it is not read.", same, "user"
    ),
    "item_field": Key(str, "field with the item, text or an integer.", same, "item"),
    "time_field": Key(str, "field with the time: ISO 8601 text, a timestamp, or a number in time_unit.", same, "time"),
    "stream_field": Key(
        str, "field with the stream. Default: stream, if streams or streams_per_person is given, else none.", same, None
    ),
    "time_unit": Key(str, "unit of times that are plain numbers: s, ms, us or ns.", same, None),
    "error_handling": Key(
        dict[str, str], "names in output where unusable rows go. Without it they are only counted.", same, None
    ),
}
"""What a configuration says beside the arguments of the transform."""


def noise(file: str | None, variable: str | None, run_id: str) -> KeyedNoise:
    """Return the noise source whose key stands in a file or an environment variable, or one with a new random key."""
    if file is not None and variable is not None:
        raise ValueError("noise_key_file and noise_key_variable must not both be given")
    if file is not None:
        return KeyedNoise.from_file(file, run_id)
    if variable is not None:
        return KeyedNoise.from_environment(variable, run_id)
    _LOGGER.warning("noise key: a new random one, for this run only; with noise_key_file the run could be repeated")
    return KeyedNoise.random(run_id)


def error_output(error_handling: Any) -> str | None:
    """Return the name of the output for dead letters."""
    if error_handling is None:
        return None
    if not isinstance(error_handling, Mapping) or list(error_handling) != ["output"]:
        raise ValueError("error_handling must be a mapping with the one key output")
    output = error_handling["output"]
    if not isinstance(output, str) or output in ("", GOOD):
        raise ValueError(f"error_handling.output must be a name other than {GOOD}, got {output!r}")
    return output
