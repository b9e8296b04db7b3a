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


@pytest.mark.parametrize("text", ["A formula <r, x> of it", "A list:\n- a\n- b", "let r_s be, f(s)\n+ 1 of it"])
def test_what_differs_is_recognised(text: str) -> None:
    assert on_site(text) != in_repository(text)


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


@pytest.mark.parametrize(
    "element",
    [
        '<script async src="https://github.com/x.js">',
        "<script src=//github.com/x.js>",
        '<img alt="x" src="http://github.com/x.png">',
        '<link rel="preconnect" href="https://github.com">',
        '<link href="https://github.com/css" rel="stylesheet">',
    ],
)
def test_what_a_browser_would_load_is_recognised(element: str) -> None:
    assert SITE["LOADED"].search(element)


def test_links_are_not_loaded() -> None:
    page = '<a href="https://arxiv.org">x</a><img src="demo.png"><link rel="next" href="x.html">'
    assert not SITE["LOADED"].search(page)


def test_links_out_of_docs_lead_to_the_site() -> None:
    targets = SITE["linked"](
        "docs/proofs/x.md", "[a](../../benchmarks/README.md#b) [c](clock.md) [d](https://doi.org) [e](#f)"
    )
    assert targets == {"../../benchmarks/README.md": "benchmarks/README.md", "clock.md": "docs/proofs/clock.md"}
