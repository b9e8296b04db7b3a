"""Runs the command as a user does, on files of a folder."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from privstream.pipelines import cli
from questions import overridden


class Ran(NamedTuple):
    """Exit status, what was said on standard error, and the rows."""

    status: int
    said: str
    rows: list[dict[str, str]]

    def counts(self) -> dict[str, int]:
        """Return the published count of each item; noise is nearly nothing."""
        return {row["item"]: round(float(row["people"])) for row in self.rows}


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Return a function that runs `counts` on an input, with so large an epsilon that counts are exact."""
    key = tmp_path / "noise.key"
    key.touch(mode=0o600)
    key.write_bytes(bytes(range(32)))

    def run(*options: object, items: Any = (), day: str = "2026-03-02", command: str = "counts") -> Ran:
        given = ["--key", str(key), "--ledger", "none", "--epsilon", "500", "--window", "1day"]
        if day:
            end = f"{day[:8]}{int(day[8:]) + 1:02}"
            given += ["--start", day, "--end", end]
        if items:
            listed = tmp_path / "public.txt"
            if not isinstance(items, bytes):
                items = "".join(f"{item}\n" for item in items).encode()
            listed.write_bytes(items)
            given += ["--domain", str(listed)]
        output = tmp_path / "rows.csv"
        output.unlink(missing_ok=True)
        if command == "counts":
            given += ["--max_contributions", "1", "--output", str(output), "--overwrite"]
        status = cli.main(overridden([command, *given, *map(str, options)]))
        text = output.read_text(encoding="utf-8") if output.exists() else ""
        mark = ";" if ";" in text.partition("\n")[0] else ","  # as readers of the decimal sign expect it
        rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=mark))
        return Ran(status, capfd.readouterr().err, rows)

    os.chdir(tmp_path)
    return run
