"""What a run assumes of its input, beside what its options say."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from privstream.pipelines.questions.endless import is_endless


def prepare(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether noise is bound to the data, as it must be if a run may be restored; of a run alone.

    Raises:
        ValueError: an event may have several categories, and files have no lists.
    """
    if "input" not in given:
        return {}
    if given["separator"] is None and given["categories_per_row"] > 1:
        raise ValueError("separator must be given when an event may have several categories")
    return {"restartable": given["restartable"] or is_endless(argparse.Namespace(**given)) or None}
