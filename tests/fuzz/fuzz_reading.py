"""Reads files as a run does, without a pipeline."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from privstream.transforms.reading.fields import DeadLetter
from raw_rows import read_events, readings

CANARY = "c4n4ry"
"""Is in every record, and must be in no message."""

START = 1_700_000_000
HONEST = [(f"{CANARY} {number}", f"item {number % 3}", START + number) for number in range(7)]
EXPECTED = Counter((user, item, time * 10**6) for user, item, time in HONEST)
TRACES = ("Traceback", 'File "', "0x7f", "<class ")


class Outcome(NamedTuple):
    """What a file gives: events by how often they came, the reasons of dead letters, or why it is refused."""

    events: Counter[tuple[str, str, int]]
    letters: list[str]
    error: str = ""


def check_clear(message: str) -> None:
    """Check that a message quotes no record, and shows no trace of the program."""
    assert CANARY not in message, f"a message quotes a record: {message!r}"
    assert not any(trace in message for trace in TRACES), f"a message shows the program: {message!r}"
    assert len(message) < 2000


def read_path(path: Path, **fields: Any) -> Outcome:
    """Read a file or a pattern; whatever is in it, it is refused by an error that names it, or read."""
    events, letters = Counter[tuple[str, str, int]](), []
    try:
        for found in read_events(path, readings(**fields)):
            if isinstance(found, DeadLetter):
                letters.append(found.reason)
                check_clear(found.reason)
                continue
            times = found["time"].to_pylist()
            events.update(zip(found["user"].to_pylist(), found["item"].to_pylist(), times, strict=True))
    except (ValueError, TypeError) as error:
        check_clear(str(error))
        return Outcome(Counter(), [], str(error))
    return Outcome(events, letters)


def lines_of(format: str) -> list[bytes]:
    """Return the honest records as lines of CSV or JSON."""
    if format == "csv":
        return [b"user,item,time", *(f"{user},{item},{time}".encode() for user, item, time in HONEST)]
    return [json.dumps({"user": user, "item": item, "time": time}).encode() for user, item, time in HONEST]
