"""What once went wrong: the files of the corpus, and a few whole commands."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from fuzz_reading import check_clear
from privstream.pipelines import cli

CORPUS = Path(__file__).parent / "corpus"
CASES = [json.loads(line) for line in (CORPUS / "index.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["file"])
def test_files_of_the_corpus(case, read):
    found = read(CORPUS / case["file"], **case.get("options", {}))
    assert case.get("error", "") in found.error and bool(found.error) == ("error" in case)
    if "error" not in case:
        items = Counter[str]()
        for (_, item, _), number in found.events.items():
            items[item] += number
        assert items == case["items"]
        assert case["letters"] in (None, len(found.letters))


@pytest.mark.parametrize("name", ["\x1b[2J", "\x9b2J", "\u202e", "\ud800", "a\nb"])
def test_names_of_fields_do_not_steer_terminals(name, tmp_path, capfd):
    (tmp_path / "a.jsonl").write_text(json.dumps({name: 1, "user": "u", "item": "i", "time": "2024-01-01"}))
    files = f"--input {tmp_path}/a.jsonl --domain {tmp_path}/a.jsonl --output {tmp_path}/o.jsonl"
    call = f"histogram {files} --window 60 --start 0 --end 60 --epsilon 1"
    cli.main([*call.split(), "--user", name])
    said = capfd.readouterr().err
    assert said.replace("\n", "").isprintable()
    check_clear(said)
