"""A damaged file is read as far as records are whole, or refused by an error that names it; never a traceback."""

from __future__ import annotations

import bz2
import gzip
import io
from collections import Counter

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from fuzz_reading import CANARY, EXPECTED, HONEST, lines_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

COMPRESS = {"gz": gzip.compress, "bz2": bz2.compress, "zst": zstandard.compress}
NAMES = ["user", "item", "time"]
SCHEMA = {
    "type": "record",
    "name": "event",
    "fields": [{"name": name, "type": "long" if name == "time" else "string"} for name in NAMES],
}


def content(ending):
    """Return an honest file."""
    format, _, compression = ending.partition(".")
    if format in ("csv", "jsonl"):
        text = b"\n".join(lines_of(format)) + b"\n"
        return COMPRESS[compression](text) if compression else text
    rows = [dict(zip(NAMES, row, strict=True)) for row in HONEST]
    stream = io.BytesIO()
    if format == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), stream, row_group_size=3)
    else:
        fastavro.writer(stream, SCHEMA, rows, codec="deflate", sync_interval=40)
    return stream.getvalue()


ENDINGS = ["csv", "jsonl", "parquet", "avro", *(f"jsonl.{ending}" for ending in COMPRESS), "csv.gz"]
FILES = {ending: content(ending) for ending in ENDINGS}
SETTINGS = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("ending", ENDINGS)
@SETTINGS
@given(
    places=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=4),
    data=st.binary(min_size=1, max_size=9),
    how=st.sampled_from(["replaced", "added", "removed"]),
)
def test_bytes_that_are_others(ending, places, data, how, tmp_path, read):
    path, text = tmp_path / f"a.{ending}", FILES[ending]
    reach = len(text)
    if ending == "parquet":  # pyarrow ends the process for a few footers
        reach -= int.from_bytes(text[-8:-4], "little") + 8 + 9 * len(places)
    for share in places:
        place = int(share * reach)
        kept = place if how == "added" else place + len(data)
        text = text[:place] + (b"" if how == "removed" else data) + text[kept:]
    path.write_bytes(text)
    found = read(path, time_unit="s")
    assert not found.error or str(path) in found.error or "--" in found.error, found.error


@pytest.mark.parametrize("ending", ENDINGS)
@SETTINGS
@given(share=st.floats(0, 1, exclude_max=True))
def test_files_that_end_early(ending, share, tmp_path, read):
    path, text = tmp_path / f"a.{ending}", FILES[ending]
    path.write_bytes(text[: int(share * len(text))])
    found = read(path, time_unit="s")
    if found.error:
        assert str(path) in found.error
        return
    assert ending in ("csv", "jsonl", "avro")
    made_up = found.events - EXPECTED
    assert made_up.total() <= (ending == "csv"), "at most the record that is cut says something else"
    if ending == "avro":  # between two blocks
        assert found.events == Counter(dict(list(EXPECTED.items())[: found.events.total()]))
    assert all(CANARY not in letter for letter in found.letters)
