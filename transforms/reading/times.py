"""Times as microseconds since 1970: one by one and in columns, as numbers, in ISO 8601, and as people write them.

Arrow's functions are not enough for times of people: its `strptime` takes 31 February for 3 March, so that a text
counts as read only if `strftime` writes it again; and its time zones have no summer time after 2037 (pyarrow 25.0).
"""

from __future__ import annotations

import hashlib
import math
import re
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_DOWN, Context, Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise, permutations
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.mechanisms.privacy.units import SECOND as MICROS
from privstream.transforms.reading.columns import (
    EPOCH,
    Marks,
    column_of,
    is_number,
    is_text,
    marked,
    null_rows,
    spread,
    unchecked_text,
)
from privstream.transforms.reading.fields import BrokenRuleError, broken
from privstream.transforms.timing.steps import LAST_YEAR, read_zone

SECONDS = int((datetime(LAST_YEAR, 1, 1, tzinfo=UTC) - EPOCH).total_seconds())
SCAN = 12 * 3600
"""No zone has changed its clocks twice within so many seconds since 1970."""

DIRECTIVES = "aAbBdfHIjmMpSyYz%"
"""What a form of times may have of `strptime`'s directives: the others depend on the place, or name no time."""

WIDTHS = {"d": 2, "m": 2, "Y": 4, "H": 2, "M": 2, "S": 2, "f": 6, "y": 2, "I": 2, "j": 3}
"""How many digits directives have."""

PROBE = datetime(2003, 2, 1, 4, 5, 6, tzinfo=UTC)
"""Forms with the same parts in another order read this time differently."""

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
        ahead = (EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
        return 0 if ahead is None else int(ahead.total_seconds())

    changes, offsets = [], [offset(0)]

    def changed(second: int) -> bool:
        return offset(second) != offsets[-1]

    for before, after in pairwise(range(0, SECONDS + SCAN, SCAN)):
        if changed(after):
            changes.append(before + bisect_left(range(before, after), True, key=changed))
            offsets.append(offset(after))
    return ZoneClock(np.array(changes, np.int64) * MICROS, np.array(offsets, np.int64) * MICROS)


@lru_cache(maxsize=16)
def check_form(form: str) -> None:
    """Check that forms of times name a day, by directives that mean the same everywhere, and that they agree."""
    for each in form.split("|"):
        _check_one(each)
    for one, other in permutations(form.split("|"), 2):
        text = PROBE.strftime(one)
        if parse(text, f"{one}|{other}") is None:
            raise ValueError(
                f"time_format must have forms that read no text as two times, got {one!r} and {other!r}, such as {text}"
            )


def _check_one(form: str) -> None:
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
    """Tell whether times of a form, or of one of several, say how far they are from UTC."""
    return "z" in re.findall(r"%(.?)", form)


def parse(text: str, form: str) -> datetime | None:
    """Return the time that a text of one of the forms is; None if it is none, or if they read different times."""
    if len(text) > LONGEST:
        return None
    found = set()
    for each in form.split("|"):
        with suppress(ValueError, OverflowError):
            if not _fits(each).fullmatch(text):
                raise ValueError(each)
            found.add(datetime.strptime(text, each))
    return found.pop() if len(found) == 1 else None


@lru_cache(maxsize=16)
def _fits(form: str) -> re.Pattern[str]:
    """Return what texts of a form look like: numbers that touch have all their digits, which `strptime` does not ask.

    It takes 130 for 13:00, and 1112026 for 11 January, where `%H%M` and `%d%m%Y` are asked for.
    """
    parts = re.findall(r"%.|[^%]", form)
    number = [part[-1].isdigit() if len(part) == 1 else part[1] in WIDTHS for part in parts]
    touching = [before or after for before, after in zip([False, *number[:-1]], [*number[1:], False], strict=True)]
    found = ""
    for part, touches in zip(parts, touching, strict=True):
        if len(part) == 1 or part == "%%":
            found += r"\s*" if part.isspace() else re.escape(part[-1])
        else:
            width = WIDTHS.get(part[1])
            found += ".+" if width is None else rf"\d{{{width if touches else 1},{width}}}"
    return re.compile(found, re.IGNORECASE | re.DOTALL)


def parse_column(column: pa.Array, form: str) -> tuple[np.ndarray, np.ndarray]:
    """Return local times of forms without a zone, as `parse` reads them one by one, and which rows are times.

    They are microseconds since 1970 on the clock, int64. Text need not be valid UTF-8; nulls are no times.
    """
    (times, read), *others = (_parse_one(unchecked_text(column), each) for each in form.split("|"))
    differ = np.zeros(len(column), np.bool_)
    for other, fits in others:
        differ |= read & fits & (times != other)
        times, read = np.where(read, times, other), read | fits
    return times, read & ~differ


def _parse_one(texts: pa.Array, form: str) -> tuple[np.ndarray, np.ndarray]:
    """Return local times of a single form, and which rows are such: at once those that Arrow would write like that."""
    seconds, read = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.bool_)
    with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):  # read below, slowly
        parsed = pc.strptime(texts, format=form, unit="s", error_is_null=True)
        same = pc.fill_null(pc.equal(pc.strftime(parsed, format=form), texts), False)
        seconds = parsed.cast(pa.int64()).fill_null(0).to_numpy()
        read = same.to_numpy(zero_copy_only=False) & (seconds >= 0) & (seconds < SECONDS)
    times, read = np.where(read, seconds, 0) * MICROS, read.copy()
    others = np.flatnonzero(~read)
    known: dict[bytes | None, datetime | None] = {None: None}
    for row, text in zip(others.tolist(), texts.take(pa.array(others)).cast(pa.binary()).to_pylist(), strict=True):
        if text not in known:
            known[text] = parse(text.decode("utf-8", "replace"), form)
        found = known[text]
        if found is not None:
            times[row], read[row] = (found.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1), True
    return times, read


