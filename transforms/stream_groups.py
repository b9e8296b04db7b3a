"""Streams that share keys: a record holds the rows of many, so that a stream costs its rows, and no keys of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import (
    CountBatch,
    EventBatch,
    HolderBatch,
    Names,
    StepKey,
    decode,
    encode,
    seal,
    string_buffers,
)

GROUPS = 4
"""Public, and the same in every run: a job that is restored finds its keys again. It changes no answer."""

Batch = TypeVar("Batch", EventBatch, HolderBatch, CountBatch)

MOST_ROWS = 1 << 18
"""Rows of a record for a stage with a key for each stream: a runner must have room for some of them at once."""

SHORT = 64
"""Longest name of a stream, in characters, that is kept at hand beyond its rows: anybody may send names."""


def group_of(stream: str) -> str:
    """Return the name of the group that a stream is in; whoever chooses names of streams can fill one."""
    return _short_group(stream) if len(stream) <= SHORT else _group(stream)


def _group(stream: str) -> str:
    return str(hashlib.blake2b(stream.encode(), digest_size=8).digest()[0] % GROUPS)


_short_group = lru_cache(maxsize=1 << 16)(_group)


@dataclass(frozen=True, eq=False)
class InStreams(Generic[Batch]):
    """Rows of several streams, together.

    Attributes:
        streams: distinct names, increasing; also of streams without rows, whose empty step is to be decided.
        starts: int64, shape (number of streams + 1,): the rows of stream i are starts[i] to starts[i + 1].
        batch: the rows, stream after stream, with the texts of the items of all.
    """

    streams: tuple[str, ...]
    starts: np.ndarray
    batch: Batch

    @property
    def codes(self) -> np.ndarray:
        """The place of each row's stream, int64, nondecreasing."""
        return np.repeat(np.arange(len(self.streams)), np.diff(self.starts))

    @classmethod
    def of(cls, stream: str, batch: Batch) -> InStreams[Batch]:
        """Return the rows of one stream."""
        return cls((stream,), np.array([0, len(batch.items)]), batch)

    @classmethod
    def empty(cls, kind: type[Batch], streams: Iterable[str]) -> InStreams[Batch]:
        """Return streams without rows."""
        names = tuple(sorted(streams))
        return cls(names, np.zeros(len(names) + 1, np.int64), kind.join([]))

    @classmethod
    def sort(cls, streams: Sequence[str], codes: np.ndarray, batch: Batch) -> InStreams[Batch]:
        """Bring rows into the order of increasing `streams`, to which `codes` point."""
        if len(streams) > 1:
            batch = rows_of(batch, np.argsort(codes, kind="stable"))
        starts = np.zeros(len(streams) + 1, np.int64)
        np.cumsum(np.bincount(codes, minlength=len(streams)), out=starts[1:])
        return cls(tuple(streams), starts, batch)

    @classmethod
    def join(cls, kind: type[Batch], parts: Sequence[InStreams[Batch]]) -> InStreams[Batch]:
        """Put rows together, stream by stream."""
        if len(parts) == 1:
            return parts[0]
        streams = sorted({stream for part in parts for stream in part.streams})
        code_of = {stream: code for code, stream in enumerate(streams)}
        places = [np.array([code_of[stream] for stream in part.streams], np.int64) for part in parts]
        rows: list[np.ndarray] = [
            np.repeat(place, np.diff(part.starts)) for place, part in zip(places, parts, strict=True)
        ]
        codes = np.concatenate([np.empty(0, np.int64), *rows])
        return cls.sort(streams, codes, kind.join([part.batch for part in parts]))

    @classmethod
    def from_bytes(cls, kind: type[Batch], data: bytes) -> InStreams[Batch]:
        """Decode what `to_bytes` wrote.

        Raises:
            SnapshotError: it was written by a version that kept each stream under keys of its own.
        """
        size = int.from_bytes(data[:4], "big")
        found: dict[str, Any] = unpack("streams of a batch", 1, data[4 : 4 + size])
        names = Names(np.arange(len(found["offsets"]) - 1, dtype=np.uint64), found["offsets"], found["text"])
        return cls(tuple(names.to_arrow().to_pylist()), found["starts"], decode(kind, data[4 + size :]))

    def to_bytes(self) -> bytes:
        """Encode; of batches that wait on disk (see `spill`) the names of streams stay here."""
        offsets, text = string_buffers(pa.array(self.streams, pa.large_string()))
        table = pack("streams of a batch", 1, {"offsets": offsets, "text": text, "starts": self.starts})
        return len(table).to_bytes(4, "big") + table + encode(self.batch)

    @property
    def users(self) -> np.ndarray:
        """Hashes of people, row by row; counts have none."""
        found: np.ndarray = vars(self.batch)["users"]
        return found

    @property
    def without_rows(self) -> list[str]:
        """The streams without rows."""
        return [self.streams[i] for i in np.flatnonzero(np.diff(self.starts) == 0).tolist()]

    def each(self) -> Iterator[tuple[str, Batch]]:
        """Yield the streams with their rows, and the texts of the items in these."""
        if len(self.streams) == 1:
            yield self.streams[0], self.batch
            return
        starts = self.starts.tolist()
        for i, stream in enumerate(self.streams):
            yield stream, _named(rows_of(self.batch, slice(starts[i], starts[i + 1])))

    def people(self) -> np.ndarray:
        """Return numbers of people, the same in rows of the same person and stream, in the order of streams."""
        if len(self.streams) == 1:
            return self.users
        codes, order = self.codes, np.lexsort((self.users, self.codes))
        users, streams = self.users[order], codes[order]
        first = np.ones(len(order), bool)
        first[1:] = (users[1:] != users[:-1]) | (streams[1:] != streams[:-1])
        number = np.empty(len(order), np.uint64)
        number[order] = np.cumsum(first) - 1
        return number

    def with_rows(self) -> InStreams[Batch]:
        """Leave out the streams without rows."""
        return self.take(np.arange(len(self.codes))) if self.without_rows else self

    def take(self, rows: np.ndarray) -> InStreams[Batch]:
        """Keep some rows, in increasing order, the texts that they need, and the streams that they are in."""
        held = np.bincount(self.codes[rows], minlength=len(self.streams))
        some = np.flatnonzero(held)
        starts = np.concatenate([[0], np.cumsum(held[some])])
        return InStreams(tuple(self.streams[i] for i in some.tolist()), starts, _named(rows_of(self.batch, rows)))


def _named(batch: Batch) -> Batch:
    """Return a batch with the texts of its items alone."""
    if not len(batch.names.items):
        return batch
    return replace(batch, names=batch.names.select(np.unique(batch.items)))


def seal_parts(key: StepKey, batch: HolderBatch) -> Iterator[bytes]:
    """Seal a batch in parts of `MOST_ROWS` at most; one without rows is one part."""
    for start in range(0, max(1, len(batch.users)), MOST_ROWS):
        part = rows_of(batch, slice(start, start + MOST_ROWS))
        yield seal(key, part if len(batch.users) <= MOST_ROWS else _named(part))


def rows_of(batch: Batch, rows: np.ndarray | slice) -> Batch:
    """Return some rows of a batch, with all its texts."""
    columns = {name: column for name, column in vars(batch).items() if name != "names" and column is not None}
    return replace(batch, **{name: column[rows] for name, column in columns.items()})
