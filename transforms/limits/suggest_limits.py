"""SuggestLimits: how much people contribute, published privately, and the limits that suit a question."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import EACH, Accuracy, Coverage
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.limits.noisy_histogram import NoisyHistogram
from privstream.mechanisms.limits.person_histograms import VALUES as VALUE_EDGES
from privstream.mechanisms.limits.person_histograms import WHOLE_VALUES, Grid, PersonHistograms, whole_numbers
from privstream.mechanisms.limits.suggested_limits import (
    HALF,
    Chosen,
    ChosenForSums,
    LaterRun,
    Prediction,
    best_for_sums,
    best_limit,
    best_pair,
    enough_epsilon,
)
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee, people_hashed
from privstream.transforms.counters import counter
from privstream.transforms.events.event_fields import NUMBER, UNREAD, WHOLE, DeadLetter, EventFields
from privstream.transforms.events.parameters import Parameters, check_shards, check_streams
from privstream.transforms.events.split import EventSplitter
from privstream.transforms.limits.measuring import (
    CONTRIBUTIONS,
    PER_ITEM,
    PER_WINDOW,
    STREAMS,
    VALUES,
    WINDOWS,
    MeasurePeople,
    by_people,
)
from privstream.transforms.row_types import LimitShare
from privstream.transforms.timing.steps import Length, Moment, Steps

MAIN = 8
"""Weight of what limits of a question are about, where all else has 1."""

MEASURES: Mapping[str, Mapping[str, int]] = {
    "counts": {CONTRIBUTIONS: MAIN, PER_WINDOW: 1, PER_ITEM: 1},
    "heavy-hitters": {PER_WINDOW: MAIN, WINDOWS: MAIN, CONTRIBUTIONS: MAIN // 2, PER_ITEM: 1},
    "top-k": {PER_WINDOW: MAIN, WINDOWS: MAIN, CONTRIBUTIONS: MAIN // 2, PER_ITEM: 1},
    "quantiles": {WINDOWS: MAIN},
}
"""What is measured of a person for a question, and its part of the budget."""

VALUE_WEIGHT = MAIN // 2
NOTHING = (None, None, None)
MOST_PEOPLE = 0.95
"""A limit of streams is suggested that such a part of all people does not reach."""


class SuggestLimits(Parameters):
    """Publish how much people contribute to a question, and the limits of it that are predicted to show most.

    `publish` takes Arrow record batches with the columns `user`, `item`, `time` and perhaps `stream` and `value`, all
    of them, and returns `LimitShare` rows, once. It needs no pipeline.

    Privacy:
        Unit: one person over all that is read. Neighbours: `neighbouring`. (epsilon, 0): `guarantee`. Each person is in
        one cell of each distribution, whatever he or she does; one whose number lies beyond the grid is in its last
        cell. Suggestions and intervals are reckoned from the published numbers. Public: all arguments but `noise`.

    Accuracy:
        Each interval by itself holds the truth with probability 1 - beta, about people near enough to others to be
        seen. Of 5,000 people the default epsilon is enough for limits whose error is within a tenth of the best one.

    Args:
        window: length of a window of the later run, in seconds, or so many days, weeks, months or years of a calendar
            from `start` on.
        start: start of its first window, in seconds since 1970 UTC.
        noise: `KeyedNoise`; the same key gives the same rows for the same events.
        epsilon: limit on what all rows together show about one person, > 0.
        end: end of the last window of the later run, in seconds since 1970 UTC.
        windows: number of windows of the later run since `start`, in place of `end`. One of both must be given.
        question: what the limits are for. It decides how the budget is divided among what is measured.
        for_epsilon: epsilon of the later run, for which the limits are chosen, > 0.
        delta: delta of the later run, in (0, 0.1]. The suggestion itself has none.
        items: number of items, the largest ones, about which the later run is to be right. They are taken to hold half
            of all contributions.
        values: whether events have a value, of which one or, for counts, one sum of each person is measured.
        streams: public names of the streams; they must be given if events have a stream.
        neighbouring: what makes two inputs neighbours: one person is added or removed ("add_remove"), or replaced by
            another one ("replace_one").
        beta: probability with which an interval may be wrong.
        shards: number of parts into which people are divided, of which one at a time is in memory. It changes no
            answer.

    Raises:
        ValueError, TypeError: an argument breaks its rule.

    Example:
        >>> suggest = SuggestLimits(window=86400, start=0, windows=30,
        ...                         noise=KeyedNoise.from_file(path))  # doctest: +SKIP

    Source: derived here, docs/proofs/limits.md.
    """

    def __init__(
        self,
        *,
        window: Length,
        start: Moment,
        noise: NoiseSource,
        epsilon: float = 0.05,
        end: Moment | None = None,
        windows: int | None = None,
        question: Literal["counts", "heavy-hitters", "top-k", "quantiles"] = "counts",
        for_epsilon: float = 1.0,
        delta: float = 1e-6,
        items: int = 10,
        values: bool = False,
        streams: tuple[str, ...] | None = None,
        neighbouring: Literal["add_remove", "replace_one"] = "add_remove",
        beta: float = 0.05,
        shards: int = 8,
    ) -> None:
        super().__init__(noise)
        self.noise = noise
        self.question = checks.one_of("question", question, tuple(MEASURES))
        if end is None and windows is None:
            raise ValueError("end or windows must be given: they name the last window")
        self.steps = Steps.of(window=window, start=start, end=end, windows=windows)
        self.streams = check_streams(streams)
        self.for_epsilon = checks.positive("for_epsilon", for_epsilon)
        self.delta = checks.probability("delta", delta)
        self.items = checks.integer("items", items, minimum=1)
        if not isinstance(values, bool):
            raise TypeError(f"values must be true or false, got {type(values).__name__}")
        self.values = values or question == "quantiles"
        self.beta = checks.probability("beta", beta)
        self.shards = check_shards(shards)
        measures = dict(MEASURES[question])
        if streams is not None:
            measures[STREAMS] = 1
        if self.values:
            measures[VALUES] = VALUE_WEIGHT
        count = self.steps.count
        most = {PER_ITEM: count, WINDOWS: (count or 1) * len(self.streams), STREAMS: len(self.streams)}
        value_edges = VALUE_EDGES if question == "quantiles" else WHOLE_VALUES
        grids = tuple(
            Grid(name, value_edges if name == VALUES else whole_numbers(most.get(name)), weight)
            for name, weight in measures.items()
        )
        self.mechanism = PersonHistograms(epsilon=epsilon, grids=grids, neighbouring=neighbouring)
        _ = self.later_run(self.for_epsilon).noise(
            1
        )  # an epsilon or a delta for which the question cannot run is refused now

    @property
    def promise(self) -> PrivacyGuarantee:
        """What one person is promised."""
        return replace(
            self.mechanism.guarantee,
            public=("all parameters", "the windows"),
            caveats=(KEYED_NOISE, people_hashed(self.mechanism.neighbouring)),
        )

    @property
    def prediction(self) -> Accuracy:
        """By how much numbers of people are off."""
        scales = {grid.name: self.mechanism.scale(grid.name) for grid in self.mechanism.grids}
        main = scales[next(iter(scales))]
        claim = (
            f"Each interval by itself holds the truth with probability {1 - self.beta:g}. The noise of a number of "
            f"people has the scale {main:,.1f} for {next(iter(scales))}; fewer people side by side than some "
            f"{8 * main:,.0f} cannot be seen."
        )
        return Accuracy(error=main, failure_probability=self.beta, claim=claim, numbers={"noise_scales": scales})

    @property
    def coverage(self) -> Coverage:
        """What intervals hold: numbers of people, and shares among those who can be seen."""
        return Coverage(holds="the numbers of people in all records that are usable", scope=EACH)

    @property
    def event_fields(self) -> EventFields:
        """What is read of an event."""
        value = (NUMBER if self.question == "quantiles" else WHOLE) if self.values else UNREAD
        return EventFields(item=self.question != "quantiles", streams=self.streams != ("",), value=value)

    def publish(
        self, read: Iterable[pa.RecordBatch | DeadLetter], aside: Callable[[DeadLetter], None]
    ) -> list[LimitShare]:
        """Return the rows about events; see `by_people` for the arguments."""
        noise = self.noise.derive("limits", self.steps.label, f"{sorted(self.streams)}")
        streams = None if self.streams == ("",) else self.streams
        split = EventSplitter(steps=self.steps, noise=noise, shards=self.shards, streams=streams, named=False)
        measure = MeasurePeople(self.mechanism.grids, noise, added_up=self.question != "quantiles")
        counts = np.zeros(sum(grid.cells for grid in self.mechanism.grids), np.int64)
        for people in by_people(read, self.event_fields, split, aside):
            counts += measure.count(people)
        rows = self.rows(counts, noise)
        counter("limits_published").inc(len(rows))
        return rows

    def rows(self, counts: Integers, noise: NoiseSource) -> list[LimitShare]:
        """Return what is published: `counts` are the people in all cells of all grids, one grid after the other."""
        parts = np.split(counts, np.cumsum([grid.cells for grid in self.mechanism.grids])[:-1])
        names = [grid.name for grid in self.mechanism.grids]
        noisy = self.mechanism.release(dict(zip(names, parts, strict=True)), noise)
        histograms = {
            grid.name: NoisyHistogram(
                np.array(grid.edges), noisy[grid.name], self.mechanism.scale(grid.name), self.beta
            )
            for grid in self.mechanism.grids
        }
        suggested = self.suggested(histograms)
        rows = [
            row
            for name, found in histograms.items()
            for row in _rows(name, found, suggested, self.predicted(name, found))
        ]
        return [row._replace(found=None) for row in rows] if self.question == "quantiles" else rows

    def suggested(self, histograms: Mapping[str, NoisyHistogram]) -> dict[tuple[str, int], Suggestion]:
        """Return the options that are suggested, by measure and cell; what cannot be seen suggests nothing."""
        found: dict[tuple[str, int], Suggestion] = {}

        def suggest(measure: str, limit: tuple[float, int], option: str, told: Prediction | None = None) -> None:
            place, text = (measure, limit[1]), f"--{option} {limit[0]:.15g}"
            text = f"{found[place].options} {text}" if place in found else text
            found[place] = Suggestion(text, told, None if told is None else enough)

        run = self.later_run(self.for_epsilon)
        chosen = self._chosen(histograms, run)
        if chosen is None:
            return found
        enough = self._enough(histograms, chosen)
        if isinstance(chosen, ChosenForSums):
            suggest(CONTRIBUTIONS, chosen.contributions, "max_contributions", chosen.counts)
            suggest(VALUES, chosen.value, "max_value", chosen.sums)
        elif self.question == "counts":
            suggest(CONTRIBUTIONS, chosen.limits[0], "max_contributions", chosen.prediction)
        elif self.question == "quantiles":
            suggest(WINDOWS, chosen.limits[0], "max_contributions", chosen.prediction)
            seen = histograms[VALUES].seen
            if seen:
                suggest(VALUES, (VALUE_EDGES[max(seen[0] - 1, 0)], seen[0]), "low")
                suggest(VALUES, (VALUE_EDGES[min(seen[-1], len(VALUE_EDGES) - 1)], seen[-1]), "high")
        else:
            suggest(PER_WINDOW, chosen.limits[0], "items_per_step", chosen.prediction)
            suggest(WINDOWS, chosen.limits[1], "participation_cap", chosen.prediction)
            if STREAMS in histograms and (most := histograms[STREAMS].reached(MOST_PEOPLE)) is not None:
                suggest(STREAMS, (histograms[STREAMS].edges[most], most), "streams_per_person")
        return found

    def later_run(self, epsilon: float) -> LaterRun:
        """Return the run that limits are for, with an epsilon."""
        sums = self.values and self.question == "counts"
        question: Literal["counts", "sums", "ranks"] = "sums" if sums else "counts"
        return LaterRun(
            epsilon,
            self.delta,
            self.steps.count or 1,
            1 if self.question == "quantiles" else self.items,
            "ranks" if self.question == "quantiles" else question,
        )

    def _chosen(self, histograms: Mapping[str, NoisyHistogram], run: LaterRun) -> Chosen | ChosenForSums | None:
        """Return the best limits of a run."""
        if self.question == "quantiles":
            return best_limit(histograms[WINDOWS], run, row=self._row(histograms[WINDOWS]))
        of_all = histograms[CONTRIBUTIONS]
        if self.question != "counts":
            return best_pair(histograms[PER_WINDOW], histograms[WINDOWS], run, row=self._row(of_all))
        sums = best_for_sums(of_all, histograms[VALUES], run, row=self._row(of_all)) if self.values else None
        return sums or best_limit(of_all, run, row=self._row(of_all))

    def _enough(self, histograms: Mapping[str, NoisyHistogram], chosen: Chosen | ChosenForSums) -> float | None:
        """Return the epsilon of the later run that would be enough, if this one is not."""

        def predicted(epsilon: float) -> Sequence[Prediction] | None:
            found = self._chosen(histograms, self.later_run(epsilon))
            return None if found is None else predictions(found)

        if all(one.enough for one in predictions(chosen)):
            return None
        return enough_epsilon(predicted, self.for_epsilon)

    def _row(self, histogram: NoisyHistogram) -> float:
        """Return the number in one of the rows about which the later run is to be right, but for limits."""
        windows = (self.steps.count or 1) * len(self.streams)
        if self.question == "quantiles":
            return histogram.total / windows
        return HALF * histogram.total / (windows * self.items)

    def predicted(self, measure: str, histogram: NoisyHistogram) -> Mapping[int, Prediction]:
        """Return what is predicted of limits at the upper edges of cells, where one limit decides."""
        if measure != (WINDOWS if self.question == "quantiles" else CONTRIBUTIONS) or not histogram.total > 0:
            return {}
        if self.question in ("heavy-hitters", "top-k"):
            return {}
        cells = [cell for cell in histogram.seen if cell < len(histogram.edges)]
        limits = histogram.edges[cells]
        left = np.array([min(1.0, histogram.left_out(limit) / histogram.total) for limit in limits.tolist()])
        found = self.later_run(self.for_epsilon).predict(limits, left, self._row(histogram))
        return dict(zip(cells, found, strict=True))


class Suggestion(NamedTuple):
    """What is suggested at a cell: options, what is predicted of them, and the epsilon that would be enough."""

    options: str
    prediction: Prediction | None = None
    enough: float | None = None


def predictions(chosen: Chosen | ChosenForSums) -> Sequence[Prediction]:
    """Return all that is predicted of a choice."""
    return (chosen.counts, chosen.sums) if isinstance(chosen, ChosenForSums) else (chosen.prediction,)


def _rows(
    measure: str,
    found: NoisyHistogram,
    suggested: Mapping[tuple[str, int], Suggestion],
    predicted: Mapping[int, Prediction],
) -> Iterator[LimitShare]:
    """Yield the rows of one distribution: of its cells between the ends, and of all on either side of them."""
    edges, cells = found.edges.tolist(), len(found.counts)
    seen = found.seen
    if seen.start > 0:
        yield _row(measure, found, range(seen.start), None, edges[seen.start - 1], suggested, predicted)
    for cell in seen:
        below = edges[cell - 1] if cell else (None if edges[0] < 0 else 0.0)
        limit = edges[cell] if cell < len(edges) else None
        yield _row(measure, found, range(cell, cell + 1), below, limit, suggested, predicted)
    if seen.stop < cells:
        below = edges[seen.stop - 1] if seen else (None if edges[0] < 0 else 0.0)
        yield _row(measure, found, range(seen.stop, cells), below, None, suggested, predicted)


def _row(
    measure: str,
    found: NoisyHistogram,
    cells: Sequence[int],
    above: float | None,
    limit: float | None,
    suggested: Mapping[tuple[str, int], Suggestion],
    predicted: Mapping[int, Prediction],
) -> LimitShare:
    """Return the row of some cells; it has shares where it is one cell between the ends that has an upper edge."""
    cell = cells[-1]
    people = found.in_cells(cells)
    known = limit is not None and cell in found.seen
    within, kept = (found.within(cell), found.kept(cell)) if known else (NOTHING, NOTHING)
    suggestion = suggested.get((measure, cell), Suggestion(""))
    told = suggestion.prediction or predicted.get(cell)
    return LimitShare(
        measure=measure,
        above=above,
        limit=limit,
        people=people.people,
        people_lower=people.lower,
        people_upper=people.upper,
        within=within[0],
        within_lower=within[1],
        within_upper=within[2],
        kept=kept[0],
        kept_lower=kept[1],
        kept_upper=kept[2],
        error=None if told is None or not math.isfinite(told.error) else told.error,
        found=None if told is None or measure == VALUES else told.found,
        suggested=suggestion.options,
        enough_epsilon=suggestion.enough,
    )
