"""Predecessor queries: the nearest points below and above public points, while points come and go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import apache_beam as beam
import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy, Coverage
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.points.dynamic_points import Updates
from privstream.mechanisms.points.dynamic_predecessor import DynamicPredecessor, PredecessorStep
from privstream.mechanisms.points.incremental_predecessor import IncrementalPredecessor
from privstream.transforms.events.coverage import POINTS, together
from privstream.transforms.points.point_transform import AnswerWindows, PointTransform
from privstream.transforms.rows import NearestPoints
from privstream.transforms.timing.steps import Moment, WindowOptions
from typing_extensions import Unpack, override

FIELDS = ("point",)
Mechanism = IncrementalPredecessor | DynamicPredecessor


class PredecessorQueries(PointTransform):
    """Find the nearest points below and above public points at the end of windows, while points come and perhaps go.

    Input: events, or a dictionary of `events` and `queries`. Events are pairs (point, action) timestamped with their
    event time, rows with `user` (the point), `item` (the action), `time` and perhaps `stream`, or Arrow record batches
    with these columns. Queries are `PredecessorQuery` rows. Bounded or unbounded, in any order. Output:
    `NearestPoints` rows; with `with_dead_letters()`, a `Published` pair of rows and dead letters.

    The updates of a window are one step. A query is answered at the end of its window, plus `allowed_lateness`, after
    the updates of this window; each point once. `standing` points are answered at the end of every window. Updates and
    queries that come later are never used: they become dead letters. With duplicates ignored, of the updates of one
    point in one window the last one counts (of those at one moment, an insertion): it inserts or deletes, if it can.

    Without `delete_values` all events insert points, and `IncrementalPredecessor` answers: it is more accurate over
    many windows, has delta = 0 and takes any universe. With them, `DynamicPredecessor` answers.

    Privacy:
        Unit: one update (event); nothing is promised to a person with many events together. Neighbours:
        `neighbouring`. (epsilon, delta): `guarantee`. Public: all arguments but `noise`, and which queries are asked
        and when; they may depend on all earlier answers, and so may events.

    Accuracy:
        With probability 1 - beta, all answers of a stream are as `NearestPoints` says, for queries that do not depend
        on answers and are, beside the standing ones, no more than `queries`.

    Args:
        epsilon: limit on what all rows together show about one event, > 0. A smaller value protects better and needs
            more noise.
        universe: points are the whole numbers from 1 to this number, at most 2^60.
        start: start of the first window, in seconds since 1970 UTC; the others are counted from it.
        noise: `KeyedNoise`; the same key gives the same rows for the same events.
        end: no window ends after this moment, in seconds since 1970 UTC. Every window until then is published, also an
            empty one. Only input without an end may do without it.
        delta: probability with which the rows may show more than `epsilon` allows, in [0, 1). Choose it far below 1 /
            (number of events). It must be 0 without `delete_values`, and > 0 for input without an end if there are
            `delete_values`.
        standing: points whose neighbours are asked for in every window.
        queries: number of queries in the whole run, beside the standing ones, for which the accuracy is stated. Without
            it, all points in all windows; likewise for standing ones in a run without an end.
        duplicates: what the second insertion of a point means: with "ignored", nothing; with "counted", one point more.
            Counted duplicates need less noise.
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
        start: Moment,
        noise: NoiseSource,
        end: Moment | None = None,
        delta: float = 0.0,
        standing: Sequence[int] = (),
        queries: int | None = None,
        duplicates: Literal["ignored", "counted"] = "ignored",
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
            standing=[(point,) for point in standing],
            insert_values=insert_values,
            delete_values=delete_values,
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
    @override
    def mechanism(self) -> Mechanism:
        return self._mechanism

    @property
    @override
    def keeps_noise_from_data(self) -> bool:
        return isinstance(self.mechanism, DynamicPredecessor) and self.mechanism.delta == 0

    @property
    @override
    def coverage(self) -> Coverage:
        return Coverage(holds=POINTS, scope=together(self.streams))

    @property
    @override
    def prediction(self) -> Accuracy:
        windows, span = self.stated
        error, beta = self.error(windows), self.mechanism.beta
        return Accuracy(
            error=error,
            failure_probability=beta,
            claim=f"With probability {1 - beta:g}, in all answers of a stream{span}, at least one point and no more "
            f"than {error:,} lie between a query and the predecessor or successor in its answer; where an answer has "
            "none, no more points than this lie on that side. This is for queries that do not depend on answers; each "
            "row has its own bound.",
            numbers={"mechanism": type(self.mechanism).__name__, "error_bound": error, "windows": windows},
        )

    def error(self, window: int, points: int | None = None) -> int:
        """Return what no error bound at window 1, 2, .. exceeds, with at most so many distinct points inserted."""
        if isinstance(self.mechanism, IncrementalPredecessor):
            return self.mechanism.error(window, points)
        return self.mechanism.error(window)

    @override
    def answering(self, noise: NoiseSource) -> beam.DoFn:
        return AnswerPredecessors(
            steps=self.steps, streams=self.streams, mechanism=self.mechanism, standing=self.standing, noise=noise
        )


class AnswerPredecessors(AnswerWindows, state="answer_predecessors"):
    """Per stream: answer, at the end of every window, which points are nearest to the points that are asked for."""

    row_type = NearestPoints
    fields = FIELDS
    counter = "neighbours_published"
    mechanism: Mechanism

    @override
    def answer(
        self, state: Any, updates: Updates, queries: np.ndarray, noise: NoiseSource
    ) -> tuple[Any, Iterable[tuple[int, ...]]]:
        points = queries[:, 0]
        state, near = self.mechanism.step(state, PredecessorStep(updates, points), noise)
        columns = (points, near.predecessors, near.successors, near.distances, near.errors)
        return state, zip(*(column.tolist() for column in columns), strict=True)
