"""Threshold flags: which public categories have been counted more often than their thresholds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from privstream.mechanisms.histograms.partition import PartitionState
from privstream.transforms.histograms.categories import CountedSteps
from privstream.transforms.histograms.histogram_transform import CategoryTransform
from privstream.transforms.histograms.parameters import FlagsParameters
from privstream.transforms.rows import CategoryFlag
from typing_extensions import override


class RaiseFlags(CountedSteps, state="raise_flags"):
    """Run the mechanism through every window, and publish all flags."""

    counter = "flags_published"

    @override
    def step(
        self, key: bytes, step: int, batches: list[bytes], state: PartitionState
    ) -> tuple[PartitionState, Iterator[CategoryFlag]]:
        state, raised = self.mechanism.step(state, self.counts(batches), self.noise_of(step))
        return state, self.rows(step, raised, self.mechanism.error_bound(state.step, state.interval))

    def rows(self, step: int, raised: np.ndarray, bound: int) -> Iterator[CategoryFlag]:
        """Publish one window's flags."""
        start, end = self.steps.bounds(step)
        self.published.inc(len(raised))
        for name, threshold, up in zip(self._names, self.mechanism.thresholds, raised.tolist(), strict=True):
            yield CategoryFlag(start, end, name, up, threshold, bound)


class ThresholdFlags(FlagsParameters, CategoryTransform):  # noqa: D101 - its docstring is that of its parameters
    row_type = CategoryFlag
    last_stage = RaiseFlags
