"""The lines of a ledger: runs, limits and names, chained, so that a line that was changed or deleted is found."""

from __future__ import annotations

import json
import math
import secrets
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from hashlib import blake2b, sha256
from importlib.metadata import version
from typing import Annotated, Any, Literal, NamedTuple, Self

from privstream.mechanisms.privacy.accounting import GaussianCurve, PointCurve, group_point
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee, Shift, added, shift_of, shift_of_point
from privstream.mechanisms.privacy.units import PrivacyUnit
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    model_validator,
)

BEFORE_ALL = "0" * 64
"""What stands for the head of a ledger without lines."""

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


class BudgetLimit(NamedTuple):
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
    """A run."""

    kind: Literal["run"] = "run"
    label: str  # what its noise depends on, apart from the key
    digest: str  # of what it draws, how it reads and what it reads
    name: str
    command: str
    version: str = Field(default_factory=partial(version, "privstream"))
    data: str  # digest of the input files, or the source, if that has no end
    key: str
    output: str
    unit: Unit
    epsilon: Budget
    delta: Annotated[float, Field(ge=0, lt=1)]
    mu: Budget  # the Gaussian shift and the slack that dominate it
    slack: Budget

    @classmethod
    def of(cls, guarantee: PrivacyGuarantee, **given: Any) -> Entry:
        """Return the entry of a run with this guarantee."""
        mu, slack = shift_of(guarantee)
        return cls(**given, **{name: getattr(guarantee, name) for name in PROMISED}, mu=mu, slack=slack)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        point = shift_of_point(self.epsilon, self.delta)
        if self.mu > point.mu * ROUNDING or self.slack > self.delta:
            raise ValueError("mu and slack must be at most those of epsilon and delta")
        return self

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
        if point is None:
            return None
        return Cost(point.at_epsilon, point.at_delta, *shift_of_point(point.at_epsilon, point.at_delta))


class LimitLine(Line):
    """The limit of a data set, until the next one."""

    kind: Literal["limit"] = "limit"
    epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(ge=0, lt=1)]
    other_people: bool = False  # its runs may read files of other data sets: they are about other people


class NameLine(Line):
    """Another name of a data set: what earlier lines say of the old one is of the new one."""

    kind: Literal["rename"] = "rename"
    new: str


AnyLine = Entry | LimitLine | NameLine
READ: TypeAdapter[AnyLine] = TypeAdapter(Annotated[AnyLine, Field(discriminator="kind")])


@dataclass(frozen=True)
class Contents:
    """What a ledger says."""

    lines: tuple[AnyLine, ...] = ()
    heads: tuple[str, ...] = (BEFORE_ALL,)  # the digest of each line and all before it; the first one is of no line

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
    def limits(self) -> dict[str, BudgetLimit]:
        """By data set, the limit that holds."""
        return {
            line.dataset: BudgetLimit(line.epsilon, line.delta) for line in self.named if isinstance(line, LimitLine)
        }

    @property
    def retired(self) -> dict[str, str]:
        """By each name that a data set had, the one that it has."""
        found: dict[str, str] = {}
        for line in self.lines:
            if isinstance(line, NameLine):
                found = {old: line.new if now == line.dataset else now for old, now in found.items()}
                found[line.dataset] = line.new
                found.pop(line.new, None)
        return found

    @property
    def of_other_people(self) -> set[str]:
        """The data sets that share files with others."""
        return {line.dataset for line in self.named if isinstance(line, LimitLine) and line.other_people}

    def about(self, dataset: str) -> list[Entry]:
        """Return all runs about a data set."""
        return [entry for entry in self.entries if entry.dataset == dataset]

    def standings(self, dataset: str) -> list[Standing]:
        """Return what the runs about a data set have cost each unit that they name."""
        return list(standings(self.about(dataset), self.limits.get(dataset)))

    def after(self, line: AnyLine) -> tuple[bytes, Contents]:
        """Return a line as it is written behind all others, and what the ledger says then."""
        chained = line.model_copy(update={"previous": self.heads[-1]})
        written = chained.model_dump_json().encode() + b"\n"
        return written, Contents((*self.lines, chained), (*self.heads, head_after(self.heads[-1], written)))


def record_digest(value: Any) -> str:
    """Return a digest of plain values."""
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


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


SHARES = (1.0, 0.75, 0.5, 0.25)
"""Of a limit's delta, for slacks; the rest is for the Gaussian shifts."""

NEARLY = 0.95
MOST_RUNS = 10_000
"""More runs than this are not counted."""

ROUNDING = 1 + 1e-9
"""0.1 added ten times is 1."""


