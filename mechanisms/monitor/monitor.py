"""ThresholdMonitor: which items, or rules, many people have now, charging people for hits or for changes of status."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Limit
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.checks import HorizonExceeded
from privstream.mechanisms.mechanism import Charges, Mechanism, UserCounters
from privstream.mechanisms.monitor.calibration import LARGEST_HITS, Calibration, MonitorBudget, calibrate, paper
from privstream.mechanisms.noise.discrete import DiscreteGaussian
from privstream.mechanisms.noise.sources import NoiseSource, Words
from privstream.mechanisms.privacy.guarantee import GIVEN_NUMBERS, KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON

DEFAULT_TESTS = 1_000_000
LARGEST_THRESHOLD = 1 << 53
STARTED, CONTINUES, ENDED = range(3)
COLUMNS = {"users": "uint64", "items": "uint64", "ranks": "uint16"}


@dataclass(frozen=True, eq=False, kw_only=True)
class Holdings:
    """The people and their items at one step: parallel columns, shape (n,), each pair of person and item at most once.

    A person's items of the step have ranks, in an order that depends on nothing but the person, the step and the
    person's own items. With c charges left a person takes part in the items ranked below c.

    Raises:
        ValueError, TypeError: a column has another shape or type.
    """

    step: int  # public, >= 0; steps are decided in increasing order, each once
    users: np.ndarray  # uint64: keyed hashes of people
    items: np.ndarray  # uint64: keyed hashes of items; with a known domain, positions in the domain
    ranks: np.ndarray | None = None  # uint16; None: all are zero

    def __post_init__(self) -> None:
        checks.integer("step", self.step, minimum=0)
        for name, dtype in COLUMNS.items():
            column = getattr(self, name)
            if column is None and name == "ranks":
                continue
            if not isinstance(column, np.ndarray) or column.dtype != dtype:
                found = column.dtype if isinstance(column, np.ndarray) else type(column).__name__
                raise TypeError(f"{name} must be an array of {dtype}, got {found}")
            if column.shape != (len(self.users),):
                raise ValueError(f"{name} must have shape ({len(self.users)},), got {column.shape}")

    def active(self, counters: UserCounters, max_hits: int) -> NDArray[np.bool_]:
        """Return for each row, bool (n,), whether its person counts for its item: the rank is below the charges left.

        This is not for publication.
        """
        return np.asarray((0 if self.ranks is None else self.ranks) < max_hits - counters.charged(self.users))


@dataclass(frozen=True, eq=False)
class Tally:
    """Holdings by item."""

    items: Words  # that somebody has, (m,), increasing
    totals: Integers  # how many people with charges left have each, (m,)
    users: Words  # the people with each item, item by item, (n,)
    active: NDArray[np.bool_]  # who of them counts, (n,)
    held: Integers  # how many rows each item has, (m,)

    @classmethod
    def of(cls, holdings: Holdings, counters: UserCounters, max_hits: int) -> Self:
        """Sort holdings by item, and count the people whose rank is below their charges left."""
        order = np.argsort(holdings.items, kind="stable")
        users, items = holdings.users[order], holdings.items[order]
        active = holdings.active(counters, max_hits)[order]
        first = np.flatnonzero(np.append(True, items[1:] != items[:-1]))[: len(items)]
        totals = np.add.reduceat(active, first, dtype=np.int64)
        return cls(items[first], totals, users, active, np.diff(np.append(first, len(items))))

    def counts(self, items: Words) -> Integers:
        """Return the totals of some items, zero for those that nobody has."""
        if not len(self.items):
            return np.zeros(len(items), np.int64)
        place = np.minimum(np.searchsorted(self.items, items), len(self.items) - 1)
        return np.where(self.items[place] == items, self.totals[place], 0)

    def charges(self, charged: NDArray[np.bool_]) -> Charges:
        """Charge everybody who counts for one of the items in a mask, bool (m,)."""
        return Charges.of(self.users[np.repeat(charged, self.held) & self.active])


def repeats(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether two rows of a pair of columns are equal."""
    order = np.lexsort((second, first))
    one, other = first[order], second[order]
    return bool(np.any((one[1:] == one[:-1]) & (other[1:] == other[:-1])))


