"""On-time markers: which batches came before their step was decided, by the watermark alone."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, cast

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.trigger import AccumulationMode, DefaultTrigger
from apache_beam.transforms.window import FixedWindows, GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp
from privstream.transforms.batches import Keyed, StepKey
from privstream.transforms.timing.steps import END_OF_TIME, MILLISECOND, Steps

DIGEST_BYTES = 16
NO_TIME = Timestamp(micros=END_OF_TIME // MILLISECOND * MILLISECOND)

KeyedBatch = tuple[bytes, tuple[bytes, bytes]]  # step key; digest and encoded batch, or joined markers and nothing


class WithOnTimeMarkers(beam.PTransform[Any, Any]):
    """Add to the encoded batches of each step key the digests of those that were in time.

    A step is decided when the watermark reaches its decision time. Whether a batch came before that must depend on the
    watermark alone, which is public. State cannot decide this: a key without events has the same state before and
    after, so that one person's event would decide whether those of others count. So the digest of each batch passes a
    GroupByKey in a window that ends at the decision time, where the runner drops what is late.

    A batch whose own timestamp is that late gets no marker either. Where timestamps say when data arrived, a run that
    goes back to a checkpoint, with a watermark that has fallen behind, decides the same way again.
    """

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps

    def expand(self, batches: PCollection[Any]) -> PCollection[Any]:
        """Pass the batches on, and their markers when the watermark reaches the decision time."""
        ends = self.steps.decision_time(0).micros % self.steps.period
        windows = FixedWindows(Duration(micros=self.steps.period), Timestamp(micros=ends))
        markers = (
            batches
            | "SendMarkers" >> beam.ParDo(SendMarkers(self.steps)).with_output_types(Keyed)
            | "UntilDecision"
            >> beam.WindowInto(windows, trigger=DefaultTrigger(), accumulation_mode=AccumulationMode.DISCARDING)
            | "DropLate" >> beam.GroupByKey()
            | "JoinMarkers" >> beam.Map(join_markers).with_output_types(KeyedBatch)
            | "InOneWindow" >> beam.WindowInto(GlobalWindows())
        )
        return cast(PCollection[Any], (batches, markers) | "WithBatches" >> beam.Flatten())


class SendMarkers(beam.DoFn):
    """Send the digest of a batch into the window that ends at the decision of its step."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def process(self, element: KeyedBatch, timestamp: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        """Send one marker; a timestamp at the end of time says nothing."""
        key, (digest, _) = element
        end = self.steps.decision_time(StepKey.from_bytes(key).step)
        if end <= timestamp < NO_TIME:
            return
        yield TimestampedValue((key, digest), end - Duration(micros=MILLISECOND))


def join_markers(element: tuple[bytes, Iterable[bytes]]) -> KeyedBatch:
    """Put the digests of one step key together."""
    key, digests = element
    return key, (b"".join(digests), b"")


def digest(data: bytes) -> bytes:
    """Return bytes that stand for an encoded batch."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def count_markers(joined: Iterable[bytes]) -> Counter[bytes]:
    """Return how often each digest stands in joined markers."""
    return Counter(part[i : i + DIGEST_BYTES] for part in joined for i in range(0, len(part), DIGEST_BYTES))
