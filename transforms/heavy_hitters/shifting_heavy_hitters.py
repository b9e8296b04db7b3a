"""Shifting heavy hitters: events in, the items that many people hold in each window out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.mechanisms import checks
from privstream.mechanisms.monitor.threshold_monitor import ThresholdMonitor
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.caveats import KEYED_NOISE, items_hashed, people_hashed, streams_hashed
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.transforms.events.batching import SplitEvents
from privstream.transforms.events.bounding import SELECTIONS, BoundItems
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.event_fields import EventFields
from privstream.transforms.events.gathering import gather
from privstream.transforms.events.limiting import LimitPeople
from privstream.transforms.events.private_transform import PrivateTransform, Stage, check_streams
from privstream.transforms.events.shards import check_shards
from privstream.transforms.heavy_hitters.item_tests import TestItems
from privstream.transforms.heavy_hitters.monitoring import MonitorStream
from privstream.transforms.heavy_hitters.visits import VisitAbsentHits
from privstream.transforms.rows import HeavyHitter
from privstream.transforms.timing.receipts import Parcel, WithReceipts
from privstream.transforms.timing.steps import Steps
from privstream.transforms.timing.window_ends import AtWindowEnds

MOST_STEPS = 2**53


class ShiftingHeavyHitters(PrivateTransform):
    """Report, window by window, the items that many people hold, under one guarantee for each person's whole life.

    Input: pairs (user, item) timestamped with their event time, rows with `user`, `item`, `time` and perhaps
    `stream`, or Arrow record batches with these columns. A time is a Beam Timestamp, a datetime, an Arrow timestamp, or
    a number of seconds since 1970. Bounded or unbounded, in any order. Output: `HeavyHitter` rows; with
    `with_dead_letters()`, a `Published` pair of rows and dead letters: what cannot be used, each with the reason, which
    is also counted, and told in the log.

    A window is decided once, at its end plus `allowed_lateness`; what comes later is never used.

    Privacy:
        Unit: one person over the whole run and all streams. Neighbours: `neighbouring`. (epsilon, delta): `guarantee`.
        Enforced: each person holds at most `items_per_step` items per window, takes part in at most `horizon` windows
        (counted from the public `start`, or else per person), is charged for at most `max_hits` hits per stream and
        appears in at most `streams_per_person` streams. Public: all arguments but `noise`.

    Accuracy:
        An item that `detection_threshold` people hold, all of them within their limits and not yet dropped, is
        reported: with probability 1 - beta, in `tests` tests of one item in one window of one stream at once. Without a
        horizon that number is for the first window; see `detection_threshold_at`.

    Args:
        epsilon: finite and > 0.
        delta: in (0, 1).
        max_hits: hits for which one person is charged in one stream before being dropped, 1 to 65535.
        window: length of a window in seconds.
        noise: `KeyedNoise`; the same key gives the same rows for the same events.
        horizon: windows that one person takes part in at most, from `start` on. None for no bound: thresholds then
            rise slowly with time, and `start` must be given.
        period: seconds between the starts of two windows, for sliding windows; `window` if None.
        start: seconds since 1970 UTC of the first window's start, or None.
        end: seconds since 1970 UTC after which no window ends, or None.
        allowed_lateness: seconds that a window stays open after its end.
        participation_cap: windows that one person takes part in at most, in all streams together, counted per person;
            lower thresholds on long runs than `horizon`, at the price of a stateful counter.
        items_per_step: items that one person holds in a window at most.
        selection: which of a person's items count: the "last", the "first", or "random" ones.
        domain: a public list of items, or None. With `start`, and `end` or `horizon`, each of them is tested in every
            window, held or not; otherwise it only says which items are monitored.
        streams: public names of the streams to monitor, or None for any.
        streams_per_person: streams that one person may appear in; None if the events carry no stream.
        calibration: "clock", "target_charging" or "paper".
        neighbouring: "add_remove" or "replace_one".
        beta: failure probability of the accuracy statement.
        count_share: share of epsilon spent on noisy counts; 0 publishes hits with a count of 0.
        shards: parallel shards of people and of items. Changes no answer.

    Raises:
        ValueError, TypeError: an argument breaks its rule, when the transform is made; or, when it is applied, no event
            of such a type can be used, or the runner cannot keep time.

    Example:
        >>> hitters = ShiftingHeavyHitters(epsilon=1.0, delta=1e-6, max_hits=4, window=3600, horizon=1000,
        ...                                noise=KeyedNoise.from_file(path))  # doctest: +SKIP

    Source: Kaplan, Mansour, Stemmer (2020), Theorem 4.7; docs/proofs/.
    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        max_hits: int,
        window: float,
        noise: NoiseSource,
        horizon: int | None = None,
        period: float | None = None,
        start: float | None = None,
        end: float | None = None,
        allowed_lateness: float = 0,
        participation_cap: int | None = None,
        items_per_step: int = 1,
        selection: str = "last",
        domain: Domain | None = None,
        streams: tuple[str, ...] | None = None,
        streams_per_person: int | None = None,
        calibration: str = "clock",
        neighbouring: str = "add_remove",
        beta: float = 0.05,
        count_share: float = ThresholdMonitor.count_share,
        shards: int = 4,
    ) -> None:
        super().__init__(noise)
        checks.one_of("selection", selection, SELECTIONS)
        if domain is not None and not isinstance(domain, Domain):
            raise TypeError(f"domain must be a Domain, got {type(domain).__name__}")
        check_streams(streams)
        self.noise = noise
        self.selection = selection
        self.domain = domain
        self.streams = streams
        self.streams_per_person = streams_per_person
        self.shards = check_shards(shards)
        steps = Steps.of(window=window, period=period, start=start, end=end, allowed_lateness=allowed_lateness)
        for name, value in {"horizon": horizon, "participation_cap": participation_cap}.items():
            if value is not None and checks.integer(name, value, minimum=1) > MOST_STEPS:
                raise ValueError(f"{name} must be <= {MOST_STEPS}, got {value}")
        if horizon is not None and steps.first is not None:
            ends = steps.first + horizon
            steps = replace(steps, end=ends if steps.end is None else min(steps.end, ends))
        self.steps = steps
        capped = participation_cap is not None or steps.first is None
        known = self._tests_domain
        if known and streams_per_person is not None and streams is None:
            raise ValueError("streams must be given when a known domain is tested in every window of every stream")
        if horizon is None and participation_cap is None and steps.first is None:
            raise ValueError("horizon must be a number of windows unless start or participation_cap is given")
        bound = participation_cap if participation_cap is not None else horizon
        if bound is not None and horizon is not None and steps.first is None:
            bound = min(bound, horizon)  # without a start, the horizon is counted per person too
        if known and steps.first is not None and steps.end is not None:
            if participation_cap is not None:
                raise ValueError("participation_cap must not be given when a known domain is tested in every window")
            bound, capped = steps.end - steps.first, False
        self.monitor = ThresholdMonitor(
            epsilon=epsilon,
            delta=delta,
            max_hits=max_hits,
            calibration=calibration,
            neighbouring=neighbouring,
            domain_size=len(domain) if domain is not None and known else None,
            horizon=bound,
            first_step=None if capped else steps.first,
            items_per_step=items_per_step,
            streams_per_person=1 if streams_per_person is None else streams_per_person,
            beta=beta,
            count_share=count_share,
            label=self._label(counted_from=steps.first if capped else None),
        )
        self._participations = bound if capped else None

    def _label(self, *, counted_from: int | None) -> str:
        """Return what counts depend on beside the events and the monitor's own parameters: other runs, other noise."""
        steps, domain = self.steps, self.domain.digest if self.domain else ""
        label = f"{steps.size} {steps.period} {steps.allowed_lateness} {self.selection} {domain}"
        streams = "" if self.streams_per_person is None else " of all streams"
        if self.streams is not None:
            streams = f" of {sorted(self.streams)}"  # all of them decide who counts where
        return label + streams + ("" if counted_from is None else f" from {counted_from}")

    @property
    def _tests_domain(self) -> bool:
        """Whether every item of the domain is tested in every window, held or not."""
        return self.domain is not None and self.steps.first is not None and self.steps.end is not None

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """What one person is promised, over the whole run and all streams."""
        neighbouring = self.monitor.neighbouring
        caveats = [KEYED_NOISE, people_hashed(neighbouring)]
        if not self._tests_domain:
            caveats.append(items_hashed(neighbouring))
        if self.streams_per_person is not None and (
            self.streams is None or self.streams_per_person < len(self.streams)
        ):
            caveats.append(streams_hashed(neighbouring))
        return replace(self.monitor.guarantee, caveats=tuple(caveats))

    @property
    def detection_threshold(self) -> int:
        """The number of people from which an item is reported."""
        return self.monitor.detection_threshold

    def detection_threshold_at(self, window: int) -> int:
        """Return the number of people from which an item is reported in window 1, 2, ..; rises without a horizon."""
        return self.monitor.calibrated.detection_threshold(self.tests, self.monitor.beta, step=window)

    @property
    def tests(self) -> int:
        """Tests of one item in one window, in one stream, for which the accuracy is stated."""
        return self.monitor.calibrated.budget.tests

    @property
    def event_fields(self) -> EventFields:
        """What is read of an event."""
        return EventFields(streams=self.streams_per_person is not None)

    def build(self, events: PCollection[Any], stage: Stage) -> PCollection[Any]:
        """Build the stages."""
        if self.streams is not None and self.streams_per_person is None:
            raise ValueError("streams_per_person must be given with streams")
        _ = self.monitor.calibrated  # once, at launch; workers receive it
        common: dict[str, Any] = {"steps": self.steps, "noise": self.noise}
        domain = self.domain if self._tests_domain else None
        keyed = tuple[bytes, bytes]
        split = SplitEvents(
            **common,
            shards=self.shards,
            domain=self.domain,
            positions=domain is not None,
            streams=self.streams,
        )
        limits = self._participations is not None or self.streams_per_person is not None
        bound = BoundItems(
            **common,
            stage=1,
            items_per_step=self.monitor.items_per_step,
            selection=self.selection,
            item_shards=self.shards,
            by_people=limits,
            domain=domain,
        )
        batches = gather(events, stage, self.event_fields)
        parcels = stage(batches, split, Parcel)
        if domain is not None:
            visit = VisitAbsentHits(**common, monitor=self.monitor, streams=self.streams or ("",), shard=self.shards)
            once = events.pipeline | "Once" >> beam.Impulse()
            visits = once | "VisitAbsentHits" >> beam.ParDo(visit).with_output_types(Parcel)
            parcels = (parcels, visits) | "WithVisits" >> beam.Flatten()
        receipted = parcels | "WithReceipts" >> WithReceipts(self.steps)
        held = stage(receipted | "ApartFromOthers" >> beam.Reshuffle(), bound, keyed)
        if limits:
            limit = LimitPeople(
                **common,
                stage=2,
                item_shards=self.shards,
                participations=self._participations,
                streams=self.streams_per_person,
                domain=domain,
            )
            held = stage(held, limit, keyed)
        candidates = stage(held, TestItems(**common, stage=3, monitor=self.monitor), keyed)
        rows = stage(candidates, MonitorStream(**common, stage=4, monitor=self.monitor, domain=domain), HeavyHitter)
        return cast(PCollection[Any], rows | "AtWindowEnds" >> AtWindowEnds(self.steps, HeavyHitter, stage=5))
