"""The lines of a ledger: runs, limits and names, chained, so that a line that was changed or deleted is found."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from hashlib import blake2b, sha256
from importlib.metadata import version
from typing import Annotated, Any, Literal, NamedTuple

from privstream.mechanisms.privacy.accounting import GaussianCurve, PointCurve, group_point
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee, shift_of, shift_of_point
from privstream.mechanisms.privacy.units import PrivacyUnit
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, TypeAdapter, ValidationError

BEFORE_ALL = "0" * 64
"""What stands for the head of a ledger without lines."""

DIGEST_BYTES = 16
SALT_BYTES = 32
"""Random bytes in each line, since it has a digest of the data: its own one would let anybody test guesses of them."""

WATCHED = "watched: "
"""What data begin with that have no end."""

Unit = Annotated[
    PrivacyUnit,
    PlainValidator(lambda value: value if isinstance(value, PrivacyUnit) else PrivacyUnit.from_dict(value)),
    PlainSerializer(PrivacyUnit.to_dict),
]
Budget = Annotated[float, Field(ge=0)]
PROMISED = ("unit", "epsilon", "delta")


class Cost(NamedTuple):
    """What a release costs one unit: (epsilon, delta), and the Gaussian shift and the slack that dominate it."""

    epsilon: float
    delta: float
    mu: float
    slack: float


class Limit(NamedTuple):
    """The largest total of all releases about a data set."""

    epsilon: float
    delta: float

    def in_words(self) -> str:
        """Return the limit as people read it."""
        return f"epsilon {self.epsilon:g}, delta {self.delta:g}"


class Line(BaseModel):
    """A line of a ledger about a data set, with the digest of all lines before it.

    Privacy: `salt` is random, so that the digest of the line shows nothing of it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    ledger: Literal[1] = 1
    time: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    dataset: str
    salt: str = Field(default_factory=lambda: secrets.token_hex(SALT_BYTES), repr=False)
    previous: str = Field(default=BEFORE_ALL, repr=False)


class Entry(Line):
    """A run.

    Attributes:
        label: what its noise depends on, beside the key.
        digest: of what it draws, how it reads and what it reads.
        data: digest of the input files, or the source, if that has no end.
        mu, slack: the Gaussian shift and the slack that dominate it.
    """

    kind: Literal["run"] = "run"
    label: str
    digest: str
    name: str
    command: str
    version: str = Field(default_factory=partial(version, "privstream"))
    data: str
    key: str
    output: str
    unit: Unit
    epsilon: Budget
    delta: Annotated[float, Field(ge=0, lt=1)]
    mu: Budget
    slack: Budget

    @classmethod
    def of(cls, guarantee: PrivacyGuarantee, **given: Any) -> Entry:
        """Return the entry of a run with this guarantee."""
        mu, slack = shift_of(guarantee)
        return cls(**given, **{name: getattr(guarantee, name) for name in PROMISED}, mu=mu, slack=slack)

    @property
    def release(self) -> tuple[str, str, str]:
        """What two runs have in common that draw the same noise for the same totals: the second one costs nothing."""
        return self.label, self.key, self.digest

    def promises(self, guarantee: PrivacyGuarantee) -> bool:
        """Tell whether a guarantee is that of this run."""
        return all(getattr(self, name) == getattr(guarantee, name) for name in PROMISED)

    def about(self, unit: PrivacyUnit) -> Cost | None:
        """Return what it costs another unit, or None if nothing is proved: docs/proofs/budget.md, section 3."""
        changes = self.unit.changes(unit)
        if changes is None:
            return None
        if changes == 1:
            return Cost(self.epsilon, self.delta, self.mu, self.slack)
        if self.delta > 0 == self.slack:
            mu = changes * self.mu
            return Cost(GaussianCurve(shift=mu).epsilon(self.delta), self.delta, mu, 0.0)
        curve = PointCurve(at_epsilon=self.epsilon, at_delta=self.delta)
        point = group_point(curve, self.epsilon, self.delta, changes)
        return (
            None
            if point is None
            else Cost(point.at_epsilon, point.at_delta, *shift_of_point(point.at_epsilon, point.at_delta))
        )


class LimitLine(Line):
    """The limit of a data set, until the next one."""

    kind: Literal["limit"] = "limit"
    epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(ge=0, lt=1)]


class NameLine(Line):
    """Another name of a data set: what earlier lines say of the old one is of the new one."""

    kind: Literal["rename"] = "rename"
    new: str


AnyLine = Entry | LimitLine | NameLine
READ: TypeAdapter[AnyLine] = TypeAdapter(Annotated[AnyLine, Field(discriminator="kind")])


@dataclass(frozen=True)
class Contents:
    """What a ledger says.

    Attributes:
        heads: the digest of each line and all before it; the first one is of no line.
    """

    lines: tuple[AnyLine, ...] = ()
    heads: tuple[str, ...] = (BEFORE_ALL,)

    @cached_property
    def named(self) -> list[AnyLine]:
        """All lines, by the names that data sets have now."""
        found: list[AnyLine] = []
        for line in self.lines:
            if isinstance(line, NameLine):
                new = {"dataset": line.new}
                found = [each.model_copy(update=new) if each.dataset == line.dataset else each for each in found]
            found.append(line)
        return found

    @property
    def datasets(self) -> list[str]:
        """The names of all data sets."""
        return list(dict.fromkeys(line.dataset for line in self.named if not isinstance(line, NameLine)))

    @property
    def entries(self) -> list[Entry]:
        """All runs, in the order in which they were started."""
        return [line for line in self.named if isinstance(line, Entry)]

    @property
    def limits(self) -> dict[str, Limit]:
        """By data set, the limit that holds."""
        return {line.dataset: Limit(line.epsilon, line.delta) for line in self.named if isinstance(line, LimitLine)}

    def about(self, dataset: str) -> list[Entry]:
        """Return all runs about a data set."""
        return [entry for entry in self.entries if entry.dataset == dataset]

    def after(self, line: AnyLine) -> tuple[bytes, Contents]:
        """Return a line as it is written behind all others, and what the ledger says then."""
        chained = line.model_copy(update={"previous": self.heads[-1]})
        written = chained.model_dump_json().encode() + b"\n"
        return written, Contents((*self.lines, chained), (*self.heads, head_after(self.heads[-1], written)))


def record_digest(value: Any) -> str:
    """Return a digest of plain values."""
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=DIGEST_BYTES).hexdigest()


def head_after(head: str, line: bytes) -> str:
    """Return the head of a ledger after a line."""
    return sha256(head.encode() + line).hexdigest()


def read_lines(lines: Iterable[bytes], place: str) -> Contents:
    """Return what the lines of a ledger say."""
    found: list[AnyLine] = []
    heads = [BEFORE_ALL]
    for number, line in enumerate(lines, 1):
        try:
            found.append(READ.validate_json(line, strict=True))
            if not line.endswith(b"\n"):
                raise ValueError("its end is missing")
        except (ValueError, TypeError) as error:
            why = "a field is wrong" if isinstance(error, ValidationError) else str(error)
            raise ValueError(f"ledger {place}: line {number} must be as privstream writes it: {why}") from None
        if found[-1].previous != heads[-1]:
            raise ValueError(
                f"ledger {place}: line {number} must follow the lines before it as they were when it was written: one "
                "of them was changed, added or deleted"
            )
        heads.append(head_after(heads[-1], line))
    return Contents(tuple(found), tuple(heads))
