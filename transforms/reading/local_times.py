"""Times as people write them: by the clocks of a time zone, and in a form that `strptime` knows.

Arrow's functions are not enough for both: its `strptime` takes 31 February for 3 March, so that a text counts as read
only if `strftime` writes it again; and its time zones have no summer time after 2037 (pyarrow 25.0).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise, permutations
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.mechanisms.privacy.units import SECOND as MICROS
from privstream.transforms.reading.columns import unchecked_text
from privstream.transforms.timing.calendar import LAST_YEAR, read_zone

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECONDS = int((datetime(LAST_YEAR, 1, 1, tzinfo=UTC) - EPOCH).total_seconds())
SCAN = 12 * 3600
"""No zone has changed its clocks twice within so many seconds since 1970."""

DIRECTIVES = "aAbBdfHIjmMpSyYz%"
"""What a form of times may have of `strptime`'s directives: the others depend on the place, or name no time."""

DIGITS = {"d": 2, "m": 2, "Y": 4, "H": 2, "M": 2, "S": 2, "f": 6, "y": 2, "I": 2, "j": 3}
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


def forms_of(form: str) -> list[str]:
    """Return the forms that times may have, which `|` separates."""
    return form.split("|")


@lru_cache(maxsize=16)
def check_form(form: str) -> None:
    """Check that forms of times name a day, by directives that mean the same everywhere, and that they agree."""
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
    """Return local times of forms without a zone, as `parse` reads them one by one, and which rows are times.

    They are microseconds since 1970 on the clock, int64. Text need not be valid UTF-8; nulls are no times.
    """
    (times, read), *others = (_parse_one(unchecked_text(column), each) for each in forms_of(form))
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
