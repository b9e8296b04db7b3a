"""Files of any kind: one record more decides for itself alone, damage is said, and what ever broke stays mended."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzz_avro import avro_case
from fuzz_commands import ITEMS, arguments_of
from fuzz_damage import damaged_file, mislabelled_file, misshapen_file
from fuzz_meaning import Rules
from fuzz_parquet import parquet_case
from fuzz_properties import check_damage_is_noticed, check_error_is_clear, check_one_record_decides_for_itself
from fuzz_reading import read
from fuzz_seeds import run_cases
from fuzz_text_files import text_case

CASES = {"jsonl": text_case, "csv": text_case, "avro": avro_case, "parquet": parquet_case}
QUICK = {"jsonl": 60, "csv": 60, "avro": 20, "parquet": 15}
ALL = {"jsonl": 300, "csv": 300, "avro": 150, "parquet": 100}
"""Unless a seed says otherwise the cases are the same each time: more of them are for a search, not for each change."""


def check_of(format):
    def check(chance, folder):
        check_one_record_decides_for_itself(CASES[format](chance, folder, format))

    return check


@pytest.mark.parametrize("format", CASES)
def test_one_record_decides_for_itself(format, tmp_path):
    run_cases(f"records {format}", QUICK[format], check_of(format), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("format", CASES)
def test_many_records_decide_for_themselves(format, tmp_path):
    run_cases(f"many records {format}", ALL[format], check_of(format), tmp_path)


CORPUS = Path(__file__).parent / "corpus"
INDEX = [json.loads(line) for line in (CORPUS / "index.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("entry", INDEX, ids=lambda entry: entry["file"])
def test_what_once_broke_holds(entry):
    found = read(CORPUS / entry["file"], Rules(**entry.get("options", {})))
    check_error_is_clear(found.error)
    if "error" in entry:
        assert entry["error"] in found.error, entry["did"]
        return
    assert not found.error, entry["did"]
    items = Counter(
        {item: sum(n for event, n in found.events.items() if event.item == item) for item in entry["items"]}
    )
    assert items == Counter(entry["items"]), entry["did"]
    assert found.events.total() == items.total(), entry["did"]
    assert entry["letters"] in (None, len(found.letters)), (entry["did"], found.letters[:3])


def test_every_file_is_in_the_index():
    assert sorted(entry["file"] for entry in INDEX) == sorted(
        {path.name for path in CORPUS.iterdir()} - {"index.jsonl"}
    )


KINDS = {"damaged": damaged_file, "mislabelled": mislabelled_file, "misshapen": misshapen_file}


@pytest.mark.parametrize("format", ["jsonl", "csv", "avro", "parquet"])
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_noticed(kind, format, tmp_path):
    def check(chance, folder):
        check_damage_is_noticed(KINDS[kind](chance, folder, format))

    run_cases(f"{kind} {format}", {"damaged": 40}.get(kind, 15), check, tmp_path)


PEOPLE = 1500
MEMORY = 1_400_000
"""Kibibytes that a command may need at most: half of them are Beam, Arrow and Python."""

SCRIPT = """
import resource, sys
from privstream.pipelines import cli
status = cli.main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(status)
"""
TIME = "2024-01-01T00:00:05Z"


def big_line(path: Path) -> Path:
    """One line of 68 MB among those of 1,500 people."""
    rows = [{"user": f"u{n}", "item": ITEMS[0], "time": TIME} for n in range(PEOPLE)]
    rows.insert(700, {"user": "x", "item": "y" * 68_000_000, "time": TIME})
    path = path.with_suffix(".jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def big_field(path: Path) -> Path:
    """One quoted field of 68 MB, in lines."""
    lines = [f"u{n},{ITEMS[0]},{TIME}" for n in range(PEOPLE)]
    lines.insert(700, 'x,"' + f"u1,AD,{TIME}\n" * (68_000_000 // 30) + f'",{TIME}')
    path = path.with_suffix(".csv")
    path.write_text("user,item,time\n" + "\n".join(lines) + "\n")
    return path


def big_dictionary(path: Path) -> Path:
    """2,100 events of one item of a mebibyte, which a dictionary says once."""
    indices = pa.array([0] * PEOPLE + [1] * 2100, pa.int32())
    columns = {
        "user": [f"u{n % PEOPLE}" for n in range(len(indices))],
        "item": pa.DictionaryArray.from_arrays(indices, pa.array([ITEMS[0], "y" * (1 << 20)])),
        "time": pa.array([1_704_067_205_000_000] * len(indices), pa.timestamp("us", "UTC")),
    }
    path = path.with_suffix(".parquet")
    pq.write_table(pa.table(columns), path, compression="zstd")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("write", [big_line, big_field, big_dictionary], ids=lambda write: write.__name__)
def test_a_big_record_costs_itself_alone(write, tmp_path):
    call = arguments_of("heavy-hitters", tmp_path / "run", write(tmp_path / "events"))
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, *call], capture_output=True, check=False, text=True, timeout=400
    )
    assert ran.returncode == 0, ran.stderr[-1500:]
    rows = [json.loads(line) for line in (tmp_path / "run" / "rows.jsonl").read_text().splitlines()]
    assert {row["item"] for row in rows if len(row["item"]) < 100} == {ITEMS[0]}
    assert all(abs(row["count"] - PEOPLE) < 50 for row in rows if row["item"] == ITEMS[0])
    assert int(ran.stdout.splitlines()[-1]) < MEMORY, "too much memory"
    assert "yyyy" not in ran.stderr
