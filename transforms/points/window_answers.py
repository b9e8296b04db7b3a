"""The last stage of transforms on points: updates and queries in, answers at the end of each window out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.points.dynamic_points import Updates
from privstream.transforms.points.updates import QUERIES, UPDATES, PointBatch, decode_queries, late_records
from privstream.transforms.timing.clocked import SingleSteps
from privstream.transforms.timing.steps import Steps


class AnswerWindows(SingleSteps):
    """Per stream: run a mechanism through every window, and answer the queries of each and the standing ones.

    A subclass says of what type its rows are, how the numbers of a query are called, and what its counter counts.
    """

    row_type: type
    fields: tuple[str, ...]
    counter: str

    def __init__(
        self,
        *,
        steps: Steps,
        streams: tuple[str, ...],
        mechanism: Any,
        standing: tuple[tuple[int, ...], ...],
        noise: NoiseSource,
    ) -> None:
        super().__init__(steps=steps, timer_offset=1, streams=streams)
        self.mechanism = mechanism
        self.standing = standing
        self.noise = noise
        self.published = Metrics.counter("privstream", self.counter)
        self.late_queries = Metrics.counter("privstream", "queries_late")

    @abstractmethod
    def answer(
        self, state: Any, updates: Updates, queries: np.ndarray, noise: NoiseSource
    ) -> tuple[Any, Iterable[tuple[int, ...]]]:
        """Make the updates, then answer distinct queries in order, int64 (n, fields): the numbers of a row for each."""

    def advance(self, key: bytes, step: int, batches: list[bytes], state: Any) -> tuple[Any, Iterable[Any]]:
        """Make the updates of a window, then answer its queries."""
        updates = PointBatch.join([batch for batch in batches if batch[:1] == UPDATES]).updates()
        asked = decode_queries([batch for batch in batches if batch[:1] == QUERIES], len(self.fields))
        standing = np.array(self.standing, np.int64).reshape(-1, len(self.fields))
        queries = np.unique(np.concatenate([asked, standing]), axis=0)
        stream = key.decode()
        state, answers = self.answer(
            state, updates, queries, self.steps.renewed(self.noise, step).derive("stream", stream)
        )
        start, end = self.steps.bounds(step)
        self.published.inc(len(queries))
        return state, [self.row_type(stream, start, end, *numbers) for numbers in answers]

    def set_aside(self, key: bytes, step: int, batch: bytes) -> Iterator[Any]:
        """Count and describe what is late."""
        if batch[:1] == QUERIES:
            self.late_queries.inc()
        else:
            self.late.inc(len(PointBatch.join([batch]).points))
        yield from late_records(self.steps, key.decode(), step, batch, self.fields)
