"""The last stage of a set's size: changes in, and at the end of every window an estimate out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.cardinality.algorithms import CardinalityState
from privstream.mechanisms.cardinality.set_cardinality import SetCardinality
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.cardinality.members import CHANGE
from privstream.transforms.events.late import late_letter
from privstream.transforms.rows import CardinalityEstimate
from privstream.transforms.timing.clocked import ClockedSteps, Outputs
from privstream.transforms.timing.steps import Steps

NO_BOUND = -1


class PublishCardinality(ClockedSteps, state="publish_cardinality"):
    """Per stream: run the mechanism through every window, and publish its estimates."""

    def __init__(
        self,
        *,
        steps: Steps,
        timer_offset: int,
        streams: tuple[str, ...],
        mechanism: SetCardinality,
        noise: NoiseSource,
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset, streams=streams)
        self.mechanism = mechanism
        self.noise = noise
        self.published = Metrics.counter("privstream", "estimates_published")
        self.exhausted = Metrics.counter("privstream", "estimates_without_bound")

    def set_aside(self, key: bytes, step: int, batch: bytes) -> Iterator[Any]:
        """Count and describe changes that come too late, which no runner that keeps its watermark lets happen."""
        self.late.inc()
        yield late_letter(self.steps, step, "late change", "")

    def walk(
        self, key: bytes, first: int, last: int, batches: dict[int, list[bytes]], state: CardinalityState
    ) -> tuple[CardinalityState, Outputs]:
        """Estimate in all windows from `first` to `last`."""
        stream = key.decode()
        changes = np.zeros(last - first + 1, np.int64)
        for step, found in batches.items():
            if first <= step <= last:
                changes[step - first] = sum(CHANGE.unpack(batch)[0] for batch in found)
        noise = self.steps.renewed(self.noise, first).derive("stream", stream)
        state, published = self.mechanism.run(state, changes, noise)
        outputs: list[tuple[int, CardinalityEstimate]] = []
        columns = (column.tolist() for column in published)
        for step, (estimate, bound, exhausted) in enumerate(zip(*columns, strict=True), start=first):
            start, end = self.steps.bounds(step)
            row = CardinalityEstimate(stream, start, end, estimate, NO_BOUND if exhausted else bound)
            outputs.append((step, row))
        self.published.inc(len(outputs))
        self.exhausted.inc(int(published.exhausted.sum()))
        return state, outputs
