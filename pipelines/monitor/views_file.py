"""Views as the file of a monitor describes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from privstream.pipelines.command import UsageError
from privstream.pipelines.monitor.monitor_file import KINDS, NAME, VIEWS, MonitorFile
from privstream.pipelines.monitor.views import Alerts, Largest, Ratios, Risers, Sums, View, item_of
from privstream.pipelines.questions.option_types import length
from privstream.pipelines.yaml_file import Document, meant

RISES_OF_SUMS = {"over", "against"}
"""Kinds that cannot be views of each other."""


def read_views(monitor: MonitorFile) -> tuple[View, ...]:
    """Return the views of a monitor, each behind those that it is made of.

    Raises:
        UsageError: a key is unknown or missing, its value breaks a rule, or views are made of each other in a circle;
            the message names line and key.
    """
    document = monitor.document
    if VIEWS not in document.content:
        return ()
    asked = {each.name: each.spec.has_windows for each in monitor.questions}
    views = {name: _view(document, name, asked) for name in document.mapping((VIEWS,))}
    known = [*asked, *views]
    for view in views.values():
        for key, source in view.sources:
            if source not in known:
                raise view.error(key, f"must be a question or another view, got `{source}`{meant(source, known)}")
            if not asked.get(source, True):
                raise view.error(key, f"must be about windows, and {source} has none")
    try:
        order = TopologicalSorter(
            {name: {source for _, source in view.sources} for name, view in views.items()}
        ).static_order()
        return tuple(views[name] for name in order if name in views)
    except CycleError as error:
        circle = error.args[1]
        raise document.error((VIEWS, circle[0]), f"must not be made of itself: {' of '.join(circle[::-1])}") from None


def _view(document: Document, name: str, asked: Iterable[str]) -> View:
    """Return one view."""
    keys = (VIEWS, name)
    if not NAME.fullmatch(name):
        raise document.error(
            keys, "names must be small letters, digits and _, at most 63 of them, and begin with a letter"
        )
    if name in asked:
        raise document.error(keys, "must not have the name of a question")
    given = document.mapping(keys)
    kind = next((key for key in KINDS if key in given), None)
    if kind is None:
        document.check_keys(keys, dict.fromkeys(key for known in KINDS.values() for key in known))
        raise document.error(keys, f"must have one of {', '.join(KINDS)}")
    other = next((key for key in KINDS if key in given and key not in KINDS[kind]), None)
    if other is not None:
        instead = "nothing tells how sums rise" if {kind, other} == RISES_OF_SUMS else "make it a view of another view"
        raise document.error((*keys, other), f"must not be given with {kind}: {instead}")
    document.check_keys(keys, KINDS[kind])
    read = _Read(document, name)
    common: dict[str, Any] = {"name": name, "document": document, "largest": read.whole("largest", None)}
    if kind == "ratio":
        return Ratios(**common, ratio=read.two("ratio"))
    common["of"] = read.text("of")
    if kind == "over":
        return Sums(**common, over=read.span("over"))
    if kind == "against":
        return Risers(**common, against=read.span("against"))
    return Largest(**common) if kind == "largest" else _alert(read, common, kind)


def _alert(read: _Read, common: Mapping[str, Any], kind: str) -> Alerts:
    """Return a view of alerts."""
    item = read.texts("item") if read.has("item") else ()
    if item and read.has("quantile"):
        raise read.error("quantile", "must not be given with item")
    sign, clear = (1, "clear_below") if kind == "above" else (-1, "clear_above")
    threshold = read.number(kind, None)
    ends_at = read.number(clear, threshold)
    if sign * (threshold - ends_at) < 0:
        raise read.error(
            clear, f"must be {'<=' if sign > 0 else '>='} {threshold:g}, where an alert begins, got {ends_at:g}"
        )
    return Alerts(
        **common,
        item=read.share("quantile", 0.5) if read.has("quantile") else item_of(item),
        columns=len(item),
        sign=sign,
        threshold=threshold,
        ends_at=ends_at,
        windows=read.whole("for", 1) or 1,
    )


@dataclass(frozen=True)
class _Read:
    """Reads the values of a view."""

    document: Document
    name: str

    def has(self, key: str) -> bool:
        return self._value(key) is not None

    def error(self, key: str, message: str) -> UsageError:
        return self.document.error((VIEWS, self.name, key), message)

    def text(self, key: str) -> str:
        """Return a text, which must be given."""
        value = self._value(key)
        if not isinstance(value, str) or not value:
            raise self.error(key, "must be a text" if self.has(key) else "must be given")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return one text, or a list of them."""
        value = self._value(key)
        found = [value] if not isinstance(value, list) else value
        if not found or any(isinstance(one, bool) or not isinstance(one, str | int) or one == "" for one in found):
            raise self.error(key, "must be a text, or a list of texts, none of them empty")
        return tuple(map(str, found))

    def two(self, key: str) -> tuple[str, str]:
        """Return a list of two texts."""
        found = self.texts(key)
        if len(found) != 2:
            raise self.error(key, f"must be two names, got {len(found)}")
        return found[0], found[1]

    def span(self, key: str) -> str:
        """Return a duration, as a text."""
        value = self._value(key)
        try:
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise ValueError("must be a duration, such as 7d")
            length(str(value))
        except ValueError as error:
            raise self.error(key, str(error)) from None
        return str(value)

    def number(self, key: str, default: float | None) -> float:
        """Return a finite number."""
        found = self.document.number((VIEWS, self.name, key), default)
        if not math.isfinite(found):
            raise self.error(key, f"must be finite, got {found:g}")
        return found

    def share(self, key: str, default: float) -> float:
        """Return a probability."""
        found = self.number(key, default)
        if not 0 < found < 1:
            raise self.error(key, f"must be in (0, 1), got {found:g}")
        return found

    def whole(self, key: str, default: int | None) -> int | None:
        """Return a whole number, at least 1."""
        if not self.has(key):
            return default
        found = self.number(key, None)
        if found != int(found) or found < 1:
            raise self.error(key, f"must be a whole number, at least 1, got {found:g}")
        return int(found)

    def _value(self, key: str) -> Any:
        return self.document.at((VIEWS, self.name, key))
