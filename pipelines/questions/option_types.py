"""The types of options: how command lines, help pages, Beam YAML, plans and `ask` give values. Imports no Beam."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from privstream.pipelines.command import NUMBERS

UNITS: Mapping[str, float] = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
"""How many seconds there are in each unit."""

WORDS: Mapping[str, str] = {"second": "s", "minute": "m", "hour": "h", "day": "d", "week": "w"}
"""Words for units whose length never changes, as long as a day has 24 hours."""

RULE = "must be a number of seconds, or a number with its unit, such as 500ms, 90s, 30m, 1h, 1d, 1w or 2weeks"
CALENDAR_RULE = f"{RULE}; or days, weeks, months or years of the calendar, such as 1day or 3months"
CALENDAR = ("day", "week", "month", "year")
SPANS = ("window", "start")
"""Words for spans of time."""

MOST_NAMES = 10_000_000
"""In a list of a plan."""

LISTS = "questions.public_lists"


def seconds(text: str) -> float:
    """Return how many seconds a text means; a day has 24 hours.

    Raises:
        ValueError: it is neither a number nor one with a unit.

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

    Raises:
        ValueError: it is neither.

    >>> length("7d"), length("7days"), length("1month")
    (604800.0, '7days', '1month')
    """
    unit = text.partition(" ")[0].lstrip("0123456789.").removesuffix("s")
    try:
        return text if unit in CALENDAR else seconds(text)
    except ValueError:
        raise ValueError(CALENDAR_RULE) from None


def span(text: str) -> str | float:
    """Return one of the words for a span, or a `length`.

    Raises:
        ValueError: it is neither.
    """
    try:
        return text if text in SPANS else length(text)
    except ValueError as error:
        raise ValueError(f"{error}; or {' or '.join(SPANS)}") from None


def comma_separated(text: str) -> list[str]:
    """Return the texts of a list, or, of `@FILE`, the lines of a file.

    Raises:
        ValueError: one of them is empty, or the file cannot be read; or a file is named like a text, without `@`.
    """
    if text.startswith("@"):
        return _lines(text[1:])
    if Path(text).suffix and Path(text).is_file():
        raise ValueError(f"must be texts with commas between them, or @{text} for the lines of this file")
    parts = text.split(",")
    if "" in parts:
        raise ValueError("must be texts with commas between them, none of them empty")
    return parts


def _lines(path: str) -> list[str]:
    """Return the lines of a file, at least one."""
    try:
        lines = Path(path).read_bytes().decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        raise ValueError("must be a file in UTF-8") from None
    except OSError as error:
        raise ValueError(f"must be a file that can be read ({error.strerror})") from None
    if "" in lines:
        raise ValueError("must be a file with a text on each line, and no line empty")
    return lines


def numbers_between_commas(text: str) -> list[float]:
    """Return the numbers of a list.

    Raises:
        ValueError: one of them is none.
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError("must be numbers with commas between them") from None


def number_or_path(text: str) -> int | str:
    """Return a whole number, or the text of a path."""
    try:
        return int(text)
    except ValueError:
        return text


def same(name: str, value: Any) -> Any:
    """Return a value as it is: the transform checks it."""
    return value


def of_text(parse: Callable[[str], Any]) -> Callable[[str, Any], Any]:
    """Return what reads a value that may be text: YAML reads 1e-6, without a point, as text, and so it does 1h."""

    def read(name: str, value: Any) -> Any:
        try:
            return parse(value) if isinstance(value, str) else value
        except ValueError as error:
            raise ValueError(f"{name} {NUMBERS.get(parse, error)}, got {value!r}") from None

    return read


def numbers(name: str, values: Any) -> tuple[Any, ...]:
    """Return a list of numbers."""
    if not isinstance(values, list):
        raise TypeError(f"{name} must be a list of numbers, got {type(values).__name__}")
    return tuple(of_text(float)(name, value) for value in values)


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


def any_names(number: int) -> tuple[str, ...]:
    """Return so many distinct names."""
    if number > MOST_NAMES:
        raise ValueError(f"must be <= {MOST_NAMES}, got {number}")
    return tuple(map(str, range(number)))


