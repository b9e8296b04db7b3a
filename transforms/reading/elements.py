"""The boundary of a transform: elements of any form become checked Arrow batches, the rest dead letters."""

from __future__ import annotations

import dataclasses
import logging
import pickle
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.coders import Coder, RowCoder
from apache_beam.coders.typecoders import registry
from apache_beam.pvalue import Row, TaggedOutput
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import WindowedValue
from privstream.transforms.counters import counter
from privstream.transforms.reading.domain import join_item
from privstream.transforms.reading.fields import (
    DEAD_LETTERS,
    MISSING,
    NUMBER,
    TEXT_PER_BATCH,
    TYPE,
    UNREAD,
    WHOLE,
    BrokenRuleError,
    DeadLetter,
    EventFields,
    broken_by,
    broken_letter,
    read_point,
    read_text,
    value_of,
)
from privstream.transforms.reading.frames import AS_NAMED, FieldNames, Unusable, batches_of, usable_batches
from privstream.transforms.reading.times import micros_of, read_micros
from privstream.transforms.timing.clock import NO_TIME
from privstream.transforms.timing.steps import MILLISECOND
from typing_extensions import override

ROWS_PER_BATCH = 65_536
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
REASONS_NAMED = 5
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
                named, number = self.reasons.most_common(REASONS_NAMED), self.reasons.total()
                parts = [f"{times:,} because {reason}" for reason, times in named]
                if rest := number - sum(times for _, times in named):
                    parts.append(f"{rest:,} for other reasons")
                line = "privstream: %s records could not be used: %s; with_dead_letters() gives them"
                _LOGGER.warning(line, f"{number:,}", ", ".join(parts))
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


class Said(NamedTuple):
    """What an event says, as `EventFields` asks; what is not read is empty."""

    user: str | int
    item: str
    time: int
    value: float


def read_event(element: Any, timestamp: Timestamp, fields: EventFields, names: FieldNames = AS_NAMED) -> Said | None:
    """Return what a single event says; None if it does not pass the filter.

    Raises:
        BrokenRuleError: the rule that it breaks; values of foreign classes may raise anything else.
    """
    row = isinstance(element, Row | Mapping) or hasattr(element, "_fields") or dataclasses.is_dataclass(element)
    pair = not row and isinstance(element, tuple | list) and len(element) == 2
    if not (row or pair):
        raise BrokenRuleError("event", TYPE, f"event must be {FORMS}, got {type(element).__name__}")
    said = {names.user: element[0], names.item[0]: element[1]} if pair else element

    def get(content: str, name: str, *default: Any) -> Any:
        try:
            return said[name] if isinstance(said, Mapping) else getattr(said, name)
        except (KeyError, AttributeError):
            if default:
                return default[0]
            raise BrokenRuleError(content, MISSING, f"row must have a field {name}") from None

    if names.where is not None and not names.where.accepts({name: get("", name, None) for name in names.where.kinds}):
        return None
    user = get("user", names.user) if fields.user != UNREAD else ""
    parts = [get("item", name) for name in names.item] if fields.item else []
    absent = [STAMP] if names.stamped or not fields.timed else []
    time = STAMP if names.time is None else get("time", names.time, *absent)
    value = get("value", names.value) if fields.value != UNREAD else 0.0
    if fields.user != UNREAD:
        user = read_point("user", user) if fields.user == NUMBER else read_text("user", user)
    item = ""
    if fields.item:
        texts = [read_text("item", part) for part in parts]
        item = texts[0] if len(texts) == 1 else join_item(texts)
    if time is STAMP:  # which says nothing at the ends of time
        stamped = MIN_TIMESTAMP.micros + MILLISECOND <= timestamp.micros and timestamp < NO_TIME
        if fields.timed and not stamped:
            raise BrokenRuleError("time", MISSING, NO_STAMP)
        micros = micros_of(timestamp) if stamped and (pair or fields.timed) else 0
    else:
        micros = 0 if time is None and not fields.timed else read_micros("time", time, names.times)
    return Said(user, item, micros, value_of(value, whole=fields.value == WHOLE))


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

    @override
    def start_bundle(self) -> None:
        self._rows: dict[int | None, list[Said]] = defaultdict(list)  # by when they came, if that is after their time
        self._oldest: dict[int | None, Any] = {}
        self._number = self._text = 0

    @override
    def process(
        self, element: Any, timestamp: Any = beam.DoFn.TimestampParam, window: Any = beam.DoFn.WindowParam
    ) -> Iterator[Any]:
        kind = type(element)  # what an object itself says may raise anything
        if hasattr(kind, "__arrow_c_stream__") or hasattr(kind, "__arrow_c_array__"):  # a frame
            try:
                for batch in (element,) if isinstance(element, pa.RecordBatch) else batches_of(element):
                    for found in usable_batches(batch, self.fields, self.names) if batch.num_rows else ():
                        yield self._set_aside(found) if isinstance(found, Unusable) else found
            except BrokenRuleError as error:
                rows = len(element) if isinstance(element, Sized) else 1
                yield self._set_aside(Unusable(error, f"{rows:,} rows", rows))
            return
        try:
            row = read_event(element, timestamp, self.fields, self.names)
        except Exception as error:
            rule = broken_by(error)
            yield self._set_aside(Unusable(rule, text_of(element)))
            return
        if row is None:
            counter("events_filtered").inc()
            return
        arrived = None if timestamp.micros <= row.time else timestamp.micros // MILLISECOND
        self._rows[arrived].append(row)
        self._oldest[arrived] = min(self._oldest.get(arrived, timestamp), timestamp)
        self._number += 1
        self._text += len(row.item) + (len(row.user) if isinstance(row.user, str) else 0)
        self._window = window
        if self._number >= ROWS_PER_BATCH or self._text >= TEXT_PER_BATCH:
            yield from self.finish_bundle()

    def _set_aside(self, found: Unusable) -> Any:
        self._broken[str(found.rule)] += found.number
        return set_aside(found.rule, found.record, number=found.number)

    @override
    def finish_bundle(self) -> Iterator[WindowedValue]:
        schema = self.fields.schema()
        for arrived, rows in self._rows.items():
            columns = dict(zip(Said._fields, zip(*rows, strict=True), strict=True))
            arrays = [pa.array(columns[field.name], field.type) for field in schema]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            yield WindowedValue(batch, self._oldest[arrived], (self._window,))
        self.start_bundle()
        if self._broken:
            LOG.add(self._broken)
            self._broken = Counter()

    @override
    def teardown(self) -> None:
        if LOG.reasons:
            LOG.add({}, now=True)
