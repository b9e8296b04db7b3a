"""Rows that are published, as pipelines have them; those of a window have its last moment as timestamp there.

Here Beam gets to know them: `row_types` has their fields and what these mean, and only names the type of times.
"""

from typing import get_type_hints

from apache_beam.coders import RowCoder
from apache_beam.coders.typecoders import registry
from apache_beam.utils.timestamp import Timestamp
from privstream.transforms import row_types
from privstream.transforms.row_types import *  # noqa: F403

for _row_type in vars(row_types).values():
    if hasattr(_row_type, "_fields"):
        _row_type.__annotations__ = get_type_hints(_row_type, localns={"Timestamp": Timestamp})
        registry.register_coder(_row_type, RowCoder)
