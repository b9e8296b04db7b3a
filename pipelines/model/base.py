"""What all models have in common: errors that name a key, the rule and the value; and the types of values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, timedelta
from typing import Annotated, Any, Self

from privstream.mechanisms import checks
from privstream.pipelines.terminal import did_you_mean
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

Place = tuple[str, ...]
"""The keys that lead to a value, such as ("questions", "pages", "max_contributions")."""

LARGEST = 2**40
"""More steps, people, items or seconds than any run has."""


class WrongKeyError(ValueError):
    """A value that breaks a rule."""

    def __init__(self, place: Place, rule: str) -> None:
        super().__init__(f"{place[-1]}{':' * rule.startswith('unknown')} {rule}" if place else rule)
        self.place, self.rule = place, rule


class Model(BaseModel):
    """A frozen model without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=False)

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, given: Any) -> Any:
        """Refuse the first unknown key, with what was meant."""
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for key in given if isinstance(given, Mapping) else ():
            if key not in known:
                raise PydanticCustomError(
                    "unknown_key", "unknown key{hint}", {"key": key, "hint": did_you_mean(key, known)}
                )
        return given

    @classmethod
    def read(cls, given: Mapping[str, Any], at: Place = ()) -> Self:
        """Return the model that plain values describe; `WrongKeyError` names what breaks a rule, below `at`."""
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            raise _broken(error, at) from None


def option(default: Any, text: str, *, metavar: str = "", name: str = "", advanced: bool = False, **rules: Any) -> Any:
    """Return a field with its description.

    Args:
        default: `...` where it must be given.
        name: of the option, where it is another one than the key.
        advanced: whether only `--help all` shows it.
    """
    more: dict[str, Any] = {"metavar": metavar, "name": name, "advanced": advanced}
    extra = {key: value for key, value in more.items() if value}
    return Field(default, description=text, json_schema_extra=extra or None, **rules)


RULES = {
    "missing": "must be given",
    "union_tag_invalid": "must be one of {expected_tags}",
    "union_tag_not_found": "must have the key question",
}
"""What values must be, where pydantic's own words are no rule."""


def _broken(error: ValidationError, at: Place) -> WrongKeyError:
    """Return the first error of a validation: unknown keys before wrong values, and these before what is missing."""
    details = min(error.errors(), key=lambda one: (one["type"] != "unknown_key", one["type"] == "missing"))
    kind = details["type"]
    inner = ("function-", "lax-", "union[")
    place = tuple(part for part in details["loc"] if isinstance(part, str) and not part.startswith(inner))
    if place[:1] == ("questions",) and len(place) > 2:  # pydantic names the kind of the question, too
        place = (*place[:2], *place[3:])
    if kind == "unknown_key":
        place = (*place, str(details["ctx"]["key"]))
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        place = (*place, "question")
    elif isinstance(cause := details.get("ctx", {}).get("error"), WrongKeyError):  # of keys that belong together
        return WrongKeyError((*at, *place, *cause.place), cause.rule)
    return WrongKeyError((*at, *place), _rule(details))


def _rule(details: ErrorDetails) -> str:
    """Say which rule a value breaks, and what it is."""
    kind, context = details["type"], details.get("ctx", {})
    value = context.get("tag", details["input"])
    if kind == "value_error":
        text = str(context["error"])
    else:
        rule = re.sub(", unable to parse.*| after validation.*", "", RULES.get(kind, details["msg"]).format(**context))
        text = re.sub("^.* should ", "must ", rule)
    if kind in ("missing", "unknown_key") or ", got " in text or (kind == "value_error" and isinstance(value, Mapping)):
        return text
    choices = context.get("expected", context.get("expected_tags", ""))
    hint = did_you_mean(value, re.findall(r"[\w-]+", choices))
    return f"{text}, got {shown(value)}{hint}"


