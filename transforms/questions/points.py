"""What questions about points are asked with, what they promise, and how accurate they are; no Beam."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy
from privstream.mechanisms.continual.predecessor import DynamicPredecessor, IncrementalPredecessor
from privstream.mechanisms.continual.ranges import RangeCounter
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.transforms.parameters import Actions, Parameters, within
from privstream.transforms.reading.fields import NUMBER, EventFields
from privstream.transforms.timing.steps import Moment, Steps, WindowOptions
from typing_extensions import Unpack, override

MOST_QUERIES = 100_000
LATER = 1000
"""The window for which the error is stated when there is no end."""


def point_queries(given: Any, fields: tuple[str, ...], universe: int) -> tuple[tuple[int, ...], ...]:
    """Return queries, each as many points as it has fields, distinct and in order."""
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
    return tuple(sorted(found))


class PointParameters(Parameters):
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
        epsilon: float,
        universe: int,
        start: Moment,
        noise: NoiseSource,
        queries: Sequence[Any],
        end: Moment | None = None,
        delta: float = 0.0,
        insert_values: tuple[str, ...] | None = None,
        delete_values: tuple[str, ...] | None = None,
        **options: Unpack[WindowOptions],
    ) -> None:
        super().__init__(noise)
        self.steps = Steps.of(start=start, end=end, **options)
        self.actions = Actions.of(insert_values=insert_values, delete_values=delete_values)
        self.universe = checks.integer("universe", universe, minimum=1)
        self.delta = checks.probability("delta", delta, zero=True)
        self.common: dict[str, Any] = {"epsilon": epsilon, "universe": universe, "horizon": self.steps.count}
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
        pairs = tuple((low, high) for low, high in self.queries)
        self.mechanism = RangeCounter(**self.common, delta=self.delta, ranges=pairs)


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
