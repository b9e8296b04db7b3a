"""Series of published noisy counts, smoothed over windows, with an interval for each window. Costs no privacy."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats

Flags = NDArray[np.bool_]

# Every drift with every scatter is a model. Finer grids gained nothing on flights. Without scatters 77% of days were in
# their intervals, and with 0 and 1 alone 80% of counts with a weekly season.
_DRIFTS = (0.003, 0.03, 0.1, 0.3, 1.0, 2.0)  # standard deviation of the level's steps, in units of that of the noise
_STEADY = 3.0  # by so much the least drift is more probable than each other one, before anything is seen
_SCATTERS = (0.0, 1.0, 4.0)  # variance of a count around its level, in units of the level: 1 is Poisson's law
_LOOSE = (2.0, 5.0)  # variance of a count around a level that hardly moves, in units of the noise: of finished files
_CLOSE = (0.1, 0.25, 0.5, 1.0)  # the same, of what is less noisy than single counts: for `close`
_GRID = [(drift, scatter, 0.0) for scatter in _SCATTERS for drift in _DRIFTS] + [
    (_DRIFTS[0], 0.0, loose) for loose in _LOOSE + _CLOSE
]
_PRIOR = np.array([[_STEADY if drift == _DRIFTS[0] and not loose else 1.0] for drift, _, loose in _GRID])
_ONWARD = len(_SCATTERS) * len(_DRIFTS)  # so many of the grid, the first ones, are in states, which stay what they were
_FINISHED = _ONWARD + len(_LOOSE)  # so many are tried of finished files
_BREAK = 25.0  # a square so many times as large as its variance is a jump, which no drift explains
_LOST = 0.005  # a model so much less likely than the best one goes on from the level of that one
_BURST, _WIDE = 0.003, 5.0  # probability that a count is a burst, and how far these are off, in units of other counts
_LEAST_OFF = 0.1
_SWITCH = 0.005  # probability that another model holds from a window on: what was quiet may burst
_SQUARINGS, _MOST_DECAYED = 8, 13.0
_TOGETHER = 1 << 19  # numbers that are in all models of some keys and windows: some 20 arrays have so many
_LONGEST, _MARGIN = 8192, 1024  # windows that are smoothed at once, and of those before and after that are used
_LARGEST = 2.0**63
LEAST_STDDEV = 1e-6
"""Of noise: smaller noise is as good as none."""


WITHOUT_MODEL = 2.12
"""Deviations within which 95% of Laplace noise is, and 96.6% of normal noise."""

MOST_RISING = 64
"""Windows to look back at most for what rose."""

MOST_SUMMED = 1024
"""Windows of a sum at most."""

NORMAL = 1.959963984540054
"""Deviations within which 95% of normal noise is."""

_STUDENT = 2.178812829667229  # as far reach 95% of Student's law with twelve degrees of freedom
_LONG_ENOUGH, _LARGE_NOISE = 512, 1e6
_FARTHEST = 100.0  # deviations: beyond, squares could be infinite
_SURE = 0.999


class Smoothed(NamedTuple):
    """Smoothed counts and the ends of their 95% intervals: float64, equal shapes, >= 0, rounded to one decimal."""

    estimates: Floats
    lower: Floats
    upper: Floats

    def take(self, some: Any) -> Smoothed:
        """Return those at some places of the first axis."""
        return Smoothed(*(ends[some] for ends in self))


class Rises(NamedTuple):
    """Differences of smoothed counts from those so many windows before, and their standard deviations in the model.

    float64, equal shapes; nan where there is no window before. Differences are rounded to one decimal.
    """

    differences: Floats
    stddevs: Floats

    @property
    def interval(self) -> tuple[Floats, Floats]:
        """The ends of intervals of 95%, rounded to one decimal."""
        reach = NORMAL * self.stddevs
        return np.round(self.differences - reach, 1), np.round(self.differences + reach, 1)

    @property
    def probabilities(self) -> Floats:
        """The probability that the count without noise, a whole number, is larger than it was, from 0.001 to 0.999."""
        scores = (self.differences - 0.5) / np.maximum(self.stddevs, LEAST_STDDEV)  # it rose by at least 1
        return np.round(_share_below(scores), 3)


@dataclass(frozen=True, eq=False)
class LevelState:
    """What is known of the levels of all keys after a window: plain float64 arrays, as snapshots take them.

    Attributes:
        observed: the newest noisy count, shape (keys,).
        levels: mean of the level in each model, shape (models, keys).
        variances: its variance, same shape.
        weights: likelihood of each model relative to the best one of the key, same shape, in (0, 1].
    """

    observed: Floats
    levels: Floats
    variances: Floats
    weights: Floats

    def __len__(self) -> int:
        return len(self.observed)

    def joined(self, newer: LevelState) -> LevelState:
        """Return the keys of this state and then those of `newer`."""
        return LevelState(*(np.concatenate(both, axis=-1) for both in zip(self._arrays, newer._arrays, strict=True)))

    def select(self, keys: NDArray[np.int64] | Flags | slice) -> LevelState:
        """Return the state of the keys at some places, or under a mask: drops keys, or puts them in order."""
        return LevelState(*(array[..., keys] for array in self._arrays))

    @property
    def _arrays(self) -> list[Floats]:
        return [getattr(self, field.name) for field in fields(self)]


class _Step(NamedTuple):
    """The state after a window, which models started anew in it, and the likelihood of each there."""

    state: LevelState
    anew: Flags
    likely: Floats


class _Ends(NamedTuple):
    """What the models of each key know of one window when all windows have been seen: arrays (models, keys).

    Attributes:
        factor: by which the level is multiplied.
        means, within: of the count, its mean and variance in each model.
        kept_off: by how much the count moves with the level.
        variances: of the level.
        weights: of the models, up to a factor.
        ends: mixed over models: the count, at least 0, and its interval.
        gain: which part of an error of the level in the next window this one shares; nothing where there is none.
    """

    factor: Floats | float
    means: Floats
    within: Floats
    kept_off: Floats
    variances: Floats
    weights: Floats
    ends: tuple[Floats, Floats, Floats]
    gain: Floats


class _Sums(NamedTuple):
    """What the models know of sums over windows that follow each other: arrays of one shape.

    Attributes:
        means, variances: of the sum.
        onward: by how much the sum moves with an error of the level in the window after them.
        shared: covariance of the sum with the level in their first window.
        gain: which part of an error of the level in the window after them that in their first one shares.
    """

    means: Floats
    variances: Floats
    onward: Floats
    shared: Floats
    gain: Floats

    def then(self, later: _Sums) -> _Sums:
        """Return sums over these windows and those after them: given the level there, the two are independent."""
        return _Sums(
            self.means + later.means,
            self.variances + later.variances + 2 * self.onward * later.shared,
            self.onward * later.gain + later.onward,
            self.shared + self.gain * later.shared,
            self.gain * later.gain,
        )

    def delayed(self, windows: int) -> _Sums:
        """Return, for each window (first axis), what these are for the one so many windows before."""
        return _Sums(*(_delayed(part, windows, empty) for part, empty in zip(self, _NOTHING, strict=True)))


_NOTHING = (0.0, 0.0, 0.0, 0.0, 1.0)  # sums over no window
_Finish = Callable[[Iterator[_Ends]], list[Floats]]


@dataclass(frozen=True)
class LocalLevel:
    """Smooths noisy counts whose noise has a known standard deviation.

    A count lies around a level, which moves by a random walk. How far it moves in a window (the drift), and how far
    counts scatter around it, is not known: for each key 18 Kalman filters try 6 drifts with 3 scatters each, weighed by
    their likelihoods, where another one may take over at any time. Of finished files two more try counts that lie far
    from a level which hardly moves, as those do that rise and fall in turn; states of streams do without these. Where a
    count is five standard deviations from what a filter expected, this filter starts anew, so that a jump is neither
    smoothed away nor spread over other windows. A filter that has lost, being 200 times less likely than the best one,
    goes on from the level of that one. A count that no filter explains may be a burst of one window, and is then taken
    as it is, the more so the farther it is.
    The estimate is one of the count, not of the level. A key has the same estimates, bit for bit, alone and among other
    keys.

    Privacy: none is spent. The inputs are published noisy counts, and the public law of their noise.

    Accuracy: the intervals rest on this model. They are not guaranteed, as that of a single noisy count is. On flights
    of 2013, with simulated noise, the root mean square error, in standard deviations of the noise, and the share of
    counts that lie in their intervals were, for `read` and for `smooth`:

        weeks,  noise 63: 0.39, 97% and 0.28, 97%
        days,   noise 13: 0.29, 99% and 0.23, 97%
        months, noise 31: 0.79, 93% and 0.75, 94%

    The share is lower where changes are not those of the model. In simulated items with three windows of a burst it
    was 61%, 89% and 90% there for bursts of 3, 5 and 7 standard deviations of the noise. Of items that have 160 and 40
    people in turn, with noise of 42 in 16 windows, `smooth` holds 87%, and 95% in 52 windows; without its two models,
    as in streams, it was 56% and 37%. With one window of seven lower
    by one or three deviations, at levels that are known well, it was as low as 46% in these windows, unless `factors`
    are given. What limits leave out is not estimated.
    A key is found when its noise is high. This is not corrected: of 20,000 simulated keys, those that were found were
    estimated 0.15 standard deviations of the noise too high in that window, and 98% were in their intervals.

    Args:
        noise_stddev: standard deviation of the noise of one count, in [1e-6, 1e16], the same in all windows.
        close: whether finished files are also tried with counts that lie around their level less far than noise does;
            without it such changes may be taken for noise. Many windows tell them apart.

    Raises:
        ValueError: `noise_stddev` is out of range.
        TypeError: it is not a number.

    Example:
        >>> LocalLevel(10.0).smooth([[108.0], [95.0], [104.0], [97.0]]).estimates[:, 0].tolist()
        [103.1, 99.5, 101.7, 99.8]

    Source: Durbin, Koopman, Time Series Analysis by State Space Methods (2012), chapters 2 and 4; weights: Magill,
    Optimal adaptive estimation of sampled stochastic processes (1965). Scatters and new starts are ours.
    """

    noise_stddev: float
    close: bool = False

    def __post_init__(self) -> None:
        if not LEAST_STDDEV <= checks.positive("noise_stddev", self.noise_stddev) <= 1e16:
            raise ValueError(f"noise_stddev must be in [{LEAST_STDDEV:g}, 1e+16], got {self.noise_stddev}")

    def start(self) -> LevelState:
        """Return the state without keys, before the first window."""
        return self._before(0, _ONWARD)

    def advance(self, state: LevelState, values: ArrayLike) -> LevelState:
        """Return the state after one more window.

        Args:
            state: the state after the window before.
            values: noisy counts of this window, shape (keys,), in the order of the state, at most 2^63 in size; nan
                before the first window of a key.

        Raises:
            ValueError: there is not one finite count for each key.
        """
        row = _counts("values", values, dimensions=1)
        if len(row) != len(state) or np.any(np.isnan(row) & ~np.isnan(state.observed)):
            raise ValueError(f"values must be {len(state)} finite numbers, one for each key, got {len(row)}")
        return self._step(state, row, self._noise)[0]

    def join(self, state: LevelState, history: ArrayLike) -> LevelState:
        """Return the state with new keys behind the old ones, as if they had been there for all of `history`.

        Args:
            state: the state after this window.
            history: noisy counts of the new keys, shape (windows, new keys), the last row being this window; nan before
                the first window of a key, which may be still to come.

        Raises:
            ValueError: `history` has another shape, no window, an infinite number, or nan after a key's first window.
        """
        rows = _series("history", history)
        nothing = self._before(rows.shape[1], _ONWARD)
        return state.joined(functools.reduce(lambda new, row: self._step(new, row, self._noise)[0], rows, nothing))

    def read(self, state: LevelState) -> Smoothed:
        """Return estimates for the newest window, given windows up to it: arrays of shape (keys,)."""
        ends = _mixed(_parts(state.observed, state.levels, state.variances, self._noise, state.weights), state.weights)
        return Smoothed(*(np.round(part, 1) for part in ends))

    def read_rise(self, state: LevelState, recent: ArrayLike) -> tuple[Smoothed, Rises]:
        """Return estimates for the newest window, and how far it is from the window of a state some windows before.

        Both are estimated from all windows up to the newest one.

        Args:
            state: the state after the window to compare with.
            recent: noisy counts of the windows since then, shape (windows, keys), at least one window, keys in the
                order of the state; nan before the first window of a key.

        Returns:
            Arrays of shape (keys,): what `read` gives after these windows, and the rises.
        """
        ends = self._read(state, recent, lambda found, windows: _with_rises(found, windows - 1))
        return Smoothed(*ends[:3]), Rises(*ends[3:])

    def read_sum(self, state: LevelState, recent: ArrayLike) -> Smoothed:
        """Return estimates for the sum over the window of a state and those since then, given windows up to the newest.

        Args:
            state: the state after the first of these windows.
            recent: as for `read_rise`. Windows before the first one of a key are not in its sum.

        Returns:
            Arrays of shape (keys,).
        """
        return Smoothed(*self._read(state, recent, _with_sums)[3:])

    def _read(
        self, state: LevelState, recent: ArrayLike, finish: Callable[[Iterator[_Ends], int], list[Floats]]
    ) -> list[Floats]:
        """Return what `finish` makes of the window of a state and those since then, for the last one of them."""
        rows = _counts("recent", recent, dimensions=2)
        windows = len(rows) + 1
        some = _parted(len(state), _TOGETHER // (len(_GRID) * windows))
        last = ([part[-1] for part in finish(self._since(state.select(part), rows[:, part]), windows)] for part in some)
        return [np.concatenate(part) for part in zip(*last, strict=True)]

    def smooth(self, values: ArrayLike, factors: ArrayLike = 1.0) -> Smoothed:
        """Return estimates for all windows of a finished file, each given earlier and later windows.

        The last window's are what `advance` and `read` give, but for the two models that these do not try.

        Args:
            values: noisy counts, shape (windows, keys), at least one window, at most 2^63 in size; nan before the first
                window of a key, for which estimates are nan too.
            factors: by which levels are multiplied in each window, as by a season that is known; > 0, one for all, or
                of the shape of `values`.

        Returns:
            Arrays of shape (windows, keys).

        Raises:
            ValueError: `values` has another shape, no window, an infinite number, or nan after a key's first window.
        """
        return self.smooth_rises(values, 0, factors)[0]

    def smooth_rises(self, values: ArrayLike, rising: int, factors: ArrayLike = 1.0) -> tuple[Smoothed, Rises]:
        """Return what `smooth` gives, and how far each window is from the one so many windows before.

        Args:
            values: as for `smooth`.
            rising: number of windows, from 0 to MOST_RISING; 0 for no rises.
            factors: as for `smooth`.

        Returns:
            Arrays of shape (windows, keys).

        Raises:
            ValueError: `values` breaks a rule of `smooth`, or `rising` is out of range.
        """
        if checks.integer("rising", rising, minimum=0) > MOST_RISING:
            raise ValueError(f"rising must be <= {MOST_RISING}, got {rising}")
        ends = self._in_pieces(values, factors, 0, lambda found: _with_rises(found, rising))
        return Smoothed(*ends[:3]), Rises(*ends[3:])

    def smooth_sums(self, values: ArrayLike, windows: int, factors: ArrayLike = 1.0) -> tuple[Smoothed, Smoothed]:
        """Return what `smooth` gives, and the same of sums over each window and those before it, so many in all.

        The interval of a sum knows which errors its windows share, being estimated from the same counts. It is one of
        Student's law with twelve degrees of freedom, for errors of the model add up: in weeks of flights with small
        noise 93% are in a normal one, and in this one 95%.

        Args:
            values: as for `smooth`.
            windows: of a sum, from 1 to MOST_SUMMED; fewer where a key has no more.
            factors: as for `smooth`.

        Returns:
            Arrays of shape (windows, keys).

        Raises:
            ValueError: `values` breaks a rule of `smooth`, or `windows` is out of range.
        """
        if checks.integer("windows", windows, minimum=1) > MOST_SUMMED:
            raise ValueError(f"windows must be <= {MOST_SUMMED}, got {windows}")
        ends = self._in_pieces(values, factors, windows, lambda found: _with_sums(found, windows))
        return Smoothed(*ends[:3]), Smoothed(*ends[3:])

    def _in_pieces(self, values: ArrayLike, factors: ArrayLike, before: int, finish: _Finish) -> list[Floats]:
        """Smooth some windows and some keys at once; `before`: windows before each that `finish` looks at."""
        rows = _series("values", values)
        times = np.broadcast_to(np.asarray(factors, np.float64), rows.shape)
        pieces = [self._piece(rows, times, first, before, finish) for first in range(0, len(rows), _LONGEST)]
        return [np.concatenate(part) for part in zip(*pieces, strict=True)]

    def _piece(self, rows: Floats, factors: Floats, first: int, before: int, finish: _Finish) -> list[Floats]:
        """Smooth some windows, with those around them: in a very long series what is far away has no weight."""
        start, end = max(0, first - before - _MARGIN), min(len(rows), first + _LONGEST + _MARGIN)
        rows, factors = rows[start:end], factors[start:end]
        some = _parted(rows.shape[1], _TOGETHER // (len(_GRID) * len(rows)))
        both = [finish(self._both_ways(rows[:, part], factors[:, part])) for part in some]
        inside = slice(first - start, first - start + _LONGEST)
        return [np.concatenate(part, axis=1)[inside] for part in zip(*both, strict=True)]

    @functools.cached_property
    def _noise(self) -> float:
        return self.noise_stddev**2

    @property
    def _drifts(self) -> Floats:
        return np.array([[self._noise * drift * drift] for drift, _, _ in _GRID])  # tests change the grid: not kept

    def _before(self, keys: int, models: int) -> LevelState:
        unknown = np.full((models, keys), np.nan)
        return LevelState(np.full(keys, np.nan), unknown, unknown, np.ones_like(unknown))

    def _step(self, state: LevelState, row: Floats, noise: Floats | float) -> _Step:
        predicted = state.variances + self._drifts[: len(state.levels)]
        around = noise + _scattered(state.levels, noise)
        spread = predicted + around
        squares = np.square(row - state.levels) / spread
        first = np.isnan(state.levels)
        anew = first | (squares > _BREAK)
        levels = np.where(anew, row, state.levels + predicted / spread * (row - state.levels))
        variances = np.where(
            anew, noise + _scattered(np.broadcast_to(row, levels.shape), noise), predicted / spread * around
        )
        likely = np.where(first, 1.0, _likelihood(np.minimum(squares, _BREAK), spread))
        weights = np.where(first, _PRIOR[: len(levels)] / _PRIOR.max(), _normed(_switched(state.weights) * likely))
        lost, best = weights < _LOST, weights.argmax(axis=0)[None]
        levels, variances = (np.where(lost, np.take_along_axis(of, best, 0), of) for of in (levels, variances))
        return _Step(LevelState(row, levels, variances, weights), anew | lost, likely)

    def _both_ways(self, rows: Floats, factors: Floats) -> Iterator[_Ends]:
        """Go forward, and then back."""
        rows, noises = rows / factors, self._noise / np.square(factors)
        models = len(_GRID if self.close else _GRID[:_FINISHED])
        steps = [_Step(self._before(rows.shape[1], models), np.zeros(0, np.bool_), np.zeros(0))]
        for row, noise in zip(rows, noises, strict=True):
            steps.append(self._step(steps[-1].state, row, noise))
        return self._backward(steps[1:], list(factors), list(noises))

    def _since(self, state: LevelState, rows: Floats) -> Iterator[_Ends]:
        """Go forward from a state over some windows, and then back to it."""
        steps = [_Step(state, np.zeros(0, np.bool_), np.zeros(0))]
        for row in rows:
            steps.append(self._step(steps[-1].state, row, self._noise))
        return self._backward(steps, [1.0] * len(steps), [self._noise] * len(steps))

    def _backward(
        self, steps: Sequence[_Step], factors: Sequence[Floats | float], noises: Sequence[Floats | float]
    ) -> Iterator[_Ends]:
        """Go back with the smoother of Rauch, Tung and Striebel, which stops at new starts: the last window first."""
        state = steps[-1].state
        levels, variances, gain = state.levels, state.variances, np.zeros_like(state.levels)
        later = np.ones_like(levels)  # likelihood of what comes later
        for place in reversed(range(len(steps))):
            state = steps[place].state
            if place + 1 < len(steps):
                _, anew, likely = steps[place + 1]
                predicted = state.variances + self._drifts[: len(levels)]
                gain = np.where(anew, 0.0, state.variances / predicted)
                levels = state.levels + gain * (levels - state.levels)
                variances = state.variances + np.square(gain) * (variances - predicted)
                later = np.where(np.isnan(likely), later, _normed(_before_switching(likely * later)))
            weights = state.weights * later
            parts = _parts(state.observed, levels, variances, noises[place], weights)
            ends = _mixed(parts, weights)
            first, low, high = (end * factors[place] for end in ends)
            yield _Ends(factors[place], *parts, variances, weights, (first, low, high), gain)


@functools.lru_cache(maxsize=256)
def steady_part(windows: int, mean_of: int = 1) -> float:
    """Return which part of the noise of one window a smoothed number has that stays what it is, as the model says.

    Of numbers that move the part is larger. With 4 to 13 windows errors are a seventh larger than this.

    Args:
        windows: of the file; from 512 on the part hardly changes.
        mean_of: windows over which a mean is taken.
    """
    still = np.zeros((max(mean_of, min(windows, _LONG_ENOUGH)), 1))
    level, large = LocalLevel(_LARGE_NOISE), _LARGE_NOISE * mean_of  # large, for ends are rounded
    if mean_of == 1:
        reach = level.smooth(still).upper / NORMAL
    else:
        reach = level.smooth_sums(still, mean_of)[1].upper[mean_of - 1 :] / _STUDENT
    return float(np.sqrt(np.mean(np.square(reach / large))))


def beside(levels: Floats) -> Floats:
    """Return the mean of the windows before and after each one, two or more (first axis); at both ends the next one."""
    around = np.concatenate([levels[1:2], levels, levels[-2:-1]])
    mean: Floats = (around[:-2] + around[2:]) / 2
    return mean


def _with_rises(found: Iterable[_Ends], rising: int) -> list[Floats]:
    """Return estimates and intervals of all windows, and how far each is from the one so many before, with deviations.

    Args:
        found: all windows, the last one first.
        rising: number of windows; 0 for no rises.
    """
    ends, spreads = [], []
    after: deque[_Ends] = deque(maxlen=rising + 1)
    for one in found:
        ends.append(one.ends)
        after.append(one)
        if rising and len(after) > rising:
            spreads.append(_spread(after[-1], after[0], functools.reduce(np.multiply, [n.gain for n in [*after][1:]])))
    smoothed = _smoothed(ends)
    return [*smoothed, *_rises(smoothed.estimates, spreads[::-1], rising)]


def _with_sums(found: Iterable[_Ends], windows: int) -> list[Floats]:
    """Return estimates and intervals of all windows, and of the sums over each and those before it, so many in all.

    Args:
        found: all windows, the last one first.
        windows: of a sum.
    """
    every = [*found][::-1]
    factor = np.stack([np.broadcast_to(one.factor, one.ends[0].shape) for one in every])[:, None]
    known = ~np.isnan(np.stack([one.means for one in every]))
    weights, gain, variances = (
        np.stack([getattr(one, name) for one in every]) for name in ("weights", "gain", "variances")
    )
    moves = factor * np.stack([one.kept_off for one in every])
    parts = (
        factor * np.stack([one.means for one in every]),
        np.square(factor) * np.stack([one.within for one in every]),
        moves * gain,
        moves * variances,
        gain,
    )
    each = _Sums(*(np.where(known, part, empty) for part, empty in zip(parts, _NOTHING, strict=True)))
    sums = _over(each, windows)
    estimates = np.stack([one.ends[0] for one in every])
    added = np.cumsum(np.nan_to_num(estimates), axis=0)
    added = added - _delayed(added, windows, 0.0)
    apart = sums.means - added[:, None]
    mixed = np.stack([_sum(w * (v + a * a)) / _sum(w) for w, v, a in zip(weights, sums.variances, apart, strict=True)])
    reach = _STUDENT * np.sqrt(mixed)
    total = np.where(np.isnan(estimates), np.nan, added)
    return [
        *_smoothed([one.ends for one in every[::-1]]),
        *(np.round(end, 1) for end in (total, np.maximum(total - reach, 0.0), total + reach)),
    ]


def _over(each: _Sums, windows: int) -> _Sums:
    """Return the sums over each window and those before it, so many in all, or all that there are."""
    found, size = each.delayed(len(each.means)), 0
    for power in range(windows.bit_length()):
        if power:
            each = each.delayed(1 << power - 1).then(each)
        if windows >> power & 1:
            found, size = each.delayed(size).then(found), size + (1 << power)
    return found


def _delayed(part: Floats, windows: int, empty: float) -> Floats:
    """Return an array moved on by so many windows, its first axis, with another number where nothing comes from."""
    windows = min(windows, len(part))
    return np.concatenate([np.full_like(part[:windows], empty), part[: len(part) - windows]])


def _smoothed(ends: Sequence[tuple[Floats, Floats, Floats]]) -> Smoothed:
    """Return estimates and intervals of windows, given the last one first."""
    return Smoothed(*(np.round(np.stack(part[::-1]), 1) for part in zip(*ends, strict=True)))


def _parted(number: int, size: int) -> list[slice]:
    """Return slices of so many numbers, at least one, and that for none."""
    return [slice(i, i + max(1, size)) for i in range(0, max(1, number), max(1, size))]


def _parts(
    observed: Floats, levels: Floats, variances: Floats, noise: Floats | float, weights: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return mean and variance of the count in each model, and by how much it moves with the level.

    Of its distance from the level, a count keeps the share that is scatter and not noise. It may be none of theirs, as
    in a burst of one window: then it stands as it is. How probable that is follows from how far it is from the models
    together, in deviations of what they leave of the noise.
    """
    scattered = _scattered(levels, noise)
    kept = scattered / (scattered + noise)
    means = levels + kept * (observed - levels)
    within, total = kept * noise + np.square(1 - kept) * variances, _sum(weights)
    off = np.square(observed - _sum(weights * means) / total)
    squares = off / np.maximum(noise - _sum(weights * within) / total, _LEAST_OFF * noise)
    burst = 1 / (1 + _WIDE / _BURST * _decayed(np.minimum(squares * (1 - 1 / _WIDE**2) / 2, _MOST_DECAYED)))
    apart = observed - means
    spread = (1 - burst) * within + burst * noise + burst * (1 - burst) * np.square(apart)
    return means + burst * apart, spread, (1 - burst) * (1 - kept)