PER_SECOND = {"s": 1, "ms": 1_000, "us": MICROS, "ns": 1_000_000_000}
NUMBER = re.compile(r"[+-]?([0-9]++\.?[0-9]*+|\.[0-9]++)([eE][+-]?[0-9]++)?")  # tries each digit once, however many
ISO_8601 = re.compile(
    r"\d{4}-\d\d-\d\d"
    r"([Tt ]([01]\d|2[0-3])(:[0-5]\d(:[0-5]\d(\.\d++)?)?)?(?P<zone>[Zz]|[+-]([01]\d|2[0-3])(:?[0-5]\d)?)?)?",
    re.ASCII,
)
"""What text is a time, if its date exists. Arrow reads a part of that, and the same from it; a test compares them."""

DIGITS = {"s": 6, "ms": 3, "us": 0, "ns": -3}
CUT = Context(prec=60, rounding=ROUND_DOWN)
DIGITS_ALONE = r"^[0-9]{1,20}(\.[0-9]{1,9})?$"


@dataclass(frozen=True, kw_only=True)
class TimeForm:
    """How times are written where they are no timestamps.

    Attributes:
        unit: of numbers: s, ms, us or ns; None if there must be none.
        form: of text, as `strptime` reads it, or several with `|` between; None for ISO 8601, beside which there may be
            numbers as text.
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
    if pa.types.is_dictionary(kind):
        times, marks = read_times(column.dictionary, written, name)
        rows, marks = spread(name, column, marks)
        return np.append(times, 0)[rows], marks
    if is_text(kind):
        return _of_texts(column, written, name)
    moments = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    if written.unit is None and not (moments or pa.types.is_null(kind)):
        raise broken(name, "unit" if is_number(kind) else "moment", kind)
    times, marks = _of_numbers(column, written.unit or "s", name)
    return (
        _at_zone(times, marks, written.zone, name) if moments and getattr(kind, "tz", None) is None else (times, marks)
    )


def _of_numbers(column: pa.Array, unit: str, name: str) -> tuple[np.ndarray, Marks]:
    """Return timestamps or numbers in microseconds, and which rows break a rule; another type raises the rule."""
    nulls, per_second = null_rows(column), PER_SECOND[unit]
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s" if pa.types.is_date32(column.type) else "ms"))
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.int64), marked(name, missing=nulls)
    if pa.types.is_floating(kind):
        return _of_floats(column.cast(pa.float64()).fill_null(0.0).to_numpy(), nulls, per_second, name)
    if pa.types.is_decimal(kind):
        rough = column.cast(pa.float64()).fill_null(0.0).to_numpy()
        outside = (rough < 0) | (rough >= SECONDS * per_second)
        fitting = pc.if_else(pa.array(outside | nulls), pa.scalar(Decimal(0), kind), column)
        digits = len(str(max(1, MICROS // per_second))) - 1
        whole = fitting.cast(pa.decimal128(38, digits), safe=False)  # which cuts further digits off
        values = np.frombuffer(whole.buffers()[1], np.int64)[::2][whole.offset : whole.offset + len(whole)]
        return values // max(1, per_second // MICROS), marked(name, missing=nulls, range=outside)
    if pa.types.is_timestamp(kind):
        column, per_second = column.cast(pa.int64()), PER_SECOND[kind.unit]
    elif not pa.types.is_integer(kind):
        raise broken(name, "moment", kind)
    values = column.fill_null(0).to_numpy() if nulls.any() else column.to_numpy()
    outside = (values < 0) | (values >= SECONDS * per_second) if values.dtype.itemsize > 4 else values < 0
    fitting = (np.where(outside, 0, values) if outside.any() else values).astype(np.int64, copy=False)
    micros = fitting * (MICROS // per_second) if per_second <= MICROS else fitting // (per_second // MICROS)
    return micros, marked(name, missing=nulls, range=outside)


def _of_floats(values: np.ndarray, nulls: np.ndarray, per_second: int, name: str) -> tuple[np.ndarray, Marks]:
    """Return numbers in microseconds, cut down; those that are near a whole one are decided by their decimals."""
    finite = np.isfinite(values)
    given = np.clip(np.where(finite, values, 0.0), -1.0, float(SECONDS * per_second))
    micros, whole = given * (MICROS / per_second), given == np.floor(given)
    found = np.floor(micros).astype(np.int64)
    near = np.abs(micros - np.rint(micros)) <= np.spacing(np.abs(micros)) * 2
    for row in np.flatnonzero(near & ~whole).tolist():  # 0.1 is a tenth
        found[row] = math.floor(Fraction(repr(float(given[row]))) * Fraction(MICROS, per_second))
    if per_second <= MICROS:
        found[whole] = given[whole].astype(np.int64) * (MICROS // per_second)
    return found, marked(name, missing=nulls, finite=~finite, range=(given < 0) | (found >= SECONDS * MICROS))


def _at_zone(local: np.ndarray, marks: Marks, zone: str | None, name: str) -> tuple[np.ndarray, Marks]:
    """Return when the clocks of a zone showed a column of times."""
    if zone is None:
        return local, marks + marked(name, zone=np.ones(len(local), np.bool_))
    if zone == "UTC":
        return local, marks
    times, skipped = zone_clock(zone).to_utc(local)
    outside = (times < 0) | (times >= SECONDS * MICROS)
    return times, marks + marked(name, zone, skipped=skipped, range=outside)


def _of_texts(column: pa.Array, written: TimeForm, name: str) -> tuple[np.ndarray, Marks]:
    """Return texts in microseconds, all at once if all are alike, and which rows break a rule.

    A number in another form than digits might be something else to Arrow: hexadecimal, or an exponent that takes its
    process down (pyarrow 25.0). Floats would round over a window's end.
    """
    if written.form is not None and not has_zone(written.form):
        empty = pc.equal(pc.binary_length(column), 0).fill_null(True).to_numpy(zero_copy_only=False)
        micros, read = parse_column(column, written.form)
        outside = read & ((micros < 0) | (micros >= SECONDS * MICROS))
        forms = written.form.replace("|", " or ")
        marks = marked(name, forms, missing=empty, form=~read & ~empty, range=outside)
        return _at_zone(np.where(outside, 0, micros), marks, written.zone, name)
    if written.form is None:
        numbers = written.unit is not None and pc.all(pc.match_substring_regex(column, DIGITS_ALONE)).as_py()
        for kind in (pa.decimal128(38, 9),) if numbers else (pa.timestamp("ns", "UTC"), pa.timestamp("ns")):
            with suppress(pa.ArrowInvalid):
                return read_times(column.cast(kind), written, name)
    times, local = np.zeros(len(column), np.int64), np.zeros(len(column), np.bool_)
    wrong: dict[str, tuple[np.ndarray, BrokenRuleError]] = {}
    for row, data in enumerate(column.cast(pa.binary()).to_pylist()):
        try:
            times[row], local[row] = _of_text(name, data.decode("utf-8", "replace") if data else "", written)
        except BrokenRuleError as rule:
            wrong.setdefault(rule.code, (np.zeros(len(column), np.bool_), rule))[0][row] = True
    marks = list(wrong.values())
    times[local], more = _at_zone(times[local], [], written.zone, name)
    for mask, skipped in more:
        whole = np.zeros(len(column), np.bool_)
        whole[local] = mask
        marks.append((whole, skipped))
    return times, marks


def _of_text(name: str, text: str, written: TimeForm) -> tuple[int, bool]:
    """Return a text in microseconds, and whether these are on the clock of a zone that it does not name."""
    moment = None
    if not text:
        raise broken(name, "missing")
    if written.form is not None:
        moment = parse(text, written.form)
    elif ISO_8601.fullmatch(text):
        with suppress(ValueError):  # there is no such day
            moment = datetime.fromisoformat(text.upper())
    elif NUMBER.fullmatch(text):
        if written.unit is None:
            raise broken(name, "unit")
        number = Decimal(-1)
        with suppress(InvalidOperation):  # of an exponent that Python has no room for
            number = Decimal(text)
        if not 0 <= number < SECONDS * PER_SECOND[written.unit]:
            raise broken(name, "range")
        return int(number.scaleb(DIGITS[written.unit], CUT)), False
    if moment is None and written.form is not None:
        raise broken(name, "form", written.form.replace("|", " or "))
    if moment is None:
        raise broken(name, "syntax", "a number or " * (written.unit is not None))
    micros = (moment.replace(tzinfo=moment.tzinfo or UTC) - EPOCH) // timedelta(microseconds=1)
    if not 0 <= micros < SECONDS * MICROS:
        raise broken(name, "range")
    return micros, moment.tzinfo is None
