"""What options of single questions mean beside each other."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from privstream.pipelines.questions.option_types import SPANS


def check_span(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return no further arguments; refuse a plan that does not say how many windows a duration has.

    Raises:
        ValueError: no window is given.
    """
    if given.get("over") not in (None, *SPANS) and given.get("window") is None:
        raise ValueError("window must be given where over is a duration")
    return {}


def settle_counts(given: Mapping[str, Any]) -> dict[str, Any]:
    """Say of a run that could remember items whether it forgets them: it was once another run, with other noise."""
    until = any(given.get(name) is not None for name in ("end", "windows", "horizon", "renew_every"))
    if given.get("domain") is not None or given.get("over") == "start" or given.get("start") is None or not until:
        return {}
    return {"forget": bool(given.get("forget"))}


def settle_heavy_hitters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Say of a run by counts that could remember items whether it forgets them: it was once another run."""
    until = any(given.get(name) is not None for name in ("end", "windows", "horizon", "renew_every"))
    alone = given.get("period") is None and given.get("method") in (None, "auto", "counts")
    if not alone or given.get("start") is None or not until:
        return {}
    if given.get("domain") is not None and any(given.get(name) is not None for name in ("end", "windows", "horizon")):
        return {}
    return {"forget": bool(given.get("forget"))}


def bind_histogram(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether noise is bound to the data, as it must be if a run may be restored; of a run alone.

    Raises:
        ValueError: an event may have several categories, and files have no lists.
    """
    if "input" not in given:
        return {}
    if given["separator"] is None and given["categories_per_row"] > 1:
        raise ValueError("separator must be given when an event may have several categories")
    from privstream.pipelines.questions.input_output import is_unbounded  # noqa: PLC0415 - late: plans need no Beam

    return {"restartable": given["restartable"] or is_unbounded(argparse.Namespace(**given)) or None}
