"""The files that match a pattern: what they are, whether they stay so, and the parts that they are read in."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import NamedTuple, cast

from privstream.pipelines.sources import avro_events, csv_events, json_events, parquet_events, xlsx_events
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
    matching,
    scheme_of,
)

FORMATS = {
    "avro": cast(EventFormat, avro_events),
    "parquet": cast(EventFormat, parquet_events),
    "jsonl": cast(EventFormat, json_events),
    "csv": cast(EventFormat, csv_events),
    "xlsx": cast(EventFormat, xlsx_events),
}
ENDINGS = {
    **{"avro": "avro", "parquet": "parquet", "jsonl": "jsonl", "ndjson": "jsonl"},
    **{"csv": "csv", "tsv": "csv", "xlsx": "xlsx"},
}
TEXT_FORMATS = ("jsonl", "csv")


class EventFile(NamedTuple):
    """A file that matched: its path, its size in bytes, its format, and when it came, if it was watched for.

    `marks` show whether it has changed since: see `FileFacts`.
    """

    path: str
    size: int
    format: str
    came: int = 0
    marks: tuple[float, ...] = ()


class FilePart(NamedTuple):
    """A piece of a file for one worker; how many bytes the file had when it was found, and its marks.

    `least` is the time, in microseconds, before which the file states that the piece has no event, if it states one;
    such a piece has so many `rows`.
    """

    path: str
    format: str
    start: int
    end: int
    size: int
    marks: tuple[float, ...] = ()
    least: int | None = None
    rows: int = 0


def match_files(pattern: str, format: str | None = None) -> list[EventFile]:
    """List the files that match, in the order of their paths, as they are now, so that a later change can be seen.

    Raises:
        InputFileError: none matches, a format is unknown, one is no file, or a file that needs a header is empty.
    """
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
    """Return what matches: a file whatever signs of a pattern are in its name, the files of a folder, or of a glob."""
    if os.path.isdir(pattern):
        paths = [os.path.join(pattern, name) for name in os.listdir(pattern) if not name.startswith((".", "_"))]
        paths = [path for path in sorted(paths) if not os.path.isdir(path)]
        if not paths:
            raise InputFileError(f"--input must have at least one file: there is none in the folder {pattern}")
        for path in paths:
            check_regular(path)
        return [facts_of(path) for path in paths]
    if os.path.exists(pattern):
        check_regular(pattern)
        return [facts_of(pattern)]
    if any(sign in pattern for sign in GLOB) and os.path.basename(pattern) == pattern:
        pattern = os.path.join(os.curdir, pattern)  # Beam finds nothing for a bare glob
    check_store(pattern, "--input")
    remote = scheme_of(pattern) is not None and not any(sign in pattern for sign in GLOB)
    found = _of_store(pattern) if remote else _matching(pattern)
    if not found:
        raise InputFileError(f"--input must match at least one file: nothing matches {pattern}")
    return found


def _matching(pattern: str) -> list[FileFacts]:
    """Return what a path or a glob matches.

    Raises:
        InputFileError: it cannot be listed.
    """
    try:
        return matching(pattern) if pattern else []
    except (OSError, ValueError) as error:
        raise InputFileError(f"--input must be readable: cannot list {pattern} ({type(error).__name__})") from None


def _of_store(path: str) -> list[FileFacts]:
    """Return a file that is not of this machine or, if it is none, the files of a folder, as of a local one."""
    if not path.endswith("/") and (found := _matching(path)):
        return found
    if has_folders(path) and not exists(path):
        return []  # which it would refuse to list
    found = _matching(f"{path.rstrip('/')}/*")
    return [file for file in found if not filesystems().split(file.path)[1].startswith((".", "_"))]


def check_unchanged(file: EventFile | FilePart) -> None:
    """Refuse a file that has changed since it was found: the noise of the run is bound to what was in it then.

    Raises:
        InputFileError: it has changed, or is gone.
    """
    try:
        now = facts_of(file.path)
    except OSError:
        raise InputFileError(f"{file.path} must stay until it has been read") from None
    known = len(now.marks) if now.marks[1:2] == file.marks[1:2] else 1  # a copy on another machine has other ones
    if (now.size, now.marks[:known]) != (file.size, file.marks[:known]):
        raise InputFileError(f"{file.path} must not change while a run reads it; start the run again")


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


def check_file(file: EventFile | FilePart, fields: AnyFields) -> None:
    """Check that a file can be opened and that its schema or header, if it has one, has the fields.

    Raises:
        InputFileError, ValueError, TypeError: naming the file, the option or the field.
    """
    schema = FORMATS[file.format].schema(file.path, fields.text)
    if schema is not None:
        fields.check(schema, file.path)


def parts_of(file: EventFile, fields: AnyFields | None = None) -> Iterator[FilePart]:
    """Cut a file into parts; with `fields`, with the least time of each if the file states it.

    Raises:
        InputFileError: the file has changed since it was found, or cannot be read.
    """
    if fields is not None:
        check_unchanged(file)
    if file.format == "parquet":
        for number, (rows, least) in enumerate(parquet_events.row_groups(file.path, fields)):
            yield FilePart(file.path, file.format, number, number + 1, file.size, file.marks, least, rows)
    else:
        yield FilePart(file.path, file.format, 0, file.size, file.size, file.marks)


def files_with(fields: AnyFields, pattern: str, format: str | None = None) -> list[EventFile]:
    """List the files that match, and look at them: all files of this machine, elsewhere the first one.

    Raises:
        InputFileError, ValueError, TypeError: naming the option, the file or the field.
    """
    files = match_files(pattern, format)
    _check_text_options(fields, {file.format for file in files})
    for number, file in enumerate(files):
        if number == 0 or scheme_of(file.path) is None:
            check_file(file, fields)
    return files


def _check_text_options(fields: AnyFields, formats: Collection[str]) -> None:
    """Refuse options about text where no file is text.

    Raises:
        ValueError: naming the option.
    """
    for name, given in {"delimiter": fields.delimiter is not None, "quote": not fields.text.quote}.items():
        if given and "csv" not in formats:
            raise ValueError(f"--{name} must be given with CSV only: no file of --input is CSV")
    if fields.text.encoding != UTF_8 and not set(formats) & set(TEXT_FORMATS):
        raise ValueError("--encoding must be given with CSV and JSON lines only: no file of --input is one")
