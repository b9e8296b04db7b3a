"""The ledger: an append-only list of lines that says what has been published about whom, and what may be."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.entries import (
    AnyLine,
    BudgetLimit,
    Contents,
    Entry,
    LimitLine,
    NameLine,
    check_limit,
    read_lines,
    record_digest,
)
from privstream.pipelines.locations import DEFAULT_DATASET, POSTGRESQL, TABLE
from privstream.pipelines.model.question import loaded

ENDING = ".ledger.jsonl"
"""What the ledger beside a key is called: the name of the key's file, and this."""

NONE = "none"
"""The value of `--ledger` that goes without."""


class Receipt(NamedTuple):
    """What the ledger says of a line that it has taken; one that repeats an earlier one costs nothing more."""

    repeats: bool
    contents: Contents

    @property
    def line(self) -> int:
        """Number of the line, from 1."""
        return len(self.contents.lines)

    @property
    def head(self) -> str:
        """Digest of all lines. Privacy: each line has 256 random bits, so that this shows nothing of them."""
        return self.contents.heads[-1]


def named_ledger(ledger: str | None, key: str | None) -> Ledger | None:
    """Return the ledger that is named, or the one beside the key; None to go without."""
    if ledger == NONE or (ledger is None and key is None):
        return None
    return Ledger(f"{key}{ENDING}" if ledger is None else ledger)