class OptionType(NamedTuple):
    """How values of a type are given. Functions that need Beam stand here by their paths; see `loaded`.

    Attributes:
        metavar: what stands for the value on a help page; None for an option without one.
        parse: from text on a command line to the plain value; raises a ValueError.
        plain: the type of the plain value, as Beam YAML names it; None if there is no such key.
        read: from an argument's name and its plain value to the argument.
        python, shell: what docstrings say of a value in Python, and what help pages say in its place.
        stand_in: what stands in a plan for so many, where only their number is known.
        write: from a path, a name and a value in Python to the file that a command line has in its place, and its
            length.
    """

    metavar: str | None
    parse: Callable[[str], Any]
    plain: Any = None
    read: Callable[[str, Any], Any] | str = same
    python: str = ""
    shell: str = ""
    stand_in: Callable[[int], Any] | str | None = None
    write: str | None = None


OPTION_TYPES: Mapping[str, OptionType] = {
    "float": OptionType("X", float, float, of_text(float)),
    "int": OptionType("N", int, int),
    "str": OptionType("NAME", str, str),
    "bool": OptionType(None, bool, bool),
    "Seconds": OptionType(
        "DURATION",
        seconds,
        float | str,
        of_text(seconds),
        python="in seconds",
        shell="in seconds, or such as 90s, 30m, 1h, 1day, 1week (of days of 24 hours)",
    ),
    "Length": OptionType(
        "DURATION",
        length,
        float | str,
        of_text(length),
        python="in seconds, or so many days, weeks, months or years of a calendar from `start` on, such as "
        '"1month Europe/Berlin"; without a zone in UTC',
        shell="in seconds, or such as 90s, 30m, 1h, 1d, 1w; or so many days, weeks, months or years of the calendar "
        "from --start on, such as 1day, 1month or 3months, by the clocks of --time_zone",
    ),
    "Span": OptionType(
        "window|start|DURATION",
        span,
        float | str,
        of_text(span),
        python="so many seconds",
        shell="a duration such as 7d or, with windows of the calendar, 3months, which is so many windows",
    ),
    "Moment": OptionType(
        "TIME",
        str,
        float | str,
        "local_time.moment",
        python="in seconds since 1970 UTC",
        shell="ISO 8601 or seconds since 1970 UTC",
    ),
    "Path": OptionType("PATH", str, str),
    "Items": OptionType(
        "PATH",
        str,
        str | list[str],
        f"{LISTS}.domain",
        python="public list of items",
        shell="public list of items (a file with one on each line)",
        stand_in="questions.stand_ins.any_domain",
        write=f"{LISTS}.write_domain",
    ),
    "tuple[AlertRule, ...]": OptionType(
        "PATH",
        str,
        str | list[dict[str, Any]],
        f"{LISTS}.rules",
        python="public rules,",
        shell="file with public rules, see below,",
        stand_in="questions.stand_ins.any_rules",
        write=f"{LISTS}.write_list_of_rules",
    ),
    "Thresholds": OptionType(
        "N|PATH",
        number_or_path,
        int | str | dict[str, int],
        f"{LISTS}.thresholds",
        python="one for each by its name",
        shell="a file with a JSON object that has one for each",
        write=f"{LISTS}.write_thresholds",
    ),
    "tuple[str, ...]": OptionType(
        "A,B,..",
        comma_separated,
        list[str],
        texts,
        python="public names",
        shell="public names (or @FILE, with one on each line)",
        stand_in=any_names,
    ),
    "tuple[str | Monotone, ...]": OptionType("A,B,..", comma_separated, list[str], texts),
    "tuple[float, ...]": OptionType("X,Y,..", numbers_between_commas, list[float], numbers),
    "dict[str, str]": OptionType("NAME", str, dict[str, str]),
    "int|Path": OptionType("N|PATH", number_or_path),
    "epsilons": OptionType("X[,X..]", numbers_between_commas),
}
"""By the names of types that arguments of transforms have, but for None; the last three are of YAML or plans alone."""