def shown(value: Any) -> str:
    """Write a value that somebody gave; of lists and mappings only what they are."""
    if isinstance(value, str | bool | int | float):
        return str(value) or "''"
    return "nothing" if value is None else type(value).__name__


def check_size(value: Any) -> Any:
    """Refuse numbers that no run needs, and what is none."""
    if not abs(value) <= LARGEST:
        raise ValueError(f"must be between -2**40 and 2**40, got {value}")
    return value


UNITS: Mapping[str, float] = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
WORDS: Mapping[str, str] = {"second": "s", "minute": "m", "hour": "h", "day": "d", "week": "w"}
"""Units, and words for those whose length never changes, as long as a day has 24 hours."""

RULE = "must be a number of seconds, or a number with its unit, such as 500ms, 90s, 30m, 1h, 1d, 1w or 2weeks"
CALENDAR_RULE = f"{RULE}; or days, weeks, months or years of the calendar, such as 1day or 3months"
CALENDAR = ("day", "week", "month", "year")
SPANS = ("window", "start")


def seconds(text: str) -> float:
    """Return how many seconds a text means; a day has 24 hours.

    >>> seconds("90"), seconds("1.5h"), seconds("1d"), seconds("2weeks")
    (90.0, 5400.0, 86400.0, 1209600.0)
    """
    for word, unit in WORDS.items():
        text = re.sub(rf"(?<=\d){word}s?$", unit, text)
    number = text.rstrip("".join(UNITS))
    return float(number) * UNITS[text.removeprefix(number)]


def length(text: str) -> str | float:
    """Return how many seconds a text means, or the text itself if it is in units of the calendar.

    >>> length("7d"), length("7days"), length("1month")
    (604800.0, '7days', '1month')
    """
    unit = text.partition(" ")[0].lstrip("0123456789.").removesuffix("s")
    return text if unit in CALENDAR else seconds(text)


def _of_time(rule: str, parse: Callable[[str], str | float]) -> BeforeValidator:
    def read(value: Any) -> Any:
        if isinstance(value, timedelta):
            return value.total_seconds()
        try:
            found = parse(value) if isinstance(value, str) else no_truth(value)
            return found if isinstance(found, str) else float(check_size(found))
        except (ValueError, TypeError, KeyError):
            raise ValueError(rule) from None

    return BeforeValidator(read)


def _moment(value: Any) -> Any:
    """Return text, or seconds since 1970; what clocks have shown is read by those of a zone."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a time, such as 2030-01-31")
    return value if isinstance(value, str) else check_size(value)


def _texts(value: Any) -> Any:
    """Return a list of texts, also of a series or a `Domain`; an integer is its decimal text, as in events."""
    value = value.texts.to_pylist() if hasattr(value, "texts") else value
    parts = value.split(",") if isinstance(value, str) else value
    listed = isinstance(parts, Iterable) and not isinstance(parts, Mapping | bytes)
    found = tuple(str(one) if type(one) is int else one for one in parts) if listed else ()
    if not found or not all(isinstance(one, str) and one for one in found):
        raise ValueError("must be a list of texts, none of them empty, in quotes where YAML reads something else")
    return found


def _numbers(value: Any) -> Any:
    """Return numbers with commas between them, or one number, as a list."""
    if isinstance(value, str):
        return tuple(value.split(","))
    return value if isinstance(value, list | tuple) else (value,)


def _one_or_more(value: Any) -> Any:
    """Return one text, or several, as a list; an integer is its decimal text."""
    parts = value if isinstance(value, list | tuple) else (value,)
    return tuple(str(one) if type(one) is int else one for one in parts)


def _path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _or_path(read: Callable[[Any], Any]) -> BeforeValidator:
    return BeforeValidator(lambda value: _path(value) if isinstance(value, str | os.PathLike) else read(value))


def _objects(value: Any) -> Any:
    given = [getattr(rule, "given", rule) for rule in value] if isinstance(value, list | tuple) else value
    if not isinstance(given, list) or not all(isinstance(rule, Mapping) for rule in given):
        raise ValueError("must be a path, or a list of mappings")
    return tuple(given)


def _thresholds(value: Any) -> Any:
    """Return a whole number, a path, or a mapping of categories to numbers."""
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        return check_size(int(text)) if re.fullmatch(r"[-+]?\d+", text) else text
    if isinstance(value, Mapping) and all(isinstance(one, int) and not isinstance(one, bool) for one in value.values()):
        return {str(item): number for item, number in value.items()}
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be a whole number, one for each item, or a file with these")
    return value


def no_truth(value: Any) -> Any:
    """Refuse true and false where a number is meant."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _columns(value: Any) -> Any:
    """Return a field, or several, as a line of CSV has them."""
    if isinstance(value, list | tuple):
        if not value or not all(isinstance(one, str) and one for one in value):
            raise ValueError("must be a field, or a list of fields")
        quoted = ('"{}"'.format(one.replace('"', '""')) if set(one) & set(',"') else one for one in value)
        return ",".join(quoted) if len(value) > 1 else value[0]
    return value


