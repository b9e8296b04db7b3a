"""Smooths the counts of a finished result, each with the windows before and after it, and says what rose."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.mechanisms.keyed_counts.keyed_counts import ANSWERS, KeyedCounts
from privstream.mechanisms.keyed_counts.left_out import DIGITS, LEAST_SHARE, LeftOutLaw, full_counts
from privstream.mechanisms.keyed_counts.part_told import firmly
from privstream.mechanisms.privacy.units import SECOND
from privstream.mechanisms.smoothing import LEAST_STDDEV, WITHOUT_MODEL, LocalLevel, Rises
from privstream.transforms.timing.steps import Steps

TELLING = ("kept", "left_out")
"""Fields with totals of all items of a window."""
TOLD = ("kept_with_noise", "left_out_with_noise")
"""Counters of what rows tell of limits."""
OF_TOLD = ("kept_variance", "left_out_variance")
"""Counters of the variances of that noise."""
USED_UP = ("used_up", "used_up_lower", "used_up_upper")
"""Fields of rows, and counters, of how many people have used up their limit by the end of the last window."""
SMOOTHED = ("smoothed", "smoothed_lower", "smoothed_upper")
"""Fields of rows with a number smoothed over windows, and its interval of 95%."""
FULL = ("full", "full_lower", "full_upper")
"""Fields of rows with an estimate of the count as it would be without limits, and its interval."""
WITHOUT_FULL = "rows_without_full"
"""Counter of published rows in which no full number is, for too little may count."""

SEASONS = {86_400 * SECOND: 7, 3_600 * SECOND: 24}
"""Windows of a season, by the length of a window in microseconds: weekdays, and hours of the day."""

LEAST_CYCLES = 4
OF_DEVIATIONS = 1.483  # a standard deviation, from the median of absolute deviations, if these are normal
OF_SQUARES = 5.4  # variance of its square from so many is this by their number, in units of the square's square
CLEARLY = 5.0
LEAST_FACTOR = 0.01
HARDLY = 0.5
NORMAL = 1.96
LEAST_WINDOWS = 7  # beside the first one, for a window that is cut short
FEW_WINDOWS = 3  # the same, for how much comes in each
CUT_SHORT = 0.8  # a first or last window with less of what is usual is cut short
OF_MEDIAN = 1.253  # spread of a median of ratios that are weighted by what they are divided by, if noise is normal
OF_THREE = 1.23  # by so much the spread is larger if what they are divided by is a median of three
OF_MEDIANS = OF_MEDIAN * OF_THREE
HIDDEN = 1.0  # the same of items whose ratio of two windows says little
PLAIN = 3.0  # standard deviations of noise by which an item is above 0 that noise does not hide
EXCEPTIONAL, OF_EXCEPTIONAL = 0.003, 0.5  # probability of such a window, and by which part more or less comes in it
LARGEST_RATIO = 700.0  # logarithm of one that does not overflow
FARTHEST = 3.0  # an item farther from the mean of its window, in deviations, counts as if it were so far


def _count(name: str, number: int) -> None:
    """Add to a counter of the run."""
    from apache_beam.metrics.metric import Metrics  # noqa: PLC0415 - late: plans load this module without Beam

    Metrics.counter("privstream", name).inc(number)


@dataclass(frozen=True)
class LargestCounts:
    """Chooses the rows of a window with the largest counts in each stream; of equal ones, those whose items come first.

    Privacy: post-processing.

    Attributes:
        top: number of rows in a stream.
        by: the fields that are compared, in this order; rows in which the first is not known are left out.
    """

    top: int
    by: tuple[str, ...] = ("count",)

    def __call__(self, rows: list[Any]) -> list[Any]:
        """Return the largest of all rows of a window, which are published."""
        chosen = self.among(rows)
        _count("counts_published", len(chosen))
        return chosen

    def among(self, rows: Iterable[Any]) -> list[Any]:
        """Return the largest of some rows of one window: no others can be among the largest of all."""
        streams: defaultdict[str, list[Any]] = defaultdict(list)
        for row in rows:
            if getattr(row, self.by[0]) is not None:
                streams[row.stream].append(row)
        return [row for stream in sorted(streams) for row in self._largest(streams[stream])]

    def _largest(self, rows: list[Any]) -> list[Any]:
        """Return the largest of one stream."""
        return nsmallest(self.top, rows, key=self._place)

    def _place(self, row: Any) -> tuple[Any, ...]:
        """Return what sorts a row."""
        return *(-getattr(row, name) for name in self.by), row.item


class _Read(NamedTuple):
    """What smoothing reads of rows.

    Attributes:
        items: equal numbers for the same item of the same stream, in their order, int64 (rows,).
        starts: of windows, in microseconds, int64 (rows,).
        published: counts, and sums if there are any, int64 (answers, rows).
        told: totals of what counts in the window of the row and of what limits leave out, int64 (2, rows); None where
            nothing is told.
        full: nan for none, float64 (rows,).
        used_up: how many people have used up their limit by the end of the last window, and the ends of the interval;
            empty where that is not told.
    """

    items: np.ndarray
    starts: np.ndarray
    published: np.ndarray
    told: np.ndarray | None
    full: np.ndarray
    used_up: tuple[int, ...] = ()

    @classmethod
    def of_rows(cls, columns: Mapping[str, Sequence[Any]]) -> _Read:
        """Read columns of values, as rows have them."""
        pairs = [*zip(columns["stream"], columns["item"], strict=True)]
        numbers = {pair: number for number, pair in enumerate(sorted(set(pairs)))}
        starts = np.array([start.micros for start in columns["window_start"]])
        last = [columns[name][int(starts.argmax())] for name in USED_UP if name in columns]
        return cls(
            np.array([numbers[pair] for pair in pairs]),
            starts,
            np.array([columns[name] for name in ANSWERS if name in columns], np.int64),
            None if columns["kept"][0] is None else np.array([columns[name] for name in TELLING], np.int64),
            np.array(columns["full"], np.float64),
            () if None in last else tuple(last),
        )

    @classmethod
    def of_table(cls, table: pa.Table) -> _Read:
        """Read a table, whose times are in microseconds."""
        streams, items = (_ranks(table[name]) for name in ("stream", "item"))
        told = None if table["kept"].null_count else np.stack([table[name].to_numpy() for name in TELLING])
        starts = table["window_start"].to_numpy()
        last = [table[name][int(starts.argmax())].as_py() for name in USED_UP if name in table.column_names]
        return cls(
            streams * (int(items.max()) + 1) + items,
            starts,
            np.stack([table[name].to_numpy() for name in ANSWERS if name in table.column_names]),
            told,
            table["full"].cast(pa.float64()).to_numpy(),
            () if None in last else tuple(last),
        )


def _ranks(texts: pa.ChunkedArray) -> np.ndarray:
    """Return a number for each text, int64: equal ones for equal texts, in their order."""
    found = texts.combine_chunks().dictionary_encode()
    places = np.empty(len(found.dictionary), np.int64)
    places[pc.sort_indices(found.dictionary).to_numpy()] = np.arange(len(places))
    return np.asarray(places[found.indices.to_numpy()])


@dataclass(frozen=True)
class SmoothFinished:
    """Fills in `smoothed`, `smoothed_lower` and `smoothed_upper` of all rows of a run that has ended, and of its rises.

    Windows of an item that follow each other without a gap are smoothed together. Where they are days or hours, and
    there are weeks or days enough, what all items have in common by weekday, or by hour of the day, is kept; and so is
    what they have in common in a first or last window that is cut short, and in any window. Where it is told how much
    limits leave out, the share that counts is kept too, and `full`, `full_lower` and `full_upper` become those of
    smoothed counts.

    Where counts are to be about several windows, the rows that are given are about one each, and become sums of theirs
    and of those before, with the errors of sums.

    Privacy: post-processing of what is published.

    Attributes:
        length: of a window, in microseconds.
        stddev: standard deviation of the noise of a count.
        rising: number of windows to look back for what rose; 0 for none.
        at_least: rows with a smaller smoothed number are left out; None for none.
        windows: of which counts are to be the sum, as far as an item has so many; 1 for counts as they are.
        sums: what knows the errors of such sums; None where `windows` is 1, and where smoothed ones alone are wanted.
        steps: the windows, if everything starts afresh now and then: limits begin anew with a period, so that its
            windows are not compared with those before it.
        left_out: what knows the errors of totals of what counts and of what limits leave out; None without them.
        steady: whether random contributions of all windows of a period count, as many of a window as there are.
        live: whether the windows are some of a run that goes on: none of them is cut short.
        common: standard deviation of the part of the noise that all counts of a window have in common.
    """

    length: int
    stddev: float
    rising: int = 0
    at_least: int | None = None
    windows: int = 1
    sums: KeyedCounts | None = None
    steps: Steps | None = None
    left_out: LeftOutLaw | None = None
    steady: bool = False
    live: bool = False
    common: float = 0.0

    def __call__(self, rows: Sequence[Any]) -> list[Any]:
        """Return the rows with these fields, in the same order, but for those that are left out."""
        if not rows:
            return []
        row_type = type(rows[0])
        columns = dict(zip(row_type._fields, zip(*rows, strict=True), strict=True))
        changed, shown = self._changed(_Read.of_rows(columns))
        columns |= {name: listed(column) for name, column in changed.items()}
        found = map(row_type._make, zip(*columns.values(), strict=True))
        return list(found) if shown is None else list(compress(found, shown.tolist()))

    def in_columns(self, rows: pa.Table) -> pa.Table:
        """Return the rows with these fields as `__call__` does, as a table.

        Args:
            rows: a column for each field of `KeyCount` or `KeySum`; times in microseconds, int64.
        """
        if not rows.num_rows:
            return rows
        changed, shown = self._changed(_Read.of_table(rows))
        for name, column in changed.items():
            rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(column, from_pandas=True))
        return rows if shown is None else rows.filter(pa.array(shown))

    def of_series(self, counts: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Return what rows would have as smoothed counts, with the ends of their intervals.

        Args:
            counts: of some items in all windows, int64 (windows, items).
            starts: of the windows, in microseconds, int64 (windows,), increasing.

        Returns:
            float64 (3, windows, items).
        """
        windows, items = counts.shape
        every = np.tile(np.arange(items), windows), np.repeat(starts, items)
        found = self._smoothed(_Read(*every, counts.reshape(1, -1), None, np.full(counts.size, np.nan)))
        return np.reshape([found[name] for name in SMOOTHED], (3, windows, items))

    def _changed(self, rows: _Read) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """Return columns in place of those of rows, nan for none, and which rows are shown, bool; None for all."""
        found = self._smoothed(rows)
        shown = None if self.at_least is None else found["smoothed"] >= self.at_least
        if shown is not None:
            _count("counts_published", int(shown.sum()) - len(shown))
        if self.left_out is not None:
            for name, number in zip(USED_UP, rows.used_up, strict=False):
                _count(name, number)
            unknown = np.isnan(found.get("full", rows.full))
            _count(WITHOUT_FULL, int((unknown if shown is None else unknown & shown).sum()))
        return found, shown

    def _smoothed(self, rows: _Read) -> dict[str, np.ndarray]:
        """Return the columns that change, of all rows."""
        item, starts = rows.items, rows.starts
        window = np.round((starts - starts.min()) / self.length).astype(np.int64)  # those of a calendar differ a little
        order = np.lexsort((window, item))
        follows = (np.diff(item[order]) == 0) & (np.diff(window[order]) == 1)
        series = np.concatenate([[0], np.cumsum(~follows)])
        counts = rows.published[0].astype(np.float64)[order]
        factors, unsure, _ = season(self.length, window[order], counts, self.stddev)
        shares, cut = self._cut_short(window[order], series, counts / factors)
        factors = factors * shares
        told = None
        if self.left_out is not None and self.steps is not None and rows.told is not None:  # else not told then
            weight = self._weight(starts, rows.told[1])
            share, moves, told = self._kept(rows.told, starts, order, weight)
            factors, cut = factors * share, np.hypot(cut, moves)
        activity, error = (
            self._activity(window[order], series, counts, factors) if window.max() >= FEW_WINDOWS else (1.0, 0.0)
        )
        factors, cut = factors * activity, np.hypot(cut, error)
        ends = np.empty((5 if self.windows == 1 else 6, len(item)))
        for some in _alike(series):  # of nearly the same length
            last = np.flatnonzero(np.concatenate([np.diff(series[some]) > 0, [True]]))
            number = np.unique(series[some], return_inverse=True)[1]
            back = last[number] - np.arange(len(some))
            longest = int(back.max()) + 1
            place = longest - 1 - back, number  # all series end in the last row
            noisy, times = np.full((longest, len(last)), np.nan), np.ones((longest, len(last)))
            noisy[place], times[place] = counts[some], factors[some]
            ends[:, some] = [part[place] for part in self._ends(noisy, times)]
        if self.rising and self.steps is not None:
            period = self.steps.renewals(self.steps.starting(starts[order]))
            ends[3:5, period != np.roll(period, self.rising)] = np.nan
        columns: dict[str, np.ndarray] = {}
        shown, off, alone = ends[:3], unsure * ends[0], cut * ends[0]
        rises = self._unsure_rises(ends, unsure, cut, counts) if self.rising else None
        reach = np.full(len(counts), WITHOUT_MODEL * self.stddev)
        if self.windows > 1:
            known = np.minimum(1 + np.arange(len(item)) - np.searchsorted(series, series), self.windows)
            shown, off, alone = ends[3:], self._unsure_sums(off, known), _added_squares(alone, known)
            columns |= {} if self.sums is None else _added_up(self.sums, rows, order, known)
            counts, reach = _added(counts, known), _reach_of_sums(columns, order, reach * np.sqrt(known))
        found = np.empty((3, len(item)))
        found[:, order] = (
            shown[0],
            *_widened(shown[0], shown[1], shown[2], NORMAL * np.hypot(off, alone), counts, reach),
        )
        columns |= dict(zip(SMOOTHED, found, strict=True))
        if told is not None:
            assert self.left_out is not None
            full = full_counts(found[0], (found[2] - found[0]) / NORMAL, told[0], told[1], self.left_out.least_share)
            columns |= dict(zip(FULL, full, strict=True))
        elif rows.told is None and not np.isnan(rows.full).all():  # limits leave out nothing
            columns |= dict(zip(FULL, found, strict=True))
        if rises is not None:
            risen = rise_columns(rises, np.argsort(order))
            columns |= dict(zip(("rise", "rise_lower", "rise_upper", "rise_probability"), risen, strict=True))
        return columns

    def _weight(self, starts: np.ndarray, left_out: np.ndarray) -> float:
        """Return how much of what seems left out is taken to be so, by the totals of all windows that have rows.

        It is all where limits need not leave out about the same part of every window: some may be much of one.
        """
        assert self.left_out is not None
        return self.left_out.weight(left_out[np.unique(starts, return_index=True)[1]]) if self.steady else 1.0

    def _kept(
        self, totals: np.ndarray, starts: np.ndarray, order: np.ndarray, weight: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the share that counts of each count, how unsure its moves are, and what `_shares` says of sums.

        The moves may be noise as far as the share is unsure; where it is the same in all windows, it moves nothing.
        """
        assert self.left_out is not None and self.steps is not None
        periods = self.steps.renewals(self.steps.starting(starts))
        alone, told = _shares(self.left_out, totals, starts, periods, self.windows, weight, steady=self.steady)
        share = np.clip(np.where(np.isnan(alone), 1.0, alone), LEAST_SHARE, 1.0)[order]
        return share, np.fmin(np.abs(share / share.mean() - 1), told[1][order] / share), told

    def _ends(self, noisy: np.ndarray, factors: np.ndarray) -> list[np.ndarray]:
        """Return estimates and the ends of their intervals, and then rises, or the same of sums."""
        level = LocalLevel(max(LEAST_STDDEV, self.stddev))
        if self.windows > 1:
            return [part for ends in level.smooth_sums(noisy, self.windows, factors) for part in ends]
        smoothed, rises = level.smooth_rises(noisy, self.rising, factors)
        return [*smoothed, *rises]

    def _unsure_sums(self, unsure: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Return what is not known of the season in sums over so many windows.

        The mean of all factors is 1, so it is nothing in whole seasons. The rest has each factor at most once.
        """
        return _added_squares(unsure, known % SEASONS.get(self.length, 1))

    def _unsure_rises(self, ends: np.ndarray, unsure: np.ndarray, cut: np.ndarray, counts: np.ndarray) -> Rises:
        """Return rises with what is not known of factors; where both windows have the same of a season it cancels.

        No interval of a rise reaches further than it must to hold that of the difference of counts, as in `_widened`.
        """
        estimates, differences, stddevs = ends[0], ends[3], ends[4]
        now, before = unsure * estimates, np.roll(unsure, self.rising) * (estimates - differences)
        alike = self.rising % SEASONS.get(self.length, 1) == 0
        season = now - before if alike else np.hypot(now, before)
        alone = np.hypot(cut * estimates, np.roll(cut, self.rising) * (estimates - differences))
        off = np.abs(differences - (counts - np.roll(counts, self.rising)))
        most = np.fmax(stddevs, off / NORMAL + math.sqrt(2) * self.stddev)
        return Rises(differences, np.fmin(np.hypot(np.hypot(stddevs, season), alone), most))

    def _cut_short(self, windows: np.ndarray, series: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a factor for each count, and how unsure it is: below 1 in a first or last window that is cut short.

        The data of a month may end on its fifth day: then all items have so much less than in the three windows beside
        it. The factor is a median over items, each weighted by its median in all other windows. It is 1 where it would
        not be clearly less, and where one item has half of everything: that item would decide by itself. Items that
        noise hides say nothing. Which do is decided by these other windows, too: of small items, those with high noise
        in the three beside it would have less in any window.
        """
        factors, unsure = np.ones(len(counts)), np.zeros(len(counts))
        first, last = int(windows.min()), int(windows.max())
        for end, beside in ((first, 1), (last, -1)) if last - first >= LEAST_WINDOWS and not self.live else ():
            here = np.flatnonzero(windows == end)
            near = here + beside * np.arange(1, 4)[:, None]
            whole = series[near[-1].clip(0, len(series) - 1)] == series[here]
            whole &= windows[near[-1].clip(0, len(series) - 1)] == end + 3 * beside
            rest = np.ones(len(counts), bool)
            rest[here[whole]] = rest[near[:, whole]] = False
            middles, known = _middles(series[rest], counts[rest], int(series[-1]) + 1)
            ends, weights, others = counts[here[whole]], middles[series[here[whole]]], known[series[here[whole]]]
            usual = np.median(counts[near[:, whole]], axis=0)
            some = weights > np.maximum(HIDDEN, PLAIN * OF_MEDIAN / np.sqrt(np.maximum(others, 1))) * self.stddev
            some &= usual > 0
            weights, ratios = weights[some], ends[some] / usual[some]
            if not len(weights) or 2 * weights.max() >= weights.sum():
                continue
            order = np.argsort(ratios, kind="stable")
            below = np.cumsum(weights[order])
            share = max(0.0, float(ratios[order][np.searchsorted(below, below[-1] / 2)]))
            spread = OF_MEDIANS * self.stddev / math.sqrt(float(weights @ weights))
            spread = math.hypot(spread, OF_THREE * self.common * len(weights) / float(weights.sum()))
            if share < CUT_SHORT and 1 - share > CLEARLY * spread:
                factors[here], unsure[here] = _not_too_small(share, spread)
        return factors, unsure

    def _activity(
        self, windows: np.ndarray, series: np.ndarray, counts: np.ndarray, factors: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return by how much more than usual comes in the window of each count, a factor, and how unsure that is.

        It is one for all items: the mean of what those that noise does not hide have in the window, as parts of what
        each usually has, weighted by how sure these are and how much items differ by themselves, divided by the median
        of all windows. It stays as it is as far as its window is probably exceptional. The less the others differ by
        more than noise, the nearer they are to 1, and so they are where noise explains how all differ, by one standard
        deviation of their squares. It is 1 where one item has half of everything: that item would decide by itself.
        Where items of a window clearly differ by more than noise, each is as unsure as they differ: some may have
        moved, and others not.

        Args:
            windows: of each count.
            series: of each count: which are of one item, and follow each other.
            counts: with noise.
            factors: by which levels are known to be multiplied.
        """
        last = int(windows.max())
        found, unsure = np.ones(last + 1), np.zeros(last + 1)
        levels, noise = counts / factors, self.stddev / factors
        squares = np.bincount(series, np.square(factors))  # a window in which little comes says little of a level
        usual = np.bincount(series, counts * factors) / squares
        plain = usual * np.sqrt(squares) > PLAIN * self.stddev
        some = np.flatnonzero(plain[series])
        largest = np.zeros(last + 1)
        np.maximum.at(largest, windows[some], usual[series[some]])
        shared = 2 * largest < np.bincount(windows[some], usual[series[some]], last + 1)
        some = some[shared[windows[some]]]
        if not len(some):
            return found[windows], unsure[windows]
        weights = usual[series[some]]
        here, place = np.unique(windows[some], return_inverse=True)
        errors, part = noise[some] / weights, self.common / self.stddev  # that part: taken as common to all streams
        means, variances, apart = _random_effects(
            place, levels[some] / weights, np.square(errors) * (1 - part**2), errors * part
        )
        middle = float(np.median(means))  # what few windows have more or less does not move the others
        middle = middle if middle > HARDLY else 1.0  # hardly anything comes in most of them: the mean is usual
        offs, variances, apart = means / middle - 1, variances / middle**2, apart / middle**2
        more = np.square(offs) - variances
        sure = float(firmly(float(np.sum(more / variances)) / math.sqrt(2 * len(here))))
        moves = 0.0  # at first what noise does not explain is exceptional; then how others move explains some of it
        for _ in range(2):
            rare = _exceptional(offs, variances, sure * moves)
            moves = max(0.0, float(np.sum((1 - rare) * more))) / max(1.0, float(np.sum(1 - rare)))
        usually = sure * moves / (moves + variances)
        own = usually + rare * (1 - usually)
        either = rare * (1 - rare) * np.square((1 - usually) * offs)
        kept = 1 + own * offs, np.sqrt(own * (variances + own * apart) + either)
        found[here], unsure[here] = (np.round(each, DIGITS) for each in _not_too_small(*kept))
        return found[windows], unsure[windows]


def _not_too_small(factors: np.ndarray | float, errors: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Return factors, none so small that noise alone would be left, and how unsure they are, which that makes larger.

    Args:
        factors: as they are estimated.
        errors: standard deviations of theirs.
    """
    found = np.maximum(factors, LEAST_FACTOR)
    return found, np.hypot(errors, found - factors) / found


class Season(NamedTuple):
    """What is known of a season: float64 arrays (n,), one number for each count.

    Attributes:
        factors: by how much its weekday, or its hour of the day, is above or below the mean.
        unsure: how unsure that is, a standard deviation relative to it.
        apart: by how much cycles differ there by themselves, beside noise, likewise, as far as they surely do.
    """

    factors: np.ndarray
    unsure: np.ndarray
    apart: np.ndarray


def season(length: int, windows: np.ndarray, counts: np.ndarray, stddev: float) -> Season:
    """Return what weekdays, or hours of the day, have in common.

    It is one for all items, from their sums; those of one day or week alone decide nothing, for it is a median. All
    are 1 where windows have another length, where there are too few days or weeks, and where none is clearly
    different from 1, by how much cycles differ and by their noise: few cycles may be alike by chance.

    Args:
        length: of a window, in microseconds.
        windows: of each count, int64 (n,).
        counts: with noise, float64 (n,).
        stddev: of the noise of each.
    """
    none = Season(np.ones(len(windows)), np.zeros(len(windows)), np.zeros(len(windows)))
    if (number := SEASONS.get(length)) is None:
        return none
    first = int(windows.min())
    sums = np.zeros((int(windows.max()) - first) // number * number + number)
    np.add.at(sums, windows - first, counts)
    known = np.bincount(windows - first, minlength=len(sums)).reshape(-1, number)
    cycles = sums.reshape(-1, number)
    means = cycles.mean(axis=1, keepdims=True)
    whole = known.all(axis=1) & (means[:, 0] > 0)
    if whole.sum() < LEAST_CYCLES:
        return none
    cycles, noise = cycles[whole] / means[whole], (known[whole] * np.square(stddev / means[whole])).mean(axis=0)
    factors = np.median(cycles, axis=0)
    differ = OF_DEVIATIONS * np.median(np.abs(cycles - factors), axis=0)
    spread = OF_MEDIAN * np.sqrt(np.maximum(np.square(differ), noise) / len(cycles))
    if not np.any(np.abs(factors - 1) > CLEARLY * spread):
        return none
    factors, unsure = _not_too_small(factors / factors.mean(), spread)
    more = np.square(differ) - noise
    sure = firmly(more / np.maximum(noise * math.sqrt(OF_SQUARES / len(cycles)), np.finfo(float).tiny))
    place = (windows - first) % number
    return Season(*(part[place] for part in (factors, unsure, np.sqrt(sure * np.maximum(more, 0)) / factors)))


def _exceptional(offs: np.ndarray, variances: np.ndarray, usual: float) -> np.ndarray:
    """Return how probable it is that each window is exceptional, given how far it is off.

    There are two kinds of windows, each with a normal law: a spike and a slab (Mitchell and Beauchamp 1988).

    Args:
        offs: by which part more than usual comes.
        variances: of their noise.
        usual: variance of what comes in windows that are not exceptional.
    """
    spike, slab = usual + variances, OF_EXCEPTIONAL**2 + variances
    ratio = np.square(offs) * (1 / spike - 1 / slab) / 2 + np.log(spike / slab) / 2
    odds = EXCEPTIONAL / (1 - EXCEPTIONAL) * np.exp(np.minimum(ratio, LARGEST_RATIO))
    exceptional: np.ndarray = odds / (1 + odds)
    return exceptional


def _random_effects(
    groups: np.ndarray, values: np.ndarray, variances: np.ndarray, common: np.ndarray | float = 0.0
) -> tuple[np.ndarray, ...]:
    """Return the mean of the values of each group, its variance, and the variance of values there beside errors.

    For the means, values differ by their own errors and by another variance that is the same in all groups:
    DerSimonian and Laird (1986). One that is far away moves by itself, and counts as if it were less far. The last
    variance is of each group alone, as far as errors surely do not explain it.

    Args:
        groups: of each value, whole numbers from 0 on; each has a value.
        values: float64, of the same shape.
        variances: of their errors, but for what these have in common.
        common: by how much a standard deviation of that moves each value.
    """
    weights = 1 / variances
    total = np.bincount(groups, weights)
    off = values - (np.bincount(groups, weights * values) / total)[groups]
    free = np.bincount(groups, weights * (1 - weights / total[groups]))
    known = np.bincount(groups) - 1
    more = np.bincount(groups, weights * np.square(off)) - known
    apart = (
        firmly(more / np.sqrt(2 * np.maximum(known, 1))) * np.maximum(more, 0) / np.maximum(free, np.finfo(float).tiny)
    )
    together = max(0.0, float(more.sum())) / float(free.sum()) if free.sum() > 0 else 0.0
    weights = 1 / (variances + together)
    total = np.bincount(groups, weights)
    means = np.bincount(groups, weights * values) / total
    reach = FARTHEST / np.sqrt(weights)
    means += np.bincount(groups, weights * np.clip(values - means[groups], -reach, reach)) / total
    moved = np.bincount(groups, weights * common) / total
    return means, 1 / total + np.square(moved), apart


def _middles(series: np.ndarray, counts: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the median of the counts of each of so many series, 0 of none, and how many counts it has."""
    ranked = counts[np.lexsort((counts, series))]
    known = np.bincount(series, minlength=number)
    middles = np.zeros(number)
    middles[known > 0] = ranked[(np.cumsum(known) - known + known // 2)[known > 0]]
    return middles, known


def _added_squares(errors: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """Return the root of the sum of squares of errors in each row and those before it, so many in all."""
    added: np.ndarray = np.sqrt(np.maximum(_added(np.square(errors), windows), 0.0))
    return added


def _added(numbers: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """Return the sum of the numbers in each row and those before it, so many in all."""
    totals = np.concatenate([[0.0], np.cumsum(numbers)])
    end = 1 + np.arange(len(numbers))
    added: np.ndarray = totals[end] - totals[end - windows]
    return added


def rise_columns(rises: Rises, order: np.ndarray | slice = slice(None)) -> list[np.ndarray]:
    """Return the columns of rises: differences, the ends of their intervals, and probabilities."""
    return [column[order] for column in (rises.differences, *rises.interval, rises.probabilities)]


def listed(column: np.ndarray) -> list[Any]:
    """Return a column as rows have it: None for nan."""
    return numbers_or_none(column) if column.dtype == np.float64 else column.tolist()


def numbers_or_none(column: np.ndarray) -> list[float | None]:
    """Return numbers as rows have them: None for nan."""
    numbers: list[float | None] = np.asarray(column, np.float64).tolist()
    for place in np.flatnonzero(np.isnan(column)).tolist():
        numbers[place] = None
    return numbers


def _added_up(sums: KeyedCounts, rows: _Read, order: np.ndarray, known: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns of sums over several windows.

    Args:
        sums: what knows their errors.
        rows: each about one window; in this order those of an item follow each other.
        order: places of the rows.
        known: how many windows the sum has of which each row is the last one, in this order.
    """
    published = rows.published[: len(sums.law.noises), order]
    totals = np.concatenate([np.zeros((len(published), 1), np.int64), np.cumsum(published, axis=1)], axis=1)
    end, place = 1 + np.arange(len(order)), np.argsort(order)
    added = (totals[:, end] - totals[:, end - known])[:, place]
    found = sums.summed(0, place.astype(np.uint64), added, known[place])
    ends = (np.maximum(found.counts + side * found.count_spread, 0) for side in (-1, 1))
    columns = dict(zip(("lower", "upper"), ends, strict=True))
    columns |= dict(
        zip(
            ("count", "count_stddev", "error_bound"),
            found.of_each("counts", "count_stddev", "count_bound"),
            strict=True,
        )
    )
    if found.sums is not None:
        of_values = found.of_each("sums", "sum_stddev", "means", "mean_bounds")
        columns |= dict(zip(("sum", "sum_stddev", "mean", "mean_error_bound"), of_values, strict=True))
    return columns


def _reach_of_sums(columns: Mapping[str, np.ndarray], order: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """Return how far intervals of sums reach, in this order, where columns have them; else what is given."""
    return (columns["upper"] - columns["count"])[order] if "upper" in columns else reach


def _shares(
    left_out: LeftOutLaw,
    told: np.ndarray,
    starts: np.ndarray,
    periods: np.ndarray,
    several: int,
    weight: float,
    *,
    steady: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return which share of what came counts, each from all windows of its period that have rows.

    Args:
        left_out: what knows the errors of totals.
        told: totals of what counts and of what limits leave out in the window of each row, int64 (2, rows).
        starts: of these windows.
        periods: that of each row.
        several: windows of a sum, with that of the row itself.
        weight: how much of what seems left out is taken to be so, in [0, 1].
        steady: whether random contributions of a period count, as many of a window as there are.

    Returns:
        float64 (rows,): in the window of each row. And float64 (2, rows): in the windows of its sum together, with
        standard deviations. nan where a share is not known.
    """
    alone, together = np.empty(len(starts)), np.empty((2, len(starts)))
    for period in np.unique(periods * np.ones(len(starts), np.int64)):
        here = np.flatnonzero(periods == period)
        _, first, window = np.unique(starts[here], return_index=True, return_inverse=True)
        _count_told(left_out, told[:, here[first]])
        shares = left_out.shares(told[:, here[first]], steady=steady).shown(weight)
        alone[here] = shares.estimates[window]
        summed = shares.of_sums(several)
        if period > periods.min():
            summed.estimates[: several - 1] = np.nan  # sums have windows of the period before
        together[:, here] = summed.estimates[window], summed.stddevs[window]
    return alone, together


def _count_told(left_out: LeftOutLaw, totals: np.ndarray) -> None:
    """Count noisy totals for the run's report, and the variances of their noise, which are public."""
    for name, total in zip(TOLD, totals.sum(axis=1).tolist(), strict=True):
        _count(name, total)
    for name, stddev in zip(OF_TOLD, left_out.stddevs, strict=True):
        _count(name, math.ceil(totals.shape[1] * stddev**2))


def _alike(series: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the places of series whose lengths have the same power of two; `series` has their numbers, in order."""
    powers = np.log2(np.bincount(series)).astype(np.int64)[series]
    for power in np.unique(powers):
        yield np.flatnonzero(powers == power)


def _widened(
    estimates: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    more: np.ndarray,
    counts: np.ndarray,
    reach: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of intervals for another error of so much to either side; those without one stay as they are.

    None reaches further than it must to hold the interval of its count, `reach` to either side, which needs no model: a
    factor that is not known leaves a count as sure as noise does.
    """
    most = np.abs(estimates - counts) + reach
    down, up = (np.minimum(np.hypot(side, more), most) for side in (estimates - lower, upper - estimates))
    ends = np.maximum(estimates - down, 0), estimates + up
    below, above = (np.where(more > 0, np.round(end, 1), old) for end, old in zip(ends, (lower, upper), strict=True))
    return below, above
