"""What the page shows, piece by piece: results, their newest windows and pictures, what is spent, health of jobs."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from privstream.mechanisms.privacy.guarantee import NEIGHBOURING
from privstream.pipelines.accounts.ledger import is_database
from privstream.pipelines.accounts.spending import Limit
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.plot.chart import UTC
from privstream.pipelines.plot.promise import OF_COUNTS, columns_in_words, in_words, meaning, of_each_row
from privstream.pipelines.report.cost import Accounts
from privstream.pipelines.report.page import templates
from privstream.pipelines.report.result import Result
from privstream.pipelines.report.section import cell, picture, words_of
from privstream.pipelines.serve.folder import Found, WatchedFolder, stamp_of
from privstream.pipelines.serve.health import Health
from privstream.pipelines.sinks.terminal_table import COSTS
from privstream.pipelines.terminal import printable

MOST_WINDOWS = 4
MOST_ROWS = 20
"""Of each window; the table of all numbers has more."""

DEVIATIONS = 2
"""Width of a band to either side where only a standard deviation is known."""

TWO_DEVIATIONS = "After ±: two standard deviations of the noise."
OF_SUMS = (
    " After ± of a sum: two standard deviations of its noise. After ± of a mean: how far it may be off where counts "
    "and sums are within their error bounds."
)

SPREADS = {"count": ("error_bound", "count_stddev"), "sum": ("sum_stddev",), "mean": ("mean_error_bound",)}
SPREADS |= {"estimate": ("error_bound", "gap_stddev"), "gap": ("gap_stddev",)}
"""Fields that say how far a number may be wrong: the first of them that rows have."""

LIMITS = ("lower", "upper")
SMOOTHED, SMOOTHED_LIMITS = "smoothed", ("smoothed_lower", "smoothed_upper")
FULL, FULL_LIMITS = "full", ("full_lower", "full_upper")
USED_UP, USED_UP_LIMITS = "used_up", ("used_up_lower", "used_up_upper")
IN_SENTENCES = ("kept", "left_out")
"""Of a window, with noise that hides most of them; what stands out tells their sums, with an interval."""

FULL_FIELDS = (*IN_SENTENCES, USED_UP, *USED_UP_LIMITS, FULL, *FULL_LIMITS)
RISE, RISE_LIMITS, LIKELY = "rise", ("rise_lower", "rise_upper"), "rise_probability"
LIMITS_OF = {
    "estimate": LIMITS,
    "count": LIMITS,
    "ratio": LIMITS,
    "value": LIMITS,
    SMOOTHED: SMOOTHED_LIMITS,
    RISE: RISE_LIMITS,
    FULL: FULL_LIMITS,
    USED_UP: USED_UP_LIMITS,
}
MAY_LACK, FRACTIONS = (RISE, FULL, USED_UP, "ratio", "value", "count"), ("estimate", "ratio", "value")
OF_VIEWS = (
    "In brackets: where the same number is with probability 95%, each by itself; if counts stay near levels "
    "that move, where numbers are smoothed."
)
OF_SMOOTHED = " So are smoothed counts and rises, if counts stay near levels that move."
NUMBERS = {"estimate", "count", "ratio", "value"}
"""Fields beside which their interval stands."""

TIMES = ("window_start", "window_end", "time", "reported_at", "backfilled")


def newest(result: Result) -> dict[str, Any]:
    """Return a table for each of the newest windows, the newest first; without windows, one of the newest answers."""
    windows: dict[Any, list[Any]] = {}
    for row in newest_first(result):
        windows.setdefault(_window(row), []).append(in_words(row, result.parameters))
    shown = list(windows.items())[:MOST_WINDOWS]
    fields, clocks = _fields(result), result.promise.clocks
    return {
        "fields": [field.replace("_", " ") for field in fields],
        "windows": [
            {
                "title": _title(window, clocks),
                "rows": [[reading(row, field, clocks) for field in fields] for row in rows[:MOST_ROWS]],
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


def reading(row: Any, field: str, clocks: Clocks = UTC) -> str:
    """Return a value of a row as a text, with its band if it has one."""
    value = getattr(row, field)
    if field == "quantile":
        return f"{100 * value:.10g}%"
    if field == "gap_lower_bound" and not row.gap_stddev:
        return "no bound"
    limits = LIMITS_OF.get(field)
    if limits is not None and getattr(row, limits[0], None) is not None and not (field in MAY_LACK and value is None):
        return _between(value, *(getattr(row, limit) for limit in limits), whole=_is_whole(row, field))
    spread = _spread(row, field)
    if spread is None:
        return cell(value, clocks)
    deviation = spread.endswith("_stddev")
    half = (getattr(row, spread) or 0) * (DEVIATIONS if deviation else 1)
    if value is None or (deviation and not half):
        return f"no {field}"  # as while an item or an alert continues
    return (
        f"{cell(value)} ± {_short(half, whole=isinstance(value, int))}"
        if half >= 0
        else f"{cell(value)} (no bound is known)"
    )


def _is_whole(row: Any, field: str) -> bool:
    """Tell whether a number is shown without digits: counts are, with what is made of them but for ratios."""
    return field not in FRACTIONS and not hasattr(row, "ratio") and not hasattr(row, "quantile")


def _between(value: Any, lower: Any, upper: Any, *, whole: bool) -> str:
    """Return a value with its interval; `whole`: rounded to whole numbers."""
    texts = [f"{round(number):,}" if whole and number is not None else cell(number) for number in (value, lower, upper)]
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
    left_out = {*TIMES, *SMOOTHED_LIMITS, *RISE_LIMITS, *beside, *(LIMITS if NUMBERS & {*names} else ())}
    if not any(getattr(row, "stream", "") for row in result.rows):
        left_out.add("stream")
    if not any(getattr(row, COSTS[0], 0) for row in result.rows):
        left_out |= {*COSTS}
    if not any(getattr(row, SMOOTHED, None) is not None for row in result.rows):
        left_out.add(SMOOTHED)
    if not any(getattr(row, RISE, None) is not None for row in result.rows):
        left_out |= {RISE, LIKELY}
    told = any(getattr(row, "kept", None) is not None for row in result.rows)
    left_out |= {*IN_SENTENCES, *FULL_LIMITS, *USED_UP_LIMITS} if told else {*FULL_FIELDS}
    about = [name for name in result.spec.key if name in names]
    return [name for name in dict.fromkeys([*about, *names]) if name not in left_out]


def _window(row: Any) -> Any:
    """Return what window a row is about; None without windows."""
    return (row.window_start.micros, row.window_end.micros) if hasattr(row, "window_end") else None


def _title(window: tuple[int, int] | None, clocks: Clocks) -> str:
    """Say which window it is: of whole days from the first to the last one."""
    if window is None:
        return "the newest answers"
    if clocks.at_midnight(window):
        return " to ".join(dict.fromkeys(map(clocks.day, (window[0], window[1] - 1))))
    start, end = map(clocks.moment, window)
    day, _, time = end.partition(" ")
    return f"{start.rpartition(' ')[0]} to {time if start.startswith(day) else end}"


def _meaning(result: Result) -> str:
    """Say what the bands of the table mean."""
    names, promise = set(result.row_type._fields), result.promise
    if result.is_view and "count" not in names:
        return OF_VIEWS
    if names.isdisjoint(("estimate", "count")):
        return columns_in_words(result.row_type, promise)
    if names.isdisjoint(("error_bound", "lower")) or "gap_stddev" in names:
        return columns_in_words(result.row_type, promise, TWO_DEVIATIONS)
    of_sums = OF_SUMS if "sum_stddev" in names else ""
    smoothed = any(getattr(row, SMOOTHED, None) is not None for row in result.rows)
    own = "error_bound" not in names or any(getattr(row, LIMITS[0], None) is not None for row in result.rows)
    if {"count", *LIMITS} <= names or ({"estimate", "error_bound", *LIMITS} <= names and own):
        return of_each_row(promise, "In brackets") + OF_SMOOTHED * smoothed + of_sums
    of_smoothed = f" Smoothed: {OF_COUNTS}" * smoothed
    return meaning(promise, "After ±, or in brackets") + of_smoothed + of_sums


PACKAGE = "privstream.pipelines.serve"
MOST_PICTURES = 6
PATIENCE_SECONDS = 0.2
NOT_IN_LEDGER = "The ledger of this page has no run that promises what this result does."
NOT_DRAWN = "This result has rows that cannot be drawn."


class BusyError(Exception):
    """A piece cannot be made now, since another one is; whoever needs it asks again."""


class Page:
    """Makes the pieces of the page, each anew only when what it shows has changed.

    Args:
        folder: whose results are shown.
        accounts: the ledger of their runs, or None.
        limit: of the budget of each data set, or None.
        health: where the health of jobs is found, or None.
        version: of privstream.
        docs: address of the site of the documentation, to which proofs are linked; empty without links.
    """

    def __init__(
        self,
        folder: WatchedFolder,
        *,
        accounts: Accounts | None,
        limit: Limit | None,
        health: Health | None,
        version: str,
        docs: str = "",
    ) -> None:
        self._folder, self._accounts, self._limit, self._health = folder, accounts, limit, health
        self._version, self._docs = version, docs
        self._templates = templates(PACKAGE)
        self._made: dict[tuple[str, ...], tuple[str, str]] = {}
        self._drawing, self._adding = threading.Lock(), threading.Lock()

    @property
    def has_health(self) -> bool:
        """Whether there is something for operators."""
        return self._health is not None

    def frame(self, *, operator: bool) -> str:
        """Return the page without results, which its script asks for."""
        return self._render("live.html", operator=operator, version=self._version)

    def state(self) -> dict[str, Any]:
        """Return which pieces there are, and their versions."""
        found, notes = self._folder.look()
        ledger = self._ledger_version()
        results = [
            {
                "id": one.id,
                "version": one.version + ledger,
                "pictures": _pictures(one),
                "running": one.running,
                "title": printable(one.name if one.result is None else f"{one.result.spec.word}: {one.name}"),
            }
            for one in found
        ]
        return {"results": results, "notes": list(notes), "cost": self._cost_version(found, ledger)}

    def result(self, id: str) -> str | None:
        """Return the piece about a result, without its pictures; None if there is no such result."""
        found = self._find(id)
        if found is None:
            return None
        return self._kept(("result", id), found.version + self._ledger_version(), lambda: self._result(found))

    def picture(self, id: str, number: int) -> str | None:
        """Return a picture of a result; None if there is none.

        Raises:
            BusyError: another one is being drawn.
        """
        found = self._find(id)
        if found is None or not 0 <= number < _pictures(found):
            return None
        with _alone(self._drawing):
            return self._kept(("picture", id, str(number)), found.version, lambda: self._picture(found, number))

    def cost(self) -> str:
        """Return what has been spent, and what is left.

        Raises:
            BusyError: something else is being made.
        """
        found, _ = self._folder.look()
        with _alone(self._adding):
            return self._kept(("cost",), self._cost_version(found, self._ledger_version()), lambda: self._cost(found))

    def health(self) -> str:
        """Return the health of jobs, which is exact: for operators alone."""
        return "" if self._health is None else self._render("health.html", **self._health.look())

    def _find(self, id: str) -> Found | None:
        """Return a result by its id."""
        return next((one for one in self._folder.look()[0] if one.id == id), None)

    def _kept(self, key: tuple[str, ...], version: str, make: Callable[[], str]) -> str:
        """Return a piece; it is made anew if it is of another version, and those of results that have gone go."""
        known = self._made.get(key)
        if known is None or known[0] != version:
            ids = {one.id for one in self._folder.look()[0]}
            self._made = {other: made for other, made in self._made.items() if len(other) == 1 or other[1] in ids}
            known = self._made[key] = version, make()
        return known[1]

    def _result(self, found: Found) -> str:
        """Make the piece about a result."""
        notes = list(found.notes)
        if found.result is None:
            return self._render("live_section.html", found=found, notes=notes, one=None, newest=None)
        shown = replace(found.result, rows=newest_first(found.result))
        try:
            try:
                one = words_of(shown, self._accounts, self._docs)
            except ValueError:
                one = words_of(shown, None, self._docs)
                notes.append(NOT_IN_LEDGER)
            return self._render("live_section.html", found=found, notes=notes, one=one, newest=newest(found.result))
        except Exception:  # whatever is wrong with one result must not hide the others
            notes.append("This result cannot be shown: it is not as this version of privstream writes it.")
            return self._render("live_section.html", found=found, notes=notes, one=None, newest=None)

    def _picture(self, found: Found, number: int) -> str:
        """Make a picture."""
        assert found.result is not None  # _pictures is 0 then
        try:
            drawn = picture(found.result, list(found.result.given())[number])
        except Exception:  # one that cannot be drawn must not hide the others
            return self._render("no_picture.html", text=NOT_DRAWN)
        return self._render("picture.html", picture=drawn)

    def _cost(self, found: Sequence[Found]) -> str:
        """Make the piece about the budget."""
        costs = None
        if self._accounts is not None:
            try:
                costs = self._accounts.costs(self._datasets(found), self._limit)
            except ValueError:
                return self._render("no_picture.html", text="The ledger cannot be read now.")
        return self._render("cost.html", costs=costs, neighbouring=NEIGHBOURING)

    def _datasets(self, found: Sequence[Found]) -> list[str]:
        """Return the data sets that results are about, as far as the ledger knows."""
        names = []
        for one in found:
            try:
                if one.result is not None and self._accounts is not None:
                    names.append(self._accounts.entry(one.result).dataset)
            except ValueError:
                continue
        return sorted(set(names))

    def _ledger_version(self) -> str:
        """Return what changes when the ledger does."""
        if self._accounts is None:
            return ""
        if is_database(self._accounts.path):
            return f"-{self._accounts.head()}"
        return "".join(f"-{part}" for part in stamp_of(self._accounts.path))

    def _cost_version(self, found: Sequence[Found], ledger: str) -> str:
        """Return what changes when what has been spent may."""
        ids = ",".join(sorted(one.id for one in found if one.result is not None))
        return blake2b(f"{ids}{ledger}".encode(), digest_size=8).hexdigest()

    def _render(self, name: str, **values: Any) -> str:
        """Fill a template."""
        return self._templates.get_template(name).render(**values)


@contextmanager
def _alone(lock: threading.Lock) -> Iterator[None]:
    """Do one slow thing at a time, and let nobody wait for it: threads that wait would be missing for numbers.

    Raises:
        BusyError: another one is being done.
    """
    if not lock.acquire(timeout=PATIENCE_SECONDS):
        raise BusyError
    try:
        yield
    finally:
        lock.release()


def _pictures(found: Found) -> int:
    """Return how many pictures a result has, up to a limit."""
    return 0 if found.result is None else min(MOST_PICTURES, sum(1 for _ in found.result.given()))
