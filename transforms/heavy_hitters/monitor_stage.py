"""What the stages of a monitor share: the monitor, its noise, and how they describe what comes too late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import StepKey
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.late import late_events
from privstream.transforms.events.limit_counter import LimitCounter
from privstream.transforms.timing.ordered import OrderedSteps
from privstream.transforms.timing.steps import Steps


class MonitorStage(OrderedSteps):
    """Per stream, or shard of its items: steps of a monitor, in order.

    Args:
        monitor: the mechanism.
        steps: the public windows.
        noise: that of all streams.
        timer_offset: how many stages have decided a step before this one does.
        domain: the public list of items, if there is one.
    """

    def __init__(
        self, *, monitor: Any, steps: Steps, noise: NoiseSource, timer_offset: int, domain: Domain | None = None
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.monitor = monitor
        self.noise = noise
        self.domain = domain
        self.limited = LimitCounter("charged", steps)

    def count_charged(self, step: int, active: np.ndarray) -> None:
        """Count who has an item that may be reported, and who of them has no charges left and no longer counts."""
        self.limited.add(step, len(active), len(active) - int(active.sum()))

    def describe_late(self, key: StepKey, batch: Any) -> Iterator[Any]:
        """Describe late holdings by item."""
        return late_events(self.steps, key, batch, self.domain)
