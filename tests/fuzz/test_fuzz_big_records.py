"""One record that is really big costs itself alone, in a memory that a small machine has."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzz_commands import ITEMS, arguments_of

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
