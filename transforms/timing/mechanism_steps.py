"""A stage on a public clock that runs a mechanism through the steps of each key."""

from __future__ import annotations

from typing import Any

from privstream.transforms.timing.clocked import ClockedSteps


class MechanismSteps(ClockedSteps):
    """Steps whose state is that of a mechanism; a subclass sets it."""

    mechanism: Any

    def initial(self, key: bytes) -> Any:
        """Return the state before the first step."""
        return self.mechanism.initial_state()

    def snapshot(self, state: Any) -> bytes:
        """Encode a state."""
        data: bytes = self.mechanism.snapshot(state)
        return data

    def restore(self, data: bytes) -> Any:
        """Decode a state."""
        return self.mechanism.restore(data)
