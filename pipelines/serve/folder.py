"""What is watched: the results in a folder as they come."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, NamedTuple

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
    views_of,
)
from privstream.pipelines.sources.folder_polls import END

MOST_RESULTS = 50
MOST_FILES = 500
MOST_BYTES = 16 << 20
"""Of one result: a page shows the newest files up to here, and says so."""

MORE_RESULTS = f"The {MOST_RESULTS} results that changed last are shown; {{:,}} more are in the folder."

FRESH_SECONDS = 0.4
"""A look is not repeated before this, however many people watch."""

Stamp = tuple[int, ...]


class _Read(NamedTuple):
    """A file as it was when it was read last: its stamp, its rows, and whether they are all of that moment."""

    stamp: Stamp
    rows: list[Any]
    whole: bool


@dataclass(frozen=True, kw_only=True)
class Found:
    """A result as it is now.

    Attributes:
        name: its path within the folder.
        id: of the result, for addresses of the page.
        version: changes whenever what is shown of it may.
        result: what has been read; None while there is nothing that can be.
        arrived: when its newest file was written, seconds since 1970; 0 without files.
        running: whether more may come.
        notes: what could not be read, and what is left out.
    """

    name: str
    id: str
    version: str
    result: Result | None
    arrived: float
    running: bool
    notes: tuple[str, ...]

    @property
    def arrived_text(self) -> str:
        """When its newest file was written, in words."""
        return f"{datetime.fromtimestamp(self.arrived, UTC):%Y-%m-%d %H:%M:%S} UTC"


class WatchedFolder:
    """Reads the results of a folder, of each file only what has changed.

    A result is a file with its guarantee file beside it, or a folder (this one, or one in it) with a guarantee file in
    it. Everything else, such as events or dead letters, is never opened.

    Args:
        path: the folder.
        clock: tells the time in seconds.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self._clock = path, clock
        self._lock = threading.Lock()
        self._looked = -FRESH_SECONDS
        self._watched: dict[str, _WatchedResult] = {}
        self._found: list[Found] = []
        self._notes: tuple[str, ...] = ()

    def look(self) -> tuple[list[Found], tuple[str, ...]]:
        """Return the results, the newest first, and notes on the folder."""
        with self._lock:
            if self._clock() - self._looked >= FRESH_SECONDS:
                self._look()
                self._looked = self._clock()
            return self._found, self._notes

    def _look(self) -> None:
        """Look again."""
        try:
            names = sorted(self._results(), reverse=True)
        except OSError:
            self._notes = ("The folder cannot be read. What was there before is shown.",)
            return
        newest = sorted(names)[-MOST_RESULTS:]
        self._notes = () if len(names) <= MOST_RESULTS else (MORE_RESULTS.format(len(names) - MOST_RESULTS),)
        paths = [path for _, path in newest]
        self._watched = {path: self._watched.get(path) or _WatchedResult(self.path, path) for path in paths}
        found = [self._watched[path].look() for path in paths]
        self._found = sorted(found, key=lambda one: (-one.arrived, one.name))

    def _results(self) -> Iterator[tuple[float, str]]:
        """Return the paths of all results, and when their guarantee was written or, in a folder, anything."""
        with os.scandir(self.path) as entries:
            for entry in entries:
                path, guarantee = "", ""
                if entry.name == GUARANTEE and not _of_monitor(self.path):
                    path, guarantee = self.path, entry.path
                elif entry.name.endswith(BESIDE) and is_rows(entry.name.removesuffix(BESIDE)):
                    path, guarantee = entry.path.removesuffix(BESIDE), entry.path
                elif entry.name[0] not in "._" and os.path.isdir(entry.path):
                    path, guarantee = entry.path, os.path.join(entry.path, GUARANTEE)
                    if _of_monitor(path):
                        continue  # a folder of results; it is shown where it is named itself
                written = _regular(guarantee) if path else None
                if written is not None:
                    yield max(written.st_mtime, os.stat(path).st_mtime if os.path.isdir(path) else 0), path
        for path in views_of(self.path):
            if os.path.exists(path):
                yield os.stat(path).st_mtime, path


def _of_monitor(folder: str) -> bool:
    """Tell whether a folder has the results of a monitor, each a result of its own."""
    with suppress(ValueError):
        return monitor_promise(folder) is not None
    return False


