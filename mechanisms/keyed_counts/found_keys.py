"""FoundKeys: counts of each window, of keys that nobody knew before, and that stay found."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.keyed_counts.calibration import MOST_LISTED, DiscoveryLaw, calibrate_discovery
from privstream.mechanisms.keyed_counts.keyed_counts import ANSWERS, KeyedCounts, KeyedRows, KeyedStep
from privstream.mechanisms.noise.sources import NoiseSource, Words
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from scipy import special
from typing_extensions import override

MOST_KEPT = 1024
"""Windows of which a key that is found has rows, the one in which it is found among them."""

NOT_FOUND = -1
CARRIED = 0
PUBLIC = -2

_STALE = 2.0  # deviations of the noise above which what was published of a key is more than noise
_TOGETHER = 1 << 20  # numbers that are drawn in one call


@dataclass(frozen=True, eq=False)
class WindowCounts:
    """What one window brought to keys that were not found, each once: int64 (answers, keys). Private."""

    step: int
    keys: Integers
    values: Integers


def windows_since(windows: tuple[WindowCounts, ...], first: int) -> tuple[WindowCounts, ...]:
    """Return the windows from a step on."""
    return windows[bisect_left(windows, first, key=lambda window: window.step) :]


@dataclass(frozen=True, eq=False)
class FoundState:
    """What outlives a step, in columns of keys. Private, but for what was published of keys that are found."""

    step: int  # steps so far
    found_at: Integers  # the step at which each key was found, or PUBLIC, CARRIED or NOT_FOUND
    totals: Integers  # sums of the counts that were published
    listed: Integers  # entries of each key on the list of people; empty without one
    windows: tuple[WindowCounts, ...]  # what came for keys that are not found, as far as there may be rows of it

    @property
    def found(self) -> Integers:
        """The keys that are published, increasing."""
        return np.flatnonzero(self.found_at != NOT_FOUND)


@dataclass(frozen=True, kw_only=True)
class FoundKeys(KeyedCounts):
    """Publishes after every step how many people contributed to each key, of all keys found so far; perhaps also sums.

    A key is found when the noisy sum of its counts over the last 1, 4, 16 or 64 windows reaches the threshold of that
    many windows, or when the list of different people, read after half of the run and at its end, has enough of them.
    From then on its noisy count is published after every step, and once those of earlier windows. Keys on a public
    list, if there is one, are published from the first step on, and never tested.

    Keys are numbers 0, 1, 2, .. that the caller gives: rows of a table. Every step must be given. Runs with different
    public lists need noise sources of their own.

    Privacy:
        As for `KeyedCounts`. Public besides: the number of steps, and the public list. Keys that are carried over must
        have been published. On the list of people a person counts for at most 32 keys, once for each.

    Accuracy:
        As for `KeyedCounts`. `people_needed(windows)`: how many people a key needs in each of a number of windows to be
        found in them, or soon after, with an even chance.

    Attributes: those of `KeyedCounts`, but that `over` is not "start", and without `min_people` people in one window a
    key is not found; its other windows may have fewer.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> counts = FoundKeys(epsilon=1.0, delta=1e-6, contributions=7, horizon=16)
        >>> state, found = counts.initial_state(), []
        >>> for step in range(1, 17):
        ...     given = KeyedStep(step=step, keys=np.array([0], np.uint64), counts=np.array([40]),
        ...                       listed=np.array([40 * (step == 1)]))
        ...     state, rows = counts.step(state, given, SeededNoise(1))
        ...     found.append(len(rows.earlier) + len(rows.keys))
        >>> found[0], sum(found)
        (0, 16)

    Source: derived here, docs/proofs/keyed_counts.md, section 9.
    """

    noise_label = "counts of found keys"
    state_type = FoundState

    @override
    def _check_keys(self) -> None:
        if self.over == "start" or self.public_keys:
            raise ValueError("over must not be start, and public_keys must be false: keys are found by their windows")

    @property
    @override
    def listed(self) -> int:
        # None for events, and in a single window.
        return 0 if self.unit == "event" or self.horizon == 1 else min(MOST_LISTED, self.contributions)

    @property
    def last_listed(self) -> int:
        """The last step at which the list of different people is tested; 0 without one."""
        return self.horizon if self.listed else 0

    @cached_property
    def law(self) -> DiscoveryLaw:
        """Noise, and the thresholds of all scales."""
        return calibrate_discovery(float(self.epsilon), float(self.delta), self.bounds)

    @override
    def _described(self) -> Any:
        people = self.law.people
        return [super()._described(), [] if people is None else [repr(noise.law) for noise in people.noises]]

    @property
    def kept(self) -> int:
        """Windows of which a key that is found has rows."""
        return min(MOST_KEPT, self.horizon)

    @property
    @override
    def guarantee(self) -> PrivacyGuarantee:
        return replace(super().guarantee, proof=f"docs/proofs/keyed_counts.md, Theorem {4 if self.listed else 3}")

    @property
    @override
    def accuracy(self) -> Accuracy:
        # Also `likely_in_n`: people in each of n windows, one or all, with whom a key is found with 95%.
        found = super().accuracy
        likely = {f"likely_in_{windows}": round(self.people_needed(windows, 0.95)) for windows in {1, self.horizon}}
        return replace(found, numbers={**found.numbers, **likely})

    def people_needed(self, windows: int, probability: float = 0.5) -> float:
        """Return how many people a key needs in each of a number of windows to be found with a probability.

        It is found in these windows, wherever they lie, or soon after: by a block that holds most of them, the best
        single one, with normal noise.
        """
        checks.integer("windows", windows, minimum=1)
        margin = self.stddev(1) * float(special.ndtri(checks.probability("probability", probability)))
        return min(scale.people(windows, margin) for scale in self.law.scales)

    def initial_state(self, keys: Words | None = None, *, public: int = 0, carried: int = 0) -> Any:
        """Return the state before the first step; `keys` is None.

        Keys 0, .., public - 1 are on the public list, and the next `carried` ones were published before.

        Raises:
            ValueError: keys are given; or a number is below 0.
        """
        if keys is not None:
            raise ValueError("keys must not be given unless their list is public")
        kept = checks.integer("public", public, minimum=0)
        number = kept + checks.integer("carried", carried, minimum=0)
        found_at = np.full(number, CARRIED, np.int64)
        found_at[:kept] = PUBLIC
        listed = np.zeros(number if self.law.people else 0, np.int64)
        return FoundState(0, found_at, np.zeros(number, np.int64), listed, ())

    def step(self, state: Any, given: KeyedStep, noise: NoiseSource) -> tuple[Any, KeyedRows]:
        """Add what one step brought, and return the counts of all keys that are found now.

        Rows of earlier steps, of keys that are found only now, are in `earlier`.

        Raises:
            HorizonExceeded: the run is over.
            ValueError: a step is missing, or sums are beyond their limits.
        """
        keys, values, names = self._checked(given, state.step, len(state.found_at))
        if given.step != state.step + 1:
            raise ValueError(f"step must be {state.step + 1}, got {given.step}: every step must be given")
        source, step, number = self._source(noise), given.step, len(names)
        found_at, totals = _extended(state.found_at, number, NOT_FOUND), _extended(state.totals, number, 0)
        waiting = np.flatnonzero((found_at[keys] == NOT_FOUND) & (given.counts > 0))
        windows = windows_since(state.windows, step - self.kept + 1)
        if len(waiting):
            windows += (WindowCounts(step, keys[waiting], values[:, waiting]),)
        newly = self._newly_found(windows, found_at, step, names, source)
        listed = state.listed
        if given.listed is not None:
            listed = _extended(listed, number, 0)
            listed[keys] += given.listed
        newly = np.union1d(newly, self._found_on_list(listed, found_at, step, names, source))
        found_at[newly] = step
        published = np.flatnonzero(found_at != NOT_FOUND)
        true = np.zeros((len(values), 1, number), np.int64)
        true[:, 0, keys] = values
        noisy = self._noisy(published, true[:, :, published], step, names, source)[:, 0]
        rows = KeyedRows(step, published.astype(np.uint64), noisy)
        earlier = (*self._earlier(windows, newly, step, names, source),)
        totals[published] += rows.counts
        for one in earlier:
            totals[newly] += one.counts
        if len(newly):
            windows = tuple(_without(window, found_at) for window in windows)
        return FoundState(step, found_at, totals, listed, windows), replace(rows, earlier=earlier)

    def renewed(self, state: FoundState) -> tuple[FoundState, Integers]:
        """Return the state before the first step of a period that follows, and the old numbers of its keys.

        They are those that `lasting` returns, which are published from its first step on.
        """
        kept = self.lasting(state)
        found_at = np.where(state.found_at[kept] == PUBLIC, PUBLIC, CARRIED)
        return replace(self.initial_state(carried=len(kept)), found_at=found_at), kept

    def lasting(self, state: FoundState) -> Integers:
        """Return the keys, increasing, that the next budget period should carry over: those that are not only noise,
        and those on the public list.

        Privacy: post-processing of what was published.
        """
        found = state.found
        first = np.maximum(state.found_at[found] - self.kept, 0)
        noise = self.stddev(1) * np.sqrt(state.step - first)
        kept: Integers = found[(state.totals[found] > _STALE * noise) | (state.found_at[found] == PUBLIC)]
        return kept

    def compact(self, state: FoundState) -> tuple[FoundState, Integers]:
        """Return the state with keys numbered anew, and the old numbers of these.

        Keys that are not found, and have no contribution in the windows that are kept, go: they have no effect.
        """
        held = state.found_at != NOT_FOUND
        if len(state.listed):
            held |= state.listed > 0
        for window in state.windows:
            held[window.keys] = True
        kept, place = np.flatnonzero(held), np.cumsum(held) - 1
        windows = tuple(replace(window, keys=place[window.keys]) for window in state.windows)
        listed = state.listed[kept] if len(state.listed) else state.listed
        return FoundState(state.step, state.found_at[kept], state.totals[kept], listed, windows), kept

    def _newly_found(
        self, windows: tuple[WindowCounts, ...], found_at: Integers, step: int, names: Words, source: NoiseSource
    ) -> Integers:
        """Return the keys, increasing, that pass a test at this step: their blocks have the noise of their windows."""
        passed = [np.zeros(0, np.int64)]
        for scale in self.law.scales if windows else ():
            if not scale.is_due(step):
                continue
            first, sums = step - scale.windows + 1, np.zeros(len(found_at), np.int64)
            for window in windows_since(windows, first):
                sums[window.keys] += window.values[0]
            tested, size = np.flatnonzero(sums >= scale.least), max(1, _TOGETHER // scale.windows)
            for some in (tested[start : start + size] for start in range(0, len(tested), size)):
                true = self._brought(windows, some, first, step, len(found_at))[:1]
                passed.append(some[self._noisy(some, true, first, names, source)[0].sum(axis=0) >= scale.threshold])
        return np.unique(np.concatenate(passed))

    def _found_on_list(
        self, listed: Integers, found_at: Integers, step: int, names: Words, source: NoiseSource
    ) -> Integers:
        """Return the keys, increasing, that enough different people have had for the list to find them at this step."""
        people = self.law.people
        if people is None or step not in people.steps:
            return np.zeros(0, np.int64)
        test = people.steps.index(step)
        tested = np.flatnonzero((listed >= people.least[test]) & (found_at == NOT_FOUND))
        law, own = people.noises[test].law, source.derive("people")
        noise = law.draw_bound(own, names[tested], step, listed[tested])
        found: Integers = tested[listed[tested] + noise >= people.thresholds[test]]
        return found

    def _earlier(
        self, windows: tuple[WindowCounts, ...], newly: Integers, step: int, names: Words, source: NoiseSource
    ) -> Iterator[KeyedRows]:
        """Return the rows of earlier steps of keys that are found at this one."""
        if not len(newly):
            return
        first = max(1, step - self.kept + 1)
        size = max(1, _TOGETHER // len(newly))
        for start in range(first, step, size):
            last = min(start + size, step) - 1
            noisy = self._noisy(newly, self._brought(windows, newly, start, last, len(names)), start, names, source)
            for place in range(last - start + 1):
                yield KeyedRows(start + place, newly.astype(np.uint64), noisy[:, place])

    def _brought(
        self, windows: tuple[WindowCounts, ...], keys: Integers, first: int, last: int, number: int
    ) -> Integers:
        """Return what windows `first` to `last` brought to some of the keys, int64 (answers, windows, keys)."""
        found = np.zeros((len(self.law.noises), last - first + 1, len(keys)), np.int64)
        place = np.full(number, -1)
        place[keys] = np.arange(len(keys))
        for window in windows_since(windows, first):
            if window.step <= last:
                at = place[window.keys]
                some = np.flatnonzero(at >= 0)
                found[:, window.step - first, at[some]] = window.values[:, some]
        return found

    def _noisy(self, keys: Integers, true: Integers, first: int, names: Words, source: NoiseSource) -> Integers:
        """Return exact numbers of steps from `first` on, int64 (answers, steps, keys), with noise bound to them."""
        noisy, steps = true.copy(), first + np.arange(true.shape[1], dtype=np.uint64)
        labels, at = np.tile(names[keys], len(steps)), np.repeat(steps, len(keys))
        for answer, noise, numbers in zip(ANSWERS, self.law.noises, noisy, strict=False):
            drawn = noise.law.draw_bound(source.derive(answer), labels, at, numbers.ravel())
            numbers[:] += drawn.reshape(numbers.shape)
        return noisy


def _extended(column: Integers, number: int, value: int) -> Integers:
    """Return a copy of a column with `number` rows."""
    return np.concatenate([column, np.full(number - len(column), value, np.int64)])


def _without(window: WindowCounts, found_at: Integers) -> WindowCounts:
    """Return what a window brought to keys that are not found."""
    rest = found_at[window.keys] == NOT_FOUND
    return window if rest.all() else WindowCounts(window.step, window.keys[rest], window.values[:, rest])
