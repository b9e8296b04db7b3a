"""The types of values: as text of a command line, as plain values of YAML, or as Python has them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any

from privstream.pipelines.model.base import check_epsilon, check_size
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

UNITS: Mapping[str, float] = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
"""How many seconds there are in each unit."""

WORDS: Mapping[str, str] = {"second": "s", "minute": "m", "hour": "h", "day": "d", "week": "w"}
"""Words for units whose length never changes, as long as a day has 24 hours."""

RULE = "must be a number of seconds, or a number with its unit, such as 500ms, 90s, 30m, 1h, 1d, 1w or 2weeks"
CALENDAR_RULE = f"{RULE}; or days, weeks, months or years of the calendar, such as 1day or 3months"
CALENDAR = ("day", "week", "month", "year")
SPANS = ("window", "start")
"""Words for spans of time."""


def seconds(text: str) -> float:
    """Return how many seconds a text means; a day has 24 hours.

    >>> seconds("90"), seconds("1.5h"), seconds("1d"), seconds("2weeks")
    (90.0, 5400.0, 86400.0, 1209600.0)
    """
    for word, unit in WORDS.items():
        text = re.sub(rf"(?<=\d){word}s?$", unit, text)
    number = text.rstrip("".join(UNITS))
    try:
        return float(number) * UNITS[text.removeprefix(number)]
    except (ValueError, KeyError):
        raise ValueError(RULE) from None


def length(text: str) -> str | float:
    """Return how many seconds a text means, or the text itself if it means so many units of the calendar.

    >>> length("7d"), length("7days"), length("1month")
    (604800.0, '7days', '1month')
    """
    unit = text.partition(" ")[0].lstrip("0123456789.").removesuffix("s")
    try:
        return text if unit in CALENDAR else seconds(text)
    except ValueError:
        raise ValueError(CALENDAR_RULE) from None


def span(text: str) -> str | float:
    """Return one of the words for a span, or a `length`."""
    try:
        return text if text in SPANS else length(text)
    except ValueError as error:
        raise ValueError(f"{error}; or {' or '.join(SPANS)}") from None


def _of_time(parse: Callable[[str], str | float]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if isinstance(value, timedelta):
            return value.total_seconds()
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"must be a duration, such as 1h, got {type(value).__name__}")
        try:
            found = parse(value) if isinstance(value, str) else value
        except ValueError as error:
            raise ValueError(f"{error}, got {value!r}") from None
        return found if isinstance(found, str) else float(check_size(found))

    return read


def _moment(value: Any) -> Any:
    """Return text, or seconds since 1970; what clocks have shown is read by those of a zone."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"must be a time, such as 2030-01-31, got {type(value).__name__}")
    return value if isinstance(value, str) else check_size(value)


def comma_separated(text: str) -> list[str]:
    """Return the texts of a list, or, of `@FILE`, the lines of a file."""
    if text.startswith("@"):
        try:
            read = Path(text[1:]).read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ValueError("must be a file in UTF-8") from None
        except OSError as error:
            raise ValueError(f"must be a file that can be read ({error.strerror})") from None
        lines = read.replace("\r\n", "\n").removesuffix("\n").split("\n")
        if "" in lines:
            raise ValueError("must be a file with a text on each line, and no line empty")
        return lines
    if Path(text).suffix and Path(text).is_file():
        raise ValueError(f"must be texts with commas between them, or @{text} for the lines of this file")
    if "" in (parts := text.split(",")):
        raise ValueError(f"must be texts with commas between them, none of them empty, got {text!r}")
    return parts


def _texts(value: Any) -> Any:
    """Return a list of texts; an integer is its decimal text, as in events."""
    found = comma_separated(value) if isinstance(value, str) else value
    if not isinstance(found, list | tuple):
        raise ValueError(f"must be a list of texts, got {type(value).__name__}")
    if wrong := [one for one in found if isinstance(one, bool) or not isinstance(one, str | int)]:
        rule = "must be a list of texts, in quotes where YAML reads something else"
        raise ValueError(f"{rule}: one is a {type(wrong[0]).__name__}")
    return tuple(map(str, found))


def _numbers(value: Any) -> Any:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            return tuple(float(part) for part in str(value).split(","))
        except ValueError:
            raise ValueError(f"must be numbers with commas between them, got {value!r}") from None
    return tuple(value) if isinstance(value, list) else value


def _one_or_more(value: Any) -> Any:
    """Return one text, or several, as a list; an integer is its decimal text."""
    parts = value if isinstance(value, list | tuple) else (value,)
    return tuple(str(one) if type(one) is int else one for one in parts)


