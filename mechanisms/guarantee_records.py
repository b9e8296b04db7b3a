"""Guarantees as plain values that JSON can hold, with their whole privacy curve, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, cast

from privstream.mechanisms.monitor.clock import ClockCurve
from privstream.mechanisms.monitor.target_charging import ResponseCurve
from privstream.mechanisms.privacy.accounting import ComposedCurve, PointCurve, PureDp, SlackCurve
from privstream.mechanisms.privacy.gaussian_curve import GaussianCurve
from privstream.mechanisms.privacy.guarantee import PrivacyCurve, PrivacyGuarantee
from privstream.mechanisms.privacy.noisy_counts import CountCurve
from privstream.mechanisms.sparse_vector.sparse import PureComposition

VERSION = 1
"""Of the records; goes up when what is written can no longer be read as before."""

CURVES: Mapping[str, type] = {
    curve.__name__: curve
    for curve in (
        PointCurve,
        PureDp,
        SlackCurve,
        ComposedCurve,
        GaussianCurve,
        CountCurve,
        ClockCurve,
        ResponseCurve,
        PureComposition,
    )
}
"""All curves that mechanisms have, by the names under which they are written: frozen records of plain numbers."""

WRITTEN = tuple(each.name for each in fields(PrivacyGuarantee) if each.name != "curve")


def guarantee_record(guarantee: PrivacyGuarantee) -> dict[str, Any]:
    """Return a guarantee as plain values; `read_guarantee` makes an equal one of them.

    Raises:
        TypeError: its curve is of a kind that cannot be written.

    Example:
        >>> one = PrivacyGuarantee(
        ...     unit="one event", neighbouring="add_remove", epsilon=0.5, delta=0.0, curve=PureDp(0.5)
        ... )
        >>> guarantee_record(one)["curve"]
        {'type': 'PureDp', 'at_epsilon': 0.5, 'at_delta': 0.0}
        >>> read_guarantee(guarantee_record(one)).curve
        PureDp(at_epsilon=0.5, at_delta=0.0)
    """
    curve = None if guarantee.curve is None else _plain(guarantee.curve)
    return {"version": VERSION} | guarantee.to_dict() | {"curve": curve}


def read_guarantee(record: Mapping[str, Any]) -> PrivacyGuarantee:
    """Return the guarantee that `guarantee_record` has written; a field that it has without a value may be missing.

    Raises:
        ValueError, TypeError: it was written otherwise; the message names the field.
    """
    if record.get("version") != VERSION:
        raise ValueError(f"version of a guarantee must be {VERSION}, got {record.get('version')!r}")
    given = {name: record[name] for name in WRITTEN if name in record}
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    curve = record.get("curve")
    return PrivacyGuarantee(**given, curve=None if curve is None else _curve(curve))


def _plain(value: Any) -> Any:
    """Return a curve, or a field of one, as plain values."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    name = type(value).__name__
    if CURVES.get(name) is not type(value):
        raise TypeError(f"curve must be one of {', '.join(CURVES)}, got {name}")
    return {"type": name} | {field.name: _plain(getattr(value, field.name)) for field in fields(CURVES[name])}


def _curve(record: Any) -> PrivacyCurve:
    """Return the curve that a record describes."""
    if not isinstance(record, dict) or record.get("type") not in CURVES:
        raise ValueError(f"curve must be a record with a type of {', '.join(CURVES)}")
    curve = CURVES[record["type"]]
    given = {name: _value(value) for name, value in record.items() if name != "type"}
    if set(given) != {field.name for field in fields(curve)}:
        raise ValueError(f"curve must have all fields of {record['type']}, and no others, got {', '.join(given)}")
    return cast(PrivacyCurve, curve(**given))


def _value(value: Any) -> Any:
    """Return one field of a curve."""
    if isinstance(value, list):
        return tuple(_curve(one) for one in value)
    return _curve(value) if isinstance(value, dict) else value
