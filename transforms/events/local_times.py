"""Times as people write them: by the clocks of a time zone, and in a form that `strptime` knows.

Arrow has functions for both, which are not used: its `strptime` takes 31 February for 3 March, and its time zones have
no summer time after 2037 (pyarrow 25.0).
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise, permutations
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.mechanisms.privacy.units import SECOND as MICROS
from privstream.transforms.timing.calendar import LAST_YEAR, read_zone

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCAN = timedelta(hours=12)
"""No zone has changed its clocks twice within this time since 1970."""

DIRECTIVES = "aAbBdfHIjmMpSyYz%"
"""What a form of times may have of `strptime`'s directives: the others depend on the place, or name no time."""

WIDTHS = {"d": 2, "m": 2, "Y": 4, "H": 2, "M": 2, "S": 2, "f": 6}
DIGITS = WIDTHS | {"y": 2, "I": 2, "j": 3}
"""Digits of the directives that are read at once."""

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

    def to_utc(self, local: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return when clocks showed local times; of an hour that they show twice, it is the first.

        Args:
            local: int64, any shape, microseconds since 1970 on the clock.

        Returns:
            Microseconds since 1970 UTC, and which of the times are in an hour that the clocks leave out.
        """
        ends = self.changes + np.maximum(self.offsets[:-1], self.offsets[1:])
        place = np.searchsorted(ends, local, side="right")
        times = local - self.offsets[place]
        skipped = times >= np.append(self.changes, np.iinfo(np.int64).max)[place]
        return times, skipped


@lru_cache(maxsize=16)
def zone_clock(name: str) -> ZoneClock:
    """Return the clocks of a zone from 1970 to 2200.

    Raises:
        ValueError: there is no such zone.
    """
    zone = read_zone(name)
    changes, offsets = [], [_offset(zone, EPOCH)]
    times = [EPOCH + SCAN * number for number in range((datetime(LAST_YEAR, 1, 1, tzinfo=UTC) - EPOCH) // SCAN + 1)]
    for before, after in pairwise(times):
        offset = _offset(zone, after)
        if offset != offsets[-1]:
            changes.append(_first(zone, before, after, offset))
            offsets.append(offset)
    return ZoneClock(np.array(changes, np.int64) * MICROS, np.array(offsets, np.int64) * MICROS)


def _offset(zone: ZoneInfo, time: datetime) -> int:
    """Return how many seconds the clocks of a zone are ahead of UTC."""
    offset = time.astimezone(zone).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())


def _first(zone: ZoneInfo, before: datetime, after: datetime, offset: int) -> int:
    """Return the first second since 1970 of an offset that holds at `after` and not at `before`."""
    low, high = int((before - EPOCH).total_seconds()), int((after - EPOCH).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, EPOCH + timedelta(seconds=middle)) == offset:
            high = middle
        else:
            low = middle
    return high


def forms_of(form: str) -> list[str]:
    """Return the forms that times may have, which `|` separates."""
    return form.split("|")


@lru_cache(maxsize=16)
def check_form(form: str) -> None:
    """Check that forms of times name a day, by directives that mean the same everywhere, and that they agree.

    Raises:
        ValueError: naming the option.
    """
    for each in forms_of(form):
        _check_one(each)
    for one, other in permutations(forms_of(form), 2):
        text = PROBE.strftime(one)
        if parse(text, f"{one}|{other}") is None:
            raise ValueError(
                f"time_format must have forms that read no text as two times, got {one!r} and {other!r}, such as {text}"
            )


def _check_one(form: str) -> None:
    """Check a single form."""
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
    for each in forms_of(form):
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
    number = [part[-1].isdigit() if len(part) == 1 else part[1] in DIGITS for part in parts]
    touching = [before or after for before, after in zip([False, *number[:-1]], [*number[1:], False], strict=True)]
    found = ""
    for part, touches in zip(parts, touching, strict=True):
        if len(part) == 1 or part == "%%":
            found += r"\s*" if part.isspace() else re.escape(part[-1])
        else:
            width = DIGITS.get(part[1])
            found += ".+" if width is None else rf"\d{{{width if touches else 1},{width}}}"
    return re.compile(found, re.IGNORECASE | re.DOTALL)


def parse_column(column: pa.Array, form: str) -> tuple[np.ndarray, np.ndarray]:
    """Return local times of forms without a zone, as `parse` reads them one by one.

    Args:
        column: text, which need not be valid UTF-8; nulls are no times.
        form: forms without a zone.

    Returns:
        Microseconds since 1970 on the clock, int64, and which rows are times.
    """
    (times, read), *others = (_parse_one(column, each) for each in forms_of(form))
    differ = np.zeros(len(column), np.bool_)
    for other, fits in others:
        differ |= read & fits & (times != other)
        times, read = np.where(read, times, other), read | fits
    return times, read & ~differ


def _parse_one(column: pa.Array, form: str) -> tuple[np.ndarray, np.ndarray]:
    """Return local times of a single form, and which rows are such."""
    data = column.cast(pa.binary()).fill_null(b"")
    times, read, possible = np.zeros(len(data), np.int64), np.zeros(len(data), np.bool_), np.ones(len(data), np.bool_)
    digits = _Digits.of(form)
    if digits is not None:
        fitting = pc.equal(pc.binary_length(data), digits.width).to_numpy(zero_copy_only=False)
        times[fitting], read[fitting] = digits.read(data.filter(pa.array(fitting)))
        for sign in "-./:":  # which `strptime` takes for a part of no number
            possible &= pc.count_substring(data, sign).to_numpy() == form.count(sign)
    others = np.flatnonzero(possible & ~read)
    known: dict[bytes, int | None] = {}
    for row, text in zip(others.tolist(), data.take(pa.array(others)).to_pylist(), strict=True):
        if text not in known:
            found = parse(text.decode("utf-8", "replace"), form)
            known[text] = None if found is None else (found.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
        micros = known[text]
        times[row], read[row] = (0, False) if micros is None else (micros, True)
    return times, read


@dataclass(frozen=True)
class _Digits:
    """A form whose directives are digits of fixed width: the place of each, and the bytes between them."""

    width: int
    places: dict[str, int]
    between: dict[int, int]

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, form: str) -> _Digits | None:
        """Return what a form has; None if it has something else, or a directive twice."""
        places: dict[str, int] = {}
        between: dict[int, int] = {}
        width = 0
        for directive, text in re.findall(r"%(.)|([^%])", form):
            if directive in places or not (directive in WIDTHS if directive else text.isascii()):
                return None
            if directive:
                places[directive] = width
            else:
                between[width] = ord(text)
            width += WIDTHS[directive] if directive else 1
        return cls(width, places, between) if {"Y", "m", "d"} <= set(places) else None

    def read(self, data: pa.BinaryArray) -> tuple[np.ndarray, np.ndarray]:
        """Read texts of the form's width, none of them null; tell which are times."""
        if not len(data):
            return np.zeros(0, np.int64), np.zeros(0, np.bool_)
        start = int(np.frombuffer(data.buffers()[1], np.int32)[data.offset])
        codes = np.frombuffer(data.buffers()[2], np.uint8)[start : start + len(data) * self.width]
        codes = codes.reshape(len(data), self.width)
        good = np.ones(len(data), np.bool_)
        for place, code in self.between.items():
            good &= codes[:, place] == code
        numbers = {}
        for directive, place in self.places.items():
            number = np.zeros(len(data), np.int64)
            for column in range(place, place + WIDTHS[directive]):
                digit = codes[:, column] - np.uint8(ord("0"))
                good &= digit <= 9
                number = 10 * number + digit
            numbers[directive] = number
        hour, minute, second, micro = (numbers.get(each, np.int64(0)) for each in "HMSf")
        year, month, day = (numbers[each] for each in "Ymd")
        good &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (hour < 24) & (minute < 60) & (second < 60)
        months = np.where(good, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
        first, behind = (each.astype("datetime64[D]").astype(np.int64) for each in (months, months + 1))
        good &= first + day <= behind
        return (((first + day - 1) * 24 + hour) * 3600 + minute * 60 + second) * MICROS + micro, good
