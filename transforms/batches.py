"""Columnar batches between the stages, and their compact encoding: what travels is bytes."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from privstream.mechanisms.mechanism import pack, unpack
from privstream.transforms import spill

Keyed = tuple[bytes, bytes]
"""What travels from stage to stage: a record under a key."""

KeyedBatch = tuple[bytes, tuple[int, bytes]]
"""Step key; number of events in a batch, and the batch, encoded."""

_KEY = struct.Struct(">qI")


class StepKey(NamedTuple):
    """What a stage works on by itself: a step, and a shard of its people or items."""

    step: int
    shard: int

    def to_bytes(self) -> bytes:
        """Encode; equal keys have equal bytes."""
        return _KEY.pack(self.step, self.shard)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what `to_bytes` wrote, whatever follows it."""
        return cls(*_KEY.unpack_from(data))


@dataclass(frozen=True, eq=False)
class Names:
    """The texts behind item hashes, UTF-8, laid out as Arrow does."""

    items: np.ndarray  # uint64, strictly increasing
    offsets: np.ndarray  # int64, one more
    text: np.ndarray  # uint8

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
            return NO_NAMES
        texts = pa.concat_arrays([part.to_arrow() for part in parts])
        order = in_order(items)
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


NO_NAMES = Names(np.empty(0, np.uint64), np.zeros(1, np.int64), np.empty(0, np.uint8))


class Columns:
    """Columns of one key, and texts of its items; what the kinds of batches share."""

    items: np.ndarray
    names: Names

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Return several batches one after the other, with the names of all."""
        if len(parts) == 1:
            return parts[0]
        found: dict[str, Any] = {"names": Names.union([part.names for part in parts])}
        for name in [each.name for each in fields(cls) if each.name != "names"]:  # type: ignore[arg-type]
            present = [column for part in parts if (column := getattr(part, name)) is not None]
            found[name] = np.concatenate(present) if present else np.empty(0, KINDS[name]) if name in KINDS else None
        return cls(**found)

    @classmethod
    def read(cls, records: Iterable[bytes]) -> Self:
        """Return what `encode` made of several batches, one after the other."""
        parts = []
        for record in records:
            data = spill.fetch(record) if record.startswith(spill.REFERENCE) else record
            found: dict[str, Any] = unpack(cls.__name__, 1, data)
            names = Names(*(found.pop(f"names.{each.name}") for each in fields(Names)))
            parts.append(cls(**found, names=names))  # type: ignore[call-arg]
        return cls.join(parts)

    def some(self, rows: np.ndarray | slice) -> Self:
        """Return some rows, with the texts of their items alone."""
        columns = {name: column for name, column in vars(self).items() if name != "names" and column is not None}
        found = replace(self, **{name: column[rows] for name, column in columns.items()})  # type: ignore[type-var]
        if not len(self.names.items):
            return found
        return replace(found, names=self.names.select(distinct_in_order(found.items)))  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class EventBatch(Columns):
    """Events of one key: int64 microseconds, the hashes of person and item, and float64 values if they count."""

    users: np.ndarray
    items: np.ndarray
    times: np.ndarray
    names: Names
    values: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class HolderBatch(Columns):
    """Who holds what in one key, with the rank of each item among the person's items (uint16), and perhaps a value."""

    users: np.ndarray
    items: np.ndarray
    ranks: np.ndarray
    names: Names
    values: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class CountBatch(Columns):
    """How many people have each item in one key: items, distinct unless batches were joined, and int64 counts.

    Where they are needed, there are also int64 columns with how many of the people are `new`, who never had the item
    before, or whom a list counts for it from now on, and with the `sums` of their values.
    """

    items: np.ndarray
    counts: np.ndarray
    names: Names
    new: np.ndarray | None = None
    sums: np.ndarray | None = None


KINDS = {"users": np.uint64, "items": np.uint64, "times": np.int64, "ranks": np.uint16, "counts": np.int64}
"""Columns that every batch of a kind has."""


