"""Which files there are: those that match a pattern, whether they stay as they are, and what is new in a folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from privstream.pipelines import stores
from privstream.pipelines.locations import END
from privstream.pipelines.sources import avro_events, csv_events, parquet_events, text_lines, xlsx_events
from privstream.pipelines.sources.event_files import COMPRESSED, UTF_8, InputFileError, check_regular
from privstream.pipelines.sources.fields import AnyFields
from privstream.pipelines.stores import FileFacts, facts_of, filesystems, is_glob, join, matching, scheme_of
from privstream.transforms.timing.steps import MICROS

FORMATS = {"avro": avro_events, "parquet": parquet_events, "jsonl": text_lines, "csv": csv_events, "xlsx": xlsx_events}
"""Each reads a `schema`, None if records say it or the file is empty; does a `check` for damage; and can `read`."""
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
    files = []
    for found in _found(pattern):
        check_regular(found.path)
        file = EventFile(found.path, found.size, format or format_of(found.path), marks=found.marks)
        if file.size == 0 and file.format not in TEXT_FORMATS:
            rule = f"it has 0 bytes, but even without events {file.format} has a header"
            raise InputFileError(f"{file.path} is empty: {rule}")
        files.append(file)
    return sorted(files)


def _found(pattern: str) -> list[FileFacts]:
    """Return what matches: a file of just that name, the files of a folder, or of a glob."""
    if os.path.isdir(pattern):
        paths = [os.path.join(pattern, name) for name in sorted(os.listdir(pattern)) if not name.startswith((".", "_"))]
        paths = [path for path in paths if not os.path.isdir(path)]
        if not paths:
            raise InputFileError(f"--input must have at least one file: there is none in the folder {pattern}")
    else:
        paths = [pattern] if os.path.exists(pattern) else []
    if paths:
        for path in paths:
            check_regular(path)  # before it is asked about
        return [facts_of(path) for path in paths]
    if is_glob(pattern) and os.path.basename(pattern) == pattern:
        pattern = os.path.join(os.curdir, pattern)  # Beam finds nothing for a bare glob
    stores.check_store(pattern, "--input")
    try:
        remote = scheme_of(pattern) is not None and not is_glob(pattern)
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
    if stores.has_folders(path) and not stores.exists(path):
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
    given = {"delimiter": text.delimiter is not None, "quote": not text.quote, "encoding": text.encoding != UTF_8}
    for name in (name for name, is_given in given.items() if is_given):
        known = TEXT_FORMATS if name == "encoding" else ("csv",)
        if not any(file.format in known for file in files):
            raise ValueError(f"--{name} must be given with {' and '.join(known)} only: no file of --input is one")
    for number, file in enumerate(files):
        if number == 0 or scheme_of(file.path) is None:
            check_file(file, fields)
    return files


UNTIL = re.compile(r"_UNTIL_(\d{8}T\d{6}Z)")
KEPT_SECONDS = 3600  # a file that is gone is remembered so long, in case a listing was incomplete


class Seen(NamedTuple):
    """A file in a listing: its path, bytes, time of change, and when it came, both in microseconds since 1970."""

    path: str
    size: int
    changed: int
    came: int

    @property
    def name(self) -> str:
        """The name without the folder."""
        return self.path.rpartition("/")[2]

    @property
    def is_mark(self) -> bool:
        """Whether its name alone says something."""
        return self.name.startswith("_")

    @property
    def stamp(self) -> str:
        """What changes with the file."""
        return f"{self.size} {self.changed}"

    @property
    def until(self) -> int:
        """The time that it names, if it is a mark, in microseconds; else 0."""
        with suppress(ValueError):
            if found := UNTIL.fullmatch(self.name):
                return int(datetime.strptime(found[1], "%Y%m%dT%H%M%S%z").timestamp()) * MICROS
        return 0


@dataclass
class FolderPolls:
    """What has been taken of a watched folder, and what was seen at the last poll.

    Each file is taken once, in the order in which they came, when two polls have found it with the same size and time
    of change. A mark, `_END` (no file will come any more) or `_UNTIL_20300101T120000Z` (no event before that time),
    counts when every file that came before it has been taken.
    """

    taken: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Name -> its stamp, and since when it is gone (seconds; 0 while it is there)."""

    waiting: dict[str, str] = field(default_factory=dict)  # name -> stamp, of what the last poll saw and did not take
    until: int = 0  # the watermark that the marks allow, in microseconds
    changed: int = 0  # number of files that have changed after they were taken

    def poll(self, listing: Sequence[Seen], now: int) -> tuple[list[Seen], int | None]:
        """Take what has come, by a listing that began at `now`, in microseconds since 1970.

        Returns:
            The files to read, in order, and until when everything that came has been taken; None at the end.
        """
        there = {seen.name: seen for seen in listing}
        self._forget(there, now // MICROS)
        self.changed = sum(name in self.taken and self.taken[name][0] != seen.stamp for name, seen in there.items())
        new = [seen for name, seen in there.items() if name not in self.taken]
        waits = [seen.came for seen in new if self.waiting.get(seen.name) != seen.stamp and not seen.is_mark]
        held = min(waits, default=None)
        ready = [seen for seen in new if self.waiting.get(seen.name) == seen.stamp]
        files = [seen for seen in ready if not seen.is_mark]
        marks = [seen for seen in ready if seen.is_mark and (held is None or seen.came < held)]
        took = {seen.name: (seen.stamp, 0) for seen in (*files, *marks)}
        self.waiting = {seen.name: seen.stamp for seen in new if seen.name not in took}
        self.taken |= took
        self.until = max([self.until, *(mark.until for mark in marks)])
        ended = any(mark.name == END for mark in marks)
        reached = None if ended else now if held is None else min(now, held)
        return sorted(files, key=lambda seen: (seen.came, seen.path)), reached

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
    return [seen for file in found.values() if (seen := _seen(file)) is not None]


def split_pattern(pattern: str, option: str = "--input") -> tuple[str, str]:
    """Split what is watched into a folder and a glob for the names in it."""
    if not is_glob(pattern):
        return pattern, "*"
    folder, _, glob = pattern.rpartition("/")
    if is_glob(folder):
        raise ValueError(f"{option} must be a folder, or a folder and a glob for its files, got {pattern}")
    return folder or os.curdir, glob


def _seen(file: Any) -> Seen | None:
    """Describe a file or a mark; None for other names, and if it has just gone.

    On a local disk a file came when it was last written, renamed or linked; elsewhere when it was last changed.
    """
    name = file.path.rpartition("/")[2]
    if name.startswith((".", "_")) and name != END and UNTIL.fullmatch(name) is None:
        return None
    if scheme_of(file.path) is not None:
        changed = int(file.last_updated_in_seconds * MICROS)
        return Seen(file.path, file.size_in_bytes, changed, changed)
    try:
        status = os.stat(file.path)
    except OSError:
        return None
    return Seen(file.path, status.st_size, status.st_mtime_ns // 1000, status.st_ctime_ns // 1000)
