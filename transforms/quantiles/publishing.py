"""The last stage of quantiles of numbers: how many values each bin has in, quantiles out."""

from __future__ import annotations

from collections.abc import Iterator

from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.keyed_counts.key_table import KeyedState
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.numeric_quantiles import BinnedStep, NumericQuantiles, QuantileRows
from privstream.transforms.histograms.events import Categories
from privstream.transforms.histograms.publishing import CountedSteps
from privstream.transforms.rows import QuantileEstimate
from privstream.transforms.timing.clocked import Outputs
from privstream.transforms.timing.steps import Steps


class PublishQuantiles(CountedSteps, state="publish_quantiles"):
    """Per stream, on a public clock: publish the quantiles of every window."""

    def __init__(
        self,
        *,
        steps: Steps,
        timer_offset: int,
        categories: Categories,
        mechanism: NumericQuantiles,
        noise: NoiseSource,
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset, categories=categories)
        self.mechanism = mechanism
        self.noise = noise
        self.published = Metrics.counter("privstream", "quantiles_published")

    def walk(
        self, key: bytes, first: int, last: int, batches: dict[int, list[bytes]], state: KeyedState
    ) -> tuple[KeyedState, Outputs]:
        """Publish all windows from `first` to `last`."""
        stream = key.decode()
        noise = self.steps.renewed(self.noise, first).derive("stream", stream)
        outputs: list[tuple[int, QuantileEstimate]] = []
        for step, counts in enumerate(self.matrix(first, last, batches), first):
            given = BinnedStep(step=self.steps.number(step), counts=counts)
            state, found = self.mechanism.step(state, given, noise)
            outputs += ((step, row) for row in self._rows(stream, step, found))
        self.published.inc(len(outputs))
        return state, outputs

    def _rows(self, stream: str, step: int, found: QuantileRows) -> Iterator[QuantileEstimate]:
        """Return the rows of one window."""
        start, end = self.steps.bounds(step)
        columns = (found.quantiles, found.estimates, found.lower, found.upper)
        for numbers in zip(*(column.tolist() for column in columns), strict=True):
            yield QuantileEstimate(stream, start, end, *numbers)
