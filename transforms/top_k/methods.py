"""How top-k is answered, of a list or of found items: what is promised, and how accurate; needs no Beam."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from privstream.mechanisms.accuracy import EACH, Accuracy
from privstream.mechanisms.free_gap.measured_top_k import MeasuredTopK
from privstream.mechanisms.keyed_counts.counted_top_k import CountedTopK
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.events.coverage import (
    together,
)
from privstream.transforms.events.domain import Domain, PublicKeys
from privstream.transforms.timing.steps import Steps

SAME_NOISE = (
    "Ranks and estimates have the same noise: items on top are more often too high than too low, and of intervals of "
    "95% of a row by itself fewer hold there. Error bounds are for all of a window together, and hold all the same."
)
"""What is to be said of estimates by the method "counts"."""

IN_COMMON = (
    "Numbers of people in one window{stream} have a part of their noise in common, with a standard deviation of "
    "{common:.3g}: it changes no rank and no gap, but all estimates there are too high by it, or too low, and a sum "
    "over items has it once for each."
)
"""What is to be said where people may be in many of the counts of a window."""

BOTH_WAYS = (
    "Estimates are noisy counts smoothed over all windows of the file; lower and upper rest on a model in which counts "
    "stay near levels that move: where the numbers of all items jump from window to window, fewer than 95% hold. The "
    "order is that of estimates: an item that leads is more often too high than too low"
)

OF_FINISHED_LIST = f"{BOTH_WAYS}."
"""The same where the counts of a finished file are smoothed."""

MOST_COUNTS = 1 << 20
"""Counts of all items of a list, in all windows and streams, that are smoothed at the end of a run at most."""

BY_ESTIMATES = (
    "Estimates are noisy counts smoothed over windows; lower and upper rest on a model in which counts stay near "
    "levels that move. The order is that of estimates: an item that leads, or has just been found, is more often too "
    "high than too low."
)
"""What is to be said of ranks without a list."""

OF_FINISHED = f"{BOTH_WAYS}, and so is one in the windows by which it was found."
"""The same of a finished file."""

MOST_ITEMS = 10_000
"""Error bounds of a window hold for so many items together, found or not."""


@dataclass(frozen=True, kw_only=True)
class RankedList:
    """How `TopKWithGap` answers about a public list.

    Each window is ranked by itself. But where `finish` gets the rows, and all counts have noise, they are all
    published, and ranked when they have been smoothed.

    Privacy: ranks of smoothed counts are post-processing of what `CountedTopK` adds noise to.

    Attributes:
        mechanism: what ranks the items of one window of a stream.
        domain: the list.
        beta: probability with which each accuracy statement may be wrong.
        steps: the windows.
        noise: of the rankings.
        streams: public names of the streams, if there are several.
        to_finish: whether `finish` gets the rows: then these are counts of the whole list, to be ranked at the end.
    """

    mechanism: MeasuredTopK | CountedTopK
    domain: Domain
    beta: float
    steps: Steps
    noise: NoiseSource
    streams: tuple[str, ...] | None
    to_finish: bool = False

    @property
    def note(self) -> str:
        """What is to be said of estimates: where the noise of a measure does not know the ranks, nothing."""
        if not isinstance(self.mechanism, CountedTopK):
            return ""
        note, (_, common) = OF_FINISHED_LIST if self.to_finish else SAME_NOISE, self.mechanism.stddevs
        stream = "" if self.streams is None else " of a stream"
        return f"{note} {IN_COMMON.format(stream=stream, common=common)}" if common else note

    @property
    def scope(self) -> str:
        """Which estimates are within their error bounds at once: those with the noise of the whole list, all."""
        return together(self.streams, each_window=True) if isinstance(self.mechanism, CountedTopK) else EACH

    def calibrate(self) -> None:
        """Find the noise once, at launch; workers receive it."""
        _ = self.mechanism.estimate_variance

    @property
    def prediction(self) -> Accuracy:
        """How right the ranking and the counts are; compared by the ranking."""
        confidence = f"With probability {1 - self.beta:g}"
        error = self.mechanism.selection_error(len(self.domain), self.beta)
        least_bound, stddev = self.mechanism.measure_error(self.beta), self.mechanism.estimate_variance**0.5
        ranked = "Ranked by the noisy counts of a window alone, " if self.to_finish else ""
        smoothed = (
            f" The noise of a count has a standard deviation of {stddev:.3g}; estimates are smoothed over windows, and "
            "ranks and estimates mostly closer."
        )
        return Accuracy(
            error=error,
            failure_probability=self.beta,
            claim=f"{ranked}{_inside(confidence, ranked)}, no item that is left out of a window belongs to over "
            f"{error:,.0f} more people than an item that is published. {confidence}, estimates are within their error "
            f"bounds of at least {least_bound:,.0f} people, {self.scope}.{smoothed * self.to_finish}",
            numbers={
                "selection_error": error,
                "least_error_bound": least_bound,
                "stddev" if self.to_finish else "estimate_stddev": stddev,
            },
        )


def _inside(sentence: str, before: str) -> str:
    """Return the beginning of a sentence as it is after other words, if there are any."""
    return sentence[0].lower() + sentence[1:] if before else sentence


@dataclass(frozen=True, kw_only=True)
class FoundItems:
    """How `TopKWithGap` answers without a list.

    Privacy: ranks, gaps and smoothed estimates are post-processing of what `FoundKeys` publishes.

    Attributes:
        mechanism: counts, of all streams together.
        top: number of items in a window of a stream at most.
        steps: the windows.
        noise: of counts.
        streams: public names of the streams, if there are several.
        shards: of items.
        always: items that need not be found to be ranked; None for none.
        to_finish: whether `finish` gets the rows: then these are counts of all found items, to be ranked at the end.
    """

    mechanism: FoundKeys
    top: int
    steps: Steps
    noise: NoiseSource
    streams: tuple[str, ...] | None
    shards: int
    always: PublicKeys | None = None
    to_finish: bool = False

    def for_end(self) -> FoundItems:
        """Return this answer for a run whose rows `finish` gets."""
        return replace(self, to_finish=True, mechanism=self.mechanism)

    @property
    def note(self) -> str:
        """What is to be said of estimates."""
        return OF_FINISHED if self.to_finish else BY_ESTIMATES

    @property
    def scope(self) -> str:
        """Which estimates are within their error bounds at once."""
        return f"up to {MOST_ITEMS:,} items of a window together"

    def calibrate(self) -> None:
        """Find noise and thresholds once, at launch; workers receive them."""
        _ = self.mechanism.law

    @cached_property
    def reach(self) -> int:
        """How far noisy counts are off: but with probability beta, those of so many items in a window together."""
        return self.mechanism.law.noises[0].tail_bound(1, 0.005 / MOST_ITEMS)

    @property
    def prediction(self) -> Accuracy:
        """How many people must have an item for it to be found, and how far noisy counts are off."""
        counts, found = self.mechanism, self.mechanism.accuracy.numbers
        durations = [int(name.removeprefix("needed_in_")) for name in counts.needed if name.startswith("needed_in_")]
        told = ", or by ".join(
            f"{people:,} people in each of {windows:,} windows" if windows > 1 else f"{people:,} people in one window"
            for windows in durations
            for people in [counts.needed[f"needed_in_{windows}"]]
        )
        surely = found["detection_threshold"]
        return Accuracy(
            error=float(surely),
            failure_probability=counts.accuracy.failure_probability,
            claim=f"Items that are found stay found, and no others are ranked. An item is found with an even chance by "
            f"{told}. The noise of a count has a standard deviation of {found['stddev']:.3g}; estimates are smoothed.",
            numbers={
                **{name: found[name] for name in ("stddev", "threshold", "detection_threshold")},
                **counts.needed,
                "least_error_bound": self.reach,
            },
        )
