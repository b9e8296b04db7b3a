"""From the options of a command to what its question is asked with: what is read, and the transform. No Beam."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from privstream.mechanisms.noise.sources import NoiseSource
from privstream.pipelines.locations import QUOTES
from privstream.pipelines.questions.public_lists import of_columns
from privstream.pipelines.questions.readings import arguments_of
from privstream.pipelines.questions.spec import QuestionSpec, loaded
from privstream.pipelines.sources.fields import DEFAULT_VALUE, FieldMapping
from privstream.transforms.events.item_columns import column_names


def input_fields(spec: QuestionSpec, arguments: argparse.Namespace) -> FieldMapping:
    """Return which fields are read; a user where it matters who it is.

    Raises:
        ValueError, TypeError: naming the option.
    """
    unread = getattr(arguments, "unit", None) in spec.units_without_users
    if not unread and not arguments.user_field:
        raise ValueError("user_field must not be empty")
    if spec.item and not arguments.item_field:
        raise ValueError("item_field must not be empty")
    if spec.item and getattr(arguments, "separator", None) is not None and len(column_names(arguments.item_field)) > 1:
        raise ValueError("separator must not be given with several columns in item_field")
    return FieldMapping(
        user="" if unread else arguments.user_field,
        item=arguments.item_field if spec.item and _asks_for_items(spec, arguments) else "",
        time=arguments.time_field,
        value=_value_field(spec, arguments),
        whole=spec.whole_values,
        optional_value=spec.whole_values,
        value_unit=1.0 if (unit := getattr(arguments, "value_unit", None)) is None else unit,
        time_unit=arguments.time_unit,
        time_format=arguments.time_format,
        time_zone=arguments.time_zone,
        decimal=getattr(arguments, "decimal", None),
        null=tuple(arguments.null or ()),
        trim=bool(arguments.trim),
        normalize=bool(arguments.normalize),
        fold_case=bool(arguments.fold_case),
        quote=arguments.quote or QUOTES[0],
        encoding=arguments.encoding or "utf-8",
        delimiter=as_delimiter(arguments.delimiter),
        where=getattr(arguments, "where", None),
    )


def as_delimiter(given: str | None) -> str | None:
    """Return what separates fields, which an option may name by a word."""
    return "\t" if given == "tab" else given


def _asks_for_items(spec: QuestionSpec, arguments: argparse.Namespace) -> bool:
    """Tell whether options ask for the item, where a question can do without."""
    return not spec.items_with or any(getattr(arguments, name) is not None for name in spec.items_with)


def _value_field(spec: QuestionSpec, arguments: argparse.Namespace) -> str:
    """Return the field with the number, if one is read."""
    field = getattr(arguments, "value_field", None)
    if field == "":
        raise ValueError("value_field must not be empty")
    if spec.value and (not spec.values_with or getattr(arguments, spec.values_with) is not None):
        return DEFAULT_VALUE if field is None else str(field)
    for option in ("value_field", "value_unit"):  # numbers with a comma may be those of a filter
        if getattr(arguments, option, None) is not None:
            raise ValueError(f"{spec.values_with} must be given with {option}")
    return ""


def settled(spec: QuestionSpec, arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the options of a run with those that it has although they were not given."""
    if spec.settle is None:
        return arguments
    return argparse.Namespace(**(vars(arguments) | loaded(spec.settle)(vars(arguments))))


def given_to(spec: QuestionSpec, arguments: argparse.Namespace, fields: FieldMapping) -> dict[str, Any]:
    """Return the arguments of a question's transform, but for the noise.

    Raises:
        ValueError, TypeError: an option breaks a rule.
    """
    given = arguments_of(spec, vars(arguments))
    return of_columns(given, len(fields.several)) if fields.several else given


def transform_of(spec: QuestionSpec, given: Mapping[str, Any], noise: NoiseSource, *, unbounded: bool) -> Any:
    """Return the transform that answers a question; imports Beam."""
    return _made(spec.transform_class, given, noise, unbounded=unbounded).in_columns()


def plan_of(spec: QuestionSpec, given: Mapping[str, Any], noise: NoiseSource, *, unbounded: bool) -> Any:
    """Return what the transform of a question promises, and how accurate it is, without its stages."""
    return _made(spec.planned_class, given, noise, unbounded=unbounded)


def _made(kind: Any, given: Mapping[str, Any], noise: NoiseSource, *, unbounded: bool) -> Any:
    """Return an object of a class, for rows that are seen when the run is over or, `unbounded`, while it goes on."""
    made = kind(**given, noise=noise)
    return made if unbounded else made.to_finish()
