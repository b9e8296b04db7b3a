"""Which method decides alerts where none is named: one that never stops, by what a user sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from privstream.transforms.alerts.count_tests import CountedAlerts
from privstream.transforms.alerts.status_tests import StatusAlerts
from privstream.transforms.alerts.threshold_tests import AlertPlan

BETTER = 0.75
"""A method without a number in each row must need so much less than one that has them."""

BY_NAME = "sparse_vector, which stops when its budget is spent, is taken by its name alone"


def choose_lasting(
    makers: Mapping[str, Callable[[], CountedAlerts | StatusAlerts | None]], plan: AlertPlan
) -> tuple[str, CountedAlerts | StatusAlerts]:
    """Return the method that "auto" takes, by its name: "counts" or "status".

    Compared is how far apart two kinds of numbers must be, between which a threshold lies: usual ones, which with
    probability 1 - beta give no alert in the whole run, and those that last d windows and with probability one half
    give an alert in at least half of them; as the mean of its logarithm over d = 1, 4, 16, .. up to all windows. Status
    has numbers only where an alert starts or ends, so it must be a quarter better. Where a rule has at_most, people are
    charged until nobody is left and the rule is met for good: then status is not taken, unless a rule has `until`,
    which asks for it. All this depends on public parameters alone.

    Args:
        makers: what makes each method; raises a ValueError where its parameters do not allow it.
        plan: what is tested.

    Raises:
        ValueError: neither can answer.
    """
    found: dict[str, CountedAlerts | StatusAlerts] = {}
    reasons = []
    ends = any(rule.until is not None for rule in plan.rules)
    for name in ("status", "counts") if ends else ("counts", "status"):
        try:
            method = makers[name]()
        except ValueError as reason:
            reasons.append(str(reason))
            continue
        if isinstance(method, StatusAlerts) and method.runs_dry and not ends:
            reasons.append("with a rule that has at_most, status is taken by its name alone")
        elif method is not None:
            found[name] = method
    if not found:
        raise ValueError("; ".join([*reasons, BY_NAME]))
    if len(found) == 1:
        return found.popitem()
    return min(found.items(), key=lambda item: _needed(item[1], plan))


def _needed(method: CountedAlerts | StatusAlerts, plan: AlertPlan) -> float:
    """Return the mean of logarithms by which methods are compared."""
    windows = method.windows or 1
    tests = plan.tests(windows)
    durations = [4**power for power in range(windows.bit_length()) if 4**power <= windows]
    logs = [math.log(max(1.0, method.distance(duration, tests))) for duration in durations]
    return math.fsum(logs) / len(logs) - (math.log(BETTER) if isinstance(method, StatusAlerts) else 0.0)
