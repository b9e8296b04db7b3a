"""Guarantees as plain values for JSON, with their whole privacy curve, and back."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral
from typing import Any, cast

from privstream.mechanisms.privacy.accounting import (
    SUM_ERROR,
    TAIL,
    ClockCurve,
    ComposedCurve,
    GaussianCurve,
    PointCurve,
    PrivacyCurve,
    PureComposition,
    PureDp,
    SlackCurve,
    StatusCurve,
)
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import PrivacyUnit

VERSION = 2
"""Of the records; goes up when what is written can no longer be read as before."""

_CURVES = (PointCurve, PureDp, SlackCurve, ComposedCurve, GaussianCurve, ClockCurve, StatusCurve, PureComposition)
CURVES: Mapping[str, type] = {curve.__name__: curve for curve in _CURVES}
"""All curves that mechanisms have, by the names under which they are written: frozen records of plain numbers."""

WRITTEN = tuple(each.name for each in fields(PrivacyGuarantee) if each.name not in ("unit", "curve", "step"))


def guarantee_record(guarantee: PrivacyGuarantee) -> dict[str, Any]:
    """Return a guarantee as plain values; `read_guarantee` makes an equal one of them.

    Raises:
        TypeError: its curve is of a kind that cannot be written.
        ValueError: its curve does not promise its epsilon and delta, so that nobody could read it again.
    """
    curve = None if guarantee.curve is None else _plain(guarantee.curve)
    _check_promise(guarantee.curve, guarantee.epsilon, guarantee.delta)
    return {"version": VERSION} | guarantee.to_dict() | {"curve": curve}


def read_guarantee(record: Mapping[str, Any]) -> PrivacyGuarantee:
    """Return the guarantee that `guarantee_record` has written; a field that it has without a value may be missing.

    Raises:
        ValueError, TypeError: it was written otherwise; the message names the field.
    """
    if type(version := record.get("version")) is not int or version != VERSION:
        raise ValueError(f"version of a guarantee must be {VERSION}, got {version!r}")
    unit = PrivacyUnit.from_dict(record.get("privacy_unit"))
    given = {name: record[name] for name in WRITTEN if name in record}
    for name in ("limits", "public", "caveats"):
        texts = given.get(name, [])
        if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
            raise TypeError(f"{name} must be a list of texts")
        given[name] = tuple(texts)
    for name in ("adaptivity", "proof"):
        if not isinstance(given.get(name, ""), str):
            raise TypeError(f"{name} must be a text, got {type(given[name]).__name__}")
    curve = record.get("curve")
    found = PrivacyGuarantee(**given, unit=unit, curve=None if curve is None else _curve(curve))
    _check_promise(found.curve, found.epsilon, found.delta)
    return found


def read_guarantee_file(path: str) -> PrivacyGuarantee:
    """Return the guarantee, with its privacy curve, in a local file that a command has written beside its rows.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a guarantee that a command has written; the message names the file.

    Example:
        >>> read_guarantee_file("trending.parquet.guarantee.json").curve.epsilon(1e-9)  # doctest: +SKIP
        1.31
    """
    with open(path, encoding="utf-8") as file:
        try:
            return guarantee_of(json.load(file))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"{path} must be a guarantee that a command has written: {error}") from None


def guarantee_of(promise: Mapping[str, Any]) -> PrivacyGuarantee:
    """Return the guarantee in the content of such a file; `ValueError`, `TypeError` or `KeyError` if there is none."""
    return read_guarantee(promise["guarantee"])


@functools.lru_cache(maxsize=4096)
def _check_promise(curve: PrivacyCurve | None, epsilon: float, delta: float) -> None:
    """Refuse a curve that is not of this promise: sums of budgets would believe the curve."""
    if curve is None:
        return
    try:
        at_epsilon = curve.delta(epsilon)
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"curve must be one that can be computed ({type(error).__name__})") from None
    if not at_epsilon <= delta * (1 + SUM_ERROR) + TAIL:
        raise ValueError(f"curve must promise delta {delta:g} at epsilon {epsilon:g}, got {at_epsilon:g}")


def _plain(value: Any) -> Any:
    """Return a curve, or a field of one, as plain values."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, PrivacyCurve):
        name = type(value).__name__
        if CURVES.get(name) is not type(value):
            raise TypeError(f"curve must be one of {', '.join(CURVES)}, got {name}")
        return {"type": name} | {field.name: _plain(getattr(value, field.name)) for field in fields(CURVES[name])}
    return int(value) if isinstance(value, Integral) else float(value)


def _curve(record: Any) -> PrivacyCurve:
    """Return the curve that a record describes, with all curves in it."""
    if not isinstance(record, dict) or record.get("type") not in CURVES:
        raise ValueError(f"curve must be a record with a type of {', '.join(CURVES)}")
    kind, given = CURVES[record["type"]], {name: value for name, value in record.items() if name != "type"}
    if set(given) != {field.name for field in fields(kind)}:
        raise ValueError(f"curve must have all fields of {kind.__name__}, and no others, got {', '.join(record)}")
    for name, value in given.items():
        if isinstance(value, list):
            given[name] = tuple(map(_curve, value))
        elif isinstance(value, dict):
            given[name] = _curve(value)
    return cast(PrivacyCurve, kind(**given))
