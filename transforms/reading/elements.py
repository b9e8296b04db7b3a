"""The boundary of a transform: elements of any form become checked Arrow batches, the rest dead letters."""

from __future__ import annotations

import dataclasses
import logging
import math
import numbers
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.coders import Coder, RowCoder
from apache_beam.coders.typecoders import registry
from apache_beam.pvalue import Row, TaggedOutput
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import WindowedValue
from privstream.transforms.batches import first_of_run
from privstream.transforms.counters import counter
from privstream.transforms.reading.fields import (
    DEAD_LETTERS,
    LONGEST_TEXT,
    MISSING,
    TEXT_PER_BATCH,
    TYPE,
    VALUE,
    BrokenRuleError,
    DeadLetter,
    EventFields,
    broken,
    broken_by,
    broken_letter,
    unchecked_text,
)
from privstream.transforms.reading.filters import NUMBER as NUMBER_KIND
from privstream.transforms.reading.filters import TRUTH
from privstream.transforms.reading.frames import AS_NAMED, FieldNames, Unusable, read_batch, usable_batches
from privstream.transforms.reading.times import TimeForm, read_micros
from privstream.transforms.timing.clock import NO_TIME
from privstream.transforms.timing.steps import MILLISECOND
from typing_extensions import override

ROWS_PER_BATCH = 8_192  # elements wait whole, for their dead letters
FORMS = "a pair (user, item), a row, a mapping or a frame"
STAMP = object()
"""The time of an event that is the timestamp of its element."""

NO_STAMP = "event must have a timestamp: that of a pair (user, item), or of a row without a field time, is its time"


class BatchCoder(Coder):
    """Pickles Arrow batches, as Beam does by itself; but asked for the size of one, which is often, it does not."""

    @override
    def encode(self, value: pa.RecordBatch) -> bytes:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    @override
    def decode(self, encoded: bytes) -> pa.RecordBatch:
        return pickle.loads(encoded)

    @override
    def estimate_size(self, value: pa.RecordBatch) -> int:
        return int(value.nbytes)

    @override
    def to_type_hint(self) -> type:
        return pa.RecordBatch  # type: ignore[no-any-return]


registry.register_coder(pa.RecordBatch, BatchCoder)
registry.register_coder(DeadLetter, RowCoder)

SECONDS_BETWEEN_LINES = 60
_LOGGER = logging.getLogger(__name__)


class SetAsideLog:
    """Counts the records that a worker process has set aside, and logs the first ones and then once a minute.

    *Privacy*: lines say how many records break which rule; they are exact, and for operators alone, like counters.

    Attributes:
        reasons: what has not been logged yet.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.reasons: Counter[str] = Counter()
        self._last: float | None = None

    def add(self, reasons: Mapping[str, int], *, now: bool = False) -> None:
        """Count records that were set aside, and log what has not been logged: `now`, or if no line came lately."""
        with self._lock:
            self.reasons.update(reasons)
            at = self._clock()
            if self.reasons and (now or self._last is None or at - self._last >= SECONDS_BETWEEN_LINES):
                parts = [f"{times:,} because {reason}" for reason, times in self.reasons.most_common()]
                line = "privstream: %s records could not be used: %s; with_dead_letters() gives them"
                _LOGGER.warning(line, f"{self.reasons.total():,}", ", ".join(parts))
                self.reasons.clear()
                self._last = at


LOG = SetAsideLog()
"""That of this process."""


def set_aside(
    rule: BrokenRuleError, record: str, source: str = "event", *, counter: str = "events", number: int = 1
) -> Any:
    """Count records that break a rule, in all and by the code of the rule, and return their dead letter."""
    return TaggedOutput(DEAD_LETTERS, broken_letter(rule, record, source, counted_as=counter, number=number))


def text_of(element: Any) -> str:
    """Return any element as text that can be written in UTF-8."""
    try:
        return repr(element).encode("utf-8", "backslashreplace").decode()
    except Exception:  # it may be anything, and what cannot be shown must not end the run
        return f"a {type(element).__name__} that cannot be shown"


def _text(name: str, value: Any) -> bytes | None:
    """Return a text or an integer as text, which is checked with its column."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool | np.timedelta64):
        with suppress(ValueError):  # Python refuses to write very long numbers
            return str(int(value)).encode()
        raise broken(name, "long", LONGEST_TEXT)
    if value is not None and not isinstance(value, str):
        raise broken(name, "text", type(value).__name__)
    return None if value is None else str.encode(value, "utf-8", "surrogatepass")  # whatever a subclass says of it


