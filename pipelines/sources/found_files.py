"""Which files there are: those that match a pattern, whether they stay as they are, and what is new in a folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from privstream.pipelines.locations import END
from privstream.pipelines.sources import avro_events, csv_events, parquet_events, text_lines, xlsx_events
from privstream.pipelines.sources.event_files import COMPRESSED, UTF_8, EventFormat, InputFileError, check_regular
from privstream.pipelines.sources.fields import AnyFields
from privstream.pipelines.stores import (
    GLOB,
    FileFacts,
    check_store,
    exists,
    facts_of,
    filesystems,
    has_folders,
    join,
    matching,
    scheme_of,
)
from privstream.transforms.timing.steps import MICROS

FORMATS: dict[str, EventFormat] = {
    "avro": avro_events,
    "parquet": parquet_events,
    "jsonl": text_lines,
    "csv": csv_events,
    "xlsx": xlsx_events,
}
ENDINGS = {name: name for name in FORMATS} | {"ndjson": "jsonl", "tsv": "csv"}
TEXT_FORMATS = ("jsonl", "csv")


class EventFile(NamedTuple):
    """A file that was found: its size in bytes, and its marks (see `FileFacts`); or a row group of it, and its rows."""

    path: str
    size: int
    format: str
    marks: tuple[float, ...] = ()
    group: int | None = None
    rows: int = 0


def match_files(pattern: str, format: str | None = None) -> list[EventFile]:
    """List the files that match, in the order of their paths, as they are now."""
    if format is not None and format not in FORMATS:
        raise ValueError(f"--input_format must be one of {', '.join(FORMATS)}, got {format!r}")
    found = _found(pattern)
    for file in found:
        check_regular(file.path)
    files = [EventFile(file.path, file.size, format or format_of(file.path), marks=file.marks) for file in found]
    for each in files:
        if each.size == 0 and each.format not in TEXT_FORMATS:
            rule = f"it has 0 bytes, but even without events {each.format} has a header"
            raise InputFileError(f"{each.path} is empty: {rule}")
    return sorted(files)


def _found(pattern: str) -> list[FileFacts]:
    """Return what matches: a file of just that name, the files of a folder, or of a glob."""
    if os.path.exists(pattern):
        paths = [pattern]
        if os.path.isdir(pattern):
            paths = [os.path.join(pattern, name) for name in os.listdir(pattern) if not name.startswith((".", "_"))]
            paths = [path for path in sorted(paths) if not os.path.isdir(path)]
        if not paths:
            raise InputFileError(f"--input must have at least one file: there is none in the folder {pattern}")
        for path in paths:
            check_regular(path)
        return [facts_of(path) for path in paths]
    if any(sign in pattern for sign in GLOB) and os.path.basename(pattern) == pattern:
        pattern = os.path.join(os.curdir, pattern)  # Beam finds nothing for a bare glob
    check_store(pattern, "--input")
    try:
        remote = scheme_of(pattern) is not None and not any(sign in pattern for sign in GLOB)
        found = _of_store(pattern) if remote else matching(pattern) if pattern else []
    except (OSError, ValueError) as error:
        raise InputFileError(f"--input must be readable: cannot list {pattern} ({type(error).__name__})") from None
    if not found:
        raise InputFileError(f"--input must match at least one file: nothing matches {pattern}")
    return found


def _of_store(path: str) -> list[FileFacts]:
    """Return a file beyond this machine or, if it is none, the files of a folder."""
    if not path.endswith("/") and (found := matching(path)):
        return found
    if has_folders(path) and not exists(path):
        return []  # which it would refuse to list
    found = matching(f"{path.rstrip('/')}/*")
    return [file for file in found if not filesystems().split(file.path)[1].startswith((".", "_"))]


def check_unchanged(file: EventFile) -> None:
    """Refuse a file that has changed since it was found: the noise of the run is bound to what was in it then."""
    try:
        now = facts_of(file.path)
    except OSError:
        raise InputFileError(f"{file.path} must stay until it has been read") from None
    marks = zip(now.marks, file.marks, strict=False)  # a server of files has fewer than its disk
    if now.size != file.size or any(one != other for one, other in marks):
        raise InputFileError(f"{file.path} must not change while a run reads it")


def format_of(path: str) -> str:
    """Return the format that a path's ending stands for; text files may be compressed."""
    plain = path
    for ending in COMPRESSED:
        plain = plain.removesuffix(ending)
    format = ENDINGS.get(plain.rpartition(".")[2].lower())
    if format is None or (plain != path and format not in TEXT_FORMATS):
        known = ", ".join(f".{ending}" for ending in ENDINGS)
        raise InputFileError(f"--input must end in {known} (text also with .gz, .bz2 or .zst), got {path}")
    return format


