"""The stages that split events: see `split`, which does it without Beam."""

from __future__ import annotations

import apache_beam as beam
from privstream.transforms.people.split import CodeSplitter, EventReader, EventSplitter


class ReadEvents(EventReader, beam.DoFn):
    """What stages share that read events."""


class SplitEvents(EventSplitter, beam.DoFn):
    """Splits events by step and shard of people."""


class SplitCodes(CodeSplitter, beam.DoFn):
    """Splits events whose items are public codes."""
