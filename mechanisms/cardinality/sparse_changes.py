"""Set cardinality by sparse changes: the estimate stays what it is until a private test says that it is far off."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.cardinality.state import Cardinalities, CardinalityAlgorithm, CardinalityState, Integers
from privstream.mechanisms.noise.sources import NoiseSource

_FIRST_WINDOW, _LARGEST_WINDOW = 64, 1 << 16
_LARGEST_BOUND = 1 << 62


class SparseChanges(CardinalityAlgorithm):
    """The loop over rounds: a round ends with a hit, after which the estimate is set anew, if a change is left.

    The noise of a step is a function of the source, the step and the true size; that of a round of the source and the
    round. So steps can be taken in pieces of any length.
    """

    @abstractmethod
    def hits(self, state: CardinalityState, steps: Integers, sizes: Integers, noise: NoiseSource) -> NDArray[np.bool_]:
        """Return at which of the next steps the test of the present round is a hit."""

    @abstractmethod
    def changed(self, state: CardinalityState, step: int, size: int, noise: NoiseSource) -> tuple[int, int, bool]:
        """Return estimate, round and exhaustion after a hit at `step`."""

    @abstractmethod
    def bounds(self, steps: Integers, rounds: int) -> Integers:
        """Return the error bounds at these steps, the estimate having been set so many times."""

    def run(
        self, state: CardinalityState, sizes: Integers, noise: NoiseSource
    ) -> tuple[CardinalityState, Cardinalities]:
        """Take the true sizes (n,) after the next n steps, n > 0. Estimates may be negative."""
        first = state.step
        estimates, bounds = np.empty(len(sizes), np.int64), np.empty(len(sizes), np.int64)
        exhausted = np.zeros(len(sizes), np.bool_)
        start, window = 0, _FIRST_WINDOW
        while start < len(sizes):
            steps = first + 1 + np.arange(start, min(start + window, len(sizes)))
            chunk = sizes[start : start + len(steps)]
            found = np.zeros(0, np.int64) if state.exhausted else np.flatnonzero(self.hits(state, steps, chunk, noise))
            held = int(found[0]) if len(found) else len(steps)
            estimates[start : start + held] = state.shown
            bounds[start : start + held] = self.bounds(steps[:held], state.round)
            exhausted[start : start + held] = state.exhausted
            start, window = start + held, min(2 * window, _LARGEST_WINDOW)
            if len(found):
                shown, done, spent = self.changed(state, int(steps[held]), int(chunk[held]), noise)
                state = replace(state, shown=shown, round=done, exhausted=spent)
                estimates[start], exhausted[start] = shown, spent
                bounds[start] = self.bounds(steps[held : held + 1], done)[0]
                start, window = start + 1, _FIRST_WINDOW
        state = replace(state, step=first + len(sizes), size=int(sizes[-1]))
        return state, Cardinalities(estimates, bounds, exhausted)


def whole_bounds(bounds: NDArray[np.float64]) -> Integers:
    """Round error bounds up to integers that fit."""
    return np.minimum(np.ceil(bounds), float(_LARGEST_BOUND)).astype(np.int64)
