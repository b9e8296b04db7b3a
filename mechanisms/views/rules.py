"""Rules: whether a published number is beyond a threshold, window after window."""

from __future__ import annotations

from typing import NamedTuple

CLEAR, ALERT, NO_DATA = ("clear", "alert", "no data")


class Condition(NamedTuple):
    """When an alert begins and when it ends.

    Attributes:
        sign: 1 where it begins above the threshold, -1 below it.
        threshold: beyond which it begins.
        ends_at: at which, or on the other side of it, it ends.
        windows: number of windows in a row in which the number must be beyond the threshold.
        reaching: whether it also begins at the threshold itself, and ends only beyond `ends_at`.
    """

    sign: int
    threshold: float
    ends_at: float
    windows: int = 1
    reaching: bool = False


class Watch(NamedTuple):
    """How an alert stands after a window.

    Attributes:
        alert: whether it has begun, and not ended.
        beyond: number of windows in a row in which the number was beyond the threshold.
        state: of the window; empty before the first one.
        since: start of the first window of those in this state, microseconds since 1970.
    """

    alert: bool = False
    beyond: int = 0
    state: str = ""
    since: int = 0


def watched(before: Watch, value: float | None, condition: Condition, start: int) -> Watch:
    """Return how an alert stands after the window that starts at `start`, in which the number is `value`.

    Without data an alert neither begins nor ends, and the windows in a row that it needs begin anew.

    Privacy: post-processing.
    """
    alert, beyond, state = before.alert, 0, NO_DATA
    if value is not None:
        met, held = (condition.sign * (value - limit) for limit in (condition.threshold, condition.ends_at))
        met, held = (passed >= 0 if condition.reaching else passed > 0 for passed in (met, held))
        beyond = before.beyond + 1 if met else 0
        alert = held if alert else beyond >= condition.windows
        state = ALERT if alert else CLEAR
    return Watch(alert, beyond, state, start if state != before.state else before.since)
