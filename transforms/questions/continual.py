"""Histograms, flags, ranges and nearest points: what they are asked with, and what they promise; no Beam."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy
from privstream.mechanisms.continual.histogram import HistogramQueries
from privstream.mechanisms.continual.predecessor import DynamicPredecessor, IncrementalPredecessor
from privstream.mechanisms.continual.queries import Histogram, HistogramQuery, MaxSum, MinSum, Monotone, Quantile, TopK
from privstream.mechanisms.continual.ranges import RangeCounter
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.transforms.parameters import Actions, WindowedParameters, within
from privstream.transforms.reading.domain import Domain, Items
from privstream.transforms.reading.fields import NUMBER, UNREAD, EventFields
from typing_extensions import override


def answer(query: HistogramQuery, counts: np.ndarray) -> tuple[Sequence[int], np.ndarray]:
    """Return, from estimates of all counts, the categories (-1 for none) and the numbers to publish."""
    if isinstance(query, Histogram):
        return range(len(counts)), counts
    if isinstance(query, TopK):
        largest = np.argsort(-counts, kind="stable")[: query.k]
        return largest.tolist(), counts[largest]
    return (-1,), query.values(counts[None, :])[0]


def queries_of(asked: Sequence[str | Monotone], columns: int) -> dict[str, HistogramQuery]:
    """Return what is asked for, by name.

    Raises:
        ValueError: a query is unknown, out of range or asked twice.
    """
    if isinstance(asked, str) or not isinstance(asked, Collection) or not asked:
        raise ValueError("queries must be a tuple of at least one query")
    found = {}
    for each in asked:
        name, query = (each.name, each) if isinstance(each, Monotone) else (each, _named(each, columns))
        query.check(columns)
        if name in found:
            raise ValueError(f"queries must be distinct, got {name} twice")
        found[name] = query
    return found


PLAIN: dict[str, HistogramQuery] = {
    "histogram": Histogram(),
    "max": MaxSum(),
    "min": MinSum(),
    "median": Quantile(0.5),
}


def _named(text: str, columns: int) -> HistogramQuery:
    if not isinstance(text, str):
        raise TypeError(f"queries must be texts or Monotone functions, got {type(text).__name__}")
    name, _, parameter = text.partition(":")
    try:
        if name == "quantile":
            return Quantile(float(parameter))
        found = TopK(int(parameter)) if name == "top" else PLAIN[text]
        found.check(columns)
    except (KeyError, ValueError):
        raise ValueError(
            "queries must be among histogram, max, min, median, quantile:Q with Q in (0, 1], and top:K with K from 1 "
            f"to {columns:,}, the number of categories, got {text!r}"
        ) from None
    return found


class CategoryParameters(WindowedParameters):
    """What transforms on counts of public categories have in common."""

    mechanism: HistogramQueries
    claim = ""

    def __init__(self, *, domain: Items, **options: Any) -> None:
        super().__init__(**options)
        self.domain = Domain.of(domain)
        self.shape: dict[str, Any] = {  # what a mechanism must know: each event is a row of one column
            **self.budget,
            "columns": len(self.domain),
            "horizon": self.steps.count,
            "row_columns": 1,
        }

    @property
    @override
    def promise(self) -> PrivacyGuarantee:
        found = self.mechanism.guarantee
        one = f"An event counts in one window, for one category of {len(self.domain):,}."
        proof = f"docs/proofs/live_histograms.md, section 2; {found.proof}"
        return replace(within(found, (), one, hashed=False), proof=proof)

    @property
    @override
    def accuracy(self) -> Accuracy:
        mechanism, largest = self.mechanism, self.mechanism.expected
        error = mechanism.error(largest)
        windows = "all windows" if self.steps.count else f"the first {largest:,} windows"
        claim = self.claim.format(windows=windows, error=f"{error:,}", largest=f"{largest:,}")
        return Accuracy(
            error=error,
            failure_probability=mechanism.beta,
            claim=f"With probability {1 - mechanism.beta:g}, {claim}.",
            numbers={"error_bound": error, "largest": largest},
        )

    @property
    @override
    def event_fields(self) -> EventFields:
        return EventFields(user=UNREAD)


class HistogramParameters(CategoryParameters):
    """Publish, at the end of every window, queries on the counts of public categories in all windows so far.

    Input: as of `KeyedCounts`, with a category as item; no `user` is read. `queries` may have `Monotone` functions.
    Output: `HistogramEstimate` rows of each window, also an empty one. Args: see `Parameters` and
    `privstream histogram --help`.

    Privacy:
        Unit: one event; nothing is promised to a person with many. Neighbours: one added or removed. (epsilon,
        delta): `guarantee`. Enforced: an event counts for one category. Public: all arguments but `noise`.

    Accuracy:
        With probability 95%, all estimates, in all windows together, are within their `error_bound` of the numbers
        without noise. These are the numbers without late events. The categories that `top:K` names
        have counts within twice that of the largest ones.

    Source: Henzinger, Sricharan, Steiner (2023), Algorithm 2; docs/proofs/anchored.md, live_histograms.md.
    """

    claim = (
        "all numbers, in {windows} together, are within {error} of the numbers without noise, while none of them "
        "exceeds {largest} (each row has an error bound of its own)"
    )

    def __init__(
        self,
        *,
        queries: tuple[str | Monotone, ...] = ("histogram",),
        largest: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.queries = queries_of(queries, len(self.domain))
        asked = tuple(self.queries.values())
        choices: list[tuple[HistogramQuery, ...]] = [(Histogram(),)]
        if not any(isinstance(query, Histogram | TopK) for query in asked):  # these name categories
            choices.append(asked)
        # No number asked for changes by more than the counts do: they follow from all counts, with the same error.
        made = [HistogramQueries(**self.shape, largest=largest, queries=each) for each in choices]
        self.mechanism = min(made, key=lambda mechanism: mechanism.error(mechanism.expected))


class FlagsParameters(CategoryParameters):
    """Publish, at the end of every window, which categories have passed their thresholds; a flag stays up.

    Input, windows, unit and what is public are as of `ContinualHistogram`; no count is published. Output: a
    `CategoryFlag` row for each category and window. Args: see `Parameters` and `privstream flags --help`.

    Accuracy:
        With probability 95%, all flags are within their `error_bound`, in all windows together.

    Source: Henzinger, Sricharan, Steiner (2023), Algorithm 2; docs/proofs/anchored.md, live_histograms.md.
    """

    claim = (
        "in {windows} together, while no count exceeds {largest}, the flag of every category whose count is {error} "
        "above its threshold is up, and that of every category whose count is more than {error} below it is down"
    )

    def __init__(self, *, thresholds: int | Mapping[str, int], **options: Any) -> None:
        super().__init__(**options)
        names = self.domain.texts.to_pylist()
        if not isinstance(thresholds, Mapping):
            thresholds = dict.fromkeys(names, thresholds)
        if set(thresholds) != set(names):
            raise ValueError("thresholds must name every category of the domain, and no other")
        self.mechanism = HistogramQueries(**self.shape, thresholds=tuple(thresholds[name] for name in names))


MOST_QUERIES = 100_000
LATER = 1000
"""The window for which the error is stated when there is no end."""


def point_queries(given: Any, fields: tuple[str, ...], universe: int) -> np.ndarray:
    """Return queries, each as many points as it has fields, distinct and in order; int64."""
    rule = f"queries must be a list of {'points' if len(fields) == 1 else 'pairs (low, high)'}"
    if not isinstance(given, Collection):
        raise TypeError(f"{rule}, got {type(given).__name__}")
    found: set[tuple[int, ...]] = set()
    for query in [(one,) for one in given] if len(fields) == 1 else given:
        if not isinstance(query, tuple | list | np.ndarray) or len(query) != len(fields):
            raise TypeError(rule)
        least = 1
        for name, number in zip(fields, query, strict=True):
            least = checks.integer(f"queries: {name}", number, minimum=least, maximum=universe)
        found.add(tuple(map(int, query)))
    if not 1 <= len(found) <= MOST_QUERIES:
        raise ValueError(f"queries must be 1 to {MOST_QUERIES:,} different ones, got {len(found):,}")
    return np.array(sorted(found), np.int64)


class PointParameters(WindowedParameters):
    """What transforms on sets of points have in common.

    Input: pairs (point, action) timestamped with their event time, rows with `user` (the point), `item` (the action),
    `time`, or Arrow record batches with these columns. Bounded or unbounded, in any order. The updates of a window are
    one step, at whose end, plus `allowed_lateness`, all `queries` are answered. Of the updates of one point in
    one window the last one counts (of those at one moment, an insertion): it inserts or deletes, if it can.

    Privacy:
        Unit: one update (event); nothing is promised to a person with many events together. Neighbours: one event added
        or removed. (epsilon, delta): `guarantee`. Public: all arguments but `noise`.
    """

    mechanism: Any
    query_fields: ClassVar[tuple[str, ...]]
    claim: ClassVar[str]

    def __init__(
        self,
        *,
        universe: int,
        queries: Sequence[Any],
        insert_values: tuple[str, ...] | None = None,
        delete_values: tuple[str, ...] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.actions = Actions.of(insert_values=insert_values, delete_values=delete_values)
        self.universe = checks.integer("universe", universe, minimum=1)
        self.delta = checks.probability("delta", self.budget["delta"], zero=True)
        self.common: dict[str, Any] = {"universe": universe, "horizon": self.steps.count}
        self.common["epsilon"] = self.budget["epsilon"]
        self.queries = point_queries(queries, self.query_fields, universe)

    @property
    @override
    def promise(self) -> PrivacyGuarantee:
        same = "Of the updates of one point in one window the last one counts."
        one = f"An event updates one point of 1 .. {self.universe}, in one window. {same}"
        return within(self.mechanism.guarantee, (), one, hashed=False)

    @property
    @override
    def accuracy(self) -> Accuracy:
        windows, beta = self.steps.count or LATER, self.mechanism.beta
        error = self.mechanism.error(windows)
        span = "" if self.steps.count else f" in the first {LATER:,} windows"
        text = self.claim.format(span=span, error=f"{error:,}")
        return Accuracy(
            error=error,
            failure_probability=beta,
            claim=f"With probability {1 - beta:g}, {text}; each row has its own bound.",
            numbers={"mechanism": type(self.mechanism).__name__, "error_bound": error, "windows": windows},
        )

    @property
    @override
    def event_fields(self) -> EventFields:
        return EventFields(user=NUMBER)


class RangesParameters(PointParameters):
    """Count points in public ranges at the end of windows, while points are inserted and deleted.

    Input, windows and privacy: see `PointParameters`. Output: `RangeCount` rows. Args: see `Parameters` and
    `privstream ranges --help`.

    Accuracy:
        With probability 95%, all answers are within their `error_bound`.

    Source: Henzinger, Sricharan, Steiner (2023); docs/proofs/range_counting.md.
    """

    query_fields = ("low", "high")
    claim = "all counts{span} are within {error} of the truth"

    def __init__(self, *, queries: Sequence[tuple[int, int]], **options: Any) -> None:
        super().__init__(queries=queries, **options)
        ranges = tuple(map(tuple, self.queries.tolist()))
        self.mechanism = RangeCounter(**self.common, delta=self.delta, ranges=ranges)


class PredecessorParameters(PointParameters):
    """Find the nearest points below and above public points at the end of windows, while points come and perhaps go.

    Input, windows and privacy: see `PointParameters`. Output: `NearestPoints` rows. Args: see `Parameters` and
    `privstream predecessor --help`.

    Without `delete_values` all events insert points, and `IncrementalPredecessor` answers: it is more accurate over
    many windows, has delta = 0 and takes any universe. With them, `DynamicPredecessor` answers.

    Accuracy:
        With probability 95%, all answers are as `NearestPoints` says.

    Source: Henzinger, Sricharan, Steiner (2023); docs/proofs/predecessor.md.
    """

    query_fields = ("point",)
    claim = (
        "in all answers{span}, at least one point and no more than {error} lie between a query and the predecessor "
        "or successor in its answer; where an answer has none, no more points than this lie on that side"
    )

    def __init__(self, *, queries: Sequence[int], **options: Any) -> None:
        super().__init__(queries=queries, **options)
        common = self.common | {"queries": len(self.queries)}
        if self.actions.end:
            self.mechanism = DynamicPredecessor(**common, delta=self.delta)
        elif self.delta:
            raise ValueError(f"delta must be 0 without delete_values, got {self.delta}")
        else:
            self.mechanism = IncrementalPredecessor(**common)
