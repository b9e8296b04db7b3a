"""The contribution limits of each person, and which rows keep within them: a function of the person's own alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from privstream.mechanisms.monitor.holdings import UserCounters
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import first_of_run, in_order, totals

ITEM_ORDER = "item order"
"""The noise that draws the random order of a person's items in a window."""

Draws = Callable[[np.ndarray], np.ndarray]
"""Random words, uint64, for some rows: they depend on nothing but what the row says of its person, and on the key."""


@dataclass(frozen=True)
class Bound:
    """How many contributions (distinct items in windows) count per person; which ones, the person's own events decide.

    Attributes:
        in_run: at most in the run, or in each budget period.
        per_window: at most in one window, random ones; None for no limit beside `in_run`.
        sampled: whether random ones of the whole run count, which is known when the input has ended; else they are
            paced: those that come first, but few enough by each window, so that something is left for the last one.
    """

    in_run: int
    per_window: int | None = None
    sampled: bool = False

    def allowed(self, number: int, windows: int | None) -> int:
        """Return how many may be used by the end of window `number`, from 1; what is not used is carried over.

        Whatever `in_run` is, a quarter of it may be used at once, and the last window may use up the rest. Without a
        last window all of it may be used at any time.
        """
        if self.sampled or windows is None:
            return self.in_run
        return min(self.in_run, -(-self.in_run * (windows + 3 * number) // (4 * windows)))


class Kept(NamedTuple):
    """What is kept of events.

    Attributes:
        rows: one for each item of a person that is kept, person by person, in the order of their numbers.
        ranks: uint16, for each of these the place of its item in a random order of the person's kept items; zeros where
            nobody asks for it.
        dropped: how many items of people are not kept, however often and in whichever batches they came.
    """

    rows: np.ndarray
    ranks: np.ndarray
    dropped: int


def draws_of_pairs(noise: NoiseSource, users: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return a random word for each pair of a person and an item, uint64: a function of the pair and the noise key."""
    return np.asarray(noise.words(np.stack([users, items], axis=1))[:, 0, 0])


def bound_people(users: np.ndarray, items: np.ndarray, *, limit: int, draws: Draws, ranked: bool = True) -> Kept:
    """Choose rows such that each person keeps at most `limit` distinct items, random ones.

    What is kept is a function of each person's own events, the limit and the draws (of each pair of person and item)
    alone, whatever their order in the input. Unless they are `ranked`, few draws are needed: those of people with more
    items than the limit.
    """
    order = in_order(users)
    kept = first_of_run(users[order])
    kept[:-1] &= kept[1:]
    others = np.flatnonzero(~kept)  # most have one event in a window: nothing to choose, nothing to draw
    many = order[others]
    person, held = np.cumsum(first_of_run(users[many])) - 1, items[many]
    pairs = sorted_in_groups(person, held)
    pairs = pairs[first_of_run(person[pairs], held[pairs])]  # one row for each item of a person
    chosen, ranks = np.ones(len(pairs), bool), np.zeros(len(order), np.uint16)
    drawn = np.arange(len(pairs)) if ranked else np.flatnonzero((np.bincount(person[pairs]) > limit)[person[pairs]])
    some = pairs[drawn]
    place = place_in_run(person[some], np.lexsort((held[some], draws(many[some]), person[some])))
    chosen[drawn] = place < limit
    kept[others[pairs[chosen]]] = True
    if ranked:
        ranks[others[some]] = place
    return Kept(order[kept], ranks[kept], int(len(pairs) - chosen.sum()))


def sorted_in_groups(groups: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the order by group, at least 0, and in each by numbers, uint64: what `lexsort` gives, in less time."""
    free = 64 - int(groups.max(initial=0)).bit_length()
    cut = max(0, int(numbers.max(initial=0)).bit_length() - free)
    words = (groups.astype(np.uint64) << np.uint64(min(free, 63))) | (numbers >> np.uint64(cut))
    order = in_order(words)
    words, ordered = words[order], numbers[order]
    sorted_ = np.all((ordered[1:] >= ordered[:-1]) | (words[1:] != words[:-1]))
    return order if sorted_ else np.lexsort((numbers, groups))


def place_in_run(users: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return for each row how many rows of the same person come before it in `order`, which sorts by person."""
    first = np.flatnonzero(first_of_run(users[order]))
    lengths = np.diff(np.append(first, len(order)))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.repeat(first, lengths)
    return place


def by_person(people: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return distinct people, increasing, for each row the place of its person, and how many rows each person has."""
    if np.any(people[1:] < people[:-1]):
        return np.unique(people, return_inverse=True, return_counts=True)
    first = first_of_run(people)  # people of one batch are in order: nothing to sort
    starts = np.flatnonzero(first)
    return people[starts], np.cumsum(first) - 1, np.diff(np.append(starts, len(people)))


def within_limit(
    people: np.ndarray, limit: int, used: UserCounters, draws: Draws, *, at_once: int | None = None
) -> np.ndarray:
    """Mark the rows that people have something left for: of each person those that come first in a random order.

    A person may use as much as `limit` until now, less what was `used` before, and of these rows `at_once` at most.
    """
    distinct, person, wanted = by_person(people)
    left = limit - used.charged(distinct)
    if at_once is not None:
        left = np.minimum(left, at_once)
    kept = np.ones(len(person), bool)
    over = np.flatnonzero((wanted > left)[person])  # few: nobody else's rows need an order
    place = place_in_run(person[over], sorted_in_groups(person[over], draws(over)))
    kept[over] = place < left[person[over]]
    return kept


def added_up(users: np.ndarray, items: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return for each row the sum, int64, of the whole numbers in all rows with its person and item."""
    order = np.lexsort((items, users))
    first = first_of_run(users[order], items[order])
    pairs = np.empty(len(order), np.int64)
    pairs[order] = np.cumsum(first) - 1
    return totals(pairs, values.astype(np.int64), int(first.sum()))[pairs]


def last_of_each(users: np.ndarray, items: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the row of the last event of each person; of several at one time, that of the least item."""
    order = np.lexsort((items, -times, users))
    rows: np.ndarray = order[first_of_run(users[order])]
    return rows
