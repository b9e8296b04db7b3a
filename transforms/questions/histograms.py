"""Counts of public categories: what is asked, what is promised, and how accurate it is; no Beam."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Required, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import TOGETHER, Accuracy, Coverage, Limit
from privstream.mechanisms.continual.histogram import AnchoredFlags, HistogramQueries
from privstream.mechanisms.continual.queries import (
    Histogram,
    HistogramQuery,
    MaxSum,
    MinSum,
    Monotone,
    Quantile,
    TopK,
)
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PEOPLE_HASHED, PrivacyGuarantee
from privstream.mechanisms.privacy.units import EVENT, PERSON
from privstream.transforms.parameters import ALL_EVENTS, WHOLE_RUN, Parameters, check_limits, check_shards
from privstream.transforms.reading.domain import Domain, Items
from privstream.transforms.reading.fields import TEXT, UNREAD, EventFields
from privstream.transforms.timing.steps import Moment, Steps, WindowOptions
from typing_extensions import Unpack, override

_PLAIN: dict[str, HistogramQuery] = {
    "histogram": Histogram(),
    "max": MaxSum(),
    "min": MinSum(),
    "median": Quantile(0.5),
}
RULE = "queries must be among histogram, max, min, median, quantile:Q, top:K"


@dataclass(frozen=True)
class Question:
    """A query and its name."""

    name: str
    query: HistogramQuery

    def answer(self, counts: np.ndarray) -> tuple[Sequence[int], np.ndarray]:
        """Return, from estimates of all counts, the categories (-1 for none) and the numbers to publish."""
        if isinstance(self.query, Histogram):
            return range(len(counts)), counts
        if isinstance(self.query, TopK):
            largest = np.argsort(-counts, kind="stable")[: self.query.k]
            return largest.tolist(), counts[largest]
        return (-1,), self.query.values(counts[None, :])[0]


def questions(asked: Sequence[str | Monotone], columns: int) -> tuple[Question, ...]:
    """Return what is asked for.

    Raises:
        ValueError: a query is unknown, out of range or asked twice.
    """
    if isinstance(asked, str) or not isinstance(asked, Collection) or not asked:
        raise ValueError("queries must be a tuple of at least one query")
    found = []
    for each in asked:
        question = Question(each.name, each) if isinstance(each, Monotone) else Question(each, _named(each, columns))
        question.query.check(columns)
        found.append(question)
    names = [question.name for question in found]
    if len(set(names)) < len(names):
        raise ValueError(f"queries must be distinct, got {', '.join(names)}")
    return tuple(found)


def _named(text: str, columns: int) -> HistogramQuery:
    if not isinstance(text, str):
        raise TypeError(f"queries must be texts or Monotone functions, got {type(text).__name__}")
    if text in _PLAIN:
        return _PLAIN[text]
    name, _, parameter = text.partition(":")
    try:
        number = {"quantile": float, "top": int}[name](parameter)
    except (KeyError, ValueError):
        raise ValueError(f"{RULE}, got {text!r}") from None
    if name == "quantile":
        if not 0 < number <= 1:
            raise ValueError(f"quantile:Q must have Q in (0, 1], got {text}")
        return Quantile(number)
    if not 1 <= number <= columns:
        raise ValueError(f"top:K must have K from 1 to {columns}, the number of categories, got {text}")
    return TopK(int(number))


def watched(asked: tuple[Question, ...]) -> list[tuple[HistogramQuery, ...]]:
    """Return which queries a mechanism may watch to answer what is asked: all counts, or these numbers alone.

    No number asked for changes by more than the counts do. So they follow from estimates of all counts,
    with the same error.
    """
    choices: list[tuple[HistogramQuery, ...]] = [(Histogram(),)]
    if not any(isinstance(question.query, Histogram | TopK) for question in asked):  # counts of certain categories
        choices.append(tuple(question.query for question in asked))
    return choices


UNITS = ("event", "person")

EXPECTED_COUNT = 100_000
"""The largest count that is expected if nothing else is known."""

Thresholds = int | Mapping[str, int]
"""A number for all categories, or one for each by its name."""


@dataclass(frozen=True, kw_only=True)
class Categories:
    """The public categories of events."""

    domain: Domain

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.domain)

    def found_in(self, batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of a batch that have a category, and its position."""
        found = pc.index_in(batch["item"], self.domain.texts)
        rows = np.flatnonzero(pc.is_valid(found).to_numpy(zero_copy_only=False))
        return rows, found.drop_null().to_numpy().astype(np.int64)


