"""What the type of a collection's elements says about them, before there are any."""

from __future__ import annotations

import dataclasses
import datetime
import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_type_hints

import numpy as np
from apache_beam.pvalue import PCollection, Row
from apache_beam.transforms.window import GlobalWindows
from apache_beam.typehints import typehints
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type, match_is_named_tuple
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.utils.timestamp import Timestamp
from privstream.transforms.events.event_fields import EventFields
from privstream.transforms.events.single_events import FORMS, NO_STAMPS, is_frame

NO_TEXT = (bool, float, bytes, bytearray, dict, set, frozenset, Timestamp, datetime.date, np.bool_, type(None))
NO_VALUE = tuple(kind for kind in NO_TEXT if kind is not float)
NO_TIME = (bool, str, bytes, bytearray, dict, set, frozenset, np.bool_, type(None), list, tuple)
LISTS = (typehints.SequenceTypeConstraint, typehints.TupleConstraint)
NO_EVENT = (
    str,
    bytes,
    bytearray,
    bool,
    int,
    float,
    dict,
    set,
    frozenset,
    type(None),
    Timestamp,
    datetime.date,
    np.generic,
)
MAPPINGS = (typehints.DictConstraint, typehints.SetTypeConstraint, typehints.MappingTypeConstraint)
UNSIZED = (typehints.ListConstraint, typehints.TupleSequenceConstraint)

Why = Callable[[Any], str | None]


def check_events(events: PCollection[Any], fields: EventFields) -> None:
    """Refuse events whose type is known if none of them can be used.

    Raises:
        TypeError: naming the rule, and the fields or the type.
    """
    _refuse("events", events, lambda kind: _why_no_event(kind, fields))


def check_windows(given: PCollection[Any]) -> None:
    """Refuse a collection in windows of Beam: questions have windows of their own, and would pass over these.

    Raises:
        ValueError: the collection is not in the global window.
    """
    windows = given.windowing.windowfn
    if not isinstance(windows, GlobalWindows):
        raise ValueError(
            f"input must be in the global window, got {type(windows).__name__}: the argument window makes windows of "
            "the times of events; leave WindowInto out, or put beam.WindowInto(GlobalWindows()) behind it"
        )


def check_rows(name: str, rows: PCollection[Any], required: tuple[str, ...]) -> None:
    """Refuse rows whose type is known and lacks a field."""

    def why(kind: Any) -> str | None:
        found = _fields_of(kind)
        if found is not None:
            return _missing_field(found, required)
        return f"they must be rows with fields {', '.join(required)}, got {shown(kind)}" if _is_no_event(kind) else None

    _refuse(name, rows, why)


def check_names(rows: PCollection[Any], names: Mapping[str, str], *, stamped: bool) -> None:
    """Refuse rows whose type is known if it lacks a field that an argument names, and what is no row, mapping or frame.

    Args:
        rows: rows of Beam, named tuples, dataclasses, mappings, Arrow batches or frames.
        names: by argument, such as `user_field`, the name of the field.
        stamped: whether the time of a row is its timestamp, which rows of frames have not.
    """

    def why(kind: Any) -> str | None:
        found = _fields_of(kind)
        if found is None:
            if isinstance(kind, type) and is_frame(kind):
                return NO_STAMPS if stamped else None
            refused = isinstance(kind, type) and issubclass(kind, NO_EVENT) and not issubclass(kind, dict)
            refused = refused or isinstance(kind, LISTS)
            rule = "with_fields needs rows with named fields, mappings, Arrow batches or frames"
            return f"{rule}, got {shown(kind)}" if refused else None
        for argument, name in names.items():
            if name not in found:
                near = difflib.get_close_matches(name, found, 1)
                guess = f"; did you mean {near[0]!r}?" if near else ""
                return (
                    f"{argument} must be a field of the input, got {name!r}; its fields are {', '.join(found)}{guess}"
                )
        return None

    _refuse("events", rows, why)