def check_file(file: EventFile, fields: AnyFields) -> None:
    """Check that a file can be opened and that its schema or header, if it has one, has the fields."""
    schema = FORMATS[file.format].schema(file.path, fields.text)
    if schema is not None:
        fields.check(schema, file.path)


def parts_of(file: EventFile) -> list[EventFile]:
    """Cut a file that has row groups into these; another one, or a row group, is one part."""
    if file.format != "parquet" or file.group is not None:
        return [file]
    rows = parquet_events.row_groups(file.path)
    return [file._replace(group=group, rows=number) for group, number in enumerate(rows)]


def files_with(fields: AnyFields, pattern: str, format: str | None = None) -> list[EventFile]:
    """List the files that match, and look at them: all files of this machine, elsewhere the first one."""
    files, text = match_files(pattern, format), fields.text
    formats = {file.format for file in files}
    for name, given in {"delimiter": text.delimiter is not None, "quote": not text.quote}.items():
        if given and "csv" not in formats:
            raise ValueError(f"--{name} must be given with CSV only: no file of --input is CSV")
    if text.encoding != UTF_8 and formats.isdisjoint(TEXT_FORMATS):
        raise ValueError("--encoding must be given with CSV and JSON lines only: no file of --input is one")
    for number, file in enumerate(files):
        if number == 0 or scheme_of(file.path) is None:
            check_file(file, fields)
    return files


