"""Where rows are sent that are already in a file: a table, a topic or a web address, which may be away for a while."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from privstream.mechanisms.views.rules import ALERT
from privstream.pipelines.sinks.row_files import read_table, shape_of, write_once
from privstream.pipelines.sinks.row_formats import json_objects
from privstream.pipelines.stores import exists, join
from privstream.pipelines.terminal import json_text
from privstream.transforms.counters import counter
from privstream.transforms.row_types import ENDED
from typing_extensions import override

RUN = "run_id"
SENT = "rows_sent"  # counter of rows sent, again those that are sent again
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
        self.run_id, self.row_type, self.patience = run_id, row_type, PATIENCE_SECONDS
        shape = shape_of(row_type)
        self.key = tuple(column for name in key for column in (shape.parts if name == shape.item else ()) or (name,))

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


def send_file(path: str, to: Sequence[Destination]) -> str:
    """Send the rows of a file to one destination after the other, and return its path when they are there."""
    rows = read_table(path, to[0].row_type)
    for each in to:
        each.send(rows)
    counter(SENT).inc(rows.num_rows)
    return path


ANSWER_SECONDS = 10.0
TRY_AGAIN = (408, 425, 429)  # answers after which a request may be made again, beside those from 500


def has_alerts(row_type: Any) -> bool:
    """Tell whether rows of a type are alerts."""
    return "since" in row_type._fields and bool({"rule", "state"} & {*row_type._fields})


class Webhook(Destination):
    """Posts the public row with which an alert begins, as JSON, and no later row of the same alert.

    An alert is known by its run, its rule or item, and since when it lasts. A file beside the rows marks what has been
    posted; where a run ends between the answer and the mark, the header `Idempotency-Key` tells the receiver.

    Args:
        url: of `http://` or `https://`; it may be a secret, so only its host is ever told.
    """

    def __init__(self, url: str, run_id: str, row_type: type, key: Sequence[str], folder: str, question: str) -> None:
        super().__init__(run_id, row_type, key)
        self.url, self.folder, self.named = url, folder, {RUN: run_id, "name": question}

    @override
    def check(self, *, first: bool) -> None:
        # Nothing is posted that is no alert.
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise ValueError("--notify must be of the form https://example.com/path")

    @override
    def name(self) -> str:
        return f"{urlsplit(self.url).hostname} (alerts alone)"

    @override
    def send(self, rows: pa.Table) -> None:
        for values in json_objects(rows):
            if values.get("state", ALERT) != ALERT or values.get("status") == ENDED:
                continue
            about = {name: values[name] for name in self.key if name != "window_start"}
            key = json_text(self.named | {"since": values["since"]} | about)
            digest = blake2b(key.encode(), digest_size=16).hexdigest()
            mark = join(self.folder, f"_notified_{digest}")
            if not exists(mark):
                self._post(digest, json_text(self.named | values).encode())
                write_once(mark, b"")

    def _post(self, digest: str, body: bytes) -> None:
        headers, reason = {"Content-Type": "application/json", "Idempotency-Key": digest}, ""
        for _ in self.attempts():
            try:
                request = urllib.request.Request(self.url, body, headers, method="POST")
                with urllib.request.urlopen(request, timeout=ANSWER_SECONDS):
                    return
            except urllib.error.HTTPError as error:
                reason = f"it answers {error.code}"
                if error.code < 500 and error.code not in TRY_AGAIN:
                    break
            except OSError as error:
                reason = str(getattr(error, "reason", "") or type(error).__name__)
        raise UnreachableError(f"an alert could not be posted to {urlsplit(self.url).hostname}: {reason}")
