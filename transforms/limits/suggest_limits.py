"""SuggestLimits: how much people contribute, published privately, and the limits that suit a question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows, TimestampCombiner
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import EACH, Accuracy, Coverage
from privstream.mechanisms.limits.noisy_histogram import NoisyHistogram
from privstream.mechanisms.limits.person_histograms import VALUES as VALUE_EDGES
from privstream.mechanisms.limits.person_histograms import Grid, Integers, PersonHistograms, whole_numbers
from privstream.mechanisms.limits.suggested_limits import HALF, best_limit, best_pair, count_noise, rank_noise
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee, people_hashed
from privstream.transforms.batches import Keyed
from privstream.transforms.events.event_fields import NUMBER, UNREAD, WHOLE, EventFields
from privstream.transforms.events.gathering import gather
from privstream.transforms.events.private_transform import ApplyDoFn, PrivateTransform, check_streams
from privstream.transforms.events.split import SplitEvents, check_shards
from privstream.transforms.limits.measuring import (
    CONTRIBUTIONS,
    PER_ITEM,
    PER_WINDOW,
    STREAMS,
    VALUES,
    WINDOWS,
    MeasurePeople,
    by_people,
    with_item,
)
from privstream.transforms.queries.answering import NoRecords, decode_counts, sum_records
from privstream.transforms.rows import LimitShare
from privstream.transforms.timing.on_time import KeyedBatch
from privstream.transforms.timing.steps import Moment, Seconds, Steps, last_end

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


class SuggestLimits(PrivateTransform):
    """Publish how much people contribute to a question, and the limits of it that have the smallest predicted error.

    Input: pairs (user, item) timestamped with their event time, rows with `user`, `item`, `time` and perhaps `stream`
    and `value`, or Arrow record batches with these columns; a bounded collection. Output: `LimitShare` rows, once; with
    `with_dead_letters()`, a `Published` pair of rows and dead letters.

    Privacy:
        Unit: one person over all that is read. Neighbours: `neighbouring`. (epsilon, 0): `guarantee`. Each person is in
        one cell of each distribution, whatever he or she does; one whose number lies beyond the grid is in its last
        cell. Suggestions and intervals are reckoned from the published numbers. Public: all arguments but `noise`.

    Accuracy:
        Each interval by itself holds the truth with probability 1 - beta, about people near enough to others to be
        seen. Of 5,000 people the default epsilon is enough for limits whose error is within a tenth of the best one.

    Args:
        window: length of a window of the later run, in seconds.
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
        shards: number of parallel parts into which people are divided. It changes no answer.

    Raises:
        ValueError, TypeError: when the transform is made, an argument breaks its rule; when it is applied, the
            collection is unbounded, or events of this type cannot be used.

    Example:
        >>> suggest = SuggestLimits(window=86400, start=0, windows=30,
        ...                         noise=KeyedNoise.from_file(path))  # doctest: +SKIP

    Source: derived here, docs/proofs/limits.md.
    """

    def __init__(
        self,
        *,
        window: Seconds,
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
        self.steps = Steps.of(window=window, start=start, end=last_end(window, start, end, windows))
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
        grids = tuple(
            Grid(name, VALUE_EDGES if name == VALUES else whole_numbers(most.get(name)), weight)
            for name, weight in measures.items()
        )
        self.mechanism = PersonHistograms(epsilon=epsilon, grids=grids, neighbouring=neighbouring)
        _ = self._noise_of(1)  # an epsilon or a delta for which the question cannot run is refused now

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

    def build(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages."""
        if not events.is_bounded:
            raise ValueError("events must be a bounded collection: limits are chosen from all of them at once")
        gathered = gather(events, apply_dofn, self.event_fields)
        if self.question == "quantiles":
            gathered = gathered | "WithItem" >> beam.Map(with_item).with_output_types(pa.RecordBatch)
        noise = self.noise.derive("limits", self.steps.label, f"{sorted(self.streams)}")
        streams = None if self.streams == ("",) else self.streams
        split = SplitEvents(steps=self.steps, noise=noise, shards=self.shards, streams=streams)
        measure = MeasurePeople(self.mechanism.grids, noise, added_up=self.question != "quantiles")
        counts = (
            apply_dofn(gathered, split, KeyedBatch)
            | "ByPeople" >> beam.Map(by_people).with_output_types(Keyed)
            | "PeopleTogether" >> beam.GroupByKey()
            | "MeasurePeople" >> beam.ParDo(measure).with_output_types(Keyed)
        )
        # Also of no events: whether there are rows must not depend on the data.
        cells = sum(grid.cells for grid in self.mechanism.grids)
        once = events.pipeline | "Once" >> beam.Impulse()
        none = once | "Nobody" >> beam.ParDo(NoRecords(cells)).with_output_types(Keyed)
        together = (
            (counts, none)
            | "AllCounts" >> beam.Flatten()
            | "HoldTime" >> beam.WindowInto(GlobalWindows(), timestamp_combiner=TimestampCombiner.OUTPUT_AT_EARLIEST)
            | "Together" >> beam.GroupByKey()
            | "SumCounts" >> beam.Map(sum_records).with_output_types(Keyed)
        )
        return apply_dofn(together, PublishLimits(self, noise), LimitShare)

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
        return [row for name, found in histograms.items() for row in _rows(name, found, suggested)]

    def suggested(self, histograms: Mapping[str, NoisyHistogram]) -> dict[tuple[str, int], str]:
        """Return the options that are suggested, by measure and cell; what cannot be seen suggests nothing."""
        found: dict[tuple[str, int], str] = {}

        def suggest(measure: str, best: tuple[float, int] | None, option: str) -> None:
            if best is not None:
                place = measure, best[1]
                text = f"--{option} {best[0]:.15g}"
                found[place] = f"{found[place]} {text}" if place in found else text

        if self.question == "counts":
            of_all = histograms[CONTRIBUTIONS]
            best = best_limit(of_all, self._noise_of, row=self._row(of_all))
            suggest(CONTRIBUTIONS, best, "max_contributions")
            if self.values and best is not None:
                suggest(VALUES, self._largest_value(histograms, best[0]), "max_value")
        elif self.question == "quantiles":
            values = histograms[WINDOWS]
            suggest(WINDOWS, best_limit(values, self._noise_of, row=self._row(values)), "max_contributions")
            seen = histograms[VALUES].seen
            if seen:
                suggest(VALUES, (VALUE_EDGES[max(seen[0] - 1, 0)], seen[0]), "low")
                suggest(VALUES, (VALUE_EDGES[min(seen[-1], len(VALUE_EDGES) - 1)], seen[-1]), "high")
        else:
            pair = best_pair(
                histograms[PER_WINDOW], histograms[WINDOWS], self._noise_of, row=self._row(histograms[CONTRIBUTIONS])
            )
            if pair is not None:
                suggest(PER_WINDOW, pair[0], "items_per_step")
                suggest(WINDOWS, pair[1], "participation_cap")
            if STREAMS in histograms:
                most = histograms[STREAMS].reached(MOST_PEOPLE)
                suggest(
                    STREAMS, None if most is None else (histograms[STREAMS].edges[most], most), "streams_per_person"
                )
        return found

    def _row(self, histogram: NoisyHistogram) -> float:
        """Return the number in one of the rows about which the later run is to be right, but for limits."""
        windows = (self.steps.count or 1) * len(self.streams)
        if self.question == "quantiles":
            return histogram.total / windows
        return HALF * histogram.total / (windows * self.items)

    def _noise_of(self, limit: int) -> float:
        """Return the mean absolute noise of a row where so many contributions of a person count."""
        windows = self.steps.count or 1
        if self.question == "quantiles":
            return rank_noise(self.for_epsilon, self.delta, windows, limit)
        largest = 1 if self.values and self.question == "counts" else None
        return count_noise(self.for_epsilon, self.delta, windows, limit, largest)

    def _largest_value(self, histograms: Mapping[str, NoisyHistogram], contributions: int) -> tuple[int, int] | None:
        """Return the best `max_value` with so many contributions, and its cell."""
        values = histograms[VALUES]
        people = float(values.people.sum())
        if not people > 0 or not values.total > 0:
            return None
        noise_of = partial(_sum_noise, self.for_epsilon, self.delta, self.steps.count or 1, contributions)
        return best_limit(values, noise_of, row=self._row(histograms[CONTRIBUTIONS]) * values.total / people)


