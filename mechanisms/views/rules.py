"""Rules: which published numbers are beyond a threshold, window after window, and since when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms.views.tables import NORMAL, WindowTimes, numbered

STARTED, CONTINUES = "started", "continues"

SURELY = 3.3
"""Standard deviations by which a number must be above the threshold."""

CLEAR, ALERT, NO_DATA = ("clear", "alert", "no data")

MET = pa.schema(
    [
        *((name, pa.int64()) for name in ("window_start", "window_end")),
        ("rule", pa.large_string()),
        *((name, pa.float64()) for name in ("threshold", "estimate", "lower", "upper")),
        ("since", pa.int64()),
        ("status", pa.string()),
        ("epsilon_left", pa.float64()),
        ("stopped", pa.bool_()),
    ]
)
"""Of a table of rules that are met."""

STATES = pa.schema(
    [
        *((name, pa.int64()) for name in ("window_start", "window_end")),
        ("item", pa.string()),
        *((name, pa.float64()) for name in ("value", "lower", "upper", "threshold")),
        ("state", pa.string()),
        ("since", pa.int64()),
    ]
)
"""Of a table of the states of an alert."""


class Condition(NamedTuple):
    """When an alert begins and when it ends."""

    sign: int  # 1 where it begins above the threshold, -1 below it
    threshold: float
    ends_at: float  # at this number, or on the other side of it
    windows: int = 1  # in a row, in which the number must be beyond the threshold
    reaching: bool = False  # whether it also begins at the threshold itself, and ends only beyond `ends_at`

    @classmethod
    def of(cls, above: Any, below: Any, clear_below: Any, clear_above: Any, **more: Any) -> Condition | None:
        """Return the condition of an alert that begins above or below a number; None without one."""
        sign, begins, ends = (-1, below, clear_above) if above is None else (1, above, clear_below)
        return None if begins is None else cls(sign, begins, begins if ends is None else ends, **more)

    @property
    def ends_early(self) -> bool:
        """Whether an alert would end before it begins."""
        return self.sign * (self.ends_at - self.threshold) > 0


class Watch(NamedTuple):
    """How an alert stands after a window."""

    alert: bool = False  # whether it has begun, and not ended
    beyond: int = 0  # windows in a row in which the number was beyond the threshold
    state: str = ""  # of the window; empty before the first one
    since: int = 0  # start of the first window of those in this state, microseconds since 1970


def watched(before: Watch, value: float | None, condition: Condition, start: int) -> Watch:
    """Return how an alert stands after the window that starts at `start`, in which the number is `value`.

    Without data an alert neither begins nor ends, and the windows in a row that it needs begin anew.
    """
    alert, beyond, state = before.alert, 0, NO_DATA
    if value is not None:
        met, held = (condition.sign * (value - limit) for limit in (condition.threshold, condition.ends_at))
        met, held = (passed >= 0 if condition.reaching else passed > 0 for passed in (met, held))
        beyond = before.beyond + 1 if met else 0
        alert = held if alert else beyond >= condition.windows
        state = ALERT if alert else CLEAR
    return Watch(alert, beyond, state, start if state != before.state else before.since)


def states(
    numbers: Mapping[int, tuple[float | None, ...]],
    windows: Iterable[tuple[int, int]],
    condition: Condition,
    watch: Watch,
    about: str,
) -> tuple[pa.Table, Watch]:
    """Return whether a number is beyond a threshold, window by window, and how the alert stands after them.

    Numbers, with their intervals, are given by the start of their windows; a lower bound, without an upper end, ends no
    alert. `watch` is how the alert stands before them.
    """
    found = []
    for start, end in windows:
        value, lower, upper = numbers.get(start, (None, None, None))
        surely = condition.sign > 0 and value is not None and value > condition.threshold
        watch = watched(watch, value if upper is not None or surely else None, condition, start)
        found.append((start, end, about, value, lower, upper, condition.threshold, watch.state, watch.since))
    return pa.Table.from_pylist([dict(zip(STATES.names, row, strict=True)) for row in found], STATES), watch


def alerts(table: pa.Table, before: pa.Table | None, windows: WindowTimes, rules: Mapping[str, Condition]) -> pa.Table:
    """Return in which windows rules are met, by the numbers of the items that they are named after.

    The table has counts of a run or of a window; `before` is what was returned of the window before these. After a
    budget period nothing continues.
    """
    known: dict[str, tuple[int, Watch]] = {}
    for row in [] if before is None else before.to_pylist():
        known[row["rule"]] = windows.starting(row["window_start"]), Watch(alert=True, state=ALERT, since=row["since"])
    found = []
    for row in sorted(table.to_pylist(), key=lambda row: row["window_start"]):
        name, start, condition = row["item"], row["window_start"], rules[row["item"]]
        step = windows.starting(start)
        if row["upper"] is None and condition.sign < 0:  # whether more than a lower bound is small is not known
            continue
        last, watch = known.get(name, (step, Watch()))
        if last != step - 1 or windows.renewals(last) != windows.renewals(step):
            watch = Watch()
        watch = watched(watch, row["people"], condition, start)
        known[name] = step, watch
        if watch.alert:
            found.append(
                {"window_start": start, "window_end": row["window_end"], "rule": name}
                | {"threshold": float(condition.threshold), "estimate": row["people"]}
                | {"lower": row["lower"], "upper": row["upper"], "since": watch.since, "stopped": False}
                | {"status": STARTED if watch.since == start else CONTINUES}
            )
    return pa.Table.from_pylist(found, MET)


def surely_above(numbers: ArrayLike, lower: ArrayLike, upper: ArrayLike, threshold: float) -> NDArray[np.bool_]:
    """Return which numbers, with intervals of 95%, are surely above a threshold.

    The error of a number is taken from the lower side of its interval: the upper one may have what limits drop. Where
    the lower end is cut off at 0 it is the longer side. The upper end of a lower bound is nan.
    """
    number, low, high = (np.asarray(each, np.float64) for each in (numbers, lower, upper))
    error = np.where(low > 0, number - low, np.fmax(number - low, high - number)) / NORMAL
    return np.asarray(number - threshold > SURELY * error)


def trending(table: pa.Table, before: pa.Table | None, windows: WindowTimes, threshold: float) -> pa.Table:
    """Return the rows that are surely above a threshold, and since when their items are, window after window.

    The table has counts of a run or of a window; `before` is what was returned of the window before these. After a
    budget period nothing continues.
    """
    columns = {name: table[name] for name in ("window_start", "window_end", "item", "people", "lower", "upper")}
    number, lower, upper = (table[name].to_numpy() for name in ("people", "lower", "upper"))
    found = pa.table(columns).filter(pa.array(surely_above(number, lower, upper, threshold)))
    found = found.append_column("since", found["window_start"])
    found = found.append_column("status", pa.repeat(STARTED, len(found)))
    if before is not None and before.num_rows:
        found = pa.concat_tables([before, found.cast(before.schema)])
    if not found.num_rows:
        return found
    starts, items = found["window_start"].to_numpy(), numbered(found["item"])
    order = np.lexsort((starts, items))
    steps, items = np.asarray(windows.starting(starts[order])), items[order]
    follows = np.zeros(len(order), bool)
    follows[1:] = (items[1:] == items[:-1]) & (np.diff(steps) == 1) & (np.diff(windows.renewals(steps)) == 0)
    first = np.maximum.accumulate(np.where(follows, 0, np.arange(len(order))))
    since, status = found["since"].to_numpy().copy(), np.full(len(order), STARTED, object)
    since[order] = since[order][first]
    status[order[follows]] = CONTINUES
    found = found.set_column(6, "since", pa.array(since)).set_column(7, "status", pa.array(status, pa.string()))
    return found.slice(0 if before is None else before.num_rows)
