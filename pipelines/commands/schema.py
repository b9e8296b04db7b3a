"""`privstream schema`: the JSON schema of monitors, from their models: editors complete and check a file with it."""

from __future__ import annotations

from typing import Any

from privstream.pipelines.command import Command
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.terminal import json_text

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Return the schema: a file that a monitor is read from is valid, and no other keys are."""
    return {"$schema": DRAFT, **Monitor.model_json_schema(by_alias=True), "title": "a monitor of privstream"}


COMMAND = Command(
    description="Prints the JSON schema of monitors. An editor with it completes the keys of a monitor, says what each "
    "is, and marks mistakes while you write. A first line of the file names it: "
    "`# yaml-language-server: $schema=monitor.schema.json`.",
    run=lambda: print(json_text(schema(), 2)),
)
