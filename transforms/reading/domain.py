"""Items as text: joined columns, spelling, public lists."""

from __future__ import annotations

import codecs
import csv
import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Union

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import Names, string_buffers
from privstream.transforms.reading.fields import LONGEST_TEXT, TEXT, kind_of, unchecked_text

MOST_COLUMNS = 16  # of an item

QUOTED = re.compile('[",]')
_PARTS = re.compile(r'(?:\A|, )(?:"((?:[^"]|"")*)"|([^",]*))')


def column_names(text: str) -> tuple[str, ...]:
    """Return the names of the columns of an item, as in a line of CSV: a name with a comma stands in quotes.

    Raises:
        ValueError: they are not such a line, too many, or not distinct.
    """
    names = line_of_csv("item", text) if text else ("",)
    if len(names) > MOST_COLUMNS:
        raise ValueError(f"item must name at most {MOST_COLUMNS} columns, got {len(names)}")
    if len(names) > 1 and "" in names:
        raise ValueError("item must be names with commas between them, none of them empty")
    if len(set(names)) < len(names):
        raise ValueError(f"item must name different columns, got {', '.join(names)}")
    return names


def line_of_csv(name: str, text: str) -> tuple[str, ...]:
    """Return the fields of a line of CSV."""
    try:
        rows = list(csv.reader([text], strict=True))
    except csv.Error:
        rows = []
    if len(rows) != 1:
        raise ValueError(f"{name} must have the form of a line of CSV, quotes around a text with commas, got {text!r}")
    return tuple(rows[0])


def join_item(parts: Sequence[str]) -> str:
    """Return one text for an item of several columns, such as `de, "a,b"`; different items give different texts."""
    doubled = [part.replace('"', '""') for part in parts]
    return ", ".join(f'"{two}"' if QUOTED.search(one) else one for one, two in zip(parts, doubled, strict=True))


def join_columns(columns: Sequence[pa.Array]) -> pa.Array:
    """Return the texts of `join_item` for columns of text, without nulls, of equal length."""
    texts = []
    for column in columns:
        doubled = pc.replace_substring(column, '"', '""')
        quoted = pc.binary_join_element_wise('"', doubled, '"', "")
        texts.append(pc.if_else(pc.match_substring_regex(column, QUOTED.pattern), quoted, column))
    return pc.binary_join_element_wise(*texts, ", ")


def split_item(text: str, columns: int) -> tuple[str, ...]:
    """Return the columns of an item from the text that `join_item` made.

    Raises:
        ValueError: it did not make it from that many columns.
    """
    parts = tuple(quoted.replace('""', '"') or plain for quoted, plain in _PARTS.findall(text))
    if len(parts) != columns or join_item(parts) != text:
        raise ValueError(f"item must be one of {columns} columns")
    return parts


def listed_item(name: str, text: str, columns: int) -> str:
    """Return an item of a public list, which is written as a line of CSV, as the text that stands for it inside.

    Raises:
        ValueError: it has another number of columns, or an empty one; items of lists are public and may be quoted.
    """
    parts = line_of_csv(name, text)
    if len(parts) != columns or "" in parts:
        raise ValueError(f"{name} must have items of {columns} columns, each a line of CSV, none empty, got {text!r}")
    return join_item(parts)


AROUND = "^[\t-\r \u0085\u00a0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u3000\ufeff]+"
AROUND += AROUND.replace("^[", "|[") + "$"
"""White space at the beginning and at the end of a text, with what has no width; for Arrow and Python alike."""

FOLDED = ("item",)
"""What is read without regard to case: identifiers of people may differ by that alone."""


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """How texts are read.

    Attributes:
        null: texts that stand for no value, in addition to the empty one.
        trim: whether white space around text is dropped.
        normalize: whether Unicode is composed (NFC), so that an accent within a letter and one behind it are the same.
        fold_case: whether items are the same in large and small letters.
    """

    null: tuple[str, ...] = ()
    trim: bool = False
    normalize: bool = False
    fold_case: bool = False

    def column(self, column: pa.Array, *, written: bool = False) -> pa.Array:
        """Return a column without white space and texts that stand for nothing: see `unchecked_text`."""
        text = unchecked_text(column, written=written)
        if not (self.trim or self.null) or kind_of(text.type) != TEXT:
            return text
        text = unchecked_text(text.cast(pa.large_binary()))
        if self.trim:
            text = pc.replace_substring_regex(text, AROUND, "")
        nothing = pa.array(sorted(set(self.null)), pa.large_string())
        return pc.if_else(pc.is_in(text, nothing), pa.scalar(None, text.type), text) if self.null else text

    def letters(self, name: str, text: str) -> str:
        """Return a text that says `name`, with its letters as they are read."""
        text = unicodedata.normalize("NFC", text) if self.normalize else text
        text = text.casefold() if self.fold_case and name in FOLDED else text
        return unicodedata.normalize("NFC", text) if self.normalize else text

    def texts(self, name: str, column: pa.Array) -> pa.Array:
        """Return a column of valid text that says `name`, with its letters as they are read."""
        if not self.normalize and not (self.fold_case and name in FOLDED):
            return column
        coded = column.dictionary_encode()
        distinct = [self.letters(name, text) for text in coded.dictionary.to_pylist()]
        return pa.array(distinct, coded.dictionary.type).take(coded.indices)

    def item(self, text: str) -> str:
        """Return a public item as those of events are read."""
        text = re.sub(AROUND, "", text) if self.trim and isinstance(text, str) else text
        return self.letters("item", text) if isinstance(text, str) else text

    def listed(self, texts: Iterable[str]) -> list[str]:
        """Return the items of a public list as those of events are read; what becomes the same stands once."""
        given = list(texts)
        found = list(map(self.item, given))
        if any(text in self.null for text in found):
            raise ValueError("a public list must not have texts that --null treats as missing")
        return list(dict.fromkeys(found)) if found != given else found


