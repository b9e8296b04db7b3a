"""Batches wait on disk: a file of this process holds their bytes, and a short reference travels in their place.

They are snapshots (see `mechanisms.snapshots`), which have a checksum of all that follows in their first bytes. So a
reference has a checksum of these alone, and what is read of the rest is checked where a snapshot is unpacked.

A disk that is full, fails or cannot be written to raises `SpillError`.

Processes of one machine that share the work of a run each write a file of their own, and read those of all others.
"""

from __future__ import annotations

import os
import struct
import tempfile
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

SMALLEST = 4096
"""Bytes from which on a batch is worth a reference."""

DISK = Path("/var/tmp")
_REFERENCE = b"PSREF1"
_FORM = struct.Struct(">6s4sHQQ")
"""A reference: its mark, a checksum, the number of its file, and where in that begin how many bytes."""

_HEAD = 64  # bytes of a snapshot, its own checksum among them


class SpillError(RuntimeError):
    """Batches cannot be written to disk, or read again."""


class SpillFile:
    """An append-only file: nothing is left of it when the last process that has opened it ends, however it does.

    Args:
        file: open for reading and writing, without a buffer; nobody else appends to it.
        folder: on whose disk it is.
        number: which of the files of a run it is.
    """

    def __init__(self, file: BinaryIO, folder: Path, number: int = 0) -> None:
        self.folder = folder
        self.number = number
        self.size = 0
        self._lock = threading.Lock()
        self._file = file

    def put(self, data: bytes) -> bytes:
        """Append a snapshot, and return a reference to it that sorts by a checksum of the content.

        So the order of batches hardly depends on when they came; nothing that is published depends on it at all.
        """
        with self._lock:
            start, self.size = self.size, self.size + len(data)
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._file.fileno(), memoryview(data)[written:], start + written)
        except OSError as error:
            raise self._failed("write", error) from None
        return _FORM.pack(_REFERENCE, _checksum(data), self.number, start, len(data))

    def get(self, reference: bytes) -> bytes:
        """Return what a reference stands for."""
        _, checksum, _, start, length = _FORM.unpack(reference)
        parts = []
        try:
            while length > 0 and (part := os.pread(self._file.fileno(), length, start)):
                parts.append(part)
                start, length = start + len(part), length - len(part)
        except OSError as error:
            raise self._failed("read", error) from None
        if length:
            raise SpillError(f"the file of waiting events in {self.folder} must be whole, {length} bytes are missing")
        data = b"".join(parts)
        if _checksum(data) != checksum:
            raise SpillError(f"waiting events in {self.folder} must be as they were written")
        return data

    def close(self) -> None:
        """Free the disk."""
        self._file.close()

    def _failed(self, action: str, error: OSError) -> SpillError:
        return SpillError(
            f"cannot {action} waiting events in {self.folder}: {error.strerror}; TMPDIR names another folder"
        )


def _checksum(data: bytes) -> bytes:
    """Return what tells a snapshot from others."""
    return zlib.crc32(data[:_HEAD]).to_bytes(4, "big")


class _Shared:
    """The files that all runs of this process read, and the one that it writes, while there are any."""

    files: Sequence[SpillFile] = ()
    own: SpillFile | None = None
    users = 0
    lock = threading.Lock()


@contextmanager
def files_for(processes: int) -> Iterator[tuple[str, ...]]:
    """Give the paths of new files, empty and for this user alone, for so many processes that share a run.

    They lie in a folder of their own, which is removed in the end: by then each process should have opened all of them
    (see `spilled`).
    """
    folder = folder_on_disk()
    with ExitStack() as stack:
        try:
            made = stack.enter_context(tempfile.TemporaryDirectory(prefix="privstream-", dir=folder))
            paths = tuple(os.path.join(made, str(number)) for number in range(processes))
            for path in paths:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            raise _unwritable(folder, error) from None
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
    with _Shared.lock:
        if _Shared.own is not None and paths:
            raise RuntimeError("a run with several processes must be the only run of its process")
        if _Shared.own is None:
            _Shared.files = _opened(paths)
            _Shared.own = _Shared.files[number]
        _Shared.users += 1
    try:
        yield
    finally:
        with _Shared.lock:
            _Shared.users -= 1
            if not _Shared.users:
                for file in _Shared.files:
                    file.close()
                _Shared.files, _Shared.own = (), None


def _opened(paths: Sequence[str]) -> tuple[SpillFile, ...]:
    folder = Path(paths[0]).parent.parent if paths else folder_on_disk()
    with ExitStack() as stack:
        try:
            files: list[Any] = [stack.enter_context(open(path, "r+b", buffering=0)) for path in paths]
            files = files or [stack.enter_context(tempfile.TemporaryFile(dir=folder, buffering=0))]
        except OSError as error:
            raise _unwritable(folder, error) from None
        stack.pop_all()
    return tuple(SpillFile(file, folder, number) for number, file in enumerate(files))


def folder_on_disk() -> Path:
    """Return the folder for what waits on disk: `/tmp` may be memory."""
    named = os.environ.get("TMPDIR")
    return Path(named) if named else DISK if DISK.is_dir() else Path(tempfile.gettempdir())


def put_away(data: bytes) -> bytes:
    """Return a reference to a large batch where batches wait on disk, else the batch itself."""
    return _Shared.own.put(data) if _Shared.own is not None and len(data) >= SMALLEST else data


def fetch(data: bytes) -> bytes:
    """Return the batch that `put_away` was given."""
    return _file_of(data).get(data) if data.startswith(_REFERENCE) else data


def size_of(data: bytes) -> int:
    """Return how many bytes `fetch` gives."""
    return int(_FORM.unpack(data)[4]) if data.startswith(_REFERENCE) else len(data)


def _file_of(reference: bytes) -> SpillFile:
    number: int = _FORM.unpack(reference)[2]
    if number >= len(_Shared.files):
        raise SpillError("batches that wait on disk must be read in the run that wrote them")
    return _Shared.files[number]


def keep(data: bytes) -> bytes:
    """Write a snapshot of any length to the disk where batches wait, and return a reference for `fetch`."""
    if _Shared.own is None:
        raise SpillError("data must be kept inside of a run whose batches wait on disk")
    return _Shared.own.put(data)


def _unwritable(folder: Path, error: OSError) -> SpillError:
    return SpillError(f"the folder for waiting events, {folder}, must be writable: {error.strerror}")
