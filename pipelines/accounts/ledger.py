"""The ledger: an append-only list of lines that says what has been published about whom, and what may be."""

from __future__ import annotations

import errno
import fcntl
import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Protocol

from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.entries import (
    Contents,
    Entry,
    LimitRecord,
    Record,
    RenameRecord,
    head_after,
    read_lines,
    record_digest,
    to_line,
)
from privstream.pipelines.accounts.limit_options import DEFAULT_DATASET, period
from privstream.pipelines.accounts.spending import Limit, check_limit

ENDING = ".ledger.jsonl"
"""What the ledger beside a key is called: the name of the key's file, and this."""


DATABASE = "postgresql://"
"""What the place of a ledger in a database begins with."""

STORED = "the limit in the ledger"


class Lines(Protocol):
    """The lines of a ledger that nobody else changes meanwhile."""

    def read(self) -> list[bytes]:
        """Return all lines."""

    def append(self, line: bytes) -> None:
        """Write a line, all of it or nothing."""


class Store(Protocol):
    """Where the lines of a ledger are."""

    def exists(self) -> bool:
        """Tell whether there are any."""

    def opened(self, *, write: bool) -> AbstractContextManager[Lines]:
        """Open it; what was appended is safe when the block has ended well."""


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What the ledger says of a run that it has taken.

    Attributes:
        repeats: whether it repeats an earlier run, so that it costs nothing more.
        line: number of its line, from 1.
        head: digest of its line and all lines before it. Privacy: each line has 256 random bits, so that its digest
            shows nothing of the line.
    """

    repeats: bool
    line: int
    head: str


class Ledger:
    """A ledger in a file of this machine or, for several machines, in a table of PostgreSQL.

    Args:
        path: of the file, which the first line makes, readable by its owner alone; or
            `postgresql://user@host:port/database/table`, whose password is in `PGPASSWORD` or `~/.pgpass`.

    Raises:
        ValueError: the address of a table has another form, or a password.

    Example:
        >>> import tempfile
        >>> from privstream.mechanisms.privacy.units import PERSON
        >>> promised = PrivacyGuarantee(unit=PERSON, neighbouring="add_remove", epsilon=1.0, delta=0.0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger(f"{folder}/shop.ledger.jsonl")
        ...     ledger.set_limit("shop", Limit(4.0, 1e-5)).line
        ...     noise = KeyedNoise(bytes(range(32)), "visits")
        ...     ledger.record(promised, noise=noise, run_id="visits", data="visits.csv, 2026", dataset="shop").line
        1
        2
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._store = _store(path)

    def exists(self) -> bool:
        """Tell whether there is such a file or table."""
        return self._store.exists()

    def contents(self) -> Contents:
        """Return what all lines say.

        Raises:
            ValueError: the ledger cannot be read, a line is damaged or the chain is broken; the message names the line.
        """
        with self._store.opened(write=False) as lines:
            return read_lines(lines.read(), self.path)

    def read(self) -> list[Entry]:
        """Return all runs, in the order in which they were started.

        Raises:
            ValueError: see `contents`.
        """
        return self.contents().entries

    def append(self, entry: Entry, accept: Callable[[Sequence[Entry]], None], limit: Limit | None = None) -> Receipt:
        """Write an entry, if it agrees with all earlier ones, and they and the limit of its data set accept it.

        Nobody else writes meanwhile, and the entry is on the disk when this returns. A limit is written before it, if
        its data set has none.

        Raises:
            ValueError: the ledger cannot be written, a line is damaged, another release has had the same noise, its
                data set has no account where there are limits or where its data have one under another name, the limit
                would be exceeded, or `accept`, which gets the earlier entries unless this one repeats one, raised it.
        """
        with self._store.opened(write=True) as lines:
            contents = read_lines(lines.read(), self.path)
            repeats = self._agrees(entry, contents, accept)
            if limit is not None and entry.dataset not in contents.limits:
                _write(lines, contents, _limit_record(entry.dataset, limit), repeats=False)
                contents = read_lines(lines.read(), self.path)
            return _write(lines, contents, entry, repeats)

    def foresee(self, entry: Entry, accept: Callable[[Sequence[Entry]], None]) -> Receipt:
        """Do what `append` does, but write nothing; a ledger that is not there has no entries."""
        contents = self.contents() if self.exists() else Contents.none()
        repeats = self._agrees(entry, contents, accept)
        return Receipt(repeats=repeats, line=len(contents.heads), head="")

    def record(
        self,
        guarantee: PrivacyGuarantee,
        *,
        noise: KeyedNoise,
        run_id: str,
        data: str,
        dataset: str = DEFAULT_DATASET,
        question: str = "pipeline",
        parameters: Mapping[str, Any] | None = None,
        begin: datetime | None = None,
        end: datetime | None = None,
        parts: Mapping[str, PrivacyGuarantee] | None = None,
        output: str = "",
    ) -> Receipt:
        """Write down a run of a pipeline of one's own. Call it before the pipeline runs.

        Privacy: the account is as true as what it is given. The same run id, key, data and parameters are the same
        release, which is charged once; the same run id with other ones is refused, since it would get the same noise.

        Args:
            guarantee: what the transforms of the pipeline promise together.
            noise: their noise, for the fingerprint of its key.
            run_id: the run id of the noise.
            data: what is read, in words or as a digest; not what is in it.
            dataset: whose budget is spent.
            question: what the run is called in tables.
            parameters: plain values that shape the answers, but no user ids and no items.
            begin, end: the time of the data, with a time zone, for limits by period; None if not known.
            parts: what each question promises by itself, by name, if there are several.
            output: where rows go.

        Raises:
            ValueError: see `append`; the noise has another run id; `data` says nothing; or a time has no time zone.
        """
        if noise.run_id != run_id:
            raise ValueError(
                f"run_id must be that of the noise, got {run_id!r} with noise of {noise.run_id!r}: runs over different "
                "data whose noise has one run id are no independent releases; give it to KeyedNoise, too"
            )
        if not data.strip():
            raise ValueError("data must say what is read, got a text without words")
        entry = Entry(
            time=_now(),
            run_id=run_id,
            digest=record_digest([question, parameters or {}, data]),
            name=run_id,
            dataset=dataset,
            command=question,
            version=version("privstream"),
            data=data,
            key=noise.fingerprint,
            guarantee=guarantee,
            output=output,
            begin=_micros("begin", begin),
            end=_micros("end", end),
            parts=dict(parts or {}),
        )
        return self.append(entry, lambda earlier: None)

    def set_limit(self, dataset: str, limit: Limit, *, change: bool = False) -> Receipt:
        """Set the limit of a data set, which all later runs about it must keep; the earlier limit stays in the ledger.

        Raises:
            ValueError: there is another limit, and `change` does not say that it is to be changed; or the ledger
                cannot be written.
        """
        if limit.period is not None:
            period(limit.period)
        with self._store.opened(write=True) as lines:
            contents = read_lines(lines.read(), self.path)
            found = contents.limits.get(dataset)
            if found is not None and limit_of(found) == limit:
                return Receipt(repeats=True, line=len(contents.records), head=contents.heads[-1])
            if found is not None and not change:
                raise ValueError(
                    f"change must be given to change the limit of data set {dataset!r}, which is "
                    f"{limit_of(found).in_words()} since {found.time}"
                )
            return _write(lines, contents, _limit_record(dataset, limit), repeats=False)

    def rename(self, dataset: str, new: str) -> Receipt:
        """Give a data set another name; the totals of two that are one from now on have the runs of both.

        Raises:
            ValueError: there is no such data set, both have a limit, or the ledger cannot be written.
        """
        with self._store.opened(write=True) as lines:
            contents = read_lines(lines.read(), self.path)
            known = list(dict.fromkeys(record.dataset for record in contents.named))
            if dataset not in known or new == dataset:
                raise ValueError(f"dataset must be one of {', '.join(map(repr, known))}, got {dataset!r}")
            if {dataset, new} <= contents.limits.keys():
                raise ValueError(f"to must be a data set without a limit of its own, which {new!r} has")
            return _write(lines, contents, RenameRecord(time=_now(), dataset=dataset, new=new), repeats=False)

    def _agrees(self, entry: Entry, contents: Contents, accept: Callable[[Sequence[Entry]], None]) -> bool:
        """Return whether an entry repeats an earlier one, if it agrees with all and they are accepted."""
        earlier = contents.entries
        if any(other.release == entry.release and other.dataset == entry.dataset for other in earlier):
            return True
        for other in earlier:
            if (other.run_id, other.key) == (entry.run_id, entry.key) and other.digest != entry.digest:
                raise ValueError(
                    f"run_id must be another one: the run {entry.run_id} of {other.time} in {self.path} had other data "
                    "or parameters, and both would get the same noise"
                )
        known = dict.fromkeys([*contents.limits, *(other.dataset for other in earlier)])
        if contents.limits and entry.dataset not in known:
            raise ValueError(
                f"dataset must be one of {', '.join(map(repr, known))}, which the ledger has, got {entry.dataset!r}; "
                "privstream budget set opens an account"
            )
        same = dict.fromkeys(other.dataset for other in earlier if other.data == entry.data)
        if same and entry.dataset not in {*same, *contents.limits}:
            raise ValueError(
                f"dataset must be {' or '.join(map(repr, same))}, as which the ledger has these data, got "
                f"{entry.dataset!r}; privstream budget set opens an account for other people in them"
            )
        if (found := contents.limits.get(entry.dataset)) is not None:
            check_limit(limit_of(found), entry, earlier, STORED)
        accept(earlier)
        return False


def _limit_record(dataset: str, limit: Limit) -> LimitRecord:
    """Return a line about a limit."""
    return LimitRecord(time=_now(), dataset=dataset, epsilon=limit.epsilon, delta=limit.delta, period=limit.period)


def limit_of(record: LimitRecord) -> Limit:
    """Return the limit that a line says."""
    return Limit(record.epsilon, record.delta, record.period)


def is_database(path: str) -> bool:
    """Tell whether a ledger is no file."""
    return path.startswith(DATABASE)


def _store(path: str) -> Store:
    """Return where the lines are.

    Raises:
        ValueError: the address has another form, or there is no driver.
    """
    if not is_database(path):
        return LedgerFile(path)
    try:
        module = importlib.import_module("privstream.pipelines.accounts.ledger_table")
    except ImportError:
        raise ValueError(
            "ledger must be a file, unless PostgreSQL's driver is installed: pip install 'privstream[postgresql]'"
        ) from None
    store: Store = module.LedgerTable(path)
    return store


def _write(lines: Lines, contents: Contents, record: Record, repeats: bool) -> Receipt:
    """Append a record to the chain."""
    line = to_line(record.to_record(), contents.heads[-1])
    lines.append(line)
    return Receipt(repeats=repeats, line=len(contents.heads), head=head_after(contents.heads[-1], line))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _micros(name: str, moment: datetime | None) -> int | None:
    """Return microseconds since 1970 UTC."""
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise ValueError(f"{name} must have a time zone, got {moment.isoformat()}")
    return round(moment.timestamp() * 1_000_000)


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
        if os.path.exists(self.path) and not (os.path.isfile(self.path) or os.path.isdir(self.path)):
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
