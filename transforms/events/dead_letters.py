"""What happens to records that cannot be used: they leave the pipeline by an output of their own."""

from __future__ import annotations

from typing import Any, NamedTuple

from apache_beam.coders import RowCoder
from apache_beam.coders.typecoders import registry
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import TaggedOutput
from privstream.transforms.events.broken_rule import BrokenRuleError

DEAD_LETTERS = "dead_letters"
"""Tag of the output for records that cannot be used."""

LONGEST_RECORD = 10_000
"""Characters of a dead letter."""


class DeadLetter(NamedTuple):
    """A record that could not be used, and why.

    *Privacy*: `record` contains data of a person. Dead letters belong in a file that is guarded like the input itself;
    they are under no privacy guarantee, and neither logs nor metrics may quote them.

    Attributes:
        reason: the rule that was broken; never quotes the value.
        source: the file that the record came from, or the stage that set it aside.
        position: where in the source, such as `line 17` or `row group 2, row 5`.
        record: the record as text, perhaps cut.
    """

    reason: str
    source: str
    position: str
    record: str


registry.register_coder(DeadLetter, RowCoder)


def set_aside(
    rule: BrokenRuleError, record: str, source: str = "event", *, counter: str = "events", number: int = 1
) -> Any:
    """Count records that break a rule, in all and by the code of the rule, and return their dead letter."""
    for name in (f"{counter}_malformed", f"{counter}_malformed_{rule.code}"):
        Metrics.counter("privstream", name).inc(number)
    return TaggedOutput(DEAD_LETTERS, DeadLetter(str(rule), source, "", record[:LONGEST_RECORD]))


def text_of(element: Any) -> str:
    """Return any element as text that can be written in UTF-8."""
    try:
        return repr(element).encode("utf-8", "backslashreplace").decode()
    except Exception:  # it may be anything, and what cannot be shown must not end the run
        return f"a {type(element).__name__} that cannot be shown"