AS_WRITTEN = Spelling()


COMPRESSED = (".bz2", ".deflate", ".gz", ".lzma", ".xz", ".zst", ".zstd")
"""How names of files end whose contents Beam decompresses."""

Items = Union["Domain", Sequence[str]]
"""A public list of items, as transforms take it."""


class Domain:
    """Distinct items in sorted order, given as a list or read from a file.

    Args:
        items: texts; at least one, distinct, not empty.
        name: of the argument, for errors.

    Attributes:
        texts: the items, in order, an Arrow array.
        digest: the same for the same items, whatever their order and where they come from.
        read_as: the encoding that a file of them was read in, in brackets.
    """

    read_as = ""

    def __init__(self, items: Iterable[str], name: str = "domain") -> None:
        texts = list(items)
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"{name} must hold texts, got {type(text).__name__}")
        texts.sort()
        if not texts or not texts[0] or len(set(texts)) < len(texts):
            raise ValueError(f"{name} must hold distinct items, at least one, none of them empty")
        self.digest = hashlib.blake2b(json.dumps(texts).encode(), digest_size=16).hexdigest()
        self.texts = pa.array(texts, pa.string())
        if pc.max(pc.binary_length(self.texts)).as_py() > LONGEST_TEXT:
            raise ValueError(f"{name} must hold items of at most {LONGEST_TEXT:,} bytes of UTF-8, as events have")

    @classmethod
    def of(cls, items: Items, name: str = "domain") -> Domain:
        """Return a list of items as a domain: a list, a tuple, or a column of numpy, Arrow, pandas or Polars."""
        if isinstance(items, Domain):
            return items
        other = isinstance(items, str | bytes | Mapping) or hasattr(items, "columns")
        if other or not hasattr(items, "__len__"):
            raise TypeError(f"{name} must be a Domain or a list of texts, got {type(items).__name__}")
        return cls(items.to_pylist() if isinstance(items, pa.Array | pa.ChunkedArray) else items, name)

    @classmethod
    def from_file(
        cls, path: str, name: str = "domain", encoding: str = "utf-8", spelling: Spelling = AS_WRITTEN
    ) -> Domain:
        """Read one item per line from any file system that Beam knows, in an encoding of Python."""
        if os.path.exists(path) and not os.path.isfile(path):
            raise ValueError(f"{name} must be a readable file, got {path!r}: it is no regular file")
        try:
            if os.path.isfile(path) and not path.endswith(COMPRESSED):
                content = Path(path).read_bytes()
            else:
                from apache_beam.io.filesystems import FileSystems  # noqa: PLC0415 - late: plans need no Beam

                with FileSystems.open(path) as file:
                    content = file.read()
            encoding = "utf-8" if content.startswith(codecs.BOM_UTF8) else encoding
            read = codecs.getincrementaldecoder(encoding)()
            text = read.decode(content, final=True).removeprefix("\ufeff").replace("\r\n", "\n").removesuffix("\n")
            lines = spelling.listed(text.split("\n") if text else [])
        except UnicodeError:  # or of one without its byte order mark
            raise ValueError(f"{name} must be a file of {encoding.upper()} text") from None
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise ValueError(f"{name} must be a readable file, got {path!r}: {why}") from None
        found = cls(lines, name)
        found.read_as = f" (read as {encoding})"
        return found

    def __repr__(self) -> str:
        return f"<Domain of {len(self):,} items>"

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, position: int) -> str:
        return str(self.texts[position].as_py())

    def codes(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return the position (int64) of each item; -1 for one that is not in the domain."""
        return np.asarray(pc.fill_null(pc.index_in(batch["item"], self.texts), -1).to_numpy(), np.int64)


def public_keys(items: Domain, noise: NoiseSource) -> Names:
    """Return the keys into which the noise of a run turns a public list, increasing, with their texts."""
    hashed = noise.derive("item hash").hash_bytes(*reversed(string_buffers(items.texts)))
    keys, first = np.unique(hashed, return_index=True)
    return Names.of(keys, items.texts.take(pa.array(first)))
