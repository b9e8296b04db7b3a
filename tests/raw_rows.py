"""Rows of Python values as a reader of files gives them, and what questions can use of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from privstream.pipelines.sources.event_files import Damage, RawEvents
from privstream.pipelines.sources.fields import AnyFields
from privstream.pipelines.sources.normalise import normalise
from privstream.transforms.reading.fields import column_of


def normalised(columns: Mapping[str, Any], fields: AnyFields) -> tuple[list[pa.RecordBatch], list[Damage]]:
    """Return the batches of questions, and what cannot be used; positions are the numbers of rows."""
    held = {name: values if isinstance(values, pa.Array) else column_of(values) for name, values in columns.items()}
    batches, damages = normalise(RawEvents(held, str, str), fields)
    return batches, list(damages)
