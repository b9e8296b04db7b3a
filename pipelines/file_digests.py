"""Digests of the bytes of local files, which a thread takes while the command loads its libraries. Imports no Beam.

A digest that is not of the bytes that a run reads would give two data sets the same noise. So one that was taken early
counts once, for a file that has stayed as it was, on a disk whose times are set by this machine alone.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from typing import Any

from privstream.pipelines.stores import FileState

DIGEST_BYTES = 16
AT_ONCE = 1 << 22
"""Bytes: each time a thread has read or digested so many, it waits for others to let Python go on."""

SETTLED_NANOSECONDS = 3 * 10**9
"""A file that was changed less than this before it was read may change again at what it calls the same time: FAT counts
in steps of two seconds.
"""


_taken: dict[FileState, str] = {}
_threads: list[Thread] = []


def take_early(paths: Sequence[str]) -> None:
    """Begin to take the digests of local files, in this order."""
    thread = Thread(target=_take, args=(paths,), daemon=True)
    thread.start()
    _threads.append(thread)


def _take(paths: Sequence[str]) -> None:
    """Take digests of files that stay as they are meanwhile; others, and those that cannot be read, are passed over."""
    for path in paths:
        with suppress(OSError), open(path, "rb", buffering=0) as stream:
            before = FileState.of(os.fstat(stream.fileno()))
            settled = time.time_ns() - max(before.modified, before.changed) > SETTLED_NANOSECONDS
            digest = digest_of(stream) if settled and before.on_disk else None
            if digest is not None and FileState.of(os.fstat(stream.fileno())) == before:
                _taken[before] = digest


def local_digest(path: str) -> str:
    """Return the digest of a local file: one that was taken early, once, if the file is as it was then.

    Raises:
        OSError: it cannot be read.
    """
    while _threads:
        _threads[-1].join()
        _threads.pop()
    with open(path, "rb", buffering=0) as stream:
        early = _taken.pop(FileState.of(os.fstat(stream.fileno())), None)
        return digest_of(stream) if early is None else early


def digest_of(stream: Any) -> str:
    """Return the digest of what is left of a file, which can be read into a buffer."""
    found, room = hashlib.blake2b(digest_size=DIGEST_BYTES), memoryview(bytearray(AT_ONCE))
    while size := stream.readinto(room):
        found.update(room[:size])
    return found.hexdigest()
