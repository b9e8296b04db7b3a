"""NumericQuantiles: medians and percentiles of numbers in events, such as latencies, prices or ages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Literal

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import EACH, Accuracy, Coverage, Limit
from privstream.mechanisms.keyed_counts.key_table import KeyedState
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.numeric_quantiles import BinnedStep, Bins, QuantileRows
from privstream.mechanisms.numeric_quantiles import NumericQuantiles as Mechanism
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee, people_hashed
from privstream.transforms.batches import EventBatch, Keyed
from privstream.transforms.events.bounding import first_of_run, place_in_run
from privstream.transforms.events.coverage import FIRST_WINDOWS, WHOLE_RUN
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.event_fields import NUMBER, TEXT, UNREAD, EventFields
from privstream.transforms.events.gathering import gather
from privstream.transforms.events.parameters import check_shards, check_streams
from privstream.transforms.events.private_transform import ApplyDoFn, Segment, SharedTransform
from privstream.transforms.events.split import stream_numbers
from privstream.transforms.histograms.categories import (
    LISTED,
    BoundCodes,
    Categories,
    CountedSteps,
    CountEvents,
    LimitRows,
    SplitRows,
)
from privstream.transforms.limits.measuring import pair_hashes
from privstream.transforms.methods import USUAL_CONTRIBUTIONS
from privstream.transforms.rows import QuantileEstimate
from privstream.transforms.timing.clocked import Outputs, WithClock
from privstream.transforms.timing.on_time import KeyedBatch, apart_in_time
from privstream.transforms.timing.steps import Moment, Span, Steps, WindowOptions, windows_in
from typing_extensions import Unpack, override

LAST_PLACE = 65_535
"""Of the streams in which a person has a value: so many values of one person may count, at most."""


def bin_names(bins: Bins) -> Domain:
    """Return names of bins as a list of items, which is in the order of bins."""
    digits = len(str(bins.resolution))
    edges = pairwise(bins.edges.tolist())
    return Domain(f"bin {number:0{digits}}: {low:g} to {high:g}" for number, (low, high) in enumerate(edges))


class SortIntoBins(beam.DoFn):
    """Turn the column `value` of checked batches into an item: the name of its bin."""

    def __init__(self, bins: Bins, names: Domain, steps: Steps, streams: tuple[str, ...]) -> None:
        self.bins = bins
        self.names = names
        self.steps = steps
        self.streams = streams
        self.clipped = Metrics.counter("privstream", "values_clipped")

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        values = batch["value"].to_numpy()
        beyond = np.flatnonzero((values < self.bins.low) | (values > self.bins.high))
        if len(beyond):
            of_stream = beyond[stream_numbers(batch["stream"].take(pa.array(beyond)), self.streams) >= 0]
            in_run, _ = self.steps.assign(batch["time"].to_numpy()[of_stream])
            self.clipped.inc(len(in_run))
        named = self.names.texts.take(pa.array(self.bins.places(values)))
        yield batch.append_column("item", named)


class BoundValues(BoundCodes, state="bound_values"):
    """Of each person one value in each stream counts, chosen at random.

    Which one, and which stream comes first, depends on nothing but the person's own events, with their times, and the
    noise key. The code of a value is stream * number of bins + bin.
    """

    counter = "values"

    def __init__(self, *, noise: NoiseSource, **common: Any) -> None:
        super().__init__(**common)
        self.noise = noise

    @override
    def choose(self, step: int, events: EventBatch) -> tuple[np.ndarray, np.ndarray]:
        noise = self.noise.derive("value order", step)
        values = pair_hashes(noise.derive("value"), events.times.astype(np.uint64), events.items)
        draws = pair_hashes(noise.derive("person"), events.users, values)
        streams = events.items // np.uint64(len(self.categories.domain))
        order = np.lexsort((events.items, events.times, draws, streams, events.users))  # rows that are left are equal
        rows = order[first_of_run(events.users[order], streams[order])]
        users, draws = events.users[rows], draws[rows]
        places = place_in_run(users, np.lexsort((streams[rows], draws, users)))
        return rows, np.minimum(places, LAST_PLACE).astype(np.uint16)


class PublishQuantiles(CountedSteps, state="publish_quantiles"):
    """Per stream, on a public clock: publish the quantiles of every window."""

    counter = "quantiles_published"

    @override
    def walk(
        self, key: bytes, first: int, last: int, batches: dict[int, list[bytes]], state: KeyedState
    ) -> tuple[KeyedState, Outputs]:
        stream, noise = key.decode(), self.noise_of(key, first)
        outputs: list[tuple[int, QuantileEstimate]] = []
        for step, counts in enumerate(self.matrix(first, last, batches), first):
            given = BinnedStep(step=self.steps.number(step), counts=counts)
            state, found = self.mechanism.step(state, given, noise)
            outputs += ((step, row) for row in self._rows(stream, step, found))
        self.published.inc(len(outputs))
        return state, outputs

    def _rows(self, stream: str, step: int, found: QuantileRows) -> Iterator[QuantileEstimate]:
        """Return the rows of one window."""
        start, end = self.steps.bounds(step)
        columns = (found.quantiles, found.estimates, found.lower, found.upper)
        for numbers in zip(*(column.tolist() for column in columns), strict=True):
            yield QuantileEstimate(stream, start, end, *numbers)


class NumericQuantiles(SharedTransform):
    """Publish, window by window, quantiles of numbers: the median, percentiles.

    Input: rows with `value`, `user`, `time` and perhaps `stream`, or Arrow record batches with these columns. A value
    is a number; without one an event becomes a dead letter. Output: `QuantileEstimate` rows, in every window one for
    each quantile; with `with_dead_letters()`, a `Published` pair of rows and dead letters. A window is decided once, at
    its end plus `allowed_lateness`; what comes later is never used.

    Privacy:
        Unit: one person over the whole run and all streams, or one event. Neighbours: `neighbouring`. (epsilon, delta):
        `guarantee`. Enforced: each person counts with at most `max_contributions` values in the whole run, and with one
        value in a window of a stream, chosen at random. Public: all arguments but `noise`.

    Accuracy:
        Each interval contains the quantile of the values that count, each clipped to [low, high], with probability
        1 - beta. Where a window has few values or none, intervals reach from `low` to `high`.

    Args:
        epsilon: limit on what all rows together show about one person, > 0. A smaller value protects better and needs
            more noise.
        low: least value, in the unit of values. Smaller ones count as this one.
        high: largest value. Larger ones count as this one. Choose it by what is possible, not by looking at the data.
        start: start of the first window, in seconds since 1970 UTC; the others are counted from it.
        noise: `KeyedNoise`; the same key gives the same rows for the same events.
        quantiles: which parts of all values lie below, in (0, 1), increasing; 0.5 is the median. More of them cost no
            privacy.
        scale: bins of equal width ("linear"), or with edges of equal ratios ("log"), for values that span several
            orders of magnitude. With "log", `low` must be > 0.
        resolution: number of bins between `low` and `high`, 2 to 65,536. Ends of intervals are edges of bins.
        max_contributions: number of values with which one person counts in the whole run; without it 100. Noise is
            never for more than one value in each window of each stream.
        delta: probability with which the rows may show more than epsilon allows, in [0, 1). Choose it far below
            1 / (number of people).
        unit: what is protected: all that one "person" does in the whole run, or one "event", whoever sent it. Then no
            user is read.
        over: what a quantile is about: a "window", all windows since the "start", or so many seconds before the end of
            each window.
        end: end of the last window that is published, in seconds since 1970 UTC. It must be given unless the input has
            no end, and where quantiles are about more than one window.
        streams: public names of the streams; they must be given if events have a stream.
        neighbouring: what makes two inputs neighbours: one person or event is added or removed ("add_remove"), or
            replaced by another one ("replace_one").
        beta: probability with which an interval may not contain its quantile, of each row by itself.
        shards: number of parallel parts into which people are divided. It changes no answer.
        **options: window, renew_every, allowed_lateness: see `WindowOptions`.

    Raises:
        ValueError, TypeError: when the transform is made, an argument breaks its rule; when it is applied, events of
            this type cannot be used, or the runner cannot keep time.

    Example:
        >>> quantiles = NumericQuantiles(epsilon=1.0, delta=1e-6, low=1, high=60_000, scale="log", window=3600, start=0,
        ...                              end=86400, max_contributions=24,
        ...                              noise=KeyedNoise.from_file(path))  # doctest: +SKIP

    Source: derived here, docs/proofs/numeric_quantiles.md.
    """

    def __init__(
        self,
        *,
        epsilon: float,
        low: float,
        high: float,
        start: Moment,
        noise: NoiseSource,
        quantiles: tuple[float, ...] = (0.5,),
        scale: Literal["linear", "log"] = "linear",
        resolution: int = 1000,
        max_contributions: int | None = None,
        delta: float = 0.0,
        unit: Literal["person", "event"] = "person",
        over: Span = "window",
        end: Moment | None = None,
        streams: tuple[str, ...] | None = None,
        neighbouring: Literal["add_remove", "replace_one"] = "add_remove",
        beta: float = 0.05,
        shards: int = 4,
        **options: Unpack[WindowOptions],
    ) -> None:
        super().__init__(noise)
        self.noise = noise
        self.streams = check_streams(streams)
        self.shards = check_shards(shards)
        checks.real("start", start)
        self.steps = Steps.of(start=start, end=end, **options)
        span = windows_in(over, self.steps)
        if span != "window" and self.steps.count is None:
            raise ValueError("end must be given where quantiles are about more than one window")
        if unit == "event" and max_contributions is not None:
            raise ValueError("max_contributions must not be given when the unit is an event")
        limit = USUAL_CONTRIBUTIONS if max_contributions is None else max_contributions
        if checks.integer("max_contributions", limit, minimum=1) > LAST_PLACE:
            raise ValueError(f"max_contributions must be <= {LAST_PLACE}, got {limit}")
        if unit == "person" and self.steps.count is not None:  # nobody has more than one value in a window of a stream
            limit = min(limit, self.steps.count * len(self.streams))
        self.mechanism = Mechanism(
            epsilon=epsilon,
            delta=delta,
            low=low,
            high=high,
            resolution=resolution,
            scale=scale,
            quantiles=quantiles,
            over=span,
            horizon=self.steps.count,
            contributions=1 if unit == "event" else limit,
            unit=unit,
            neighbouring=neighbouring,
            beta=beta,
        )

    @property
    @override
    def promise(self) -> PrivacyGuarantee:
        found, most = self.mechanism.guarantee, self.mechanism.contributions
        if not self._by_person:
            return replace(found, public=("all parameters", "the windows"))
        values = f"{most:,} value{'s' * (most > 1)}"
        return replace(
            found,
            limits=(f"A person counts with at most {values} in the whole run, and with one in a window of a stream.",),
            public=("all parameters", "the windows"),
            caveats=(*found.caveats, people_hashed(self.mechanism.neighbouring)),
        )

    @property
    @override
    def prediction(self) -> Accuracy:
        return self.mechanism.accuracy

    @property
    @override
    def coverage(self) -> Coverage:
        made, windows, limits = self.mechanism, self.steps.count, []
        if self._by_person:
            stream = "" if self.streams == ("",) else " of a stream"
            limits.append(Limit.at_most("", 1, "value", f"in a window{stream}", "random"))
            if windows is None or made.contributions < windows * len(self.streams):
                most = made.contributions
                limits.append(Limit.at_most("max_contributions", most, "value", WHOLE_RUN, FIRST_WINDOWS, lasting=True))
        which = "the values that count" if limits else "all values that are usable and in time"
        return Coverage(
            holds=f"the quantiles of {which}, clipped to low and high,",
            scope=EACH,
            limits=tuple(limits),
            beyond="the quantiles of all values may be larger or smaller",
            looks_like="a trend",
        )

    @property
    @override
    def event_fields(self) -> EventFields:
        user = TEXT if self._by_person else UNREAD
        return EventFields(user=user, item=False, streams=self.streams != ("",), value=NUMBER)

    @property
    def _by_person(self) -> bool:
        return self.mechanism.unit == "person"

    @property
    @override
    def segments(self) -> tuple[Segment, ...]:
        if not self._by_person:
            return Segment(self._count_events, Keyed), Segment(partial(self._publish, last=1))
        people = Segment(self._split, KeyedBatch), Segment(self._count_people, Keyed)
        return *people, Segment(partial(self._publish, last=3))

    def _in_bins(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages from events to the bins of their values."""
        if not events.is_bounded and self.mechanism.delta == 0 and self.mechanism.over == "start":
            raise ValueError(
                "delta must be > 0 when the input is unbounded and quantiles are since the start: with delta = 0 noise "
                "does not depend on the data, and a job that is restored and sees other events in time would show the "
                "exact difference"
            )
        sort = SortIntoBins(self.mechanism.bins, self._categories.domain, self.steps, self.streams)
        return apply_dofn(gather(events, apply_dofn, self.event_fields), sort, pa.RecordBatch)

    @cached_property
    def _categories(self) -> Categories:
        """The bins."""
        return Categories(domain=bin_names(self.mechanism.bins), streams=self.streams, limit=1, separator=LISTED)

    def _publish(self, counts: PCollection[Any], apply_dofn: ApplyDoFn, *, last: int) -> PCollection[Any]:
        """Build the last stage, which has a number."""
        clocked = counts | "WithClock" >> WithClock(self.steps, self.streams, together=True, apart=not self._by_person)
        publish = PublishQuantiles(
            steps=self.steps,
            timer_offset=last,
            categories=self._categories,
            mechanism=self.mechanism,
            noise=self._counting_noise,
        )
        return apply_dofn(clocked, publish, QuantileEstimate)

    @property
    def _common(self) -> dict[str, Any]:
        """What stages that count are given."""
        return {"steps": self.steps, "categories": self._categories}

    @property
    def _people(self) -> NoiseSource:
        """What tells people apart, and orders what they have."""
        return self.noise.derive("people in quantiles")

    def _count_events(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages from events to numbers of values per bin."""
        return apply_dofn(self._in_bins(events, apply_dofn), CountEvents(**self._common), Keyed)

    def _split(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages from events to batches of them by window and shard of people."""
        split = SplitRows(**self._common, noise=self._people, shards=self.shards)
        return apart_in_time(apply_dofn(self._in_bins(events, apply_dofn), split, KeyedBatch), self.steps)

    def _count_people(self, batches: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages from batches of events to numbers of values that count, per bin."""
        bounded = apply_dofn(batches, BoundValues(**self._common, timer_offset=1, noise=self._people), Keyed)
        limit = LimitRows(**self._common, timer_offset=2, limit=self.mechanism.contributions)
        return apply_dofn(bounded, limit, Keyed)

    @property
    def _counting_noise(self) -> NoiseSource:
        """The noise of counts: a run with other windows or streams shares none of it."""
        return self.noise.derive("quantiles of numbers", self.steps.label, f"{sorted(self.streams)}")
