"""Predecessor queries: what is near to public points, at the end of every window, while points come and go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.points.dynamic_points import Updates
from privstream.mechanisms.points.dynamic_predecessor import DynamicPredecessor
from privstream.mechanisms.points.incremental_predecessor import IncrementalPredecessor
from privstream.mechanisms.points.predecessor_answers import PredecessorStep
from privstream.transforms.points.point_transform import PointTransform
from privstream.transforms.points.updates import Actions
from privstream.transforms.points.window_answers import AnswerWindows
from privstream.transforms.rows import NearestPoints

FIELDS = ("point",)
Mechanism = IncrementalPredecessor | DynamicPredecessor


class PredecessorQueries(PointTransform):
    """Find what is near to public points at the end of windows, while points are inserted and, if asked for, deleted.

    Input: events, or a dictionary of `events` and `queries`. Events are pairs (point, action) timestamped with their
    event time, rows with `user` (the point), `item` (the action), `time` and perhaps `stream`, or Arrow record batches
    with these columns. Queries are `PredecessorQuery` rows. Bounded or unbounded, in any order. Output:
    `NearestPoints` rows; with `with_dead_letters()`, a `Published` pair of rows and dead letters.

    The updates of a window are one step. A query is answered at the end of its window, plus `allowed_lateness`, after
    the updates of this window; each point once. `standing` points are answered at the end of every window. What comes
    later, updates or queries, is never used: both become dead letters. With duplicates ignored, of the updates of one
    point in one window the last one counts (of those at one moment, an insertion): it inserts or deletes, if it can.

    Without `delete_values` all events insert, and `IncrementalPredecessor` answers: more accurate over many windows,
    pure, and of any universe. With them, `DynamicPredecessor` does.

    Privacy:
        Unit: one update (event); nothing is promised to a person with many events together. Neighbours:
        `neighbouring`. (epsilon, delta): `guarantee`. Public: all arguments but `noise`, and which queries are asked
        and when; they may depend on all earlier answers, and so may events.

    Accuracy:
        With probability 1 - beta, all answers of a stream are as `NearestPoints` says, for queries that do not depend
        on answers and are, beside the standing ones, no more than `queries`.

    Args:
        epsilon: finite and > 0.
        universe: points are 1 .. universe, at most 2^60.
        window: length of a window in seconds.
        start: seconds since 1970 UTC of the first window's start.
        noise: `KeyedNoise`; the same key gives the same rows for the same events.
        end: seconds since 1970 UTC after which no window ends, or None for no end (unbounded input only).
        delta: in [0, 1); must be > 0 for unbounded input with `delete_values`, and 0 without them.
        allowed_lateness: seconds that a window stays open after its end.
        standing: points that are asked for in every window.
        queries: number of queries in the whole run, beside the standing ones, that the accuracy is stated for; None
            for all points in all windows, as it is for standing ones without an end.
        duplicates: "ignored" for a set of points, or "counted"; see the mechanisms.
        insert_values, delete_values: actions that insert and delete. Without the first all others insert; without
            the second nothing deletes.
        streams: public names of the streams, each with points of its own; None if the events carry no stream.
        neighbouring: "add_remove" or "replace_one".
        beta: failure probability of the accuracy.

    Raises:
        ValueError, TypeError: an argument breaks its rule, when the transform is made or applied.

    Example:
        >>> nearest = {"events": trades, "queries": asked} | PredecessorQueries(
        ...     epsilon=1.0, universe=1 << 32, window=60, start=0, end=86400, duplicates="counted",
        ...     noise=KeyedNoise.from_file(path))  # doctest: +SKIP

    Source: Henzinger, Sricharan, Steiner (2023); docs/proofs/predecessor.md.
    """

    row_type = NearestPoints
    query_fields = FIELDS

    def __init__(
        self,
        *,
        epsilon: float,
        universe: int,
        window: float,
        start: float,
        noise: NoiseSource,
        end: float | None = None,
        delta: float = 0.0,
        allowed_lateness: float = 0,
        standing: Sequence[int] = (),
        queries: int | None = None,
        duplicates: str = "ignored",
        insert_values: tuple[str, ...] | None = None,
        delete_values: tuple[str, ...] = (),
        streams: tuple[str, ...] | None = None,
        neighbouring: str = "add_remove",
        beta: float = 0.05,
    ) -> None:
        checks.integer("universe", universe, minimum=1)
        super().__init__(
            universe=universe,
            window=window,
            start=start,
            end=end,
            allowed_lateness=allowed_lateness,
            standing=[(point,) for point in standing],
            actions=Actions(insert_values, delete_values),
            streams=streams,
            noise=noise,
        )
        answers = None if queries is None else checks.integer("queries", queries, minimum=0)
        if answers is not None and self.standing:
            answers = None if self.windows is None else answers + self.windows * len(self.standing)
        common: dict[str, Any] = {
            "epsilon": epsilon,
            "universe": universe,
            "horizon": self.windows,
            "duplicates": duplicates,
            "queries": None if answers is None else max(1, answers),
            "neighbouring": neighbouring,
            "beta": beta,
        }
        self._mechanism: Mechanism
        if delete_values:
            self._mechanism = DynamicPredecessor(**common, delta=delta)
        else:
            if checks.probability("delta", delta, zero=True):
                raise ValueError(f"delta must be 0 without delete_values, got {delta}")
            self._mechanism = IncrementalPredecessor(**common)

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of one stream."""
        return self._mechanism

    @property
    def keeps_noise_from_data(self) -> bool:
        """Whether the noise of numbers does not depend on the data; tests against hidden thresholds need not."""
        return isinstance(self.mechanism, DynamicPredecessor) and self.mechanism.delta == 0

    def error(self, window: int, points: int | None = None) -> int:
        """Return what no error bound at window 1, 2, .. exceeds, with at most so many distinct points inserted."""
        if isinstance(self.mechanism, IncrementalPredecessor):
            return self.mechanism.error(window, points)
        return self.mechanism.error(window)

    def answering(self, noise: NoiseSource) -> beam.DoFn:
        """Return the last stage."""
        return AnswerPredecessors(steps=self.steps, mechanism=self.mechanism, standing=self.standing, noise=noise)


class AnswerPredecessors(AnswerWindows, state="answer_predecessors"):
    """Per stream: tell, at the end of every window, what is near to the points that are asked."""

    row_type = NearestPoints
    fields = FIELDS
    counter = "neighbours_published"
    mechanism: Mechanism

    def answer(
        self, state: Any, updates: Updates, queries: np.ndarray, noise: NoiseSource
    ) -> tuple[Any, Iterable[tuple[int, ...]]]:
        """Find what is near to points."""
        points = queries[:, 0]
        state, near = self.mechanism.step(state, PredecessorStep(updates, points), noise)
        columns = (points, near.predecessors, near.successors, near.distances, near.errors)
        return state, zip(*(column.tolist() for column in columns), strict=True)
