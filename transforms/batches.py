"""Columnar batches between the stages, of one stream or of many, and their compact encoding: what travels is bytes."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import pyarrow as pa
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.spill import fetch, put_away, release, size_of

Keyed = tuple[bytes, bytes]
"""What travels from stage to stage: a record under a key."""

KeyedBatch = tuple[bytes, tuple[bytes, bytes]]
"""Step key; digest and encoded batch, or joined markers and nothing."""

DIGEST_BYTES = 16


def digest(data: bytes) -> bytes:
    """Return bytes that stand for an encoded batch."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


class StepKey(NamedTuple):
    """What a stage works on by itself: a stream, a step, and a shard of its people or items."""

    stream: str
    step: int
    shard: int

    def to_bytes(self) -> bytes:
        """Encode; equal keys have equal bytes."""
        return struct.pack(">qI", self.step, self.shard) + self.stream.encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what `to_bytes` wrote."""
        step, shard = struct.unpack_from(">qI", data)
        return cls(data[12:].decode(), step, shard)


@dataclass(frozen=True, eq=False)
class Names:
    """The texts behind item hashes.

    Attributes:
        items: uint64, shape (n,), strictly increasing.
        offsets: int64, shape (n + 1,), and
        text: uint8: UTF-8, laid out as Arrow does.
    """

    items: np.ndarray
    offsets: np.ndarray
    text: np.ndarray

    @classmethod
    def none(cls) -> Names:
        """Name nothing."""
        return cls(np.empty(0, np.uint64), np.zeros(1, np.int64), np.empty(0, np.uint8))

    @classmethod
    def of(cls, items: np.ndarray, texts: pa.Array) -> Names:
        """Pair strictly increasing hashes with their texts."""
        offsets, text = string_buffers(texts)
        return cls(items, offsets, text)

    @classmethod
    def union(cls, parts: Sequence[Names]) -> Names:
        """Merge tables; a hash that stands in several keeps one text."""
        if len(parts) == 1:
            return parts[0]
        items = np.concatenate([part.items for part in parts]) if parts else np.empty(0, np.uint64)
        if not len(items):
            return cls.none()
        texts = pa.concat_arrays([part.to_arrow() for part in parts])
        order = in_order(items, runs=True)
        first = order[first_of_run(items[order])]
        return cls.of(items[first], texts.take(pa.array(first)))

    def select(self, items: np.ndarray) -> Names:
        """Keep the strictly increasing `items`, all of which must be named."""
        return Names.of(items, self.texts(items))

    def texts(self, items: np.ndarray) -> pa.LargeStringArray:
        """Return the texts of `items`, in any order, all of which must be named."""
        return self.to_arrow().take(pa.array(np.searchsorted(self.items, items)))

    def to_arrow(self) -> pa.LargeStringArray:
        """View the texts as an Arrow array."""
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.text)]
        return pa.Array.from_buffers(pa.large_string(), len(self.items), buffers)

    def __getitem__(self, item: int) -> str:
        place = int(np.searchsorted(self.items, np.uint64(item)))
        if place == len(self.items) or int(self.items[place]) != item:
            raise LookupError("an item has no name")
        return bytes(self.text[self.offsets[place] : self.offsets[place + 1]]).decode()


@dataclass(frozen=True, eq=False)
class EventBatch:
    """Events of one key: int64 microseconds beside the hashes of person and item, and float64 values if they count."""

    users: np.ndarray
    items: np.ndarray
    times: np.ndarray
    names: Names
    values: np.ndarray | None = None

    @classmethod
    def join(cls, parts: Sequence[EventBatch]) -> EventBatch:
        """Put events together."""
        return cls(
            users=np.concatenate([np.empty(0, np.uint64), *(part.users for part in parts)]),
            items=np.concatenate([np.empty(0, np.uint64), *(part.items for part in parts)]),
            times=np.concatenate([np.empty(0, np.int64), *(part.times for part in parts)]),
            names=Names.union([part.names for part in parts]),
            values=_joined([part.values for part in parts]),
        )


@dataclass(frozen=True, eq=False)
class HolderBatch:
    """Who holds what in one key, with the rank of each item among the person's items (uint16), and perhaps a value."""

    users: np.ndarray
    items: np.ndarray
    ranks: np.ndarray
    names: Names
    values: np.ndarray | None = None

    @classmethod
    def join(cls, parts: Sequence[HolderBatch]) -> HolderBatch:
        """Put holdings together."""
        return cls(
            users=np.concatenate([np.empty(0, np.uint64), *(part.users for part in parts)]),
            items=np.concatenate([np.empty(0, np.uint64), *(part.items for part in parts)]),
            ranks=np.concatenate([np.empty(0, np.uint16), *(part.ranks for part in parts)]),
            names=Names.union([part.names for part in parts]),
            values=_joined([part.values for part in parts]),
        )

    def take(self, rows: np.ndarray) -> HolderBatch:
        """Keep some rows, and the names that they need."""
        items = self.items[rows]
        names = self.names.select(distinct_in_order(items)) if len(self.names.items) else self.names
        values = None if self.values is None else self.values[rows]
        return HolderBatch(self.users[rows], items, self.ranks[rows], names, values)


