"""Avro files with and without one record more, under schemas in which every field may be of many types."""

import io
import random
from pathlib import Path
from typing import Any

import fastavro
from fuzz_cases import Case, Crowd, TimeForm, as_integers, place_of, random_crowd
from fuzz_meaning import Rules, Stamp, of_values
from fuzz_values import CANARY, FLOATS, INTEGERS, SPAN_START, moment, number_text, raw, text, time_text

CODECS = ("null", "deflate", "bzip2", "xz")
SYNC = b"sixteen letters!"
LONG = {"type": "long"}
TEXT_TYPES: list[Any] = ["string", "bytes", ["null", "string"], ["string", "null"], ["null", "bytes"]]
NUMBER_TYPES: list[Any] = ["long", "double", ["null", "long"], ["null", "double"]]
STAMPS: list[Any] = [
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    ["null", {"type": "long", "logicalType": "timestamp-micros"}],
]
OTHERS: list[Any] = [
    "string",
    "double",
    ["null", "int"],
    {"type": "array", "items": "string"},
    {"type": "map", "values": "bytes"},
]
SOME: dict[str, Any] = {"string": "7", "double": 7.0, "array": ["7"], "map": {"7": b"7"}}


def avro_case(chance: random.Random, folder: Path, _: str = "", crowd: Crowd | None = None) -> Case:
    """Return a case of Avro, of a given crowd or of a random one."""
    rules, honest = crowd or random_crowd(chance, renamed=False)
    schema = _schema(chance, rules)
    kind = next(field["type"] for field in schema if field["name"] == rules.user)
    if _base(kind)[0] == "long":
        honest = [event._replace(user=event.user.removeprefix(CANARY)) for event in honest]
    if _base(next(field["type"] for field in schema if field["name"] == rules.item))[0] == "long":
        honest = as_integers(honest)
    times = TimeForm(chance, rules.time_unit)
    records = [_honest(event, schema, rules, times) for event in honest]
    hostile = _hostile(chance, schema, rules)
    place = place_of(chance, len(records))
    options = {"codec": chance.choice(CODECS), "sync_interval": chance.choice([1, 200, 16_000])}

    def write(name: str, written: list[dict[str, Any]]) -> Path:
        path = folder / f"{name}.avro"
        path.write_bytes(avro_file(schema, written, **options))
        return path

    added = write("added", [*records[:place], hostile, *records[place:]])
    meaning = of_values(_plain(hostile, schema), rules)
    return Case(rules, honest, write("without", records), added, meaning, hostile, False, [str(options), str(schema)])


def avro_file(schema: list[dict[str, Any]], records: list[dict[str, Any]], **options: Any) -> bytes:
    """Write a file whose texts may hold any bytes: as text and bytes are written alike, only the header says text."""
    header, body, written = io.BytesIO(), io.BytesIO(), io.BytesIO()
    codec = options["codec"]
    fastavro.writer(header, _record(schema), [], codec=codec, sync_marker=SYNC)
    fastavro.writer(body, _record(_as_bytes(schema)), [], codec=codec, sync_marker=SYNC)
    encoded = [{name: _encoded(value) for name, value in record.items()} for record in records]
    fastavro.writer(written, _record(_as_bytes(schema)), encoded, sync_marker=SYNC, **options)
    return header.getvalue() + written.getvalue()[len(body.getvalue()) :]


def _record(fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "record", "name": "Event", "fields": fields}


def _as_bytes(schema: Any) -> Any:
    """Return a schema with bytes for text, and without logical types."""
    if isinstance(schema, dict):
        return {
            key: value if key == "name" else _as_bytes(value) for key, value in schema.items() if key != "logicalType"
        }
    if isinstance(schema, list):
        return [_as_bytes(part) for part in schema]
    return "bytes" if schema == "string" else schema


