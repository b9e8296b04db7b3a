"""What a package exports, loaded when it is named: whoever needs one mechanism does not wait for all of them."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def exports(package: str, path: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return `__getattr__` and `__all__` of a package whose exports are listed in a stub, the only list of them.

    Args:
        package: its name.
        path: of its `__init__.py`; beside it is `__init__.pyi`, with an import for each name that users import.
    """
    stub = ast.parse(Path(path).with_suffix(".pyi").read_text("utf-8"))
    homes = {
        alias.name: str(node.module) for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)  # the next time nothing is called
        return value

    return load, list(homes)
