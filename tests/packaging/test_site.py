"""The site has every page, says what the pages say in the repository, and loads nothing from a network."""

import html
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest
import yaml
from documents import PAGES, ROOT
from privstream import mechanisms, transforms

pytest.importorskip("mkdocs")
import markdown
from markdown_it import MarkdownIt

DOCS = ROOT / "docs"
SITE = runpy.run_path(str(DOCS / "site.py"))
EXTENSIONS = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["markdown_extensions"]
TAG = re.compile(r"<(ul|ol|li|table|tr|td|em|strong|blockquote|a|img)\b")


def shown(rendered: str) -> tuple[list[str], Counter[str]]:
    """Return the words of a page and the number of its elements."""
    return html.unescape(re.sub(r"<[^>]*>", " ", rendered)).split(), Counter(TAG.findall(rendered))


def on_site(text: str) -> tuple[list[str], Counter[str]]:
    """Return what the site shows; code is not coloured, which divides words."""
    return shown(markdown.markdown(text, extensions=["fenced_code", *(e for e in EXTENSIONS if e == "tables")]))


def in_repository(text: str) -> tuple[list[str], Counter[str]]:
    """Return what the repository shows."""
    return shown(MarkdownIt("commonmark").enable("table").render(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_the_same_on_the_site(page: Path) -> None:
    text = page.read_text("utf-8")
    words, elements = on_site(text)
    assert words == in_repository(text)[0]
    assert elements == in_repository(text)[1]


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
