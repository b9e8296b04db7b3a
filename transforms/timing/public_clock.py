"""What starts the clocks of public streams: seeds, which go before `ClockedSteps`; and how batches reach a clock."""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, cast

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.mechanisms.privacy.units import in_words
from privstream.transforms.batches import Keyed
from privstream.transforms.timing.steps import Steps

MOST_WINDOWS = 1 << 20
"""Of a run whose input ends: a year of minutes has half as many."""

CLOCKS = 64
"""Streams share so many, whatever run it is: a job that is restored finds its keys again. It changes no row."""

SEED = b""
STEP = struct.Struct(">q")
LENGTHS = struct.Struct(">II")


class WithClock(beam.PTransform[Any, Any]):
    """Add to keyed records (see `stepped`) what starts the clock of each public stream; goes before `ClockedSteps`.

    Args:
        steps: with a first step; they may do without an end if the input is unbounded.
        streams: public names; keys are these names, encoded, or those of clocks.
        together: whether streams share clocks (see `on_clocks`).
        apart: whether to reshuffle, so that the stage cannot be fused with others that read the same input. It must not
            be done to what a stage with timers emits: not every runner groups what comes after the end of time.

    Raises:
        ValueError: `start` is missing, or `end` is although the input is bounded: its watermark jumps to the end of
            time, and every window up to then would be published; or there are too many windows until then.
    """

    def __init__(self, steps: Steps, streams: tuple[str, ...], *, together: bool = False, apart: bool = True) -> None:
        super().__init__()
        if steps.first is None:
            raise ValueError("start must be given: every window from start on is published")
        self.steps = steps
        self.names = tuple(by_clock(streams)) if together else streams
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
        seeds = once | "StartClocks" >> beam.ParDo(StartClocks(self.names)).with_output_types(Keyed)
        together = (records, seeds) | "WithSeeds" >> beam.Flatten()
        return cast(PCollection[Any], together | "ApartFromOthers" >> beam.Reshuffle() if self.apart else together)


class StartClocks(beam.DoFn):
    """One seed for each clock."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def process(self, _: bytes) -> Iterator[Keyed]:
        """Emit all seeds."""
        for name in self.names:
            yield name.encode(), SEED


def stepped(step: int, batch: bytes) -> bytes:
    """Return what `ClockedSteps` takes under a key: a batch of one step."""
    return STEP.pack(step) + batch


def clock_of(stream: str) -> str:
    """Return the name of the clock that a stream shares with others."""
    return str(hashlib.blake2b(stream.encode(), digest_size=8).digest()[0] % CLOCKS)


def by_clock(streams: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the clocks that streams share, each with its streams in increasing order."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for stream in sorted(streams):
        found[clock_of(stream)].append(stream)
    return {name: tuple(shared) for name, shared in found.items()}


def on_clocks(batches: Iterable[tuple[str, int, bytes]]) -> Iterator[Keyed]:
    """Send batches, each with its stream and step, on to clocks that streams share: one record a clock and step."""
    records: defaultdict[tuple[str, int], list[tuple[bytes, bytes]]] = defaultdict(list)
    for stream, step, batch in batches:
        records[clock_of(stream), step].append((stream.encode(), batch))
    for (name, step), parts in records.items():
        yield name.encode(), stepped(step, join_parts(parts))


def join_parts(parts: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode what belongs to streams, in one piece."""
    return b"".join(LENGTHS.pack(len(name), len(data)) + name + data for name, data in parts)


def parts_of(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Return the streams in what `join_parts` encoded, each with what belongs to it."""
    place = 0
    while place < len(data):
        name, size = LENGTHS.unpack_from(data, place)
        start = place + LENGTHS.size + name
        place = start + size
        yield data[start - name : start], data[start:place]
