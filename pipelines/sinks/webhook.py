"""A web address as a destination of alerts: each is posted when it begins, once."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from privstream.mechanisms.views.rules import ALERT
from privstream.pipelines.sinks.destination import RUN, Destination, UnreachableError
from privstream.pipelines.sinks.row_files import write_once
from privstream.pipelines.sinks.row_formats import json_objects
from privstream.pipelines.stores import exists, join
from privstream.pipelines.terminal import json_text
from privstream.transforms.row_types import ENDED
from typing_extensions import override

ANSWER_SECONDS = 10.0
TRY_AGAIN = (408, 425, 429)
"""Answers after which a request may be made again, beside those from 500."""


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
        """Post an alert, again and again while nobody takes it."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": digest}
        reason = ""
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
