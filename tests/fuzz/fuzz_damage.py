"""Whole files that are damaged, cut off, empty, mislabelled, or that lie about what is in them."""

import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz_avro import SYNC
from fuzz_cases import honest_events
from fuzz_meaning import Event, Rules
from fuzz_text_files import COMPRESSIONS
from fuzz_values import CANARY

CHECKED = (".gz", ".bz2", ".zst")
"""Compressions that notice damage: each ends with a sum of what is in it."""

WRONG_TYPES: dict[str, Any] = {
    "boolean": True, "list": ["x"], "struct": {"x": 1}, "double": 1.5, "bytes": b"\xff", "null": None,
}  # fmt: skip


@dataclass
class Damaged:
    """A file that was honest.

    Attributes:
        path: the file as it is now.
        honest: what was in it.
        cut: it lacks its end.
        sealed: it was compressed with a sum, so that damage must not go unnoticed.
    """

    path: Path
    honest: list[Event]
    how: str
    cut: bool = False
    sealed: bool = False

    def __str__(self) -> str:
        return f"{self.path.name}: {self.how}, {len(self.honest)} events"


def plain_file(events: list[Event], format: str, chance: random.Random) -> bytes:
    rows = [{"user": event.user, "item": event.item, "time": event.time} for event in events]
    stamps = pa.array([row["time"] for row in rows], pa.timestamp("us", "UTC"))
    texts = stamps.cast(pa.string()).to_pylist()
    out = io.BytesIO()
    match format:
        case "jsonl":
            return "".join(
                json.dumps(row | {"time": when}) + "\n" for row, when in zip(rows, texts, strict=True)
            ).encode()
        case "csv":
            lines = [f'{row["user"]},"{row["item"]}",{when}\n' for row, when in zip(rows, texts, strict=True)]
            return "".join(["user,item,time\n", *lines]).encode()
        case "avro":
            fields = [{"name": "user", "type": "string"}, {"name": "item", "type": "string"}]
            fields.append({"name": "time", "type": {"type": "long", "logicalType": "timestamp-micros"}})
            codec = chance.choice(["null", "deflate", "bzip2", "xz"])
            record = {"type": "record", "name": "E", "fields": fields}
            fastavro.writer(out, record, rows, codec=codec, sync_interval=200, sync_marker=SYNC)
        case "parquet":
            table = pa.table({"user": [e.user for e in events], "item": [e.item for e in events], "time": stamps})
            codec = chance.choice(["none", "snappy", "gzip", "zstd"])
            pq.write_table(table, out, compression=codec, row_group_size=chance.choice([9, 1000]))
    return out.getvalue()


def damaged_file(chance: random.Random, folder: Path, format: str) -> Damaged:
    """Return a file after an accident."""
    honest = honest_events(chance, Rules(), chance.choice([1, 20, 100]))
    honest = [event._replace(item=event.item.replace('"', "")) for event in honest]
    ending = chance.choice(list(COMPRESSIONS)) if format in ("jsonl", "csv") else ""
    whole = plain_file(honest, format, chance)
    data = COMPRESSIONS[ending](whole)
    how = chance.choice(list(ACCIDENTS))
    path = folder / f"events.{format}{ending}"
    path.write_bytes(ACCIDENTS[how](data, chance))
    return Damaged(path, honest, how, how == "cut", ending in CHECKED)


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.choice([chance.randrange(len(data)), len(data) - 1, len(data) - chance.randint(1, 16)])]


def _flip(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 8])):
        place = chance.choice([chance.randrange(len(data)), min(chance.randrange(40), len(data) - 1)])
        changed[place] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _zero(data: bytes, chance: random.Random) -> bytes:
    start, length = chance.randrange(len(data)), chance.choice([4, 64])
    return (data[:start] + bytes(length) + data[start + length :])[: len(data)]


def _remove(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data))
    return data[:start] + data[start + chance.randint(1, 20) :]


