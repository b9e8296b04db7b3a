"""What transforms on counts of public categories share: arguments, limits for each unit, stages, the guarantee."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import partial
from typing import Any, cast

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Coverage, Limit
from privstream.mechanisms.histograms.mechanism import HistogramMechanism
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee, people_hashed
from privstream.mechanisms.privacy.units import EVENT, PERSON
from privstream.transforms.batches import Keyed
from privstream.transforms.events.coverage import ALL_EVENTS, FIRST, WHOLE_RUN, together
from privstream.transforms.events.domain import Domain, Items
from privstream.transforms.events.event_fields import TEXT, UNREAD, EventFields
from privstream.transforms.events.gathering import gather
from privstream.transforms.events.parameters import check_shards, check_streams, privacy_unit
from privstream.transforms.events.private_transform import ApplyDoFn, Segment, SharedTransform
from privstream.transforms.histograms.categories import LISTED, BoundRows, Categories, CountEvents, LimitRows, SplitRows
from privstream.transforms.timing.clocked import WithClock
from privstream.transforms.timing.on_time import KeyedBatch, apart_in_time
from privstream.transforms.timing.steps import Moment, Steps, WindowOptions
from typing_extensions import Unpack, override

UNITS = ("event", "person")
MOST_CONTRIBUTIONS = 65_535


class CategoryTransform(SharedTransform):
    """Events with public categories in; something private about their counts, after every window, out.

    Its arguments are those of `ContinualHistogram`.
    """

    row_type: type

    def __init__(
        self,
        *,
        domain: Items,
        start: Moment,
        end: Moment | None,
        unit: str,
        max_contributions: int | None,
        max_per_window: int | None,
        categories_per_row: int,
        separator: str | None,
        streams: tuple[str, ...] | None,
        neighbouring: str,
        restartable: bool | None,
        noise: NoiseSource,
        shards: int,
        **options: Unpack[WindowOptions],
    ) -> None:
        super().__init__(noise)
        domain = Domain.of(domain)
        if checks.integer("categories_per_row", categories_per_row, minimum=1) > len(domain):
            raise ValueError(f"categories_per_row must be <= {len(domain)}, got {categories_per_row}")
        if separator is not None and not (isinstance(separator, str) and separator):
            raise ValueError(f"separator must be a text, at least one character, got {separator!r}")
        self.unit = privacy_unit(unit, UNITS)
        self.max_contributions = _limit("max_contributions", max_contributions, self.unit)
        self.max_per_window = _limit("max_per_window", max_per_window, self.unit)
        if self.unit == "person" and max_contributions is None:
            raise ValueError("max_contributions must be given when the unit is a person")
        self.steps = Steps.of(start=start, end=end, **options)
        self.categories = Categories(
            domain=domain,
            streams=check_streams(streams),
            limit=categories_per_row,
            separator=LISTED if separator is None else separator,
        )
        self.neighbouring = neighbouring
        if restartable is not None and not isinstance(restartable, bool):
            raise TypeError(f"restartable must be true, false or None, got {type(restartable).__name__}")
        self.restartable = end is None if restartable is None else restartable
        self.shards = check_shards(shards)
        self._source = noise

    @property
    @abstractmethod
    def mechanism(self) -> HistogramMechanism:
        """The mechanism of one stream."""

    @abstractmethod
    def publisher(self, timer_offset: int, noise: NoiseSource) -> beam.DoFn:
        """Return the last stage."""

    @property
    def shape(self) -> dict[str, Any]:
        """What a mechanism must know: a person's categories are rows of one column each.

        An event may be replaced by one of another window or stream, as if it were a person with a single one.
        """
        by_user = self.unit == "person"
        rows = 1 if self.neighbouring == "replace_one" else None
        return {
            "columns": len(self.categories.domain),
            "horizon": self.windows,
            "row_columns": 1 if by_user else self.categories.limit,
            "rows_per_unit": self.max_contributions if by_user else rows,
            "neighbouring": self.neighbouring,
            "repeatable": self.restartable,
        }

    def shape_with(self, delta: float) -> dict[str, Any]:
        """Return the same, with what limits a person in one window if noise is smaller for it: if delta > 0."""
        limited = delta > 0 and self.max_per_window is not None
        return self.shape | ({"rows_per_step": self.max_per_window} if limited else {})

    @property
    def windows(self) -> int | None:
        """Windows of the whole run, or None for no end."""
        return self.steps.count

    @property
    @override
    def promise(self) -> PrivacyGuarantee:
        categories = self.categories.limit
        counted = f"at most {categories} categories" if categories > 1 else "one category"
        limits = [f"An event counts in one window of one stream, for {counted} of {len(self.categories.domain):,}."]
        public = ["all arguments but the noise", "the number of windows, all of which are published"]
        if self.unit == "person":
            most = cast(int, self.max_contributions)
            limits.append(
                f"A person's first {most:,} categories count in the whole run, in all streams together"
                + (f", of which at most {self.max_per_window:,} in one window." if self.max_per_window else ".")
            )
        found = self.mechanism.guarantee
        hashes = (people_hashed(self.neighbouring),) if self.unit == "person" else ()
        return replace(
            found,
            unit=PERSON if self.unit == "person" else EVENT,
            limits=tuple(limits),
            public=tuple(public),
            proof=f"docs/proofs/live_histograms.md, section {3 if self.unit == 'person' else 2}; {found.proof}",
            caveats=(*found.caveats, *hashes),
        )

    @property
    @override
    def coverage(self) -> Coverage:
        limits, several, thing = [], self.categories.limit, "event"
        if several > 1:
            thing = "category"
            if several < len(self.categories.domain):
                limits.append(Limit.at_most("categories_per_row", several, thing, "", FIRST, unit="event"))
        if self.max_contributions is not None:
            most, in_window = self.max_contributions, self.max_per_window
            limits.append(Limit.at_most("max_contributions", most, thing, WHOLE_RUN, FIRST, lasting=True))
            if in_window is not None and in_window < most:
                limits.append(Limit.at_most("max_per_window", in_window, thing, "in a window", FIRST))
        one = ", each for one category," if several == 1 else ""
        return Coverage(
            holds=f"{'the numbers of events that count' if limits else ALL_EVENTS}{one}",
            scope=together(self.categories.streams),
            limits=tuple(limits),
            beyond="the numbers of all events may be larger",
            looks_like="a standstill",
        )

    @property
    @override
    def event_fields(self) -> EventFields:
        user = TEXT if self.unit == "person" else UNREAD
        return EventFields(user=user, lists=True, streams=self.categories.streams != ("",))

    @property
    @override
    def segments(self) -> tuple[Segment, ...]:
        if self.unit == "event":
            return Segment(self._count_events, Keyed), Segment(partial(self._publish, last=1))
        people = Segment(self._split, KeyedBatch), Segment(self._count_people, Keyed)
        return *people, Segment(partial(self._publish, last=3))

    def _check(self, events: PCollection[Any]) -> None:
        """Refuse noise that does not depend on the data where others could be seen with it."""
        if not events.is_bounded and self.mechanism.delta == 0 and not self.restartable:
            raise ValueError(
                "restartable must be true when the input is unbounded and delta is 0: else noise does not depend on "
                "the data, and a job that is restored and sees other events in time would show the exact difference"
            )

    @property
    def _common(self) -> dict[str, Any]:
        """What all stages are given."""
        return {"steps": self.steps, "categories": self.categories}

    def _count_events(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages from events to counts of them."""
        self._check(events)
        return apply_dofn(gather(events, apply_dofn, self.event_fields), CountEvents(**self._common), Keyed)

    def _split(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages from events to batches of them by window and shard of people."""
        self._check(events)
        split = SplitRows(**self._common, noise=self._source.derive("people in histograms"), shards=self.shards)
        batches = apply_dofn(gather(events, apply_dofn, self.event_fields), split, KeyedBatch)
        return apart_in_time(batches, self.steps)

    def _count_people(self, batches: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages from batches of events to counts of what counts of them."""
        limit = cast(int, self.max_contributions)
        bound = BoundRows(**self._common, timer_offset=1, limit=min(limit, self.max_per_window or limit))
        bounded = apply_dofn(batches, bound, Keyed)
        return apply_dofn(bounded, LimitRows(**self._common, timer_offset=2, limit=limit), Keyed)

    def _publish(self, counts: PCollection[Any], apply_dofn: ApplyDoFn, *, last: int) -> PCollection[Any]:
        """Build the last stage, which has a number."""
        clocked = counts | "WithClock" >> WithClock(
            self.steps, self.categories.streams, together=True, apart=self.unit == "event"
        )
        return apply_dofn(clocked, self.publisher(last, self._noise()), self.row_type)

    def _noise(self) -> NoiseSource:
        """Return noise that depends on everything that the counts depend on, beside the events."""
        unit = "user" if self.unit == "person" else self.unit  # as it was called in the first version
        limits = f"{unit} {self.max_contributions} {self.max_per_window}"
        if self.unit == "person" and self.categories.streams != ("",):
            limits += f" {sorted(self.categories.streams)}"  # which of a person's rows count depends on all streams
        rows = f"{self.categories.domain.digest} {self.categories.limit} {self.categories.separator}"
        return self._source.derive(type(self).__name__, self.steps.label, limits, rows)


def _limit(name: str, value: int | None, unit: str) -> int | None:
    """Return a limit for each person, if there is one."""
    if value is None:
        return None
    if unit != "person":
        raise ValueError(f"{name} must not be given when the unit is an event")
    if checks.integer(name, value, minimum=1) > MOST_CONTRIBUTIONS:
        raise ValueError(f"{name} must be <= {MOST_CONTRIBUTIONS}, got {value}")
    return value
