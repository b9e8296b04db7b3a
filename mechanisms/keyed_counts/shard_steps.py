"""How a shard of keys goes from one step to the next: who waits, who is counted, what noise is drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.keyed_counts.calibration import KeyLaw
from privstream.mechanisms.keyed_counts.key_table import Integers, KeyedState, KeyedStep, KeyTable
from privstream.mechanisms.noise.prf import Words
from privstream.mechanisms.noise.sources import NoiseSource

ANSWERS = ("count", "sum")
NO_KEYS = np.zeros(0, np.uint64)


@dataclass(frozen=True)
class ShardSteps:
    """Steps of one shard. A key waits, without noise, until enough people have it; then it is counted for good.

    The noise of a counted key is that of all steps since the start: what it would remember of the steps before is drawn
    when the key starts to be counted, bound to totals of zero.
    """

    law: KeyLaw

    def start(self, keys: Words, step: int = 0) -> KeyedState:
        """Return a state after `step` in which nothing was contributed yet, with these keys counted."""
        windows, answers = self.law.bounds.span or 0, len(self.law.noises)
        waiting = KeyTable.empty(NO_KEYS, answers, windows, 0)
        return KeyedState(step, waiting, KeyTable.empty(keys, answers, windows, self._rows))

    def step(
        self, state: KeyedState, given: KeyedStep, values: Integers, source: NoiseSource
    ) -> tuple[KeyedState, Words, Integers]:
        """Return the next state, and the keys that are published with their noisy answers, (answers, keys).

        Args:
            state: before.
            given: what came.
            values: counts and perhaps sums of it, (answers, n).
            source: noise of this run.
        """
        waiting, counted = state.waiting.copy(), state.counted.copy()
        for step in range(state.step + 1, given.step if self._rows else 0):
            _forget_oldest(counted, step - 1, step)
            self._noises(counted, step, source)
        for table in (waiting, counted):
            _forget_oldest(table, state.step, given.step)
        waiting, counted = self._added(waiting, counted, given, values, source)
        answers = self._noises(counted, given.step, source)
        answers += counted.answers
        chosen = self._chosen(counted, answers[0], given.step)
        counted.published[:] |= chosen
        following = self.start(NO_KEYS, given.step) if self._windows_alone else KeyedState(given.step, waiting, counted)
        return following, counted.keys[chosen], answers[:, chosen]

    @property
    def _rows(self) -> int:
        return sum(noise.rows for noise in self.law.noises)

    @property
    def _windows_alone(self) -> bool:
        """Whether nothing outlives a step."""
        return self.law.bounds.span == 1 and not self._public

    @property
    def _public(self) -> bool:
        return self.law.bounds.min_people is None

    def _added(
        self, waiting: KeyTable, counted: KeyTable, given: KeyedStep, values: Integers, source: NoiseSource
    ) -> tuple[KeyTable, KeyTable]:
        """Return the tables with what came: first to counted keys, then to those that wait, of which some are ready."""
        slot = given.step % max(1, len(counted.recent))
        people = given.counts if given.people is None else given.people
        index, here = counted.positions(given.keys)
        counted.add(index[here], people[here], values[:, here], slot)
        rest = np.flatnonzero(~here) if self._public else np.flatnonzero(~here & (given.counts > 0))
        if not len(rest):
            return waiting, counted
        if self._public:
            raise ValueError("keys must be on the public list that the state was made with")
        _, here = waiting.positions(given.keys[rest])
        unseen = np.sort(given.keys[rest[~here]])
        waiting = waiting.joined(KeyTable.empty(unseen, len(values), len(counted.recent), 0))
        index, _ = waiting.positions(given.keys[rest])
        waiting.add(index, people[rest], values[:, rest], slot)
        ready = waiting.people >= (self.law.bounds.min_people or 1)
        counted = counted.joined(self._remembering(waiting.take(ready), given.step, source))
        return waiting.take(~ready), counted

    def _remembering(self, table: KeyTable, step: int, source: NoiseSource) -> KeyTable:
        """Return keys that start to be counted at `step`, with the memory of the noise of all steps before."""
        memory, first = np.zeros((self._rows, len(table.keys))), 0
        for answer, noise in enumerate(self.law.noises):
            noise.remember(memory[first : first + noise.rows], step, table.keys, source.derive(ANSWERS[answer]))
            first += noise.rows
        return replace(table, memory=memory)

    def _noises(self, table: KeyTable, step: int, source: NoiseSource) -> Integers:
        """Return the noise of one step, int64 (answers, keys); the table's memory is brought up to date in place."""
        noises = np.empty(table.totals.shape, np.int64)
        first = 0
        for answer, noise in enumerate(self.law.noises):
            memory = table.memory[first : first + noise.rows]
            own = source.derive(ANSWERS[answer])
            facts = [table.answers[answer], *([table.totals[answer]] if len(table.recent) > 1 else [])]
            noises[answer] = noise.advance(memory, step, table.keys, facts, own)
            first += noise.rows
        return noises

    def _chosen(self, table: KeyTable, counts: Integers, step: int) -> NDArray[np.bool_]:
        """Return which keys are published: since the start, for good."""
        threshold = self.law.threshold(step)
        if threshold is None:
            return np.ones(len(table.keys), np.bool_)
        found = counts >= threshold
        return found | table.published if self.law.bounds.span is None else found


def _forget_oldest(table: KeyTable, before: int, now: int) -> None:
    """Empty the places of the ring that the steps after `before`, up to `now`, take."""
    windows = len(table.recent)
    for step in range(max(before + 1, now - windows + 1), now + 1):
        table.recent[step % windows] = 0
