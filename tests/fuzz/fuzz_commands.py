"""Runs the commands in this process, as a terminal would, and keeps all that they say."""

import contextlib
import json
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz_values import CANARY
from privstream.pipelines import cli

KEY = bytes(range(7, 39))
ITEMS = [f"{CANARY} {number}" for number in range(4)]
WINDOWS = ["--window", "20", "--start", "2024-01-01T00:00:00Z", "--end", "2024-01-01T00:02:00Z"]
RULES = [{"name": "some", "at_least": 12, "items": ITEMS[:2]}, {"name": "many", "at_least": 25}]
ASKED = [{"name": "first", "items": ITEMS[:1]}, {"name": "half", "items": ITEMS[:2]}]


@dataclass(frozen=True)
class Question:
    """A command with options under which it publishes something about a hundred people.

    Attributes:
        options: all but those of input, output, key, run and streams.
        files: further files that it needs, by option.
    """

    options: list[str]
    files: dict[str, str] = field(default_factory=dict)


DOMAIN = {"domain": "".join(f"{item}\n" for item in ITEMS)}


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


DOORS = ["--enter_values", ",".join(ITEMS[:2]), "--leave_values", ",".join(ITEMS[2:])]
POINTS = ["--universe", "64", "--delete_values", ITEMS[3]]
QUESTIONS = {
    "heavy-hitters": Question([*WINDOWS[:2], "--epsilon", "20", "--delta", "1e-3", "--max_hits", "3", "--horizon",
    "9", "--method", "clock"]),
    "counts": Question([*WINDOWS, "--epsilon", "20", "--delta", "1e-3", "--max_contributions", "3", "--over", "start"]),
    "quantiles": Question([*WINDOWS, "--epsilon", "5", "--value_field", "item", "--low", "0", "--high", "4",
    "--quantiles", "0.5,0.9", "--max_contributions", "3"]),
    "top-k": Question([*WINDOWS, "--epsilon", "5", "--top", "2", "--items_per_step", "2"], DOMAIN),
    "alerts": Question([*WINDOWS, "--epsilon", "9", "--min_alerts", "5"], {"rules": lines(RULES)}),
    "histogram": Question([*WINDOWS, "--epsilon", "2", "--queries", "histogram,max,top:2"], DOMAIN),
    "flags": Question([*WINDOWS, "--epsilon", "9", "--thresholds", "20"], DOMAIN),
    "cardinality": Question([*WINDOWS, "--epsilon", "5", *DOORS]),
    "ranges": Question([*WINDOWS, "--epsilon", "5", *POINTS], {"queries": lines([{"low": 1, "high": 9}, {"low": 5,
    "high": 60}])}),
    "predecessor": Question([*WINDOWS, "--epsilon", "9", *POINTS], {"queries": lines([{"point": 9}, {"point": 40}])}),
    "queries": Question(["--epsilon", "5", "--records", "100", "--alpha", "0.3"], {**DOMAIN,
    "queries": lines(ASKED)}),
}  # fmt: skip


@dataclass
class Ran:
    """What a command left behind.

    Attributes:
        arguments: how it was called.
        status: its exit status; None if an exception escaped.
        out, err: what it said.
        folder: where its output was to go.
        rows, guarantee: what it wrote, if it did.
    """

    arguments: list[str]
    status: int | None
    out: str
    err: str
    folder: Path

    @property
    def rows(self) -> str | None:
        return _read(self.folder / "rows.jsonl")

    @property
    def guarantee(self) -> str | None:
        return _read(self.folder / "rows.jsonl.guarantee.json")

    def __str__(self) -> str:
        return f"privstream {' '.join(self.arguments)}\nstatus {self.status}\n{self.err[-1500:]}"


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def arguments_of(
    name: str, folder: Path, source: Path | str, *, stream: str = "", unit: str | None = None
) -> list[str]:
    """Return a call of a command; its key, and whatever is kept beside the key, are for this run alone."""
    question = QUESTIONS[name]
    folder.mkdir(parents=True, exist_ok=True)
    key = folder / "key"
    key.write_bytes(KEY)
    key.chmod(0o600)
    call = [name, "--input", str(source), "--output", str(folder / "rows.jsonl"), "--noise_key_file", str(key)]
    call += ["--run_id", "fuzz", "--dead_letter", str(folder / "dead.jsonl"), "--time_zone", "UTC", *question.options]
    for option, content in question.files.items():
        (folder / option).write_text(content)
        call += [f"--{option}", str(folder / option)]
    if stream:
        call += ["--stream_field", stream, "--streams", "north,south"]
    return call if unit is None else [*call, "--time_unit", unit]


def run(arguments: list[str], folder: Path) -> Ran:
    said = folder / ".out", folder / ".err"
    status: int | None = None
    with _redirected(*said):
        try:
            status = cli.main(arguments)
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:
            traceback.print_exc()
    out, err = (path.read_text(errors="surrogateescape") for path in said)
    for path in said:
        path.unlink()
    return Ran(arguments, status, out, err, folder)


@contextlib.contextmanager
def _redirected(out: Path, err: Path) -> Iterator[None]:
    """Send both outputs of this process, and its log, to files."""
    kept = sys.stdout, sys.stderr, os.dup(1), os.dup(2)
    with (
        out.open("w", errors="surrogateescape") as first,
        err.open("w", errors="surrogateescape", buffering=1) as second,
    ):
        os.dup2(first.fileno(), 1)
        os.dup2(second.fileno(), 2)
        sys.stdout, sys.stderr = first, second
        log = logging.StreamHandler(second)
        log.setLevel(logging.WARNING)
        logging.getLogger().addHandler(log)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(log)
            sys.stdout, sys.stderr = kept[:2]
            for descriptor, saved in ((1, kept[2]), (2, kept[3])):
                os.dup2(saved, descriptor)
                os.close(saved)
