"""Heavy hitters by the status monitor: items that are up stay so, and people are charged for changes alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.mechanisms.monitor.status_monitor import StatusMonitor
from privstream.transforms.batches import Keyed
from privstream.transforms.events.private_transform import ApplyDoFn
from privstream.transforms.heavy_hitters.by_monitor import ByMonitor
from privstream.transforms.heavy_hitters.status_pruning import PruneDownItems, by_shard
from privstream.transforms.heavy_hitters.statuses import DecideStatuses
from privstream.transforms.rows import HeavyHitter
from privstream.transforms.timing.window_ends import AtWindowEnds


@dataclass(frozen=True, kw_only=True)
class ByStatus(ByMonitor):
    """A method of `ShiftingHeavyHitters`.

    Attributes:
        monitor: of one stream.
    """

    charged_for: ClassVar[str] = "for starts and ends"

    monitor: StatusMonitor

    @property
    def lasting(self) -> None:
        """None: an item that lasts charges people only once."""

    @property
    def counts_every_row(self) -> bool:
        """There is none while an item continues."""
        return False

    def people_needed(self, windows: int, probability: float) -> float:
        """Return how many people an item needs in each of so many windows to be up in at least half of them.

        It must pass one of the tests until then. That one with so many people ends by itself is far less likely, and is
        left out. Who was charged for the last time at its start no longer counts, and it ends.
        """
        half = -(-windows // 2)
        if half > 1 and self.monitor.max_hits == 1:
            return math.inf
        return self._people(-math.expm1(math.log1p(-probability) / (windows - half + 1)))

    @property
    def ends_with(self) -> int:
        """The largest number of people with whom an item ends at once, but with probability beta; -1 if none is."""
        return self.monitor.ends_with(self.monitor.beta)

    @property
    def between(self) -> tuple[int, float]:
        """A number of people between both thresholds, and how many windows an item of so many stays up on average."""
        people = (self.monitor.detection_threshold + max(self.ends_with, 0)) // 2
        return people, self.monitor.steps_up(people)

    @property
    def numbers(self) -> dict[str, float]:
        """The noise, the threshold of the first window, and what is known of ends."""
        between, windows = self.between
        return super().numbers | {"ends_with": self.ends_with, "between": between, "windows_between": windows}

    @property
    def remarks(self) -> str:
        """What a reader of rows must know beside the detection threshold."""
        between, windows = self.between
        up_steps = self.monitor.calibrated.up_steps
        ends = f"An item that at most {self.ends_with:,} people still have ends in the next window with probability "
        return (
            f" It is then reported in every window until fewer have it, in {up_steps:,} windows of items "
            f"that are reported. {ends if self.ends_with >= 0 else 'An item that nobody has ends with probability '}"
            f"{1 - self.monitor.beta:g}; one that {between:,} people have stays for {windows:,.0f} windows on average. "
            "There are counts where an item starts or ends."
        )

    def publish(self, held: PCollection[Any], apply_dofn: ApplyDoFn, *, timer_offset: int) -> PCollection[Any]:
        """Add the last stages: from who has what, by shard of items, to rows."""
        _ = self.monitor.calibrated  # once, at launch; workers receive it
        common: dict[str, Any] = {
            "monitor": self.monitor,
            "steps": self.steps,
            "noise": self.noise,
            "domain": self.domain,
        }
        sealed = held | "ByShard" >> beam.Map(by_shard).with_output_types(Keyed)
        candidates = apply_dofn(sealed, PruneDownItems(**common, timer_offset=timer_offset), Keyed)
        rows = apply_dofn(candidates, DecideStatuses(**common, timer_offset=timer_offset + 1), HeavyHitter)
        at_ends = AtWindowEnds(self.steps, HeavyHitter, timer_offset=timer_offset + 2)
        return cast(PCollection[Any], rows | "AtWindowEnds" >> at_ends)
