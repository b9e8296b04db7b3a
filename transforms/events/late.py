"""Late events as dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from apache_beam.pvalue import TaggedOutput
from privstream.transforms.batches import EventBatch, HolderBatch, StepKey
from privstream.transforms.events.dead_letters import DEAD_LETTERS, DeadLetter
from privstream.transforms.events.domain import Domain
from privstream.transforms.stream_groups import InStreams
from privstream.transforms.timing.steps import Steps

REASON = "time must not be later than the end of the window plus the allowed lateness"


def late_letter(steps: Steps, step: int, source: str, record: str, stream: str = "") -> Any:
    """Return a dead letter about what came too late for a window, of a stream if it has a name."""
    start, end = steps.bounds(step)
    position = f"window {start.to_rfc3339()} to {end.to_rfc3339()}" + (f", stream {stream}" if stream else "")
    return TaggedOutput(DEAD_LETTERS, DeadLetter(REASON, source, position, record))


def late_events(steps: Steps, key: StepKey, batch: EventBatch | HolderBatch, domain: Domain | None) -> Iterator[Any]:
    """Describe late events by stream, window and item; the person is known only as a keyed hash here, and left out."""
    for item in batch.items.tolist():
        record = batch.names[item] if domain is None else domain[item]
        yield late_letter(steps, key.step, "late event", record, key.stream)


def late_in_streams(
    steps: Steps, key: StepKey, held: InStreams[EventBatch] | InStreams[HolderBatch], domain: Domain | None
) -> Iterator[Any]:
    """Describe late events of several streams."""
    for stream, batch in held.each():
        yield from late_events(steps, key._replace(stream=stream), batch, domain)
