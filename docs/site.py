"""What the documentation site needs beyond its settings in mkdocs.yml: `make site`.

The navigation is that of docs/README.md. What pages link to outside of docs is a part of the site, too. A page that
would load anything from a network ends the build.
"""

import os
import re
from pathlib import Path, PurePosixPath

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)")
LOADED = re.compile(r"""<(?!a\b)[a-z]+\b[^>]*\b(?:src|href)=["']?(?:\w+:)?//""")
DOCSTRING = {
    r"^Example:$": "Examples:",
    r"^(Attributes|Source): ": r"*\1:* ",
    r"\bdocs/proofs/(\w+)\.md": r"[proofs/\1](../proofs/\1.md)",
}
"""How docstrings are written here, and how it is read by mkdocstrings."""


def in_site(path: str) -> str:
    """Return where a file of the repository is in the site."""
    return path.removeprefix("docs/")


def linked(path: str, text: str) -> dict[str, str]:
    """Return the links of a page to files: as they stand there, and as paths in the repository."""
    folder = PurePosixPath(path).parent
    return {link: os.path.normpath(folder / link) for link in LINK.findall(text)}


def sections(text: str) -> list[dict[str, list[str | dict[str, str]]]]:
    """Return the navigation: sections are the headings of docs/README.md, entries the links below them."""
    found = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return [{title: [entry(*link) for link in re.findall(r"\[([^\]]+)\]\(([^)\s#]+)", body)]} for title, body in found]


def entry(words: str, link: str) -> str | dict[str, str]:
    """Return a line of the navigation; a number gives way to the title of the page."""
    path = in_site(os.path.normpath(f"docs/{link}"))
    return path if words.isdigit() else {" ".join((words[0].upper() + words[1:]).split()): path}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the navigation from docs/README.md."""
    config.nav = [{"Home": "README.md"}, *sections((ROOT / "docs" / "README.md").read_text("utf-8"))]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of docs that pages link to, and those that these link to."""
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    while waiting:
        page = waiting.pop()
        for path in linked(page, (ROOT / page).read_text("utf-8")).values():
            if files.get_file_from_path(in_site(path)) is None and (ROOT / path).is_file():
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
                waiting += [path] if path.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links point to where their files are in the site."""
    path = page.file.src_uri if page.file.generated_by else f"docs/{page.file.src_uri}"
    targets = linked(path, markdown)
    folder = PurePosixPath(page.file.src_uri).parent
    return LINK.sub(lambda found: os.path.relpath(in_site(targets[found[0]]), folder), markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that a browser would load something for from elsewhere."""
    if found := LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} must load nothing from a network, got {found[0]}")
    return output


class Docstrings(griffe.Extension):
    """Reads docstrings as they are written here."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Put in the words that mkdocstrings knows."""
        for written, read in DOCSTRING.items() if obj.docstring else ():
            obj.docstring.value = re.sub(written, read, obj.docstring.value, flags=re.MULTILINE)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: object) -> None:
        """Take the comment behind a field for its docstring, where it has no other."""
        source = attr.source.splitlines()
        if attr.docstring is None and source and "  # " in source[0]:
            attr.docstring = griffe.Docstring(source[0].split("  # ", 1)[1], parent=attr)

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Give transforms that have no docstring of their own that of their parameters, as `help` does."""
        for each in [member for member in pkg.members.values() if not member.is_alias]:
            if isinstance(each, griffe.Module):
                self.on_package(pkg=each)
            elif isinstance(each, griffe.Class) and each.docstring is None and each.resolved_bases:
                each.docstring = each.resolved_bases[0].docstring
