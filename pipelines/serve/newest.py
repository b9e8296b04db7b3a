"""What there is now and what there was before: the newest windows of a result, each number with its band."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from privstream.pipelines.plot.chart import moment
from privstream.pipelines.plot.promise import columns_in_words, meaning, of_each_row
from privstream.pipelines.questions.nothing_known import in_words
from privstream.pipelines.report.result import Result
from privstream.pipelines.report.section import cell
from privstream.pipelines.sinks.terminal_table import COSTS

MOST_WINDOWS = 4
MOST_ROWS = 20
"""Of each window; the table of all numbers has more."""

DEVIATIONS = 2
"""Width of a band to either side where only a standard deviation is known."""

TWO_DEVIATIONS = "After ±: two standard deviations of the noise."

SPREADS = {"count": ("error_bound", "count_stddev"), "sum": ("sum_stddev",), "mean": ("mean_error_bound",)}
SPREADS |= {"estimate": ("error_bound", "gap_stddev"), "gap": ("gap_stddev",)}
"""Fields that say how far a number may be wrong: the first of them that rows have."""

LIMITS = ("lower", "upper")
SMOOTHED, SMOOTHED_LIMITS = "smoothed", ("smoothed_lower", "smoothed_upper")
RISE, RISE_LIMITS, LIKELY = "rise", ("rise_lower", "rise_upper"), "rise_probability"
IN_BRACKETS = (
    "In brackets, of smoothed counts and rises: where the same number is with probability 95%, each by itself, if "
    "counts stay near levels that move."
)
TIMES = ("window_start", "window_end", "time", "reported_at", "backfilled")


def newest(result: Result) -> dict[str, Any]:
    """Return a table for each of the newest windows, the newest first; without windows, one of the newest answers."""
    windows: dict[Any, list[Any]] = {}
    for row in newest_first(result):
        windows.setdefault(_window(row), []).append(in_words(row, result.parameters))
    shown = list(windows.items())[:MOST_WINDOWS]
    fields, error = _fields(result), _count_error(result)
    return {
        "fields": [field.replace("_", " ") for field in fields],
        "windows": [
            {
                "title": _title(window),
                "rows": [[reading(row, field, error) for field in fields] for row in rows[:MOST_ROWS]],
                "more": max(0, len(rows) - MOST_ROWS),
            }
            for window, rows in shown
        ],
        "bands": _meaning(result),
    }


def newest_first(result: Result) -> list[Any]:
    """Return rows by time, the newest first; those of one moment stay in the order of the question."""
    field = "window_end" if "window_end" in result.row_type._fields else "time"
    return sorted(result.rows, key=lambda row: -getattr(row, field).micros)


def reading(row: Any, field: str, count_error: int | None = None) -> str:
    """Return a value of a row as a text, with its band if it has one: `count_error` for a count, if it is known."""
    value = getattr(row, field)
    if field == "quantile":
        return f"{100 * value:g}%"
    if field == "gap_lower_bound" and not row.gap_stddev:
        return "no bound"
    limits = {"estimate": LIMITS, SMOOTHED: SMOOTHED_LIMITS, RISE: RISE_LIMITS}.get(field)
    if limits is not None and hasattr(row, limits[0]) and not (field == RISE and value is None):
        return _between(value, *(getattr(row, limit) for limit in limits), whole=field in (SMOOTHED, RISE))
    spread = _spread(row, field)
    if spread is None:
        return cell(value)
    deviation = spread.endswith("_stddev")
    half = (getattr(row, spread) or 0) * (DEVIATIONS if deviation else 1)
    if half and field == "count" and count_error is not None:
        half = count_error
    if value is None or (deviation and not half):
        return f"no {field}"  # as while an item or an alert continues
    return (
        f"{cell(value)} ± {_short(half, whole=isinstance(value, int))}"
        if half >= 0
        else f"{cell(value)} (no bound is known)"
    )


def _between(value: Any, lower: Any, upper: Any, *, whole: bool) -> str:
    """Return a value with its interval; `whole`: rounded to whole numbers."""
    texts = [f"{number:,.0f}" if whole and number is not None else cell(number) for number in (value, lower, upper)]
    return f"{texts[0]} (between {texts[1]} and {texts[2]})"


def _short(half: float, *, whole: bool) -> str:
    """Return half the width of a band: rounded up beside whole numbers, else with three digits or more."""
    return f"{math.ceil(half):,}" if whole else f"{half:,.0f}" if half >= 100 else f"{half:.3g}"


def _spread(row: Any, field: str) -> str | None:
    """Return the field that says how far another one may be wrong."""
    return next((name for name in SPREADS.get(field, ()) if hasattr(row, name)), None)


def _fields(result: Result) -> list[str]:
    """Return the columns: what rows are about first, then the rest without what stands beside a number."""
    names: Sequence[str] = result.row_type._fields
    beside = {spread for name in names for spread in SPREADS.get(name, ())}
    if "estimate" not in names and "count" not in names:
        beside = set()  # a bound that is not that of one number is a column
    left_out = {*TIMES, *SMOOTHED_LIMITS, *RISE_LIMITS, *beside, *(LIMITS if {"estimate", "count"} & {*names} else ())}
    if not any(getattr(row, "stream", "") for row in result.rows):
        left_out.add("stream")
    if not any(getattr(row, COSTS[0], 0) for row in result.rows):
        left_out |= {*COSTS}
    if not any(getattr(row, SMOOTHED, None) is not None for row in result.rows):
        left_out.add(SMOOTHED)
    if not any(getattr(row, RISE, None) is not None for row in result.rows):
        left_out |= {RISE, LIKELY}
    about = [name for name in result.spec.key if name in names]
    return [name for name in dict.fromkeys([*about, *names]) if name not in left_out]


def _window(row: Any) -> Any:
    """Return what window a row is about; None without windows."""
    return (row.window_start.micros, row.window_end.micros) if hasattr(row, "window_end") else None


def _title(window: tuple[int, int] | None) -> str:
    """Say which window it is."""
    if window is None:
        return "the newest answers"
    start, end = map(moment, window)
    day, _, time = end.partition(" ")
    return f"{start.removesuffix(' UTC')} to {time if start.startswith(day) else end}"


def _meaning(result: Result) -> str:
    """Say what the bands of the table mean."""
    names, promise = set(result.row_type._fields), result.promise
    if names.isdisjoint(("estimate", "count")):
        return columns_in_words(result.row_type, promise)
    stated = {"error_bound"} if "count" in names else {"error_bound", "lower"}
    bounded = _count_error(result) is not None or not names.isdisjoint(stated)
    if not bounded or "gap_stddev" in names:
        return columns_in_words(result.row_type, promise, TWO_DEVIATIONS)
    of_sums = f" Of a sum: {TWO_DEVIATIONS}" if "sum_stddev" in names else ""
    if any(getattr(row, SMOOTHED, None) is not None for row in result.rows):
        return f"{meaning(promise, 'After ±')}{of_sums} {IN_BRACKETS}"
    if {"estimate", "error_bound", *LIMITS} <= names:
        return of_each_row(promise, "In brackets")
    return meaning(promise, "After ±, or in brackets") + of_sums


def _count_error(result: Result) -> int | None:
    """Return by how much counts that have but a standard deviation are off, if the guarantee file says it."""
    found = result.promise.maybe("accuracy", "count_error")
    return found if isinstance(found, int) and "error_bound" not in result.row_type._fields else None
