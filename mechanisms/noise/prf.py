"""The keyed pseudo-random function behind every draw: AES over arrays of labels, keys by BLAKE2b along a path."""

import hashlib
from numbers import Integral

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

Words = NDArray[np.uint64]

BLOCK_BYTES = 16
_FIRST_BLOCK_DATA = 15  # byte 15 of the first block is the length
_LONGEST_SHORT_STRING = 63  # four blocks
_TWO_WORDS = np.dtype("<u8")
# _KEEP[m] keeps the first m bytes of a little-endian word, for m = 0..8.
_KEEP = np.array([(1 << 8 * m) - 1 for m in range(9)], dtype=np.uint64)


class Prf:
    """A node in a tree of independent keyed functions; it has its own key and nothing of its parents."""

    __slots__ = ("_encryptors", "_key")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._encryptors: dict[str, CipherContext] = {}

    @classmethod
    def from_secret(cls, secret: bytes, run_id: str) -> "Prf":
        """Make the root for a secret of any length and a public run id."""
        if len(secret) > hashlib.blake2b.MAX_KEY_SIZE:
            secret = hashlib.blake2b(secret, person=b"long secret").digest()
        return cls(_keyed_hash(secret, b"root", run_id.encode("utf-8", "surrogatepass")))

    def child(self, *path: str | int | bytes) -> "Prf":
        """Return the node at `path` below this one; each part costs one hash."""
        key = self._key
        for part in path:
            key = _keyed_hash(key, b"path", _encode(part))
        return Prf(key)

    def encrypt(self, purpose: str, blocks: Words) -> Words:
        """Return the image (n, 2) of 128-bit blocks (n, 2) under the permutation named `purpose`."""
        count = len(blocks)
        if count == 0:
            return np.empty((0, 2), dtype=np.uint64)
        # Threads must not share a context: one that is in use is not in the table, which gets it back unchanged.
        encryptor = self._encryptors.pop(purpose, None)
        if encryptor is None:
            key = _keyed_hash(self._key, b"key", purpose.encode())
            # ECB is the bare block permutation: labels are distinct blocks, and this is no encryption of messages.
            encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
        target = np.empty(BLOCK_BYTES * (count + 1) - 1, dtype=np.uint8)  # it may ask for 15 bytes more than it writes
        encryptor.update_into(np.ascontiguousarray(blocks, dtype=_TWO_WORDS).data.cast("B"), target.data)
        self._encryptors[purpose] = encryptor
        return target[: BLOCK_BYTES * count].view(_TWO_WORDS).reshape(count, 2).astype(np.uint64, copy=False)

    def hash_bytes(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Words:
        """Return 64-bit hashes of the byte strings data[offsets[i]:offsets[i + 1]]."""
        if len(offsets) <= 1:
            return np.empty(0, dtype=np.uint64)
        start, lengths = offsets[:-1], np.diff(offsets)
        hashes = self._hash_short(data, start, np.minimum(lengths, _LONGEST_SHORT_STRING))
        long_rows = np.flatnonzero(lengths > _LONGEST_SHORT_STRING)
        if len(long_rows):
            key = _keyed_hash(self._key, b"key", b"long strings")
            view = np.ascontiguousarray(data).data
            for row in long_rows.tolist():
                digest = hashlib.blake2b(view[offsets[row] : offsets[row + 1]], key=key, digest_size=8).digest()
                hashes[row] = int.from_bytes(digest, "little")
        return hashes

    def _hash_short(self, data: NDArray[np.uint8], start: NDArray[np.int64], lengths: NDArray[np.int64]) -> Words:
        """CBC-MAC over zero-padded blocks whose first one is the length, so that no message is another's prefix."""
        base = int(start[0])
        used = data[base : int(start[-1] + lengths[-1])]
        padded = np.concatenate([used, np.zeros(2 * BLOCK_BYTES, dtype=np.uint8)])
        # Every byte position read as a little-endian word, without a copy.
        windows: Words = np.ndarray(len(padded) - 7, dtype=_TWO_WORDS, buffer=padded.data, strides=(1,))
        position = start - base
        blocks = _load(windows, position, np.minimum(lengths, _FIRST_BLOCK_DATA))
        blocks[:, 1] |= lengths.astype(np.uint64) << np.uint64(56)
        state = self.encrypt("short strings", blocks)
        longest = int(lengths.max())
        for done in range(_FIRST_BLOCK_DATA, longest, BLOCK_BYTES):
            rows = np.flatnonzero(lengths > done)
            blocks = _load(windows, position[rows] + done, np.minimum(lengths[rows] - done, BLOCK_BYTES))
            state[rows] = self.encrypt("short strings", blocks ^ state[rows])
        return state[:, 0].copy()

    def __repr__(self) -> str:
        return "Prf(<key>)"

    def __reduce__(self) -> tuple[type["Prf"], tuple[bytes]]:
        return Prf, (self._key,)


def _keyed_hash(key: bytes, purpose: bytes, message: bytes) -> bytes:
    return hashlib.blake2b(message, key=key, person=purpose, digest_size=32).digest()


def _encode(part: str | int | bytes) -> bytes:
    """Encode one part of a path injectively: a tag for the type, then the value."""
    if isinstance(part, str):
        return b"s" + part.encode("utf-8", "surrogatepass")
    if isinstance(part, bytes):
        return b"b" + part
    if isinstance(part, Integral) and not isinstance(part, bool):
        return b"i" + hex(part).encode()
    raise TypeError(f"path must consist of str, int or bytes, got {type(part).__name__}")


def _load(windows: Words, position: NDArray[np.int64], count: NDArray[np.int64]) -> Words:
    """Return blocks (n, 2) of the first `count` <= 16 bytes at each position, then zeros."""
    blocks = np.zeros((len(position), 2), dtype=np.uint64)
    blocks[:, 0] = windows[position] & _KEEP[np.minimum(count, 8)]
    if count.max(initial=0) > 8:  # short identifiers leave it empty
        blocks[:, 1] = windows[position + 8] & _KEEP[np.maximum(count - 8, 0)]
    return blocks
