"""What docstrings say of fields, for pages that have it in words."""

from __future__ import annotations

import inspect
import re


def described(docstring: str, title: str = "Attributes") -> dict[str, str]:
    """Return what a section of a docstring says of each name that it lists, for readers of files.

    Several may share a line.
    """
    section = inspect.cleandoc(docstring).partition(f"\n{title}:\n")[2].partition("\n\n")[0]
    found: dict[str, str] = {}
    for names, text in re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n {5}.*)*)", section, re.M):
        said = re.sub(r"(^|[.:] )None\b", r"\1Empty", " ".join(text.split()))
        found |= dict.fromkeys(names.split(", "), re.sub(r"\bNone\b", "empty", said))
    return found
