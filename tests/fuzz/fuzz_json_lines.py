"""Records of JSON lines that are wrong in every way that one line can be."""

import json
import random

from fuzz_meaning import Event, Rules, of_json_line
from fuzz_values import (
    BAD_TIMES,
    CANARY,
    FLOATS,
    INTEGERS,
    NOT_UTF_8,
    SPAN_START,
    iso_time,
    number_text,
    text,
    time_text,
)

LONG_LINE = 3000
"""Longer than the limit of a line in half of the cases."""

GARBAGE = [
    "", " ", "\t", "null", "true", "1", '"x"', "[]", "[1,2]", "{", "}", "{}", "{}{}", "{},{}", "],[", "]", "[",
    '{"user"', '{"user":}',
    "{'user': 'a'}", '{"user":"a",}', "// x", "# x", "\x00", "\x00{}", "\ufeff{}", "NaN", "-Infinity", "{} x", "}{",
    '"', '""', ",", ":",
    '{"a":1}\x1e{"b":2}', "\u2028", "\r", "\x0c", "\xa0{}", '{"__proto__":1}', "undefined", "9" * 5000, "[" * 5000,
    '{"a":' * 5000,
    "[" * 200_000, '{"user":"a","item":"b","time":"2024-01-01"', '{"user":"a","item":"b","time":"2024-01-01"}}',
    ' {"user":"x","item":"y","time":"2024-01-01T00:00:00Z"} ',
    '\r{"user":"x","item":"y","time":"2024-01-01T00:00:00Z"}\r',
]  # fmt: skip

KEYS = [
    "stream",
    "Stream",
    "place",
    "",
    "user ",
    "\x00",
    "\ud800",
    "__class__",
    "\u202e",
    "\x1b[2J",
    "time_unit",
    "a" * 300,
]


def encode(events: list[Event], rules: Rules, times: object, chance: random.Random) -> list[bytes]:
    lines = []
    for event in events:
        user: object = int(event.user) if event.user.isdecimal() and chance.random() < 0.5 else event.user
        item: object = float(event.item) if rules.numbers and chance.random() < 0.7 else event.item
        values = {rules.user: user, rules.item: item, rules.time: times(event.time)}
        if rules.stream:
            values[rules.stream] = event.stream
        lines.append(json.dumps(values, ensure_ascii=chance.random() < 0.5).encode())
    return lines


def hostile_record(chance: random.Random, rules: Rules) -> tuple[bytes, Event | None]:
    """Return one line and what it means."""
    kind = chance.random()
    line = chance.choice(GARBAGE).encode("utf-8", "surrogatepass") if kind < 0.2 else _object(chance, rules)
    if kind > 0.93:
        line = _damaged(chance, line)
    line = line.replace(b"\n", b" ")
    return line, of_json_line(line, rules)


def _object(chance: random.Random, rules: Rules) -> bytes:
    """Return an object with fields missing, doubled, added, and of any type."""
    number = str(SPAN_START * {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[rules.time_unit or "s"] // 10**6)
    good = {
        rules.user: _quoted(f"{CANARY}x", chance),
        rules.item: _quoted(rules.plain_item, chance),
        rules.time: chance.choice([_quoted(iso_time(chance, SPAN_START + 5), chance), number, number + ".0"]),
    }
    if rules.stream:
        good[rules.stream] = '"north"'
    pairs = [(_quoted(name, chance), value) for name, value in good.items()]
    for _ in range(chance.choice([0, 1, 1, 1, 2])):
        place = chance.randrange(len(pairs))
        match chance.randrange(5):
            case 0:
                pairs[place] = (pairs[place][0], _value(chance, rules))
            case 1:
                pairs[place] = (pairs[place][0], _quoted(time_text(chance), chance))
            case 2 if len(pairs) > 1:
                del pairs[place]
            case 3:
                pairs.insert(chance.randint(0, len(pairs)), (pairs[place][0], _value(chance, rules)))
            case _:
                pairs.insert(
                    chance.randint(0, len(pairs)), (_quoted(chance.choice(KEYS), chance), _value(chance, rules))
                )
    body = ",".join(f"{key}:{value}" for key, value in pairs)
    return ("{" + body + "}").encode("utf-8", "surrogatepass")


TOKENS = [
    "1e400", "-1e400", "9" * 5000, "1" * 4301, "0.1e-5000", "-0", "1E5", "01", "1.", ".5", "+1", "nul", "None",
    "null", "true", "false", "[]", "{}", "[null]", '{"user":"a"}', '["a","b"]',
    '"\\ud800"', '"\\udfff\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"', '"\\u202e"', '"\\x"', '"\\u12"',
]  # fmt: skip


def _value(chance: random.Random, rules: Rules) -> str:
    """Return a value of any type as JSON, or as what some take for JSON."""
    longest = rules.max_item_bytes if rules.max_item_bytes < 1000 else 40
    return chance.choice(
        [
            lambda: _quoted(text(chance, longest), chance),
            lambda: _quoted(chance.choice(BAD_TIMES), chance),
            lambda: _quoted(number_text(chance).decode(), chance),
            lambda: _quoted("y" * chance.choice([LONG_LINE, 10 * LONG_LINE]), chance),
            lambda: str(chance.choice(INTEGERS)),
            lambda: json.dumps(chance.choice(FLOATS)),
            lambda: chance.choice(TOKENS),
            lambda: chance.choice(TOKENS),
            lambda: _deep(chance.choice([5, 900, 5000]), chance),
        ]
    )()


def _deep(depth: int, chance: random.Random) -> str:
    """Return lists in lists, or objects in objects."""
    return chance.choice(["[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth])


def _quoted(value: str, chance: random.Random) -> str:
    """Return a text as JSON, escaped or not; control characters sometimes are not, which JSON forbids."""
    written = json.dumps(value, ensure_ascii=chance.random() < 0.5)
    return f'"{value}"' if chance.random() < 0.02 else written


def _damaged(chance: random.Random, line: bytes) -> bytes:
    """Change, remove or add some bytes."""
    place = chance.randint(0, len(line))
    return line[:place] + chance.choice([b"", b'"', b"\x00", b"\r", *NOT_UTF_8]) + line[place + chance.choice([0, 1]) :]
