"""Avro files that claim what they do not have, or have more than their bytes show: a block at most is lost."""

import bz2
import io
import lzma
import zlib

import fastavro
import pyarrow as pa
import pytest
import zstandard
from privstream.pipelines.sources import avro_events
from privstream.pipelines.sources.avro_events import BLOCK_BYTES, CODECS
from privstream.pipelines.sources.event_files import Damage, InputFileError, Part
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.sources.readers import ReadEvents

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


TOO_LARGE = "block must have at most 16,777,216 bytes, decompressed"
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


def lz4(data):
    return len(data).to_bytes(4, "little") + pa.Codec("lz4_raw").compress(data, asbytes=True)


COMPRESS = {
    "null": bytes,
    "deflate": deflate,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstandard": zstandard.compress,
    "snappy": snappy,
    "lz4": lz4,
}


def test_every_codec_is_compressed_here():
    assert set(COMPRESS) == set(CODECS)


@pytest.mark.parametrize("codec", COMPRESS)
def test_blocks_of_every_codec_are_read_and_damage_and_bombs_cost_themselves(codec, tmp_path):
    compress, path = COMPRESS[codec], tmp_path / "a.avro"
    good, bomb = block(1, compress(RECORD)), compress(bytes(BLOCK_BYTES + 1))
    damaged = block(1, compress(RECORD)[:-3] if codec != "null" else RECORD[:-3])
    start = write(path, good, block(5, bomb), damaged, good, codec=codec)
    found = list(avro_events.read(str(path), Part(0, path.stat().st_size), ["user"]))
    users = [user for part in found if not isinstance(part, Damage) for user in part.columns["user"]]
    assert users == ["u", "u"]
    assert [part.position for part in found if isinstance(part, Damage)] == [
        f"block at byte {start + len(good)} with 5 records",
        f"block at byte {start + len(good) + len(block(5, bomb))} with 1 records",
    ]
    assert next(part.reason for part in found if isinstance(part, Damage)) == TOO_LARGE


@pytest.mark.parametrize(
    "bad",
    [
        block(2**40, RECORD),
        block(2**62, b""),
        block(2, RECORD),
        block(1, text(b"u") + long(2**40) + b"x"),
        block(1, text(b"u") + long(-5) + b"x"),
    ],
    ids=["many records", "records of no bytes", "one record more", "long text", "text of negative length"],
)
def test_claims_are_not_believed(bad, tmp_path, read):
    start = write(tmp_path / "a.avro", block(1, RECORD), bad, block(1, RECORD))
    outcome = read(tmp_path / "a.avro")
    assert len(outcome.rows) == 2
    (letter,) = outcome.letters
    assert letter.position.startswith(f"block at byte {start + len(block(1, RECORD))} with ")


@pytest.mark.parametrize("size", [2**40, 2**63 - 1, -1, 10**6])
def test_a_block_that_claims_another_size_is_passed_over(size, tmp_path, read):
    start = write(tmp_path / "a.avro", block(1, RECORD), block(1, RECORD, size), block(1, RECORD))
    outcome = read(tmp_path / "a.avro")
    assert len(outcome.rows) == 2
    begin, end = start + len(block(1, RECORD)), start + len(block(1, RECORD)) + len(block(1, RECORD, size))
    assert [letter.position for letter in outcome.letters] == [f"byte {begin} to byte {end}"]


def test_a_block_of_many_records_is_decoded_in_pieces_and_only_if_it_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(avro_events, "GROUP_RECORDS", 10)
    records = b"".join(text(b"u%d" % row) + text(b"tea") + text(b"2024-01-01") for row in range(25))
    start = write(tmp_path / "a.avro", block(25, records), block(26, records), block(3, RECORD * 3))
    found = list(avro_events.read(str(tmp_path / "a.avro"), Part(0, (tmp_path / "a.avro").stat().st_size), ["user"]))
    pieces = [part for part in found if not isinstance(part, Damage)]
    assert [len(piece.columns["user"]) for piece in pieces] == [10, 10, 5, 3]
    assert [user for piece in pieces[:3] for user in piece.columns["user"]] == [f"u{row}" for row in range(25)]
    assert [piece.position(2) for piece in pieces[:3]] == [
        f"block at byte {start}, record {row}" for row in (3, 13, 23)
    ]
    assert [part.position for part in found if isinstance(part, Damage)] == [
        f"block at byte {start + len(block(25, records))} with 26 records"
    ]


