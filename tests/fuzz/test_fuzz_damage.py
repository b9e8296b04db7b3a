"""Files that are damaged as a whole end a run with one clear line, or cost what is damaged, never in silence."""

import pytest
from fuzz_damage import damaged_file, mislabelled_file, misshapen_file
from fuzz_properties import check_damage_is_noticed
from fuzz_seeds import run_cases

KINDS = {"damaged": damaged_file, "mislabelled": mislabelled_file, "misshapen": misshapen_file}


@pytest.mark.parametrize("format", ["jsonl", "csv", "avro", "parquet"])
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_noticed(kind, format, tmp_path):
    def check(chance, folder):
        check_damage_is_noticed(KINDS[kind](chance, folder, format))

    run_cases(f"{kind} {format}", {"damaged": 40}.get(kind, 15), check, tmp_path)
