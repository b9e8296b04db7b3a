"""StatusMonitor: report at every step which items are up, charging people only for changes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.monitor import status
from privstream.mechanisms.monitor.holdings import Charges, Holdings, UserCounters
from privstream.mechanisms.monitor.status import StatusCalibration
from privstream.mechanisms.monitor.threshold_monitor import ItemMonitor
from privstream.mechanisms.noise.prf import Words
from privstream.mechanisms.noise.sources import NoiseSource
from typing_extensions import override


@dataclass(frozen=True, eq=False)
class UpItems:
    """Items that are up: public, like the changes that made them so.

    Attributes:
        items: uint64, shape (n,), increasing.
        since: int64, shape (n,): the step at which each of them went up.
    """

    items: Words
    since: NDArray[np.int64]

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


STARTED, CONTINUES, ENDED = range(3)


@dataclass(frozen=True, eq=False)
class StatusRows:
    """What is published about one step: the items that are up, and those that no longer are.

    Attributes:
        items: uint64, shape (m,), increasing.
        status: uint8, shape (m,): STARTED, CONTINUES or ENDED.
        since: int64, shape (m,): the step at which each item went up.
        counts: int64, shape (m,): noisy number of people charged, for items that started or ended; 0 for those that
            continue, as nothing is paid for their counts. Shape (0,) without counts.
    """

    items: np.ndarray
    status: np.ndarray
    since: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True, eq=False)
class StatusState:
    """Everything that outlives a step. `last_step` is the last one decided, None before the first."""

    counters: UserCounters = field(default_factory=UserCounters)
    up: UpItems = field(default_factory=UpItems.none)
    last_step: int | None = None


@dataclass(frozen=True, kw_only=True)
class StatusMonitor(ItemMonitor[StatusState]):
    """Keep for every item a public status, up while about `detection_threshold` people or more have it.

    An item that is down is tested like by the clock of `ThresholdMonitor`, and a hit takes it up. An item that is up is
    tested the other way round, against a lower threshold, and goes down when too few people have it. Each change
    charges every person who took part in the test; staying up or down costs nothing, so a lasting favourite costs its
    people one charge. A person charged `max_hits` times takes part no more.

    Privacy:
        Unit: one person over the whole run, added or removed. See `guarantee`. Assumes what
        `ThresholdMonitor` assumes. While an item is up every step must be decided, also if nobody has anything, which
        `step` checks.
        Public: all fields, the steps, the statuses and the noisy counts of changes.

    Accuracy:
        `detection_threshold`: the number of people, not yet dropped, from which an item goes up at once and stays up,
        with probability 1 - beta, jointly over `tests` up-tests and `up_steps` down-tests. `ends_with`: the number of
        people up to which an item that is up goes down at once. `steps_up`: how long one in between stays up. With
        an unknown domain, items that nobody has never go up.

    Attributes:
        up_steps: steps at which an item is up, of all items together, for the accuracy; no more than
            `tests` count. More of them lower the threshold at which items go down.

    All other attributes are those of `ItemMonitor`.

    Example:
        >>> monitor = StatusMonitor(epsilon=1.0, delta=1e-6, max_hits=4, domain_size=1000, tests=10**6, beta=0.01,
        ...                         count_share=0.0)
        >>> monitor.detection_threshold, monitor.ends_with(0.01)
        (337, 46)

    Source: derived here, docs/proofs/status_monitor.md.
    """

    up_steps: int = 100_000
    noise_label = "status monitor"
    state_type = StatusState

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.integer("up_steps", self.up_steps, minimum=1)

    @cached_property
    @override
    def calibrated(self) -> StatusCalibration:
        return status.calibrate(self._budget, min(self.up_steps, self._budget.tests))

    def ends_with(self, beta: float) -> int:
        """Return up to how many people an item that is up goes down at once, but with chance `beta`; -1 if never."""
        return self.calibrated.ends_with(beta)

    def steps_up(self, count: int) -> float:
        """Return for how many steps on average an item stays up that always has so many people."""
        end = float(self.calibrated.end_probability(count))
        return 1 / end if end else math.inf

    def step(self, state: StatusState, holdings: Holdings, noise: NoiseSource) -> tuple[StatusState, StatusRows]:
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
        rows, up, charges = self.decide(state.counters, state.up, holdings, noise)
        return StatusState(state.counters.add(charges), up, holdings.step), rows

    def decide(
        self, counters: UserCounters, up: UpItems, holdings: Holdings, noise: NoiseSource
    ) -> tuple[StatusRows, UpItems, Charges]:
        """Return the rows of a step, the items that are up after it, and who is charged (not for publication).

        For those who keep the state themselves: steps must be decided in increasing order, each once, and all of them
        while an item is up, which only `step` checks.
        """
        step, source = holdings.step, self._source(noise)
        tally = self._tally(counters, holdings)
        hit, absent = self._hits(step, tally, source)
        started = np.setdiff1d(np.union1d(tally.items[hit], absent), up.items)
        stays = tally.counts(up.items) >= self._end_thresholds(step, up.items, source)
        ended = up.items[~stays]
        changed = np.union1d(started, ended)
        listed = up.with_started(started, step)
        shown = self._noisy_of_changed(step, listed.items, changed, tally.counts(changed), source)
        rows = StatusRows(listed.items, _statuses(listed, started, ended), listed.since, shown)
        return rows, listed.without(ended), tally.charges(np.isin(tally.items, changed))

    def could_stay(self, step: int, items: np.ndarray, counts: np.ndarray, noise: NoiseSource) -> np.ndarray:
        """Return which items, if they are up, could stay so if `counts` (int64, all people, dropped or not) have them.

        An item can be up after a step only if it could exceed, or could be up before and could stay. Leaving out items
        that could neither be up before a step nor exceed changes no outcome of it.
        """
        return np.asarray(counts >= self._end_thresholds(step, items, self._source(noise)))

    def may_be_up(
        self, step: int, before: np.ndarray, items: np.ndarray, counts: np.ndarray, noise: NoiseSource
    ) -> np.ndarray:
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

    def _end_thresholds(self, step: int, items: np.ndarray, source: NoiseSource) -> np.ndarray:
        """Draw the hidden thresholds below which items that are up go down, one per item, int64."""
        return self.calibrated.draw_end_thresholds(source.derive("end threshold", step), items)

    def _fields(self, state: StatusState) -> dict[str, Any]:
        last = -1 if state.last_step is None else state.last_step
        charges = state.counters.compact().to_bytes()
        return {"last": last, "charges": charges, "up": state.up.items, "since": state.up.since}

    def _state(self, fields: dict[str, Any]) -> StatusState:
        counters = UserCounters().add(Charges.from_bytes(fields["charges"]))
        up = UpItems(fields["up"], fields["since"])
        return StatusState(counters, up, None if fields["last"] < 0 else fields["last"])


def _statuses(listed: UpItems, started: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Return the status of each item that is up or was until now."""
    found = np.full(len(listed), CONTINUES, np.uint8)
    found[np.isin(listed.items, started)] = STARTED
    found[np.isin(listed.items, ended)] = ENDED
    return found
