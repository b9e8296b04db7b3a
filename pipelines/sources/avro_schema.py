"""The types of an Avro schema as Arrow types."""

from typing import Any

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
    """Return the types of a record's fields; of nested types only the kind is told."""
    named: dict[str, pa.DataType] = {}
    return pa.schema([(field["name"], _arrow_type(field["type"], named)) for field in record["fields"]])


def without_logical_types(schema: Any) -> Any:
    """Return the schema under which numbers stay numbers."""
    if isinstance(schema, dict):
        return {key: without_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    return [without_logical_types(branch) for branch in schema] if isinstance(schema, list) else schema


def _arrow_type(kind: Any, named: dict[str, pa.DataType]) -> pa.DataType:
    """Return the Arrow type of an Avro type; a union of null and another type is that other type."""
    if isinstance(kind, list):
        branches = [branch for branch in kind if branch != "null"] or ["null"]
        kinds = [_arrow_type(branch, named) for branch in branches]
        if len(kinds) == 1:
            return kinds[0]
        return pa.dense_union([pa.field(str(place), branch) for place, branch in enumerate(kinds)])
    if isinstance(kind, str):
        return PRIMITIVES[kind] if kind in PRIMITIVES else named.get(kind.rpartition(".")[2], pa.struct([]))
    base = kind["type"]
    found = LOGICAL.get(kind.get("logicalType")) or (_arrow_type(base, named) if not isinstance(base, str) else None)
    found = found or PRIMITIVES.get(base, pa.struct([]))
    if "name" in kind:
        named[kind["name"].rpartition(".")[2]] = found
    return found
