"""`GroupByKey` closes a window: the runner drops what is late, by the watermark alone. Then public clocks go on.

Here is what starts clocks, the timers that hold the watermark for a window, and which runners keep time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, cast

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.transforms.trigger import AccumulationMode, DefaultTrigger
from apache_beam.transforms.userstate import RuntimeTimer, Timer
from apache_beam.transforms.window import FixedWindows, GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp
from apache_beam.version import __version__
from privstream.transforms.batches import Keyed, KeyedBatch, StepKey
from privstream.transforms.counters import CLOSED, SENT
from privstream.transforms.timing.steps import END_OF_TIME, MILLISECOND, Steps
from typing_extensions import override

SEED = b""
STEP = struct.Struct(">q")
ONE_KEY = b""
"""The key of a clock that is alone."""


def stepped(step: int, batch: bytes) -> bytes:
    """Return what `StepFn` takes under a key: a batch of one step."""
    return STEP.pack(step) + batch


def on_clock(step: int, batch: bytes) -> Keyed:
    """Return what `StepFn` takes where there is one key."""
    return ONE_KEY, stepped(step, batch)


class WithClock(beam.PTransform[Any, Any]):
    """Add to keyed records (see `stepped`) what starts the clock of each key of public `names`; goes before `StepFn`.

    Raises:
        ValueError: the steps have no end although the input is bounded: its watermark jumps to the end of time, and
            every window up to then would be published.
    """

    def __init__(self, steps: Steps, names: Iterable[bytes] = (ONE_KEY,)) -> None:
        super().__init__()
        self.steps, self.names = steps, tuple(names)

    @override
    def expand(self, records: PCollection[Any]) -> PCollection[Any]:
        if records.is_bounded and self.steps.end is None:
            raise ValueError("end must be given when the input is bounded: every window until end is published")
        once = records.pipeline | "Once" >> beam.Impulse()
        clocks = beam.FlatMap(lambda _, names: [(name, SEED) for name in names], self.names)
        seeds = once | "StartClocks" >> clocks.with_output_types(Keyed)
        return cast(PCollection[Any], (records, seeds) | "WithSeeds" >> beam.Flatten())


def set_timer(timer: Any, fire: Timestamp, *, hold: Timestamp, tag: str) -> None:
    """Set an event-time timer for `fire` that holds the output watermark at `hold` until it has fired.

    Beam's protocol and its portable runners know such timers; Beam's `set` for Python always holds at the time at which
    the timer fires. So the timer is encoded here, the way `set` of `bundle_processor.OutputTimer` does it.

    Raises:
        RuntimeError: Beam writes timers in another way than the release that privstream is pinned to.
    """
    if isinstance(timer, RuntimeTimer):  # of a runner without holds
        timer.set(fire, dynamic_timer_tag=tag)
        return
    try:
        record = Timer(
            user_key=timer._key,
            dynamic_timer_tag=tag,
            windows=(timer._window,),
            clear_bit=False,
            fire_timestamp=fire,
            hold_timestamp=hold,
            paneinfo=timer._paneinfo,
        )
        timer._timer_coder_impl.encode_to_stream(record, timer._output_stream, True)
        timer._output_stream.maybe_flush()
    except (AttributeError, TypeError) as error:
        raise RuntimeError(f"apache-beam must write timers as release 2.77 does, got {__version__}: {error}") from error


RULE = (
    "runner must not be BundleBasedDirectRunner: its clocks run ahead of its other timers, so that events would not "
    "count. DirectRunner takes it for a TestStream and for processing-time timers: name PrismRunner"
)


def check_runner(pipeline: beam.Pipeline) -> None:
    """Refuse the runner when a pipeline is built; what DirectRunner chooses is known when it runs (see `StepFn`)."""
    if isinstance(pipeline.runner, BundleBasedDirectRunner):
        raise ValueError(RULE)


NO_TIME = Timestamp(micros=END_OF_TIME // MILLISECOND * MILLISECOND)


class CloseWindows(beam.PTransform[Any, Any]):
    """Put together, under each step key, the batches that came before its step is decided.

    Whether a batch is in time must depend on the watermark alone, which is public. State cannot decide this: a key
    without events has the same state before and after, so that one person's event would decide whether those of others
    count. So each batch passes a GroupByKey in a window that ends at the decision time.

    A batch whose own timestamp is that late is dropped too. Where timestamps say when data arrived, a run that goes
    back to a checkpoint, with a watermark that has fallen behind, decides the same way again.
    """

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps

    @override
    def expand(self, batches: PCollection[Any]) -> Any:
        ends = self.steps.decision_time(0) % self.steps.grid
        windows = FixedWindows(Duration(micros=self.steps.grid), Timestamp(micros=ends))
        return (
            batches
            | "Stamp" >> beam.ParDo(StampBatches(self.steps)).with_output_types(KeyedBatch)
            | "UntilDecision"
            >> beam.WindowInto(windows, trigger=DefaultTrigger(), accumulation_mode=AccumulationMode.DISCARDING)
            | "DropLate" >> beam.GroupByKey()
            | "InOneWindow" >> beam.WindowInto(GlobalWindows())
        )


Closed = tuple[bytes, Iterable[tuple[int, bytes]]]
"""A step key, and all batches that came in time, each with the number of its events."""


class StampBatches(beam.DoFn):
    """Send a batch into the window that ends at the decision of its step, and count its events."""

    sent = Metrics.counter("privstream", SENT)

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    @override
    def process(self, element: KeyedBatch, timestamp: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        key, (events, _) = element
        self.sent.inc(events)
        end = Timestamp(micros=self.steps.decision_time(StepKey.from_bytes(key).step))
        if not end <= timestamp < NO_TIME:
            yield TimestampedValue(element, end - Duration(micros=MILLISECOND))


class ToClock(beam.DoFn):
    """Hand all batches to the one clock that there is."""

    def __init__(self) -> None:
        self.closed = Metrics.counter("privstream", CLOSED)

    @override
    def process(self, element: Closed) -> Iterator[Keyed]:
        key, batches = element
        for events, batch in batches:
            self.closed.inc(events)
            yield on_clock(StepKey.from_bytes(key).step, batch)
