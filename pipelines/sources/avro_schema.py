"""The types of an Avro schema as Arrow types."""

from typing import Any

import fastavro
import pyarrow as pa

PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
    "array": pa.list_(pa.null()),
    "map": pa.map_(pa.string(), pa.null()),
    "record": pa.struct([]),
    "error": pa.struct([]),
}

LOGICAL = {
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "timestamp-nanos": pa.timestamp("ns", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-nanos": pa.timestamp("ns"),
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "decimal": pa.decimal128(38),
    "duration": pa.duration("ms"),
}


def arrow_schema(record: dict[str, Any]) -> pa.Schema:
    """Return the types of a record's fields; of nested types only the kind."""
    named: dict[str, pa.DataType] = {}
    return pa.schema([(field["name"], _arrow_type(field["type"], named)) for field in record["fields"]])


def check_decodable(record: dict[str, Any]) -> None:
    """Raise ValueError if some bytes of this type could not be decoded within bounds, whatever they are.

    A record within a record of its own type may go deeper than the stack of the decoder, which then takes the process
    down; items that take no bytes may be without end.
    """
    _takes_bytes(fastavro.parse_schema(record, _write_hint=False), {})


def _takes_bytes(kind: Any, named: dict[str, bool | None]) -> bool:
    """Tell whether every value of a type takes a byte or more; None stands for named types that are not complete."""
    if isinstance(kind, str):
        known = named.get(kind, kind != "null")
        if known is None:
            raise ValueError("a record must not be within a record of its own type")
        return known
    if isinstance(kind, list):
        for branch in kind:
            _takes_bytes(branch, named)
        return True  # the number of its branch is a byte
    base = kind["type"]
    if base in ("array", "map"):
        inner = _takes_bytes(kind.get("items", kind.get("values")), named)
        if base == "array" and not inner:
            raise ValueError("items of an array must not be of a type without any bytes")
        return True
    if base in ("record", "error"):
        named[kind["name"]] = None
        named[kind["name"]] = any([_takes_bytes(field["type"], named) for field in kind["fields"]])
    elif base in ("enum", "fixed"):
        named[kind["name"]] = base == "enum" or kind["size"] > 0
    else:
        return _takes_bytes(base, named)
    return bool(named[kind["name"]])


def without_logical_types(schema: Any) -> Any:
    """Return the schema under which numbers stay numbers."""
    if isinstance(schema, dict):
        return {key: without_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    return [without_logical_types(branch) for branch in schema] if isinstance(schema, list) else schema


def _arrow_type(kind: Any, named: dict[str, pa.DataType]) -> pa.DataType:
    """Return the Arrow type of an Avro type; that of a union is the type besides null, or text if there are several."""
    if isinstance(kind, list):
        branches = [branch for branch in kind if branch != "null"] or ["null"]
        kinds = [_arrow_type(branch, named) for branch in branches]
        if len(kinds) == 1:
            return kinds[0]
        if any(map(_is_plain, kinds)) and not any(map(pa.types.is_timestamp, kinds)):
            return pa.string()  # each record is taken as it comes
        return pa.dense_union([pa.field(str(place), branch) for place, branch in enumerate(kinds)])
    if isinstance(kind, str):
        return PRIMITIVES[kind] if kind in PRIMITIVES else named.get(kind.rpartition(".")[2], pa.struct([]))
    base = kind["type"]
    found = LOGICAL.get(kind.get("logicalType")) or (_arrow_type(base, named) if not isinstance(base, str) else None)
    found = found or PRIMITIVES.get(base, pa.struct([]))
    if "name" in kind:
        named[kind["name"].rpartition(".")[2]] = found
    return found


def _is_plain(kind: pa.DataType) -> bool:
    """Tell whether values of a type may be users and items."""
    return kind in (pa.string(), pa.binary()) or bool(pa.types.is_integer(kind))