def _refuse(name: str, given: PCollection[Any], why: Why) -> None:
    """Refuse a collection if there is a reason against every type that its elements may have."""
    found = [why(kind) for kind in members(given.element_type)]
    if found and all(found):
        raise TypeError(f"{name} cannot be used: {found[0]}")


def members(hint: Any) -> Iterator[Any]:
    """Return the types that a type may stand for, as Beam writes them."""
    kind = convert_to_beam_type(hint)
    if isinstance(kind, typehints.UnionConstraint):
        for each in kind.union_types:
            yield from members(each)
    else:
        yield kind


def _why_no_event(kind: Any, fields: EventFields) -> str | None:
    """Return why elements of a type cannot be events, or None if they may be."""
    found = _fields_of(kind)
    if found is not None:
        return _missing_field(found, fields.required_of_rows) or _wrong_field(found, fields)
    if isinstance(kind, typehints.TupleConstraint):
        if len(kind.tuple_types) != 2:
            return f"event must be {FORMS}, got {shown(kind)}"
        if fields.streams:
            return "event must be a row or an Arrow record batch with a field stream: streams are asked for"
        if "value" in fields.required:
            return "event must be a row or an Arrow record batch with a field value: values are asked for"
        return _wrong_field(dict(zip(("user", "item"), kind.tuple_types, strict=True)), fields)
    return f"event must be {FORMS}, got {shown(kind)}" if _is_no_event(kind) else None


def _is_no_event(kind: Any) -> bool:
    """Tell whether a type is sure to be neither a row, nor a pair, nor a batch."""
    if isinstance(kind, type):
        return issubclass(kind, NO_EVENT)
    return isinstance(kind, MAPPINGS) or (isinstance(kind, LISTS) and not isinstance(kind, UNSIZED))


def _fields_of(kind: Any) -> dict[str, Any] | None:
    """Return names and types of the fields of rows, or None if a type is not one of rows."""
    if isinstance(kind, RowTypeConstraint):
        return dict(kind._fields)
    if not isinstance(kind, type) or kind is Row:
        return None
    names: tuple[str, ...] = getattr(kind, "_fields", ()) if match_is_named_tuple(kind) else ()
    if dataclasses.is_dataclass(kind):
        names = tuple(field.name for field in dataclasses.fields(kind))
    if not names:
        return None
    try:
        return dict.fromkeys(names, Any) | get_type_hints(kind)
    except NameError:  # a forward reference
        return dict.fromkeys(names, Any)


def _missing_field(found: dict[str, Any], required: tuple[str, ...]) -> str | None:
    """Return which field is missing."""
    for name in required:
        if name not in found:
            return f"row must have a field {name}; needed are {', '.join(required)}, got {', '.join(found)}"
    return None


def _wrong_field(found: dict[str, Any], fields: EventFields) -> str | None:
    """Return which field is of a type that cannot be used."""
    read = [name for name in fields.required if name in found]
    for name in read:
        kinds = list(members(found[name]))
        if name == "time":
            if all(_is_wrong(kind, NO_TIME, lists=False) for kind in kinds):
                return f"time must be a timestamp or a number of seconds since 1970, got {shown(found[name])}"
        elif name == "value":
            if all(_is_wrong(kind, NO_VALUE, lists=False) for kind in kinds):
                return f"value must be a number, got {shown(found[name])}"
        elif all(_is_wrong(kind, NO_TEXT, lists=name == "item" and fields.lists) for kind in kinds):
            return f"{name} must be text or an integer, got {shown(found[name])}"
    return None


def _is_wrong(kind: Any, wrong: tuple[type, ...], *, lists: bool) -> bool:
    """Tell whether a type is sure to be wrong for a value."""
    if isinstance(kind, type):
        return issubclass(kind, wrong) or (issubclass(kind, list | tuple) and not lists)
    return isinstance(kind, MAPPINGS) or (isinstance(kind, LISTS) and not lists)


def shown(hint: Any) -> str:
    """Return a type as text."""
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("<class '", "").replace("'>", "")