class _WatchedResult:
    """One result: what was read of it, and when that was written."""

    def __init__(self, folder: str, path: str) -> None:
        self._path = path
        self._name = os.path.relpath(path, folder) if path != folder else os.path.basename(os.path.abspath(path))
        self._promised: tuple[Stamp, Result | None] = ((), None)
        self._files: dict[str, _Read] = {}
        self._found: Found | None = None
        self._seen: tuple[Any, ...] = ()

    def look(self) -> Found:
        """Return the result as it is now."""
        files = self._names()
        stamps = {path: stamp for path in files[-MOST_FILES:] if (stamp := stamp_of(path))}
        promised = stamp_of(promise_path(self._path))
        ended = not os.path.isdir(self._path) or os.path.exists(os.path.join(self._path, END))
        seen = (promised, stamps, len(files), ended)
        if self._found is None or seen != self._seen:
            self._seen, self._found = seen, self._read(*seen)
        return self._found

    def _names(self) -> list[str]:
        """Return the files of the result, by name."""
        try:
            return files_of(self._path)
        except OSError:
            return []

    def _read(self, promised: Stamp, stamps: Mapping[str, Stamp], files: int, ended: bool) -> Found:
        """Read what has changed of the newest files, of so many."""
        if promised != self._promised[0]:
            self._promised = (promised, self._promise())
            self._files = {}
        result = self._promised[1]
        if result is None:
            notes = ["Its guarantee file is not complete, or not one that this version of privstream wrote."]
        else:
            self._files = {path: self._file(path, stamps[path], result) for path in _that_fit(stamps)}
            notes = [*self._notes(files)]
            rows = [row for file in self._files.values() for row in file.rows]
            readable = any(file.whole or file.rows for file in self._files.values())
            result = result.with_rows(rows) if readable or os.path.isdir(self._path) else None
        return Found(
            name=self._name,
            id=blake2b(self._name.encode(errors="surrogateescape"), digest_size=8).hexdigest(),
            version=blake2b(repr((promised, stamps, files, ended)).encode(), digest_size=8).hexdigest(),
            result=result,
            arrived=max((stamp[0] / 1e9 for stamp in stamps.values() if stamp), default=0.0),
            running=not ended,
            notes=tuple(notes),
        )

    def _promise(self) -> Result | None:
        """Return what is promised of the result, without rows; None if that cannot be read."""
        try:
            return read_promise(self._path)
        except Exception:  # whatever somebody has written there must not end the other results
            return None

    def _file(self, path: str, stamp: Stamp, result: Result) -> _Read:
        """Return the rows of a file, as it was before if it cannot be read now; it is read only if it has changed."""
        known = self._files.get(path, _Read((), [], False))
        if known.stamp == stamp:
            return known
        try:
            return _Read(stamp, read_file(path, result), True)
        except Exception:  # nor must this
            return known._replace(stamp=stamp, whole=False)

    def _notes(self, files: int) -> Iterator[str]:
        """Say what is not among the rows."""
        if unreadable := sum(not file.whole for file in self._files.values()):
            yield (
                f"{unreadable:,} of its files cannot be read now: a file that is being written is shown as soon as it "
                "is complete."
            )
        if not os.path.exists(self._path):
            yield "Its file has gone."
        elif files and not self._files:
            yield f"Its file has more than {MOST_BYTES >> 20} MiB, which is too much for this page."
        elif left_out := files - len(self._files):
            yield f"The newest {len(self._files):,} files are shown; {left_out:,} more are in the folder."


def _that_fit(stamps: Mapping[str, Stamp]) -> list[str]:
    """Return the newest files, by name, that together are not too much for a page."""
    shown: list[str] = []
    size = 0
    for path in reversed(list(stamps)):
        if size + stamps[path][1] > MOST_BYTES:
            break
        size += stamps[path][1]
        shown.append(path)
    return shown[::-1]


def _regular(path: str) -> os.stat_result | None:
    """Return what is known of a file; None if there is none, or if it is something else, such as a pipe."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def stamp_of(path: str) -> Stamp:
    """Return what changes when a file does: when it was written, its size, and which one it is; else nothing."""
    found = _regular(path)
    return () if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)