def _number(value: Any) -> bytes | None:
    """Return a number as text; text is checked with its column."""
    if value is None or isinstance(value, str):
        return _text(VALUE, value)
    if not isinstance(value, numbers.Real | Decimal) or isinstance(value, bool | np.timedelta64):
        raise broken(VALUE, "number", type(value).__name__)
    number = math.inf
    with suppress(OverflowError, ValueError):  # an integer that is too large, a signalling NaN
        number = float(value)
    if not math.isfinite(number):
        raise broken(VALUE, "finite")
    return repr(number).encode()


def _of_kind(kind: str | None, value: Any) -> bytes | None:
    """Return what a condition reads as a kind, as text; as one that is of no kind if it is of another."""
    try:
        if isinstance(value, bool | np.bool_) and kind == TRUTH:
            return str(bool(value)).lower().encode()
        if kind is None and value is not None and not isinstance(value, str):
            return b"there"
        return _number(value) if kind == NUMBER_KIND else _text("where", value)
    except Exception:  # values of foreign classes may raise anything
        return b"\xff"


class Wanted(NamedTuple):
    """A column that is made of single events: its name, what it says, and from which field, and how it is read."""

    column: str
    content: str
    field: str
    read: Callable[[Any], bytes | None]


class GatherRows(beam.DoFn):
    """Check events, and gather single ones of a bundle into Arrow batches of the columns of `EventFields.schema`.

    An element is a pair (user, item) whose time is the element's timestamp; or a row or a mapping with `user`, `item`,
    `time` (a Beam Timestamp, a datetime, ISO 8601 text or a number of seconds since 1970; its timestamp, if it has no
    such field); or an Arrow batch, or another frame, with these columns. Events that break a rule become dead letters,
    and so does, as a whole, a frame that cannot be used. What one element is decides about no other.

    A batch is late if its timestamp is. Where timestamps say when events arrived, whether an event is late must not
    depend on those it is with: so those that arrived after their own time are only with others of the same millisecond.

    Args:
        fields: what is read of an event.
        names: where that is.
    """

    def __init__(self, fields: EventFields, names: FieldNames = AS_NAMED) -> None:
        self.fields = fields
        self.names = names
        self._broken: Counter[str] = Counter()
        items = tuple(f"\0item {place}" for place in range(len(names.item)))  # no field has such a name
        self._made = FieldNames(
            user="\0user", item=items, time="\0time", value="\0value", times=TimeForm(unit="us"), where=names.where
        )
        read: dict[str, list[Wanted]] = {
            "user": [Wanted("\0user", "user", names.user, partial(_text, "user"))],
            "item": [Wanted(*each, partial(_text, "item")) for each in zip(items, repeat("item"), names.item)],
            "value": [Wanted("\0value", "value", names.value, _number)],
        }
        kinds = {} if names.where is None else names.where.kinds
        self._wanted = [each for name in fields.required for each in read.get(name, ())]
        self._wanted += [Wanted(name, "", name, partial(_of_kind, kind)) for name, kind in kinds.items()]

    @override
    def start_bundle(self) -> None:
        self._events: list[tuple[Any, Timestamp, list[Any]]] = []
        self._text = 0

    @override
    def process(
        self, element: Any, timestamp: Any = beam.DoFn.TimestampParam, window: Any = beam.DoFn.WindowParam
    ) -> Iterator[Any]:
        kind = type(element)  # what an object itself says may raise anything
        if hasattr(kind, "__arrow_c_stream__") or hasattr(kind, "__arrow_c_array__"):  # a frame
            for found in usable_batches(element, self.fields, self.names):
                yield self._set_aside(found) if isinstance(found, Unusable) else found
            return
        try:
            said = self._said(element)
        except Exception as error:
            yield self._set_aside(Unusable(broken_by(error), text_of(element)))
            return
        self._events.append((element, timestamp, said))
        self._text += sum(str.__len__(each) for each in said if isinstance(each, str))
        self._window = window
        if len(self._events) >= ROWS_PER_BATCH or self._text >= TEXT_PER_BATCH:
            yield from self.finish_bundle()

    def _said(self, element: Any) -> list[Any]:
        """Return the values of the columns that are wanted, and of the time, as an event has them."""
        row = isinstance(element, Row | Mapping) or hasattr(element, "_fields") or dataclasses.is_dataclass(element)
        pair = not row and isinstance(element, tuple | list) and len(element) == 2
        if not (row or pair):
            raise BrokenRuleError("event", TYPE, f"event must be {FORMS}, got {type(element).__name__}")
        said = {self.names.user: element[0], self.names.item[0]: element[1]} if pair else element

        def get(content: str, name: str, *default: Any) -> Any:
            try:
                return said[name] if isinstance(said, Mapping) else getattr(said, name)
            except (KeyError, AttributeError):
                if default:
                    return default[0]
                raise BrokenRuleError(content, MISSING, f"row must have a field {name}") from None

        values = [get(each.content, each.field, *([] if each.content else [None])) for each in self._wanted]
        absent = [STAMP] if self.names.stamped or not self.fields.timed else []
        return [*values, STAMP if self.names.time is None else get("time", self.names.time, *absent)]

    def _micros(self, value: Any, timestamp: Timestamp) -> int:
        """Return the time of an event; its timestamp says nothing at the ends of time."""
        if value is STAMP:
            stamped = MIN_TIMESTAMP.micros + MILLISECOND <= timestamp.micros and timestamp < NO_TIME
            if self.fields.timed and not stamped:
                raise BrokenRuleError("time", MISSING, NO_STAMP)
            return timestamp.micros if stamped else 0
        return 0 if value is None and not self.fields.timed else read_micros("time", value, self.names.times)

    def _set_aside(self, found: Unusable) -> Any:
        self._broken[str(found.rule)] += found.number
        return set_aside(found.rule, found.record, number=found.number)

    @override
    def finish_bundle(self) -> Iterator[Any]:
        yield from self._gathered() if self._events else ()
        self.start_bundle()
        if self._broken:
            LOG.add(self._broken)
            self._broken = Counter()

    def _gathered(self) -> Iterator[Any]:
        """Yield the events that have been gathered: those that can be used by when they came, the others aside."""
        wrong: dict[int, BrokenRuleError] = {}

        def column(values: Iterable[Any], read: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
            made = []
            for row, value in enumerate(values):
                try:
                    made.append(read(value))
                except Exception as error:
                    wrong.setdefault(row, broken_by(error))
                    made.append(None)
            return pa.array(made, kind)

        said = [said for *_, said in self._events]
        columns = {
            each.column: unchecked_text(column((values[place] for values in said), each.read, pa.large_binary()))
            for place, each in enumerate(self._wanted)
        }
        times = ((values[-1], timestamp) for _, timestamp, values in self._events)
        columns["\0time"] = column(times, lambda time: self._micros(*time), pa.int64())
        clean, refused, rows = read_batch(pa.record_batch(columns), self.fields, self._made, wrong)
        for row, rule in refused.items():
            element, timestamp, _ = self._events[row]
            letter = self._set_aside(Unusable(rule, text_of(element)))
            yield TaggedOutput(letter.tag, WindowedValue(letter.value, timestamp, (self._window,)))
        if self.names.where is not None:
            counter("events_filtered").inc(len(said) - len(rows) - len(refused))
        stamps = np.array([timestamp.micros for _, timestamp, _ in self._events], np.int64)[rows]
        arrived = np.where(stamps <= clean["time"].to_numpy(), -1, stamps // MILLISECOND)
        order = np.argsort(arrived, kind="stable")
        for some in np.split(order, np.flatnonzero(first_of_run(arrived[order]))[1:]) if len(order) else ():
            batch = clean if len(some) == len(order) else clean.take(pa.array(some))
            yield WindowedValue(batch, Timestamp(micros=int(stamps[some].min())), (self._window,))

    @override
    def teardown(self) -> None:
        if LOG.reasons:
            LOG.add({}, now=True)
