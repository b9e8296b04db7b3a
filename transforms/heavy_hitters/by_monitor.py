"""Heavy hitters by a threshold monitor, which tests each item in each window, and charges people for reports alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.mechanisms.accuracy import EACH, Limit
from privstream.mechanisms.monitor.status_monitor import StatusMonitor
from privstream.mechanisms.monitor.threshold_monitor import ThresholdMonitor
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.transforms.batches import Keyed
from privstream.transforms.events.coverage import charged_out
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.private_transform import ApplyDoFn
from privstream.transforms.heavy_hitters.empty_steps import EmitEmptySteps
from privstream.transforms.heavy_hitters.item_pruning import PruneItems
from privstream.transforms.heavy_hitters.monitoring import MonitorStream
from privstream.transforms.heavy_hitters.streaks import with_streaks
from privstream.transforms.methods import chance_of_half, least_people
from privstream.transforms.rows import HeavyHitter
from privstream.transforms.timing.on_time_markers import KeyedBatch
from privstream.transforms.timing.steps import Steps
from privstream.transforms.timing.window_ends import AtWindowEnds


@dataclass(frozen=True, kw_only=True)
class ByMonitor:
    """A method of `ShiftingHeavyHitters`.

    Attributes:
        monitor: of one stream.
        windows: in which a person may take part, in one stream; None if there is no bound.
        steps: the windows.
        noise: of the run.
        domain: the list of items if each of them is tested in every window, else None.
        streams: public names of the streams, if they are known.
        shards: of people, and of items.
    """

    charged_for: ClassVar[str] = "for reports"

    monitor: ThresholdMonitor | StatusMonitor
    windows: int | None
    steps: Steps
    noise: NoiseSource
    domain: Domain | None
    streams: tuple[str, ...] | None
    shards: int

    @property
    def tests(self) -> int:
        """Tests of one item in one window, in one stream, for which the accuracy is stated."""
        return self.monitor.calibrated.budget.tests

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """What one person is promised."""
        return self.monitor.guarantee

    @property
    def numbers(self) -> dict[str, float]:
        """The noise, the threshold of the first window, and how long the same people count, if not always."""
        calibrated = self.monitor.calibrated
        numbers = {
            "count_stddev": self.monitor.count_stddev,
            "count_error": self.monitor.count_error(self.monitor.beta),
            "noise_scale": calibrated.noise_scale,
            "threshold": calibrated.threshold,
        }
        return numbers if self.lasting is None else numbers | {"lasting_windows": self.lasting}

    @property
    def lasting(self) -> int | None:
        """In so many windows the same people may have an item that is reported, before they no longer count.

        None if that never happens.
        """
        return self.monitor.max_hits if self.charges else None

    @property
    def remarks(self) -> str:
        """What a reader of rows must know beside the detection threshold."""
        if self.lasting is None:
            return ""
        windows = f"{self.lasting:,} window{'s' * (self.lasting > 1)}"
        return f" An item that the same people have in more than {windows} fades, since reports charge them."

    @property
    def scope(self) -> tuple[str, str]:
        """Which counts are right at once, and a note on it: none, since their noise is not that of the tests."""
        return EACH, ""

    @property
    def charges(self) -> tuple[Limit, ...]:
        """The limit by which people who were charged no longer count; none if nobody can be charged so often."""
        most, items = self.monitor.max_hits, self.monitor.items_per_step
        if self.windows is not None and most >= self.windows * items:
            return ()
        return (charged_out(most, self.charged_for),)

    @property
    def counts_every_row(self) -> bool:
        """Whether counts are paid for."""
        return self.monitor.count_share > 0

    @property
    def may_stop(self) -> bool:
        """Whether items fade when the same people have them."""
        return self.lasting is not None

    def people_needed(self, windows: int, probability: float) -> float:
        """Return how many people an item needs in each of so many windows to be reported in at least half of them.

        Tests are independent, and each that it passes charges all of its people.
        """
        if self.monitor.max_hits < -(-windows // 2):
            return math.inf
        return self._people(chance_of_half(windows, probability))

    def _people(self, chance: float) -> float:
        """Return how many people pass a test with this chance."""
        return least_people(self.monitor.calibrated.hit_probability, chance)

    @property
    def finish(self) -> None:
        """None: nothing is done to the rows of a run that has ended."""

    def detection_threshold(self, window: int) -> int:
        """Return how many people must have an item for a report in window 1, 2, .."""
        return self.monitor.calibrated.detection_threshold(self.tests, self.monitor.beta, step=window)

    def with_empty_steps(self, batches: PCollection[Any]) -> PCollection[Any]:
        """Add the steps of a public list of items that must be decided even if nobody has one."""
        if self.domain is None:
            return batches
        emit = EmitEmptySteps(
            monitor=self.monitor,
            steps=self.steps,
            noise=self.noise,
            streams=self.streams or ("",),
            shard=self.shards,
        )
        once = batches.pipeline | "Once" >> beam.Impulse()
        empty = once | "EmitEmptySteps" >> beam.ParDo(emit).with_output_types(KeyedBatch)
        return cast(PCollection[Any], (batches, empty) | "WithEmptySteps" >> beam.Flatten())

    def publish(self, held: PCollection[Any], apply_dofn: ApplyDoFn, *, timer_offset: int) -> PCollection[Any]:
        """Add the last stages: from who has what, by shard of items, to rows."""
        _ = self.monitor.calibrated  # once, at launch; workers receive it
        common: dict[str, Any] = {"monitor": self.monitor, "steps": self.steps, "noise": self.noise}
        candidates = apply_dofn(held, PruneItems(**common, timer_offset=timer_offset), Keyed)
        decide = MonitorStream(**common, timer_offset=timer_offset + 1, domain=self.domain)
        rows = apply_dofn(candidates, decide, HeavyHitter)
        at_ends = AtWindowEnds(self.steps, HeavyHitter, timer_offset=timer_offset + 2, follow=with_streaks)
        return cast(PCollection[Any], rows | "AtWindowEnds" >> at_ends)
