"""A stateful stage that gathers all batches of one key until its step is decided, and then acts once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from privstream.transforms.batches import StepKey, decode
from privstream.transforms.steps import Steps


class CollectStep(beam.DoFn):
    """Gather the batches of a `StepKey` in the global window, and hand them to `close` when the step is due.

    A subclass declares its states and timers, under names of its own (a runner may fuse two stages, and then confuses
    timers of one name), and passes them on to `keep` and `close_step`.
    """

    def __init__(self, kind: type[Any], *, steps: Steps, stage: int) -> None:
        self.kind = kind
        self.steps = steps
        self.stage = stage

    @abstractmethod
    def close(self, key: StepKey, batches: list[Any]) -> Iterable[Any]:
        """Return the outputs for a key, given all its batches; a function of nothing else."""

    def keep(self, element: tuple[bytes, bytes], batches: Any, due: Any) -> None:
        """Keep a batch until its step is due."""
        key, data = element
        batches.add(data)
        due.set(self.steps.decision_time(StepKey.from_bytes(key).step, self.stage))

    def close_step(self, key: bytes, batches: Any) -> Iterator[Any]:
        """Act on the step, and free its state."""
        kept = [decode(self.kind, data) for data in batches.read()]
        if kept:
            batches.clear()
            yield from self.close(StepKey.from_bytes(key), kept)
