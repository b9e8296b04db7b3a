"""Times as microseconds since 1970: one by one and in columns, as numbers, in ISO 8601, and as people write them.

Arrow's functions are not enough for times of people: its `strptime` takes 31 February for 3 March, so that a text
counts as read only if `strftime` writes it again; and its time zones have no summer time after 2037 (pyarrow 25.0).
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.mechanisms.privacy.units import SECOND as MICROS
from privstream.transforms.reading.fields import (
    EPOCH,
    NUMBERS,
    TEXT,
    Marks,
    broken,
    column_of,
    kind_of,
    marked,
    unchecked_text,
)
from privstream.transforms.timing.steps import LAST_YEAR, read_zone

SECONDS = int((datetime(LAST_YEAR, 1, 1, tzinfo=UTC) - EPOCH).total_seconds())
SCAN = 12 * 3600
"""No zone has changed its clocks twice within this number of seconds since 1970."""

DIRECTIVES = "aAbBdfHIjmMpSyYz%"
"""What a form of times may have of `strptime`'s directives: the others depend on the place, or name no time."""

WIDTHS = {"d": 2, "m": 2, "Y": 4, "H": 2, "M": 2, "S": 2, "f": 6, "y": 2, "I": 2, "j": 3}
"""How many digits directives have."""

TOUCHING = re.compile(r"((?<=%[dmYHMSfyIj])|(?<=[0-9]))%|%.(?=%[dmYHMSfyIj]|[0-9])")
"""Where a number of a form begins or ends at another one."""

PROBE = datetime(2003, 2, 1, 4, 5, 6, tzinfo=UTC)
ONE_OF = ("Yy", "mbBj", "dj", "HI")
"""Directives of the same part of a time: `strptime` would follow one of them, and not tell which."""

LONGEST = 100  # characters of a time


