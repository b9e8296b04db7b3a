"""FoundKeys: counts of each window, of keys that nobody knew before, and that stay found."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.keyed_counts.calibration import Bounds
from privstream.mechanisms.keyed_counts.discovery import (
    MOST_LISTED,
    DiscoveryLaw,
    calibrate_discovery,
    scales_of,
)
from privstream.mechanisms.keyed_counts.key_noise import KeyNoise, ToeplitzNoise
from privstream.mechanisms.keyed_counts.key_table import KeyedRows, KeyedStep, WindowCounts, windows_since
from privstream.mechanisms.keyed_counts.keyed_counts import ANSWERS, KeyedCounts, limits_told
from privstream.mechanisms.noise.prf import Words
from privstream.mechanisms.noise.sources import NoiseSource, SeededNoise
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.smoothing import LEAST_STDDEV, MOST_RISING, MOST_SUMMED, LevelState, LocalLevel, Rises
from scipy import special

MOST_KEPT = 1024
"""Windows of which a key that is found has rows, the one in which it is found among them."""

LASTING = (1, 4, 16, 64, 256)
"""Windows for which it is said how many people are needed."""

OTHERS = "_by_others"
"""In names of numbers of people: no person has an item in two windows."""

LARGEST_SUMMED = 1 << 29
"""Largest value times windows of a sum: with 2^33 contributions to a key in each of them, sums are below 2^62."""

NOT_FOUND = -1
CARRIED = 0
PUBLIC = -2

_SIMULATED = 64  # items, and windows, of which smoothed errors are told
_STALE = 2.0  # deviations of the noise above which what was published of a key is more than noise
_TOGETHER = 1 << 20  # numbers that are drawn in one call


@dataclass(frozen=True, eq=False)
class FoundState:
    """What outlives a step. Private, but for what was published of keys that are found.

    Attributes:
        step: number of steps so far.
        found_at: int64 (keys,): the step at which each key was found, or PUBLIC, CARRIED or NOT_FOUND.
        totals: int64 (keys,): sum of the counts that were published of each.
        smoothed: int64 (found,): the keys that are found, in the order of `levels`.
        levels: what smoothing remembers of them, as of some steps ago: `rising`, or those of a sum but one.
        recent: float64 (steps, found): their published counts since then, nan before the first one.
        last: int64 (answers, windows, found): what was published of each of the windows of a sum, 0 before the first;
            without windows where counts are of one.
        since: int64 (found,): as in rows of this step, in the order of `levels`.
        listed: int64 (intervals, keys): how many people a list of different people counts for each key, by the interval
            between its tests in which they came; without keys when the last test is over.
        windows: the last windows, in order, as far as keys that are found later will have rows of them; those without
            contributions are left out.
    """

    step: int
    found_at: Integers
    totals: Integers
    smoothed: Integers
    levels: LevelState
    recent: Floats
    last: Integers
    since: Integers
    listed: Integers
    windows: tuple[WindowCounts, ...]

    @property
    def found(self) -> Integers:
        """The keys that are published, increasing."""
        return np.flatnonzero(self.found_at != NOT_FOUND)


@dataclass(frozen=True, kw_only=True)
class FoundKeys(KeyedCounts):
    """Publishes after every step how many people contributed to each key, of all keys found so far; perhaps also sums.

    Keys are what the people name. A key is found when the noisy sum of its counts over the last 1, 2, 4, .. windows
    reaches the threshold of that many windows: what is too small for one window is plain to see over sixteen. From
    then on its noisy count is published after every step, also where it is small, and once those of earlier windows.

    Keys are numbers 0, 1, 2, .. that the caller gives: rows of a table. Every step must be given. The source of noise
    must know keys by what they stand for (see `RoutedNoise`) where they get other numbers by `compact` and `renewed`.

    Some keys may be on a public list: they are published after every step, also in the periods that follow, and are
    never tested. Runs with different lists must have sources of noise of their own.

    Privacy:
        As for `KeyedCounts`: one person over the whole run, or one event; (epsilon, delta)-DP, inputs being adaptive.
        Public besides: the number of steps, and the public list. Keys that are carried over must have been published.

    Accuracy:
        As for `KeyedCounts`. `people_needed(windows)`: how many people a key needs in each of so many windows to be
        found in them, or soon after, with an even chance; fewer with a list, if other people have it in each.

    Attributes:
        over: "window", or n >= 2, at most MOST_SUMMED: what is published is the sum of the noisy counts of the last n
            windows. A person who has a key in several of them counts in each. It is a view of the same noisy counts:
            which keys are found, and all noise, stay the same. Near the first window of a key sums are of fewer.
        min_people: without so many people in one window a key is not found; its other windows may have fewer.
        horizon: steps of the run, or None; it must be given for sums of windows.
        rising: number of steps to look back for how far smoothed counts rose, at most MOST_RISING; 0 for none, as for
            sums of windows. What is published stays the same otherwise.
        listed: number of keys for which a person counts on a list of different people; 0 for no list. With one, a key
            is also found when enough different people have had it by some public steps: after a 32nd, an eighth and
            half of the run, or with `at_end` after its last step. Each of these keys costs a fortieth of the budget.
            `with_list` decides whether it is worth that.
        at_end: whether nobody needs what is found before the end of the run, so that more is: blocks may be as long as
            the run, and a list of different people is read once, after the last step, which all of its delta pays for.
            There are at most MOST_KEPT steps then.
        smooths: whether rows have smoothed counts, rises, and since when they are above 0. Who smooths all rows at the
            end of a run needs none of them before. What is published stays the same otherwise.

    Raises:
        ValueError, TypeError: a field is out of range or of another type.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> counts = FoundKeys(epsilon=1.0, delta=1e-6, contributions=7, horizon=16)
        >>> [round(counts.people_needed(windows)) for windows in (1, 16)]
        [67, 20]
        >>> state, found = counts.initial_state(), []
        >>> for step in range(1, 17):
        ...     given = KeyedStep(step=step, keys=np.array([0], np.uint64), counts=np.array([40]))
        ...     state, rows = counts.step(state, given, SeededNoise(1))
        ...     found.append(len(rows.earlier) + len(rows.keys))
        >>> found[0], sum(found)
        (0, 16)

    Source: derived here, docs/proofs/keyed_counts.md, section 9.
    """

    noise_label = "counts of found keys"
    state_type = FoundState

    rising: int = 0
    listed: int = 0
    at_end: bool = False
    smooths: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.at_end, bool):
            raise TypeError(f"at_end must be true or false, got {type(self.at_end).__name__}")
        if self.at_end and (self.horizon is None or self.horizon > MOST_KEPT):
            raise ValueError(f"horizon must be at most {MOST_KEPT:,} with at_end, got {self.horizon}")
        if checks.integer("listed", self.listed, minimum=0) > MOST_LISTED:
            raise ValueError(f"listed must be <= {MOST_LISTED}, got {self.listed}")
        if self.listed and (self.horizon is None or self.unit != "person"):
            raise ValueError(f"listed must be 0 without a horizon, or for the unit of an event, got {self.listed}")
        if checks.integer("rising", self.rising, minimum=0) > MOST_RISING:
            raise ValueError(f"rising must be <= {MOST_RISING}, got {self.rising}")
        if self.over == "start" or (isinstance(self.over, int) and self.over > MOST_SUMMED):
            most = f"at most {MOST_SUMMED:,} windows"
            raise ValueError(f"over must be 'window' or {most} for keys that stay found, got {self.over!r}")
        if self.over != "window" and self.rising:
            raise ValueError(f"rising must be 0 for counts over {self.over} windows, got {self.rising}")
        if not isinstance(self.smooths, bool):
            raise TypeError(f"smooths must be true or false, got {type(self.smooths).__name__}")
        if not self.smooths and (self.over != "window" or self.rising):
            raise ValueError("smooths must be true for rises and for counts over several windows")
        if self.public_keys is True:
            raise ValueError("public_keys must be false: keys that are public need not be found")
        super().__post_init__()
        if self.windows > 1 and (self.max_value or 0) > (largest := LARGEST_SUMMED // self.windows):
            raise ValueError(
                f"max_value must be at most {largest:,} for sums over {self.windows:,} windows, got {self.max_value}"
            )

    @cached_property
    def bounds(self) -> Bounds:
        """All that noise depends on beside epsilon and delta: sums of published counts have none of their own."""
        return replace(super().bounds, span=1, listed=self.listed, at_end=self.at_end)

    def for_end(self) -> FoundKeys:
        """Return this mechanism for a run of which nothing is seen before its end, if it is short enough for that.

        Privacy: a function of public parameters.
        """
        if self.at_end or self.horizon is None or self.horizon > MOST_KEPT:
            return self
        return replace(self, at_end=True, listed=0).with_list()

    def with_list(self) -> FoundKeys:
        """Return this mechanism with a list of different people, if that is worth its budget.

        Privacy: a function of public parameters.
        """
        if self.listed or self.unit != "person":
            return self
        return replace(self, listed=self.law.worth_listing)

    @property
    def last_listed(self) -> int:
        """The last step at which the list of different people is tested; 0 without one."""
        return self.law.people.steps[-1] if self.law.people else 0

    def lists(self, step: int) -> bool:
        """Whether a step must state `listed`."""
        return step <= self.last_listed

    @cached_property
    def law(self) -> DiscoveryLaw:
        """Noise, and the thresholds of all scales."""
        lengths = scales_of(self.horizon, at_end=self.at_end)
        return calibrate_discovery(float(self.epsilon), float(self.delta), self.bounds, lengths)

    def _described(self) -> Any:
        """Return the parameters, and what they come to: tests of other scales must not meet the same noise."""
        deviations = [f"{math.sqrt(noise.variance(1)):.6g}" for noise in self.law.noises]  # alike on every machine
        scales = [[float(number) for number in dataclasses.astuple(scale)] for scale in self.law.scales]
        kind, values = super()._described()
        values["over"] = "window"  # sums are post-processing, as these are
        views = ("rising", "smooths")
        later = ("listed", "at_end")  # fields of later versions: without them labels are as they were
        noisy = {name: value for name, value in values.items() if name not in views and (name not in later or value)}
        described = [kind, noisy, deviations, scales, float(MOST_KEPT)]
        if (people := self.law.people) is not None:
            tests = [people.steps, people.least, people.thresholds]
            described.append([f"{math.sqrt(people.noise.variance(1)):.6g}", *([*map(float, part)] for part in tests)])
        return described

    @property
    def _state_kind(self) -> str:
        view = f", rising {self.rising}" if self.rising else f", over {self.windows}" if self.windows > 1 else ""
        return f"{super()._state_kind}, with since{view}" if self.smooths else f"{super()._state_kind}, not smoothed"

    @property
    def windows(self) -> int:
        """Windows of which a count is the sum at most."""
        return self.over if isinstance(self.over, int) else 1

    @property
    def _behind(self) -> int:
        """Windows for which levels are kept as of before them."""
        return self.rising or self.windows - 1

    def _noise(self, answer: str) -> KeyNoise:
        """Return the noise of what is published: of a sum of so many windows, or, in the first ones, of all."""
        return self._summed_noise(answer, self.windows)

    def detection(self, step: int, beta: float, tests: int = 1) -> int:
        """Return with how many people in one window a key is found, in so many tests at once, but with beta."""
        self._step_number(step)
        tail = checks.probability("beta", beta) / checks.integer("tests", tests, minimum=1)
        return self.threshold(step) + self.law.noises[0].tail_bound(1, tail)

    @cached_property
    def _level(self) -> LocalLevel:
        """Smooths counts over windows."""
        return LocalLevel(max(LEAST_STDDEV, self.stddev(1)))

    @property
    def kept(self) -> int:
        """Windows of which a key that is found has rows."""
        return min(MOST_KEPT, self.horizon or MOST_KEPT)

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy of the whole run."""
        limits = limits_told(self.bounds, self.unit, lasting=True)
        return replace(
            super().guarantee,
            limits=limits,
            proof=f"docs/proofs/keyed_counts.md, Theorem {5 if self.full_share else 4 if self.listed else 3}",
        )

    @property
    def accuracy(self) -> Accuracy:
        """What holds, from public parameters alone: as for `KeyedCounts`, and `people_needed` of some windows."""
        found = super().accuracy
        listed = {f"listed_in_{step}": number for step, number in self.listed_people.items()}
        numbers = {**found.numbers, **self.needed, **listed}
        claim = f"{found.claim} {self.found_claim}"
        if self.windows == 1:
            numbers |= {f"smoothed_error_{how}": round(error, 3) for how, error in self.smoothed_errors.items()}
            over_files, in_stream = (numbers[f"smoothed_error_{how}"] for how in ("file", "stream"))
            claim += (
                f" Where an item hardly changes, smoothed counts are off by {over_files:.3g} over files and by "
                f"{in_stream:.3g} as a stream has them (root mean square, simulated), and where it jumps by as much as "
                "counts."
            )
        return replace(found, claim=claim, numbers=numbers)

    @cached_property
    def smoothed_errors(self) -> dict[str, float]:
        """The error, a root mean square, of smoothed counts of an item that has as many people in each window as it
        needs: over files, and in a stream in its last window. A simulation with noise that is nobody's secret.
        """
        windows = min(self.horizon or _SIMULATED, _SIMULATED)
        people, stddev = round(self.people_needed(windows)), self.stddev(1)
        labels = np.stack(np.divmod(np.arange(windows * _SIMULATED, dtype=np.uint64), np.uint64(windows)), axis=1)
        drawn = ((SeededNoise(0).words(labels)[:, 0] >> np.uint64(11)) + 0.5) / 2.0**53  # two uniform numbers for each
        noise = np.sqrt(-2 * np.log(drawn[:, 0])) * np.cos(2 * math.pi * drawn[:, 1])
        counts = people + np.rint(stddev * noise.reshape(_SIMULATED, windows).T)
        ends = self._level.smooth(counts).estimates, self._level.read(self._level.join(self._level.start(), counts))
        off = ends[0] - people, ends[1].estimates - people
        return {
            how: float(np.sqrt(np.mean(np.square(each)))) for how, each in zip(("file", "stream"), off, strict=True)
        }

    @property
    def needed(self) -> dict[str, int]:
        """`people_needed` of some windows, and of all, by name: with an even chance, and likely, with 95%; with a list,
        also where other people have a key in each window.
        """
        lasting = sorted({windows for windows in LASTING if windows <= (self.horizon or windows)} | {self.horizon or 1})
        return {
            f"{name}{OTHERS * others}_in_{windows}": round(self.people_needed(windows, probability, others=others))
            for others in (False, True)[: 1 + (self.listed > 0)]
            for name, probability in (("needed", 0.5), ("likely", 0.95))
            for windows in lasting
        }

    @property
    def found_claim(self) -> str:
        """What is said of items that are found, as sentences."""
        who = "events" if self.unit == "event" else "people"
        told = ", or ".join(
            f"{number:,} {who} in each of {int(name.removeprefix('needed_in_')):,} windows"
            for name, number in self.needed.items()
            if name.startswith("needed_in_") and name != "needed_in_1"
        )
        claim = "Items that are found stay found, and have counts of the windows before as well."
        if self.at_end:
            claim += " Some are found at the end of the run alone."
        return claim + (f" They are found with an even chance by {told}." if told else "") + self.list_claim

    @property
    def list_claim(self) -> str:
        """What is said of the list of different people, as sentences; empty without one."""
        if (listed := self.law.people) is None:
            return ""
        several = ", ".join(f"{number:,} in the first {step:,}" for step, number in self.listed_people.items())
        return (
            " A list of different people finds them as well, with an even chance by so many people in so many windows: "
            f"{several}. There a person counts for the first {listed.keys:,} items that count. If other people have an "
            f"item in each window, {self._by_others} are enough for an even chance."
        )

    @property
    def listed_people(self) -> dict[int, int]:
        """How many different people a key needs to be found with an even chance, by the steps of the list's tests."""
        people = self.law.people
        return dict(zip(people.steps, people.thresholds, strict=True)) if people else {}

    def threshold(self, step: int) -> int:
        """Return the least noisy count of one window with which a key is found."""
        self._step_number(step)
        return self.law.scales[0].threshold

    @property
    def _by_others(self) -> str:
        """How many people are enough where others have a key in each window, by windows."""
        some = {name: number for name, number in self.needed.items() if name.startswith(f"needed{OTHERS}_in_")}
        return ", ".join(f"{number:,} in each of {int(name.rpartition('_')[2]):,}" for name, number in some.items())

    def people_needed(self, windows: int, probability: float = 0.5, *, others: bool = False) -> float:
        """Return how many people a key needs in each of so many windows, to be found with an even chance, or another.

        It is found in these windows, wherever they lie, or soon after: by a block that holds most of them, the best
        single one, with normal noise. With `others` no person has the key in two of them; then the list of different
        people, if there is one, finds it as well, where the windows lie anywhere with the same chance.
        """
        checks.integer("windows", windows, minimum=1)
        margin = self.stddev(1) * float(special.ndtri(checks.probability("probability", probability)))
        by_blocks = min(scale.people(windows, margin) for scale in self.law.scales)
        if not others or self.law.people is None or self.horizon is None:
            return by_blocks
        return min(by_blocks, self.law.people.people(min(windows, self.horizon), self.horizon, probability))

    def chance_by_others(self, windows: int) -> Callable[[int], float]:
        """Return the chance that a key is found that lasts so many windows, each with other people, by their number.

        By the best single block, or by the list of different people, whose noise is its own.
        """
        stddev, people, horizon = self.stddev(1), self.law.people, self.horizon
        by_list = None if people is None or horizon is None else people.chance(min(windows, horizon), horizon)

        def chance(number: int) -> float:
            by_blocks = max(scale.chance(number, windows, stddev) for scale in self.law.scales)
            return by_blocks if by_list is None else 1 - (1 - by_blocks) * (1 - by_list(number))

        return chance

    def initial_state(self, keys: Words | None = None, *, public: int = 0, carried: int = 0) -> Any:
        """Return the state before the first step.

        Args:
            keys: None.
            public: keys 0, .., public - 1 are on the public list.
            carried: the next keys, so many, are known, for they were published.

        Raises:
            ValueError: keys are given; or a number is below 0.
        """
        if keys is not None:
            raise ValueError("keys must not be given unless their list is public")
        kept = checks.integer("public", public, minimum=0)
        number = kept + checks.integer("carried", carried, minimum=0)
        totals, smoothed = np.zeros(number, np.int64), np.zeros(0, np.int64)
        recent = np.zeros((self._behind, 0))
        found_at, since = np.full(number, CARRIED, np.int64), np.zeros(0, np.int64)
        found_at[:kept] = PUBLIC
        listed = np.zeros((self._intervals, number), np.int64)
        return FoundState(0, found_at, totals, smoothed, self._level.start(), recent, self._no_sums, since, listed, ())

    @property
    def _intervals(self) -> int:
        """Intervals between tests of the list of different people."""
        return len(self.law.people.steps) if self.law.people else 0

    @property
    def _no_sums(self) -> Integers:
        return np.zeros((len(self.law.noises), self.windows if self.windows > 1 else 0, 0), np.int64)

    def step(self, state: Any, given: KeyedStep, noise: NoiseSource) -> tuple[Any, KeyedRows]:
        """Add what one step brought, and return the counts of all keys that are found now.

        Rows of earlier steps, of keys that are found only now, are in `earlier`.

        Raises:
            HorizonExceeded: the run is over.
            ValueError: a step was left out, or sums are beyond their limits.
        """
        values = self._checked(state, given)
        if given.step != state.step + 1:
            raise ValueError(f"step must be {state.step + 1}, got {given.step}: every step must be given")
        source, keys, step = self._source(noise), given.keys.astype(np.int64), given.step
        number = max(len(state.found_at), 1 + int(keys.max(initial=-1)))
        found_at, totals = _extended(state.found_at, number, NOT_FOUND), _extended(state.totals, number, 0)
        waiting = np.flatnonzero((found_at[keys] == NOT_FOUND) & (given.counts > 0))
        windows = windows_since(state.windows, step - self.kept + 1)
        if len(waiting):
            windows += (WindowCounts(step, keys[waiting], values[:, waiting]),)
        newly = self._newly_found(windows, found_at, step, source)
        listed = self._followed_list(state.listed, given, number)
        newly = np.union1d(newly, self._found_on_list(listed, found_at, step, source))
        found_at[newly] = step
        published = np.flatnonzero(found_at != NOT_FOUND)
        true = np.zeros((len(values), number), np.int64)
        true[:, keys] = values
        noises = [
            self._noise_of_steps(published, true[i : i + 1, published], step, source, i)[0] for i in range(len(true))
        ]
        rows = self._rows(step, published.astype(np.uint64), true[:, published] + np.stack(noises))
        earlier = [*self._earlier(windows, newly, step, source, number)]
        totals[published] += rows.counts
        for one in earlier:
            totals[newly] += one.counts
        if len(newly):
            windows = tuple(_without(window, found_at) for window in windows)
        seen, rows = self._smoothed(state, rows, newly, earlier)
        listed = listed if self.lists(step + 1) else listed[:, :0]  # tested for the last time
        return replace(seen, step=step, found_at=found_at, totals=totals, listed=listed, windows=windows), rows

    def _smoothed(
        self, state: FoundState, rows: KeyedRows, newly: Integers, earlier: Sequence[KeyedRows]
    ) -> tuple[FoundState, KeyedRows]:
        """Smooth what is published at a step: return the state with what is remembered of that, and all rows."""
        if not self.smooths:
            return state, replace(rows, earlier=tuple(earlier))
        if not len(rows.keys):
            return state, replace(rows, since=np.zeros(0, np.int64))
        place = np.searchsorted(rows.keys, state.smoothed.astype(np.uint64))
        smoothed, counts = state.smoothed, np.concatenate([state.recent, rows.counts[None, place]])
        levels, recent = self._level.advance(state.levels, counts[0]), counts[1:]
        last, since = self._followed(state.last, rows.answers[:, None, place]), state.since.copy()  # the state stays
        published = rows.keys.astype(np.int64)
        if len(smoothed) + len(newly) < len(published):  # carried without what smoothing remembers
            carried = np.setdiff1d(published, np.concatenate([smoothed, newly]), assume_unique=True)
            now = rows.answers[:, None, np.searchsorted(published, carried)]
            levels, recent, last = self._joined(levels, recent, last, now)
            smoothed, since = np.concatenate([smoothed, carried]), _extended(since, len(since) + len(carried), 0)
        if len(newly):
            now = rows.answers[:, np.searchsorted(published, newly)]
            history = np.stack([*(one.answers for one in earlier), now], axis=1)
            levels, recent, last = self._joined(levels, recent, last, history)
            smoothed = np.concatenate([smoothed, newly])
            earlier = list(_with_since(self._seen_since(history, earlier), np.zeros(len(newly), np.int64)))
            before = earlier[-1].since if earlier else None
            since = np.concatenate([since, np.zeros(len(newly), np.int64) if before is None else before])
        order = np.argsort(smoothed)
        (rows,) = _with_since([self._seen_now(rows, order, levels, recent, last)], since[order])
        assert rows.since is not None
        since[order] = rows.since
        seen = replace(state, smoothed=smoothed, levels=levels, recent=recent, last=last, since=since)
        return seen, replace(rows, earlier=tuple(earlier))

    def _seen_now(
        self, rows: KeyedRows, order: Integers, levels: LevelState, recent: Floats, last: Integers
    ) -> KeyedRows:
        """Return the rows of a step with what is made of them; `order` brings keys of a state into theirs."""
        if self.windows > 1:
            known = np.sum(~np.isnan(np.concatenate([levels.observed[None], recent])), axis=0)
            found = self.summed(rows.step, rows.keys, last.sum(axis=1)[:, order], known[order])
            return replace(found, smoothed=self._level.read_sum(levels, recent).take(order))
        if not self.rising:
            return replace(rows, smoothed=self._level.read(levels).take(order))
        now, risen = self._level.read_rise(levels, recent)
        known = 1.0 if rows.step > self.rising else np.nan  # limits begin anew with a period, which is no rise
        return replace(rows, smoothed=now.take(order), rises=Rises(*(known * part[order] for part in risen)))

    def _seen_since(self, history: Integers, earlier: Sequence[KeyedRows]) -> list[KeyedRows]:
        """Return rows of earlier steps with what is made of them, given all that was published of their keys."""
        if self.windows == 1:
            ends, rises = self._level.smooth_rises(history[0], self.rising)
            risen = [Rises(*(part[i] for part in rises)) if self.rising else None for i in range(len(earlier))]
            return [replace(one, smoothed=ends.take(i), rises=risen[i]) for i, one in enumerate(earlier)]
        ends = self._level.smooth_sums(history[0], self.windows)[1]
        totals, number = _sums_over(history, self.windows), np.ones(history.shape[2], np.int64)
        found = [
            self.summed(one.step, one.keys, totals[:, i], min(i + 1, self.windows) * number)
            for i, one in enumerate(earlier)
        ]
        return [replace(one, smoothed=ends.take(i)) for i, one in enumerate(found)]

    def _followed(self, last: Integers, answers: Integers) -> Integers:
        """Return the last windows of sums with one more, or several."""
        return np.concatenate([last, answers], axis=1)[:, answers.shape[1] :] if self.windows > 1 else last

    def _joined(
        self, levels: LevelState, recent: Floats, last: Integers, history: Integers
    ) -> tuple[LevelState, Floats, Integers]:
        """Return what is remembered with new keys, of which these are the answers up to now."""
        missing = np.full((max(0, self._behind + 1 - history.shape[1]), history.shape[2]), np.nan)
        counts = np.concatenate([missing, history[0]])
        before = len(counts) - self._behind
        levels, recent = self._level.join(levels, counts[:before]), np.concatenate([recent, counts[before:]], axis=1)
        new = self._followed(np.zeros((*last.shape[:2], history.shape[2]), np.int64), history)
        return levels, recent, np.concatenate([last, new], axis=2)

    def renewed(self, state: FoundState) -> tuple[FoundState, Integers]:
        """Return the state before the first step of a period that follows, and the old numbers of its keys.

        They are those that `lasting` returns, which are published from its first step on. Smoothing goes on, and sums
        have windows of both periods.
        """
        kept = self.lasting(state)
        found_at = np.where(state.found_at[kept] == PUBLIC, PUBLIC, CARRIED)
        fresh = replace(self.initial_state(carried=len(kept)), found_at=found_at)
        if not self.smooths:
            return fresh, kept
        order = np.argsort(state.smoothed)
        some = order[np.searchsorted(state.smoothed[order], kept)]
        levels, recent, last = state.levels.select(some), state.recent[:, some], state.last[:, :, some]
        known: dict[str, Any] = {"smoothed": np.arange(len(kept)), "since": np.zeros(len(kept), np.int64)}
        known |= {"levels": levels, "recent": recent, "last": last}
        return replace(fresh, **known), kept

    def lasting(self, state: FoundState) -> Integers:
        """Return the keys, increasing, that a run that starts afresh should carry over: those that are not only noise,
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

        Left out are keys that are not found and have no contribution in the windows that are kept. They have no effect
        any more: one that comes again is like one that is new.
        """
        held = state.found_at != NOT_FOUND
        if state.listed.shape[1]:
            held |= state.listed.any(axis=0)
        for window in state.windows:
            held[window.keys] = True
        kept, place = np.flatnonzero(held), np.cumsum(held) - 1
        windows = tuple(replace(window, keys=place[window.keys]) for window in state.windows)
        known: Any = {"found_at": state.found_at[kept], "totals": state.totals[kept], "smoothed": place[state.smoothed]}
        listed = state.listed[:, kept] if state.listed.shape[1] else state.listed
        return replace(state, **known, listed=listed, windows=windows), kept

    def _newly_found(
        self, windows: tuple[WindowCounts, ...], found_at: Integers, step: int, source: NoiseSource
    ) -> Integers:
        """Return the keys, increasing, that pass a test at this step.

        Noise is drawn once for each key that is tested, for the longest of its blocks.
        """
        due = [scale for scale in self.law.scales if scale.is_due(step)]
        if not windows:
            return np.zeros(0, np.int64)
        sums, longest, rest = np.zeros(len(found_at), np.int64), np.zeros(len(found_at), np.int64), windows
        for scale in due:  # each block holds the shorter ones
            block = windows_since(rest, step - scale.windows + 1)
            rest = rest[: len(rest) - len(block)]
            for window in block:
                sums[window.keys] += window.values[0]
            longest[sums >= scale.least] = scale.windows
        tested, passed = np.flatnonzero(longest), [np.zeros(0, np.int64)]
        number = int(longest.max(initial=0))
        size = max(1, _TOGETHER // max(1, number))
        for start in range(0, len(tested), size):
            some, first = tested[start : start + size], step - number + 1
            true = self._brought(windows, some, first, step, len(found_at))[0]
            noisy = true + self._noise_of_steps(some, true, first, source, 0, last=longest[some])
            for scale in due:  # what is not tested at a scale has too few contributions in its block
                enough = true[-scale.windows :].sum(axis=0) >= scale.least
                passes = noisy[-scale.windows :].sum(axis=0) >= scale.threshold
                passed.append(some[enough & passes])
        return np.unique(np.concatenate(passed))

    def _check_people(self, given: KeyedStep) -> None:
        super()._check_people(given)
        if given.listed is None and self.lists(given.step):
            raise ValueError(f"listed must be given at step {given.step}: a list of different people is kept")

    def _followed_list(self, listed: Integers, given: KeyedStep, number: int) -> Integers:
        """Return the list of different people after what one step brought."""
        people = self.law.people
        if people is None or given.listed is None:
            return listed
        followed = np.zeros((len(listed), number), np.int64)
        followed[:, : listed.shape[1]] = listed
        followed[bisect_left(people.steps, given.step), given.keys.astype(np.int64)] += given.listed
        return followed

    def _found_on_list(self, listed: Integers, found_at: Integers, step: int, source: NoiseSource) -> Integers:
        """Return the keys, increasing, that so many different people have had that the list finds them at this step.

        Noise of an interval has its last step as its label, and is bound to the people who came in it.
        """
        people = self.law.people
        if people is None or step not in people.steps:
            return np.zeros(0, np.int64)
        test = people.steps.index(step)
        until = listed[: test + 1]
        tested = np.flatnonzero((until.sum(axis=0) >= people.least[test]) & (found_at == NOT_FOUND))
        true, own = until[:, tested], source.derive("people")
        noisy = true.sum(axis=0)
        for end, brought in zip(people.steps, true, strict=False):
            labels = tested.astype(np.uint64)
            noisy += people.noise.independent(labels, np.full(len(tested), end, np.uint64), [brought], own)
        found: Integers = tested[noisy >= people.thresholds[test]]
        return found

    def _earlier(
        self, windows: tuple[WindowCounts, ...], newly: Integers, step: int, source: NoiseSource, number: int
    ) -> Iterator[KeyedRows]:
        """Return the rows of earlier steps of keys, out of so many, that are found at this one."""
        if not len(newly):
            return
        first = max(1, step - self.kept + 1)
        size = max(1, _TOGETHER // len(newly))
        for start in range(first, step, size):
            last = min(start + size, step) - 1
            true = self._brought(windows, newly, start, last, number)
            noisy = [true[i] + self._noise_of_steps(newly, true[i], start, source, i) for i in range(len(true))]
            for place in range(last - start + 1):
                answers = np.stack([answer[place] for answer in noisy])
                yield self._rows(start + place, newly.astype(np.uint64), answers)

    def _brought(
        self, windows: tuple[WindowCounts, ...], keys: Integers, first: int, last: int, number: int
    ) -> Integers:
        """Return what windows `first` to `last` brought to some keys of so many, int64 (answers, windows, keys)."""
        found = np.zeros((len(self.law.noises), last - first + 1, len(keys)), np.int64)
        place = np.full(number, -1)
        place[keys] = np.arange(len(keys))
        for window in windows_since(windows, first):
            if window.step <= last:
                at = place[window.keys]
                some = np.flatnonzero(at >= 0)
                found[:, window.step - first, at[some]] = window.values[:, some]
        return found

    def _noise_of_steps(
        self,
        keys: Integers,
        true: Integers,
        first: int,
        source: NoiseSource,
        answer: int,
        last: Integers | None = None,
    ) -> Integers:
        """Return the noise of steps from `first` on, int64 of the shape of `true` (steps, keys), bound to it.

        With `last`, int64 (keys,), only that of so many of the last steps of each key is drawn; the rest is 0.
        """
        noise = self.law.noises[answer]
        assert isinstance(noise, ToeplitzNoise)
        if not true.size:
            return true
        back = np.arange(len(true), 0, -1)[:, None]
        place, number = np.nonzero(np.broadcast_to(back <= (len(true) if last is None else last), true.shape))
        labels, steps = keys[number].astype(np.uint64), (first + place).astype(np.uint64)
        drawn = np.zeros_like(true)
        drawn[place, number] = noise.independent(labels, steps, [true[place, number]], source.derive(ANSWERS[answer]))
        return drawn

    def _fields(self, state: Any) -> dict[str, Any]:
        answers = len(self.law.noises)
        nothing = np.zeros(0, np.int64)
        return {
            "step": state.step,
            "found_at": state.found_at,
            "totals": state.totals,
            "smoothed": state.smoothed,
            "since": state.since,
            **{f"levels_{name}": column for name, column in vars(state.levels).items()},
            **({"recent": state.recent} if self._behind else {}),
            **({"last": state.last} if self.windows > 1 else {}),
            **({"listed": state.listed} if self.listed else {}),
            "steps": np.array([window.step for window in state.windows], np.int64),
            "sizes": np.array([len(window.keys) for window in state.windows], np.int64),
            "keys": np.concatenate([nothing, *(window.keys for window in state.windows)]),
            "values": np.concatenate([np.zeros((answers, 0), np.int64), *(w.values for w in state.windows)], axis=1),
        }

    def _state(self, fields: dict[str, Any]) -> Any:
        self._check_layout(fields)
        ends = np.cumsum(fields["sizes"])[:-1]
        parts = zip(
            fields["steps"].tolist(),
            np.split(fields["keys"], ends),
            np.split(fields["values"], ends, axis=1),
            strict=True,
        )
        windows = tuple(WindowCounts(*part) for part in parts) if len(fields["steps"]) else ()
        levels = LevelState(*(fields[f"levels_{field.name}"] for field in dataclasses.fields(LevelState)))
        known = {name: fields[name] for name in ("step", "found_at", "totals", "smoothed", "since")}
        number = len(known["smoothed"])
        recent = fields["recent"] if self._behind else np.zeros((0, number))
        last = fields["last"] if self.windows > 1 else np.zeros((*self._no_sums.shape[:2], number), np.int64)
        listed = fields["listed"] if self.listed else np.zeros((0, len(known["found_at"])), np.int64)
        return FoundState(**known, levels=levels, recent=recent, last=last, listed=listed, windows=windows)

    def _check_layout(self, fields: dict[str, Any]) -> None:
        """Refuse columns of another version, such as those of other models of smoothing: numpy would stretch them.

        Raises:
            SnapshotError: naming the columns, which are no secret.
        """
        expected = _layout(self._fields(self.initial_state()))
        wrong = sorted({name for name, _ in _layout(fields) ^ expected})
        if wrong:
            raise SnapshotError(f"snapshot must have the columns of this version, but {', '.join(wrong)} are others")


def _sums_over(answers: Integers, windows: int) -> Integers:
    """Return sums over each window, the second axis, and those before it, so many in all, or all that there are."""
    totals = np.cumsum(answers, axis=1)
    totals[:, windows:] -= totals[:, :-windows].copy()
    return totals


def _with_since(rows: Iterable[KeyedRows], since: Integers) -> Iterator[KeyedRows]:
    """Yield rows of steps that follow each other with `since`, given that of the step before them."""
    for one in rows:
        assert one.smoothed is not None
        since = np.where(one.smoothed.lower > 0, np.where(since > 0, since, one.step), 0)
        yield replace(one, since=since)


def _layout(fields: dict[str, Any]) -> set[tuple[str, str]]:
    """Return the names of columns with what they are of, and their shapes but for the number of keys or windows."""
    columns = ((name, np.asarray(column)) for name, column in fields.items())
    return {(name, f"{column.dtype} {column.shape[:-1]}") for name, column in columns}


def _extended(column: Integers, number: int, value: int) -> Integers:
    """Return a copy of a column, with so many rows."""
    return np.concatenate([column, np.full(number - len(column), value, np.int64)])


def _without(window: WindowCounts, found_at: Integers) -> WindowCounts:
    """Return what a window brought to keys that are not found."""
    rest = found_at[window.keys] == NOT_FOUND
    return window if rest.all() else WindowCounts(window.step, window.keys[rest], window.values[:, rest])
