"""Lets the tests of this folder import what they have in common, and gives them what reads a file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def read() -> Callable[..., Any]:
    """Return what reads a file."""
    from fuzz_reading import read_path  # noqa: PLC0415 - the path is set here

    return read_path
