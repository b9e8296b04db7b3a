"""The walk of a record from a line of CSV to a published row; packaging/test_size.py counts its functions."""

import re
from pathlib import Path

from record_walk import ROOT, walk


def test_a_record_walks_through_the_files_that_the_page_names(tmp_path: Path) -> None:
    found = walk(tmp_path)
    named = re.findall(r"^\| `([\w/.]+\.py)`", (ROOT / "docs" / "walk.md").read_text("utf-8"), re.MULTILINE)
    assert set(named) <= found.keys(), "docs/walk.md names what is not on the way: run record_walk.py"
    assert len(named) >= len(found) - 3, "docs/walk.md leaves out much of the way: run record_walk.py"
