"""What is the same in texts that are written differently, in events and in public lists of items."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from privstream.transforms.reading.columns import is_text, unchecked_text

AROUND = "^[\t-\r \u0085\u00a0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u3000\ufeff]+"
AROUND += AROUND.replace("^[", "|[") + "$"
"""White space at the beginning and at the end of a text, with what has no width; for Arrow and Python alike."""

FOLDED = ("item",)
"""What is read without regard to case: identifiers of people may differ by that alone."""


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """How texts are read.

    Attributes:
        null: texts that stand for no value, beside the empty one.
        trim: whether white space around text is left out.
        normalize: whether Unicode is composed (NFC), so that an accent within a letter and one behind it are the same.
        fold_case: whether items are the same in large and small letters.
    """

    null: tuple[str, ...] = ()
    trim: bool = False
    normalize: bool = False
    fold_case: bool = False

    def column(self, column: pa.Array) -> pa.Array:
        """Return a column without white space and texts that stand for nothing; it need not be valid UTF-8."""
        text = unchecked_text(column)
        if not (self.trim or self.null) or not is_text(text.type):
            return text
        if pa.types.is_dictionary(text.type):
            return pa.DictionaryArray.from_arrays(text.indices, self.column(text.dictionary), safe=False)
        text = unchecked_text(text.cast(pa.large_binary()))
        if self.trim:
            text = pc.replace_substring_regex(text, AROUND, "")
        nothing = pa.array(sorted(set(self.null)), pa.large_string())
        return pc.if_else(pc.is_in(text, nothing), pa.scalar(None, text.type), text) if self.null else text

    def value(self, value: Any) -> Any:
        """Return a single value: text for bytes, in which what is no UTF-8 can be told, and None for nothing."""
        found = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
        if not isinstance(found, str):
            return found
        found = re.sub(AROUND, "", found) if self.trim else found
        return None if not found or found in self.null else found

    def letters(self, name: str) -> Callable[[str], str] | None:
        """Return what a text that says `name` becomes for its letters; None if it stays as it is."""
        fold = self.fold_case and name in FOLDED
        if not (fold or self.normalize):
            return None

        def spelled(text: str) -> str:
            text = unicodedata.normalize("NFC", text) if self.normalize else text
            text = text.casefold() if fold else text
            return unicodedata.normalize("NFC", text) if self.normalize else text

        return spelled

    def texts(self, name: str, column: pa.Array) -> pa.Array:
        """Return a column of valid text that says `name`, with its letters as they are read."""
        spelled = self.letters(name)
        if spelled is None:
            return column
        coded = column.dictionary_encode()
        distinct = pa.array([spelled(text) for text in coded.dictionary.to_pylist()], coded.dictionary.type)
        return distinct.take(coded.indices)

    def item(self, text: str) -> str:
        """Return a public item as those of events are read."""
        text = re.sub(AROUND, "", text) if self.trim and isinstance(text, str) else text
        spelled = self.letters("item")
        return text if spelled is None or not isinstance(text, str) else spelled(text)

    def listed(self, texts: Iterable[str]) -> list[str]:
        """Return the items of a public list as those of events are read; what becomes the same stands once.

        Raises:
            ValueError: a text stands for no value.
        """
        given = list(texts)
        found = list(map(self.item, given))
        if any(text in self.null for text in found):
            raise ValueError("a public list must not have texts that --null says stand for nothing")
        return list(dict.fromkeys(found)) if found != given else found


AS_WRITTEN = Spelling()


def number_alike(names: Iterable[str]) -> int:
    """Return how many names differ from another one only in large and small letters, or in how they are composed.

    >>> number_alike(["Milk", "MILK", "rain"])
    2
    """
    nfc = unicodedata.normalize
    alike = Counter(nfc("NFC", nfc("NFC", name).casefold()) for name in set(names))
    return sum(number for number in alike.values() if number > 1)
