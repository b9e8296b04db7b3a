"""The boundary of a transform: elements of any form become checked Arrow batches, the rest dead letters."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.coders import RowCoder
from apache_beam.coders.typecoders import registry
from apache_beam.pvalue import Row, TaggedOutput
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import WindowedValue
from privstream.transforms.batches import first_of_run
from privstream.transforms.counters import counter
from privstream.transforms.reading.fields import (
    DEAD_LETTERS,
    MISSING,
    TEXT_PER_BATCH,
    TYPE,
    BrokenRuleError,
    DeadLetter,
    EventFields,
    broken_by,
    column_of,
    quote,
)
from privstream.transforms.reading.frames import AS_NAMED, FieldNames, Unusable, read_rows, usable_batches
from privstream.transforms.timing.step_fn import NO_TIME
from privstream.transforms.timing.steps import MILLISECOND
from typing_extensions import override

ROWS_PER_BATCH = 8_192  # elements wait whole, for their dead letters
FORMS = "a pair (user, item), a row, a mapping or a frame"
STAMP = "\0time"
"""Reserved field name for the element's timestamp."""

NO_STAMP = "event must have a timestamp: that of a pair (user, item), or of a row without a field time, is its time"


registry.register_coder(DeadLetter, RowCoder)
_LOGGER = logging.getLogger(__name__)


@lru_cache(maxsize=100)
def _tell(rule: str) -> None:
    """Log a rule that a record breaks, once in each process; counters say how many do."""
    _LOGGER.warning("privstream: records cannot be used: %s; with_dead_letters() gives them", rule)


def set_aside(rule: BrokenRuleError, record: str) -> Any:
    """Count a record that breaks a rule, in all and by the code of the rule, and return its dead letter."""
    _tell(str(rule))
    for name in ("events_malformed", f"events_malformed_{rule.code}"):
        counter(name).inc()
    return TaggedOutput(DEAD_LETTERS, DeadLetter(str(rule), "event", "", quote(record)))


def text_of(element: Any) -> str:
    """Return any element as text."""
    try:
        return repr(element)
    except Exception:  # it may be anything, and what cannot be shown must not end the run
        return f"a {type(element).__name__} that cannot be shown"


class GatherRows(beam.DoFn):
    """Check events, and gather single ones of a bundle into Arrow batches of the columns of `EventFields.schema`.

    An element is a pair (user, item) whose time is the element's timestamp; or a row or a mapping with `user`, `item`,
    `time` (a Beam Timestamp, a datetime, ISO 8601 text or a number of seconds since 1970; its timestamp, if it has no
    such field); or an Arrow batch, or another frame, with these columns. Events that break a rule become dead letters.
    What one element is decides about no other.

    A batch is late if its timestamp is. Where timestamps say when events arrived, whether an event is late must not
    depend on those it is with: so those that arrived after their own time are only with others of the same millisecond.

    Args:
        fields: what is read of an event.
        names: where that is.
    """

    def __init__(self, fields: EventFields, names: FieldNames = AS_NAMED) -> None:
        self.fields = fields
        self.names = names
        self._gathered = dataclasses.replace(names, time=names.time or STAMP)
        contents = {name: content for content, those in self._gathered.read(fields).items() for name in those}
        self._wanted = dict.fromkeys(names.where.kinds if names.where else (), "") | contents

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
                yield set_aside(*found) if isinstance(found, Unusable) else found
            return
        try:
            said = self._said(element, timestamp)
        except Exception as error:
            yield set_aside(broken_by(error), text_of(element))
            return
        self._events.append((element, timestamp, said))
        self._text += sum(str.__len__(each) for each in said if isinstance(each, str))
        self._window = window
        if len(self._events) >= ROWS_PER_BATCH or self._text >= TEXT_PER_BATCH:
            yield from self.finish_bundle()

    def _said(self, element: Any, timestamp: Timestamp) -> list[Any]:
        """Return the values of the fields that are wanted, as an event has them."""
        row = isinstance(element, Row | Mapping) or hasattr(element, "_fields") or dataclasses.is_dataclass(element)
        pair = not row and isinstance(element, tuple | list) and len(element) == 2
        if not (row or pair):
            raise BrokenRuleError("event", TYPE, f"event must be {FORMS}, got {type(element).__name__}")
        said = {self.names.user: element[0], self.names.item[0]: element[1]} if pair else element
        found = []
        for name, content in self._wanted.items():
            try:
                found.append(said[name] if isinstance(said, Mapping) else getattr(said, name))
            except (KeyError, AttributeError):
                if content == "time" and (self.names.time is None or self.names.stamped or not self.fields.timed):
                    found.append(self._stamp(timestamp))
                elif content:
                    raise BrokenRuleError(content, MISSING, f"row must have a field {name}") from None
                else:
                    found.append(None)
        return found

    def _stamp(self, timestamp: Timestamp) -> Timestamp:
        """Return the time of an event that is the timestamp of its element, which says nothing at the ends of time."""
        stamped = MIN_TIMESTAMP.micros + MILLISECOND <= timestamp.micros and timestamp < NO_TIME
        if self.fields.timed and not stamped:
            raise BrokenRuleError("time", MISSING, NO_STAMP)
        return timestamp if stamped else Timestamp(0)

    @override
    def finish_bundle(self) -> Iterator[Any]:
        yield from self._batches() if self._events else ()
        self.start_bundle()

    def _batches(self) -> Iterator[Any]:
        """Yield the events that have been gathered: those that can be used by when they came, the others aside."""
        values = zip(*(said for *_, said in self._events), strict=True)
        columns = {name: column_of(column) for name, column in zip(self._wanted, values, strict=True)}
        read = read_rows(columns, len(self._events), self.fields, self._gathered)
        for row, rule in read.refused.items():
            element, timestamp, _ = self._events[row]
            letter = set_aside(rule, text_of(element))
            yield TaggedOutput(letter.tag, WindowedValue(letter.value, timestamp, (self._window,)))
        if self.names.where is not None:
            counter("events_filtered").inc(read.filtered)
        stamps = np.array([timestamp.micros for _, timestamp, _ in self._events], np.int64)[read.rows]
        arrived = np.where(stamps <= read.clean["time"].to_numpy(), -1, stamps // MILLISECOND)
        order = np.argsort(arrived, kind="stable")
        for some in np.split(order, np.flatnonzero(first_of_run(arrived[order]))[1:]) if len(order) else ():
            batch = read.clean if len(some) == len(order) else read.clean.take(pa.array(some))
            yield WindowedValue(batch, Timestamp(micros=int(stamps[some].min())), (self._window,))
