"""Quantiles as queries of a histogram."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privstream.pipelines.questions.histogram import assumptions


def prepare(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the queries, and what a histogram assumes."""
    queries = tuple(f"quantile:{quantile.strip()}" for quantile in given["quantiles"])
    return {**assumptions.prepare(given), "queries": queries}
