"""How far a reader has to walk from a line of CSV to a published row."""

import re
from pathlib import Path

from record_walk import ROOT, walk

MOST_FUNCTIONS, MOST_FILES = 435, 47
"""No more than this. The aim is 40 functions in 25 files: lower these numbers when the walk becomes shorter."""


def test_a_record_walks_through_few_functions_and_the_page_names_the_files(tmp_path: Path) -> None:
    found = walk(tmp_path)
    assert sum(map(len, found.values())) <= MOST_FUNCTIONS, "python tests/record_walk.py shows the walk"
    assert len(found) <= MOST_FILES
    named = re.findall(r"^\| `([\w/.]+\.py)`", (ROOT / "docs" / "walk.md").read_text("utf-8"), re.MULTILINE)
    assert set(named) <= found.keys(), "docs/walk.md names what is not on the way: run record_walk.py"
    assert len(named) >= len(found) - 3, "docs/walk.md leaves out much of the way: run record_walk.py"
