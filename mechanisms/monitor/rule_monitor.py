"""RuleMonitor: which public rules about numbers of people are active, charging people only for changes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.monitor.calibration import Calibration, MonitorBudget, falling_law, rising_law, status
from privstream.mechanisms.monitor.holdings import Charges, Holdings, Tally, UserCounters, repeats
from privstream.mechanisms.monitor.item_monitors import (
    DEFAULT_TESTS,
    LARGEST_UINT16,
    ChargingMonitor,
    StatusRows,
    UpItems,
)
from privstream.mechanisms.noise.discrete import LARGEST_TABLE, WORD_BITS, IntegerLaw
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from typing_extensions import override

LARGEST_THRESHOLD = 1 << 53
INACTIVE = -1


@dataclass(frozen=True, eq=False)
class RuleState:
    """Who has been charged, and what is public: since which step rules are active, and how many changes there were.

    Attributes:
        counters: who has been charged. Private.
        since: int64, shape (rules,); INACTIVE for rules that are not.
        changes: all of them so far, of all rules.
        last_step: the last one that was decided.
    """

    counters: UserCounters = field(default_factory=UserCounters)
    since: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    changes: int = 0
    last_step: int = -1


@dataclass(frozen=True, kw_only=True)
class RuleMonitor(ChargingMonitor[RuleState]):
    """Keep for each of some public rules, such as "at least 500 people", whether it is active.

    It is `ThresholdMonitor` with statuses and two public thresholds for each key: one at which it becomes active, and
    one at which it ends. Rules of few people would become active where people were charged `max_hits` times and no
    longer count: they are tested, and active, only until `max_hits` + 1 less their number changes are published.

    Privacy:
        Unit: one person over the whole run, added or removed. (epsilon, delta): `guarantee`. Every rule is
        tested at every step; people may take part in any number of steps. Assumes that of a person only the rules
        ranked below the charges left count, see `Holdings`; rules of few people are ranked first. Public: all fields,
        the steps, the changes and the noisy counts of changes.

    Accuracy:
        `margin_in(tests)`: with probability 1 - beta, in so many tests, every number of people, of those not yet
        dropped, that passes its threshold by more than the margin makes a rule active at once, and keeps it so; and
        none that misses it by more does. In between a rule stays as it is.

    Attributes:
        max_hits: at least the number of rules: one person may count for all of them.
        starts: for each rule the number of people at which it becomes active, integers in [0, 2^53].
        ends: the number at which it ends; not above `starts` for rules of many people, not below for those of few.
        many: for each rule, whether it is active with many people ("at least"), and not with few ("at most").
        tests: tests of one rule at one step for the accuracy.

    All other attributes are those of `ChargingMonitor`.

    Example:
        >>> monitor = RuleMonitor(epsilon=1.0, delta=1e-6, max_hits=4, starts=(500,), ends=(500,), many=(True,))
        >>> monitor.margin_in(monitor.tests)
        194

    Source: derived here, docs/proofs/status_monitor.md, section 6.
    """

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    many: tuple[bool, ...]
    tests: int = DEFAULT_TESTS

    noise_label = "rule monitor"
    state_type = RuleState

    def __post_init__(self) -> None:
        if not self.starts or not len(self.starts) == len(self.ends) == len(self.many):
            raise ValueError("starts, ends and many must be of equal length, at least one")
        for start, end, many in zip(self.starts, self.ends, self.many, strict=True):
            for name, value in {"starts": start, "ends": end}.items():
                checks.integer(name, value, minimum=0, maximum=LARGEST_THRESHOLD)
            if (end > start) if many else (end < start):
                raise ValueError(f"ends must not be beyond starts, got {end} and {start}")
        most = checks.integer("max_hits", self.max_hits, minimum=1, maximum=LARGEST_UINT16)
        if most < len(self.starts):
            raise ValueError(f"max_hits must be >= the number of rules, got {most} < {len(self.starts)}")
        if sum(self._reaches) > LARGEST_TABLE:
            raise ValueError(f"epsilon must be larger: noise would need a table of more than {LARGEST_TABLE:,} numbers")

    @cached_property
    @override
    def calibrated(self) -> Calibration:
        """The noise that meets the guarantee; its thresholds are for items, and not used here."""
        budget = MonitorBudget(
            epsilon=self.epsilon,
            delta=self.delta,
            max_hits=self.max_hits,
            tests=self.tests,
            beta=self.beta,
            items_per_step=len(self.starts),
            count_share=self.count_share,
        )
        return status(budget, up_steps=self.tests)

    @property
    @override
    def guarantee(self) -> PrivacyGuarantee:
        return replace(self.calibrated.guarantee, public=("all parameters", "the steps", "the changes"))

    def margin_in(self, tests: int) -> int:
        """Return by how much a threshold must be passed, or missed, for so many tests to go as they should.

        Thresholds stay where they are for `tests`.
        """
        surely, eta = math.log(checks.integer("tests", tests, minimum=1) / self.beta), self.calibrated.eta
        return math.ceil(max(math.log(surely) / eta + self._shift, surely / eta - self._shift))

    @property
    def _shift(self) -> float:
        """By how much thresholds are moved away from each other, so that both kinds of errors have one margin."""
        surely = math.log(self.tests / self.beta)
        return (surely - math.log(surely)) / (2 * self.calibrated.eta)

    @property
    def _reaches(self) -> tuple[int, int]:
        """How far below 0 the laws of T and T' reach, to 128 bits."""
        bits, eta = math.log(2) * WORD_BITS, self.calibrated.eta
        return math.ceil(bits / eta + self._shift) + 1, math.ceil(math.log(bits) / eta + self._shift) + 1

    @property
    def _laws(self) -> tuple[IntegerLaw, IntegerLaw]:
        """The laws of T and T' for numbers of 0, to 128 bits: numbers of rules move numbers of people."""
        eta, (reach, near) = self.calibrated.eta, self._reaches
        return rising_law(eta, self._shift, -reach), falling_law(eta, -self._shift, -near)

    @override
    def initial_state(self) -> RuleState:
        return RuleState(since=np.full(len(self.starts), INACTIVE, np.int64))

    def step(self, state: RuleState, holdings: Holdings, noise: NoiseSource) -> tuple[RuleState, StatusRows]:
        """Decide one step. Equal state, holdings (in any order of rows) and noise give equal bits.

        Args:
            state: the state before.
            holdings: who counts for which rule; `items` are numbers of rules.
            noise: what all noise is drawn from.

        Raises:
            ValueError: the step does not follow the last one, or holdings break a rule of `Holdings`.
        """
        if state.last_step >= 0 and holdings.step != state.last_step + 1:
            raise ValueError(f"step must be {state.last_step + 1}, got {holdings.step}: every step is decided")
        rows, after, charges = self.decide(state, holdings, noise)
        return replace(after, counters=state.counters.add(charges)), rows

    def decide(self, state: RuleState, holdings: Holdings, noise: NoiseSource) -> tuple[StatusRows, RuleState, Charges]:
        """Return the rows of a step, the state after it but for charges, and who is charged (not for publication).

        For those who keep the charges themselves: all steps must be decided, in order, each once, which only `step`
        checks.
        """
        self._check(holdings)
        step, source, since = holdings.step, self._source(noise), state.since
        tally = Tally.of(holdings, state.counters, self.max_hits)
        counts = tally.counts(np.arange(len(self.starts), dtype=np.uint64))
        active = since != INACTIVE
        changed = (self._active(step, counts, active, source) != active) & self._tested(state.changes)
        changes = state.changes + int(changed.sum())
        tested = self._tested(changes)
        started, ended = (np.flatnonzero(changed & was).astype(np.uint64) for was in (~active, active))
        listed = np.flatnonzero(active | changed)
        shown = UpItems(listed.astype(np.uint64), np.where(active, since, step)[listed])
        rows, charges = self._changed(step, shown, started, ended, tally, source)
        rows = replace(rows, stopped=bool(np.any(self._tested(state.changes) & ~tested)))
        after = np.where(changed, np.where(active, INACTIVE, step), since)
        kept = replace(state, since=np.where(tested, after, INACTIVE), changes=changes, last_step=step)
        return rows, kept, charges

    def _tested(self, changes: int) -> NDArray[np.bool_]:
        """Return which rules are tested after so many changes: those of few people while everybody counts for them.

        A person has been charged once for a change at most, and counts for as many rules as charges are left, the first
        of which are those of few people.
        """
        return np.array(self.many) | (changes < self.max_hits + 1 - self.many.count(False))

    def _active(self, step: int, counts: Integers, active: NDArray[np.bool_], source: NoiseSource) -> NDArray[np.bool_]:
        """Test all rules: whether each is active now, given whether it was."""
        rules, many = np.arange(len(counts), dtype=np.uint64), np.array(self.many)
        upper, lower = (
            np.where(many, one, other) for one, other in ((self.starts, self.ends), (self.ends, self.starts))
        )
        rises, falls = self._laws
        above = counts >= upper + rises.draw(source.derive("rise", step), rules)
        below = counts < lower + falls.draw(source.derive("fall", step), rules)
        high = np.where(active == many, ~below, above)  # of a rule of few people that is not active, the number is high
        return np.asarray(high == many)

    def _check(self, holdings: Holdings) -> None:
        """Refuse holdings that would let one person count more than the guarantee allows."""
        if np.any(holdings.items >= np.uint64(len(self.starts))):
            raise ValueError(f"items must be numbers of rules, < {len(self.starts)}")
        ranks = np.zeros(len(holdings.users), np.uint16) if holdings.ranks is None else holdings.ranks
        if repeats(holdings.users) and (repeats(holdings.users, ranks) or repeats(holdings.users, holdings.items)):
            raise ValueError("ranks and items must be distinct for each person")
        few = ~np.array(self.many)[holdings.items.astype(np.int64)]
        if np.any(ranks[few] >= self.many.count(False)):
            raise ValueError("ranks of rules of few people must come first")
