"""What transforms on sets of points share: two inputs, the stages, the guarantee."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.transforms.batches import Keyed
from privstream.transforms.events.broken_rule import TYPE, BrokenRuleError
from privstream.transforms.events.element_types import check_rows
from privstream.transforms.events.event_fields import NUMBER, EventFields
from privstream.transforms.events.gathering import gather
from privstream.transforms.events.private_transform import ApplyDoFn, PrivateTransform, check_streams
from privstream.transforms.points.updates import Actions, PackQueries, PackUpdates, check_query
from privstream.transforms.timing.public_clock import WithClock
from privstream.transforms.timing.steps import Moment, Seconds, Steps

MOST_STANDING = 100_000
LATER = 1000
"""The window for which the error is stated when there is no end."""


class PointTransform(PrivateTransform):
    """Updates of points on one input and public queries on another; answers at the end of each window."""

    row_type: type
    query_fields: tuple[str, ...]

    def __init__(
        self,
        *,
        universe: int,
        window: Seconds,
        start: Moment,
        end: Moment | None,
        renew_every: Seconds | None,
        allowed_lateness: Seconds,
        standing: Sequence[Sequence[int]],
        insert_values: tuple[str, ...] | None,
        delete_values: tuple[str, ...] | None,
        streams: tuple[str, ...] | None,
        noise: NoiseSource,
    ) -> None:
        super().__init__(noise)
        self.steps = Steps.of(
            window=window, start=start, end=end, renew_every=renew_every, allowed_lateness=allowed_lateness
        )
        if self.steps.first is None:
            raise ValueError("start must be given: windows are counted from it")
        self.streams = check_streams(streams)
        self.actions = Actions(insert_values, () if delete_values is None else delete_values)
        self.universe = universe
        self.standing = self._checked(standing)
        self.noise = noise

    @property
    @abstractmethod
    def mechanism(self) -> Any:
        """The mechanism of one stream."""

    @abstractmethod
    def answering(self, noise: NoiseSource) -> beam.DoFn:
        """Return the last stage."""

    @property
    def keeps_noise_from_data(self) -> bool:
        """Whether noise does not depend on the data, so that a job must not be restored to see other data."""
        return False

    @property
    def windows(self) -> int | None:
        """Windows of the whole run, or None for no end."""
        return self.steps.count

    @property
    def stated(self) -> tuple[int, str]:
        """For how many windows accuracy is stated, and how a sentence says so."""
        return (LATER, f" in the first {LATER:,} windows") if self.windows is None else (self.windows, "")

    @property
    def promise(self) -> PrivacyGuarantee:
        """What is promised, over the whole run and all streams."""
        found: PrivacyGuarantee = self.mechanism.guarantee
        sets = self.mechanism.duplicates == "ignored"
        same = "Of the updates of one point in one window the last one counts." if sets else "Every update counts."
        return replace(
            found,
            limits=(f"An event updates one point of 1 .. {self.universe}, in one window of one stream. {same}",),
            public=("all arguments but the noise", "the number of windows", "which queries are asked, and when"),
        )

    @property
    def event_fields(self) -> EventFields:
        """What is read of an event."""
        return EventFields(user=NUMBER, streams=self.streams != ("",))

    def build(
        self, inputs: PCollection[Any] | Mapping[str, PCollection[Any]], apply_dofn: ApplyDoFn
    ) -> PCollection[Any]:
        """Build the stages."""
        given = dict(inputs) if isinstance(inputs, Mapping) else {"events": inputs}
        if set(given) - {"events", "queries"} or "events" not in given:
            raise ValueError(f"input must be events, or a dictionary of events and queries, got {', '.join(given)}")
        if not given["events"].is_bounded and self.keeps_noise_from_data:
            raise ValueError(
                "delta must be > 0 when the input is unbounded: with delta = 0 noise does not depend on the data, and "
                "a job that is restored and sees other events in time would show the exact difference"
            )
        common: dict[str, Any] = {"steps": self.steps, "streams": self.streams, "universe": self.universe}
        pack = PackUpdates(**common, actions=self.actions, reduce=self.mechanism.duplicates == "ignored")
        records = apply_dofn(gather(given["events"], apply_dofn, self.event_fields), pack, Keyed)
        if "queries" in given:
            check_rows("queries", given["queries"], (*self.query_fields, "time"))
            queries = given["queries"] | "QueriesInOneWindow" >> beam.WindowInto(GlobalWindows())
            asked = apply_dofn(queries, PackQueries(**common, fields=self.query_fields), Keyed)
            records = (records, asked) | "UpdatesAndQueries" >> beam.Flatten()
        clocked = records | "WithClock" >> WithClock(self.steps, self.streams, together=True)
        actions = f"{self.actions.insert} {self.actions.delete}"
        noise = self.noise.derive(type(self).__name__, self.steps.label, actions)
        return apply_dofn(clocked, self.answering(noise), self.row_type)

    def _checked(self, standing: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        """Return the standing queries, distinct and in order."""
        try:
            found = sorted({check_query(tuple(query), self.query_fields, self.universe) for query in standing})
        except BrokenRuleError as error:
            raise (TypeError if error.code.endswith(TYPE) else ValueError)(str(error)) from None
        if len(found) > MOST_STANDING:
            raise ValueError(f"standing queries must be at most {MOST_STANDING:,}, got {len(found):,}")
        return tuple(found)
