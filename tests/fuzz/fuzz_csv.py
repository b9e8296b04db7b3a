"""Records of CSV that are wrong in every way that one record can be."""

import random

from fuzz_meaning import Event, Rules, of_csv_record
from fuzz_values import CANARY, NOT_UTF_8, SPAN_START, iso_time, number_text, raw, text, time_text

LINES = [
    b"", b" ", b",", b",,,,,,,,", b'"', b'""', b'"""', b'","', b"x", b"\x00", b"\xff", b"\x00\x00\x00", b"\r",
    b"a\rb", b"\x1a", b"\xef\xbb\xbf",
    b"'", b"a;b;c", b"a\tb\tc", b"\\", b"\\,", b'\\"', b"#", b"-- ", b"=cmd", b'a"b,c,d', b'"a"b,c,d', b'"a" ,b,c',
    b' "a",b,c',
    b'"a,b,c', b'a,"b,c', b'a,b,"c', b'"a""', b'"""",b,c', b"\xff\xfeu\x00", b"\x85", b"\xe2\x80\xa8", b"\x0b",
    b"\x0c", b"\x1c",
]  # fmt: skip


class Layout:
    """The header of a file, and how its honest records are quoted."""

    def __init__(self, chance: random.Random, rules: Rules) -> None:
        self.header = [
            *rules.names(),
            *chance.choice([[], ["other"], ["other", "more, still"], ["stream" if not rules.stream else "x"]]),
        ]
        chance.shuffle(self.header)
        self.quoting = chance.choice(["never", "needed", "needed", "always"])
        self.newline = chance.choice([b"\n", b"\n", b"\r\n"])
        self.lines_in_quotes = self.quoting != "never" and chance.random() < 0.3

    def record(self, values: dict[str, bytes], always: bool = False) -> bytes:
        """Write one record without the end of its line; fields that nobody names hold a small number."""
        return b",".join(quoted(values.get(name, b"7"), always or self.quoting == "always") for name in self.header)


def quoted(value: bytes, always: bool) -> bytes:
    """Quote a field where it must be, or always."""
    if always or any(sign in value for sign in b'",\r\n'):
        return b'"' + value.replace(b'"', b'""') + b'"'
    return value


def encode(events: list[Event], rules: Rules, times: object, layout: Layout) -> list[bytes]:
    """Write honest events; only those of a layout that quotes have line breaks, commas and quotes in them."""
    lines = []
    for event in events:
        values = {rules.user: event.user, rules.item: event.item, rules.time: str(times(event.time))}
        if rules.stream:
            values[rules.stream] = event.stream
        lines.append(layout.record({name: value.encode() for name, value in values.items()}))
    return lines


def hostile_record(chance: random.Random, rules: Rules, layout: Layout) -> tuple[bytes, Event | None]:
    """Return one record and what it means: well quoted, with any values; or a line of any bytes."""
    kind = chance.random()
    if kind < 0.8:
        record = layout.record(_values(chance, rules), chance.random() < 0.3)
        if kind > 0.6 and b"\n" not in record:  # damaged, a record of several lines would be several
            junk = [b",", b",x", b',"', b'"', b" ", b'""']
            record = record + chance.choice(junk) if kind < 0.7 else record.partition(b",")[2]
    else:
        record = chance.choice(LINES)
        if chance.random() < 0.4:
            record = record + b"," * (len(layout.header) - 1 - record.count(b","))
    return record, of_csv_record(record, layout.header, rules)


def _values(chance: random.Random, rules: Rules) -> dict[str, bytes]:
    """Return values of which one or two are hostile."""
    number = str(SPAN_START * {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[rules.time_unit or "s"] // 10**6)
    values = {
        rules.user: f"{CANARY}x".encode(),
        rules.item: rules.plain_item.encode(),
        rules.time: chance.choice([iso_time(chance, SPAN_START + 5), number, number + ".0"]).encode(),
    }
    if rules.stream:
        values[rules.stream] = b"north"
    for _ in range(chance.choice([0, 1, 1, 2])):
        name = chance.choice([*values, "other"])
        longest = rules.max_item_bytes if rules.max_item_bytes < 1000 else 40
        match chance.randrange(5):
            case 0:
                values[name] = time_text(chance).encode()
            case 1:
                values[name] = raw(chance, longest) if name != rules.item or not rules.numbers else number_text(chance)
            case 2:
                break_ = chance.choice(["\n", "\r\n", "\n\n"])
                values[name] = break_.join([f"{CANARY}", *layout_lines(chance, values)]).encode()
            case 3:
                values[name] = chance.choice(NOT_UTF_8)
            case _:
                values[name] = text(chance, longest).encode()
    return values


def layout_lines(chance: random.Random, values: dict[str, bytes]) -> list[str]:
    """Return lines that look like records of other people."""
    line = ",".join(value.decode("utf-8", "replace").replace("\n", "") for value in values.values())
    return [line.replace('"', "")] * chance.choice([1, 2, 30])
