"""What all models have in common: frozen, no unknown keys, and errors that name a key, the rule and the value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self, TypeVar

from privstream.pipelines.suggestions import meant
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

N = TypeVar("N", int, float)
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
                raise PydanticCustomError("unknown_key", "unknown key{hint}", {"key": key, "hint": meant(key, known)})
        return given

    @classmethod
    def read(cls, given: Mapping[str, Any], at: Place = ()) -> Self:
        """Return the model that plain values describe; `WrongKeyError` names what breaks a rule, below `at`."""
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            raise _broken(error, at) from None


def option(default: Any, text: str, *, metavar: str = "", name: str = "", seldom: bool = False, **rules: Any) -> Any:
    """Return a field with its description.

    Args:
        default: `...` where it must be given.
        name: of the option, where it is another one than the key.
        seldom: whether only `--help all` shows it.
    """
    more = {"metavar": metavar, "name": name, "seldom": seldom}
    extra: dict[str, Any] = {key: value for key, value in more.items() if value}
    return Field(default, description=text, json_schema_extra=extra or None, **rules)


RULES = {
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be finite",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must match {pattern}",
    "missing": "must be given",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
    "tuple_type": "must be a list",
    "greater_than": "must be > {gt}",
    "greater_than_equal": "must be >= {ge}",
    "less_than": "must be < {lt}",
    "less_than_equal": "must be <= {le}",
    "literal_error": "must be one of {expected}",
    "union_tag_invalid": "must be one of {expected_tags}",
    "union_tag_not_found": "must have the key question",
    "too_short": "must not be empty",
}
"""What values must be, by the kinds of errors of pydantic."""


def _broken(error: ValidationError, at: Place) -> WrongKeyError:
    """Return the first error of a validation: unknown keys before wrong values, and these before what is missing."""
    details = min(error.errors(), key=lambda one: (one["type"] != "unknown_key", one["type"] == "missing"))
    kind = details["type"]
    place = tuple(str(part) for part in details["loc"] if not str(part).startswith(("function-", "lax-", "union[")))
    if place[:1] == ("questions",) and len(place) > 2:  # pydantic names the kind of the question, too
        place = (*place[:2], *place[3:])
    if kind == "unknown_key":
        place = (*place, str(details["ctx"]["key"]))
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        place = (*place, "question")
    elif isinstance(inner := details.get("ctx", {}).get("error"), WrongKeyError):  # of keys that belong together
        return WrongKeyError((*at, *place, *inner.place), inner.rule)
    return WrongKeyError((*at, *place), _rule(details))


def _rule(details: ErrorDetails) -> str:
    """Say which rule a value breaks, and what it is."""
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "value_error":
        text = str(context["error"])
    else:
        given = {name: f"{each:g}" if isinstance(each, float) else each for name, each in context.items()}
        text = RULES.get(kind, details["msg"][0].lower() + details["msg"][1:]).format(**given).replace("'", "")
    if kind in ("missing", "unknown_key") or ", got " in text or (kind == "value_error" and isinstance(value, Mapping)):
        return text
    value = context.get("tag", value)
    _, one_of, choices = text.partition("one of ")
    hint = meant(value, re.findall(r"[\w-]+", choices)) if one_of and isinstance(value, str) else ""
    return f"{text}, got {shown(value)}{hint}"


def shown(value: Any) -> str:
    """Write a value that somebody gave; of lists and mappings only what they are."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return repr(value) if not value or " " in value else value
    if isinstance(value, bool | int | float):
        return str(value)
    return type(value).__name__


def check_size(value: N) -> N:
    """Refuse numbers that no run needs, and what is none."""
    if not abs(value) <= LARGEST:
        raise ValueError(f"must be between -2**40 and 2**40, got {value}")
    return value


def check_epsilon(value: float) -> float:
    """Refuse what is no epsilon, or protects nothing."""
    from privstream.mechanisms import checks  # noqa: PLC0415 - late: help pages need none of it

    try:
        return checks.epsilon(value, largest=500.0)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("epsilon ")) from None
