"""What is read of elements without a pipeline: rows, dead letters, and the rules that these break."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unittest.mock import patch

from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from privstream.transforms.reading import elements
from privstream.transforms.reading.elements import GatherRows, set_aside
from privstream.transforms.reading.fields import BrokenRuleError, DeadLetter, EventFields
from privstream.transforms.reading.frames import AS_NAMED, FieldNames

Gathered = tuple[list[dict[str, Any]], list[DeadLetter], list[BrokenRuleError]]


def gather(given: Iterable[Any], fields: EventFields, names: FieldNames = AS_NAMED, at: Any = 5) -> Gathered:
    """Return the rows that can be used of elements of a bundle, and the dead letters, with their rules."""
    rules: list[BrokenRuleError] = []

    def aside(rule: BrokenRuleError, *texts: Any, **more: Any) -> Any:
        rules.append(rule)
        return set_aside(rule, *texts, **more)

    gatherer = GatherRows(fields, names)
    with patch.object(elements, "set_aside", aside):
        gatherer.start_bundle()
        found = [
            out for each in given for out in gatherer.process(each, timestamp=Timestamp.of(at), window=GlobalWindow())
        ]
        found += gatherer.finish_bundle()
    letters = [getattr(out.value, "value", out.value) for out in found if isinstance(out, TaggedOutput)]
    batches = [getattr(out, "value", out) for out in found if not isinstance(out, TaggedOutput)]
    return [row for batch in batches for row in batch.to_pylist()], letters, rules
