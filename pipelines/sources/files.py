"""Files of events: which there are, whether they stay as they are, and what questions can use of their records.

What a value is, transforms decide by their rules.
"""

from __future__ import annotations

import glob
import gzip
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from privstream.pipelines.sources import avro_events, csv_events, parquet_events, text_lines, xlsx_events
from privstream.pipelines.sources.fields import FieldMapping, Readings
from privstream.pipelines.sources.formats import (
    BLOCK_BYTES,
    COMPRESSED,
    UTF_8,
    Damage,
    InputFileError,
    RawEvents,
    UnfitError,
    as_utf_8,
)
from privstream.pipelines.stores import check_store, facts_of, listed, opened, reason, scheme_of
from privstream.transforms.counters import counter
from privstream.transforms.reading.fields import DEAD_LETTERS, DeadLetter
from privstream.transforms.reading.frames import Parsed, read_rows

FORMATS = {"avro": avro_events, "parquet": parquet_events, "jsonl": text_lines, "csv": csv_events, "xlsx": xlsx_events}
"""Each has, of what `opened_events` gives, a `schema`, None if records say it or there are none; a `check` for damage;
`read`; and the `RULE` that a damaged file breaks."""
ENDINGS = {name: name for name in FORMATS} | {"ndjson": "jsonl", "tsv": "csv"}
TEXT_FORMATS = ("jsonl", "csv")
FILES_AT_ONCE = 16  # that are looked at before a run

MOST_UNITS = 2.0**60  # larger values are as large: limits are smaller
EXACT = 1e-9  # a number that is as near to a whole one, by its size, has not been rounded
QUESTION = b"question"  # names, in the metadata of a batch, the one of several questions that it is for
FIRST, MOST = 1000, 1_000_000
"""Records that are looked at before a run for one that can be used; the second where a condition drops them."""


class EventFile(NamedTuple):
    """A file that was found: its size in bytes, and its marks (see `FileFacts`); or a row group of it, and its rows."""

    path: str
    size: int
    format: str
    marks: tuple[float, ...] = ()
    group: int | None = None
    rows: int = 0


def match_files(pattern: str, format: str | None = None) -> list[EventFile]:
    """List the files that match, in the order of their paths, as they are now.

    A path is a file of just that name, or the files of a folder, or else a glob.
    """
    check_store(pattern, "--input")
    try:
        if scheme_of(pattern) is None:
            paths = [pattern] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)
            if os.path.isdir(pattern):
                names = (name for name in os.listdir(pattern) if not name.startswith((".", "_")))
                paths = [os.path.join(pattern, name) for name in names]
            found = [facts_of(path) for path in paths if not os.path.isdir(path)]
        else:
            found = listed(pattern)
    except OSError as error:
        name = error.filename or pattern
        raise InputFileError(f"cannot read {name}: {reason(error)}") from None
    if not found:
        raise InputFileError(f"--input must have at least one file: nothing matches {pattern}")
    return sorted(EventFile(each.path, each.size, format_of(each.path, format), each.marks) for each in found)


def format_of(path: str, given: str | None = None) -> str:
    """Return the format of a file: the given one, or what its ending stands for; text files may be compressed."""
    name = path.encode("utf-8", "backslashreplace").decode()
    if name != path:
        raise InputFileError(f"cannot read {name}: its name must be UTF-8")
    plain = path
    for ending in COMPRESSED:
        plain = plain.removesuffix(ending)
    format = given or ENDINGS.get(plain.rpartition(".")[2].lower())
    if format is None or (not given and plain != path and format not in TEXT_FORMATS):
        known = ", ".join(f".{ending}" for ending in ENDINGS)
        raise InputFileError(f"--input must end in {known} (text also with .gz, .bz2 or .zst), got {path}")
    return format


def files_with(fields: Readings, pattern: str, format: str | None = None) -> list[EventFile]:
    """List the files that match, each of which has the fields."""
    files, text = match_files(pattern, format), fields.text
    given = {"delimiter": text.delimiter is not None, "quote": not text.quote, "encoding": text.encoding != UTF_8}
    for name in (name for name, is_given in given.items() if is_given):
        known = TEXT_FORMATS if name == "encoding" else ("csv",)
        if not any(file.format in known for file in files):
            raise ValueError(f"--{name} must be given with {' and '.join(known)} only: no file of --input is one")
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        list(pool.map(partial(check_fields, fields=fields), files))
    return files


def check_fields(file: EventFile, fields: Readings) -> None:
    """Check that a file can be opened and that its schema or header, if it has one, has the fields."""
    with opened_events(file, fields.text.encoding) as events:
        schema = FORMATS[file.format].schema(events, fields.text)
    if schema is not None:
        fields.check(schema, file.path)


def parts_of(file: EventFile) -> list[EventFile]:
    """Cut a file that has row groups into these; another one is one part."""
    if file.format != "parquet":
        return [file]
    with opened_events(file) as stream:
        rows = parquet_events.row_groups(stream)
    return [file._replace(group=group, rows=number) for group, number in enumerate(rows)]


def check_unchanged(file: EventFile) -> None:
    """Refuse a file that has changed since it was found: the noise of the run is bound to what was in it then."""
    try:
        now = facts_of(file.path)
    except OSError:
        raise InputFileError(f"{file.path} must stay until it has been read") from None
    marks = zip(now.marks, file.marks, strict=False)  # a server of files has fewer than its disk
    if now.size != file.size or any(one != other for one, other in marks):
        raise InputFileError(f"{file.path} must not change while a run reads it")