class Metavar(str):
    """What stands for a value on help pages; of other types their choices, N, X or NAME."""


def _schema(*types: str, **more: Any) -> WithJsonSchema:
    return WithJsonSchema({"type": list(types) if len(types) > 1 else types[0], **more})


TEXT_OR_NUMBER = _schema("string", "number")
LISTED: dict[str, Any] = {"items": {"type": ["string", "integer"]}}
TEXTS = _schema("string", "array", **LISTED)
POSITIVE = _schema("number", "string", exclusiveMinimum=0)

Whole = Annotated[
    int, BeforeValidator(no_truth), AfterValidator(check_size), _schema("integer", "string"), Metavar("N")
]
Count = Annotated[Whole, Field(ge=1), _schema("integer", "string", minimum=1)]
Flag = Annotated[bool, Field(strict=True)]
Number = Annotated[float, BeforeValidator(no_truth), _schema("number", "string"), Metavar("X")]
Positive = Annotated[Number, Field(gt=0), POSITIVE]
Epsilon = Annotated[Number, Field(ge=checks.LEAST_EPSILON, le=500), POSITIVE]
Seconds = Annotated[float, _of_time(RULE, seconds), TEXT_OR_NUMBER, Metavar("DURATION")]
Length = Annotated[str | float, _of_time(CALENDAR_RULE, length), TEXT_OR_NUMBER, Metavar("DURATION")]
Span = Annotated[
    str | float,
    _of_time(f"{CALENDAR_RULE}; or window or start", lambda text: text if text in SPANS else length(text)),
    TEXT_OR_NUMBER, Metavar("window|start|DURATION"),
]  # fmt: skip
Moment = Annotated[str | float, BeforeValidator(_moment), TEXT_OR_NUMBER, Metavar("TIME")]
Name = Annotated[str, Field(min_length=1)]
Columns = Annotated[str, BeforeValidator(_columns), Field(min_length=1), TEXTS]
PathText = Annotated[str, BeforeValidator(_path), Metavar("PATH")]
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts), TEXTS, Metavar("A,B,..")]
OneOrMore = Annotated[tuple[str, ...], BeforeValidator(_one_or_more), _schema("string", "integer", "array", **LISTED)]
Numbers = Annotated[
    tuple[Number, ...], BeforeValidator(_numbers), Field(min_length=1), _schema("string", "number", "array"),
    Metavar("X,Y,.."),
]  # fmt: skip
Items = Annotated[str | tuple[str, ...], _or_path(_texts), TEXTS, Metavar("PATH")]
Objects = Annotated[
    str | tuple[Mapping[str, Any], ...], _or_path(_objects), _schema("string", "array"), Metavar("PATH")
]
Thresholds = Annotated[
    int | str | Mapping[str, int], BeforeValidator(_thresholds), _schema("integer", "string", "object"),
    Metavar("N|PATH"),
]  # fmt: skip
