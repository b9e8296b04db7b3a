"""A public list of items: only these are monitored, whether anybody has them or not."""

from __future__ import annotations

import codecs
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Union
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import Names, string_buffers
from privstream.transforms.reading.texts import AS_WRITTEN, Spelling

COMPRESSED = (".bz2", ".deflate", ".gz", ".lzma", ".xz", ".zst", ".zstd")
"""How names of files end whose contents Beam decompresses."""

Items = Union["Domain", Sequence[str]]
"""A public list of items, as transforms take it."""


class Domain:
    """Distinct items in sorted order, given as a list or read by each worker from a file.

    Args:
        items: texts; at least one, distinct, not empty.
        name: of the argument, for errors.

    Attributes:
        texts: the items, in order, an Arrow array.
        digest: the same for the same items, whatever their order and where they come from.
    """

    def __init__(self, items: Iterable[str], name: str = "domain") -> None:
        texts = list(items)
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"{name} must hold texts, got {type(text).__name__}")
        texts.sort()
        if not texts:
            raise ValueError(f"{name} must name at least one item")
        if not texts[0] or any(one == other for one, other in itertools.pairwise(texts)):
            raise ValueError(f"{name} must hold distinct items, none of them empty")
        self.digest = hashlib.blake2b(json.dumps(texts).encode(), digest_size=16).hexdigest()
        self._place: Place | None = None
        data = [text.encode() for text in texts]  # `pa.array` loads pandas for a list, where it is installed
        offsets = np.cumsum([0, *map(len, data)], dtype=np.int64)
        buffers = pa.py_buffer(offsets), pa.py_buffer(b"".join(data))
        self.texts = pa.LargeStringArray.from_buffers(len(data), *buffers).cast(pa.string())

    @classmethod
    def of(cls, items: Items, name: str = "domain") -> Domain:
        """Return a list of items as a domain: a list, a tuple, or a column of numpy, Arrow, pandas or Polars.

        Raises:
            TypeError: it is none, but a text, a mapping, a frame, or what can be read only once.
            ValueError: see `Domain`.
        """
        if isinstance(items, Domain):
            return items
        other = isinstance(items, str | bytes | Mapping) or hasattr(items, "columns")
        if other or not hasattr(items, "__len__"):
            raise TypeError(f"{name} must be a Domain or a list of texts, got {type(items).__name__}")
        return cls(items.to_pylist() if isinstance(items, pa.Array | pa.ChunkedArray) else items, name)

    @classmethod
    def from_file(
        cls,
        path: str,
        digest: str | None = None,
        name: str = "domain",
        encoding: str = "utf-8",
        spelling: Spelling = AS_WRITTEN,
    ) -> Domain:
        """Read one item per line from any file system that Beam knows, in an encoding of Python.

        Each worker reads the file for itself; one that finds another content than at launch refuses to run.
        """
        if os.path.exists(path) and not os.path.isfile(path):
            raise ValueError(f"{name} must be a readable file, got {path!r}: it is no regular file")
        try:
            content = _content(path)
            read = codecs.getincrementaldecoder("utf-8" if content.startswith(codecs.BOM_UTF8) else encoding)()
            text = read.decode(content, final=True).removeprefix("\ufeff").replace("\r\n", "\n").removesuffix("\n")
            lines = spelling.listed(text.split("\n") if text else [])
        except UnicodeError:  # or of one without its byte order mark
            raise ValueError(f"{name} must be a file of {encoding.upper()} text") from None
        except OSError as error:
            raise ValueError(
                f"{name} must be a readable file, got {path!r}: {error.strerror or type(error).__name__}"
            ) from None
        domain = cls(lines, name)
        if digest is not None and digest != domain.digest:
            raise ValueError(f"{name} must be the same file on every worker as at launch, {path!r} differs")
        domain._place = path, domain.digest, name, encoding, spelling
        return READ.setdefault(domain._place, domain)

    def __reduce__(self) -> tuple[object, ...]:
        if self._place is not None:
            return _read_once, self._place
        return Domain, (self.texts.to_pylist(),)

    def __repr__(self) -> str:
        return f"<Domain of {len(self):,} items>"

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, position: int) -> str:
        return str(self.texts[position].as_py())

    def positions(self, texts: pa.Array) -> np.ndarray:
        """Return the position (int64) of each text; -1 for one that is not in the domain."""
        return np.asarray(pc.fill_null(pc.index_in(texts, self.texts), -1).to_numpy(), np.int64)

    def codes(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return the position of the item of each event."""
        return self.positions(batch["item"])


Place = tuple[str, str, str, str, Spelling]
"""The arguments of `Domain.from_file`."""

READ: WeakValueDictionary[Place, Domain] = WeakValueDictionary()
"""The lists of this process, by file and digest: each of some twenty stages, and each bundle, would read its own."""


def _content(path: str) -> bytes:
    """Return what is in a file, which Beam reads where it is none of this machine, or is compressed."""
    if os.path.isfile(path) and not path.endswith(COMPRESSED):
        return Path(path).read_bytes()
    from apache_beam.io.filesystems import FileSystems  # noqa: PLC0415 - late: plans need no Beam

    with FileSystems.open(path) as file:
        content: bytes = file.read()
    return content


def _read_once(*place: Any) -> Domain:
    """Return the list of a file as it was at launch, which a stage of this process may have read already."""
    found = READ.get(place)
    return Domain.from_file(*place) if found is None else found


@dataclass(frozen=True)
class PublicKeys:
    """The keys of a public list of items beside those that are found.

    Attributes:
        items: the list.
        noise: of the run, which turns items into keys.
    """

    items: Domain
    noise: NoiseSource

    @cached_property
    def names(self) -> Names:
        """The keys, increasing, with their texts."""
        hashed = self.noise.derive("item hash").hash_bytes(*reversed(string_buffers(self.items.texts)))
        keys, first = np.unique(hashed, return_index=True)
        return Names.of(keys, self.items.texts.take(pa.array(first)))

    def of_shard(self, shard: int, key_shards: int) -> Names:
        """Return those of a shard."""
        keys = self.names.items
        return self.names.select(keys[keys % np.uint64(key_shards) == shard])
