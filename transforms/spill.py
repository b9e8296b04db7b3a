"""Batches wait on disk: a file of this process holds their bytes, and a short reference travels in their place."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SMALLEST = 4096
"""Bytes from which on a batch is worth a reference."""

DISK = Path("/var/tmp")
_REFERENCE = b"PSREF1"
_DIGEST_BYTES = 16
_WORD = 8


class SpillError(RuntimeError):
    """Batches cannot be written to disk, or read again."""


class SpillFile:
    """An append-only file without a name: nobody else can open it, and it is gone with the process, however that ends.

    Args:
        folder: on whose disk it is.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.size = 0
        self._lock = threading.Lock()
        try:
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - open as long as this object
        except OSError as error:
            raise SpillError(f"the folder for waiting events, {folder}, must be writable: {error.strerror}") from None

    def put(self, data: bytes) -> bytes:
        """Append `data`, and return a reference to it that sorts by content.

        Raises:
            SpillError: the disk is full, or fails.
        """
        with self._lock:
            start, self.size = self.size, self.size + len(data)
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._file.fileno(), memoryview(data)[written:], start + written)
        except OSError as error:
            raise SpillError(_failed("write", self.folder, error)) from None
        content = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
        return _REFERENCE + content + start.to_bytes(_WORD, "big") + len(data).to_bytes(_WORD, "big")

    def get(self, reference: bytes) -> bytes:
        """Return what a reference stands for.

        Raises:
            SpillError: the disk fails.
        """
        place = len(_REFERENCE) + _DIGEST_BYTES
        start, length = (int.from_bytes(reference[at : at + _WORD], "big") for at in (place, place + _WORD))
        parts = []
        try:
            while length > 0 and (part := os.pread(self._file.fileno(), length, start)):
                parts.append(part)
                start, length = start + len(part), length - len(part)
        except OSError as error:
            raise SpillError(_failed("read", self.folder, error)) from None
        if length:
            raise SpillError(f"the file of waiting events in {self.folder} must be whole, {length} bytes are missing")
        return b"".join(parts)

    def close(self) -> None:
        """Free the disk."""
        self._file.close()


class _Shared:
    """The file that all runs of this process share, while there are any."""

    file: SpillFile | None = None
    users = 0
    lock = threading.Lock()


@contextmanager
def spilled() -> Iterator[None]:
    """Let batches of this process wait on disk: in the folder that TMPDIR names, else in /var/tmp, if there is one.

    Only for runners that handle all batches in this process, and inside of this block.

    Raises:
        SpillError: the folder cannot be written to.
    """
    with _Shared.lock:
        _Shared.file = _Shared.file or SpillFile(_folder())
        _Shared.users += 1
    try:
        yield
    finally:
        with _Shared.lock:
            _Shared.users -= 1
            if not _Shared.users:
                _Shared.file.close()
                _Shared.file = None


def _folder() -> Path:
    named = os.environ.get("TMPDIR")
    return Path(named) if named else DISK if DISK.is_dir() else Path(tempfile.gettempdir())


def put_away(data: bytes) -> bytes:
    """Return a reference to a large batch where batches wait on disk, else the batch itself."""
    return _Shared.file.put(data) if _Shared.file is not None and len(data) >= SMALLEST else data


def fetch(data: bytes) -> bytes:
    """Return the batch that `put_away` was given."""
    if not data.startswith(_REFERENCE):
        return data
    if _Shared.file is None:
        raise SpillError("batches that wait on disk must be read in the run that wrote them")
    return _Shared.file.get(data)


def _failed(action: str, folder: Path, error: OSError) -> str:
    return f"cannot {action} waiting events in {folder}: {error.strerror}; TMPDIR names another folder"
