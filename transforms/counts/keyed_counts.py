"""KeyedCounts: how many people have each item, of items that are on a public list or that nobody knew before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts as Mechanism
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.caveats import items_hashed, people_hashed, streams_hashed
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.transforms.batches import Keyed
from privstream.transforms.counts.contributions import CountContributions
from privstream.transforms.counts.publishing import KeyPublisher, publish_counts
from privstream.transforms.events.batching import SplitEvents
from privstream.transforms.events.bounding import BoundPerWindow
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.event_fields import EventFields
from privstream.transforms.events.gathering import gather
from privstream.transforms.events.private_transform import ApplyDoFn, PrivateTransform, check_streams
from privstream.transforms.events.shards import check_shards
from privstream.transforms.timing.on_time_markers import KeyedBatch, WithOnTimeMarkers
from privstream.transforms.timing.steps import Moment, Seconds, Span, Steps, windows_in

MOST_IN_WINDOW = 65_535


class KeyedCounts(PrivateTransform):
    """Publish, window by window, how many people have each item.

    Input: pairs (user, item) timestamped with their event time, rows with `user`, `item`, `time` and perhaps
    `stream`, or Arrow record batches with these columns. Output: `KeyCount` rows; with `with_dead_letters()`, a
    `Published` pair of rows and dead letters. A window is decided once, at its end plus `allowed_lateness`; what comes
    later is never used. With a `domain` every item on it has a row in every window; without one an item has a row where
    its noisy count reaches a threshold that depends on public parameters alone.

    Privacy:
        Unit: one person over the whole run and all streams. Neighbours: `neighbouring`. (epsilon, delta): `guarantee`.
        Enforced: each person counts at most `max_contributions` times in the whole run, once for an item in a window,
        and once for an item in the whole run where `over` is "start". Public: all arguments but `noise`.

    Accuracy:
        The noise has the standard deviation `count_stddev` of the rows, and all error bounds hold together with
        probability 1 - beta, for the people who count within their limits.

    Args:
        epsilon: limit on what all rows together show about one person, > 0. A smaller value protects better and needs
            more noise.
        window: length of a window in seconds.
        max_contributions: number of times that one person counts in the whole run.
        noise: `KeyedNoise`; the same key gives the same rows for the same events.
        delta: probability with which the rows may show more than epsilon allows, in [0, 1). Choose it far below
            1 / (number of people). Without a `domain` it must be > 0.
        over: what a count is about: a "window", all windows since the "start", or so many seconds before the end of
            each window.
        start: start of the first window, in seconds since 1970 UTC. It must be given with a `domain`, and where counts
            are about more than one window.
        end: end of the last window that is published, in seconds since 1970 UTC, likewise.
        allowed_lateness: number of seconds that a window stays open after its end.
        domain: a public list of items. Only these are counted, and all of them have a row in every window.
        min_people: number of people without whom an item is never published.
        streams: public names of the streams to count; they must be given if events have a stream.
        neighbouring: what makes two inputs neighbours: one person is added or removed ("add_remove"), or replaced by
            another one ("replace_one").
        beta: probability with which some error bound may be wrong.
        shards: number of parallel parts into which people and items are divided. It changes no answer.

    Raises:
        ValueError, TypeError: when the transform is made, an argument breaks its rule; when it is applied, events of
            this type cannot be used, or the runner cannot keep time.

    Example:
        >>> counts = KeyedCounts(epsilon=1.0, delta=1e-6, window=86400, max_contributions=30,
        ...                      noise=KeyedNoise.from_file(path))  # doctest: +SKIP

    Source: derived here, docs/proofs/keyed_counts.md.
    """

    def __init__(
        self,
        *,
        epsilon: float,
        window: Seconds,
        max_contributions: int,
        noise: NoiseSource,
        delta: float = 0.0,
        over: Span = "window",
        start: Moment | None = None,
        end: Moment | None = None,
        allowed_lateness: Seconds = 0,
        domain: Domain | None = None,
        min_people: int = 1,
        streams: tuple[str, ...] | None = None,
        neighbouring: Literal["add_remove", "replace_one"] = "add_remove",
        beta: float = 0.05,
        shards: int = 4,
    ) -> None:
        super().__init__(noise)
        if domain is not None and not isinstance(domain, Domain):
            raise TypeError(f"domain must be a Domain, got {type(domain).__name__}")
        self.noise = noise
        self.domain = domain
        self.streams = None if streams is None else check_streams(streams)
        self.shards = check_shards(shards)
        self.steps = Steps.of(window=window, start=start, end=end, allowed_lateness=allowed_lateness)
        span = windows_in(over, self.steps)
        self._clocked = domain is not None or span != "window"
        if self._clocked and start is None:
            raise ValueError("start must be given with a domain, and where counts are about more than one window")
        if span != "window" and end is None:
            raise ValueError("end must be given where counts are about more than one window")
        self.mechanism = Mechanism(
            epsilon=epsilon,
            delta=delta,
            over=span,
            horizon=self.steps.count,
            contributions=checks.integer("max_contributions", max_contributions, minimum=1),
            contributions_per_key=1 if span == "start" else None,
            public_keys=domain is not None,
            min_people=min_people,
            neighbouring=neighbouring,
            beta=beta,
        )

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """What one person is promised, over the whole run and all streams."""
        found = self.mechanism.guarantee
        caveats = [*found.caveats, people_hashed(self.mechanism.neighbouring)]
        if self.domain is None:
            caveats.append(items_hashed(self.mechanism.neighbouring))
        if self._distinct or self._newcomers:
            caveats.append(streams_hashed(self.mechanism.neighbouring))
        public = ("all parameters", *(("the list of items",) if self.domain else ()), "the windows")
        return replace(found, public=public, caveats=tuple(caveats))

    @property
    def accuracy(self) -> Accuracy:
        """How far counts are off, and how many people must have an item for it to be published."""
        return self.mechanism.accuracy(self.mechanism.beta)

    @property
    def event_fields(self) -> EventFields:
        """What is read of an event."""
        return EventFields(streams=self.streams is not None)

    @property
    def _distinct(self) -> bool:
        return self.mechanism.contributions_per_key == 1

    @property
    def _newcomers(self) -> bool:
        """Whether people must be told apart from contributions: both grow with time, and few people hide a key."""
        return self.mechanism.over != "window" and self.mechanism.min_people > 1

    def build(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages."""
        _ = self.mechanism.law  # once, at launch; workers receive it
        common: dict[str, Any] = {"steps": self.steps, "noise": self.noise}
        split = SplitEvents(
            **common, shards=self.shards, domain=self.domain, positions=self.domain is not None, streams=self.streams
        )
        bound = BoundPerWindow(
            **common,
            timer_offset=1,
            items_per_step=min(self.mechanism.contributions, MOST_IN_WINDOW),
            selection="random",
            item_shards=1,
            by_people=True,
            domain=self.domain,
        )
        count = CountContributions(
            **common,
            timer_offset=2,
            contributions=self.mechanism.contributions,
            distinct=self._distinct,
            newcomers=self._newcomers,
            key_shards=self.shards,
            domain=self.domain,
        )
        batches = apply_dofn(gather(events, apply_dofn, self.event_fields), split, KeyedBatch)
        marked = batches | "WithOnTimeMarkers" >> WithOnTimeMarkers(self.steps)
        bounded = apply_dofn(marked | "ApartFromOthers" >> beam.Reshuffle(), bound, Keyed)
        counted = apply_dofn(bounded, count, Keyed)
        publisher = KeyPublisher(
            steps=self.steps, mechanism=self.mechanism, noise=self._counting_noise, domain=self.domain
        )
        return publish_counts(
            counted,
            apply_dofn,
            publisher,
            clocked=self._clocked,
            streams=self.streams,
            key_shards=self.shards,
            timer_offset=3,
        )

    @property
    def _counting_noise(self) -> NoiseSource:
        """The noise of counts: a run with other limits, items or streams shares none of it."""
        streams = "" if self.streams is None else f"{sorted(self.streams)}"
        domain = "" if self.domain is None else self.domain.digest
        return self.noise.derive("counts per key", self.steps.label, streams, domain)
