"""Shifting heavy hitters: from events to the items that many people have in each window."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy
from privstream.mechanisms.monitor.threshold_monitor import ThresholdMonitor
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.caveats import KEYED_NOISE, items_hashed, people_hashed, streams_hashed
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.transforms.events.batching import SplitEvents
from privstream.transforms.events.bounding import SELECTIONS, BoundPerWindow
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.event_fields import EventFields
from privstream.transforms.events.gathering import gather
from privstream.transforms.events.limiting import BoundAcrossWindows
from privstream.transforms.events.private_transform import ApplyDoFn, PrivateTransform, check_streams
from privstream.transforms.events.shards import check_shards
from privstream.transforms.heavy_hitters.empty_steps import EmitEmptySteps
from privstream.transforms.heavy_hitters.item_pruning import PruneItems
from privstream.transforms.heavy_hitters.monitoring import MonitorStream
from privstream.transforms.methods import choose_method
from privstream.transforms.rows import HeavyHitter
from privstream.transforms.timing.on_time_markers import KeyedBatch, WithOnTimeMarkers
from privstream.transforms.timing.steps import Moment, Seconds, Steps
from privstream.transforms.timing.window_ends import AtWindowEnds

METHODS = {"clock": "clock", "target_charging": "target_charging", "kaplan_mansour_stemmer": "paper"}
"""Which calibration of the monitor each method is."""

MOST_STEPS = 2**53
LATER = 1000
"""The window for which a threshold that rises is stated, beside the first."""


class ShiftingHeavyHitters(PrivateTransform):
    """Report the items that many people have in each window; one guarantee protects each person over the whole run.

    Input: pairs (user, item) timestamped with their event time, rows with `user`, `item`, `time` and perhaps `stream`,
    or Arrow record batches with these columns. A time is a Beam Timestamp, a datetime, an Arrow timestamp, or a number
    of seconds since 1970. Bounded or unbounded, in any order. Output: `HeavyHitter` rows; with `with_dead_letters()`, a
    `Published` pair of rows and dead letters: the records that cannot be used, each with the reason. Reasons are also
    counted, and reported in the log.

    A window is decided once, at its end plus `allowed_lateness`; events that come later are never used.

    Privacy:
        Unit: one person over the whole run and all streams. Neighbours: `neighbouring`. (epsilon, delta): `guarantee`.
        Enforced: each person counts with at most `items_per_step` items per window, takes part in at most `horizon`
        windows (counted from the public `start`, or else per person), is charged for at most `max_hits` hits per stream
        and appears in at most `streams_per_person` streams. Public: all arguments but `noise`.

    Accuracy:
        An item is reported if at least `detection_threshold` people have it, all of them within their limits and not
        yet dropped. With probability 1 - beta this is so in `tests` tests, of one item in one window of one stream
        each, together. Without a horizon the number is for the first window; see `detection_threshold_at`.

    Args:
        epsilon: limit on what all rows together show about one person, > 0. A smaller value protects better and needs
            more noise.
        delta: probability with which the rows may show more than `epsilon` allows, in (0, 1). Choose it far below 1 /
            (number of people).
        max_hits: number of reports that one person is charged for in one stream, 1 to 65,535. A reported item charges
            the people who have it; after the last charge a person no longer counts.
        window: length of a window in seconds.
        noise: `KeyedNoise`; the same key gives the same rows for the same events.
        horizon: number of windows that one person may take part in: with `start`, the first windows of the run;
            otherwise they are counted for each person. Without `horizon` thresholds rise slowly with time, and `start`
            or `participation_cap` must be given.
        period: seconds between the starts of two windows, for sliding windows. Without it windows do not overlap.
        start: start of the first window, in seconds since 1970 UTC.
        end: no window ends after this moment, in seconds since 1970 UTC.
        allowed_lateness: seconds after its end during which a window still takes late events.
        participation_cap: number of windows that one person may take part in, in all streams together, counted for each
            person. On long runs thresholds are lower than with `horizon`, at the price of a counter for each person.
        items_per_step: number of items of one person that count in a window.
        selection: which items of a person count if there are more than `items_per_step`: the "last", the "first", or
            "random" ones.
        domain: a public list of items. Only these are monitored. With `start`, and `end` or `horizon`, each of them is
            tested in every window, whether anybody has it or not.
        streams: public names of the streams to monitor. Without them all streams are monitored.
        streams_per_person: number of streams in which one person may appear, if events have a stream.
        method: method that tests the items; "auto" takes the most accurate one. "clock" and "target_charging" spend
            budget only on items that are reported; "kaplan_mansour_stemmer" is the published algorithm.
        neighbouring: what makes two inputs neighbours: one person is added or removed ("add_remove"), or replaced by
            another one ("replace_one").
        beta: probability with which the accuracy statement may be wrong.
        count_share: share of epsilon that pays for noisy counts. With 0, items are reported without a count.
        shards: number of parallel parts into which people and items are divided. It changes no answer.

    Raises:
        ValueError, TypeError: when the transform is made, an argument breaks its rule; when it is applied, events of
            this type cannot be used, or the runner cannot keep time.

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
        window: Seconds,
        noise: NoiseSource,
        horizon: int | None = None,
        period: Seconds | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        allowed_lateness: Seconds = 0,
        participation_cap: int | None = None,
        items_per_step: int = 1,
        selection: Literal["last", "first", "random"] = "last",
        domain: Domain | None = None,
        streams: tuple[str, ...] | None = None,
        streams_per_person: int | None = None,
        method: Literal["auto", "clock", "target_charging", "kaplan_mansour_stemmer"] = "auto",
        neighbouring: Literal["add_remove", "replace_one"] = "add_remove",
        beta: float = 0.05,
        count_share: float = 0.25,
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
        monitor = partial(
            ThresholdMonitor,
            epsilon=epsilon,
            delta=delta,
            max_hits=max_hits,
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
        makers = {name: partial(monitor, calibration=calibration) for name, calibration in METHODS.items()}
        self.method, self.monitor = choose_method(method, makers, lambda made: made.detection_threshold)
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
        """Whether every item of the domain is tested in every window, whether anybody has it or not."""
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
    def accuracy(self) -> Accuracy:
        """How many people must have an item for it to be reported."""
        first, later = self.detection_threshold, self.detection_threshold_at(LATER)
        rising = f" This number is for the first window; it rises to {later:,} in window {LATER:,}."
        stream = "" if self.streams_per_person is None else " of one stream"
        return Accuracy(
            error=first,
            failure_probability=self.monitor.beta,
            sentence=f"With probability {1 - self.monitor.beta:g}, every item that at least {first:,} people have "
            f"in a window{stream}, all of them within their limits, is reported: in {self.tests:,} tests together, "
            f"each of one item in one window.{rising if later > first else ''}",
            numbers={
                "detection_threshold": first,
                "tests": self.tests,
                "count_stddev": self.monitor.count_stddev,
                "noise_scale": self.monitor.calibrated.noise_scale,
                "threshold": self.monitor.calibrated.threshold,
            },
        )

    @property
    def detection_threshold(self) -> int:
        """How many people must have an item for it to be reported."""
        return self.monitor.detection_threshold

    def detection_threshold_at(self, window: int) -> int:
        """Return how many people must have an item for a report in window 1, 2, ..; rises without a horizon."""
        return self.monitor.calibrated.detection_threshold(self.tests, self.monitor.beta, step=window)

    @property
    def tests(self) -> int:
        """Tests of one item in one window, in one stream, for which the accuracy is stated."""
        return self.monitor.calibrated.budget.tests

    @property
    def event_fields(self) -> EventFields:
        """What is read of an event."""
        return EventFields(streams=self.streams_per_person is not None)

    def build(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
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
        bound = BoundPerWindow(
            **common,
            timer_offset=1,
            items_per_step=self.monitor.items_per_step,
            selection=self.selection,
            item_shards=self.shards,
            by_people=limits,
            domain=domain,
        )
        batches = gather(events, apply_dofn, self.event_fields)
        keyed_batches = apply_dofn(batches, split, KeyedBatch)
        if domain is not None:
            emit = EmitEmptySteps(**common, monitor=self.monitor, streams=self.streams or ("",), shard=self.shards)
            once = events.pipeline | "Once" >> beam.Impulse()
            empty = once | "EmitEmptySteps" >> beam.ParDo(emit).with_output_types(KeyedBatch)
            keyed_batches = (keyed_batches, empty) | "WithEmptySteps" >> beam.Flatten()
        marked = keyed_batches | "WithOnTimeMarkers" >> WithOnTimeMarkers(self.steps)
        held = apply_dofn(marked | "ApartFromOthers" >> beam.Reshuffle(), bound, keyed)
        if limits:
            limit = BoundAcrossWindows(
                **common,
                timer_offset=2,
                item_shards=self.shards,
                participations=self._participations,
                streams=self.streams_per_person,
                domain=domain,
            )
            held = apply_dofn(held, limit, keyed)
        candidates = apply_dofn(held, PruneItems(**common, timer_offset=3, monitor=self.monitor), keyed)
        rows = apply_dofn(
            candidates, MonitorStream(**common, timer_offset=4, monitor=self.monitor, domain=domain), HeavyHitter
        )
        return cast(PCollection[Any], rows | "AtWindowEnds" >> AtWindowEnds(self.steps, HeavyHitter, timer_offset=5))
