"""The results of a folder as they are now; of their files only those are read again that have changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from privstream.pipelines.locations import GUARANTEE
from privstream.pipelines.report.result import (
    BESIDE,
    Result,
    files_of,
    is_rows,
    monitor_promise,
    promise_path,
    read_file,
    read_promise,
    results_of,
)
from privstream.pipelines.sources.folder_polls import END
from privstream.transforms.row_types import Time

MOST_FILES = 500
MOST_BYTES = 16 << 20
"""Of one result: a page shows the newest files up to here, and says so."""

Stamp = tuple[int, ...]


class WatchedFolder:
    """Reads the results of a folder.

    A result is a file with its guarantee file beside it, or a folder (this one, or one in it) with a guarantee file in
    it; of a monitor, all that its guarantee file names, in that order. Everything else is never opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._rows: dict[str, tuple[Stamp, list[Any]]] = {}

    def paths(self) -> list[str]:
        """Return the results that there are."""
        with suppress(ValueError, OSError):
            if monitor_promise(self.path) is not None:
                return [path for path in results_of(self.path) if os.path.exists(path)]
        if os.path.isfile(os.path.join(self.path, GUARANTEE)):
            return [self.path]
        try:
            names = sorted(os.listdir(self.path))
        except OSError:
            return []
        return [path for name in names if (path := self._result(name))]

    def version(self, paths: Sequence[str]) -> str:
        """Return what changes whenever a file of the results does."""
        stamps = [(path, stamp_of(promise_path(path)), self._stamps(path), _ended(path)) for path in paths]
        return blake2b(repr(stamps).encode(errors="surrogateescape"), digest_size=8).hexdigest()

    def read(self, path: str) -> tuple[Result, list[str]]:
        """Return a result as it is now, and notes on what is not in it.

        Raises:
            ValueError: its guarantee file cannot be read.
        """
        result, stamps = read_promise(path), self._stamps(path)
        shown, notes, rows = _that_fit(stamps), list[str](), list[Any]()
        unreadable = 0
        for file in shown:
            known = self._rows.get(file, ((), []))
            try:
                if known[0] != stamps[file]:
                    known = self._rows[file] = stamps[file], read_file(file, result, Time)
            except Exception:  # whatever somebody has written there must not end the other results
                unreadable += 1
            rows += known[1]
        if unreadable:
            notes.append(f"{unreadable:,} files cannot be read now; what was there before is shown.")
        if len(shown) < len(stamps):
            notes.append(f"The newest {len(shown):,} files are shown, of {len(stamps):,}.")
        if not _ended(path):
            notes.append("Running: more windows may follow.")
        return result.with_rows(rows), notes

    def forget(self, paths: Sequence[str]) -> None:
        """Drop the rows of files that are of none of these results."""
        files = {file for path in paths for file in self._stamps(path)}
        self._rows = {file: rows for file, rows in self._rows.items() if file in files}

    def _result(self, name: str) -> str:
        """Return the path of the result that a name in the folder stands for; empty if for none."""
        path = os.path.join(self.path, name)
        if name.endswith(BESIDE) and is_rows(name.removesuffix(BESIDE)) and stamp_of(path):
            return path.removesuffix(BESIDE)
        if name[0] in "._" or not stamp_of(guarantee := os.path.join(path, GUARANTEE)):
            return ""
        with suppress(ValueError):
            return path if monitor_promise(path) is None else ""
        return os.path.dirname(guarantee)

    def _stamps(self, path: str) -> dict[str, Stamp]:
        """Return the regular files of a result, by name, with their stamps; of many, the newest."""
        try:
            return {file: stamp for file in files_of(path)[-2 * MOST_FILES :] if (stamp := stamp_of(file))}
        except OSError:
            return {}


def stamp_of(path: str) -> Stamp:
    """Return what changes when a file does: when it was written, its size, and which one it is; else nothing."""
    with suppress(OSError):
        found = os.stat(path)
        if stat.S_ISREG(found.st_mode):  # a pipe is never opened
            return found.st_mtime_ns, found.st_size, found.st_ino
    return ()


def _ended(path: str) -> bool:
    """Tell whether no more rows follow."""
    return not os.path.isdir(path) or os.path.exists(os.path.join(path, END))


def _that_fit(stamps: Mapping[str, Stamp]) -> list[str]:
    """Return the newest files, by name, that together are not too much for a page."""
    shown: list[str] = []
    size = 0
    for path in reversed(list(stamps)[-MOST_FILES:]):
        size += stamps[path][1]
        if size > MOST_BYTES:
            break
        shown.append(path)
    return shown[::-1]
