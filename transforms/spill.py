"""Batches wait on disk: a file of this process holds their bytes, and a short reference travels in their place.

They are snapshots (see `mechanisms.mechanism`), which have a checksum of all that follows in their first bytes. So a
reference has a checksum of these alone, and what is read of the rest is checked where a snapshot is unpacked.

Processes of one machine that share the work of a run each write a file of their own, and read those of all others.
Nothing is left of a file when the last process that has opened it ends, however it does.
"""

from __future__ import annotations

import os
import struct
import tempfile
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SMALLEST = 4096
"""Bytes from which on a batch is worth a reference."""

REFERENCE = b"PSREF1"
_FORM = struct.Struct(">6sIHQQ")
"""A reference: its mark, a checksum, the number of its file, and where in that begin how many bytes."""

_HEAD = 64  # bytes of a snapshot, its own checksum among them


class SpillError(RuntimeError):
    """Batches cannot be written to disk, or read again: it is full, fails, or cannot be written to."""


class _Waiting:
    """The files that all runs of this process read, and which of them it writes, while there are any."""

    files: list[Any] = []  # noqa: RUF012
    own = 0
    size = 0  # of its own
    folder = Path()
    users = 0
    lock = threading.Lock()


@contextmanager
def files_for(processes: int) -> Iterator[tuple[str, ...]]:
    """Give the paths of new files, empty and for this user alone, for the processes that share a run.

    They lie in a folder of their own, which is removed in the end: by then each process should have opened all of them
    (see `spilled`).
    """
    folder = folder_on_disk()
    with _named("write", folder):
        made = tempfile.TemporaryDirectory(prefix="privstream-", dir=folder)
    with made:
        paths = tuple(os.path.join(made.name, str(number)) for number in range(processes))
        with _named("write", folder):
            for path in paths:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        yield paths


@contextmanager
def spilled(paths: Sequence[str] = (), number: int = 0) -> Iterator[None]:
    """Let batches of this process wait on disk: in the folder that TMPDIR names, else in /var/tmp, if there is one.

    Only for runners that handle all batches in this process, or in those that share the files, inside of this block.

    Args:
        paths: those of `files_for`, all of which are read; none for a run in this process alone, of which there may be
            several: its file has no name.
        number: of the file that this process writes; no other does.

    Raises:
        SpillError: a file cannot be opened.
        RuntimeError: a run has several processes, and batches of this one wait on disk already.
    """
    with _Waiting.lock:
        if _Waiting.users and paths:
            raise RuntimeError("a run with several processes must be the only run of its process")
        if not _Waiting.users:
            folder = Path(paths[0]).parent.parent if paths else folder_on_disk()
            with _named("write", folder):
                files: list[Any] = [open(path, "r+b", buffering=0) for path in paths]  # noqa: SIM115 - closed below
                files = files or [tempfile.TemporaryFile(dir=folder, buffering=0)]  # noqa: SIM115
            _Waiting.files, _Waiting.own, _Waiting.size, _Waiting.folder = files, number, 0, folder
        _Waiting.users += 1
    try:
        yield
    finally:
        with _Waiting.lock:
            _Waiting.users -= 1
            while not _Waiting.users and _Waiting.files:
                _Waiting.files.pop().close()


def folder_on_disk() -> Path:
    """Return the folder for what waits on disk: `/tmp` may be memory."""
    disk = Path("/var/tmp")
    return Path(os.environ.get("TMPDIR") or (disk if disk.is_dir() else tempfile.gettempdir()))


def waiting() -> bool:
    """Tell whether batches of this process wait on disk."""
    return _Waiting.users > 0


def keep(data: bytes) -> bytes:
    """Append data of any length to the file, and return a reference that sorts by a checksum of the content.

    So the order of batches hardly depends on when they came; nothing that is published depends on it at all.
    """
    if not _Waiting.users:
        raise SpillError("data must be kept inside of a run whose batches wait on disk")
    with _Waiting.lock:
        start, _Waiting.size = _Waiting.size, _Waiting.size + len(data)
    written, file = 0, _Waiting.files[_Waiting.own].fileno()
    with _named("write", _Waiting.folder):
        while written < len(data):
            written += os.pwrite(file, memoryview(data)[written:], start + written)
    return _FORM.pack(REFERENCE, zlib.crc32(data[:_HEAD]), _Waiting.own, start, len(data))


def fetch(data: bytes) -> bytes:
    """Return the data that `keep` was given."""
    _, checksum, number, start, length = _FORM.unpack(data)
    if number >= len(_Waiting.files):
        raise SpillError("batches that wait on disk must be read in the run that wrote them")
    found, file, end = b"", _Waiting.files[number].fileno(), start + length
    with _named("read", _Waiting.folder):
        while part := os.pread(file, end - start - len(found), start + len(found)):
            found = found + part if found else part
    if len(found) < length or zlib.crc32(found[:_HEAD]) != checksum:
        raise SpillError(f"waiting events in {_Waiting.folder} must be as they were written")
    return found


def size_of(data: bytes) -> int:
    """Return how many bytes `fetch` gives."""
    return int(_FORM.unpack(data)[4]) if data.startswith(REFERENCE) else len(data)


@contextmanager
def _named(action: str, folder: Path) -> Iterator[None]:
    """Say what the disk does not do, and which one it is."""
    try:
        yield
    except OSError as error:
        raise SpillError(
            f"cannot {action} waiting events in {folder}: {error.strerror}; TMPDIR names another folder"
        ) from None
