"""What the algorithms of set cardinality share: the state of a run, what is published, and what an algorithm is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.noise.sources import NoiseSource

Integers = NDArray[np.int64]


class Cardinalities(NamedTuple):
    """What is published: one entry for each step, or plain values for a single one.

    Attributes:
        estimates: how many are in the set, >= 0.
        error_bounds: with probability 1 - beta no estimate of the run is off by more, while not `exhausted`.
        exhausted: whether all changes of the estimate are used up, so that it stays what it is.
    """

    estimates: Any
    error_bounds: Any
    exhausted: Any


@dataclass(frozen=True, eq=False, kw_only=True)
class CardinalityState:
    """What outlives a step.

    Attributes:
        step: steps done.
        size: how many are in the set; private.
        shown: what was published last, before negative numbers become 0.
        round: how often `shown` has been set.
        exhausted: raised when no change of `shown` is left: it is published for ever. A function of what has been
            published, so it is no secret.
        memory: what a continual counter remembers; empty without one.
    """

    step: int
    size: int
    shown: int
    round: int
    exhausted: bool
    memory: NDArray[Any]


class CardinalityAlgorithm(ABC):
    """One way to publish the size of a set after every step."""

    def initial_memory(self) -> NDArray[Any]:
        """Return the memory before the first step."""
        return np.zeros(0, np.int64)

    @abstractmethod
    def run(
        self, state: CardinalityState, sizes: Integers, noise: NoiseSource
    ) -> tuple[CardinalityState, Cardinalities]:
        """Take the true sizes (n,) after the next n steps, n > 0. Estimates may be negative."""

    @abstractmethod
    def error(self, step: int, updates: int | None) -> int:
        """Return an error bound for all of steps 1 .. `step`, if the set is changed by at most so many updates."""
