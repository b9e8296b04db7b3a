"""What is new in a folder of event files, poll by poll: every file once, in the order in which they came.

A file is taken when two polls have found it with the same size and time of change, so that a file that is still being
written is left alone. A name beginning with `.` or `_` is no file of events. Two such names speak to the watcher:
`_END` says that no file will come any more, and `_UNTIL_20300101T120000Z` that no event before that time will. Either
counts when every file that came before it has been taken.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

import numpy as np
from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems
from privstream.mechanisms import snapshots
from privstream.pipelines.sources.event_files import InputFileError
from privstream.pipelines.sources.polled_source import MICROS

END = "_END"
UNTIL = re.compile(r"_UNTIL_(\d{8}T\d{6}Z)")
KEPT_SECONDS = 3600
"""A file that is gone is remembered so long, in case a listing was incomplete."""

VERSION = 1
KIND = "folder looks"


class Seen(NamedTuple):
    """A file in a listing: its path, bytes, time of change, and when it came, both in microseconds since 1970."""

    path: str
    size: int
    changed: int
    came: int

    @property
    def name(self) -> str:
        """Return the name without the folder."""
        return self.path.rpartition("/")[2]

    @property
    def stamp(self) -> int:
        """Return a number that changes with the file."""
        return _number(f"{self.size} {self.changed}")


@dataclass
class FolderPolls:
    """What has been taken, and what was seen at the last poll.

    Attributes:
        taken: name -> its stamp, and since when it is gone (seconds; 0 while it is there). Names are hashes.
        waiting: name -> stamp, of what the last poll saw and did not take.
        until: the watermark that the marks allow, in microseconds.
        changed: number of files that have changed after they were taken.
    """

    taken: dict[int, tuple[int, int]] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)
    until: int = 0
    changed: int = 0

    def poll(self, listing: Sequence[Seen], now: int) -> tuple[list[Seen], int | None]:
        """Take what has come.

        Args:
            listing: what is in the folder.
            now: microseconds since 1970 at which the listing began.

        Returns:
            The files to read, in order, and until when everything that came has been taken: the time at which the
            first file came that has not been, or `now`; None at the end.
        """
        there = {_number(seen.name): seen for seen in listing}
        self._forget(there, now // MICROS)
        self.changed = sum(name in self.taken and self.taken[name][0] != seen.stamp for name, seen in there.items())
        new = {name: seen for name, seen in there.items() if name not in self.taken}
        ready = {name for name, seen in new.items() if self.waiting.get(name) == seen.stamp}
        self.waiting = {name: seen.stamp for name, seen in new.items() if name not in ready}
        files = {name for name, seen in new.items() if not seen.name.startswith("_")}
        held = min((new[name].came for name in files - ready), default=None)
        found = sorted((new[name] for name in files & ready), key=_order)
        self.taken |= {name: (new[name].stamp, 0) for name in files & ready}
        ended = False
        for name in ready - files:
            mark = new[name]
            if held is not None and held <= mark.came:
                self.waiting[name] = mark.stamp
                continue
            self.taken[name] = (mark.stamp, 0)
            ended |= mark.name == END
            self.until = max(self.until, _until(mark.name))
        return found, None if ended else now if held is None else min(now, held)

    def _forget(self, there: dict[int, Seen], now: int) -> None:
        """Forget names that have been gone for long; a name that was gone and is back is a new file."""
        for name, (stamp, gone) in list(self.taken.items()):
            if name in there and gone and there[name].stamp != stamp:
                del self.taken[name]
            elif name in there:
                self.taken[name] = (stamp, 0)
            elif gone and now - gone >= KEPT_SECONDS:
                del self.taken[name]
            else:
                self.taken[name] = (stamp, gone or now)

    def to_bytes(self) -> bytes:
        """Return the state, to be restored by `from_bytes`."""
        names = sorted(self.taken)
        return snapshots.pack(
            KIND,
            VERSION,
            {
                "taken": np.array(names, np.uint64),
                "stamps": np.array([self.taken[name][0] for name in names], np.uint64),
                "gone": np.array([self.taken[name][1] for name in names], np.int64),
                "waiting": np.array(sorted(self.waiting), np.uint64),
                "waiting_stamps": np.array([self.waiting[name] for name in sorted(self.waiting)], np.uint64),
                "until": self.until,
            },
        )

    @classmethod
    def from_bytes(cls, data: bytes | None) -> FolderPolls:
        """Restore the state; nothing has been taken if there is none."""
        if data is None:
            return cls()
        kept = cast(dict[str, Any], snapshots.unpack(KIND, VERSION, data))
        taken = zip(kept["taken"].tolist(), kept["stamps"].tolist(), kept["gone"].tolist(), strict=True)
        waiting = zip(kept["waiting"].tolist(), kept["waiting_stamps"].tolist(), strict=True)
        return cls({name: (stamp, gone) for name, stamp, gone in taken}, dict(waiting), kept["until"])


def list_folder(pattern: str) -> list[Seen] | None:
    """List the files of a folder, or those that a glob matches beside the marks; None if that failed.

    On a local disk a file came when it was last written, renamed or linked, whatever its time of change says; elsewhere
    it came when it was last changed.
    """
    folder, glob = split_pattern(pattern)
    if FileSystems.get_scheme(folder) is None and not os.path.isdir(folder):
        return None
    try:
        found = {
            file.path: file
            for each in (glob, "_*")
            for file in FileSystems.match([FileSystems.join(folder, each)])[0].metadata_list
        }
    except (BeamIOError, OSError):
        return None
    speaking = [file for path, file in found.items() if _speaks(path.rpartition("/")[2])]
    seen = [_seen(file.path, file.size_in_bytes, file.last_updated_in_seconds) for file in speaking]
    return [each for each in seen if each is not None]


def marked(listing: Sequence[Seen], came: int) -> int:
    """Return the time, in microseconds, up to which marks that came before `came` say that nothing is missing."""
    return max((_until(seen.name) for seen in listing if seen.came < came), default=0)


def check_watched(pattern: str, option: str = "--input") -> None:
    """Check before a run that a folder can be watched.

    Raises:
        ValueError: with the option's name and the path.
    """
    folder, _ = split_pattern(pattern, option)
    if FileSystems.get_scheme(folder) is None and not os.path.isdir(folder):
        raise InputFileError(f"{option} must be a folder that exists, to be watched: there is no folder {folder}")


def split_pattern(pattern: str, option: str = "--input") -> tuple[str, str]:
    """Split what is watched into a folder and a glob for the names in it."""
    if not any(sign in pattern for sign in "*?["):
        return pattern, "*"
    folder, _, glob = pattern.rpartition("/")
    if any(sign in folder for sign in "*?["):
        raise ValueError(f"{option} must be a folder, or a folder and a glob for its files, got {pattern}")
    return folder or os.curdir, glob


def _speaks(name: str) -> bool:
    """Tell whether a name is that of a file of events or of a mark."""
    return not name.startswith((".", "_")) or name == END or UNTIL.fullmatch(name) is not None


def _until(name: str) -> int:
    """Return the time that a mark names, in microseconds."""
    found = UNTIL.fullmatch(name)
    if found is None:
        return 0
    try:
        moment = datetime.strptime(found[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return 0
    return int(moment.timestamp()) * MICROS


def _seen(path: str, size: int, changed: float) -> Seen | None:
    """Describe a file; None if it has just gone."""
    if FileSystems.get_scheme(path) is None:
        try:
            status = os.stat(path)
        except OSError:
            return None
        return Seen(path, status.st_size, status.st_mtime_ns // 1000, status.st_ctime_ns // 1000)
    return Seen(path, size, int(changed * MICROS), int(changed * MICROS))


def _order(seen: Seen) -> tuple[int, str]:
    """Files are taken in the order in which they came."""
    return seen.came, seen.path


def _number(text: str) -> int:
    """Return a 64-bit hash."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little")
