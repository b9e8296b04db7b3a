"""The noise of the rows of a table: mechanisms know keys by their rows, noise knows them by what they stand for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.noise.prf import Words
from privstream.mechanisms.noise.sources import Labels, NoiseSource

_ROW = 2  # the third column of labels that are bound


class RowNoise:
    """Draw for the label (row, low) what a source draws for the label (keys[row], low).

    Labels that are bound to values have a third column, with their row.

    Args:
        source: what draws.
        keys: uint64, shape (rows,): the key of each row.
    """

    def __init__(self, source: NoiseSource, keys: Words) -> None:
        self.source = source
        self.keys = keys

    def derive(self, *path: str | int | bytes) -> RowNoise:
        """Derive the source."""
        return RowNoise(self.source.derive(*path), self.keys)

    def words(self, labels: Labels, lanes: int = 1) -> Words:
        """Return the words of all labels, uint64 (n, lanes, 2)."""
        return self.source.words(self._own(labels)[1], lanes)

    def bind(self, labels: Labels, values: NDArray[np.int64]) -> Words:
        """Return the labels bound to values, with their rows, uint64 (n, 3)."""
        rows, own = self._own(labels)
        return np.column_stack([self.source.bind(own, values), rows])

    def hash_bytes(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Words:
        """Refuse: strings have no rows."""
        raise TypeError("strings must be hashed by the source itself, got the noise of the rows of a table")

    def _own(self, labels: Labels) -> tuple[Words, Words]:
        """Return the rows of labels, and the labels that the source takes."""
        if not isinstance(labels, np.ndarray) or labels.ndim != _ROW:
            raise TypeError("labels must be an array of rows and their low halves")
        if labels.shape[1] > _ROW:
            return labels[:, _ROW], labels[:, :_ROW]
        return labels[:, 0], np.stack([self.keys[labels[:, 0]], labels[:, 1]], axis=1)
