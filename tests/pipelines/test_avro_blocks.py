"""Avro files that claim what they do not have, or have more than their bytes show, are refused."""

import bz2
import io
import zlib

import fastavro
import pyarrow as pa
import pytest
import zstandard
from privstream.pipelines.sources import avro_events
from privstream.pipelines.sources.avro_events import BLOCK_BYTES
from privstream.pipelines.sources.files import EventFile, match_files, opened_events, unusable
from privstream.pipelines.sources.formats import InputFileError
from privstream.pipelines.sources.readers import ReadEvents
from raw_rows import readings

SYNC = b"sixteen bytes ab"
FIELDS = [{"name": name, "type": "string"} for name in ("user", "item", "time")]
SCHEMA = {"type": "record", "name": "Event", "fields": FIELDS}
GOOD = [{"user": f"u{row}", "item": "tea", "time": "2024-01-01"} for row in range(3)]


def long(value):
    """Write a number as Avro does."""
    value = (value << 1) ^ (value >> 63)
    data = b""
    while value > 127:
        data, value = data + bytes([value & 127 | 128]), value >> 7
    return data + bytes([value])


def text(value):
    return long(len(value)) + value


RECORD = text(b"u") + text(b"tea") + text(b"2024-01-01")


def block(records, data, size=None):
    return long(records) + long(len(data) if size is None else size) + data + SYNC


def write(path, *blocks, schema=SCHEMA, codec="null"):
    header = io.BytesIO()
    fastavro.writer(header, schema, [], sync_marker=SYNC)
    content = header.getvalue()
    if codec != "null":  # fastavro writes some codecs with further packages alone
        content = content.replace(text(b"null"), text(codec.encode()))
    path.write_bytes(content + b"".join(blocks))
    return len(content)


def deflate(data):
    stream = zlib.compressobj(9, wbits=-15)
    return stream.compress(data) + stream.flush()


def snappy(data):
    return pa.Codec("snappy").compress(data, asbytes=True) + zlib.crc32(data).to_bytes(4, "big")


COMPRESS = {"null": bytes, "deflate": deflate, "bzip2": bz2.compress, "zstandard": zstandard.compress, "snappy": snappy}


ENDLESS = "a record must not be within a record of its own type"
EMPTY = "items of an array must not be of a type without any bytes"


def users_of(path):
    with opened_events(EventFile(str(path), 0, "avro")) as stream:
        found = avro_events.read(stream, ["user"])
        return [user for part in found for user in part.columns["user"].to_pylist()]


@pytest.mark.parametrize("codec", COMPRESS)
def test_blocks_of_every_codec_are_read_and_damage_and_bombs_refuse_the_file(codec, tmp_path):
    compress, path = COMPRESS[codec], tmp_path / "a.avro"
    write(path, *[block(1, compress(RECORD))] * 3, codec=codec)
    assert users_of(path) == ["u"] * 3
    write(path, block(5, compress(bytes(BLOCK_BYTES + 1))), codec=codec)
    with pytest.raises(InputFileError, match=r"a\.avro cannot be read: a block must have at most 16,777,216 bytes"):
        users_of(path)
    write(path, block(1, compress(RECORD)[:-3]), codec=codec)
    with pytest.raises(InputFileError, match=r"a\.avro (is not an Avro file, or is damaged|cannot be read)"):
        users_of(path)


@pytest.mark.parametrize(
    "bad",
    [
        block(2**40, RECORD),
        block(2**62, b""),
        block(2, RECORD),
        block(1, RECORD * 2),
        block(-1, RECORD),
        block(1, text(b"u") + long(2**40) + b"x"),
        block(1, text(b"u") + long(-5) + b"x"),
        *[block(1, RECORD, size) for size in (2**40, 2**63 - 1, -1, 10**6)],
    ],
)
def test_claims_are_not_believed(bad, tmp_path):
    write(tmp_path / "a.avro", block(1 << 14, RECORD * (1 << 14)), bad, block(1, RECORD))
    with pytest.raises(InputFileError, match=r"a\.avro (is not an Avro file, or is damaged|cannot be read)"):
        unusable(match_files(str(tmp_path / "a.avro")), readings())


@pytest.mark.parametrize("field", ["user", "item", "time"])
def test_a_record_with_another_branch_of_a_union_is_refused_alone(field, tmp_path, read):
    union = {"type": ["null", "string", "long", "double", "boolean"]}
    fields = [each | (union if each["name"] == field else {}) for each in FIELDS]
    good = {"user": ("v", 7), "item": ("jam", True), "time": ("2024-01-02", 7)}[field]
    wrong = (True, None) if field == "time" else (1.5, None)
    with (tmp_path / "a.avro").open("wb") as stream:
        fastavro.writer(stream, SCHEMA | {"fields": fields}, [GOOD[0] | {field: value} for value in (*good, *wrong)])
    outcome = read(tmp_path / "a.avro", time_unit="s")
    assert len(outcome.rows) == 2
    assert len(outcome.letters) == len(wrong)
    kind = "a timestamp, text or a number, got bool" if field == "time" else "text or an integer, got double"
    assert {letter.reason for letter in outcome.letters} == {
        f"{field} must be present and not empty",
        f"{field} must be {kind}",
    }


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (["null", "Event"], ENDLESS),
        ({"type": "array", "items": "Event"}, ENDLESS),
        ({"type": "map", "values": ["null", "Event"]}, ENDLESS),
        ({"type": "array", "items": "null"}, EMPTY),
        ({"type": "array", "items": {"type": "record", "name": "Nothing", "fields": []}}, EMPTY),
    ],
)
def test_a_schema_that_could_take_the_decoder_down_is_refused(kind, rule, tmp_path):
    """A record some hundred thousand levels deep overflows the stack of fastavro: the worker would be gone."""
    write(tmp_path / "a.avro", schema=SCHEMA | {"fields": [*FIELDS, {"name": "more", "type": kind}]})
    with pytest.raises(InputFileError, match=rf"a\.avro cannot be read: {rule}"):
        ReadEvents(str(tmp_path / "a.avro"), readings())
