"""What questions about points are asked with, what they promise, and how accurate they are; no Beam."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Required

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import TOGETHER, Accuracy, Coverage
from privstream.mechanisms.continual.incremental_predecessor import IncrementalPredecessor
from privstream.mechanisms.continual.predecessor import DynamicPredecessor
from privstream.mechanisms.continual.ranges import RangeCounter
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.transforms.parameters import Parameters, check_actions
from privstream.transforms.reading.fields import NUMBER, EventFields
from privstream.transforms.timing.steps import Moment, Steps, WindowOptions
from typing_extensions import Unpack, override

RANGE_FIELDS = ("low", "high")
POINT_FIELDS = ("point",)
Mechanism = IncrementalPredecessor | DynamicPredecessor

MOST_STANDING = 100_000
BETA = 0.05
"""Probability with which error bounds may be wrong."""
LATER = 1000
"""The window for which the error is stated when there is no end."""


@dataclass(frozen=True)
class Actions:
    """What happens to a point: which texts insert it, and which delete it.

    Attributes:
        insert: texts that insert; None for all others than those that delete.
        delete: texts that delete; without any, all events insert.
    """

    insert: tuple[str, ...] | None
    delete: tuple[str, ...]

    def __post_init__(self) -> None:
        check_actions(insert_values=self.insert, delete_values=self.delete or None)


class PointOptions(WindowOptions, total=False):
    """What transforms on sets of points take beside their own arguments; see `PointParameters`.

    What they mean: `privstream help ranges`.
    """

    epsilon: Required[float]
    universe: Required[int]
    start: Required[Moment]
    noise: Required[NoiseSource]
    end: Moment | None
    insert_values: tuple[str, ...] | None
    delete_values: tuple[str, ...] | None


class PointParameters(Parameters):
    """What transforms on sets of points have in common; its arguments are `PointOptions`.

    Input: pairs (point, action) timestamped with their event time, rows with `user` (the point), `item` (the action),
    `time`, or Arrow record batches with these columns. Bounded or unbounded, in any order. The updates of a window are
    one step, at whose end, plus `allowed_lateness`, all `standing` queries are answered. Of the updates of one point in
    one window the last one counts (of those at one moment, an insertion): it inserts or deletes, if it can.

    Privacy:
        Unit: one update (event); nothing is promised to a person with many events together. Neighbours: one event added
        or removed. (epsilon, delta): `guarantee`. Public: all arguments but `noise`.
    """

    mechanism: Any
    query_fields: tuple[str, ...]
    standing: tuple[tuple[int, ...], ...]

    def __init__(
        self,
        *,
        epsilon: float,
        universe: int,
        start: Moment,
        noise: NoiseSource,
        end: Moment | None = None,
        insert_values: tuple[str, ...] | None = None,
        delete_values: tuple[str, ...] | None = None,
        **options: Unpack[WindowOptions],
    ) -> None:
        super().__init__(noise)
        self.steps = Steps.of(start=start, end=end, **options)
        if self.steps.first is None:
            raise ValueError("start must be given: windows are counted from it")
        self.actions = Actions(insert_values, () if delete_values is None else delete_values)
        self.universe = checks.integer("universe", universe, minimum=1)
        self.noise = noise
        self.common: dict[str, Any] = {
            "epsilon": epsilon,
            "universe": universe,
            "horizon": self.windows,
        }

    @property
    def keeps_noise_from_data(self) -> bool:
        """Whether noise does not depend on the data, so that a job must not be restored to see other data."""
        return not isinstance(self.mechanism, IncrementalPredecessor) and self.mechanism.delta == 0

    @property
    def windows(self) -> int | None:
        """Windows of the whole run, or None for no end."""
        return self.steps.count

    @property
    def stated(self) -> tuple[int, str]:
        """For how many windows accuracy is stated, and how a sentence says so."""
        return (LATER, f" in the first {LATER:,} windows") if self.windows is None else (self.windows, "")

    @property
    @override
    def promise(self) -> PrivacyGuarantee:
        found: PrivacyGuarantee = self.mechanism.guarantee
        same = "Of the updates of one point in one window the last one counts."
        return replace(
            found,
            limits=(f"An event updates one point of 1 .. {self.universe}, in one window. {same}",),
            public=("all arguments but the noise", "the number of windows"),
        )

    @property
    @override
    def coverage(self) -> Coverage:
        return Coverage(holds="the numbers of points after all events that are usable and in time", scope=TOGETHER)

    @property
    @override
    def event_fields(self) -> EventFields:
        return EventFields(user=NUMBER)

    def _checked(self, standing: Any) -> tuple[tuple[int, ...], ...]:
        """Return the standing queries, distinct and in order."""
        fields = self.query_fields
        rule = f"standing must be a list of {'points' if len(fields) == 1 else 'pairs (low, high)'}"
        if not isinstance(standing, Collection):
            raise TypeError(f"{rule}, got {type(standing).__name__}")
        if len(fields) == 1:
            standing = [(point,) for point in standing]
        elif not all(isinstance(query, tuple | list | np.ndarray) and len(query) == len(fields) for query in standing):
            raise TypeError(rule)
        found: set[tuple[int, ...]] = set()
        for query in standing:
            for name, number in zip(fields, query, strict=True):
                if isinstance(number, bool | np.timedelta64) or not isinstance(number, int | np.integer):
                    raise TypeError(f"standing queries: {name} must be an integer, got {type(number).__name__}")
                if not 1 <= number <= self.universe:
                    raise ValueError(f"standing queries: {name} must be in 1 .. {self.universe}")
            if list(query) != sorted(query):
                raise ValueError(f"standing queries: {fields[-1]} must be >= {fields[0]}")
            found.add(tuple(map(int, query)))
        if not found:
            raise ValueError("standing queries must be given")
        if len(found) > MOST_STANDING:
            raise ValueError(f"standing queries must be at most {MOST_STANDING:,}, got {len(found):,}")
        return tuple(sorted(found))


class RangesParameters(PointParameters):
    """Count points in public ranges at the end of windows, while points are inserted and deleted.

    Input, windows and privacy: see `PointParameters`. Output: `RangeCount` rows. Args: see `Parameters` and
    `privstream help ranges`.

    Accuracy:
        With probability 95%, all answers are within their `error_bound`.

    Example:
        >>> counts = parked | RangeCounts(
        ...     epsilon=1.0, universe=100_000, standing=[(1, 500)], window=3600, start=0, end=86400,
        ...     delete_values=("leave",), noise=KeyedNoise.from_file(path))  # doctest: +SKIP

    Source: Henzinger, Sricharan, Steiner (2023); docs/proofs/range_counting.md.
    """

    query_fields = RANGE_FIELDS

    def __init__(
        self,
        *,
        standing: Sequence[tuple[int, int]],
        delta: float = 0.0,
        **options: Unpack[PointOptions],
    ) -> None:
        super().__init__(**options)
        self.standing = self._checked(standing)
        asked = tuple((low, high) for low, high in self.standing)
        self.mechanism = RangeCounter(**self.common, delta=delta, asked=asked)

    @property
    @override
    def prediction(self) -> Accuracy:
        windows, span = self.stated
        error = self.error(windows)
        return Accuracy(
            error=error,
            failure_probability=BETA,
            claim=f"With probability {1 - BETA:g}, all counts{span} are within {error:,} of the truth; "
            "each row has its own bound, by its range.",
            numbers={"error_bound": error, "windows": windows},
        )

    def error(self, window: int) -> int:
        """Return what no error bound at window 1, 2, .. exceeds."""
        found: int = self.mechanism.error_at(window, BETA, answers=len(self.standing), every_step=True)
        return found


def range_errors(mechanism: RangeCounter, window: int, ranges: np.ndarray) -> np.ndarray:
    """Return how far the counts of all ranges, int64 (n, 2), are off at most at window 1, 2, .., int64 (n,)."""
    low, high = ranges.T
    return mechanism.errors_at(window, low, high, BETA, answers=len(ranges), every_step=True)


class PredecessorParameters(PointParameters):
    """Find the nearest points below and above public points at the end of windows, while points come and perhaps go.

    Input, windows and privacy: see `PointParameters`. Output: `NearestPoints` rows. Args: see `Parameters` and
    `privstream help predecessor`.

    Without `delete_values` all events insert points, and `IncrementalPredecessor` answers: it is more accurate over
    many windows, has delta = 0 and takes any universe. With them, `DynamicPredecessor` answers.

    Accuracy:
        With probability 95%, all answers are as `NearestPoints` says.

    Example:
        >>> nearest = trades | PredecessorQueries(
        ...     epsilon=1.0, universe=1 << 32, standing=[1000], window=60, start=0, end=86400,
        ...     noise=KeyedNoise.from_file(path))  # doctest: +SKIP

    Source: Henzinger, Sricharan, Steiner (2023); docs/proofs/predecessor.md.
    """

    query_fields = POINT_FIELDS

    def __init__(
        self,
        *,
        standing: Sequence[int],
        delta: float = 0.0,
        **options: Unpack[PointOptions],
    ) -> None:
        super().__init__(**options)
        self.standing = self._checked(standing)
        answers = None if self.windows is None else self.windows * len(self.standing)
        common = self.common | {"queries": answers}
        if self.actions.delete:
            self.mechanism = DynamicPredecessor(**common, delta=delta)
        else:
            if checks.probability("delta", delta, zero=True):
                raise ValueError(f"delta must be 0 without delete_values, got {delta}")
            self.mechanism = IncrementalPredecessor(**common)

    @property
    @override
    def prediction(self) -> Accuracy:
        windows, span = self.stated
        error, beta = self.error(windows), self.mechanism.beta
        return Accuracy(
            error=error,
            failure_probability=beta,
            claim=f"With probability {1 - beta:g}, in all answers{span}, at least one point and no more "
            f"than {error:,} lie between a query and the predecessor or successor in its answer; where an answer has "
            "none, no more points than this lie on that side; each row has its own bound.",
            numbers={"mechanism": type(self.mechanism).__name__, "error_bound": error, "windows": windows},
        )

    def error(self, window: int, points: int | None = None) -> int:
        """Return what no error bound at window 1, 2, .. exceeds, with at most so many distinct points inserted."""
        more = (points,) if isinstance(self.mechanism, IncrementalPredecessor) else ()
        return int(self.mechanism.error(window, *more))
