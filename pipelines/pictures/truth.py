"""What was found and what was missed, where the truth is known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from privstream.pipelines.plot.promise import Promise
from privstream.pipelines.simulate.truths import ItemHolders
from privstream.transforms.row_types import ENDED, HeavyHitter

if TYPE_CHECKING:
    from apache_beam.utils.timestamp import Timestamp

MOST_NAMED = 10
"""Missed items that are named, the largest first."""


class Key(NamedTuple):
    """One test: an item in a window of a stream."""

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    item: str


@dataclass(frozen=True)
class Verdict:
    """Reported items against the truth; a list of keys each, in the order of the rows.

    Attributes:
        found: reported, and as many people had the item as are enough for a report by the accuracy statement.
        missed: as many people had the item, and it was not reported: a failure, or too many of them had been dropped.
        below: reported, although fewer people had the item.
        false: reported, and not in the truth.
    """

    found: tuple[Key, ...]
    missed: tuple[Key, ...]
    below: tuple[Key, ...]
    false: tuple[Key, ...]

    def sentence(self, detection_threshold: int) -> str:
        """Return the numbers as sentences."""
        return (
            f"{self.of_heavy(detection_threshold)} Reported items that fewer people had: "
            f"{len(self.below):,}; that are not in the truth: {len(self.false):,}."
        )

    def of_heavy(self, detection_threshold: int) -> str:
        """Return what became of items that enough people had."""
        heavy = len(self.found) + len(self.missed)
        return (
            f"Of {heavy:,} items that at least {detection_threshold:,} people had in a window, {len(self.found):,} "
            f"were reported and {len(self.missed):,} missed."
        )


def share_of_truth(known: Iterable[tuple[float, float]]) -> str:
    """Say which part of true numbers published ones are, all together, given pairs of a published and a true one."""
    both = list(known)
    published, total = math.fsum(number for number, _ in both), math.fsum(true for _, true in both)
    return f", and together they are {100 * published / total:.0f}% of it" if total else ""


def found_and_missed(published: Iterable[str], truth: Iterable[ItemHolders], detection_threshold: int) -> str:
    """Say which of the items that enough people had in some window were found, which were missed, and of the others."""
    most: dict[str, int] = {}
    for row in truth:
        most[row.item] = max(row.holders, most.get(row.item, 0))
    found = {*published}
    large, small = ({item for item, people in most.items() if (people >= detection_threshold) == big} for big in (1, 0))
    missed = sorted(large - found, key=lambda item: (-most[item], item))
    named = ", ".join(f"{item} ({most[item]:,})" for item in missed[:MOST_NAMED])
    named += f" and {len(missed) - MOST_NAMED:,} more" if len(missed) > MOST_NAMED else ""
    return (
        f"Of {len(large):,} items that at least {detection_threshold:,} people had in a window, "
        f"{len(large & found):,} were found{f'; missed: {named}' if missed else ' and none was missed'}. "
        f"Of {len(small):,} smaller ones that at least {min(most.values(), default=0):,} people had, "
        f"{len(small & found):,} were found; the guarantee allows to miss the others. "
        f"Found, but not in the truth: {len(found - {*most}):,}."
    )


def key(row: HeavyHitter | ItemHolders) -> Key:
    """Return what a row is about."""
    return Key(row.stream, row.window_start, row.window_end, row.item)


def judge(rows: Sequence[HeavyHitter], truth: Sequence[ItemHolders], detection_threshold: int) -> Verdict:
    """Compare published rows with the truth; a row that says that an item has ended reports it no longer.

    Raises:
        ValueError: the truth is about other windows than the rows.
    """
    if truth and rows and not {_length(row) for row in rows} <= {_length(row) for row in truth}:
        raise ValueError("truth must be about windows as long as those of the rows")
    holders = {key(row): row.holders for row in truth}
    reported = [key(row) for row in rows if row.status != ENDED]
    published = set(reported)
    heavy = [item for item, count in holders.items() if count >= detection_threshold]
    return Verdict(
        found=tuple(item for item in reported if holders.get(item, 0) >= detection_threshold),
        missed=tuple(item for item in heavy if item not in published),
        below=tuple(item for item in reported if 0 < holders.get(item, 0) < detection_threshold),
        false=tuple(item for item in reported if item not in holders),
    )


def detection_threshold(promise: Promise | None) -> int | None:
    """Return how many people are enough for a report, or None if that is not known.

    Raises:
        ValueError: the file is not one that `heavy-hitters` writes.
    """
    return None if promise is None else int(promise.number("accuracy", "detection_threshold"))


def _length(row: HeavyHitter | ItemHolders) -> int:
    """Return the length of a row's window in microseconds."""
    return int(row.window_end.micros - row.window_start.micros)