def first_of_run(*columns: np.ndarray) -> np.ndarray:
    """Mark the rows of sorted columns that differ from the row before."""
    first = np.ones(len(columns[0]), bool)
    if len(first):
        first[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return first


def in_order(numbers: np.ndarray) -> np.ndarray:
    """Return the stable order of numbers, uint64, in half of the time of `argsort` where their first bits differ."""
    bits = np.uint64((1 << len(numbers).bit_length()) - 1)
    packed = (numbers & ~bits) | np.arange(len(numbers), dtype=np.uint64)
    packed.sort()  # integers that are distinct: the fastest sort there is
    order = (packed & bits).astype(np.int64)
    ordered = numbers[order]
    wrong = np.flatnonzero(ordered[1:] < ordered[:-1])
    if len(wrong):  # numbers with the same first bits stand together: they are put in order by the others
        alike = np.cumsum(first_of_run(packed & ~bits))
        rows = np.flatnonzero(np.isin(alike, alike[wrong]))
        order[rows] = order[rows][np.argsort(ordered[rows], kind="stable")]
    return order


def distinct_in_order(numbers: np.ndarray) -> np.ndarray:
    """Return distinct numbers, increasing: as `np.unique` does, which takes several times as long."""
    ordered = np.sort(numbers)
    return np.asarray(ordered[first_of_run(ordered)])


def totals(groups: np.ndarray, values: np.ndarray, number: int) -> np.ndarray:
    """Return the sums, int64, of integers in groups 0 .. `number` - 1."""
    found = np.zeros(number, np.int64)
    np.add.at(found, groups, values)
    return found


def encode(batch: Columns) -> bytes:
    """Encode a batch as bytes, or a reference to them (see `spill`); a column that it does not have leaves no trace."""
    columns = {name: column for name, column in vars(batch).items() if name != "names" and column is not None}
    names = {f"names.{name}": column for name, column in vars(batch.names).items()}
    data = pack(type(batch).__name__, 1, columns | names)
    return spill.keep(data) if len(data) >= spill.SMALLEST and spill.waiting() else data


MOST_SHARDS = 32_768
"""As many as Flink has groups of keys: more cannot work side by side, and a stage goes through them for each batch."""

# fmt: off
EVENLY_SPREAD = (
    23, 134, 43, 31, 32, 115, 79, 55, 97, 29, 271, 19, 55, 31, 95, 30, 233, 11, 216, 40, 52, 223, 128, 135, 45,
    61, 179, 226, 10, 183, 191, 131, 245, 199, 79, 354, 20, 75, 184, 88, 56, 85, 211, 249, 72, 52, 64, 140, 56, 7,
    2, 13, 32, 98, 215, 71, 552, 37, 313, 61, 298, 22, 179, 4, 212, 3, 0, 3, 9, 60, 38, 146, 85, 60, 83, 414, 378,
    61, 48, 97, 52, 50, 253, 121, 86, 77, 122, 10, 54, 116, 85, 3, 65, 38, 3, 230, 111, 11, 102, 17, 171, 57, 85,
    173, 74, 202, 33, 372, 176, 107, 79, 132, 198, 408, 8, 47, 37, 185, 48, 611, 77, 41, 129, 40, 151, 100, 147,
    41,
)
# fmt: on
"""What stands in place of a step in the keys of shards. Flink hands keys to slots by a hash, its murmur of Beam's
`FlinkKey` (murmur3, 128 bits, of the key with its length before it): of 16 keys that only count one of four slots gets
2, and another 6. With these the i-th key lies in the group of keys whose number is i with its seven bits reversed, so
that the first n are spread over any number of slots as evenly as can be."""


def shard_key(shard: int) -> bytes:
    """Return the key under which a stage keeps what it remembers of a shard, of people or of items."""
    return StepKey(EVENLY_SPREAD[shard] if shard < len(EVENLY_SPREAD) else 0, shard).to_bytes()


def string_buffers(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets (int64, starting at 0) and bytes (uint8) of an Arrow string array without nulls."""
    texts = texts.cast(pa.large_string())
    _, offsets_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    text = np.empty(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return offsets - offsets[0], text[offsets[0] : offsets[-1]]


def take_arguments(stage: object, given: Mapping[str, Any]) -> None:
    """Set the attributes that a stage is made with; refuse names that it has not."""
    known = {name for kind in type(stage).__mro__ for name in (*vars(kind), *vars(kind).get("__annotations__", ()))}
    if unknown := given.keys() - known:
        raise TypeError(f"{type(stage).__name__} has no {', '.join(sorted(unknown))}")
    vars(stage).update(given)


def to_stream(table: pa.Table) -> bytes:
    """Return a table as an Arrow stream."""
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return stream.getvalue()


def from_stream(data: Any) -> pa.Table:
    """Return the table of an Arrow stream."""
    return pa.ipc.open_stream(data).read_all()
