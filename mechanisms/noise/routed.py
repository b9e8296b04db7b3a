"""Many noise sources as one: each row of a table, or each run of labels, is drawn from a source of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.noise.prf import Words
from privstream.mechanisms.noise.sources import Labels, NoiseSource, PrfNoise

AT_HAND = 4096  # sources
SHORT = 64  # characters: anybody may send names
_ROW = 2  # the third column of labels that are bound

Path = tuple[str | int | bytes, ...]


class SourcesByName:
    """The sources that one has for names, and what is derived from each along a path.

    So many are kept at hand, with the ciphers that they have made, since nearly every step needs them again.
    """

    def __init__(self, find: Callable[[str], NoiseSource]) -> None:
        self._find = find
        self._at_hand: dict[str, NoiseSource] = {}
        self._below: dict[Path, SourcesByName] = {}

    def __getitem__(self, name: str) -> NoiseSource:
        found = self._at_hand.get(name)
        if found is None:
            found = self._find(name)
            if len(name) <= SHORT:
                if len(self._at_hand) == AT_HAND:
                    self._at_hand.clear()
                self._at_hand[name] = found
        return found

    def __reduce__(self) -> Any:
        return SourcesByName, (self._find,)  # what is at hand stays on its worker

    def derive(self, *path: str | int | bytes) -> SourcesByName:
        """Derive every source."""
        if path not in self._below:
            self._below[path] = SourcesByName(lambda name: self[name].derive(*path))
        return self._below[path]


class RoutedNoise:
    """Draw for the label (row, low) what source `codes[row]` draws for the label (keys[row], low).

    So a mechanism whose keys are rows of a table works on many streams at once, and each has the noise that it has
    alone. Labels that are bound to values have a third column, with their row.

    Args:
        sources: by name.
        names: of sources.
        codes: int64, shape (rows,): the place in `names` of each row's source.
        keys: uint64, shape (rows,): the key of each row there.
    """

    def __init__(self, sources: SourcesByName, names: Sequence[str], codes: NDArray[np.int64], keys: Words) -> None:
        self.sources = sources
        self.names = names
        self.codes = codes
        self.keys = keys

    def derive(self, *path: str | int | bytes) -> RoutedNoise:
        """Derive every source."""
        return RoutedNoise(self.sources.derive(*path), self.names, self.codes, self.keys)

    def words(self, labels: Labels, lanes: int = 1) -> Words:
        """Return the words of all labels, uint64 (n, lanes, 2)."""
        rows, own = self._own(labels)
        if len(self.names) == 1:
            return self.sources[self.names[0]].words(own, lanes)
        order, noise = self._side_by_side(rows)
        drawn = np.empty((len(rows), lanes, 2), np.uint64)
        drawn[order] = noise.words(own[order], lanes)
        return drawn

    def bind(self, labels: Labels, values: NDArray[np.int64]) -> Words:
        """Return the labels bound to values, with their rows, uint64 (n, 3)."""
        rows, own = self._own(labels)
        bound = np.empty((len(rows), _ROW + 1), np.uint64)
        bound[:, _ROW] = rows
        if len(self.names) == 1:
            bound[:, :_ROW] = self.sources[self.names[0]].bind(own, values)
            return bound
        order, noise = self._side_by_side(rows)
        bound[order, :_ROW] = noise.bind(own[order], values[order])
        return bound

    def hash_bytes(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Words:
        """Refuse: strings have no rows."""
        raise TypeError("strings must be hashed by one source, got several for the rows of a table")

    def runs(self, rows: Words) -> Iterator[tuple[NoiseSource, NDArray[np.int64]]]:
        """Yield each source that is needed for rows, with their places, in their order."""
        order, sources, starts = self._in_order(rows)
        for source, (start, end) in zip(sources, pairwise(starts), strict=True):
            yield source, order[start:end]

    def _in_order(self, rows: Words) -> tuple[NDArray[np.int64], list[NoiseSource], list[int]]:
        """Return the places of rows in the order of their sources, these, and where the rows of each begin and end."""
        codes = self.codes[rows]
        order = np.argsort(codes, kind="stable")
        codes = codes[order]
        starts = np.flatnonzero(np.append(len(codes) > 0, codes[1:] != codes[:-1]))
        return (
            order,
            [self.sources[self.names[code]] for code in codes[starts].tolist()],
            [*starts.tolist(), len(codes)],
        )

    def _side_by_side(self, rows: Words) -> tuple[NDArray[np.int64], NoiseSource]:
        """Return the places of rows in the order of their sources, and what draws for them in this order."""
        order, sources, starts = self._in_order(rows)
        return order, PrfNoise.side_by_side(sources, starts)

    def _own(self, labels: Labels) -> tuple[Words, Words]:
        """Return the rows of labels, and the labels that the source of each row takes."""
        if not isinstance(labels, np.ndarray) or labels.ndim != 2:
            raise TypeError("labels must be an array of rows and their low halves")
        if labels.shape[1] > _ROW:
            return labels[:, _ROW], labels[:, :_ROW]
        return labels[:, 0], np.stack([self.keys[labels[:, 0]], labels[:, 1]], axis=1)