@dataclass(frozen=True, eq=False)
class StatusRows:
    """What is published about one step: hits, or the items that are up and those that no longer are; shape (m,).

    Counts are noisy numbers of people charged, of items that started or ended; 0 of those that continue, as nothing is
    paid for these. Shape (0,) without counts.
    """

    items: Words  # increasing
    status: NDArray[np.uint8]  # STARTED, as each hit is, CONTINUES or ENDED
    since: Integers  # the step at which each item went up
    counts: Integers


@dataclass(frozen=True, eq=False)
class UpItems:
    """Items that are up, increasing, and the steps at which they went up: public, as the changes that made them so."""

    items: Words = field(default_factory=lambda: np.empty(0, np.uint64))
    since: Integers = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.items)


NONE_UP = UpItems()


@dataclass(frozen=True, eq=False)
class MonitorState:
    """Everything that outlives a step."""

    counters: UserCounters = field(default_factory=UserCounters)  # the charges of each person; private
    up: UpItems = NONE_UP  # where statuses are kept
    last_step: int | None = None  # the last one decided


@dataclass(frozen=True, kw_only=True)
class ThresholdMonitor(Mechanism[MonitorState]):
    """Test at every step, for every item, whether at least about `detection_threshold` people have it now.

    Each hit charges every person who took part in it; a person charged `max_hits` times takes part no more. Misses
    cost nothing, so the number of tests is unbounded. With the calibration "status" a hit takes an item up. An item
    that is up is tested against a lower threshold, and goes down when too few people have it. Each change charges who
    took part in the test; staying up or down costs nothing.

    With `starts` items are public rules, such as "at least 500 people, until 400", each with thresholds of its own.

    Privacy:
        Unit: one person over the whole run, added or removed. Inputs may depend on everything published. Each person
        enters at most `items_per_step` items a step, and there are at most `horizon` steps, which is checked. While an
        item is up, and with rules, every step must be decided, also if nobody has anything, which `step` checks.
        Public: all fields, the steps, the hits or statuses, and their noisy counts. Two monitors that look at the same
        people in different ways must have different labels, or their answers together would give noise away.

    Accuracy:
        `detection_threshold`: the number of people, not yet dropped, from which an item is reported, or goes up at once
        and stays up, with probability 1 - beta, jointly over `tests` tests (and `up_steps` of items that are up). With
        an unknown domain, items that nobody has are never reported. With rules: by how much a number of people must
        pass a threshold, or miss it, for all `tests` tests to go as they should; in between a rule stays as it is.

    Example:
        >>> from dataclasses import replace
        >>> monitor = ThresholdMonitor(epsilon=1.0, delta=1e-6, max_hits=4, domain_size=1000, tests=10**6, beta=0.01,
        ...                            count_share=0.0)
        >>> monitor.detection_threshold, replace(monitor, calibration="status").detection_threshold
        (330, 337)

    Source: Kaplan, Mansour, Stemmer (2020), Algorithms 3 and 5; docs/proofs/clock.md, docs/proofs/status_monitor.md.
    """

    epsilon: float  # finite and > 0
    delta: float  # in (0, 1)
    max_hits: int  # charges after which a person is dropped, 1 to 65535; not below the number of rules
    beta: float = 0.05  # failure probability over all tests that the accuracy is stated for
    count_share: float = 0.25  # share of epsilon for noisy counts of what is charged; 0 publishes none
    label: str = ""  # says what the steps and items are
    domain_size: int | None = None  # public items are 0 .. domain_size - 1; None: items exist as somebody has them
    horizon: int | None = None  # steps of the run at most; None with public items alone
    first_step: int = 0  # public number of the first step of the horizon
    items_per_step: int = 1  # items that one person has in a step at most, 1 to 65535; any number of rules
    tests: int | None = None  # for the accuracy; None for domain_size * horizon, or a million
    calibration: str = "clock"  # "status"; or "paper" for the clock's constants as published, for a public domain
    up_steps: int = 100_000  # at which an item is up, of all items together, for the accuracy of statuses
    starts: tuple[int, ...] = ()  # of rules: the number of people at which each becomes active, in [0, 2^53]
    ends: tuple[int, ...] = ()  # of rules: the number, not above, below which each ends
    noise_label = "threshold monitor"
    state_type = MonitorState

    def __post_init__(self) -> None:
        checks.one_of("calibration", self.calibration, ("clock", "status", "paper"))
        for name in ("domain_size", "horizon", "tests", "up_steps"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), minimum=1)
        checks.integer("first_step", self.first_step, minimum=0)
        checks.integer("items_per_step", self.items_per_step, minimum=1, maximum=LARGEST_HITS)
        if self._size is None and self.horizon is None:
            raise ValueError("horizon must be given without a public list of items")
        _ = self._budget  # checks the rest
        if len(self.starts) != len(self.ends):
            raise ValueError(f"starts and ends must be of equal length, got {len(self.starts)} and {len(self.ends)}")
        if self.starts and (self.calibration != "status" or self.domain_size is not None or self.items_per_step > 1):
            raise ValueError("calibration must be status with starts, which say how many items there are")
        for start, end in zip(self.starts, self.ends, strict=True):
            most = checks.integer("starts", start, minimum=0, maximum=LARGEST_THRESHOLD)
            checks.integer("ends", end, minimum=0, maximum=most)
        checks.integer("max_hits", self.max_hits, minimum=max(1, len(self.starts)))  # a person may count for all rules

    @property
    def _size(self) -> int | None:
        """The number of public items, if they are."""
        return len(self.starts) or self.domain_size

    @property
    def _items(self) -> int:
        """How many items one person may have in a step."""
        return len(self.starts) or self.items_per_step

    @cached_property
    def _budget(self) -> MonitorBudget:
        size, horizon = self._size, self.horizon or 0
        return MonitorBudget(
            epsilon=self.epsilon,
            delta=self.delta,
            max_hits=self.max_hits,
            tests=self.tests or (size or 0) * horizon or DEFAULT_TESTS,
            beta=self.beta,
            domain="rules" if self.starts else "known" if size else "unknown",
            tests_per_person=None if size else horizon * self.items_per_step,
            count_share=self.count_share,
        )

    @cached_property
    def calibrated(self) -> Calibration:
        """The noise and the threshold that meet the guarantee."""
        if self.calibration == "paper":
            return paper(self._budget)
        statuses = self.calibration == "status"
        return calibrate(self._budget, min(self.up_steps, self._budget.tests) if statuses else None)

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy of one person over the whole run."""
        found, counted = self.calibrated, self.calibrated.count_sigma is not None
        charge, published = ("change", "changes of status") if found.up_steps else ("hit", "items that were hits")
        limits = [f"Each person is charged for at most {Limit('', self.max_hits, charge)} and then no longer counted."]
        if self._budget.tests_per_person is not None:
            limits.append(f"Each person takes part in at most {Limit('', self._budget.tests_per_person, 'test')}.")
        return PrivacyGuarantee(
            unit=PERSON,
            epsilon=self.epsilon,
            delta=self.delta,
            horizon=self.horizon,
            limits=tuple(limits),
            public=("all parameters", f"the steps, the {published}{' and their noisy counts' * counted}"),
            adaptivity="The adversary may choose all data of each step knowing everything published before it.",
            proof=found.proof + "; docs/proofs/noisy_counts.md" * counted,
            caveats=(KEYED_NOISE, GIVEN_NUMBERS),
            curve=found.privacy_curve,
        )

    @property
    def detection_threshold(self) -> int:
        """The number of people from which an item is reported; with rules: by how much a threshold must be passed."""
        return self.calibrated.detection_threshold(self._budget.tests, self.beta)

    @property
    def count_stddev(self) -> float:
        """Standard deviation of the noise on published counts, to six digits; 0 if none are published."""
        sigma = self.calibrated.count_sigma
        stddev = 0.0 if sigma is None else math.sqrt(DiscreteGaussian(sigma).variance)
        return float(f"{stddev:.6g}")  # alike on every machine

    def count_error(self, beta: float) -> int:
        """Return by how much one published count is off at most, but with `beta`; 0 if none are published."""
        sigma = self.calibrated.count_sigma
        return 0 if sigma is None else int(DiscreteGaussian(sigma).tail_quantile(beta / 2))

    def step(self, state: MonitorState, holdings: Holdings, noise: NoiseSource) -> tuple[MonitorState, StatusRows]:
        """Decide one step. Equal state, holdings (in any order of rows) and noise give equal bits.

        Raises:
            ValueError: a step that is not after the last one, or not the next one with rules or while an item is up; or
                holdings that break a rule of `Holdings`.
            HorizonExceeded: a step outside of the public horizon.
        """
        last = state.last_step
        if last is not None and holdings.step <= last:
            raise ValueError(f"step must be > the last step {last}, got {holdings.step}")
        if last is not None and holdings.step > last + 1 and (self.starts or len(state.up)):
            raise ValueError(f"step must be {last + 1} with rules or while an item is up, got {holdings.step}")
        rows, charges, up = self.decide(state.counters, holdings, noise, state.up)
        return MonitorState(state.counters.add(charges), up, holdings.step), rows

    def decide(
        self, counters: UserCounters, holdings: Holdings, noise: NoiseSource, up: UpItems = NONE_UP
    ) -> tuple[StatusRows, Charges, UpItems]:
        """Return the rows of a step, whom they charge (not for publication), and the items that are up after it.

        For those who keep the state themselves: steps must be decided in increasing order, each once, and all of them
        with rules or while an item is up, which only `step` checks.
        """
        self._check(holdings)
        step, source = holdings.step, self._source(noise)
        tally = Tally.of(holdings, counters, self.max_hits)
        started = np.setdiff1d(self._hits(step, tally, source), up.items)
        ended = up.items[tally.counts(up.items) < self._end_thresholds(step, up.items, source)]
        listed = np.union1d(up.items, started)
        since = np.full(len(listed), step, np.int64)
        since[np.isin(listed, up.items)] = up.since
        statuses = np.full(len(listed), CONTINUES, np.uint8)
        statuses[np.isin(listed, started)] = STARTED
        statuses[np.isin(listed, ended)] = ENDED
        changed = listed[statuses != CONTINUES]
        counts = np.zeros(0, np.int64)
        if self.calibrated.count_sigma is not None:
            counts = np.zeros(len(listed), np.int64)
            counts[statuses != CONTINUES] = self._noisy(step, changed, tally.counts(changed), source)
        stays = statuses != ENDED
        after = UpItems(listed[stays], since[stays]) if self.calibration == "status" else up
        rows = StatusRows(listed, statuses, since, counts)
        return rows, tally.charges(np.isin(tally.items, changed)), after

    def _hits(self, step: int, tally: Tally, source: NoiseSource) -> Words:
        """Return the items, increasing, that are found by up-tests, whether they are up or not."""
        tested = tally.items if self._size is None else np.arange(self._size, dtype=np.uint64)
        return tested[tally.counts(tested) >= self._thresholds(step, tested, source)]

    def _noisy(self, step: int, items: Words, counts: Integers, source: NoiseSource) -> Integers:
        """Add noise to the counts of hits. The true count is part of its labels: see docs/proofs/noise.md."""
        noise = source.derive("count", step)
        assert self.calibrated.count_sigma is not None
        return counts + DiscreteGaussian(self.calibrated.count_sigma).draw(noise, noise.bind(items, counts))

    def _check(self, holdings: Holdings) -> None:
        """Refuse steps outside of the horizon, and holdings in which one person counts more than is paid for."""
        step, first = holdings.step, self.first_step
        if not first <= step < first + (self.horizon or step + 1):
            last = f" and < {first + self.horizon}" if self.horizon else ""
            raise HorizonExceeded(f"step must be >= {first}{last}, got {step}")
        if self._size is not None and np.any(holdings.items >= np.uint64(self._size)):
            raise ValueError(f"items must be < {self._size}, the number of public items")
        ranks = np.zeros(len(holdings.users), np.uint16) if holdings.ranks is None else holdings.ranks
        if np.any(ranks >= self._items):
            raise ValueError(f"ranks must be < items_per_step {self._items}")
        if repeats(holdings.users, ranks):
            raise ValueError("ranks must be distinct for each person; a person without ranks has one item")
        if self._items > 1 and repeats(holdings.users, holdings.items):
            raise ValueError("items must be distinct for each person")

    def _thresholds(self, step: int, items: Words, source: NoiseSource) -> Integers:
        """Draw the hidden thresholds of a step, one per item, int64."""
        drawn = self.calibrated.draw_thresholds(source.derive("threshold", step), items)
        return drawn + self._given(self.starts, items)

    def _end_thresholds(self, step: int, items: Words, source: NoiseSource) -> Integers:
        """Draw the hidden thresholds below which items that are up go down, one per item, int64."""
        if not len(items):
            return np.zeros(0, np.int64)
        return self.calibrated.end_law.draw(source.derive("end threshold", step), items) + self._given(self.ends, items)

    def _given(self, thresholds: tuple[int, ...], items: Words) -> Integers | int:
        """Return the public thresholds of rules, or nothing where there are none."""
        return np.array(thresholds, np.int64)[items.astype(np.int64)] if thresholds else 0
