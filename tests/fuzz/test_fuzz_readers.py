"""One record more, in any file, decides for itself alone: thousands of files, read without a runner."""

import pytest
from fuzz_avro import avro_case
from fuzz_parquet import parquet_case
from fuzz_properties import check_one_record_decides_for_itself
from fuzz_seeds import run_cases
from fuzz_text_files import text_case

CASES = {"jsonl": text_case, "csv": text_case, "avro": avro_case, "parquet": parquet_case}


@pytest.mark.parametrize("format", CASES)
def test_one_record_decides_for_itself(format, tmp_path):
    def check(chance, folder):
        check_one_record_decides_for_itself(CASES[format](chance, folder, format))

    run_cases(f"records {format}", 250, check, tmp_path)
