"""Noise sources: stateless streams of random bits addressed by label, so that a replay draws the same noise.

*Privacy.* Guarantees hold against adversaries that cannot tell AES and BLAKE2b from random functions (computational
differential privacy); bounds stand in docs/proofs/noise.md. The key is a secret like a password: whoever has it can
subtract the noise. Use one derived source for one purpose: two draws with one source and one label are equal.
"""

import hashlib
import os
import secrets
import stat
from numbers import Integral
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from privstream.mechanisms import checks

MINIMUM_KEY_BYTES = 16
MAXIMUM_KEY_BYTES = 1 << 10
MINIMUM_DISTINCT_BYTES = 8
"""Fewer are seen once in 10^11 keys of 16 random bytes, and once in 10^7 of 32 hexadecimal digits."""

Words = NDArray[np.uint64]
Labels = Words | int
Path = tuple[str | int | bytes, ...]
Origin = tuple[str, str, str, str]  # of a key: constructor, where it reads the key, run id, fingerprint

_BLOCK = 16  # bytes
_FIRST_BLOCK = 15  # bytes of a string in its first block, whose last byte is the length
_LONGEST_SHORT = 63  # bytes of a string of four blocks
_WORD = np.dtype("<u8")
_KEEP = np.array([(1 << 8 * m) - 1 for m in range(9)], np.uint64)  # [m]: the first m bytes of a little-endian word