class CategoryOptions(WindowOptions, total=False):
    """What transforms on counts of public categories take beside their own arguments; see `CategoryParameters`.

    What they mean: `privstream help histogram`.
    """

    epsilon: Required[float]
    domain: Required[Items]
    start: Required[Moment]
    noise: Required[NoiseSource]
    end: Moment | None
    delta: float
    unit: Literal["event", "person"]
    max_contributions: int | None
    max_per_window: int | None
    shards: int


class CategoryParameters(Parameters):
    """What transforms on counts of public categories have in common; its arguments are `CategoryOptions`."""

    mechanism: HistogramQueries

    def __init__(
        self,
        *,
        epsilon: float,
        domain: Items,
        start: Moment,
        noise: NoiseSource,
        end: Moment | None = None,
        delta: float = 0.0,
        unit: Literal["event", "person"] = "event",
        max_contributions: int | None = None,
        max_per_window: int | None = None,
        shards: int = 4,
        **options: Unpack[WindowOptions],
    ) -> None:
        super().__init__(noise)
        self.unit = checks.one_of("unit", unit, UNITS)
        check_limits(unit, max_contributions=max_contributions, max_per_window=max_per_window)
        self.max_contributions, self.max_per_window = max_contributions, max_per_window
        if self.unit == "person" and max_contributions is None:
            raise ValueError("max_contributions must be given when the unit is a person")
        self.steps = Steps.of(start=start, end=end, **options)
        self.categories = Categories(domain=Domain.of(domain))
        self.budget = {"epsilon": epsilon, "delta": delta}
        self.shards = check_shards(shards)
        self.noise = noise

    @property
    def shape(self) -> dict[str, Any]:
        """What a mechanism must know: each event is a row of one column."""
        return {
            "columns": self.categories.size,
            "horizon": self.windows,
            "row_columns": 1,
            "rows_per_unit": self.max_contributions if self.unit == "person" else None,
        }

    @property
    def windows(self) -> int | None:
        """Windows of the whole run, or None for no end."""
        return self.steps.count

    def error(self, window: int, intervals: int = 0) -> int:
        """Return the error bound in window 1, 2, .. when estimates have been renewed `intervals` times."""
        return self.mechanism.error_bound(window, intervals)

    @property
    @override
    def promise(self) -> PrivacyGuarantee:
        limits = [f"An event counts in one window, for one category of {self.categories.size:,}."]
        public = ["all arguments but the noise", "the number of windows, all of which are published"]
        if self.unit == "person":
            most = cast(int, self.max_contributions)
            limits.append(
                f"A person's first {most:,} categories count in the whole run"
                + (f", of which at most {self.max_per_window:,} in one window." if self.max_per_window else ".")
            )
        found = self.mechanism.guarantee
        hashes = (PEOPLE_HASHED,) if self.unit == "person" else ()
        return replace(
            found,
            unit=PERSON if self.unit == "person" else EVENT,
            limits=tuple(limits),
            public=tuple(public),
            proof=f"docs/proofs/live_histograms.md, section {3 if self.unit == 'person' else 2}; {found.proof}",
            caveats=(*found.caveats, *hashes),
        )

    @property
    @override
    def coverage(self) -> Coverage:
        limits, thing = [], "event"
        if self.max_contributions is not None:
            most, in_window = self.max_contributions, self.max_per_window
            limits.append(Limit.at_most("max_contributions", most, thing, WHOLE_RUN, "first", lasting=True))
            if in_window is not None and in_window < most:
                limits.append(Limit.at_most("max_per_window", in_window, thing, "in a window", "first"))
        return Coverage(
            holds=f"{'the numbers of events that count' if limits else ALL_EVENTS}, each for one category,",
            scope=TOGETHER,
            limits=tuple(limits),
            beyond="the numbers of all events may be larger",
            looks_like="a standstill",
        )

    @property
    @override
    def event_fields(self) -> EventFields:
        user = TEXT if self.unit == "person" else UNREAD
        return EventFields(user=user)


