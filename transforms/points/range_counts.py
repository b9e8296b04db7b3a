"""Range counts: how many points lie in public ranges, at the end of every window, while points come and go."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import apache_beam as beam
import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy, Coverage
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.points.dynamic_points import Updates
from privstream.mechanisms.points.range_counter import RangeCounter, RangeState
from privstream.transforms.events.coverage import POINTS, together
from privstream.transforms.points.point_transform import AnswerWindows, PointTransform
from privstream.transforms.rows import RangeCount
from privstream.transforms.timing.steps import Moment, WindowOptions
from typing_extensions import Unpack, override

FIELDS = ("low", "high")
NO_BOUND = -1


class RangeCounts(PointTransform):
    """Count points in public ranges at the end of windows, while points are inserted and deleted.

    Input: events, or a dictionary of `events` and `queries`. Events are pairs (point, action) timestamped with their
    event time, rows with `user` (the point), `item` (the action), `time` and perhaps `stream`, or Arrow record batches
    with these columns. Queries are `RangeQuery` rows. Bounded or unbounded, in any order. Output: `RangeCount` rows;
    with `with_dead_letters()`, a `Published` pair of rows and dead letters.

    The updates of a window are one step. A query is answered at the end of its window, plus `allowed_lateness`, after
    the updates of this window; each range once. `standing` ranges are answered at the end of every window. Updates and
    queries that come later are never used: they become dead letters. With duplicates ignored, of the updates of one
    point in one window the last one counts (of those at one moment, an insertion): it inserts or deletes, if it can.

    Privacy:
        Unit: one update (event); nothing is promised to a person with many events together. Neighbours:
        `neighbouring`. (epsilon, delta): `guarantee`. Public: all arguments but `noise`, and which queries are asked
        and when; they may depend on all earlier answers, and so may events.

    Accuracy:
        With probability 1 - beta, all answers of a stream are within their `error_bound`, for queries that do not
        depend on answers and are, beside the standing ones, no more than `queries`.

    Args:
        epsilon: limit on what all rows together show about one event, > 0. A smaller value protects better and needs
            more noise.
        universe: points are the whole numbers from 1 to this number, at most 2^60.
        start: start of the first window, in seconds since 1970 UTC; the others are counted from it.
        noise: `KeyedNoise`; the same key gives the same rows for the same events.
        end: no window ends after this moment, in seconds since 1970 UTC. Every window until then is published, also an
            empty one. Only input without an end may do without it.
        delta: probability with which the rows may show more than `epsilon` allows, in [0, 1). Choose it far below 1 /
            (number of events). It must be > 0 for input without an end.
        standing: ranges (low, high) that are counted in every window.
        queries: number of queries in the whole run, beside the standing ones, for which the accuracy is stated. Without
            it, all ranges in all windows.
        only_standing: no other ranges are asked: only what the standing ones consist of is counted, with less noise,
            most of all for few ranges of a large universe. Then there are no `queries`, and no `consistent` counts.
        duplicates: what the second insertion of a point means: with "ignored", nothing; with "counted", one point more.
            Counted duplicates need less noise.
        consistent: make all counts of a window agree with each other, and none of them negative. They then have no
            error bounds.
        insert_values: actions that insert a point. Without them, every action that does not delete a point inserts one.
        delete_values: actions that delete a point. Without them, no action deletes one.
        streams: public names of the streams, each of which has points of its own. They must be given if events have a
            stream.
        neighbouring: what makes two inputs neighbours: one event is added or removed ("add_remove"), or replaced by
            another one ("replace_one").
        beta: probability with which the accuracy statement may be wrong.
        **options: window, renew_every, allowed_lateness: see `WindowOptions`.

    Raises:
        ValueError, TypeError: an argument breaks its rule, when the transform is made or applied.

    Example:
        >>> counts = {"events": parked, "queries": asked} | RangeCounts(
        ...     epsilon=1.0, universe=100_000, window=3600, start=0, end=86400, delete_values=("leave",),
        ...     noise=KeyedNoise.from_file(path))  # doctest: +SKIP

    Source: Henzinger, Sricharan, Steiner (2023); docs/proofs/range_counting.md.
    """

    row_type = RangeCount
    query_fields = FIELDS

    def __init__(
        self,
        *,
        epsilon: float,
        universe: int,
        start: Moment,
        noise: NoiseSource,
        end: Moment | None = None,
        delta: float = 0.0,
        standing: Sequence[tuple[int, int]] = (),
        queries: int | None = None,
        only_standing: bool = False,
        duplicates: Literal["ignored", "counted"] = "ignored",
        consistent: bool = False,
        insert_values: tuple[str, ...] | None = None,
        delete_values: tuple[str, ...] | None = None,
        streams: tuple[str, ...] | None = None,
        neighbouring: Literal["add_remove", "replace_one"] = "add_remove",
        beta: float = 0.05,
        **options: Unpack[WindowOptions],
    ) -> None:
        checks.integer("universe", universe, minimum=1)
        super().__init__(
            universe=universe,
            start=start,
            end=end,
            **options,
            standing=standing,
            insert_values=insert_values,
            delete_values=delete_values,
            streams=streams,
            noise=noise,
        )
        self.beta = checks.probability("beta", beta)
        self.queries = None if queries is None else checks.integer("queries", queries, minimum=0)
        self.only_standing = checks.boolean("only_standing", only_standing)
        if only_standing and (not self.standing or self.queries or consistent):
            raise ValueError(
                "only_standing must not be given without standing ranges, with queries, or with consistent"
            )
        if only_standing:
            self.queries = 0
        self._mechanism = RangeCounter(
            epsilon=epsilon,
            delta=delta,
            universe=universe,
            horizon=self.windows,
            duplicates=duplicates,
            consistent=consistent,
            neighbouring=neighbouring,
            asked=tuple((low, high) for low, high in self.standing) if only_standing else (),
        )

    @property
    @override
    def mechanism(self) -> RangeCounter:
        return self._mechanism

    @property
    @override
    def only(self) -> frozenset[tuple[int, ...]] | None:
        return frozenset(self.standing) if self.only_standing else None

    @property
    @override
    def keeps_noise_from_data(self) -> bool:
        return self.mechanism.delta == 0

    @property
    @override
    def coverage(self) -> Coverage:
        if self.mechanism.consistent:
            return Coverage(holds="", scope="")
        return Coverage(holds=POINTS, scope=together(self.streams))

    @property
    @override
    def prediction(self) -> Accuracy:
        if self.mechanism.consistent:
            text = "No error is stated for consistent counts."
            return Accuracy(error=math.inf, failure_probability=self.beta, claim=text)
        windows, span = self.stated
        error = self.error(windows)
        number = f", at most {self.queries:,} of them with a time" if self.queries else ""
        return Accuracy(
            error=error,
            failure_probability=self.beta,
            claim=f"With probability {1 - self.beta:g}, all counts of a stream{span} are within {error:,} of the "
            f"truth, for queries that do not depend on answers{number}; each row has its own bound, by its range.",
            numbers={"error_bound": error, "windows": windows},
        )

    def error(self, window: int) -> int:
        """Return what no error bound at window 1, 2, .. exceeds, without `consistent`."""
        known = bool(self.standing) and self.queries == 0
        intervals = self.mechanism.widest(*zip(*self.standing, strict=True)) if known else None
        return error_bound(self.mechanism, window, self.beta, len(self.standing), self.queries, intervals)

    @override
    def answering(self, noise: NoiseSource) -> beam.DoFn:
        return CountRanges(
            steps=self.steps,
            streams=self.streams,
            mechanism=self.mechanism,
            standing=self.standing,
            queries=self.queries,
            beta=self.beta,
            noise=noise,
        )


def error_bound(
    mechanism: RangeCounter,
    window: int,
    beta: float,
    standing: int,
    queries: int | None,
    intervals: int | None = None,
) -> int:
    """Return how far answers at a window are off at most: those of standing queries, and of so many others."""
    shares = _shares(mechanism, beta, standing, queries)
    return max((mechanism.error_at(window, share, **many, intervals=intervals) for share, many in shares), default=0)


def error_bounds(
    mechanism: RangeCounter, window: int, ranges: np.ndarray, beta: float, standing: int, queries: int | None
) -> list[int]:
    """Return the same for each of these ranges, int64 (n, 2)."""
    bounds = np.zeros(len(ranges), np.int64)
    for share, many in _shares(mechanism, beta, standing, queries):
        bounds = np.maximum(bounds, mechanism.errors_at(window, ranges[:, 0], ranges[:, 1], share, **many))
    found: list[int] = bounds.tolist()
    return found


def _shares(
    mechanism: RangeCounter, beta: float, standing: int, queries: int | None
) -> list[tuple[float, dict[str, Any]]]:
    """Return which parts of beta are for how many answers, at each step or in the whole run."""
    if queries is None:
        return [(beta, {"answers": mechanism.universe * (mechanism.universe + 1) // 2, "every_step": True})]
    share = beta / 2 if queries and standing else beta
    counts = ((standing, True), (queries, False))
    return [(share, {"answers": number, "every_step": every_step}) for number, every_step in counts if number]


class CountRanges(AnswerWindows, state="count_ranges"):
    """Per stream: count, at the end of every window, in the ranges that are asked."""

    row_type = RangeCount
    fields = FIELDS
    counter = "counts_published"
    mechanism: RangeCounter

    def __init__(self, *, queries: int | None, beta: float, **common: Any) -> None:
        super().__init__(**common)
        self.queries = queries
        self.beta = beta

    @override
    def answer(
        self, state: RangeState, updates: Updates, queries: np.ndarray, noise: NoiseSource
    ) -> tuple[RangeState, Iterable[tuple[int, ...]]]:
        state = self.mechanism.update(state, updates)
        if not len(queries):
            return state, ()
        counts = self.mechanism.count(state, queries[:, 0], queries[:, 1], noise)
        bounds = [NO_BOUND] * len(queries)
        if not self.mechanism.consistent:
            stated = self.beta, len(self.standing), self.queries
            bounds = error_bounds(self.mechanism, state.step, queries, *stated)
        return state, zip(*queries.T.tolist(), counts.tolist(), bounds, strict=True)
