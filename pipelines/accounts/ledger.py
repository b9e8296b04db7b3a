"""The ledger: an append-only file of JSON lines that says what has been published about whom."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from privstream.mechanisms.guarantee_records import guarantee_record, read_guarantee
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee

VERSION = 2
"""Of the lines; goes up when what is written can no longer be read as before."""

ENDING = ".ledger.jsonl"
"""What the ledger beside a key is called: the name of the key's file, and this."""

DEFAULT_DATASET = "default"
"""The data set of runs that name none."""

BOUNDS = "beta"
"""The parameter in which two runs of one run id may differ: it is about error bounds, and shapes no true answer."""

WATCHED = "watched: "
"""What data begin with that have no end."""

TEXTS = ("time", "run_id", "name", "dataset", "command", "version", "data", "key", "output")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run.

    Attributes:
        time: when it was started, ISO 8601 in UTC.
        run_id: what its noise depends on; a digest of the data, where none was given.
        name: what its rows and guarantee file call it.
        dataset: whose budget it spends.
        command: such as "histogram".
        version: of privstream.
        parameters: by name, what shapes answers, noise or error bounds; files by a digest of their contents.
        data: digest of the input files, or the source, if that has no end.
        key: the noise key's public fingerprint.
        guarantee: what it promises, with the whole privacy curve.
        output: where rows go.
    """

    time: str
    run_id: str
    name: str
    dataset: str
    command: str
    version: str
    parameters: Mapping[str, Any]
    data: str
    key: str
    guarantee: PrivacyGuarantee
    output: str

    @property
    def release(self) -> tuple[str, ...]:
        """What two runs have in common that publish the same: then the second one costs nothing.

        A run without an end goes on under another version, from its state; over files it needs another run id.
        """
        version = "" if self.data.startswith(WATCHED) else self.version
        return self.run_id, self.key, version, json.dumps(self.parameters.get(BOUNDS))

    def differs_from(self, other: Entry) -> list[str]:
        """Return the names of what shapes answers or noise and is not as in another entry."""
        bound = ("command", "data") if self.data.startswith(WATCHED) else ("command", "version", "data")
        names = [name for name in bound if getattr(self, name) != getattr(other, name)]
        options = sorted({*self.parameters, *other.parameters} - {BOUNDS})
        return names + [name for name in options if self.parameters.get(name) != other.parameters.get(name)]

    def to_line(self) -> bytes:
        """Return the entry as a line."""
        plain = {name: getattr(self, name) for name in TEXTS}
        rest = {"parameters": dict(self.parameters), "guarantee": guarantee_record(self.guarantee)}
        return json.dumps({"ledger": VERSION} | plain | rest, allow_nan=False).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Entry:
        """Return the entry of a line.

        Raises:
            ValueError, TypeError: the line has none.
        """
        found = json.loads(line, parse_constant=_refuse)
        if not isinstance(found, dict) or found.pop("ledger", None) != VERSION:
            raise ValueError(f"ledger must be {VERSION}")
        if set(found) != {*TEXTS, "parameters", "guarantee"} or not line.endswith(b"\n"):
            raise ValueError("line must be complete")
        if not all(isinstance(found[name], str) for name in TEXTS):
            raise TypeError("fields must be texts")
        if not isinstance(found["parameters"], dict) or not isinstance(found["guarantee"], dict):
            raise TypeError("parameters and guarantee must be objects")
        return cls(**(found | {"guarantee": read_guarantee(found["guarantee"], found["parameters"])}))


class Ledger:
    """A ledger in a file of this machine.

    Args:
        path: where; the file is made by the first entry, readable by its owner alone.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self) -> list[Entry]:
        """Return all entries, in the order in which runs were started.

        Raises:
            ValueError: the file cannot be read, or a line is damaged; the message names file and line.
        """
        with self._locked(os.O_RDONLY, fcntl.LOCK_SH) as file:
            return self._entries(file)

    def append(self, entry: Entry, accept: Callable[[Sequence[Entry]], None]) -> bool:
        """Write an entry, if it agrees with all earlier ones and they are accepted; return whether it repeats one.

        Nobody else reads or writes meanwhile, and the entry is on the disk when this returns.

        Raises:
            ValueError: the file cannot be written, a line is damaged, a run of the same run id had other data or
                parameters, or `accept`, which gets the earlier entries unless this one repeats one, raised it.
        """
        with self._locked(os.O_RDWR | os.O_CREAT | os.O_APPEND, fcntl.LOCK_EX) as file:
            repeats = self._agrees(entry, self._entries(file), accept)
            line = entry.to_line()
            if os.write(file, line) != len(line):
                raise ValueError(f"ledger must be a file that can be written, got {self.path} (the disk is full)")
            os.fsync(file)
        return repeats

    def foresee(self, entry: Entry, accept: Callable[[Sequence[Entry]], None]) -> bool:
        """Do what `append` does, but write nothing; a file that is not there has no entries."""
        return self._agrees(entry, self.read() if os.path.exists(self.path) else [], accept)

    def _agrees(self, entry: Entry, earlier: Sequence[Entry], accept: Callable[[Sequence[Entry]], None]) -> bool:
        """Return whether an entry repeats an earlier one, if it agrees with all and they are accepted."""
        for other in earlier:
            if other.run_id == entry.run_id and (names := entry.differs_from(other)):
                self._refuse_run_id(entry, other, names)
        repeats = any(other.release == entry.release and other.dataset == entry.dataset for other in earlier)
        if not repeats:
            accept(earlier)
        return repeats

    def _entries(self, file: int) -> list[Entry]:
        """Read all lines."""
        entries = []
        with open(os.dup(file), "rb") as stream:
            stream.seek(0)
            for number, line in enumerate(stream, 1):
                try:
                    entries.append(Entry.from_line(line))
                except (ValueError, TypeError, KeyError, RecursionError) as error:
                    rule = f"must be an entry as privstream writes it; it is damaged, or from somebody else ({error})"
                    raise ValueError(f"ledger {self.path}: line {number} {rule}") from None
        return entries

    @contextmanager
    def _locked(self, flags: int, lock: int) -> Iterator[int]:
        """Open the file while nobody else has it."""
        try:
            file = os.open(self.path, flags | os.O_CLOEXEC, 0o600)
        except OSError as error:
            word = "read" if flags == os.O_RDONLY else "written"
            raise ValueError(f"ledger must be a file that can be {word}, got {self.path} ({error.strerror})") from None
        try:
            fcntl.flock(file, lock)
            yield file
        except OSError as error:
            raise ValueError(f"ledger must be a file that can be used, got {self.path} ({error.strerror})") from None
        finally:
            os.close(file)

    def _refuse_run_id(self, entry: Entry, other: Entry, names: list[str]) -> NoReturn:
        raise ValueError(
            f"run_id must be another one: the run {entry.run_id} of {other.time} in {self.path} differs in "
            f"{', '.join(names)}, and under one run id both would get the same noise"
        )


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"numbers must be finite, got {constant}")