class HistogramParameters(CategoryParameters):
    """Publish, at the end of every window, queries on the counts of public categories in all windows so far.

    Input: as of `KeyedCounts`, with a category as item; where the unit is an event, no `user` is read.
    `queries` may have `Monotone` functions, too. Output: `HistogramEstimate` rows of each window, also an empty one.
    Args: see `Parameters` and `privstream help histogram`.

    Privacy:
        Unit: one event, or one person over the whole run. Neighbours: one added or removed. (epsilon,
        delta): `guarantee`. Enforced: an event counts for one category; per person the first `max_contributions`
        events count, by window and in it by time, at most `max_per_window` of each window.
        Public: all arguments but `noise`. With unit "person", one value of the user field is one person; with unit
        "event", nothing is promised to a person who has many events.

    Accuracy:
        With probability 95%, all estimates, in all windows together, are within their `error_bound` of
        the numbers without noise. These are the numbers after all limits and without late events. `error_bound` is
        `error(window, intervals)`. The categories that `top:K` names have counts within twice that of the largest ones.

    Example:
        >>> histogram = ContinualHistogram(epsilon=1.0, domain=Domain(["cat", "dog"]), window=3600, start=0, end=86400,
        ...                                noise=KeyedNoise.from_file(path))  # doctest: +SKIP

    Source: Henzinger, Sricharan, Steiner (2023), Algorithm 2; docs/proofs/anchored.md, live_histograms.md.
    """

    def __init__(
        self,
        *,
        queries: tuple[str | Monotone, ...] = ("histogram",),
        largest: int | None = None,
        **options: Unpack[CategoryOptions],
    ) -> None:
        super().__init__(**options)
        self.questions = questions(queries, len(self.categories.domain))
        given: dict[str, Any] = {**self.budget, **self.shape, "largest": largest}
        choices = [HistogramQueries(**given, queries=each) for each in watched(self.questions)]
        self.mechanism = min(choices, key=_expected_error)

    @property
    @override
    def prediction(self) -> Accuracy:
        mechanism, error = self.mechanism, _expected_error(self.mechanism)
        windows = "all windows" if self.windows else f"the first {_expected(mechanism):,} windows"
        return Accuracy(
            error=error,
            failure_probability=mechanism.beta,
            claim=f"With probability {1 - mechanism.beta:g}, all numbers, in {windows} together, are "
            f"within {error:,} of the numbers without noise, while none of them exceeds {_expected(mechanism):,} "
            "(each row has an error bound of its own).",
            numbers={"error_bound": error, "largest": _expected(mechanism)},
        )


def _expected_error(mechanism: HistogramQueries) -> int:
    """Return the error that a mechanism promises for the answers that it expects."""
    return mechanism.error(_expected(mechanism))


def _expected(mechanism: HistogramQueries) -> int:
    """Return the largest count that is expected; of streaming input, the number of windows, too."""
    return mechanism.largest or mechanism.horizon or EXPECTED_COUNT


class FlagsParameters(CategoryParameters):
    """Publish, at the end of every window, which categories have passed their thresholds; a flag stays up.

    Input, windows, unit, limits and what is public are as of `ContinualHistogram`; no count is published. Output: a
    `CategoryFlag` row for each category and window. Args: see `Parameters` and `privstream help flags`.

    Accuracy:
        With probability 95%, all flags are within their `error_bound`, in all windows together.

    Source: Henzinger, Sricharan, Steiner (2023), Algorithm 2; docs/proofs/anchored.md, live_histograms.md.
    """

    def __init__(self, *, thresholds: Thresholds, **options: Unpack[CategoryOptions]) -> None:
        super().__init__(**options)
        names = self.categories.domain.texts.to_pylist()
        if isinstance(thresholds, Mapping):
            if set(thresholds) != set(names):
                raise ValueError("thresholds must name every category of the domain, and no other")
            each = tuple(thresholds[name] for name in names)
        else:
            each = (thresholds,) * len(names)
        given: dict[str, Any] = {**self.budget, **self.shape}
        self.mechanism = AnchoredFlags(**given, thresholds=each)

    @property
    @override
    def prediction(self) -> Accuracy:
        mechanism, error = self.mechanism, _expected_error(self.mechanism)
        windows = "all windows" if self.windows else f"the first {_expected(mechanism):,} windows"
        return Accuracy(
            error=error,
            failure_probability=mechanism.beta,
            claim=f"With probability {1 - mechanism.beta:g}, in {windows} together, while no count exceeds "
            f"{_expected(mechanism):,}, the flag of every category whose count is {error:,} above its threshold is up, "
            f"and that of every category whose count is more than {error:,} below it is down.",
            numbers={"error_bound": error, "largest": _expected(mechanism)},
        )
