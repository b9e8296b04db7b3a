"""What a span of time means beside the other options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privstream.pipelines.questions.options import SPANS


def prepare(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return no further arguments; refuse a plan that does not say how many windows a duration has.

    Raises:
        ValueError: no window is given.
    """
    if given.get("over") not in (None, *SPANS) and given.get("window") is None:
        raise ValueError("window must be given where over is a duration")
    return {}


def settle(given: Mapping[str, Any]) -> dict[str, Any]:
    """Say of a run that could remember items whether it forgets them: it was once another run, with other noise."""
    until = any(given.get(name) is not None for name in ("end", "horizon", "renew_every"))
    if given.get("domain") is not None or given.get("over") == "start" or given.get("start") is None or not until:
        return {}
    return {"forget": bool(given.get("forget"))}
