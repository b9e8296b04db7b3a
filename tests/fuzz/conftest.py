"""Gives the tests of this folder what reads a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fuzz_reading import read_path


@pytest.fixture(scope="session")
def read() -> Callable[..., Any]:
    """Return what reads a file."""
    return read_path
