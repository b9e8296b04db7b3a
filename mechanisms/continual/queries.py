"""Monotone queries on column sums: all of them, extremes, quantiles, the largest, and functions of the caller's."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from typing_extensions import override

_TRIED = 1 << 24  # numbers of a query that is tried


@dataclass(frozen=True)
class HistogramQuery(ABC):
    """One or more numbers that depend on the column sums alone."""

    def check(self, columns: int) -> None:  # noqa: B027 (most queries fit any number)
        """Raise ValueError if the query does not fit this number of columns."""

    def describe(self) -> list[Any]:
        """Return the query as plain values."""
        return [type(self).__name__, *(getattr(self, field.name) for field in fields(self))]

    @abstractmethod
    def values(self, sums: Integers) -> Integers:
        """Return the values of the query's monotone 1-Lipschitz parts, (n, k), for sums (n, columns)."""


@dataclass(frozen=True)
class Histogram(HistogramQuery):
    """All column sums."""

    @override
    def values(self, sums: Integers) -> Integers:
        return sums


@dataclass(frozen=True)
class TopK(HistogramQuery):
    """The k largest column sums, largest first."""

    k: int

    def __post_init__(self) -> None:
        checks.integer("k", self.k, minimum=1)

    @override
    def check(self, columns: int) -> None:
        if self.k > columns:
            raise ValueError(f"k must be <= columns {columns}, got {self.k}")

    @override
    def values(self, sums: Integers) -> Integers:
        return np.sort(sums, axis=1)[:, ::-1][:, : self.k]


@dataclass(frozen=True)
class Quantile(HistogramQuery):
    """The ceil(q columns)-th smallest column sum, q in (0, 1]."""

    q: float

    def __post_init__(self) -> None:
        if not 0 < checks.real("q", self.q) <= 1:
            raise ValueError(f"q must be in (0, 1], got {self.q}")

    @override
    def values(self, sums: Integers) -> Integers:
        rank = max(1, math.ceil(self.q * sums.shape[1] - 1e-9))
        return np.partition(sums, rank - 1, axis=1)[:, rank - 1 : rank]


@dataclass(frozen=True)
class MaxSum(Quantile):
    """The largest column sum."""

    q: float = 1.0


@dataclass(frozen=True)
class MinSum(Quantile):
    """The smallest column sum."""

    q: float = 1e-12


@dataclass(frozen=True)
class Monotone(HistogramQuery):
    """A query of the caller's: `function` maps int64 sums (n, columns), possibly negative, to numbers (n,).

    It must not decrease when a sum grows, change by at most 1 when no sum changes by more than 1, and be 0 at 0: the
    guarantee rests on it. Results are rounded down to integers, which keeps all this true.
    """

    function: Callable[[Integers], NDArray[np.generic]]
    name: str = "function"

    @override
    def describe(self) -> list[Any]:
        # Of the function only its name, which must differ between functions.
        return [type(self).__name__, self.name]

    @override
    def check(self, columns: int) -> None:
        # The function is tried at 0 and at unit vectors, of many columns not all of them.
        points = np.eye(1 + min(columns, _TRIED // columns), columns, -1, dtype=np.int64)
        found = self.values(points)[:, 0]
        if found[0] != 0 or found.min() < 0 or found.max() > 1:
            raise ValueError(f"{self.name} must be 0 at 0 and from 0 to 1 where one sum is 1")

    @override
    def values(self, sums: Integers) -> Integers:
        found = np.asarray(self.function(sums))
        if found.shape != (len(sums),):
            raise ValueError(f"{self.name} must return shape ({len(sums)},), got {found.shape}")
        return np.floor(found).astype(np.int64)[:, None]