@dataclass(frozen=True, eq=False)
class CountBatch:
    """How many people have each item in one key: items, distinct unless batches were joined, and int64 counts.

    Where they are needed, there are also int64 columns with how many of the people are `new`, who never had the item
    before, or whom a list counts for it from now on, and with the `sums` of their values.
    """

    items: np.ndarray
    counts: np.ndarray
    names: Names
    new: np.ndarray | None = None
    sums: np.ndarray | None = None

    @classmethod
    def join(cls, parts: Sequence[CountBatch]) -> CountBatch:
        """Put counts together."""
        return cls(
            items=np.concatenate([np.empty(0, np.uint64), *(part.items for part in parts)]),
            counts=np.concatenate([np.empty(0, np.int64), *(part.counts for part in parts)]),
            names=Names.union([part.names for part in parts]),
            new=_joined([part.new for part in parts]),
            sums=_joined([part.sums for part in parts]),
        )


def first_of_run(*columns: np.ndarray) -> np.ndarray:
    """Mark the rows of sorted columns that differ from the row before."""
    first = np.ones(len(columns[0]), bool)
    if len(first):
        first[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return first


def in_order(numbers: np.ndarray, *, runs: bool = False) -> np.ndarray:
    """Return the stable order of numbers, uint64, in half of the time of `argsort` where their first bits differ.

    `runs`: whether they are a few increasing sequences, one after the other, which are merged in less time.
    """
    bits = np.uint64((1 << len(numbers).bit_length()) - 1)
    packed = (numbers & ~bits) | np.arange(len(numbers), dtype=np.uint64)
    packed.sort(kind="stable" if runs else None)  # integers that are distinct: the fastest sort there is
    order = (packed & bits).astype(np.int64)
    ordered = numbers[order]
    wrong = np.flatnonzero(ordered[1:] < ordered[:-1])
    if len(wrong):  # numbers with the same first bits stand together: they are put in order by the others
        alike = np.cumsum(first_of_run(packed & ~bits))
        rows = np.flatnonzero(np.isin(alike, alike[wrong]))
        order[rows] = order[rows][np.argsort(ordered[rows], kind="stable")]
    return order


def distinct_in_order(numbers: np.ndarray) -> np.ndarray:
    """Return distinct numbers, increasing: what `np.unique` gives, by a hash table, in several times the time."""
    ordered = np.sort(numbers)
    return np.asarray(ordered[first_of_run(ordered)])


def totals(groups: np.ndarray, values: np.ndarray, number: int) -> np.ndarray:
    """Return the sums, int64, of integers in groups 0 .. `number` - 1."""
    found = np.zeros(number, np.int64)
    np.add.at(found, groups, values)
    return found


def _joined(columns: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Put a column together that all batches have, or none."""
    present = [column for column in columns if column is not None]
    return np.concatenate(present) if present else None


Batch = TypeVar("Batch", EventBatch, HolderBatch, CountBatch)


def encode(batch: EventBatch | HolderBatch | CountBatch) -> bytes:
    """Encode a batch as bytes, or a reference to them (see `spill`); a column that it does not have leaves no trace."""
    columns = {f.name: getattr(batch, f.name) for f in fields(batch) if f.name != "names"}
    columns = {name: column for name, column in columns.items() if column is not None}
    names = {f"names.{f.name}": getattr(batch.names, f.name) for f in fields(Names)}
    return put_away(pack(type(batch).__name__, 1, columns | names))


def decode(kind: type[Batch], data: bytes) -> Batch:
    """Decode a batch from what `encode` returned."""
    found: dict[str, Any] = unpack(kind.__name__, 1, fetch(data))
    names = Names(**{f.name: found[f"names.{f.name}"] for f in fields(Names)})
    return kind(**{f.name: found[f.name] for f in fields(kind) if f.name in found}, names=names)


def seal(key: StepKey, batch: HolderBatch | CountBatch) -> bytes:
    """Encode a batch together with the key that it belongs to."""
    return seal_encoded(key, encode(batch))


def seal_encoded(key: StepKey, data: bytes) -> bytes:
    """Put what `encode` returned together with the key that it belongs to."""
    label = key.to_bytes()
    return len(label).to_bytes(4, "big") + label + data


def sealed_key(record: bytes) -> StepKey:
    """Return the key in what `seal` returned."""
    return StepKey.from_bytes(record[4 : 4 + int.from_bytes(record[:4], "big")])


def sealed_batch(record: bytes) -> bytes:
    """Return the encoded batch in what `seal` returned."""
    return record[4 + int.from_bytes(record[:4], "big") :]


def unseal(kind: type[Batch], record: bytes) -> Batch:
    """Return the batch in what `seal` returned."""
    return decode(kind, sealed_batch(record))


def string_buffers(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets (int64, starting at 0) and bytes (uint8) of an Arrow string array without nulls."""
    texts = texts.cast(pa.large_string())
    _, offsets_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    text = np.empty(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return offsets - offsets[0], text[offsets[0] : offsets[-1]]


GROUPS = 4
"""Of streams, where a job may be restored: the same in each, so that it finds its keys again. It changes no answer."""


MOST_ROWS = 1 << 18
"""Rows of a record for a stage with a key for each stream: a runner must have room for some of them at once."""

SHORT = 64
"""Longest name of a stream, in characters, that is kept at hand beyond its rows: anybody may send names."""


def group_of(stream: str, groups: int) -> str:
    """Return the name of the one of so many groups that a stream is in; who chooses names of streams can fill one."""
    return _short_group(stream, groups) if len(stream) <= SHORT else _group(stream, groups)


def _group(stream: str, groups: int) -> str:
    return str(hashlib.blake2b(stream.encode(), digest_size=8).digest()[0] % groups)


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
        return cls(tuple(names.to_arrow().to_pylist()), found["starts"], decode(kind, _encoded(data)))

    @staticmethod
    def bytes_of(data: bytes) -> int:
        """Return how many bytes a batch has that `to_bytes` wrote, without reading it."""
        return size_of(_encoded(data))

    @staticmethod
    def release(data: bytes) -> None:
        """Free the disk under what `to_bytes` wrote: nobody reads it again."""
        release(_encoded(data))

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

    def take(self, rows: np.ndarray, *, named: bool = True) -> InStreams[Batch]:
        """Keep some rows, in increasing order, the streams that they are in, and the texts that they need, or, unless
        `named`, all texts, which takes less time.
        """
        held = np.bincount(self.codes[rows], minlength=len(self.streams))
        some = np.flatnonzero(held)
        starts = np.concatenate([[0], np.cumsum(held[some])])
        kept = rows_of(self.batch, rows)
        return InStreams(tuple(self.streams[i] for i in some.tolist()), starts, _named(kept) if named else kept)


def _named(batch: Batch) -> Batch:
    """Return a batch with the texts of its items alone."""
    if not len(batch.names.items):
        return batch
    items = batch.items if np.all(batch.items[1:] > batch.items[:-1]) else distinct_in_order(batch.items)
    return replace(batch, names=batch.names.select(items))


def _encoded(data: bytes) -> bytes:
    """Return the rows in what `InStreams.to_bytes` returned."""
    return data[4 + int.from_bytes(data[:4], "big") :]


def seal_parts(key: StepKey, batch: HolderBatch) -> Iterator[bytes]:
    """Seal a batch in parts of `MOST_ROWS` at most; one without rows is one part."""
    for start in range(0, max(1, len(batch.users)), MOST_ROWS):
        part = rows_of(batch, slice(start, start + MOST_ROWS))
        yield seal(key, part if len(batch.users) <= MOST_ROWS else _named(part))


def rows_of(batch: Batch, rows: np.ndarray | slice) -> Batch:
    """Return some rows of a batch, with all its texts."""
    columns = {name: column for name, column in vars(batch).items() if name != "names" and column is not None}
    return replace(batch, **{name: column[rows] for name, column in columns.items()})
