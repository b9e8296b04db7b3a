"""Tables of the documentation are those that the code gives: its descriptions of questions and rows, and its plans."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "docs" / "tables.py"))


SLOW = ("docs/how_to/method.md",)
"""Pages with tables that take seconds to compute."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SCRIPT["TABLES"]]
)
def test_tables_are_as_the_code_gives_them(name: str) -> None:
    assert (ROOT / name).read_text("utf-8") == SCRIPT["page"](name), "run: make tables"