def test_one_long_value_costs_its_record_alone(tmp_path, read):
    long_item = text(b"v") + text(b"x" * 2**20) + text(b"2024-01-01")
    write(tmp_path / "a.avro", block(3, RECORD + long_item + RECORD))
    outcome = read(tmp_path / "a.avro")
    assert len(outcome.rows) == 2
    assert [letter.reason for letter in outcome.letters] == ["item must be at most 16384 bytes"]


@pytest.mark.parametrize("field", ["user", "item", "time"])
def test_a_record_with_another_branch_of_a_union_is_refused_alone(field, tmp_path, read):
    union = {"type": ["null", "string", "long", "double", "boolean"]}
    fields = [each | (union if each["name"] == field else {}) for each in FIELDS]
    good = {"user": ("v", 7), "item": ("jam", 7), "time": ("2024-01-02", 7)}[field]
    wrong = (True, None) if field == "time" else (1.5, True, None)
    with (tmp_path / "a.avro").open("wb") as stream:
        fastavro.writer(stream, SCHEMA | {"fields": fields}, [GOOD[0] | {field: value} for value in (*good, *wrong)])
    outcome = read(tmp_path / "a.avro", time_unit="s")
    assert len(outcome.rows) == 2
    assert len(outcome.letters) == len(wrong)
    kind = "a number or text" if field == "time" else "text or an integer"
    assert {letter.reason for letter in outcome.letters} == {
        f"{field} must be present and not empty",
        f"{field} must be {kind}",
    }


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (["null", "Event"], "a record must not be within a record of its own type"),
        ({"type": "array", "items": "Event"}, "a record must not be within a record of its own type"),
        ({"type": "map", "values": ["null", "Event"]}, "a record must not be within a record of its own type"),
        ({"type": "array", "items": "null"}, "items of an array must not be of a type without any bytes"),
        (
            {"type": "array", "items": {"type": "record", "name": "Nothing", "fields": []}},
            "items of an array must not be of a type without any bytes",
        ),
    ],
)
def test_a_schema_that_could_take_the_decoder_down_is_refused(kind, rule, tmp_path):
    """A record some hundred thousand levels deep overflows the stack of fastavro: the worker would be gone."""
    write(tmp_path / "a.avro", schema=SCHEMA | {"fields": [*FIELDS, {"name": "more", "type": kind}]})
    with pytest.raises(InputFileError, match=rf"a\.avro must have another schema: {rule}"):
        ReadEvents(str(tmp_path / "a.avro"), FieldMapping())


def test_a_type_may_be_named_again(tmp_path, read):
    inner = {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "int"}]}
    more = [{"name": "a", "type": inner}, {"name": "b", "type": {"type": "array", "items": "Place"}}]
    events = [event | {"a": {"x": 1}, "b": [{"x": 2}]} for event in GOOD]
    with (tmp_path / "a.avro").open("wb") as stream:
        fastavro.writer(stream, SCHEMA | {"fields": [*FIELDS, *more]}, events)
    assert len(read(tmp_path / "a.avro").rows) == 3


def test_an_unknown_codec_is_named(tmp_path):
    write(tmp_path / "a.avro", codec="zip2000")
    with pytest.raises(InputFileError, match=r"a\.avro (must be compressed with one of|is not an Avro file)"):
        ReadEvents(str(tmp_path / "a.avro"), FieldMapping())


def test_blocks_are_grouped_by_what_they_decompress_to(tmp_path, monkeypatch):
    monkeypatch.setattr(avro_events, "GROUP_BYTES", 2000)
    long_record = text(b"u") + text(b"x" * 900) + text(b"2024-01-01")
    write(tmp_path / "a.avro", *[block(1, deflate(long_record))] * 10, codec="deflate")
    found = list(avro_events.read(str(tmp_path / "a.avro"), Part(0, (tmp_path / "a.avro").stat().st_size), ["user"]))
    assert [len(piece.columns["user"]) for piece in found] == [2] * 5
    assert avro_events.BLOCK_BYTES >= 1 << 21  # the largest block that Avro's own writers are advised to make
