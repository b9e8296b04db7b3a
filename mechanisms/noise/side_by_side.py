"""Several noise sources as one, each for a run of labels: what is drawn for each is what it draws alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.noise.prf import Words
from privstream.mechanisms.noise.sources import Labels, NoiseSource


class SideBySide:
    """Draw for the labels starts[i] to starts[i + 1] from source i, as that would for these labels alone.

    So a mechanism that draws one number for each label can work on many streams at once.

    Args:
        sources: at least one.
        starts: nondecreasing, one more than sources; the first is 0, the last the number of labels.
    """

    def __init__(self, sources: Sequence[NoiseSource], starts: Sequence[int]) -> None:
        self.sources = sources
        self.starts = starts

    def derive(self, *path: str | int | bytes) -> SideBySide:
        """Derive every source."""
        return SideBySide([source.derive(*path) for source in self.sources], self.starts)

    def words(self, labels: Labels, lanes: int = 1) -> Words:
        """Return the words of all labels, an array with a row for each."""
        rows = self._rows(labels)
        return self._each(lambda source, start, end: source.words(rows[start:end], lanes))

    def bind(self, labels: Labels, values: NDArray[np.int64]) -> Words:
        """Return the labels bound to values."""
        rows = self._rows(labels)
        return self._each(lambda source, start, end: source.bind(rows[start:end], values[start:end]))

    def hash_bytes(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Words:
        """Refuse: strings have no labels."""
        raise TypeError("strings must be hashed by one source, got several side by side")

    def _each(self, draw: Callable[[NoiseSource, int, int], Words]) -> Words:
        return np.concatenate([draw(s, a, b) for s, (a, b) in zip(self.sources, pairwise(self.starts), strict=True)])

    def _rows(self, labels: Labels) -> Words:
        rows = np.asarray(labels)
        if not rows.ndim or len(rows) != self.starts[-1]:
            raise ValueError(f"labels must be an array of {self.starts[-1]}, one for each row of all sources")
        return rows
