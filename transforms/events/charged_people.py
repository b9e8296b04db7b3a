"""How many of those who have an item no longer count for it, because they have been charged too often."""

from __future__ import annotations

from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.monitor.holdings import Holdings
from privstream.mechanisms.monitor.user_counters import UserCounters

CAME = Metrics.counter("privstream", "charged_before_limit")
LEFT_OUT = Metrics.counter("privstream", "charged_over_limit")


def count_charged(holdings: Holdings, counters: UserCounters, max_hits: int) -> None:
    """Count the holdings of a step, and those of people who no longer count."""
    active = holdings.active(counters, max_hits)
    CAME.inc(len(active))
    LEFT_OUT.inc(len(active) - int(active.sum()))
