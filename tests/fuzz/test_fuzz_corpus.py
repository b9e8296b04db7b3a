"""What ever broke, file by file: `corpus/index.jsonl` says of each what it did, and what must come of it now."""

import json
from collections import Counter
from pathlib import Path

import pytest
from fuzz_meaning import Rules
from fuzz_properties import check_error_is_clear
from fuzz_reading import read

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
