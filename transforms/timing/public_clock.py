"""What starts the clock of each public stream: a seed, which goes before `ClockedSteps`."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, cast

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.mechanisms.durations import in_words
from privstream.transforms.batches import Keyed
from privstream.transforms.timing.steps import Steps

MOST_WINDOWS = 1 << 20
"""Of a run whose input ends: a year of minutes has half as many."""

SEED = b""
STEP = struct.Struct(">q")


class WithClock(beam.PTransform[Any, Any]):
    """Add to keyed records (see `stepped`) what starts the clock of each public stream; goes before `ClockedSteps`.

    Args:
        steps: with a first step; they may do without an end if the input is unbounded.
        streams: public names; keys are these names, encoded.
        apart: whether to reshuffle, so that the stage cannot be fused with others that read the same input. It must not
            be done to what a stage with timers emits: not every runner groups what comes after the end of time.

    Raises:
        ValueError: `start` is missing, or `end` is although the input is bounded: its watermark jumps to the end of
            time, and every window up to then would be published; or there are too many windows until then.
    """

    def __init__(self, steps: Steps, streams: tuple[str, ...], *, apart: bool = True) -> None:
        super().__init__()
        if steps.first is None:
            raise ValueError("start must be given: every window from start on is published")
        self.steps = steps
        self.streams = streams
        self.apart = apart

    def expand(self, records: PCollection[Any]) -> PCollection[Any]:
        """Start every clock once, by an element that holds the watermark back until it has been handled."""
        if records.is_bounded and self.steps.end is None:
            raise ValueError("end must be given when the input is bounded: every window until end is published")
        windows = (self.steps.end or 0) - (self.steps.first or 0)
        if records.is_bounded and windows > MOST_WINDOWS:
            raise ValueError(
                f"end must be at most {MOST_WINDOWS:,} windows after start, got {windows:,} windows of "
                f"{in_words(self.steps.size)}, all of which are handled, with events or without: check start, end and "
                "window, or take longer windows"
            )
        once = records.pipeline | "Once" >> beam.Impulse()
        seeds = once | "StartClocks" >> beam.ParDo(StartClocks(self.streams)).with_output_types(Keyed)
        together = (records, seeds) | "WithSeeds" >> beam.Flatten()
        return cast(PCollection[Any], together | "ApartFromOthers" >> beam.Reshuffle() if self.apart else together)


class StartClocks(beam.DoFn):
    """One seed for each stream."""

    def __init__(self, streams: tuple[str, ...]) -> None:
        self.streams = streams

    def process(self, _: bytes) -> Iterator[Keyed]:
        """Emit all seeds."""
        for stream in self.streams:
            yield stream.encode(), SEED


def stepped(step: int, batch: bytes) -> bytes:
    """Return what `ClockedSteps` takes under a stream's key: a batch of one step."""
    return STEP.pack(step) + batch
