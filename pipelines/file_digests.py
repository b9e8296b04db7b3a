"""Digests of the bytes of files. Imports no Beam."""

from __future__ import annotations

import hashlib
from typing import Any

DIGEST_BYTES = 16
AT_ONCE = 1 << 22


def local_digest(path: str) -> str:
    """Return the digest of a local file.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb", buffering=0) as stream:
        return digest_of(stream)


def digest_of(stream: Any) -> str:
    """Return the digest of what is left of a file, which can be read into a buffer."""
    found, room = hashlib.blake2b(digest_size=DIGEST_BYTES), memoryview(bytearray(AT_ONCE))
    while size := stream.readinto(room):
        found.update(room[:size])
    return found.hexdigest()
