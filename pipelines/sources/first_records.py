"""The first records of an input, read before a run is charged: what cannot be read or used is refused unpaid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import fastavro
from privstream.pipelines.sources.event_files import Damage, InputFileError, Part, RawEvents, open_file
from privstream.pipelines.sources.fields import AnyFields
from privstream.pipelines.sources.found_files import FORMATS, TEXT_FORMATS, EventFile, check_file, list_parts
from privstream.pipelines.sources.normalise import normaliser_of, pieces
from privstream.pipelines.stores import scheme_of
from privstream.transforms.counters import counted

FIRST = 1000
"""So many records that cannot be used are enough, if none before them can."""

MOST = 1_000_000
"""After so many records that a condition leaves out, nothing is known of the others."""

SYNC_BYTES = 16


def unusable(files: Sequence[EventFile], fields: AnyFields) -> Counter[str]:
    """Return why the first records cannot be used, by the codes of counters; nothing if one of them can.

    Each file of this machine is opened, and the first records of Parquet and Avro are decoded; of others as many as are
    needed.

    Raises:
        InputFileError, ValueError, TypeError: a file cannot be read; names the file, the option or the field.
    """
    for file in files:
        if scheme_of(file.path) is None and file.format not in TEXT_FORMATS:
            _check_first(file, fields)
    found: Counter[str] = Counter()
    with counted():
        normalise, read = normaliser_of(fields), 0
        for each in _records(files, fields):
            if isinstance(each, Damage):
                found[each.code] += 1
            else:
                for events in pieces(each):
                    batch, refusals = normalise(events)
                    if batch.num_rows:
                        return Counter()
                    found.update(refusal.code for refusal in refusals)
                    read += len(next(iter(events.columns.values())))
            if sum(found.values()) >= FIRST or read >= MOST:
                break
    return found


def _records(files: Sequence[EventFile], fields: AnyFields) -> Iterator[RawEvents | Damage]:
    """Read files, one after the other."""
    for file in files:
        for part in list_parts(file):
            yield from FORMATS[file.format].read(file.path, Part(part.start, part.end), fields.names(), fields.text)


def _check_first(file: EventFile, fields: AnyFields) -> None:
    """Refuse a file whose beginning or end cannot be read."""
    check_file(file, fields)
    for part in list_parts(file):
        place = Part(part.start, part.end)
        next(FORMATS[file.format].read(file.path, place, fields.names(), fields.text), None)
        break
    if file.format == "avro":
        with open_file(file.path) as stream:
            sync = fastavro.block_reader(stream)._header["sync"]
            stream.seek(-SYNC_BYTES, 2)
            if stream.read(SYNC_BYTES) != sync:
                raise InputFileError(f"{file.path} must end with a whole block: it is damaged, or ends early")
