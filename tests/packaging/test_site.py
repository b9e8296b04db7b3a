"""The site has every page, says what the pages say in the repository, and loads nothing from a network."""

import re
import runpy

import pytest
from documents import ROOT
from privstream import mechanisms, transforms

pytest.importorskip("mkdocs")

DOCS = ROOT / "docs"
SITE = runpy.run_path(str(DOCS / "site.py"))


def test_every_page_is_in_the_navigation() -> None:
    sections = SITE["sections"]((DOCS / "README.md").read_text("utf-8"))
    entries = [entry for section in sections for found in section.values() for entry in found]
    listed = [path for entry in entries for path in ([entry] if isinstance(entry, str) else entry.values())]
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"README.md"}
    assert pages <= set(listed)
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("layer", [mechanisms, transforms], ids=["mechanisms", "transforms"])
def test_the_reference_has_everything_that_is_exported(layer) -> None:
    pages = "".join(path.read_text("utf-8") for path in (DOCS / "reference").glob("*.md"))
    assert sorted(re.findall(rf"^::: {layer.__name__}\.(\w+)$", pages, re.MULTILINE)) == sorted(layer.__all__)
