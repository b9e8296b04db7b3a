"""Rules of alerts as JSON lines: `{"name": "flu", "at_least": 500, "items": ["fever", "cough"]}`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable

from privstream.pipelines.sinks.row_files import whole_file
from privstream.pipelines.sources.event_files import Damage, InputFileError
from privstream.pipelines.sources.json_events import REASON, parse_line
from privstream.pipelines.sources.text_lines import read_lines
from privstream.transforms import AlertRule

FIELDS = tuple(field.name for field in dataclasses.fields(AlertRule))


def read_rules(path: str) -> tuple[AlertRule, ...]:
    """Read the rules of a file, one on each line.

    Raises:
        ValueError: naming the line and what it breaks; rules are public and may be quoted.
    """
    rules = []
    try:
        for lines in read_lines(path):
            if isinstance(lines, Damage):
                raise ValueError(f"--rules: {lines.position} of {path}: {lines.reason}")
            for row, text in enumerate(lines.texts):
                try:
                    rules.append(_rule(text))
                except (TypeError, ValueError) as error:
                    raise ValueError(f"--rules: {lines.position(row)} of {path}: {error}") from None
    except InputFileError as error:
        raise ValueError(f"--rules must be a readable file: {error}") from None
    if not rules:
        raise ValueError(f"--rules must have at least one rule, got {path} with none")
    return tuple(rules)


def write_rules(path: str, rules: Iterable[AlertRule]) -> None:
    """Write rules as `read_rules` reads them."""
    with whole_file(path) as stream:
        for rule in rules:
            stream.write(json.dumps(rule.given, ensure_ascii=False).encode() + b"\n")


def _rule(text: bytes) -> AlertRule:
    """Read one line."""
    found = parse_line(text)
    if found is None:
        raise ValueError(REASON)
    return AlertRule.from_fields(found)
