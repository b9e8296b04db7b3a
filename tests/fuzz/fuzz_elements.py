"""Elements of pipelines that are no events: of every type that Python, Beam and Arrow have."""

import dataclasses
import datetime
import decimal
import random
import typing
from collections.abc import Callable
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from fuzz_questions import ITEMS, SECOND, START
from fuzz_values import BAD_TIMES, CANARY, FLOATS, INTEGERS, NOT_UTF_8, TEXTS

MOMENT = Timestamp(START + 5)
USER = f"{CANARY} of elements"


@dataclasses.dataclass
class Record:
    """A class that is neither a row nor a pair."""

    user: str
    item: str
    time: Timestamp


class OtherFields(typing.NamedTuple):
    """A row whose fields are called otherwise."""

    who: str
    what: str
    when: Timestamp


class Silent:
    """An object that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError(f"{CANARY} cannot be shown")


WRONG: list[Any] = [
    None, 0, 1.5, True, "ab", "", CANARY, b"ab", (), [], {}, set(), (USER,), (USER, ITEMS[0], 5), (USER, ITEMS[0],
    MOMENT, "north"),
    ((USER, ITEMS[0]), 5), (None, None), (USER, None), (None, ITEMS[0]), ("", ITEMS[0]), (USER, ""), (1.5,
    ITEMS[0]), (USER, 1.5), (USER, b"x"),
    (True, ITEMS[0]), (USER, [ITEMS[0]]), (USER, {"x": 1}), (b"\xff", ITEMS[0]), ("\ud800", ITEMS[0]), (USER,
    "\udfff"), (10**5000, ITEMS[0]),
    {"user": USER, "item": ITEMS[0], "time": MOMENT}, {"user": USER}, {1: 2}, Record(USER, ITEMS[0], MOMENT),
    OtherFields(USER, ITEMS[0], MOMENT),
    Silent(), (Silent(), ITEMS[0]), (USER, Silent()), range(2), complex(1), decimal.Decimal("NaN"),
    (decimal.Decimal(5), ITEMS[0]),
    np.array(["a", "b"]), np.array([1, 2, 3]), np.float64("nan"), (np.str_("a"), np.nan), pa.table({"user": ["a"]}),
    pa.array(["a", "b"]),
    pa.scalar("a"), beam.Row(), beam.Row(user=USER), beam.Row(user=USER, item=ITEMS[0]), beam.Row(user=USER,
    time=MOMENT),
    beam.Row(item=ITEMS[0], time=MOMENT), beam.Row(a=1), datetime.datetime(2024, 1, 1), MOMENT, Exception(CANARY),
    type, frozenset({"a", "b"}),
]  # fmt: skip

TIMES: list[Any] = [
    None, "", "2024-01-01T00:00:00Z", *BAD_TIMES[:30], *INTEGERS, *FLOATS, True, [], {}, b"x", MIN_TIMESTAMP,
    MAX_TIMESTAMP,
    Timestamp(-1), Timestamp(7_258_118_400), Duration(5), datetime.datetime(2024, 1, 1), datetime.date(2024, 1, 1),
    np.float64("inf"),
    np.datetime64("2024-01-01"), np.datetime64("NaT"), np.int64(START), START, START * SECOND, decimal.Decimal(5),
    10**5000,
]  # fmt: skip


def row_element(chance: random.Random) -> Any:
    """Return a row of which one field is of any type."""
    fields: dict[str, Any] = {"user": USER, "item": ITEMS[0], "time": MOMENT}
    name = chance.choice(["user", "item", "time", "stream", "extra"])
    fields[name] = (
        chance.choice(TIMES) if name == "time" else chance.choice([*TEXTS, *INTEGERS, *FLOATS, *WRONG, *NOT_UTF_8])
    )
    return beam.Row(**fields)


def pair_element(chance: random.Random) -> Any:
    """Return a pair with hostile texts, or at a hostile time."""
    pair = (chance.choice([USER, *TEXTS, *INTEGERS]), chance.choice([ITEMS[0], *TEXTS, *INTEGERS]))
    stamps = [
        MOMENT,
        MIN_TIMESTAMP,
        MAX_TIMESTAMP,
        Timestamp(-1),
        Timestamp(0),
        Timestamp(7_258_118_400),
        Timestamp(10**11),
    ]
    return TimestampedValue(pair, chance.choice(stamps))


def _columns() -> dict[str, Callable[[], pa.Array]]:
    """Return columns of two rows of every Arrow type."""
    plain = {
        "null": (pa.null(), [None, None]), "bool": (pa.bool_(), [True, None]), "float32": (pa.float32(), [1.5,
        float("nan")]),
        "float64": (pa.float64(), [float("inf"), -1.0]), "int8": (pa.int8(), [-1, 5]), "uint64": (pa.uint64(),
        [2**64 - 1, 5]),
        "int64": (pa.int64(), [-(2**63), 2**63 - 1]), "nulls": (pa.int64(), [None, START]), "string": (pa.string(),
        ["", None]),
        "large_string": (pa.large_string(), [CANARY, "\u202e"]), "string_view": (pa.string_view(), ["a", None]),
        "binary": (pa.binary(), [b"\xff", b"a"]), "large_binary": (pa.large_binary(), [b"", b"\xed\xa0\x80"]),
        "fixed": (pa.binary(2), [b"\xff\xff", b"ab"]), "list": (pa.list_(pa.string()), [["a"], None]),
        "struct": (pa.struct([("x", pa.int8())]), [{"x": 1}, None]),
        "map": (pa.map_(pa.string(), pa.int8()), [[("a", 1)], None]), "decimal": (pa.decimal128(9, 2),
        [decimal.Decimal("1.50"), None]),
        "date32": (pa.date32(), [1, None]), "date64": (pa.date64(), [datetime.date(2024, 1, 1), None]),
        "time32": (pa.time32("s"), [5, None]),
        "time64": (pa.time64("us"), [5, None]), "duration": (pa.duration("s"), [5, None]),
    }  # fmt: skip
    columns = {name: lambda kind=kind, values=values: pa.array(values, kind) for name, (kind, values) in plain.items()}
    for unit in ("s", "ms", "us", "ns"):
        for zone in (None, "UTC", "Asia/Tokyo"):
            values = [START, 2**63 - 1] if unit == "s" else [-(2**63) + 1, None]
            columns[f"timestamp {unit} {zone}"] = lambda unit=unit, zone=zone, values=values: pa.array(
                values, pa.int64()
            ).cast(pa.timestamp(unit, zone))
    columns["dictionary"] = lambda: pa.DictionaryArray.from_arrays(pa.array([0, None]), pa.array(["a", "b"]))
    columns["dictionary with null"] = lambda: pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([None, "b"]))
    columns["dictionary of numbers"] = lambda: pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([1.5, 2.5]))
    columns["run ends"] = lambda: pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["a"]))
    columns["bad text"] = lambda: pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff", b"a"]).buffers())
    return columns


COLUMNS = _columns()
GOOD = {
    "user": lambda: pa.array([USER, USER]),
    "item": lambda: pa.array([ITEMS[0], ITEMS[0]]),
    "time": lambda: pa.array([START * SECOND, START * SECOND + 1], pa.timestamp("us", "UTC")),
}


def batch_element(chance: random.Random) -> pa.RecordBatch:
    """Return an Arrow batch of two rows: of wrong types, with columns missing, doubled or too many, or of no rows."""
    columns = dict(GOOD)
    for _ in range(chance.choice([1, 1, 2])):
        columns[chance.choice(["user", "item", "time", "stream", "extra"])] = COLUMNS[chance.choice(list(COLUMNS))]
    names = list(columns)
    match chance.randrange(8):
        case 0:
            names.remove(chance.choice(names))
        case 1:
            names.append(chance.choice(names))
        case _:
            chance.shuffle(names)
    batch = pa.RecordBatch.from_arrays([columns[name]() for name in names], names)
    return batch.slice(chance.choice([0, 0, 0, 1, 2]))


def hostile_element(chance: random.Random) -> Any:
    return chance.choice(
        [lambda chance: chance.choice(WRONG), row_element, pair_element, batch_element, batch_element]
    )(chance)


def rows_of(element: Any) -> int:
    """Return how many events an element could be, at most."""
    return element.num_rows if isinstance(element, pa.RecordBatch) else 1
