"""Parquet files with and without one record more, under schemas in which every field may be of many types."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fuzz_cases import Case, Crowd, TimeForm, as_integers, place_of, random_crowd
from fuzz_meaning import Rules, Stamp, of_values
from fuzz_values import CANARY, FLOATS, INTEGERS, SPAN_START, moment, number_text, raw, text, time_text

CODECS = ("none", "snappy", "gzip", "brotli", "zstd", "lz4")
TEXT_TYPES = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.string())]
INTEGER_TYPES = [pa.int64(), pa.uint64(), pa.int16(), pa.uint8()]
STAMPS = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Asia/Tokyo")]
NUMBERS = [pa.int64(), pa.uint64(), pa.float64()]
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def parquet_case(chance: random.Random, folder: Path, _: str = "", crowd: Crowd | None = None) -> Case:
    """Return a case of Parquet, of a given crowd or of a random one."""
    rules, honest = crowd or random_crowd(chance, renamed=False)
    schema = _schema(chance, rules)
    kind = schema.field(rules.user).type
    if pa.types.is_integer(kind):
        honest = [event._replace(user=event.user.removeprefix(CANARY)) for event in honest]
    if pa.types.is_integer(schema.field(rules.item).type):
        honest = as_integers(honest)
    times = TimeForm(chance, rules.time_unit)
    records = [_honest(event, schema, rules, times) for event in honest]
    hostile = _hostile(chance, schema, rules)
    place = place_of(chance, len(records))
    options = {
        "compression": chance.choice(CODECS),
        "row_group_size": chance.choice([7, 1000] if len(honest) > 40 else [1, 7, 1000]),
        "use_dictionary": chance.choice([True, False]),
        "data_page_version": chance.choice(["1.0", "2.0"]),
    }

    def write(name: str, written: list[dict[str, Any]]) -> Path:
        path = folder / f"{name}.parquet"
        columns = [column([record[field.name] for record in written], field.type) for field in schema]
        pq.write_table(pa.Table.from_arrays(columns, schema=schema), path, **options)
        return path

    added = write("added", [*records[:place], hostile, *records[place:]])
    meaning = of_values({name: _plain(value, schema.field(name).type) for name, value in hostile.items()}, rules)
    notes = [str(options), str(schema).replace("\n", ", ")]
    return Case(rules, honest, write("without", records), added, meaning, hostile, False, notes)


def column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return a column; of text, with bytes that no text should hold."""
    if pa.types.is_dictionary(kind):
        distinct = list(dict.fromkeys(value for value in values if value is not None))
        indices = [None if value is None else distinct.index(value) for value in values]
        return pa.DictionaryArray.from_arrays(pa.array(indices, kind.index_type), column(distinct, kind.value_type))
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return pa.array(values, kind)
    encoded = [value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value for value in values]
    binary = pa.array(encoded, pa.binary() if pa.types.is_string(kind) else pa.large_binary())
    return pa.Array.from_buffers(kind, len(binary), binary.buffers(), binary.null_count)


def _schema(chance: random.Random, rules: Rules) -> pa.Schema:
    """Return fields, in any order, with others between them."""
    kinds = {
        rules.user: [*TEXT_TYPES, *INTEGER_TYPES],
        rules.item: [*TEXT_TYPES, *NUMBERS] if rules.numbers else TEXT_TYPES,
        rules.time: [*STAMPS, *TEXT_TYPES, *(NUMBERS if rules.time_unit else [])],
    }
    if rules.stream:
        kinds[rules.stream] = TEXT_TYPES
    fields = [(name, chance.choice(choices)) for name, choices in kinds.items()]
    names = ["other", *([] if "stream" in kinds else ["stream"])]
    fields += [(name, pa.string()) for name in names if chance.random() < 0.4]
    chance.shuffle(fields)
    return pa.schema(fields)


def _binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _numeric(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _number(text: str, kind: pa.DataType) -> float:
    return int(float(text)) if pa.types.is_integer(kind) else float(text)


def _honest(event: Any, schema: pa.Schema, rules: Rules, times: TimeForm) -> dict[str, Any]:
    record: dict[str, Any] = {field.name: "7" for field in schema if field.name not in rules.names()}
    for name, value in zip((rules.user, rules.item, rules.stream), (event.user, event.item, event.stream), strict=True):
        if name:
            kind = schema.field(name).type
            record[name] = _number(value, kind) if _numeric(kind) else value.encode() if _binary(kind) else value
    record[rules.time] = _time(event.time, schema.field(rules.time).type, times)
    return record


def _time(micros: int, kind: pa.DataType, times: TimeForm) -> Any:
    if pa.types.is_timestamp(kind):
        return micros * PER_SECOND[kind.unit] // 10**6
    if pa.types.is_integer(kind):
        return times.number(micros)
    if pa.types.is_floating(kind):
        return float(times.number(micros))
    written = str(times(micros))
    return written.encode() if _binary(kind) else written


def _hostile(chance: random.Random, schema: pa.Schema, rules: Rules) -> dict[str, Any]:
    """Return a record with one or two hostile values."""
    record: dict[str, Any] = {field.name: f"{CANARY} 0" for field in schema}
    for name in rules.names():
        kind = schema.field(name).type
        record[name] = _number("5", kind) if _numeric(kind) else b"0" if _binary(kind) else rules.plain_item
    record[rules.time] = _time(SPAN_START, schema.field(rules.time).type, TimeForm(random.Random(0), None))
    for _ in range(chance.choice([1, 1, 2])):
        name = chance.choice(rules.names())
        record[name] = _value(chance, schema.field(name).type, name == rules.time, rules)
    return record


def _value(chance: random.Random, kind: pa.DataType, time: bool, rules: Rules) -> Any:
    """Return a value that the schema allows and that may mean nothing."""
    if chance.random() < 0.15:
        return None
    if pa.types.is_timestamp(kind):
        furthest = 2**53 if kind.unit == "s" else 2**63 - 1  # Parquet has no seconds: they are written as milliseconds
        return chance.choice([-furthest, -1, 0, furthest, moment(chance) * PER_SECOND[kind.unit] // 10**6 % furthest])
    if pa.types.is_integer(kind):
        least, size = (0 if pa.types.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))), 2**kind.bit_width
        within = [number for number in [*INTEGERS, moment(chance)] if least <= number < least + size]
        return chance.choice(within)
    if pa.types.is_floating(kind):
        return chance.choice([*FLOATS, float(moment(chance))])
    longest = rules.max_item_bytes if rules.max_item_bytes < 1000 else 40
    value = time_text(chance) if time and chance.random() < 0.6 else raw(chance, longest)
    if rules.numbers and not time and chance.random() < 0.3:
        return number_text(chance) if _binary(kind) else number_text(chance).decode()
    value = text(chance, longest) if not time and chance.random() < 0.3 else value
    return value.encode() if isinstance(value, str) and _binary(kind) else value


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return a timestamp in place of its number."""
    if not pa.types.is_timestamp(kind) or value is None:
        return value
    return Stamp(value * 10**6 // PER_SECOND[kind.unit])
