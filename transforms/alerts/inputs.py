"""The stage that keeps the batches of a step until it is due, and sets aside those without a receipt."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from privstream.transforms.batches import Keyed, StepKey
from privstream.transforms.events.bounding import BATCH, RECEIPT
from privstream.transforms.timing.receipts import DIGEST_BYTES, Parcel, split_receipts
from privstream.transforms.timing.steps import Steps


class AlertInputs(beam.DoFn):
    """Keep batches and receipts per step key; when the step is due, act on the batches that were in time.

    A batch without a receipt (see `WithReceipts`) is late: counted, described in the dead-letter output, never used.
    All state of the key is freed then. A subclass declares a bag and a timer, under names of its own.
    """

    def __init__(self, *, steps: Steps, stage: int) -> None:
        self.steps = steps
        self.stage = stage
        self.late = Metrics.counter("privstream", "events_late")

    @abstractmethod
    def close(self, key: StepKey, batches: list[bytes]) -> Iterator[Keyed]:
        """Act on the batches that were in time, at least one."""

    @abstractmethod
    def set_aside(self, key: StepKey, batch: bytes) -> Iterator[Any]:
        """Count and describe a late batch."""

    def keep(self, element: Parcel, parcels: Any, timer: Any) -> None:
        """Keep a batch, or receipts, until the step is due."""
        key, (digest, data) = element
        parcels.add((BATCH if data else RECEIPT) + digest + data)
        timer.set(self.steps.decision_time(StepKey.from_bytes(key).step, self.stage))

    def act(self, key: bytes, parcels: Any) -> Iterator[Any]:
        """Set late batches aside, act on the others, and free the state."""
        step = StepKey.from_bytes(key)
        records = list(parcels.read())
        parcels.clear()
        in_time = split_receipts(record[1:] for record in records if record[:1] == RECEIPT)
        used = []
        for record in records:
            if record[:1] == BATCH:
                batch = record[1 + DIGEST_BYTES :]
                if record[1 : 1 + DIGEST_BYTES] in in_time:
                    used.append(batch)
                else:
                    yield from self.set_aside(step, batch)
        if used:
            yield from self.close(step, sorted(used))
