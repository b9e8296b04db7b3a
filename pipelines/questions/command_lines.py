"""Command lines that follow from others: the options that name windows, the form of the input, and what is promised."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from privstream.pipelines.accounts.limit_options import DEFAULT_DATASET

FORMS: dict[str, str | None] = {
    "user_field": "user",
    "item_field": "item",
    "time_field": "time",
    "value_field": "value",
}
FORMS |= dict.fromkeys(("delimiter", "encoding", "time_unit", "time_format", "time_zone", "decimal", "value_unit"))
FORMS |= dict.fromkeys(("null", "trim", "normalize", "fold_case", "quote", "where", "query"))
"""Options of the input that another command for it needs as well, with their defaults."""

OF_VALUES = ("value_field", "value_unit", "decimal")
"""Those of them that are about values."""

PROMISED = {"neighbouring": "add_remove", "dataset": DEFAULT_DATASET}
"""Options of what is promised to whom, and whose budget is spent, which that command needs as well, likewise."""


def windows(parameters: Mapping[str, Any]) -> str:
    """Return the options that name the windows of a run, as they were given."""
    names = ("window", "start", "end", "windows")
    return " ".join(_options({name: _plain(parameters.get(name)) for name in names}, dict.fromkeys(names)))


def _plain(value: Any) -> Any:
    """Write a number without an exponent."""
    return f"{value:.15g}" if isinstance(value, float) else value


def forms(parameters: Mapping[str, Any], unused: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the options that say how the input is written, but for some; those with their defaults are left out."""
    yield from _options(parameters, {name: default for name, default in FORMS.items() if name not in unused})


def promised(parameters: Mapping[str, Any]) -> str:
    """Return the options of what is promised to whom, each after a space."""
    return "".join(f" {option}" for option in _options(parameters, PROMISED))


def _options(parameters: Mapping[str, Any], defaults: Mapping[str, str | None]) -> Iterator[str]:
    """Yield options as they were given, but for those with their defaults."""
    for name, default in defaults.items():
        given = parameters.get(name)
        if given is None or given is False or given == default:
            continue
        for value in [given] if isinstance(given, str | float | int) else given:
            yield f"--{name}" if value is True else f"--{name} {shlex.quote(str(value))}"
