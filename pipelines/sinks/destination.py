"""Where rows are sent that are already in a file: a table or a topic, which may be away for a while."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from privstream.pipelines.sinks.row_files import read_table, shape_of
from privstream.pipelines.sinks.row_formats import json_objects
from privstream.pipelines.terminal import json_text
from privstream.transforms.counters import counter
from typing_extensions import override

RUN = "run_id"
SENT = "rows_sent"
"""Counter of rows sent, again those that are sent again."""

FIRST_PAUSE, LONGEST_PAUSE, PATIENCE_SECONDS = 0.2, 10.0, 600.0
"""So long a destination may be away; then the run fails, and goes on where it is started again."""


class UnreachableError(Exception):
    """A destination does not take rows: the message says which one and why, never with a password or a row."""


class Destination(ABC):
    """A table or a topic for the rows of one run.

    A row is known by its key: the run id, and the fields that distinguish it from the other rows of the run. Rows are
    sent from files that are written once, so that those which are sent again are the same.
    """

    def __init__(self, run_id: str, row_type: type, key: Sequence[str]) -> None:
        self.run_id, self.row_type = run_id, row_type
        shape = shape_of(row_type)
        self.key = tuple(column for name in key for column in (shape.parts if name == shape.item else ()) or (name,))
        self.patience = PATIENCE_SECONDS

    @abstractmethod
    def check(self, *, first: bool) -> None:
        """Check before a run that rows can be sent; `first` if this run has never sent any."""

    @abstractmethod
    def send(self, rows: pa.Table) -> None:
        """Send rows, all of them or none where that can be had.

        Raises:
            UnreachableError: not for so long; rows that are sent again afterwards are there once.
        """

    @abstractmethod
    def name(self) -> str:
        """Say where rows go, without secrets."""

    def attempts(self) -> Iterator[None]:
        """Yield before each attempt to reach it, after longer and longer pauses, while there is patience."""
        pause, deadline = FIRST_PAUSE, time.monotonic() + self.patience
        while True:
            yield
            if time.monotonic() > deadline:
                return
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def keyed(self, rows: pa.Table) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield rows of a file as JSON says them, with their keys, each a JSON object; equal keys are equal texts.

        Rows that nothing distinguishes are numbered.
        """
        seen: Counter[str] = Counter()
        for values in json_objects(rows):
            named = {RUN: self.run_id} | {name: values[name] for name in self.key}
            seen[plain := json_text(named)] += 1
            yield plain if seen[plain] == 1 else json_text(named | {"number": seen[plain]}), values


class Several(Destination):
    """Sends rows to one destination after another; those that did get them before one failed get them once."""

    def __init__(self, destinations: Sequence[Destination]) -> None:
        first = destinations[0]
        super().__init__(first.run_id, first.row_type, first.key)
        self.destinations = destinations

    @override
    def check(self, *, first: bool) -> None:
        for each in self.destinations:
            each.check(first=first)

    @override
    def send(self, rows: pa.Table) -> None:
        for each in self.destinations:
            each.send(rows)

    @override
    def name(self) -> str:
        return " and ".join(each.name() for each in self.destinations)


def send_file(path: str, to: Destination) -> str:
    """Send the rows of a file, and return its path when they are there."""
    rows = read_table(path, to.row_type)
    to.send(rows)
    counter(SENT).inc(rows.num_rows)
    return path
