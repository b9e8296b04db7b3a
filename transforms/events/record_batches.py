"""Arrow batches of events: which rows break a rule, and one form for all that can be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

SCHEMA = pa.schema([("user", pa.string()), ("item", pa.string()), ("time", pa.int64()), ("stream", pa.string())])

NO_STREAMS = "stream must be empty: this run was given no streams"


def normalise(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return an Arrow batch of events as columns of `SCHEMA`, without nulls.

    Integers become decimal text, so that the user 5 and the user "5" are one; timestamps become microseconds since
    1970 UTC (a plain integer is taken as that); without a stream all events are in the stream "".

    Raises:
        ValueError: a column is missing, or a row breaks a rule: it holds nulls, users or items that are empty, text
            that is not UTF-8, or a time that does not fit.
        TypeError: a column has a type that cannot be a user, item, time or stream.
    """
    columns = []
    for field in SCHEMA:
        if field.name in batch.schema.names:
            columns.append(_checked(field, batch[field.name]))
        elif field.name == "stream":
            columns.append(pa.repeat("", batch.num_rows))
        else:
            raise ValueError(f"events must have a column {field.name}, got {', '.join(batch.schema.names)}")
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def broken_rows(batch: pa.RecordBatch, *, streams: bool) -> dict[int, str]:
    """Return the rows that break a rule, in order, each with the first rule that it breaks.

    Without `streams`, a row that names one does.

    One person's record must not decide about others. A column that is missing, or whose type cannot be what it is to
    be, concerns everybody: whoever reads it refuses it.
    """
    broken: dict[int, str] = {}
    for field in SCHEMA:
        if field.name in batch.schema.names:
            check = _check_no_stream if field.name == "stream" and not streams else partial(_check_values, field)
            for row, reason in _broken(check, batch[field.name], 0):
                broken.setdefault(row, reason)
    return dict(sorted(broken.items()))


def _broken(check: Callable[[pa.Array], None], column: pa.Array, first: int) -> Iterator[tuple[int, str]]:
    """Find the values that break a rule by halving: of most columns none does."""
    try:
        check(column)
    except ValueError as error:
        if len(column) == 1:
            yield first, str(error)
            return
        half = len(column) // 2
        yield from _broken(check, column[:half], first)
        yield from _broken(check, column[half:], first + half)


def _check_values(field: pa.Field, column: pa.Array) -> None:
    """Raise ValueError if a value breaks a rule; lists must hold nothing that breaks one."""
    if column.null_count:
        raise ValueError(f"{field.name} must not be null")
    lists = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    with suppress(TypeError):
        _checked(field, pc.list_flatten(column) if lists else column, empty=lists)


def _check_no_stream(column: pa.Array) -> None:
    """Raise ValueError if a stream breaks a rule, or names one."""
    field = SCHEMA.field("stream")
    _check_values(field, column)
    with suppress(TypeError):
        if pc.any(pc.not_equal(_cast(field, column), "")).as_py():
            raise ValueError(NO_STREAMS)


def _checked(field: pa.Field, column: pa.Array, *, empty: bool = False) -> pa.Array:
    """Return a column in its type in `SCHEMA`, or raise with the rule that it breaks."""
    column = _cast(field, column)
    if column.null_count:
        raise ValueError(f"{field.name} must not be null")
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raise ValueError(f"{field.name} must be valid UTF-8") from None
    if field.name in ("user", "item") and not empty and pc.any(pc.equal(pc.binary_length(column), 0)).as_py():
        raise ValueError(f"{field.name} must not be empty")
    return column


def record_of(batch: pa.RecordBatch, row: int) -> str:
    """Return a row as text, whatever it holds."""
    return repr({name: _value(batch[name][row]) for name in batch.schema.names})


def _value(scalar: pa.Scalar) -> object:
    """Return a value for Python: text that is no UTF-8 as bytes, times that Python cannot tell as numbers."""
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        pass
    for kind in (pa.binary(), pa.int64()):
        with suppress(pa.ArrowException):
            return scalar.cast(kind).as_py()
    return f"{scalar.type} that cannot be shown"


def _cast(field: pa.Field, column: pa.Array) -> pa.Array:
    """Cast one column to its type in `SCHEMA`."""
    if column.type == field.type:
        return column
    if field.name == "time":
        if not (pa.types.is_timestamp(column.type) or pa.types.is_integer(column.type)):
            raise TypeError(f"time must be a timestamp or integer microseconds, got {column.type}")
        lossy = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
        try:
            micros = column.cast(pa.timestamp("us"), safe=not lossy) if pa.types.is_timestamp(column.type) else column
            return micros.cast(pa.int64())
        except pa.ArrowInvalid:
            raise ValueError("time must fit into 64 bits of microseconds") from None
    if pa.types.is_dictionary(column.type):
        return _cast(field, column.dictionary_decode())
    if not (
        pa.types.is_integer(column.type)
        or pa.types.is_large_string(column.type)
        or pa.types.is_string_view(column.type)
    ):
        raise TypeError(f"{field.name} must be text or an integer, got {column.type}")
    return column.cast(pa.string())
