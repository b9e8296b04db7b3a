"""Grids of cases of which a few are quick."""

from collections.abc import Iterable
from typing import Any

import pytest


def some_quick(argument: str, cases: Iterable[Any], *quick: Any) -> pytest.MarkDecorator:
    """Parametrise by cases; all but those that are quick are slow."""
    cases = list(cases)
    assert {*quick} <= {*cases}, f"{quick} are not among {cases}"
    marked = [pytest.param(case, marks=[] if case in quick else [pytest.mark.slow]) for case in cases]
    return pytest.mark.parametrize(argument, marked)