@contextmanager
def opened_events(file: EventFile, encoding: str = UTF_8) -> Iterator[Any]:
    """Open a file: a stream of bytes, or, of text, compressed or not, pieces of about a mebibyte in UTF-8.

    Errors in the block become one that names the file: those of libraries may quote its bytes.
    """
    try:
        raw = opened(file.path)
    except OSError as error:
        raise InputFileError(f"cannot read {file.path}: {reason(error)}") from None
    with raw:
        try:
            if file.format not in TEXT_FORMATS:
                yield raw
            else:
                text = _decompressed(raw, file.path) if file.path.endswith(tuple(COMPRESSED)) else raw
                pieces = iter(partial(text.read, BLOCK_BYTES), b"")
                yield pieces if encoding == UTF_8 else as_utf_8(pieces, encoding)
        except (InputFileError, AssertionError):
            raise
        except UnfitError as error:
            raise InputFileError(f"{file.path} cannot be read: {error}") from None
        except Exception as error:  # each library has its own
            raise InputFileError(f"{file.path} {FORMATS[file.format].RULE} ({type(error).__name__})") from None


def _decompressed(raw: BinaryIO, path: str) -> Any:
    """Return compressed text. Beam would take the end of a cut file for the end of its text."""
    if not raw.read(1):
        raise EOFError
    raw.seek(0)
    if path.endswith(".gz"):  # zeros may be its end
        return gzip.GzipFile(fileobj=raw)
    codec = next(codec for ending, codec in COMPRESSED.items() if path.endswith(ending))
    return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec)


Raw = Iterator[RawEvents | Damage]


def read_file(file: EventFile, fields: Readings) -> Raw:
    """Read a file, or a row group of it, which must be as it was found, before and after."""
    check_unchanged(file)
    with opened_events(file, fields.text.encoding) as events:
        yield from FORMATS[file.format].read(events, fields.names, fields.text, file.group or 0)
    check_unchanged(file)


def usable(element: Any, read: Callable[[Any, Readings], Raw], fields: Readings) -> Iterator[Any]:
    """Yield batches of what is read of an element, which has a path; what cannot be used is counted, and set aside."""
    from apache_beam.pvalue import TaggedOutput  # noqa: PLC0415 - late: plans load fast without Beam

    for found in read(element, fields):
        for each in normalise(found, fields):
            if isinstance(each, Damage):
                for name in each.by:
                    counter("events_malformed", name).inc()
                    counter(f"events_malformed_{each.code}", name).inc()
                texts = (each.reason, element.path, each.position, each.record)
                letter = DeadLetter(*(text.encode("utf-8", "backslashreplace").decode() for text in texts))
                yield TaggedOutput(DEAD_LETTERS, letter)
            elif each.num_rows:
                yield each


def normalise(found: RawEvents | Damage, fields: Readings) -> Iterator[pa.RecordBatch | Damage]:
    """Yield a batch of the rows that each question can use, which names it if there are several, and other rows."""
    if isinstance(found, Damage):
        yield found
        return
    parsed: Parsed = {}
    refused: dict[tuple[int, str, str], list[str]] = {}
    for name, own in fields.questions:
        read = read_rows(found.columns, found.rows, own.reads, own.form, parsed)
        for row, rule in read.refused.items():
            refused.setdefault((row, rule.code, str(rule)), []).append(name)
        counter("events_filtered", name).inc(read.filtered)
        counter("events_read", name).inc(read.clean.num_rows)
        clean = _amounts(read.clean, own, name) if own.value else read.clean
        yield clean.replace_schema_metadata({QUESTION: name}) if name else clean
    for (row, code, why), by in sorted(refused.items()):
        whom = "" if len(by) == len(fields.questions) else f" (for {', '.join(by)})"
        yield Damage(code, f"{why}{whom}", found.position(row), found.record(row), tuple(by))


def _amounts(batch: pa.RecordBatch, fields: FieldMapping, name: str) -> pa.RecordBatch:
    """Return a batch whose values are 0 for none, and whole units if they are to be."""
    numbers = batch["value"].to_numpy(zero_copy_only=False)
    none = np.isnan(numbers)
    counter("events_without_value", name).inc(int(np.count_nonzero(none)))
    numbers = np.where(none, 0.0, numbers)
    if fields.whole:
        with np.errstate(over="ignore"):
            units = np.clip(numbers / fields.value_unit, -MOST_UNITS, MOST_UNITS)
        numbers = np.rint(units)
        apart = np.abs(units - numbers) > EXACT * np.maximum(1.0, np.abs(units))
        counter("values_rounded", name).inc(int(np.count_nonzero(apart)))
    return batch.set_column(batch.schema.get_field_index("value"), "value", pa.array(numbers))


def is_for(batch: pa.RecordBatch, name: str) -> bool:
    """Tell whether a batch is for one of several questions."""
    return bool((batch.schema.metadata or {}).get(QUESTION) == name.encode())


def unusable(files: Sequence[EventFile], fields: Readings) -> Counter[str]:
    """Return why the first records cannot be used, by the codes of counters; nothing if one of them can.

    Each file of this machine is looked through: all but Parquet, of which no page is decoded, to its end.

    Raises:
        InputFileError, ValueError, TypeError: a file cannot be read; names the file, the option or the field.
    """
    for file in files:
        if scheme_of(file.path) is None:
            with opened_events(file, fields.text.encoding) as events:
                FORMATS[file.format].check(events, fields.text)
            for part in parts_of(file)[:1]:
                next(read_file(part, fields), None)
    codes: Counter[str] = Counter()
    read = 0
    for raw in (raw for file in files for part in parts_of(file) for raw in read_file(part, fields)):
        for each in normalise(raw, fields):
            if isinstance(each, Damage):
                codes[each.code] += 1
            elif each.num_rows:
                return Counter()
            if codes.total() >= FIRST:
                return codes
        read += 1 if isinstance(raw, Damage) else raw.rows
        if read >= MOST:
            break
    return codes
