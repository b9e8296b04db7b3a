"""What somebody meant who wrote a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def meant(key: Any, known: Iterable[str]) -> str:
    """Return what was meant, if something is near."""
    names = {name.lstrip("-").replace("-", "_"): name for name in known}
    word = str(key).lstrip("-").replace("-", "_")
    near = difflib.get_close_matches(word, names, 1)
    return f"; did you mean `{names[near[0]]}`?" if near else ""