UNTIL = re.compile(r"_UNTIL_(\d{8}T\d{6}Z)")
KEPT_SECONDS = 3600
"""A file that is gone is remembered so long, in case a listing was incomplete."""


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
    def stamp(self) -> str:
        """Return what changes with the file."""
        return f"{self.size} {self.changed}"

    @property
    def until(self) -> int:
        """Return the time that it names, if it is a mark, in microseconds; else 0."""
        found = UNTIL.fullmatch(self.name)
        try:
            moment = datetime.strptime(found[1] if found else "", "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        except ValueError:
            return 0
        return int(moment.timestamp()) * MICROS


@dataclass
class FolderPolls:
    """What has been taken of a watched folder, and what was seen at the last poll; names are hashes.

    Each file is taken once, in the order in which they came, when two polls have found it with the same size and time
    of change. A mark, `_END` (no file will come any more) or `_UNTIL_20300101T120000Z` (no event before that time),
    counts when every file that came before it has been taken.

    Attributes:
        taken: name -> its stamp, and since when it is gone (seconds; 0 while it is there).
        waiting: name -> stamp, of what the last poll saw and did not take.
        until: the watermark that the marks allow, in microseconds.
        changed: number of files that have changed after they were taken.
    """

    taken: dict[str, tuple[str, int]] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    until: int = 0
    changed: int = 0

    def poll(self, listing: Sequence[Seen], now: int) -> tuple[list[Seen], int | None]:
        """Take what has come, by a listing that began at `now`, in microseconds since 1970.

        Returns:
            The files to read, in order, and until when everything that came has been taken; None at the end.
        """
        there = {_hashed(seen.name): seen for seen in listing}
        self._forget(there, now // MICROS)
        self.changed = sum(name in self.taken and self.taken[name][0] != seen.stamp for name, seen in there.items())
        new = {name: seen for name, seen in there.items() if name not in self.taken}
        ready = {name for name, seen in new.items() if self.waiting.get(name) == seen.stamp}
        files = {name for name, seen in new.items() if not seen.name.startswith("_")}
        held = min((new[name].came for name in files - ready), default=None)
        marks = {name for name in ready - files if held is None or new[name].came < held}
        took = (files & ready) | marks
        self.waiting = {name: seen.stamp for name, seen in new.items() if name not in took}
        self.taken |= {name: (new[name].stamp, 0) for name in took}
        self.until = max([self.until, *(new[name].until for name in marks)])
        found = sorted((new[name] for name in files & ready), key=lambda seen: (seen.came, seen.path))
        ended = any(new[name].name == END for name in marks)
        return found, None if ended else now if held is None else min(now, held)

    def _forget(self, there: dict[str, Seen], now: int) -> None:
        """Forget names that have been gone for long; a name that was gone and is back is a new file."""
        for name, (stamp, gone) in list(self.taken.items()):
            back = gone and name in there and there[name].stamp != stamp
            if back or (gone and name not in there and now - gone >= KEPT_SECONDS):
                del self.taken[name]
            else:
                self.taken[name] = (stamp, 0 if name in there else gone or now)

    def to_bytes(self) -> bytes:
        """Return the state, to be restored by `from_bytes`."""
        return json.dumps([self.taken, self.waiting, self.until], sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes | None) -> FolderPolls:
        """Restore the state; nothing has been taken if there is none."""
        return cls() if data is None else cls(*json.loads(data))


def _hashed(name: str) -> str:
    """Return what a name is remembered by."""
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def list_folder(pattern: str) -> list[Seen] | None:
    """List the files of a folder, or those that a glob matches beside the marks; None if that failed."""
    folder, glob = split_pattern(pattern)
    if scheme_of(folder) is None and not os.path.isdir(folder):
        return None
    try:
        listed = filesystems().match([join(folder, glob), join(folder, "_*")])
    except OSError:
        return None
    found = {file.path: file for each in listed for file in each.metadata_list}
    seen = [_seen(file.path, file.size_in_bytes, file.last_updated_in_seconds) for file in found.values()]
    return [each for each in seen if each is not None]


def check_watched(pattern: str, option: str = "--input") -> None:
    """Refuse a folder that does not exist, before a run that would watch it."""
    folder, _ = split_pattern(pattern, option)
    if scheme_of(folder) is None and not os.path.isdir(folder):
        raise InputFileError(f"{option} must be a folder that exists, to be watched: there is no folder {folder}")


def split_pattern(pattern: str, option: str = "--input") -> tuple[str, str]:
    """Split what is watched into a folder and a glob for the names in it."""
    if not any(sign in pattern for sign in GLOB):
        return pattern, "*"
    folder, _, glob = pattern.rpartition("/")
    if any(sign in folder for sign in GLOB):
        raise ValueError(f"{option} must be a folder, or a folder and a glob for its files, got {pattern}")
    return folder or os.curdir, glob


def _seen(path: str, size: int, changed: float) -> Seen | None:
    """Describe a file or a mark; None for other names, and if it has just gone.

    On a local disk a file came when it was last written, renamed or linked; elsewhere when it was last changed.
    """
    name = path.rpartition("/")[2]
    if name.startswith((".", "_")) and name != END and UNTIL.fullmatch(name) is None:
        return None
    if scheme_of(path) is None:
        try:
            status = os.stat(path)
        except OSError:
            return None
        return Seen(path, status.st_size, status.st_mtime_ns // 1000, status.st_ctime_ns // 1000)
    return Seen(path, size, int(changed * MICROS), int(changed * MICROS))