class PublishLimits(beam.DoFn):
    """Publish all rows, from the people in all cells."""

    def __init__(self, made: SuggestLimits, noise: NoiseSource) -> None:
        self.made = made
        self.noise = noise
        self.published = Metrics.counter("privstream", "limits_published")

    def process(self, element: Keyed) -> Iterator[LimitShare]:
        """Publish once."""
        rows = self.made.rows(decode_counts(element[1]), self.noise)
        self.published.inc(len(rows))
        yield from rows


def _sum_noise(epsilon: float, delta: float, windows: int, contributions: int, largest: int) -> float:
    """Return the mean absolute noise of a sum of values up to the largest one."""
    return count_noise(epsilon, delta, windows, contributions, largest, "sum")


def _rows(measure: str, found: NoisyHistogram, suggested: Mapping[tuple[str, int], str]) -> Iterator[LimitShare]:
    """Yield the rows of one distribution: of its cells between the ends, and of all on either side of them."""
    edges, cells = found.edges.tolist(), len(found.counts)
    seen = found.seen
    if seen.start > 0:
        yield _row(measure, found, range(seen.start), None, edges[seen.start - 1], suggested)
    for cell in seen:
        below = edges[cell - 1] if cell else (None if edges[0] < 0 else 0.0)
        yield _row(measure, found, range(cell, cell + 1), below, edges[cell] if cell < len(edges) else None, suggested)
    if seen.stop < cells:
        below = edges[seen.stop - 1] if seen else (None if edges[0] < 0 else 0.0)
        yield _row(measure, found, range(seen.stop, cells), below, None, suggested)


def _row(
    measure: str,
    found: NoisyHistogram,
    cells: Sequence[int],
    above: float | None,
    limit: float | None,
    suggested: Mapping[tuple[str, int], str],
) -> LimitShare:
    """Return the row of some cells; it has shares where it is one cell between the ends that has an upper edge."""
    cell = cells[-1]
    people = found.in_cells(cells)
    known = limit is not None and cell in found.seen
    within, kept = (found.within(cell), found.kept(cell)) if known else (NOTHING, NOTHING)
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
        suggested=suggested.get((measure, cell), ""),
    )