def _mixed(parts: tuple[Floats, Floats, Floats], weights: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the counts, and the ends of their intervals, mixed over models."""
    means, within, _ = parts
    total = _sum(weights)
    mean = _sum(weights * means) / total
    reach = NORMAL * np.sqrt(_sum(weights * (within + np.square(means - mean))) / total)
    mean = np.maximum(mean, 0.0)  # before its interval: it would leave out what is a little above 0
    return mean + 0.0, np.maximum(mean - reach, 0.0), mean + reach


def _spread(before: _Ends, now: _Ends, gain: Floats) -> Floats:
    """Return the standard deviation of the difference of two windows of each key.

    Args:
        before, now: the windows.
        gain: which part of an error of the later level the earlier one shares, in each model.
    """
    shared = gain * now.variances * before.kept_off * now.kept_off * before.factor * now.factor
    within = np.square(now.factor) * now.within + np.square(before.factor) * before.within - 2 * shared
    apart = now.factor * now.means - before.factor * before.means - (now.ends[0] - before.ends[0])
    mixed = _sum(now.weights * (np.maximum(within, 0.0) + np.square(apart))) / _sum(now.weights)
    return np.sqrt(mixed)


def _rises(estimates: Floats, spreads: Sequence[Floats], rising: int) -> Rises:
    """Return differences of estimates, given the standard deviations of those that have a window before."""
    differences, stddevs = np.full_like(estimates, np.nan), np.full_like(estimates, np.nan)
    if spreads:
        differences[rising:] = np.round(estimates[rising:] - estimates[:-rising], 1)
        stddevs[rising:] = np.stack(spreads)
    return Rises(differences, stddevs)


def _share_below(scores: Floats) -> Floats:
    """Return the part of Student's law with six degrees of freedom below each score, in [1 - _SURE, _SURE].

    Its tails are for errors of the model: with a normal law 88% were true of what was 90% to 95% sure. It needs no
    exponential of the platform.
    """
    squares = np.square(np.clip(scores, -_FARTHEST, _FARTHEST))
    rest = 6 / (6 + squares)
    half = np.sqrt(squares / (6 + squares)) * (1 + rest / 2 * (1 + rest * 3 / 4)) / 2
    share: Floats = np.clip(np.where(scores > 0, 0.5 + half, 0.5 - half), 1 - _SURE, _SURE)
    return share


def _scattered(levels: Floats, noise: Floats | float) -> Floats:
    """Return the variance of a count around its level in each model: arrays (models, keys)."""
    models = np.array(_GRID)[: len(levels)]
    found: Floats = models[:, 1:2] * np.maximum(levels, 0.0) + models[:, 2:] * noise
    return found


def _likelihood(squares: Floats, spread: Floats) -> Floats:
    """Return the likelihood of each model, up to a factor that models of a key share."""
    found: Floats = np.sqrt(spread[0] / spread) * _decayed((squares - squares.min(axis=0)) / 2)
    return found


def _switched(weights: Floats) -> Floats:
    """Return the weights after a window in which another model may take over."""
    prior = _PRIOR[: len(weights)]
    found: Floats = (1 - _SWITCH) * weights + _SWITCH * prior / prior.sum() * _sum(weights)
    return found


def _before_switching(likely: Floats) -> Floats:
    """Return the likelihood of what comes later, given the model before another one may take over."""
    prior = _PRIOR[: len(likely)]
    found: Floats = (1 - _SWITCH) * likely + _SWITCH / prior.sum() * _sum(prior * likely)
    return found


def _normed(weights: Floats) -> Floats:
    """Divide by the largest weight of each key."""
    found: Floats = weights / weights.max(axis=0)
    return found


def _decayed(x: Floats) -> Floats:
    """Return e^-x for x in [0, _MOST_DECAYED], with a relative error below 1e-4.

    np.exp gives other bits on other processors.
    """
    y = x / (1 << _SQUARINGS)
    power = 1 - y * (1 - y / 2 * (1 - y / 3))
    for _ in range(_SQUARINGS):
        power = power * power
    return power


def _sum(rows: Floats) -> Floats:
    """Add the rows one by one: the order in which np.sum adds depends on how many keys there are."""
    total: Floats = rows[0]
    for row in rows[1:]:
        total = total + row
    return total


def _counts(name: str, values: ArrayLike, *, dimensions: int) -> Floats:
    array = np.array(values, dtype=np.float64)  # a copy: states keep it
    if array.ndim != dimensions:
        raise ValueError(
            f"{name} must be {'one' if dimensions == 1 else 'two'}-dimensional, got {array.ndim} dimensions"
        )
    if np.any(np.abs(array) > _LARGEST):
        raise ValueError(f"{name} must be at most 2^63 in size")
    return array


def _series(name: str, values: ArrayLike) -> Floats:
    array = _counts(name, values, dimensions=2)
    if len(array) == 0:
        raise ValueError(f"{name} must have at least one window")
    if np.any(np.isnan(array[1:]) & ~np.isnan(array[:-1])):
        raise ValueError(f"{name} must be nan only before the first window of a key")
    return array
