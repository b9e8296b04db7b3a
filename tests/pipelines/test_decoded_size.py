"""A few bytes of a file can stand for gigabytes: what long values cost, and that they decide about nobody else."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from raw_rows import read_events, readings

MEBIBYTE = 1 << 20
LONGEST = 1 << 14
TEXTS = ("string", "large_string", "string_view", "binary", "large_binary")
POOLS: list[pa.MemoryPool] = []
"""They must outlive what was made in them."""

TIME = pa.array([1], pa.timestamp("s", "UTC"))[0]


def write(path, items, users=None, times=None, **options):
    rows = len(items)
    times = pa.repeat(TIME, rows) if times is None else times
    table = pa.table({"user": users or [f"u{row}" for row in range(rows)], "item": items, "time": times})
    pq.write_table(table, path, **options)


def batches_of(path, **fields):
    """Return batches, dead letters and the most memory that Arrow took."""
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        found = list(read_events(path, readings(**fields)))
    finally:
        pa.set_memory_pool(before)
    batches = [each for each in found if isinstance(each, pa.RecordBatch)]
    return batches, [each for each in found if not isinstance(each, pa.RecordBatch)], pool.max_memory()


@pytest.mark.parametrize("stored", [True, False], ids=["column is a dictionary", "column is text"])
def test_a_long_value_in_a_dictionary_costs_its_rows_alone(stored, tmp_path):
    texts, numbers = pa.array(["x" * MEBIBYTE, "tea"]), pa.array([0] * 2100 + [1] * 3, pa.int32())
    write(tmp_path / "a.parquet", pa.DictionaryArray.from_arrays(numbers, texts), store_schema=stored)
    assert (tmp_path / "a.parquet").stat().st_size < 200_000
    batches, letters, most = batches_of(tmp_path / "a.parquet")
    assert [row["item"] for batch in batches for row in batch.to_pylist()] == ["tea"] * 3
    assert {letter.reason for letter in letters} == {f"item must be at most {LONGEST:,} bytes of UTF-8"}
    assert [letter.position for letter in letters] == [f"row group 1, row {row}" for row in range(1, 2101)]
    assert most < 64 * MEBIBYTE


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"use_dictionary": False, "write_batch_size": 1, "compression": "zstd"},
        {"use_dictionary": False, "column_encoding": {"item": "DELTA_BYTE_ARRAY"}},
        {"write_batch_size": 1, "compression": "zstd"},
    ],
    ids=["plain", "delta", "dictionary and plain"],
)
def test_long_values_that_all_differ_are_decoded_few_at_a_time(options, tmp_path):
    items = ["x" * MEBIBYTE + str(number) for number in range(160)]
    write(tmp_path / "a.parquet", [*items, "tea"], **options)
    assert (tmp_path / "a.parquet").stat().st_size < 30 * MEBIBYTE
    batches, letters, most = batches_of(tmp_path / "a.parquet")
    assert [row["item"] for batch in batches for row in batch.to_pylist()] == ["tea"]
    assert len(letters) == 160
    assert most < 450 * MEBIBYTE


@pytest.mark.parametrize(
    "kind", [*(getattr(pa, name)() for name in TEXTS), pa.dictionary(pa.int8(), pa.string())], ids=str
)
@pytest.mark.parametrize("long", [False, True])
def test_rows_that_break_a_rule_are_refused_alone_in_every_type_of_text(kind, long, tmp_path, read):
    raw = pa.array([b"tea", None, b"", b"x" * 20_000, b"caf\xc3\xa9", b"tea"])
    items, users = raw.cast(pa.string()).cast(kind), pa.array([b"a", b"b", b"c", b"d", b"e", None]).cast(kind)
    if kind == pa.binary():
        items = pa.array([b"tea", None, b"", b"x" * 20_000, b"caf\xc3\xa9", b"\xff"])
    write(tmp_path / "a.parquet", items, users, use_dictionary=long)
    outcome = read(tmp_path / "a.parquet")
    assert [(row["user"], row["item"]) for row in outcome.rows] == [("a", "tea"), ("e", "café")]
    assert [letter.position for letter in outcome.letters] == [f"row group 1, row {row}" for row in (2, 3, 4, 6)]
