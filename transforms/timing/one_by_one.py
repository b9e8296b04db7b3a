"""A stage on a public clock that handles one step after the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from privstream.transforms.timing.clocked import ClockedSteps, Outputs


class OneByOne(ClockedSteps):
    """Steps that nothing is gained by handling together."""

    @abstractmethod
    def advance(self, key: bytes, step: int, batches: list[bytes], state: Any) -> tuple[Any, Iterable[Any]]:
        """Handle one step: return the state after it, and its outputs. A function of the arguments alone.

        Batches come in an order that depends on nothing but their bytes.
        """

    def walk(
        self, key: bytes, first: int, last: int, batches: dict[int, list[bytes]], state: Any
    ) -> tuple[Any, Outputs]:
        """Handle steps `first` to `last`."""
        outputs: list[tuple[int, Any]] = []
        for step in range(first, last + 1):
            state, found = self.advance(key, step, batches.get(step, []), state)
            outputs += ((step, output) for output in found)
        return state, outputs
