"""What windows of heavy hitters remember beside the other options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def settle(given: Mapping[str, Any]) -> dict[str, Any]:
    """Say of a run by counts that could remember items whether it forgets them: it was once another run."""
    until = any(given.get(name) is not None for name in ("end", "horizon", "renew_every"))
    alone = given.get("period") is None and given.get("method") in (None, "auto", "counts")
    if not alone or given.get("start") is None or not until:
        return {}
    if given.get("domain") is not None and any(given.get(name) is not None for name in ("end", "horizon")):
        return {}
    return {"forget": bool(given.get("forget"))}
