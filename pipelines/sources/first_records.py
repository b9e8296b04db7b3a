"""The first records of an input, read before a run is charged: what cannot be read or used is refused unpaid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from privstream.pipelines.sources.event_files import Damage, Part, RawEvents
from privstream.pipelines.sources.fields import AnyFields
from privstream.pipelines.sources.found_files import FORMATS, EventFile, parts_of
from privstream.pipelines.sources.normalise import Normaliser, pieces
from privstream.pipelines.stores import scheme_of
from privstream.transforms.counters import counted

FIRST = 1000
"""So many records that cannot be used are enough, if none before them can."""

MOST = 1_000_000
"""After so many records that a condition leaves out, nothing is known of the others."""


def unusable(files: Sequence[EventFile], fields: AnyFields) -> Counter[str]:
    """Return why the first records cannot be used, by the codes of counters; nothing if one of them can.

    Each file of this machine is looked through as far as that needs no decoding of its records: compressed text and
    the blocks of Avro to their end.

    Raises:
        InputFileError, ValueError, TypeError: a file cannot be read; names the file, the option or the field.
    """
    found: Counter[str] = Counter()
    with counted():
        for file in files:
            if scheme_of(file.path) is None:
                FORMATS[file.format].check(file.path)
                next(_records([file], fields), None)
        normalise, read = Normaliser(fields), 0
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
        for part in parts_of(file):
            yield from FORMATS[file.format].read(file.path, Part(part.start, part.end), fields.names(), fields.text)
