"""What somebody meant who wrote a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

ALSO_CALLED = {"ranks": "quantiles", "percentiles": "quantiles", "noise_key_file": "key", "user_field": "user"}
"""What people may call a key, where that is not near to its name."""


def meant(key: Any, known: Iterable[str]) -> str:
    """Return what was meant, if something is near."""
    names = {name.lstrip("-").replace("-", "_"): name for name in known}
    word = str(key).lstrip("-").replace("-", "_")
    near = [name for name in [ALSO_CALLED.get(word)] if name in names] or difflib.get_close_matches(word, names, 1)
    return f"; did you mean `{names[near[0]]}`?" if near else ""