class ZoneClock(NamedTuple):
    """When the clocks of a zone were changed, and what they show.

    Attributes:
        changes: int64, shape (changes,), microseconds since 1970 UTC, rising.
        offsets: int64, shape (changes + 1,): microseconds that the clocks are ahead of UTC, before and after each.
    """

    changes: np.ndarray
    offsets: np.ndarray

    @property
    def digest(self) -> str:
        """What changes when a government, or the data of zones on this machine, changes the clocks."""
        return hashlib.blake2b(self.changes.tobytes() + self.offsets.tobytes(), digest_size=8).hexdigest()

    def to_utc(self, local: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return when clocks showed local times, in microseconds, and which are in an hour that the clocks leave out.

        Of an hour that they show twice, it is the first.
        """
        ends = self.changes + np.maximum(self.offsets[:-1], self.offsets[1:])
        place = np.searchsorted(ends, local, side="right")
        times = local - self.offsets[place]
        skipped = times >= np.append(self.changes, np.iinfo(np.int64).max)[place]
        return times, skipped


@lru_cache(maxsize=16)
def zone_clock(name: str) -> ZoneClock:
    """Return the clocks of a zone from 1970 to 2200."""
    zone = read_zone(name)

    def offset(second: int) -> int:
        ahead = (EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset() or timedelta()
        return ahead // timedelta(seconds=1)

    changes, offsets = [], [offset(0)]
    for before in range(0, SECONDS + SCAN, SCAN):
        if (last := offset(before + SCAN)) != offsets[-1]:
            seconds = range(before, before + SCAN)
            changes.append(before + bisect_left(seconds, True, key=lambda second: offset(second) != offsets[-1]))
            offsets.append(last)
    return ZoneClock(np.array(changes, np.int64) * MICROS, np.array(offsets, np.int64) * MICROS)


@lru_cache(maxsize=16)
def check_form(form: str) -> None:
    """Check that a form of times names a day, by directives that mean the same everywhere."""
    found = re.findall(r"%(.?)", form)
    unknown = sorted({f"%{each}" for each in found if not each or each not in DIRECTIVES})
    if unknown:
        known = " ".join(f"%{each}" for each in DIRECTIVES)
        raise ValueError(f"time_format must have directives of strptime among {known}, got {', '.join(unknown)}")
    year = {"Y", "y"} & set(found)
    if not year or not ("j" in found or ("d" in found and {"m", "b", "B"} & set(found))):
        raise ValueError(f"time_format must name a year, a month and a day, such as %d.%m.%Y %H:%M, got {form!r}")
    if any(len(set(part) & set(found)) > 1 for part in ONE_OF):
        raise ValueError(f"time_format must name each part of a time once, got {form!r}")
    if ("I" in found) != ("p" in found):
        raise ValueError(f"time_format must have both of %I, hours of half a day, and %p, AM or PM, got {form!r}")
    try:
        datetime.strptime(PROBE.strftime(form), form)
    except (ValueError, re.error):
        raise ValueError(f"time_format must be a form that strptime can read, got {form!r}") from None


def has_zone(form: str) -> bool:
    """Tell whether times of a form say how far they are from UTC."""
    return "z" in re.findall(r"%(.?)", form)


def parse(text: str, form: str | None) -> datetime | None:
    """Return the time that a text of a form is, or one in ISO 8601; None if it is none."""
    if len(text) > LONGEST or not (ISO_8601 if form is None else _fits(form)).fullmatch(text):
        return None
    with suppress(ValueError, OverflowError):  # there is no such day
        return datetime.fromisoformat(text.upper()) if form is None else datetime.strptime(text, form)
    return None


@lru_cache(maxsize=16)
def _fits(form: str) -> re.Pattern[str]:
    """Return what texts of a form look like: numbers that touch have all their digits, which `strptime` does not ask.

    It takes 130 for 13:00, and 1112026 for 11 January, where `%H%M` and `%d%m%Y` are asked for.
    """
    found = ""
    for part in re.finditer(r"%.|\s+|.", form):
        if width := WIDTHS.get(part[0][1:]):
            found += rf"\d{{{width if TOUCHING.match(form, part.start()) else 1},{width}}}"
        elif part[0].isspace():
            found += r"\s*"
        else:
            found += ".+" if len(part[0]) > 1 and part[0] != "%%" else re.escape(part[0][-1])
    return re.compile(found, re.IGNORECASE | re.DOTALL)


def parse_column(column: pa.Array, form: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return times of a form or in ISO 8601 as `parse` reads them, which rows are such, and which name no zone.

    They are int64 microseconds since 1970; of those without a zone on its clock. Text need not be valid UTF-8; nulls
    are no times. What Arrow would write as it stands there is read at once, the rest text by text.
    """
    texts, rows = unchecked_text(column), len(column)
    seconds, read = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
    if form is not None and not has_zone(form):
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            parsed = pc.strptime(texts, format=form, unit="s", error_is_null=True)
            same = pc.fill_null(pc.equal(pc.strftime(parsed, format=form), texts), False)
            seconds = parsed.cast(pa.int64()).fill_null(0).to_numpy()
            read = same.to_numpy(zero_copy_only=False) & (seconds >= 0) & (seconds < SECONDS)
    times, read = np.where(read, seconds, 0) * MICROS, read.copy()
    local, others = read.copy(), np.flatnonzero(~read)
    known: dict[bytes | None, datetime | None] = {None: None}
    for row, text in zip(others.tolist(), texts.take(pa.array(others)).cast(pa.binary()).to_pylist(), strict=True):
        if text not in known:
            known[text] = parse(text.decode("utf-8", "replace"), form)
        if (found := known[text]) is not None:
            times[row] = (found.replace(tzinfo=found.tzinfo or UTC) - EPOCH) // timedelta(microseconds=1)
            read[row], local[row] = True, found.tzinfo is None
    return times, read, local


PER_SECOND = {"s": 1, "ms": 1_000, "us": MICROS, "ns": 1_000_000_000}
ISO_8601 = re.compile(
    r"\d{4}-\d\d-\d\d"
    r"([Tt ]([01]\d|2[0-3])(:[0-5]\d(:[0-5]\d(\.\d++)?)?)?(?P<zone>[Zz]|[+-]([01]\d|2[0-3])(:?[0-5]\d)?)?)?",
    re.ASCII,
)
"""What text is a time, if its date exists. Arrow reads a part of that, and the same from it; a test compares them."""

EXACT = pa.decimal256(76, 40)
NUMBER = r"^[+-]?[0-9]{1,36}(\.[0-9]{0,40})?$"
"""What text is a number: one that `EXACT` has room for; in another form it might be something else to Arrow."""

LEAST = 1e-20
"""What is nearer to nothing has more digits."""


@dataclass(frozen=True, kw_only=True)
class TimeForm:
    """How times are written where they are no timestamps.

    Attributes:
        unit: of numbers: s, ms, us or ns; None if there must be none.
        form: of text, as `strptime` reads it; None for ISO 8601, or numbers as text.
        zone: of times that do not say how far they are from UTC; None if there must be none.
    """

    unit: str | None = None
    form: str | None = None
    zone: str | None = "UTC"


def read_micros(name: str, value: Any, written: TimeForm) -> int:
    """Return a text, a timestamp or a number in microseconds since 1970 UTC, or raise with the rule that it breaks."""
    times, marks = read_times(column_of([value]), written, name)
    for _, rule in marks:
        raise rule
    return int(times[0])


def read_times(column: pa.Array, written: TimeForm, name: str = "time") -> tuple[np.ndarray, Marks]:
    """Return timestamps, numbers or text in microseconds, int64, and which rows break a rule.

    Text need not be valid UTF-8, and is no time then. What a row that breaks a rule is, is not defined.
    """
    kind = column.type
    if kind_of(kind) == TEXT:
        for arrow in (pa.timestamp("ns", "UTC"), pa.timestamp("ns")) if written.form is None else ():
            with suppress(pa.ArrowInvalid):
                return read_times(column.cast(arrow), written, name)
        times, local, marks = _of_texts(unchecked_text(column), written, name)
    else:
        moments = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        if written.unit is None and not (moments or pa.types.is_null(kind)):
            raise broken(name, "unit" if kind_of(kind) in NUMBERS else "moment", kind)
        times, marks = _of_numbers(column, written.unit or "s", name)
        local = ~column.is_null().to_numpy(zero_copy_only=False) & (moments and getattr(kind, "tz", None) is None)
    if written.zone == "UTC" or not local.any():
        return times, marks
    if written.zone is None:
        return times, marks + marked(name, zone=local)
    there, skipped = zone_clock(written.zone).to_utc(times)
    times = np.where(local, there, times)
    outside = (times < 0) | (times >= SECONDS * MICROS)
    return times, marks + marked(name, written.zone, skipped=local & skipped, range=outside)


def _of_numbers(column: pa.Array, unit: str, name: str) -> tuple[np.ndarray, Marks]:
    """Return timestamps or numbers in microseconds, and which rows break a rule; another type raises the rule."""
    nulls, per_second = column.is_null().to_numpy(zero_copy_only=False), PER_SECOND[unit]
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s" if pa.types.is_date32(column.type) else "ms"))
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.int64), marked(name, missing=nulls)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        rough = column.cast(pa.float64()).fill_null(0.0).to_numpy()
        finite = np.isfinite(rough)
        outside = finite & ((rough < 0) | (rough >= SECONDS * per_second))
        if pa.types.is_floating(kind):  # as they are written: 0.1 is a tenth
            written = pa.array(np.where(finite & ~outside & (rough > LEAST), rough, 0.0)).cast(pa.string())
            fitting = written.cast(EXACT)
        else:
            fitting = pc.if_else(pa.array(outside | nulls), pa.scalar(Decimal(0), kind), column)
        digits = len(str(max(1, MICROS // per_second))) - 1
        whole = fitting.cast(pa.decimal128(38, digits), safe=False)  # which cuts further digits off
        values = np.frombuffer(whole.buffers()[1], np.int64)[::2][whole.offset : whole.offset + len(whole)]
        return values // max(1, per_second // MICROS), marked(name, missing=nulls, finite=~finite, range=outside)
    if pa.types.is_timestamp(kind):
        column, per_second = column.cast(pa.int64()), PER_SECOND[kind.unit]
    elif not pa.types.is_integer(kind):
        raise broken(name, "moment", kind)
    values = column.fill_null(0).to_numpy() if nulls.any() else column.to_numpy()
    outside = (values < 0) | (values >= SECONDS * per_second) if values.dtype.itemsize > 4 else values < 0
    fitting = (np.where(outside, 0, values) if outside.any() else values).astype(np.int64, copy=False)
    micros = fitting * (MICROS // per_second) if per_second <= MICROS else fitting // (per_second // MICROS)
    return micros, marked(name, missing=nulls, range=outside)


def _of_texts(column: pa.Array, written: TimeForm, name: str) -> tuple[np.ndarray, np.ndarray, Marks]:
    """Return texts in microseconds, which of them name no zone, and which rows break a rule."""
    empty = pc.fill_null(pc.equal(pc.binary_length(column), 0), True).to_numpy(zero_copy_only=False)
    numbers = pc.fill_null(pc.match_substring_regex(column, NUMBER), False).to_numpy(zero_copy_only=False)
    numbers = numbers & (written.form is None)
    times, read, local = parse_column(pc.if_else(pa.array(numbers), None, column), written.form)
    outside, wrong = (times < 0) | (times >= SECONDS * MICROS), ~(read | empty | numbers)
    marks = marked(name, missing=empty, unit=numbers & (written.unit is None), range=outside)
    if written.form is not None:
        marks += marked(name, written.form, form=wrong)
    else:
        marks += marked(name, "a number or " * (written.unit is not None), syntax=wrong)
    if written.unit is not None and numbers.any():  # as decimals: floats would round over a window's end
        digits = pc.if_else(pa.array(numbers), column, pa.scalar("0", column.type)).cast(EXACT)
        counted, more = _of_numbers(digits, written.unit, name)
        times, marks = np.where(numbers, counted, times), marks + more
    return np.where(outside, 0, times), local, marks
