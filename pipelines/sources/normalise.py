"""From rows of files to batches for one question or several; what a value is, transforms decide by their rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from privstream.pipelines.sources.event_files import Damage, RawEvents
from privstream.pipelines.sources.fields import AnyFields, FieldMapping
from privstream.pipelines.sources.found_files import FORMATS, EventFile, check_file, check_unchanged, parts_of
from privstream.pipelines.stores import scheme_of
from privstream.transforms.counters import counter
from privstream.transforms.reading.fields import DeadLetter
from privstream.transforms.reading.frames import Parsed, read_rows

MOST_UNITS = 2.0**60  # larger values are as large: limits are smaller
EXACT = 1e-9  # a number that is as near to a whole one, by its size, has not been rounded
OF_READING = ": "
"""Stands in the name of a counter between the questions that it is about, of several, and what it counts."""

QUESTION = b"question"  # names, in the metadata of a batch, the one of several questions that it is for
FIRST, MOST = 1000, 1_000_000
"""Records that are looked at before a run for one that can be used; the second where a condition drops them."""


def normalise(events: RawEvents, fields: AnyFields) -> tuple[list[pa.RecordBatch], Iterator[Damage]]:
    """Return a batch of the rows that each question can use, which it names if there are several, and other rows."""
    parsed: Parsed = {}
    batches, refused = [], dict[tuple[int, str, str], list[str]]()
    for name, own in fields.questions:
        read = read_rows(events.columns, events.rows, own.reads, own.form, parsed)
        _counter("events_filtered", name).inc(read.filtered)
        for row, rule in read.refused.items():
            refused.setdefault((row, rule.code, str(rule)), []).append(name)
        batches.append(_batch(name, own, read.clean))

    def damages() -> Iterator[Damage]:
        for (row, code, reason), by in sorted(refused.items()):
            whom = "" if len(by) == len(fields.questions) else f" (for {', '.join(by)})"
            yield Damage(code, f"{reason}{whom}", events.position(row), events.record(row), tuple(by))

    return batches, damages()


def _batch(name: str, fields: FieldMapping, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return what a question takes: values are 0 for none, and rounded to whole units if they are to be."""
    _counter("events_read", name).inc(batch.num_rows)
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns["time"] = columns["time"].cast(pa.timestamp("us", "UTC"))
    if "value" in columns:
        numbers = columns["value"].to_numpy(zero_copy_only=False)
        none = np.isnan(numbers)
        _counter("events_without_value", name).inc(int(np.count_nonzero(none)))
        numbers = np.where(none, 0.0, numbers)
        if fields.whole:
            with np.errstate(over="ignore"):
                units = np.clip(numbers / fields.value_unit, -MOST_UNITS, MOST_UNITS)
            numbers = np.rint(units)
            apart = np.abs(units - numbers) > EXACT * np.maximum(1.0, np.abs(units))
            _counter("values_rounded", name).inc(int(np.count_nonzero(apart)))
        columns["value"] = pa.array(numbers)
    return pa.RecordBatch.from_pydict(columns, metadata={QUESTION: name} if name else None)


def is_for(batch: pa.RecordBatch, name: str) -> bool:
    """Tell whether a batch is for one of several questions."""
    return bool((batch.schema.metadata or {}).get(QUESTION) == name.encode())


def _counter(name: str, by: str) -> Any:
    """Return a counter of reading, of one of several questions if that has a name."""
    return counter(f"{by}{OF_READING}{name}" if by else name)


def usable(found: RawEvents | Damage, source: str, fields: AnyFields) -> Iterator[pa.RecordBatch | DeadLetter]:
    """Yield batches of events of what has been read, and what cannot be used of it; count that."""
    batches, damages = ([], iter([found])) if isinstance(found, Damage) else normalise(found, fields)
    for damage in damages:
        for name in damage.by:
            _counter("events_malformed", name).inc()
            _counter(f"events_malformed_{damage.code}", name).inc()
        yield dead_letter(damage.reason, source, damage.position, damage.record)
    yield from (batch for batch in batches if batch.num_rows)


def dead_letter(*texts: str) -> DeadLetter:
    """Return a dead letter that can be written in UTF-8: names of files may contain other bytes."""
    reason, source, position, record = (text.encode("utf-8", "backslashreplace").decode() for text in texts)
    return DeadLetter(reason, source, position, record)


def _read_raw(file: EventFile, fields: AnyFields) -> Iterator[RawEvents | Damage]:
    """Read a file part by part, each of which must be as the file was found."""
    for part in parts_of(file):
        yield from FORMATS[part.format].read(part.path, fields.names, fields.text, part.group or 0)
        check_unchanged(file)


def read_file(file: EventFile, fields: AnyFields) -> Iterator[pa.RecordBatch | DeadLetter]:
    """Yield batches of events of a file that is as it was found, and what cannot be used of it."""
    check_unchanged(file)
    if not file.group:  # once, not for each row group
        check_file(file, fields)
    for found in _read_raw(file, fields):
        yield from usable(found, file.path, fields)


def unusable(files: Sequence[EventFile], fields: AnyFields) -> Counter[str]:
    """Return why the first records cannot be used, by the codes of counters; nothing if one of them can.

    Each file of this machine is looked through, as far as that needs no decoding of its records.

    Raises:
        InputFileError, ValueError, TypeError: a file cannot be read; names the file, the option or the field.
    """
    found: Counter[str] = Counter()
    for file in files:
        if scheme_of(file.path) is None:
            FORMATS[file.format].check(file.path, fields.text)
            next(_read_raw(file, fields), None)
    read = 0
    for each in (each for file in files for each in _read_raw(file, fields)):
        if isinstance(each, Damage):
            found[each.code] += 1
            continue
        batches, damages = normalise(RawEvents(each.columns, str, str), fields)
        if any(batch.num_rows for batch in batches):
            return Counter()
        found.update(damage.code for damage in damages)
        read += each.rows
        if found.total() >= FIRST or read >= MOST:
            break
    return found
