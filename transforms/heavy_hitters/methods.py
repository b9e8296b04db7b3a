"""The methods of heavy hitters: what each promises, and how many people an item needs; needs no Beam."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar

from privstream.mechanisms.accuracy import EACH, TOGETHER, Limit
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.monitor.status_monitor import StatusMonitor
from privstream.mechanisms.monitor.threshold_monitor import (
    ThresholdMonitor,
)
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import (
    PrivacyGuarantee,
)
from privstream.transforms.counts.keyed_counts import forgets, short_period
from privstream.transforms.events.coverage import (
    JUST_FOUND,
    TOO_LARGE,
    charged_out,
)
from privstream.transforms.events.domain import Domain, PublicKeys
from privstream.transforms.methods import chance_of_half, least_people
from privstream.transforms.timing.steps import Steps
from scipy import special
from typing_extensions import override

SURELY, SURELY_SPREAD = 5.5, 1.1
"""People in each of n > 1 windows with whom a smoothed count is surely above 0 in half of them, with an even chance,
and what one standard deviation of luck changes: in standard deviations of the noise, over sqrt(n); simulated. A window
alone is smoothed with nothing: what finds an item in it is enough."""

REPORTED = "They are reported in each window in which their smoothed count is surely above 0."


@dataclass(frozen=True, kw_only=True)
class ByCounts:
    """A method of `ShiftingHeavyHitters`: it charges nobody, but pays for every window that a person may take part in.

    Attributes:
        counts: of one window each, of all streams together; keys are public if `domain` is given. `FoundKeys` where
            items stay found.
        tests: of one item in one window, in one stream, for which the accuracy is stated.
        limits: sentences that say what a person may contribute.
        steps: the windows.
        noise: of counts.
        domain: the list of items if each of them is counted in every window, else None.
        streams: public names of the streams, if they are known.
        shards: of items.
        missing: what must be given that items stay found; empty if they do, or are not to.
        to_finish: whether `finish` gets the rows: then all of those of items that stay found are published.
        always: items that need not be found; None for none.
    """

    counts: KeyedCounts
    tests: int
    limits: tuple[str, ...]
    steps: Steps
    noise: NoiseSource
    domain: Domain | None
    streams: tuple[str, ...] | None
    shards: int
    missing: str = ""
    to_finish: bool = False
    always: PublicKeys | None = None

    @property
    def remembers(self) -> bool:
        """Whether items that are found stay found."""
        return isinstance(self.counts, FoundKeys)

    @property
    def lists(self) -> bool:
        """Whether there is a list of different people, so that what is held must come by shard of people."""
        return isinstance(self.counts, FoundKeys) and self.counts.listed > 0

    def for_end(self) -> ByCounts:
        """Return this method for a run whose rows `finish` gets."""
        return replace(self, to_finish=True, counts=self.counts)

    @cached_property
    def error(self) -> int:
        """Most by which a count is off: in each of so many tests, on either side, but with probability beta."""
        return self.counts.law.noises[0].tail_bound(1, 0.025 / self.tests)

    @property
    def threshold(self) -> int:
        """The least noisy count of one window that is published, or with which an item is found.

        Items that are not on a list need it for privacy. Of a list it is what no item that nobody has reaches: in all
        tests together, but with probability beta / 2.
        """
        needed = self.counts.threshold(1)
        return self.error + 1 if needed is None else needed

    @property
    def lasting(self) -> None:
        """None: reports charge nobody, so the same people count in all windows that they may take part in."""

    @property
    def remarks(self) -> str:
        """What a reader of rows must know beside the detection threshold: how else an item is found."""
        return f" {self.counts.found_claim} {REPORTED}" if isinstance(self.counts, FoundKeys) else ""

    @property
    def advice(self) -> str:
        """That items could stay found, where windows forget though nobody asked for it; that periods are short."""
        return forgets(self.missing) if self.missing else short_period(self.counts, self.steps)

    @property
    def scope(self) -> tuple[str, str]:
        """Which counts are right at once, and a note on it: what is published is chosen by the same numbers."""
        return TOGETHER, JUST_FOUND if self.remembers else TOO_LARGE

    @property
    def charges(self) -> tuple[Limit, ...]:
        """The limits by which people who are charged no longer count: nobody is."""
        return ()

    def detection_threshold(self, window: int) -> int:
        """Return how many people must have an item for a report, the same in every window.

        As with monitors, an item is missed with probability beta / 2 in all tests together.
        """
        return self.threshold + self.error

    @property
    def counts_every_row(self) -> bool:
        """Each row has a count."""
        return True

    @property
    def may_stop(self) -> bool:
        """Nobody is charged, so nothing fades."""
        return False

    def people_needed(self, windows: int, probability: float, *, others: bool = False) -> float:
        """Return how many people an item needs in each of so many windows to be reported in at least half of them.

        Where items stay found it must be found, and its smoothed count must surely be above 0, as over files: a list of
        different people, whose noise is its own, finds items that are too small for that, so that the chances of both
        are multiplied. Where windows forget, each count must reach the threshold.
        """
        stddev = self.counts.stddev(1)
        if isinstance(self.counts, FoundKeys):
            if windows == 1:
                return self.counts.people_needed(1, probability, others=others)
            deviation = stddev / math.sqrt(windows)
            surely = (SURELY + SURELY_SPREAD * float(special.ndtri(probability))) * deviation
            by_blocks = max(self.counts.people_needed(windows, probability), surely)
            if not others or not self.lists:
                return by_blocks
            found, fewer = self.counts.chance_by_others(windows), range(1, math.ceil(by_blocks))

            def chance(people: int) -> float:
                return found(people) * float(special.ndtr((people / deviation - SURELY) / SURELY_SPREAD))

            place = bisect_left(fewer, probability, key=chance)
            return fewer[place] if place < len(fewer) else by_blocks
        margin = float(special.ndtri(chance_of_half(windows, probability)))  # of normal noise: bounds are for tails
        return self.threshold + margin * stddev

    @property
    def numbers(self) -> dict[str, float]:
        """The noise, the threshold and, for bars, by how much a count is off in all tests together."""
        stddev = self.counts.stddev(1)
        bar = {"count_error": self.error}
        return {"count_stddev": stddev, "noise_scale": stddev, "threshold": self.threshold, **bar}

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """What one person is promised."""
        found = self.counts.guarantee
        lists = {"the list of items": self.domain, "the list of public items": self.always}
        public = ("all parameters", "the windows", *(name for name, items in lists.items() if items is not None))
        return replace(found, limits=(*self.limits, *found.limits), public=public)


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

    def people_needed(self, windows: int, probability: float, *, others: bool = False) -> float:
        """Return how many people an item needs in each of so many windows to be reported in at least half of them.

        Tests are independent, and each that it passes charges all of its people, who are the same ones in each window,
        or others.
        """
        if not others and self.monitor.max_hits < -(-windows // 2):
            return math.inf
        return self._people(chance_of_half(windows, probability))

    def _people(self, chance: float) -> float:
        """Return how many people pass a test with this chance."""
        return _least_people(self.monitor, chance)

    def detection_threshold(self, window: int) -> int:
        """Return how many people must have an item for a report in window 1, 2, .."""
        return self.monitor.calibrated.detection_threshold(self.tests, self.monitor.beta, step=window)


@lru_cache(maxsize=64)
def _least_people(monitor: ThresholdMonitor | StatusMonitor, chance: float) -> float:
    """Return how many people pass a test of a monitor with a chance, which a plan asks for several times."""
    return least_people(monitor.calibrated.hit_probability, chance)


@dataclass(frozen=True, kw_only=True)
class ByStatus(ByMonitor):
    """A method of `ShiftingHeavyHitters`.

    Attributes:
        monitor: of one stream.
    """

    charged_for: ClassVar[str] = "for starts and ends"

    monitor: StatusMonitor

    @property
    @override
    def lasting(self) -> None:
        """None: an item that lasts charges people only once."""

    @property
    @override
    def counts_every_row(self) -> bool:
        return False

    @override
    def people_needed(self, windows: int, probability: float, *, others: bool = False) -> float:
        """Return how many people an item needs in each of so many windows to be up in at least half of them.

        It must pass one of the tests until then. That one with so many people ends by itself is far less likely, and is
        left out. Who was charged for the last time at its start no longer counts, and it ends.
        """
        half = -(-windows // 2)
        if half > 1 and not others and self.monitor.max_hits == 1:
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
    @override
    def numbers(self) -> dict[str, float]:
        between, windows = self.between
        return super().numbers | {"ends_with": self.ends_with, "between": between, "windows_between": windows}

    @property
    @override
    def remarks(self) -> str:
        between, windows = self.between
        up_steps = self.monitor.calibrated.up_steps
        ends = f"An item that at most {self.ends_with:,} people still have ends in the next window with probability "
        return (
            f" It is then reported in every window until fewer have it, in {up_steps:,} windows of items "
            f"that are reported. {ends if self.ends_with >= 0 else 'An item that nobody has ends with probability '}"
            f"{1 - self.monitor.beta:g}; one that {between:,} people have stays for {windows:,.0f} windows on average. "
            "There are counts where an item starts or ends."
        )
