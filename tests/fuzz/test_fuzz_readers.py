"""One record more, in any file, decides for itself alone: hundreds of files, read without a runner."""

import pytest
from fuzz_avro import avro_case
from fuzz_parquet import parquet_case
from fuzz_properties import check_one_record_decides_for_itself
from fuzz_seeds import run_cases
from fuzz_text_files import text_case

CASES = {"jsonl": text_case, "csv": text_case, "avro": avro_case, "parquet": parquet_case}
QUICK = {"jsonl": 60, "csv": 60, "avro": 20, "parquet": 15}
ALL = {"jsonl": 300, "csv": 300, "avro": 150, "parquet": 100}
"""Unless a seed says otherwise the cases are the same each time: more of them are for a search, not for each change."""


def check_of(format):
    """Return the check of one format."""

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
