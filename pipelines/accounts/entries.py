"""The lines of a ledger: runs and limits, chained, so that a line that was changed or deleted is found."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b, sha256
from typing import Any, NoReturn

from privstream.mechanisms.guarantee_records import guarantee_record, read_guarantee
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee

VERSION = 4
"""Of the lines."""

BEFORE_ALL = "0" * 64
"""What stands for the head of a ledger without lines."""

DIGEST_BYTES = 16
SALT_BYTES = 32
"""Random bytes in each line, since it has a digest of the data: its own one would let anybody test guesses of them."""

WATCHED = "watched: "
"""What data begin with that have no end."""

TEXTS = ("time", "run_id", "digest", "name", "dataset", "command", "version", "data", "key", "output")
SPAN = ("begin", "end")
MINUTES = len("2030-01-31T12:00")
"""Letters of a time that people read; the others are seconds, and that it is in UTC."""

CHAIN = ("salt", "previous")
RUN, LIMIT, RENAME = "run", "limit", "rename"
LIMIT_FIELDS = ("time", "dataset", "epsilon", "delta", "period")
RENAME_FIELDS = ("time", "dataset", "new")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run.

    Attributes:
        time: when it was started, ISO 8601 in UTC.
        run_id: what its noise depends on, beside the key.
        digest: of what it draws, how it reads and what it reads; runs of a command have it in `run_id` as well.
        name: what its rows and guarantee file call it.
        dataset: whose budget it spends.
        command: such as "histogram".
        version: of privstream.
        data: digest of the input files, or the source, if that has no end.
        key: the noise key's public fingerprint.
        guarantee: what it promises, with the whole privacy curve.
        output: where rows go.
        begin, end: the time of the data that it is about, without `end`; microseconds since 1970 UTC. None: not known,
            or without an end.
        parts: what each question of a run promises by itself, by name, if it has several; `guarantee` is of all.
    """

    time: str
    run_id: str
    digest: str
    name: str
    dataset: str
    command: str
    version: str
    data: str
    key: str
    guarantee: PrivacyGuarantee
    output: str
    begin: int | None = None
    end: int | None = None
    parts: Mapping[str, PrivacyGuarantee] = field(default_factory=dict)

    @property
    def release(self) -> tuple[str, ...]:
        """What two runs have in common that draw the same noise for the same totals: the second one costs nothing."""
        return self.run_id, self.key, self.digest

    def to_record(self) -> dict[str, Any]:
        """Return the entry as plain values."""
        plain = {name: getattr(self, name) for name in (*TEXTS, *SPAN)}
        parts = {name: guarantee_record(part) for name, part in self.parts.items()}
        rest = {"guarantee": guarantee_record(self.guarantee), "parts": parts}
        return {"kind": RUN} | plain | rest

    @classmethod
    def from_record(cls, found: dict[str, Any]) -> Entry:
        """Return the entry of plain values.

        Raises:
            ValueError, TypeError: it is none.
        """
        if set(found) != {*TEXTS, *SPAN, "guarantee", "parts"}:
            raise ValueError("line must be complete")
        if not all(isinstance(found[name], str) for name in TEXTS):
            raise TypeError("fields must be texts")
        if not all(found[name] is None or type(found[name]) is int for name in SPAN):
            raise TypeError("begin and end must be whole numbers")
        if not all(isinstance(found[name], dict) for name in ("guarantee", "parts")):
            raise TypeError("guarantee and parts must be objects")
        parts = {name: read_guarantee(part) for name, part in found["parts"].items()}
        return cls(**(found | {"guarantee": read_guarantee(found["guarantee"]), "parts": parts}))


@dataclass(frozen=True, kw_only=True)
class LimitRecord:
    """A limit of a data set, which holds until the next one.

    Attributes:
        time: when it was set, ISO 8601 in UTC.
        dataset: whose budget it limits.
        epsilon, delta: the largest total; without a delta, of the plain sum of the epsilons.
        period: for which time of the data each total is: "year", "month", days such as "30d"; None for all.
    """

    time: str
    dataset: str
    epsilon: float
    delta: float | None
    period: str | None

    def to_record(self) -> dict[str, Any]:
        """Return the limit as plain values."""
        return {"kind": LIMIT} | {name: getattr(self, name) for name in LIMIT_FIELDS}

    @classmethod
    def from_record(cls, found: dict[str, Any]) -> LimitRecord:
        """Return the limit of plain values.

        Raises:
            ValueError, TypeError: it is none.
        """
        if set(found) != {*LIMIT_FIELDS}:
            raise ValueError("line must be complete")
        if not all(isinstance(found[name], str) for name in ("time", "dataset")):
            raise TypeError("fields must be texts")
        epsilon, delta, period = (found[name] for name in ("epsilon", "delta", "period"))
        if type(epsilon) not in (int, float) or not (delta is None or type(delta) in (int, float)):
            raise TypeError("epsilon and delta must be numbers")
        if epsilon <= 0 or not (delta is None or 0 <= delta < 1) or not (period is None or isinstance(period, str)):
            raise ValueError("a limit must have an epsilon > 0, a delta in [0, 1) and a period")
        return cls(**found)


