"""Tables of the documentation are those that the descriptions of the questions give."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "docs" / "tables.py"))


@pytest.mark.parametrize("name", SCRIPT["TABLES"])
def test_the_table_is_as_the_descriptions_give_it(name: str) -> None:
    assert (ROOT / name).read_text("utf-8") == SCRIPT["page"](name), "run: make tables"
