"""Values that break things: texts, bytes, numbers and times, each drawn from a generator of random numbers."""

import random
from datetime import UTC, datetime, timedelta, timezone

CANARY = "kanarie"
"""Stands in every user, item, key and record, and must not stand in any log or error."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SPAN_START = 1_704_067_200_000_000
"""2024-01-01, where honest events begin, in microseconds since 1970."""
SPAN = 120_000_000

UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": None}
"""Microseconds in each unit of plain numbers; a nanosecond is less than one."""

TEXTS = [
    "", " ", "\t", "a", "\x00", "a\x00b", "\u202eabc", "\x9b31m", "\x1b[2J", "\x1b]0;x\x07", "\x7f", "\x08\x08",
    "\r", "\n",
    "\r\n", "a\rb", "a\nb", "a\r\nb", "\n\n\n", '"', '""', '"""', '","', '"\n"', "'", ",", ",,", ";", "a,b", "a|b",
    "\t\t",
    "\ufeff", "\ufeffuser", "nan", "NaN", "null", "None", "true", "-0", "007", "1e5", "0x10", "日本語", "é", "e\u0301",
    "\u2028", "\u2029", "\x85", "\x1c", "\x1e", "\x0b", "\x0c", "=1+1", "{", "[", "}", "]", "{}", "},{", "],[",
    "\\", "\\n",
    "\\u0000", "\\ud800", "\U00010000" * 9, "\uffff", "\ufdd0", "\u200b", "\u00a0", "%s%n", "{0}", "../../x",
    "user", "item",
    "time", "stream", "#", "//", "<b>", "9" * 30, "-1", "+1", "1.0", " a ", "a ", "ﬁ", "\u017f", "İ",
]  # fmt: skip

NOT_UTF_8 = [
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xf5\x80\x80\x80",
    b"\xc0\xaf",
    b"\xff\xfe",
    b"\xfe\xff",
    b"\x80",
    b"a\xe2\x82",
]

INTEGERS = [
    0, 1, -1, 5, 255, 2**31 - 1, 2**31, -(2**31) - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64,
    10**18, 10**19, 10**30, -(10**30), 10**400,
]  # fmt: skip
FLOATS = [0.0, -0.0, 1.5, -1.5, 1e-320, 1e15, 1e300, 1.7976931348623157e308, float("inf"), float("-inf"), float("nan")]

NUMBERS = [
    "1", "+1", "-1", "007", "1.", ".5", "1.0", "12.5e3", "1E5", "1e-400", "1e400", "1e99999", "1e", ".", "-.", "1_000",
    "1,5", "1,000", "0x10", "1e5e5", "--1", " 1", "1 ", "1\t", "1d", "1f", "1j", "\u0661", "\uff11", "½", "2.5",
    "5 EUR", "0" * 400, "0" * 401, "9" * 308, "9" * 309, "nan", "NaN", "inf", "-inf", "Infinity", "infinity", "",
]  # fmt: skip

BAD_TIMES = [
    "", " ", "now", "12:00", "17/May/2015:10:05:03 +0000", "01/02/2024", "31.12.2024", "2024-13-01", "2024-02-30",
    "2024-1-1", "2024-01-01T25:00:00", "2024-01-01T00:61:00", "2024-01-01T00:00:60Z", "2024-01-01T00:00:00+99:99",
    "2024-01-01T00:00:00.", "2024-01-01T", "2024-W01-1", "20240101T000000Z", "20240101", "2024-001",
    "2024-01-01 00:00 UTC",
    "2024-01-01T00:00:00 Z", " 2024-01-01", "2024-01-01 ", "2024-01-01\n", "2024-01-01T00:00:00,5Z",
    "\uff11\uff17\uff10\uff14\uff10\uff16\uff17\uff12\uff10\uff10",
    "1_704_067_200",
    "0x65920080", "1e400", "-1e400", "NaN", "nan", "inf", "-inf", "Infinity", "1704067200s", "--1", "+", "-", ".", "e5",
    "1969-12-31T23:59:59.999999Z", "1969-12-31", "2200-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z",
    "0000-00-00", "10000-01-01", "-2024-01-01", "2024-01-01T00:00:00+24:00", "2024-01-01T00:00:00-00:00:30", "\x00",
    "2024-01-01T00:00:00\x00", "\uff19999-01-01", "\u0662\u0660\u0662\u0664-\u0660\u0661-\u0660\u0661",
    "2024-01-01T24:00:00Z", "9" * 25, "1" * 5000, "1e5e5", "1,5",
]  # fmt: skip


def text(chance: random.Random, longest: int = 40) -> str:
    """Return a text that may be anything that Unicode can say."""
    kind = chance.random()
    if kind < 0.5:
        return chance.choice(TEXTS)
    if kind < 0.65:
        return "".join(chance.choice(TEXTS) for _ in range(chance.randint(2, 4)))
    if kind < 0.75:
        return chance.choice(["x", "é", "\U0001f600", '"', "\n"]) * chance.choice(
            [longest - 1, longest, longest + 1, 5 * longest]
        )
    return CANARY + chance.choice(["", str(chance.randrange(9)), chance.choice(TEXTS)])


def raw(chance: random.Random, longest: int = 40) -> bytes:
    """Return bytes, most of them text."""
    if chance.random() < 0.3:
        return chance.choice([b"", b"a", CANARY.encode()]) + chance.choice(NOT_UTF_8) + chance.choice([b"", b"z"])
    return text(chance, longest).encode()


def iso_time(chance: random.Random, micros: int) -> str:
    """Write a moment in one of the forms of ISO 8601 that keep all of it."""
    moment = EPOCH + timedelta(microseconds=micros)
    zone = chance.choice(["Z", "z", "", "+00:00", "+02:00", "-0530", "+14", "-00:00"])
    if zone not in ("Z", "z", "", "-00:00"):
        hours, minutes = int(zone[:3]), int(zone[3:].strip(":") or 0)
        offset = timedelta(hours=hours, minutes=-minutes if zone[0] == "-" else minutes)
        if timedelta(days=1) < moment - EPOCH < timedelta(days=2_000_000):
            moment = moment.astimezone(timezone(offset))
        else:
            zone = "Z"
    written = moment.strftime(f"%Y-%m-%d{chance.choice('Tt ')}%H:%M:%S")
    digits = f"{moment.microsecond:06}"
    if moment.microsecond or chance.random() < 0.3:
        written += "." + (digits.rstrip("0") or "0") + chance.choice(["", "", "0", "000"])
    return written + zone


def moment(chance: random.Random) -> int:
    """Return microseconds since 1970: of an honest event, or at the edge of what is accepted."""
    edges = [0, 1, 999_999, 7_258_118_399_999_999, 7_258_118_400_000_000, 253_402_300_799_000_000]
    return chance.choice(edges) if chance.random() < 0.15 else SPAN_START + chance.randrange(SPAN)


def number_text(chance: random.Random) -> bytes:
    """Return a number as text, or what is none."""
    return chance.choice([*NUMBERS, *map(str, FLOATS), *map(str, INTEGERS)]).encode()


def time_text(chance: random.Random) -> str:
    """Return a time as text, or what is none."""
    if chance.random() < 0.5:
        return chance.choice(BAD_TIMES)
    if chance.random() < 0.2:
        return str(chance.choice([*INTEGERS, *FLOATS, 1_704_067_200, 1_704_067_200.25]))
    return iso_time(chance, moment(chance))