@dataclass(frozen=True)
class ShiftFilter:
    """Keeps releases within a limit, also where each was chosen after the results of those before."""

    limit: BudgetLimit
    slack: float  # the part of its delta that deltas and slacks may use up; the rest is for the Gaussian shifts

    @classmethod
    def of(cls, limit: BudgetLimit, first: Cost) -> ShiftFilter:
        """Return the filter whose parts suit the first release, which nobody chose after seeing results.

        Of those under which nearly as many runs like the first one fit as can, it leaves the most to slacks.
        """
        filters = [cls(limit, share * limit.delta) for share in SHARES]
        fitting = [one.more([], first) for one in filters]
        return next(one for one, many in zip(filters, fitting, strict=True) if many >= NEARLY * max(fitting))

    def keeps(self, costs: Sequence[Cost]) -> bool:
        """Tell whether releases, in the order in which they were made, are within the limit.

        Privacy: docs/proofs/budget.md, Theorem 2.
        """
        return self.spent(costs) <= self.limit.epsilon * ROUNDING

    def spent(self, costs: Sequence[Cost]) -> float:
        """Return the epsilon that releases use of the limit, by sums or by shifts; infinity if deltas are spent."""
        plain = deltas = slacks = 0.0
        within = True
        for cost in costs:
            plain, deltas = plain + cost.epsilon, deltas + cost.delta
            within = within and self._affords(deltas) and plain <= self.limit.epsilon * ROUNDING
            slacks += cost.delta if within else cost.slack
        by_sum = plain if self._affords(deltas) else math.inf
        by_shift = _epsilon_of(costs, self.limit.delta - self.slack) if self._affords(slacks) else math.inf
        return min(by_sum, by_shift)

    def room(self, costs: Sequence[Cost]) -> float:
        """Return the epsilon of the largest release without delta that fits, in thousandths of the limit."""
        epsilons = [self.limit.epsilon * number / 1000 for number in range(1001)]
        fitting = (Cost(each, 0.0, *shift_of_point(each, 0.0)) for each in epsilons)
        return epsilons[max(0, bisect_left([*fitting], True, key=lambda cost: not self.keeps([*costs, cost])) - 1)]

    def more(self, costs: Sequence[Cost], cost: Cost) -> int:
        """Return how many more equal releases fit; at most `MOST_RUNS`."""
        numbers = range(1, MOST_RUNS + 1)
        return bisect_left(numbers, True, key=lambda number: not self.keeps([*costs, *[cost] * number]))

    def _affords(self, slack: float) -> bool:
        return slack <= self.slack * ROUNDING


def _epsilon_of(costs: Sequence[Cost], delta: float) -> float:
    """Return the epsilon of the shifts of releases together at a delta, without their slacks."""
    shift = added(Shift(cost.mu, cost.slack) for cost in costs).mu
    if shift == 0:
        return 0.0
    return GaussianCurve(shift=shift).epsilon(delta) if 0 < delta < 1 else math.inf


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What all releases about a data set cost one unit together."""

    unit: PrivacyUnit
    costs: tuple[Cost, ...]  # of each release that promises something to it, in the order in which they were made
    silent: int  # how many others there are: what these reveal about the unit is in no total
    limit: BudgetLimit | None

    @cached_property
    def filter(self) -> ShiftFilter | None:
        """What keeps the limit, if there is one and a release."""
        return None if self.limit is None or not self.costs else ShiftFilter.of(self.limit, self.costs[0])

    @property
    def delta(self) -> float:
        """The delta at which `epsilon` is stated: that of the limit, or the sum of all deltas."""
        return min(1.0, math.fsum(cost.delta for cost in self.costs)) if self.limit is None else self.limit.delta

    @cached_property
    def epsilon(self) -> float:
        """What is spent; without a limit for releases that nobody chose after seeing results."""
        if self.filter is not None:
            return self.filter.spent(self.costs)
        slack = math.fsum(cost.slack for cost in self.costs)
        return min(math.fsum(cost.epsilon for cost in self.costs), _epsilon_of(self.costs, self.delta - slack))

    @property
    def room(self) -> float:
        """The epsilon of the largest release without delta that fits into the limit; infinity without one."""
        if self.limit is None:
            return math.inf
        return self.limit.epsilon if self.filter is None else self.filter.room(self.costs)

    @property
    def kept(self) -> bool:
        """Whether the limit is kept, or there is none."""
        return self.filter is None or self.filter.keeps(self.costs)

    def more(self, cost: Cost) -> int:
        """Return how many more equal releases fit into the limit, if there is one; at most `MOST_RUNS`."""
        if self.limit is None:
            return MOST_RUNS
        return (self.filter or ShiftFilter.of(self.limit, cost)).more(self.costs, cost)


def distinct(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Return the entries of each release, in the order of its first one: a repetition costs nothing."""
    found: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        found.setdefault((entry.dataset, *entry.release), []).append(entry)
    return list(found.values())


def standings(entries: Iterable[Entry], limit: BudgetLimit | None) -> Iterator[Standing]:
    """Yield what the runs about one data set come to, for each unit that they name."""
    firsts = [release[0] for release in distinct(entries)]
    for unit in units(firsts):
        costs = [entry.about(unit) for entry in firsts]
        promised = tuple(cost for cost in costs if cost is not None)
        yield Standing(unit=unit, costs=promised, silent=len(costs) - len(promised), limit=limit)


def check_limit(limit: BudgetLimit, entry: Entry, earlier: Sequence[Entry]) -> None:
    """Refuse a run that would bring its data set past a limit, for a unit that the run promises something to."""
    for found in standings([*earlier, entry], limit):
        cost = entry.about(found.unit)
        if cost is None or found.kept:
            continue
        before = replace(found, costs=found.costs[:-1])
        raise ValueError(
            f"the limit of data set {entry.dataset!r} must not be exceeded: of {limit.in_words()} epsilon "
            f"{before.epsilon:.4g} is spent for {found.unit}, and this run costs "
            f"epsilon {cost.epsilon:.4g}, delta {cost.delta:.3g}"
        )


def units(entries: Iterable[Entry]) -> list[PrivacyUnit]:
    """Return all units that runs name, each once, in order; and what they share.

    Persons in different windows have in common what a person sends in the longest window that divides all of them and
    the distances of their starts: to that every one of these runs promises something. Two calendars are different
    windows also where both are made of the same ones, such as days.
    """
    named = list(dict.fromkeys(entry.unit for entry in entries))
    in_windows = {unit for unit in named if unit.window is not None}
    windows = {(unit.window, unit.origin) for unit in in_windows if unit.window is not None}
    if len(in_windows) > 1:
        one = min(windows)[1]
        length = math.gcd(*(part for window, origin in windows for part in (window, origin - one)))
        shared = PrivacyUnit(what="person", window=length, origin=one % length)
        named.append(shared)
    return list(dict.fromkeys(named))
