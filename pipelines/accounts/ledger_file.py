"""The lines of a ledger in a file of this machine."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class FileLines:
    """The lines of an open file that nobody else has meanwhile."""

    file: int
    path: str

    def read(self) -> list[bytes]:
        """Return all lines."""
        with open(os.dup(self.file), "rb") as stream:
            stream.seek(0)
            return stream.readlines()

    def append(self, line: bytes) -> None:
        """Write a line to the disk, all of it or nothing.

        Raises:
            ValueError: the disk is full, or fails.
        """
        length = os.fstat(self.file).st_size
        try:
            if os.write(self.file, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self.file)
            if not length:
                self._keep_name()
        except OSError as error:
            os.ftruncate(self.file, length)
            rule = "ledger must be a file that can be written"
            raise ValueError(f"{rule}, got {self.path} ({error.strerror}); nothing was recorded") from None

    def _keep_name(self) -> None:
        """Write the name of a new file to the disk."""
        folder = os.open(os.path.dirname(os.path.realpath(self.path)), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@dataclass(frozen=True)
class LedgerFile:
    """A file of lines, made by the first one, readable by its owner alone."""

    path: str

    def exists(self) -> bool:
        """Tell whether there is such a file."""
        return os.path.exists(self.path)

    @contextmanager
    def opened(self, *, write: bool) -> Iterator[FileLines]:
        """Open the file while nobody else writes, or reads what is going to change.

        Raises:
            ValueError: it cannot be read, or written.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND if write else os.O_RDONLY
        if self.exists() and not (os.path.isfile(self.path) or os.path.isdir(self.path)):
            raise ValueError(f"ledger must be a file that keeps its lines, got {self.path}")  # not a device or a pipe
        try:
            file = os.open(self.path, flags | os.O_CLOEXEC, 0o600)
        except OSError as error:
            word = "written" if write else "read"
            raise ValueError(f"ledger must be a file that can be {word}, got {self.path} ({error.strerror})") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX if write else fcntl.LOCK_SH)
            yield FileLines(file, self.path)
        except OSError as error:
            raise ValueError(f"ledger must be a file that can be used, got {self.path} ({error.strerror})") from None
        finally:
            os.close(file)