def _path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _or_path(read: Callable[[Any], Any]) -> BeforeValidator:
    """Return what reads a value that may be the path of a file, too."""
    return BeforeValidator(lambda value: _path(value) if isinstance(value, str | os.PathLike) else read(value))


def _public_list(value: Any) -> Any:
    if hasattr(value, "texts"):  # a `Domain`
        value = value.texts.to_pylist()
    listed = isinstance(value, Iterable) and not isinstance(value, Mapping | bytes)  # a series of a frame, too
    return _texts(list(value) if listed else value)


def _objects(value: Any) -> Any:
    given = [getattr(rule, "given", rule) for rule in value] if isinstance(value, list | tuple) else value
    if not isinstance(given, list) or not all(isinstance(rule, Mapping) for rule in given):
        raise ValueError(f"must be a path, or a list of mappings, got {type(value).__name__}")
    return tuple(given)


def _thresholds(value: Any) -> Any:
    """Return a whole number, a path, or a mapping of categories to numbers."""
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        return check_size(int(text)) if re.fullmatch(r"[-+]?\d+", text) else text
    if isinstance(value, Mapping) and all(isinstance(one, int) and not isinstance(one, bool) for one in value.values()):
        return {str(item): number for item, number in value.items()}
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"must be a whole number, one for each item, or a file with these, got {type(value).__name__}")
    return value


def no_truth(value: Any) -> Any:
    """Refuse true and false where a number is meant."""
    if isinstance(value, bool):
        raise ValueError(f"must be a number, got {str(value).lower()}")
    return value


def _columns(value: Any) -> Any:
    """Return a field, or several, as a line of CSV has them."""
    if isinstance(value, list | tuple):
        if not value or not all(isinstance(one, str) and one for one in value):
            raise ValueError(f"must be a field, or a list of fields, got {type(value).__name__}")
        quoted = ('"{}"'.format(one.replace('"', '""')) if set(one) & set(',"') else one for one in value)
        return ",".join(quoted) if len(value) > 1 else value[0]
    return value


class Shown(str):
    """What stands for a value on help pages; of other types their choices, N, X or NAME."""


def _schema(*types: str, **more: Any) -> WithJsonSchema:
    return WithJsonSchema({"type": list(types) if len(types) > 1 else types[0], **more})


TEXT_OR_NUMBER = _schema("string", "number")
LISTED: dict[str, Any] = {"items": {"type": ["string", "integer"]}}
TEXTS = _schema("string", "array", **LISTED)
POSITIVE = _schema("number", "string", exclusiveMinimum=0)

Whole = Annotated[int, BeforeValidator(no_truth), AfterValidator(check_size), _schema("integer", "string"), Shown("N")]
Count = Annotated[Whole, Field(ge=1), _schema("integer", "string", minimum=1)]
Flag = Annotated[bool, Field(strict=True)]
Number = Annotated[float, BeforeValidator(no_truth), _schema("number", "string"), Shown("X")]
Positive = Annotated[Number, Field(gt=0), POSITIVE]
Epsilon = Annotated[Number, AfterValidator(check_epsilon), POSITIVE]
Seconds = Annotated[float, BeforeValidator(_of_time(seconds)), TEXT_OR_NUMBER, Shown("DURATION")]
Length = Annotated[str | float, BeforeValidator(_of_time(length)), TEXT_OR_NUMBER, Shown("DURATION")]
Span = Annotated[str | float, BeforeValidator(_of_time(span)), TEXT_OR_NUMBER, Shown("window|start|DURATION")]
Moment = Annotated[str | float, BeforeValidator(_moment), TEXT_OR_NUMBER, Shown("TIME")]
Name = Annotated[str, Field(min_length=1)]
Columns = Annotated[str, BeforeValidator(_columns), Field(min_length=1), TEXTS]
PathText = Annotated[str, BeforeValidator(_path), Shown("PATH")]
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts), Field(min_length=1), TEXTS, Shown("A,B,..")]
OneOrMore = Annotated[tuple[str, ...], BeforeValidator(_one_or_more), _schema("string", "integer", "array", **LISTED)]
Numbers = Annotated[
    tuple[float, ...], BeforeValidator(_numbers), Field(min_length=1), _schema("string", "number", "array"),
    Shown("X,Y,.."),
]  # fmt: skip
Items = Annotated[str | tuple[str, ...], _or_path(_public_list), TEXTS, Shown("PATH")]
Objects = Annotated[str | tuple[Mapping[str, Any], ...], _or_path(_objects), _schema("string", "array"), Shown("PATH")]
Thresholds = Annotated[
    int | str | Mapping[str, int], BeforeValidator(_thresholds), _schema("integer", "string", "object"),
    Shown("N|PATH"),
]  # fmt: skip