class Ledger:
    """A ledger in a file of this machine or, for several machines, in a table of PostgreSQL.

    Args:
        path: of the file, which the first line makes, readable by its owner alone; or
            `postgresql://user@host:port/database/table`, whose password is in `PGPASSWORD` or `~/.pgpass`.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        lines: Any = FileLines
        if path.startswith(POSTGRESQL):
            try:
                lines = loaded("accounts.ledger_table.TableLines")
            except ImportError:
                rule = "must be a file, unless PostgreSQL's driver is installed: pip install 'privstream[postgresql]'"
                raise ValueError(f"ledger {rule}") from None
        elif not path or "://" in path:
            raise ValueError(f"ledger must be a file of this machine, {TABLE}, or {NONE}, got {path!r}")
        self._lines = lines(path)

    def contents(self) -> Contents:
        """Return what all lines say; nothing, if there is none. A damaged line is a ValueError that names it."""
        return read_lines(self._lines.read(), self.path)

    def append(self, entry: Entry, *, dry: bool = False) -> Receipt:
        """Write a run, if it agrees with all earlier ones and the limit of its data set is kept; not if it is `dry`.

        Nobody else writes meanwhile, and the entry is on the disk when this returns. A `ValueError` says why not.
        """
        check_name("dataset", entry.dataset)
        if dry:
            contents = self.contents()
            return Receipt(self._agrees(entry, contents), contents.after(entry)[1])
        with self._writing() as (contents, write):
            return write(entry, repeats=self._agrees(entry, contents))

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
        output: str = "",
    ) -> Receipt:
        """Write down a run of a pipeline of one's own. Call it before the pipeline runs.

        Privacy: the account is as true as what it is given. The same run id, key, data and parameters are the same
        release, which is charged once; the same run id with other ones is refused, since it would get the same noise.

        Args:
            guarantee: what the transforms of the pipeline promise together.
            noise: theirs, of the same run id.
            data: what is read, in words or as a digest; not what is in it.
            question: what the run is called in tables.
            parameters: plain values that shape the answers, but no user ids and no items.
        """
        if noise.run_id != run_id:
            raise ValueError(
                f"run_id must be that of the noise, got {run_id!r} with noise of {noise.run_id!r}: runs over different "
                "data whose noise has one run id are no independent releases; give it to KeyedNoise, too"
            )
        if not data.strip():
            raise ValueError("data must say what is read, got a text without words")
        digest = record_digest([question, parameters or {}, data])
        about = {"command": question, "dataset": dataset, "data": data, "output": output}
        entry = Entry.of(guarantee, label=run_id, name=run_id, digest=digest, key=noise.fingerprint, **about)
        return self.append(entry)

    def set_limit(
        self, dataset: str, limit: BudgetLimit, *, change: bool = False, other_people: bool = False
    ) -> Receipt:
        """Set the limit of a data set, which all later runs about it must keep; to `change` it must be said.

        Privacy: of `other_people` are runs that may read the files of other data sets; their budgets do not add up.
        """
        check_name("dataset", dataset)
        with self._writing() as (contents, write):
            _check_not_retired(dataset, contents)
            found = contents.limits.get(dataset)
            if found == limit and (not other_people or dataset in contents.of_other_people):
                return Receipt(True, contents)
            if found not in (None, limit) and not change:
                raise ValueError(f"change must be given: the limit of {dataset!r} is {found.in_words()}")
            if found is None and change:
                raise ValueError(f"change must not be given: {dataset!r} has no limit")
            return write(LimitLine(dataset=dataset, **limit._asdict(), other_people=other_people))

    def rename(self, dataset: str, new: str) -> Receipt:
        """Give a data set another name; what two have spent that are one from now on is added up.

        It is refused where a limit would be about runs that did not have to keep it.
        """
        check_name("to", new)
        with self._writing() as (contents, write):
            if dataset not in contents.datasets or new == dataset:
                raise ValueError(f"dataset must be one of {', '.join(map(repr, contents.datasets))}, got {dataset!r}")
            if contents.retired.get(new, dataset) != dataset:
                _check_not_retired(new, contents)
            limited, both = {dataset, new} & contents.limits.keys(), {dataset, new}
            if len(limited) == 2 or (limited and both <= {entry.dataset for entry in contents.entries}):
                raise ValueError(f"to must be a new data set, since {dataset!r} or {new!r} has a limit of its own")
            return write(NameLine(dataset=dataset, new=new))

    @contextmanager
    def _writing(self) -> Iterator[tuple[Contents, Callable[..., Receipt]]]:
        """Give what the ledger says, and what appends a line, while nobody else writes."""
        with self._lines.writing() as (lines, append):
            contents = read_lines(lines, self.path)

            def write(line: AnyLine, *, repeats: bool = False) -> Receipt:
                written, after = contents.after(line)
                append(written)
                return Receipt(repeats, after)

            yield contents, write

    def _agrees(self, entry: Entry, contents: Contents) -> bool:
        """Return whether an entry repeats an earlier one, if it agrees with all and the limit is kept."""
        earlier, limits = contents.entries, contents.limits
        _check_not_retired(entry.dataset, contents)
        own = contents.about(entry.dataset)
        if any(other.release == entry.release for other in own):
            return True
        for other in earlier:
            if (other.label, other.key) == (entry.label, entry.key) and other.digest != entry.digest:
                raise ValueError(
                    f"run_id must be another one: the run {entry.name} of {other.time} in {self.path} had other data "
                    "or parameters, and both would get the same noise"
                )
        wrong = f", got {entry.dataset!r}; privstream budget set"
        if limits and entry.dataset not in contents.datasets:
            known = ", ".join(map(repr, contents.datasets))
            raise ValueError(f"dataset must be one of {known}, which the ledger has{wrong} opens an account")
        same = dict.fromkeys(other.dataset for other in earlier if other.data == entry.data)
        apart = contents.of_other_people
        if entry.dataset not in {*same, *apart} and not {*same} <= apart:
            known = " or ".join(map(repr, same))
            rule = f"dataset must be {known}, the ledger's name for these data{wrong} --other-people says that it is"
            raise ValueError(f"{rule} about other people in the same files, budget rename changes the name")
        if (found := limits.get(entry.dataset)) is not None:
            check_limit(found, entry, own)
        return False


def check_name(option: str, name: str) -> None:
    """Refuse what is no name of a data set."""
    if not name.strip() or name != name.strip() or not name.isprintable():
        raise ValueError(f"{option} must be a name of printable letters, without spaces around it, got {name!r}")


def _check_not_retired(name: str, contents: Contents) -> None:
    """Refuse what was the name of a data set: under it a full budget would begin again."""
    if (now := contents.retired.get(name)) is not None:
        raise ValueError(f"dataset must be {now!r}, as {name!r} is called now")


class FileLines:
    """The lines of a file, made by the first one, readable by its owner alone."""

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self) -> list[bytes]:
        """Return all lines; none if there is no such file."""
        if not os.path.exists(self.path):
            return []
        with self._locked(os.O_RDONLY, fcntl.LOCK_SH, "read") as file:
            return _all_lines(file)

    @contextmanager
    def writing(self) -> Iterator[tuple[list[bytes], Callable[[bytes], None]]]:
        """Give all lines, and what appends one, while nobody else writes, or reads what is going to change."""
        with self._locked(os.O_RDWR | os.O_CREAT | os.O_APPEND, fcntl.LOCK_EX, "written") as file:
            yield _all_lines(file), partial(self._append, file)

    @contextmanager
    def _locked(self, flags: int, lock: int, word: str) -> Iterator[int]:
        rule = f"ledger must be a file that can be {word}, got {self.path}"
        if os.path.exists(self.path) and not (os.path.isfile(self.path) or os.path.isdir(self.path)):
            raise ValueError(f"ledger must be a file that keeps its lines, got {self.path}")  # not a device or a pipe
        try:
            file = os.open(self.path, flags | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ValueError(f"{rule} ({error.strerror})") from None
        try:
            fcntl.flock(file, lock)
            yield file
        except OSError as error:
            raise ValueError(f"{rule} ({error.strerror})") from None
        finally:
            os.close(file)

    def _append(self, file: int, line: bytes) -> None:
        length = os.fstat(file).st_size
        try:
            if os.write(file, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file)
            if not length:  # the name of a new file, too
                folder = os.open(os.path.dirname(os.path.realpath(self.path)), os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
        except OSError as error:
            os.ftruncate(file, length)
            rule = "ledger must be a file that can be written"
            raise ValueError(f"{rule}, got {self.path} ({error.strerror}); nothing was recorded") from None


def _all_lines(file: int) -> list[bytes]:
    with open(os.dup(file), "rb") as stream:
        stream.seek(0)
        return stream.readlines()