@runtime_checkable
class NoiseSource(Protocol):
    """What mechanisms draw from. Labels are uint64 (n, 2), uint64 (n,) with low half zero, or n for 0..n-1."""

    def derive(self, *path: str | int | bytes) -> "NoiseSource":
        """Return the independent source for `path`."""
        ...

    def words(self, labels: Labels, lanes: int = 1) -> Words:
        """Return 128 uniform bits (high word, low word) per label and lane, uint64 (n, lanes, 2)."""
        ...

    def bind(self, labels: Labels, values: NDArray[np.int64]) -> Words:
        """Return labels, uint64 (n, 2), that depend on label and value."""
        ...

    def hash_bytes(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Words:
        """Return keyed 64-bit hashes, uint64 (n,), of n byte strings in Arrow layout."""
        ...


def check_noise(noise: object) -> None:
    """Refuse what is no noise source."""
    if isinstance(noise, type) or not isinstance(noise, NoiseSource):
        raise TypeError(f"noise must be a NoiseSource, such as KeyedNoise, got {type(noise).__name__}")


class PrfNoise:
    """A noise source over AES and BLAKE2b, with a key of its own; made by `KeyedNoise`, `SeededNoise` or `derive`.

    A pickle of one that is derived from a key in a file or a variable says where that key is, and the path: no key.
    """

    def __init__(self, key: bytes, origin: tuple[Origin, Path] | None = None) -> None:
        self._key, self._origin = key, origin

    def derive(self, *path: str | int | bytes) -> "PrfNoise":
        """Return the independent source for `path`; `derive(a, b)` is `derive(a).derive(b)`.

        Parts of different type or content always give different sources. The result cannot be led back to this one.
        """
        if not path:
            raise ValueError("path must have at least one part, got none")
        key = self._key
        for part in path:
            if isinstance(part, str):
                message = b"s" + part.encode("utf-8", "surrogatepass")
            elif isinstance(part, bytes):
                message = b"b" + part
            elif isinstance(part, Integral) and not isinstance(part, bool):
                message = b"i" + hex(part).encode()
            else:
                raise TypeError(f"path must consist of str, int or bytes, got {type(part).__name__}")
            key = _keyed_hash(key, b"path", message)
        return PrfNoise(key, self._origin and (self._origin[0], self._origin[1] + path))

    def words(self, labels: Labels, lanes: int = 1) -> Words:
        """Return 128 uniform bits per label and lane, uint64 (n, lanes, 2), the high word before the low word.

        The bits of a label depend on nothing but the source, the label and the lane.
        """
        return np.stack([self._encrypt(f"lane {lane}", labels) for lane in range(lanes)], axis=1)

    def bind(self, labels: Labels, values: NDArray[np.int64]) -> Words:
        """Return labels that depend on `labels` and on the int64 `values` (n,), for releases of numbers.

        With the true value in the label a repeated release of the same value repeats the same answer, and a release of
        another value under the same label draws fresh noise instead of exposing the exact difference.
        """
        state = self._encrypt("bind", labels)
        if values.dtype != np.int64 or values.shape != (len(state),):
            raise TypeError(f"values must be int64 of shape ({len(state)},), got {values.dtype} of {values.shape}")
        state[:, 1] ^= np.ascontiguousarray(values).view(np.uint64)
        return self._encrypt("bind", state)

    def hash_bytes(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Words:
        """Return keyed 64-bit hashes of byte strings, the same for a string whatever stands around it.

        `data`, uint8, has all strings one after the other; string i is data[offsets[i]:offsets[i + 1]], int64 (n + 1).
        """
        if len(offsets) <= 1:
            return np.empty(0, np.uint64)
        start, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
        # Every byte position read as a little-endian word, without a copy.
        padded = np.concatenate([data[offsets[0] : offsets[-1]], np.zeros(2 * _BLOCK, np.uint8)])
        windows: Words = np.ndarray(len(padded) - 7, dtype=_WORD, buffer=padded.data, strides=(1,))
        # CBC-MAC over zero-padded blocks whose first one has the length, so that no message is another's prefix.
        short, state = np.minimum(lengths, _LONGEST_SHORT), np.zeros((len(start), 2), np.uint64)
        for done in (0, *range(_FIRST_BLOCK, int(short.max()), _BLOCK)):
            rows = np.flatnonzero(short > done) if done else slice(None)
            place, size = start[rows] + done, np.minimum(short[rows] - done, _BLOCK if done else _FIRST_BLOCK)
            blocks = state[rows]
            blocks[:, 0] ^= windows[place] & _KEEP[np.minimum(size, 8)]
            if size.max() > 8:  # short identifiers leave it empty
                blocks[:, 1] ^= windows[place + 8] & _KEEP[np.maximum(size - 8, 0)]
            if not done:
                blocks[:, 1] |= short.astype(np.uint64) << np.uint64(56)
            state[rows] = self._encrypt("short strings", blocks)
        hashes, key = state[:, 0].copy(), _keyed_hash(self._key, b"key", b"long strings")
        for row in np.flatnonzero(lengths > _LONGEST_SHORT).tolist():
            string = padded[start[row] : start[row] + lengths[row]].data
            hashes[row] = int.from_bytes(hashlib.blake2b(string, key=key, digest_size=8).digest(), "little")
        return hashes

    def _encrypt(self, purpose: str, labels: Labels) -> Words:
        """Return the image (n, 2) of labels, as 128-bit blocks, under the permutation named `purpose`."""
        if not isinstance(labels, np.ndarray):
            labels = np.arange(checks.integer("labels", labels, minimum=0), dtype=np.uint64)
        if labels.dtype != np.uint64:
            raise TypeError(f"labels must be uint64, got {labels.dtype}")
        if labels.ndim == 1:
            labels = np.stack([labels, np.zeros_like(labels)], axis=1)
        if labels.shape[1:] != (2,):
            raise ValueError(f"labels must have shape (n,) or (n, 2), got {labels.shape}")
        # ECB is the bare block permutation: labels are distinct blocks, and this is no encryption of messages.
        cipher = Cipher(algorithms.AES(_keyed_hash(self._key, b"key", purpose.encode())), modes.ECB())
        target = np.empty(_BLOCK * (len(labels) + 1) - 1, np.uint8)  # it may ask for 15 bytes more than it writes
        if len(labels):
            cipher.encryptor().update_into(np.ascontiguousarray(labels, dtype=_WORD).data.cast("B"), target.data)
        return target[: _BLOCK * len(labels)].view(_WORD).reshape(-1, 2).astype(np.uint64, copy=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<key>)"

    def __reduce__(self) -> Any:
        return (_load_keyed, self._origin) if self._origin else super().__reduce__()


class KeyedNoise(PrfNoise):
    """The source for pipelines: all draws are a pseudo-random function of a secret key, a run id and a label.

    Args:
        secret_key: at least 16 random bytes, for example 32 from `openssl rand`, at least 8 of them different: with
            fewer the key cannot be random. Longer keys are used whole, up to 1,024 bytes.
        run_id: public; two runs over different data that share a key must have different run ids, and so must two
            transforms of one pipeline that read different events.

    Attributes:
        run_id: as given.
        fingerprint: public text, 16 hexadecimal digits, that differs between keys, and shows nothing else about them.

    Raises:
        TypeError: the key is not bytes.
        ValueError: the key is too short or too long, or cannot be random.

    Example:
        >>> noise = KeyedNoise(b"an example, not a secret")
        >>> bool((noise.words(3) == noise.words(3)).all())
        True
    """

    def __init__(self, secret_key: bytes, run_id: str = "") -> None:
        if not isinstance(secret_key, bytes):
            raise TypeError(f"secret_key must be bytes, got {type(secret_key).__name__}")
        if not isinstance(run_id, str):
            raise TypeError(f"run_id must be a str, got {type(run_id).__name__}")
        _check_key("secret_key", secret_key)
        super().__init__(_root(secret_key, run_id))
        self.run_id = run_id
        self.fingerprint = f"{int(PrfNoise(_root(secret_key, '')).derive('fingerprint').words(1)[0, 0, 0]):016x}"

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], run_id: str = "") -> Self:
        """Read the key from a file; one newline at its end does not count.

        A pickle contains the path, not the key: each worker reads the file, and refuses to run with another key. A file
        of one's own that its group or others can read is refused; so is one of another user that others can read, but
        its group may: Kubernetes mounts secrets like this.
        """
        try:
            with open(path, "rb") as file:
                _check_mode(path, os.fstat(file.fileno()))
                content = file.read(MAXIMUM_KEY_BYTES + 3)  # a newline has two bytes, and one is too many
        except OSError as error:
            raise ValueError(f"key must be a readable file, got {path} ({error.strerror})") from None
        return cls._found("from_file", os.path.abspath(path), "key", content, run_id)

    @classmethod
    def from_environment(cls, name: str, run_id: str = "") -> Self:
        """Take the key from the environment variable `name`; one newline at its end does not count.

        A pickle contains the name, not the key: each worker needs the variable, and refuses to run with another key.
        """
        content, called = os.environ.get(name), f"environment variable {name}"
        if content is None:
            raise ValueError(f"{called} must be set, got none")
        return cls._found("from_environment", name, called, os.fsencode(content), run_id)

    @classmethod
    def _found(cls, constructor: str, place: str, called: str, content: bytes, run_id: str) -> Self:
        """Return the source of what stood there, with where it is, for its pickles and those of what it derives."""
        key = content.removesuffix(b"\n").removesuffix(b"\r") if content.endswith(b"\n") else content
        noise = cls(_check_key(called, key), run_id)
        noise._origin = (constructor, place, run_id, noise.fingerprint), ()
        return noise

    @classmethod
    def random(cls, run_id: str = "") -> Self:
        """Make a key from the operating system's randomness; it lives as long as the object and its pickles."""
        return cls(secrets.token_bytes(32), run_id)

    def __repr__(self) -> str:
        return f"KeyedNoise(<key>, run_id={self.run_id!r})"


