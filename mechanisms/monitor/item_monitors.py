"""Monitors of items: which ones many people have now, charging people for hits, or only for changes of status."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.checks import HorizonExceeded
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.monitor.calibration import Calibration, MonitorBudget, clock, status
from privstream.mechanisms.monitor.holdings import Charges, Holdings, Tally, UserCounters, repeats
from privstream.mechanisms.monitor.paper import paper
from privstream.mechanisms.noise.discrete import ONE, PRECISE, WORD_BITS, DiscreteGaussian, IntegerLaw
from privstream.mechanisms.noise.prf import Words
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from typing_extensions import override

State = TypeVar("State")

LARGEST_UINT16 = 65_535
MAX_ABSENT = 100_000
DEFAULT_TESTS = 1_000_000
STARTED, CONTINUES, ENDED = range(3)


@dataclass(frozen=True, eq=False)
class StatusRows:
    """What is published about one step: hits, or the items, or rules, that are up, and those that no longer are.

    Attributes:
        items: uint64, shape (m,), increasing.
        status: uint8, shape (m,): STARTED, as each hit is, CONTINUES or ENDED.
        since: int64, shape (m,): the step at which each item went up.
        counts: int64, shape (m,): noisy number of people charged, for items that started or ended; 0 for those that
            continue, as nothing is paid for their counts. Shape (0,) without counts.
        stopped: whether the changes published by this step end the tests of rules about few people.
    """

    items: Words
    status: NDArray[np.uint8]
    since: Integers
    counts: Integers
    stopped: bool = False


@dataclass(frozen=True, eq=False)
class UpItems:
    """Items that are up: public, like the changes that made them so.

    Attributes:
        items: uint64, shape (n,), increasing.
        since: int64, shape (n,): the step at which each of them went up.
    """

    items: Words
    since: Integers

    @classmethod
    def none(cls) -> Self:
        """All items are down."""
        return cls(np.empty(0, np.uint64), np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.items)

    def with_started(self, items: Words, step: int) -> Self:
        """Return these and further items, uint64 (m,), that go up at `step`."""
        return self.joined(type(self)(items, np.full(len(items), step, np.int64)))

    def joined(self, others: Self) -> Self:
        """Return these and others, none of which is among these."""
        items = np.concatenate([self.items, others.items])
        order = np.argsort(items, kind="stable")
        return type(self)(items[order], np.append(self.since, others.since)[order])

    def without(self, items: Words) -> Self:
        """Return these without some that went down."""
        stays = ~np.isin(self.items, items)
        return type(self)(self.items[stays], self.since[stays])


NONE_UP = UpItems.none()


@dataclass(frozen=True, eq=False)
class MonitorState:
    """Everything that outlives a step.

    Attributes:
        counters: the charges of each person; private.
        up: the items that are up, if the monitor keeps statuses.
        last_step: the last one decided, None before the first.
    """

    counters: UserCounters = field(default_factory=UserCounters)
    up: UpItems = NONE_UP
    last_step: int | None = None


@dataclass(frozen=True, kw_only=True)
class ChargingMonitor(Mechanism[State]):
    """A mechanism that charges people for what it publishes of them, and may publish how many it has charged.

    Attributes:
        epsilon: finite and > 0.
        delta: in (0, 1).
        max_hits: charges after which a person is dropped, 1 to 65535.
        beta: failure probability over all tests that the accuracy is stated for.
        count_share: share of epsilon that pays for noisy counts of what is charged; 0 publishes no counts.
        label: says what the steps and items are. Monitors that differ in any field draw different noise from one key;
            two that look at the same people in different ways must, or their answers together would give noise away.
    """

    epsilon: float
    delta: float
    max_hits: int
    beta: float = 0.05
    count_share: float = 0.25
    label: str = ""

    @property
    @abstractmethod
    def calibrated(self) -> Calibration:
        """The noise and the threshold that meet the guarantee."""

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

    def _noisy(self, step: int, items: Words, counts: Integers, source: NoiseSource) -> Integers:
        """Add noise to the counts of hits. The true count is part of its labels: see docs/proofs/noise.md."""
        if self.calibrated.count_sigma is None:
            return np.empty(0, np.int64)
        noise = source.derive("count", step)
        return counts + DiscreteGaussian(self.calibrated.count_sigma).draw(noise, noise.bind(items, counts))

    def _changed(
        self, step: int, listed: UpItems, started: Words, ended: Words, tally: Tally, source: NoiseSource
    ) -> tuple[StatusRows, Charges]:
        """Return the status of all listed items, noisy counts of those that have changed, and whom these charge."""
        changed = np.union1d(started, ended)
        noisy = self._noisy(step, changed, tally.counts(changed), source)
        counts = np.zeros(0 if self.calibrated.count_sigma is None else len(listed), np.int64)
        counts[np.searchsorted(listed.items, changed)[: len(noisy)]] = noisy
        statuses = np.full(len(listed), CONTINUES, np.uint8)
        statuses[np.isin(listed.items, started)] = STARTED
        statuses[np.isin(listed.items, ended)] = ENDED
        rows = StatusRows(listed.items, statuses, listed.since, counts)
        return rows, tally.charges(np.isin(tally.items, changed))


@dataclass(frozen=True, kw_only=True)
class ThresholdMonitor(ChargingMonitor[MonitorState]):
    """Test at every step, for every item, whether at least about `detection_threshold` people have it now.

    Each hit charges every person who took part in it; a person charged `max_hits` times takes part no more. Misses
    cost nothing, so the number of tests is unbounded. With the calibration "status" a hit takes an item up. An item
    that is up is tested against a lower threshold, and goes down when too few people have it. Each change charges who
    took part in the test; staying up or down costs nothing.

    Privacy:
        Unit: one person over the whole run, added or removed: `guarantee`. Inputs may depend on everything published.
        Assumes that each person enters at most `items_per_step` items a step, which is checked, and, with an unknown
        domain, takes part in at most `horizon` steps: with `first_step` the monitor refuses other steps; without it
        the caller must cap each person's participation. While an item is up every step must be decided, also if nobody
        has anything, which `step` checks. Public: all fields, the steps, the hits or statuses, and their noisy counts.

    Accuracy:
        `detection_threshold`: the number of people, not yet dropped, from which an item is reported, or goes up at once
        and stays up, with probability 1 - beta, jointly over `tests` tests (and `up_steps` of items that are up). With
        an unknown domain, items that nobody has are never reported.

    Attributes:
        domain_size: size of a public domain, whose items are 0 .. domain_size - 1, or None if items exist only
            because somebody has them.
        horizon: steps that one person takes part in at most; None for no bound (with `first_step`, where
            thresholds rise slowly with time; or a known domain).
        first_step: public number of the first step, or None.
        items_per_step: items that one person has in a step at most, 1 to 65535.
        tests: number of tests for the accuracy; None for domain_size * horizon, or a million.
        calibration: "clock"; "status"; or "paper" for the clock's constants as published, for a public domain.
        up_steps: steps at which an item is up, of all items together, for the accuracy of statuses, up to `tests`.

    All other attributes are those of `ChargingMonitor`.

    Example:
        >>> monitor = ThresholdMonitor(epsilon=1.0, delta=1e-6, max_hits=4, domain_size=1000, tests=10**6, beta=0.01,
        ...                            count_share=0.0)
        >>> monitor.detection_threshold, replace(monitor, calibration="status").detection_threshold
        (330, 337)

    Source: Kaplan, Mansour, Stemmer (2020), Algorithms 3 and 5; docs/proofs/clock.md, docs/proofs/status_monitor.md.
    """

    domain_size: int | None = None
    horizon: int | None = None
    first_step: int | None = None
    items_per_step: int = 1
    tests: int | None = None
    calibration: str = "clock"
    up_steps: int = 100_000
    noise_label = "threshold monitor"
    state_type = MonitorState

    def __post_init__(self) -> None:
        checks.one_of("calibration", self.calibration, ("clock", "status", "paper"))
        for name in ("max_hits", "items_per_step"):
            checks.integer(name, getattr(self, name), minimum=1, maximum=LARGEST_UINT16)
        for name in ("domain_size", "horizon", "tests", "up_steps"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), minimum=1)
        if self.first_step is not None:
            checks.integer("first_step", self.first_step, minimum=0)
        elif self.domain_size is None and self.horizon is None:
            raise ValueError("horizon must be given unless first_step is public")
        _ = self._budget  # checks the rest

    @cached_property
    def _budget(self) -> MonitorBudget:
        known = self.domain_size is not None
        per_person = None if known or self.horizon is None else self.horizon * self.items_per_step
        return MonitorBudget(
            epsilon=self.epsilon,
            delta=self.delta,
            max_hits=self.max_hits,
            tests=self.tests or (self.domain_size or 0) * (self.horizon or 0) or DEFAULT_TESTS,
            beta=self.beta,
            domain="known" if known else "unknown",
            tests_per_person=per_person,
            items_per_step=self.items_per_step,
            count_share=self.count_share,
        )

    @cached_property
    @override
    def calibrated(self) -> Calibration:
        if self.calibration == "status":
            return status(self._budget, min(self.up_steps, self._budget.tests))
        return clock(self._budget) if self.calibration == "clock" else paper(self._budget)

    @property
    @override
    def guarantee(self) -> PrivacyGuarantee:
        return replace(self.calibrated.guarantee, horizon=None if self.first_step is None else self.horizon)

    @property
    def detection_threshold(self) -> int:
        """Return the number of people from which an item is reported (at the first step, if thresholds rise)."""
        return self.calibrated.detection_threshold(self._budget.tests, self.beta)

    def step(self, state: MonitorState, holdings: Holdings, noise: NoiseSource) -> tuple[MonitorState, StatusRows]:
        """Decide one step. Equal state, holdings (in any order of rows) and noise give equal bits.

        Raises:
            ValueError: a step that is not after the last one, or not the next one while an item is up; or holdings that
                break a rule of `Holdings`.
            HorizonExceeded: a step outside of the public horizon.
        """
        last = state.last_step
        if last is not None and holdings.step <= last:
            raise ValueError(f"step must be > the last step {last}, got {holdings.step}")
        if last is not None and len(state.up) and holdings.step > last + 1:
            raise ValueError(f"step must be {last + 1} while an item is up, got {holdings.step}")
        rows, charges, up = self.decide(state.counters, holdings, noise, state.up)
        return MonitorState(state.counters.add(charges), up, holdings.step), rows

    def decide(
        self, counters: UserCounters, holdings: Holdings, noise: NoiseSource, up: UpItems = NONE_UP
    ) -> tuple[StatusRows, Charges, UpItems]:
        """Return the rows of a step, whom they charge (not for publication), and the items that are up after it.

        For those who keep the state themselves: steps must be decided in increasing order, each once, and all of them
        while an item is up, which only `step` checks.
        """
        self._check(holdings)
        step, source = holdings.step, self._source(noise)
        tally = Tally.of(holdings, counters, self.max_hits)
        hits = tally.items[tally.totals >= self._thresholds(step, tally.items, source)]
        started = np.setdiff1d(np.union1d(hits, self._absent_hits(step, source)), up.items)
        ended = up.items[~self.could_stay(step, up.items, tally.counts(up.items), noise)]
        listed = up.with_started(started, step)
        rows, charges = self._changed(step, listed, started, ended, tally, source)
        return rows, charges, listed.without(ended) if self.calibration == "status" else up

    def could_exceed(self, step: int, items: Words, counts: Integers, noise: NoiseSource) -> NDArray[np.bool_]:
        """Return which items could be hits if `counts` (int64, all people, dropped or not) people have them.

        Dropping people only lowers counts, so leaving out the other items changes no outcome of `step`.
        """
        source = self._source(noise)
        return (counts >= self._thresholds(step, items, source)) | np.isin(items, self._absent_hits(step, source))

    def could_stay(self, step: int, items: Words, counts: Integers, noise: NoiseSource) -> NDArray[np.bool_]:
        """Return which items, if they are up, could stay so if `counts` (int64, all people, dropped or not) have them.

        An item can be up after a step only if it could exceed, or could be up before and could stay. Leaving out items
        that could neither be up before a step nor exceed changes no outcome of it.
        """
        if not len(items):
            return np.zeros(0, np.bool_)
        below = self.calibrated.end_law.draw(self._source(noise).derive("end threshold", step), items)
        return np.asarray(counts >= below)

    def may_be_up(self, step: int, before: Words, items: Words, counts: Integers, noise: NoiseSource) -> Words:
        """Return all items, uint64, increasing, that can be up after a step, and perhaps others.

        Args:
            step: the step.
            before: uint64, increasing: all items that can be up before it, and perhaps others.
            items: uint64, increasing: those that somebody has.
            counts: int64: how many people, dropped or not, have each of them.
            noise: of the run.
        """
        absent = self._absent_hits(step, self._source(noise))
        rising = np.union1d(items[self.could_exceed(step, items, counts, noise)], absent)
        had = np.zeros(len(before), np.int64)
        found = np.isin(before, items)
        had[found] = counts[np.searchsorted(items, before[found])]
        return np.union1d(rising, before[self.could_stay(step, before, had, noise)])

    def _number(self, step: int) -> int:
        """Return the place of a step in the public horizon, from 1; always 1 without `first_step`."""
        if self.first_step is None:
            return 1
        number = step - self.first_step + 1
        if number < 1 or (self.horizon is not None and number > self.horizon):
            last = "" if self.horizon is None else f" and < {self.first_step + self.horizon}"
            raise HorizonExceeded(f"step must be >= {self.first_step}{last}, got {step}")
        return number

    def _check(self, holdings: Holdings) -> None:
        """Refuse holdings that would let one person count more than the guarantee allows."""
        if self.domain_size is not None and np.any(holdings.items >= np.uint64(self.domain_size)):
            raise ValueError(f"items must be < domain_size {self.domain_size}")
        ranks = np.zeros(len(holdings.users), np.uint16) if holdings.ranks is None else holdings.ranks
        if np.any(ranks >= self.items_per_step):
            raise ValueError(f"ranks must be < items_per_step {self.items_per_step}")
        if repeats(holdings.users) and repeats(holdings.users, ranks):
            raise ValueError("ranks must be distinct for each person; a person without ranks has one item")
        if self.items_per_step > 1 and repeats(holdings.users, holdings.items):
            raise ValueError("items must be distinct for each person")

    def _thresholds(self, step: int, items: Words, source: NoiseSource) -> Integers:
        """Draw the hidden thresholds of a step, one per item, int64; none is below 1."""
        return self.calibrated.draw_thresholds(source.derive("threshold", step), items, step=self._number(step))

    @cached_property
    def _absent_law(self) -> IntegerLaw:
        """Law of the number of items, among all of a known domain, that are hits even if nobody has them."""
        size, p = self.domain_size or 0, self.calibrated.absent_hit_probability()
        if size * p > MAX_ABSENT:
            least = math.ceil(self._budget.tests * size * p / MAX_ABSENT)
            raise ValueError(f"tests must be >= {least}, or absent items fill the output, got {self._budget.tests}")
        mass = below = (1 - p) ** size
        cumulative: list[int] = []
        while (word := int(PRECISE.nint(PRECISE.ldexp(below, WORD_BITS)))) < ONE:
            mass *= p / (1 - p) * (size - len(cumulative)) / (len(cumulative) + 1)
            below += mass
            cumulative.append(word)
        return IntegerLaw.from_cumulative(0, cumulative)

    def _absent_hits(self, step: int, source: NoiseSource) -> Words:
        """Return the items (uint64, increasing) of a known domain that are hits at `step` even if nobody has them.

        They are drawn without looking at the data, and the thresholds of the others given that these are at least
        one: the joint law is that of one test per item, without a visit to each (Floyd's sampling).
        """
        chosen: set[int] = set()
        if self.domain_size is not None:
            number = int(self._absent_law.draw(source.derive("absent hits"), np.array([step], np.uint64))[0])
            words = source.derive("absent items", step).words(number)[:, 0]
            tops = range(self.domain_size - number, self.domain_size)
            for top, (high, low) in zip(tops, words.tolist(), strict=True):
                place = (high << 64 | low) % (top + 1)
                chosen.add(top if place in chosen else place)
        return np.array(sorted(chosen), np.uint64)
