"""Who releases a report, for what, and exactly which files: on the page, and as a file beside it for machines."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from privstream.mechanisms.guarantee_records import guarantee_record
from privstream.pipelines.report.cost import Accounts
from privstream.pipelines.report.result import Result, files_of
from privstream.pipelines.sinks.row_files import fingerprint

VERSION = 1
ENDING = ".sign_off.json"
"""Of the file beside the page."""

LONGEST = 200
MOST_NAMES = 20


@dataclass(frozen=True, kw_only=True)
class SignOff:
    """What somebody answers for.

    Attributes:
        names: who releases it.
        purpose: what for.
        time: when, in UTC.
        results: of each its name, its promise, and the SHA-256 of its guarantee file and of each file of rows.
        ledger: number of lines and head of the ledger at that time; None without one.
    """

    names: Sequence[str]
    purpose: str
    time: str
    results: Sequence[Mapping[str, Any]]
    ledger: Mapping[str, Any] | None

    @classmethod
    def of(
        cls, names: Sequence[str], purpose: str, time: str, results: Sequence[Result], accounts: Accounts | None
    ) -> SignOff:
        """Return what is signed, with the digests of all files as they are now."""
        return cls(
            names=names,
            purpose=purpose,
            time=time,
            results=[_signed(result) for result in results],
            ledger=None if accounts is None else accounts.state(),
        )

    def to_dict(self, page: str, content: bytes, version: str) -> dict[str, Any]:
        """Return the file for machines: with the page that it is about, and its SHA-256.

        Args:
            page: path of the page.
            content: of the page.
            version: of privstream.
        """
        return {
            "sign_off": VERSION,
            "made_by": {"command": "privstream report", "version": version},
            "names": list(self.names),
            "purpose": self.purpose,
            "time": self.time,
            "page": {"file": os.path.basename(page), "sha256": sha256(content).hexdigest()},
            "results": list(self.results),
            "ledger": self.ledger,
        }


def check_names(names: Sequence[str], purpose: str | None, truth: str | None) -> None:
    """Refuse a signature that says too little, or of a page that is not for publication.

    Raises:
        ValueError: naming the option.
    """
    if not names and purpose is None:
        return
    if not names:
        raise ValueError("--sign_off must be given with --purpose: the name of who releases the page")
    if purpose is None:
        raise ValueError("--purpose must be given with --sign_off: what the page is released for")
    if truth is not None:
        raise ValueError("--sign_off must not be given with --truth: such a page is not for publication")
    if len(names) > MOST_NAMES:
        raise ValueError(f"--sign_off must be given at most {MOST_NAMES} times, got {len(names)}")
    for option, text in [*(("sign_off", name) for name in names), ("purpose", purpose)]:
        if not 0 < len(text.strip()) <= LONGEST:
            raise ValueError(f"--{option} must have 1 to {LONGEST} characters, got {len(text)}")


def _signed(result: Result) -> dict[str, Any]:
    """Return what is signed of a result."""
    return {
        "result": os.path.basename(os.path.normpath(result.path)),
        "run_id": str(result.parameters.get("run_id", "unknown")),
        "guarantee": {name: value for name, value in guarantee_record(result.guarantee).items() if value is not None},
        "guarantee_sha256": fingerprint(result.promise.path),
        "rows_sha256": {os.path.basename(file): fingerprint(file) for file in files_of(result.path)},
    }