def _encoded(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return [_encoded(part) for part in value] if isinstance(value, list) else value


def _schema(chance: random.Random, rules: Rules) -> list[dict[str, Any]]:
    """Return fields, in any order, with others between them."""
    times = [*STAMPS, *TEXT_TYPES, *(NUMBER_TYPES if rules.time_unit else [])]
    items = [*TEXT_TYPES, *NUMBER_TYPES] if rules.numbers else TEXT_TYPES
    kinds = {rules.user: [*TEXT_TYPES, "long", ["null", "long"]], rules.item: items, rules.time: times}
    if rules.stream:
        kinds[rules.stream] = TEXT_TYPES
    fields = [{"name": name, "type": chance.choice(choices)} for name, choices in kinds.items()]
    names = ["other", *([] if "stream" in kinds else ["stream"])]
    fields += [{"name": name, "type": chance.choice(OTHERS)} for name in names if chance.random() < 0.4]
    chance.shuffle(fields)
    return fields


def _base(kind: Any) -> tuple[str, str | None, bool]:
    """Return the kind, the logical type, and whether null is allowed."""
    null = isinstance(kind, list)
    branch = next(part for part in kind if part != "null") if null else kind
    return (branch["type"], branch.get("logicalType"), null) if isinstance(branch, dict) else (branch, None, null)


def _other(kind: Any) -> Any:
    """Return a value of a field that nobody reads."""
    base, _, null = _base(kind)
    return None if null else SOME[base]


def _honest(event: Any, schema: list[dict[str, Any]], rules: Rules, times: TimeForm) -> dict[str, Any]:
    record = {field["name"]: _other(field["type"]) for field in schema if field["name"] not in rules.names()}
    kinds = {field["name"]: field["type"] for field in schema}
    for name, value in zip((rules.user, rules.item, rules.stream), (event.user, event.item, event.stream), strict=True):
        if name:
            number = {"long": lambda text: int(float(text)), "double": float}.get(_base(kinds[name])[0])
            record[name] = number(value) if number else value
    record[rules.time] = _time(event.time, kinds[rules.time], times)
    return record


def _time(micros: int, kind: Any, times: TimeForm) -> Any:
    base, logical, _ = _base(kind)
    if logical:
        return micros // (1000 if logical.endswith("millis") else 1)
    if base in ("string", "bytes"):
        return str(times(micros))
    return times.number(micros) if base == "long" else float(times.number(micros))


def _hostile(chance: random.Random, schema: list[dict[str, Any]], rules: Rules) -> dict[str, Any]:
    """Return a record with one or two hostile values."""
    record = {}
    for field in schema:
        base, _, _ = _base(field["type"])
        record[field["name"]] = {"string": rules.plain_item, "bytes": b"0", "long": 5, "double": 5.0}.get(
            base
        ) or _other(field["type"])
    kinds = {field["name"]: field["type"] for field in schema}
    record[rules.time] = _time(SPAN_START, kinds[rules.time], TimeForm(random.Random(0), None))
    for _ in range(chance.choice([1, 1, 2])):
        name = chance.choice(rules.names())
        record[name] = _value(chance, kinds[name], name == rules.time, rules)
    return record


def _value(chance: random.Random, kind: Any, time: bool, rules: Rules) -> Any:
    """Return a value that the schema allows and that may mean nothing."""
    base, _, null = _base(kind)
    if null and chance.random() < 0.3:
        return None
    if base == "long":
        within = [number for number in INTEGERS if -(2**63) <= number < 2**63]
        return chance.choice([*within, moment(chance)])
    if base == "double":
        return chance.choice([*FLOATS, float(moment(chance))])
    if time and chance.random() < 0.6:
        return time_text(chance)
    if rules.numbers and not time and chance.random() < 0.3:
        return number_text(chance).decode()
    longest = rules.max_item_bytes if rules.max_item_bytes < 1000 else 40
    return raw(chance, longest) if chance.random() < 0.5 else text(chance, longest)


def _plain(record: dict[str, Any], schema: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a record with timestamps in place of their numbers."""
    plain = dict(record)
    for field in schema:
        _, logical, _ = _base(field["type"])
        if logical and plain[field["name"]] is not None:
            plain[field["name"]] = Stamp(plain[field["name"]] * (1000 if logical.endswith("millis") else 1))
    return plain
