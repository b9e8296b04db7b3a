"""A stateful stage that keeps the parcels of a step until it is due, and sets aside those without a receipt."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.metrics.metric import Metrics
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer
from privstream.transforms.batches import Keyed, StepKey
from privstream.transforms.timing.receipts import DIGEST_BYTES, Parcel, split_receipts
from privstream.transforms.timing.steps import Steps

BATCH, RECEIPT = b"b", b"r"


class StepParcels(beam.DoFn):
    """Keep batches and receipts per step key; when the step is due, act on the batches that were in time.

    A batch without a receipt (see `WithReceipts`) is late: counted, described in the dead-letter output, never used.
    Of batches with equal bytes so many count as there are receipts: a late copy of a batch that was in time would
    otherwise count for as long as no byte of that differs, and one event would decide about all events of the copy.
    All state of the key is freed then.

    A stage is a subclass with `state`, the name of its bag and its timer in the whole project: a runner may fuse two
    stages, and then confuses timers of one name.
    """

    def __init_subclass__(cls, *, state: str = "") -> None:
        """Declare bag and timer of a stage."""
        super().__init_subclass__()
        if not state:
            return
        parcels = BagStateSpec(f"{state}_parcels", BytesCoder())  # batches of an open step, and receipts, marked
        due = TimerSpec(f"{state}_due", TimeDomain.WATERMARK)

        def process(
            self: StepParcels,
            element: Parcel,
            parcels: Any = beam.DoFn.StateParam(parcels),
            due: Any = beam.DoFn.TimerParam(due),
        ) -> None:
            """Keep a batch, or receipts, until the step is due."""
            key, (digest, data) = element
            parcels.add((BATCH if data else RECEIPT) + digest + data)
            due.set(self.steps.decision_time(StepKey.from_bytes(key).step, self.stage))

        @on_timer(due)
        def on_due(
            self: StepParcels, key: Any = beam.DoFn.KeyParam, parcels: Any = beam.DoFn.StateParam(parcels)
        ) -> Iterator[Any]:
            """Set late batches aside, act on the others, and free the state."""
            yield from self.act(key, parcels)

        declared = {"PARCELS": parcels, "DUE": due, "process": process, "on_due": on_due}
        for name, value in declared.items():
            setattr(cls, name, value)

    def __init__(self, *, steps: Steps, stage: int) -> None:
        self.steps = steps
        self.stage = stage
        self.late = Metrics.counter("privstream", "events_late")

    @abstractmethod
    def close(self, key: StepKey, batches: list[bytes]) -> Iterator[Keyed]:
        """Act on the batches that were in time, at least one, in an order that depends on their bytes alone."""

    @abstractmethod
    def set_aside(self, key: StepKey, batch: bytes) -> Iterator[Any]:
        """Count and describe a late batch."""

    def act(self, key: bytes, parcels: Any) -> Iterator[Any]:
        """Set late batches aside, act on the others, and free the state."""
        step = StepKey.from_bytes(key)
        records = list(parcels.read())
        parcels.clear()
        receipts = split_receipts(record[1:] for record in records if record[:1] == RECEIPT)
        used = []
        for record in records:
            if record[:1] == BATCH:
                digest, batch = record[1 : 1 + DIGEST_BYTES], record[1 + DIGEST_BYTES :]
                if receipts[digest]:
                    receipts[digest] -= 1
                    used.append(batch)
                else:
                    yield from self.set_aside(step, batch)
        if used:
            yield from self.close(step, sorted(used))