def _lie(data: bytes, chance: random.Random) -> bytes:
    """Change the numbers that stand behind a sync marker of Avro, or anywhere else: how many, how long."""
    place = data.find(SYNC, chance.randrange(len(data))) + len(SYNC)
    if place < len(SYNC):
        place = chance.randrange(len(data))
    number = chance.choice(
        [b"\xff" * 9 + b"\x01", b"\xfe\xff\xff\xff\x0f", b"\x00", b"\x01", b"\xff" * 12, b"\x80\x80\x80\x80\x80\x40"]
    )
    return data[:place] + number + data[place + chance.choice([0, 1, 2]) :]


ACCIDENTS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut": _cut,
    "bits flipped": _flip,
    "zeros": _zero,
    "bytes removed": _remove,
    "bytes added": lambda data, chance: data + chance.choice([b"\x00", b"\n\n", b"garbage", data[:40], data]),
    "numbers that lie": _lie,
    "empty": lambda data, chance: b"",
    "something else": lambda data, chance: chance.choice(
        [b"PAR1", b"Obj\x01", b"\x1f\x8b", b"BZh9", b"\x28\xb5\x2f\xfd", b"<html>", b"\x00" * 99]
    ),
}


def mislabelled_file(chance: random.Random, folder: Path, format: str) -> Damaged:
    """Return a good file under a name that says something else."""
    honest = honest_events(chance, Rules(), 10)
    data = plain_file(honest, chance.choice(["jsonl", "csv", "avro", "parquet"]), chance)
    ending = chance.choice(list(COMPRESSIONS)) if format in ("jsonl", "csv") else ""
    packed = COMPRESSIONS[chance.choice(list(COMPRESSIONS))](data)
    path = folder / f"events.{format}{ending}"
    path.write_bytes(packed)
    return Damaged(path, honest, "mislabelled")


def misshapen_file(chance: random.Random, folder: Path, format: str) -> Damaged:
    """Return a file in which a field is missing, doubled, or of a type that cannot be used."""
    names = ["user", "item", "time"]
    place = chance.randrange(3)
    how = chance.choice(["missing", "doubled", "renamed", "type", "nothing"])
    if how == "missing":
        del names[place]
    elif how == "doubled":
        names.append(names[place])
    elif how == "renamed":
        names[place] = names[place].upper()
    wrong = chance.choice(list(WRONG_TYPES)) if how == "type" else ""
    values: list[Any] = [f"{CANARY} 1"] * len(names)
    if wrong:
        values[place] = WRONG_TYPES[wrong]
    path = folder / f"events.{format}"
    path.write_bytes(_misshapen(names, values, format, chance))
    return Damaged(path, [], f"{how} {wrong} {names}")


def _misshapen(names: list[str], values: list[Any], format: str, chance: random.Random) -> bytes:
    """Write three rows of these values."""
    out = io.BytesIO()
    match format:
        case "jsonl":
            pairs = ",".join(
                f"{json.dumps(name)}:{json.dumps(value, default=repr)}"
                for name, value in zip(names, values, strict=True)
            )
            return b"{" + pairs.encode() + b"}\n" + b"{}\n"
        case "csv":
            header = (
                ",".join(names)
                if chance.random() < 0.8
                else chance.choice(["", ",,", '"', "\xff", "user", CANARY, "user,item,time,"])
            )
            return (header + "\n" + ",".join(map(str, values)) + "\n").encode("latin-1")
        case "avro":
            kinds = [_avro_kind(value) for value in values]
            fields = [{"name": name, "type": kind} for name, kind in zip(names, kinds, strict=True)]
            record = dict(zip(names, values, strict=True))
            try:
                fastavro.writer(out, {"type": "record", "name": "E", "fields": fields}, [record] * 3)
            except Exception:  # two fields of one name
                return json.dumps(fields).encode()
        case "parquet":
            pq.write_table(pa.Table.from_arrays([pa.array([value] * 3) for value in values], names), out)
    return out.getvalue()


def _avro_kind(value: Any) -> Any:
    if isinstance(value, list):
        return {"type": "array", "items": "string"}
    if isinstance(value, dict):
        return {"type": "map", "values": "long"}
    return {bool: "boolean", float: "double", bytes: "bytes", type(None): "null"}.get(type(value), "string")
