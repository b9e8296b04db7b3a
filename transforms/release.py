"""What a transform draws, as plain values: what identifies a run, its noise and its charge are digests of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any

import numpy as np
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.reading.domain import Domain

MACHINERY = ("noise", "shards")
"""What every transform is made with that says where its draws come from and how work is shared."""


def released(transform: Any, given: Mapping[str, Any], views: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a transform draws: equal ones draw the same noise for the same records.

    It has all arguments, with defaults, so that nothing that shapes a number can be missing, and beside them all
    mechanisms that the transform holds, as their noise labels have them: an argument that is said to be a view, and
    reaches a mechanism all the same, still counts. `views` stand in place of arguments that are applied to what was
    drawn.
    """
    arguments = inspect.signature(type(transform)).parameters
    every = {name: each.default for name, each in arguments.items() if each.default is not each.empty}
    every |= {**given, **{name: value for name, value in views.items() if name in arguments}}
    return {
        "transform": type(transform).__name__,
        "noise": type(transform).NOISE_VERSION,
        "arguments": {name: plain(value) for name, value in every.items() if name not in MACHINERY},
        "mechanisms": sorted(_held(transform, set())),
    }


def plain(value: Any) -> Any:
    """Return a parameter as a value for JSON, exactly."""
    if isinstance(value, Domain):
        value = value.digest
    elif hasattr(value, "describe"):
        value = plain(value.describe())
    elif hasattr(value, "micros"):  # a `Timestamp` of Beam
        value = f"{value.micros} us"
    elif is_dataclass(value) and not isinstance(value, type):
        value = [type(value).__name__, *(getattr(value, each.name) for each in fields(value))]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float | np.number):
        return int(value) if float(value).is_integer() else repr(float(value))
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, Iterable):
        return [plain(each) for each in value]
    raise TypeError(f"parameters must be plain values, got {type(value).__name__}")


def _held(value: Any, seen: set[int]) -> Iterator[str]:
    """Yield a text for each mechanism that an object of privstream holds, and for each part of one that is none."""
    if id(value) in seen or isinstance(value, NoiseSource):
        return
    seen.add(id(value))
    if isinstance(value, Mechanism):
        kind = type(value)
        parameters = value.parameters.decode("latin-1")
        yield f"{kind.__name__} {kind.NOISE_VERSION} {getattr(value, 'noise_label', '')} {parameters}"
        return
    if is_dataclass(value) and _is_ours(value, "mechanisms."):
        parts = {each.name: getattr(value, each.name) for each in fields(value)}
        yield f"{type(value).__name__} { {name: one for name, one in parts.items() if _is_plain(one)} }"
    for each in _parts(value):
        yield from _held(each, seen)


def _parts(value: Any) -> Iterable[Any]:
    """Return what an object of privstream was made with; nothing that it has worked out and kept."""
    if isinstance(value, list | tuple):
        return value if value and not _is_plain(value[0]) else ()
    if isinstance(value, Mapping):
        return value.values()
    if not _is_ours(value):
        return ()
    if is_dataclass(value):
        return [getattr(value, each.name) for each in fields(value)]
    kind = type(value)
    return [
        one
        for name, one in getattr(value, "__dict__", {}).items()
        if name != "_given" and not isinstance(getattr(kind, name, None), cached_property)
    ]


def _is_plain(value: Any) -> bool:
    """Tell whether a value is the same text on every machine."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | bytes | int | float)


def _is_ours(value: Any, below: str = "") -> bool:
    """Tell whether the class of an object is one of privstream."""
    return type(value).__module__.startswith(f"privstream.{below}")
