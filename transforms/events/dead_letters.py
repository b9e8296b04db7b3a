"""What happens to records that cannot be used: they leave the pipeline by an output of their own."""

from typing import NamedTuple

from apache_beam.coders import RowCoder
from apache_beam.coders.typecoders import registry

DEAD_LETTERS = "dead_letters"
"""Tag of the output for records that cannot be used."""


class DeadLetter(NamedTuple):
    """A record that could not be used, and why.

    *Privacy*: `record` holds a person's data. Dead letters belong in a file that is guarded like the input itself; they
    are under no privacy guarantee, and neither logs nor metrics may quote them.

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