class SeededNoise(PrfNoise):
    """The source for simulations and tests: the same function with a key made from a public integer. Never private."""

    def __init__(self, seed: int) -> None:
        checks.integer("seed", seed, minimum=0)
        super().__init__(PrfNoise(_root(b"public: simulation", "")).derive(seed)._key)


def _load_keyed(origin: Origin, path: Path) -> PrfNoise:
    constructor, place, run_id, fingerprint = origin
    noise: KeyedNoise = getattr(KeyedNoise, constructor)(place, run_id)
    if noise.fingerprint != fingerprint:
        raise ValueError(f"noise key must be the same on every worker as at launch, {place} has another")
    return noise.derive(*path) if path else noise


def _root(secret: bytes, run_id: str) -> bytes:
    """Return the key of a run, from a secret of any length."""
    if len(secret) > hashlib.blake2b.MAX_KEY_SIZE:
        secret = hashlib.blake2b(secret, person=b"long secret").digest()
    return _keyed_hash(secret, b"root", run_id.encode("utf-8", "surrogatepass"))


def _keyed_hash(key: bytes, purpose: bytes, message: bytes) -> bytes:
    return hashlib.blake2b(message, key=key, person=purpose, digest_size=32).digest()


def _check_key(name: str, key: bytes) -> bytes:
    """Refuse a key that is too short, or cannot be random, or is another file: a ledger beside its key is larger."""
    if len(key) > MAXIMUM_KEY_BYTES:
        raise ValueError(f"{name} must have at most {MAXIMUM_KEY_BYTES:,} bytes, got more: is it really a key?")
    if len(key) < MINIMUM_KEY_BYTES:
        raise ValueError(f"{name} must have at least {MINIMUM_KEY_BYTES} bytes, got {len(key)}")
    if len(set(key)) < MINIMUM_DISTINCT_BYTES:
        rule = f"must be random, with at least {MINIMUM_DISTINCT_BYTES} different bytes"
        raise ValueError(f"{name} {rule}, got {len(set(key))}: make one by openssl rand -out key 32")
    return key


def _check_mode(path: str | os.PathLike[str], status: os.stat_result) -> None:
    """Refuse a key file that more people can use than it must be open to."""
    mode, own = stat.S_IMODE(status.st_mode), status.st_uid == os.geteuid()
    if mode & (stat.S_IRWXO | (stat.S_IRWXG if own else 0)):
        rule = "by its owner alone" if own else "by its owner and group alone"
        command = f"chmod {'600' if own else 'o='} {path}"
        raise ValueError(f"key must be readable {rule}, got {path} with mode {mode:04o}: {command}")