@dataclass(frozen=True, kw_only=True)
class RenameRecord:
    """Another name of a data set: what earlier lines say of the old one is of the new one.

    Attributes:
        time: when it was given, ISO 8601 in UTC.
        dataset: the old name.
        new: the new name.
    """

    time: str
    dataset: str
    new: str

    def to_record(self) -> dict[str, Any]:
        """Return the names as plain values."""
        return {"kind": RENAME} | {name: getattr(self, name) for name in RENAME_FIELDS}

    @classmethod
    def from_record(cls, found: dict[str, Any]) -> RenameRecord:
        """Return the names of plain values.

        Raises:
            ValueError, TypeError: they are none.
        """
        if set(found) != {*RENAME_FIELDS}:
            raise ValueError("line must be complete")
        if not all(isinstance(value, str) for value in found.values()):
            raise TypeError("fields must be texts")
        return cls(**found)


Record = Entry | LimitRecord | RenameRecord


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a ledger says.

    Attributes:
        records: a run, a limit or another name for each line.
        heads: the digest of each line and all before it; the first one is of no line.
    """

    records: list[Record]
    heads: list[str]

    @classmethod
    def none(cls) -> Contents:
        """Return what a ledger without lines says."""
        return cls(records=[], heads=[BEFORE_ALL])

    @property
    def named(self) -> list[Entry | LimitRecord]:
        """All runs and limits, in the order in which they were written, by the names that data sets have now."""
        found: list[Entry | LimitRecord] = []
        for record in self.records:
            if isinstance(record, RenameRecord):
                old, new = record.dataset, record.new
                found = [replace(each, dataset=new) if each.dataset == old else each for each in found]
            else:
                found.append(record)
        return found

    @property
    def entries(self) -> list[Entry]:
        """All runs, in the order in which they were started."""
        return [record for record in self.named if isinstance(record, Entry)]

    @property
    def limits(self) -> dict[str, LimitRecord]:
        """By data set, the limit that holds."""
        return {record.dataset: record for record in self.named if isinstance(record, LimitRecord)}


def record_digest(value: Any) -> str:
    """Return a digest of plain values."""
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=DIGEST_BYTES).hexdigest()


def to_line(record: Mapping[str, Any], head: str) -> bytes:
    """Return a line whose record follows the line of a head."""
    chain = {"salt": secrets.token_hex(SALT_BYTES), "previous": head}
    return json.dumps({"ledger": VERSION} | dict(record) | chain, allow_nan=False).encode() + b"\n"


def head_after(head: str, line: bytes) -> str:
    """Return the head of a ledger after a line."""
    return sha256(head.encode() + line).hexdigest()


def read_lines(lines: Iterable[bytes], place: str) -> Contents:
    """Return what the lines of a ledger say.

    Raises:
        ValueError: a line is damaged, or the chain is broken; the message names place and line.
    """
    records: list[Record] = []
    heads = [BEFORE_ALL]
    for number, line in enumerate(lines, 1):
        try:
            record, previous = _record(line)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            rule = f"must be an entry as privstream writes it; it is damaged, or from somebody else ({error})"
            raise ValueError(f"ledger {place}: line {number} {rule}") from None
        if previous != heads[-1]:
            raise ValueError(
                f"ledger {place}: line {number} must follow the lines before it as they were when it was written: one "
                "of them was changed, added or deleted"
            )
        records.append(record)
        heads.append(head_after(heads[-1], line))
    return Contents(records=records, heads=heads)


def _record(line: bytes) -> tuple[Record, str]:
    """Return what a line says, and the head that it names."""
    found = json.loads(line, parse_constant=_refuse)
    if not isinstance(found, dict) or found.pop("ledger", None) != VERSION:
        raise ValueError(f"ledger must be {VERSION}")
    if not line.endswith(b"\n"):
        raise ValueError("line must be complete")
    salt, previous = (found.pop(name) for name in CHAIN)
    if not isinstance(salt, str) or not isinstance(previous, str):
        raise TypeError("salt and previous must be texts")
    kind = found.pop("kind")
    kinds: dict[str, type[Record]] = {RUN: Entry, LIMIT: LimitRecord, RENAME: RenameRecord}
    if kind not in kinds:
        raise ValueError(f"kind must be one of {', '.join(kinds)}")
    return kinds[kind].from_record(found), previous


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"numbers must be finite, got {constant}")
