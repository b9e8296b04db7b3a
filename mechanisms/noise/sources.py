"""Noise sources: stateless streams of random bits addressed by label, so that a replay draws the same noise.

*Privacy.* Guarantees hold against adversaries that cannot tell AES and BLAKE2b from random functions (computational
differential privacy); bounds stand in docs/proofs/noise.md. The key is a secret like a password: whoever has it can
subtract the noise. Use one derived source for one purpose: two draws with one source and one label are equal.
"""

import os
import secrets
import stat
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.noise.prf import Prf, Words

MINIMUM_KEY_BYTES = 16
MAXIMUM_KEY_BYTES = 1 << 10
MINIMUM_DISTINCT_BYTES = 8
"""Fewer are seen once in 10^11 keys of 16 random bytes, and once in 10^7 of 32 hexadecimal digits."""

Labels = Words | int
Lineage = tuple[tuple[str, str, str, str], tuple[str | int | bytes, ...]]  # what `_load_keyed` takes; path from there


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
    """A noise source over a keyed pseudo-random function; made by `KeyedNoise`, `SeededNoise` or `derive`.

    A pickle of one that is derived from a key in a file or a variable says where that key is, and the path: no key.
    """

    __slots__ = ("_lineage", "_prf")

    def __init__(self, prf: Prf, lineage: "Lineage | None" = None) -> None:
        self._prf = prf
        self._lineage = lineage

    def derive(self, *path: str | int | bytes) -> "PrfNoise":
        """Return the independent source for `path`; `derive(a, b)` is `derive(a).derive(b)`.

        Parts of different type or content always give different sources. The result cannot be led back to this one.
        """
        if not path:
            raise ValueError("path must have at least one part, got none")
        lineage = self._lineage
        return PrfNoise(self._prf.child(*path), None if lineage is None else (lineage[0], (*lineage[1], *path)))

    def words(self, labels: Labels, lanes: int = 1) -> Words:
        """Return 128 uniform bits per label and lane, uint64 (n, lanes, 2), the high word before the low word.

        The bits of a label depend on nothing but the source, the label and the lane.
        """
        lanes = checks.integer("lanes", lanes, minimum=1)
        blocks = _blocks(labels)
        if lanes == 1:
            return self._prf.encrypt("lane 0", blocks)[:, None, :]
        return np.stack([self._prf.encrypt(f"lane {lane}", blocks) for lane in range(lanes)]).swapaxes(0, 1)

    def bind(self, labels: Labels, values: NDArray[np.int64]) -> Words:
        """Return labels that depend on `labels` and on the int64 `values` (n,), for releases of numbers.

        With the true value in the label a repeated release of the same value repeats the same answer, and a release of
        another value under the same label draws fresh noise instead of exposing the exact difference.
        """
        blocks = _blocks(labels)
        values = np.asarray(values)
        if values.dtype != np.int64:
            raise TypeError(f"values must be int64, got {values.dtype}")
        if values.shape != (len(blocks),):
            raise ValueError(f"values must have one entry per label, got shape {values.shape} for {len(blocks)} labels")
        state = self._prf.encrypt("bind", blocks)
        state[:, 1] ^= np.ascontiguousarray(values).view(np.uint64)
        return self._prf.encrypt("bind", state)

    def hash_bytes(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Words:
        """Return keyed 64-bit hashes of byte strings, the same for a string whatever stands around it.

        `data`, uint8, has all strings one after the other; string i is data[offsets[i]:offsets[i + 1]], int64 (n + 1).
        """
        data, offsets = np.asarray(data), np.asarray(offsets)
        if data.dtype != np.uint8 or offsets.dtype != np.int64:
            raise TypeError(f"data must be uint8 and offsets int64, got {data.dtype} and {offsets.dtype}")
        if len(offsets) and (offsets[0] < 0 or offsets[-1] > len(data) or bool(np.any(offsets[1:] < offsets[:-1]))):
            raise ValueError("offsets must be nondecreasing and within data")
        return self._prf.hash_bytes(data, offsets)

    def __repr__(self) -> str:
        return "PrfNoise(<key>)"

    def __reduce__(self) -> Any:
        if self._lineage is not None:
            return _derive_again, self._lineage
        return PrfNoise, (self._prf,)


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

    __slots__ = ("fingerprint", "run_id")

    def __init__(self, secret_key: bytes, run_id: str = "") -> None:
        if not isinstance(secret_key, bytes):
            raise TypeError(f"secret_key must be bytes, got {type(secret_key).__name__}")
        if not isinstance(run_id, str):
            raise TypeError(f"run_id must be a str, got {type(run_id).__name__}")
        _check_key("secret_key", secret_key)
        super().__init__(Prf.from_secret(secret_key, run_id))
        self.run_id = run_id
        whose = PrfNoise(Prf.from_secret(secret_key, "").child("fingerprint"))
        self.fingerprint = f"{int(whose.words(1)[0, 0, 0]):016x}"

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
            raise ValueError(f"noise_key_file must be a readable file, got {path} ({error.strerror})") from None
        noise = cls(_check_key("noise_key_file", _strip_newline(content)), run_id)
        return noise._found(("from_file", os.path.abspath(path)))

    @classmethod
    def from_environment(cls, name: str, run_id: str = "") -> Self:
        """Take the key from the environment variable `name`; one newline at its end does not count.

        A pickle contains the name, not the key: each worker needs the variable, and refuses to run with another key.
        """
        content = os.environ.get(name)
        if content is None:
            raise ValueError(f"environment variable {name} must be set, got none")
        noise = cls(_check_key(f"environment variable {name}", _strip_newline(os.fsencode(content))), run_id)
        return noise._found(("from_environment", name))

    @classmethod
    def random(cls, run_id: str = "") -> Self:
        """Make a key from the operating system's randomness; it lives as long as the object and its pickles."""
        return cls(secrets.token_bytes(32), run_id)

    def __repr__(self) -> str:
        return f"KeyedNoise(<key>, run_id={self.run_id!r})"

    def __reduce__(self) -> Any:
        if self._lineage is not None:
            return _load_keyed, self._lineage[0]
        return _restore_keyed, (self._prf, self.run_id, self.fingerprint)

    def _found(self, where: tuple[str, str]) -> Self:
        """Remember where the key is, for pickles of this source and of those derived from it."""
        self._lineage = ((*where, self.run_id, self.fingerprint), ())
        return self


class SeededNoise(PrfNoise):
    """The source for simulations and tests: the same function with a key made from a public integer. Never private."""

    __slots__ = ("_seed",)

    def __init__(self, seed: int) -> None:
        self._seed = checks.integer("seed", seed, minimum=0)
        super().__init__(Prf.from_secret(b"public: simulation", "").child(self._seed))

    def __repr__(self) -> str:
        return f"SeededNoise({self._seed})"

    def __reduce__(self) -> Any:
        return SeededNoise, (self._seed,)


def _restore_keyed(prf: Prf, run_id: str, fingerprint: str) -> KeyedNoise:
    noise = KeyedNoise.__new__(KeyedNoise)
    noise._prf, noise.run_id, noise.fingerprint, noise._lineage = prf, run_id, fingerprint, None
    return noise


def _load_keyed(constructor: str, place: str, run_id: str, fingerprint: str) -> KeyedNoise:
    noise: KeyedNoise = getattr(KeyedNoise, constructor)(place, run_id)
    if noise.fingerprint != fingerprint:
        raise ValueError(f"noise key must be the same on every worker as at launch, {place} has another")
    return noise


def _derive_again(origin: tuple[str, str, str, str], path: tuple[str | int | bytes, ...]) -> PrfNoise:
    return _load_keyed(*origin).derive(*path)


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
        raise ValueError(f"noise_key_file must be readable {rule}, got {path} with mode {mode:04o}: {command}")


def _strip_newline(content: bytes) -> bytes:
    return content.removesuffix(b"\n").removesuffix(b"\r") if content.endswith(b"\n") else content


def _blocks(labels: Labels) -> Words:
    """Return labels of any allowed form as uint64 (n, 2)."""
    if not isinstance(labels, np.ndarray):
        labels = np.arange(checks.integer("labels", labels, minimum=0), dtype=np.uint64)
    if labels.dtype != np.uint64:
        raise TypeError(f"labels must be uint64, got {labels.dtype}")
    if labels.ndim == 1:
        return np.stack([labels, np.zeros_like(labels)], axis=1)
    if labels.ndim != 2 or labels.shape[1] != 2:
        raise ValueError(f"labels must have shape (n,) or (n, 2), got {labels.shape}")
    return labels


_ROW = 2  # the third column of labels that are bound


class RowNoise:
    """Draw for the label (row, low) what a source draws for the label (keys[row], low), keys uint64 (rows,).

    Labels that are bound to values have a third column, with their row.
    """

    def __init__(self, source: NoiseSource, keys: Words) -> None:
        self.source = source
        self.keys = keys

    def derive(self, *path: str | int | bytes) -> "RowNoise":
        """Derive the source."""
        return RowNoise(self.source.derive(*path), self.keys)

    def words(self, labels: Labels, lanes: int = 1) -> Words:
        """Return the words of all labels, uint64 (n, lanes, 2)."""
        return self.source.words(self._own(labels)[1], lanes)

    def bind(self, labels: Labels, values: NDArray[np.int64]) -> Words:
        """Return the labels bound to values, with their rows, uint64 (n, 3)."""
        rows, own = self._own(labels)
        return np.column_stack([self.source.bind(own, values), rows])

    def hash_bytes(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Words:
        """Refuse: strings have no rows."""
        raise TypeError("strings must be hashed by the source itself, got the noise of the rows of a table")

    def _own(self, labels: Labels) -> tuple[Words, Words]:
        """Return the rows of labels, and the labels that the source takes."""
        if not isinstance(labels, np.ndarray) or labels.ndim != _ROW:
            raise TypeError("labels must be an array of rows and their low halves")
        if labels.shape[1] > _ROW:
            return labels[:, _ROW], labels[:, :_ROW]
        return labels[:, 0], np.stack([self.keys[labels[:, 0]], labels[:, 1]], axis=1)
