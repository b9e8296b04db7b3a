"""A source without an end that is asked again and again, and holds the watermark back while it waits.

It is a keyed step behind an impulse with a timer that sets itself, not a splittable DoFn: Flink's runner keeps a new
piece of state for every time that a splittable DoFn pauses, and never frees it.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from privstream.transforms.timing.steps import END_OF_TIME, MILLISECOND

MICROS = 1_000_000
BEGINNING = 0
"""The watermark of a source that has not been asked yet: 1970. No earlier event is accepted."""


class Answer(NamedTuple):
    """What a source says when it is asked.

    Attributes:
        found: elements, each with the microseconds at which it arrived; not before the watermark that was.
        position: where to go on; it is kept with the pipeline's state, so that a restored run goes on from there.
        watermark: microseconds: whatever comes later has arrived then or after. None when nothing comes any more.
    """

    found: Iterable[tuple[Any, int]]
    position: bytes
    watermark: int | None


class PolledSource(beam.DoFn):
    """Asks for new elements every few seconds; its input is one pair of bytes for each part of the source.

    Output and position of one question belong together, whatever fails: both are kept, or neither. While the timer is
    set, its time holds the watermark.

    Args:
        seconds: pause between two questions.
    """

    POSITION = ReadModifyWriteStateSpec("polled_source_position", BytesCoder())
    """What `poll` has left."""
    AGAIN = TimerSpec("polled_source_again", TimeDomain.WATERMARK)
    """Set at the watermark of the source; fires at once, since nothing else holds back the watermark of its input."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._asked: dict[bytes, float] = {}  # cache of pauses: when each part was asked by this instance

    @abstractmethod
    def poll(self, part: bytes, position: bytes | None, watermark: int) -> Answer:
        """Ask once; the position is None at first."""

    def process(self, element: tuple[bytes, bytes], again: Any = beam.DoFn.TimerParam(AGAIN)) -> None:
        """Start with a part."""
        again.set(Timestamp(micros=BEGINNING))

    @on_timer(AGAIN)
    def ask(
        self,
        part: Any = beam.DoFn.KeyParam,
        watermark: Any = beam.DoFn.TimestampParam,
        position: Any = beam.DoFn.StateParam(POSITION),
        again: Any = beam.DoFn.TimerParam(AGAIN),
    ) -> Iterator[TimestampedValue[Any]]:
        """Ask, pass on what was found, and come back."""
        self._pause(part)
        kept = position.read()
        answer = self.poll(part, kept, watermark.micros)
        for element, arrived in answer.found:
            yield TimestampedValue(element, Timestamp(micros=max(arrived, watermark.micros)))
        if answer.watermark is None:
            position.clear()
            return
        if answer.position != kept:
            position.write(answer.position)
        reached = min(max(answer.watermark, watermark.micros), END_OF_TIME)
        again.set(Timestamp(micros=reached // MILLISECOND * MILLISECOND))

    def _pause(self, part: bytes) -> None:
        """Wait until the time has come to ask again."""
        now = time.monotonic()
        wait = self._asked.get(part, now - self.seconds) + self.seconds - now
        if wait > 0:
            time.sleep(wait)
        self._asked[part] = time.monotonic()


def poll_parts(pbegin: Any, parts: list[bytes], source: PolledSource, found: Any) -> Any:
    """Return what a source finds, elements of type `found`; its parts are asked side by side."""
    polled = (
        pbegin
        | "Once" >> beam.Impulse()
        | "Parts" >> beam.FlatMap(_name_parts, parts).with_output_types(tuple[bytes, bytes])
        | "Spread parts" >> beam.Reshuffle()
        | "Ask" >> beam.ParDo(source).with_output_types(found)
    )
    polled.is_bounded = False  # only of a splittable DoFn does Beam see that by itself
    return polled


def _name_parts(impulse: bytes, parts: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Name the parts of a source."""
    for part in parts:
        yield part, b""
