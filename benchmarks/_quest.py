"""Market baskets as of the IBM Quest group: T40I10D100K is 40 items a basket, patterns of 10 items, 100,000 baskets.

Written from the description in Agrawal and Srikant, Fast algorithms for mining association rules (1994): a table of
patterns, each of which shares some items with the one before; baskets are filled with corrupted patterns. Items have
exponential weights, as in the group's program; the paper does not say how they are chosen.
"""

import functools
from collections.abc import Iterator

import numpy as np

BASKET_SIZE, PATTERN_SIZE = 40, 10  # means: T and I
ITEMS, PATTERNS = 1_000, 2_000  # N and L
CORRELATION = 0.5  # mean share of a pattern's items that come from the pattern before
CORRUPTION, CORRUPTION_VARIANCE = 0.5, 0.1  # of the level at which a pattern loses items, clipped to [0, 1]


def patterns(rng: np.random.Generator) -> list[np.ndarray]:
    """Return the potentially large item sets, each in random order."""
    made: list[np.ndarray] = []
    popular = rng.exponential(size=ITEMS)
    for size in np.clip(rng.poisson(PATTERN_SIZE, PATTERNS), 1, ITEMS).tolist():
        old = np.empty(0, np.int64)
        if made:
            share = min(1.0, rng.exponential(CORRELATION))
            old = rng.permutation(made[-1])[: round(share * size)]
        chances = np.where(np.isin(np.arange(ITEMS), old), 0.0, popular)
        new = rng.choice(ITEMS, size - len(old), replace=False, p=chances / chances.sum())
        made.append(rng.permutation(np.concatenate([old, new])))
    return made


def baskets(seed: int, number: int) -> Iterator[set[int]]:
    """Generate so many baskets of items 0 .. ITEMS - 1."""
    rng = np.random.default_rng(seed)
    table = [found.tolist() for found in patterns(rng)]
    weights = rng.exponential(size=PATTERNS)
    corruption = np.clip(rng.normal(CORRUPTION, CORRUPTION_VARIANCE**0.5, PATTERNS), 0, 1)
    picks = _picks(rng, weights / weights.sum(), corruption)
    waiting: list[int] | None = None
    for size in np.maximum(1, rng.poisson(BASKET_SIZE, number)).tolist():
        held: set[int] = set()
        while len(held) < size:
            if waiting is None:
                pick, lost, kept_anyway = next(picks)
                waiting = table[pick][lost:]  # patterns are in random order: to drop the first is to drop any
            else:
                kept_anyway = True  # it was put off once
            if held and len(held | set(waiting)) > size and not kept_anyway:
                break
            held |= set(waiting)
            waiting = None
        yield held


def _picks(rng: np.random.Generator, weights: np.ndarray, corruption: np.ndarray) -> Iterator[tuple[int, int, bool]]:
    """Pick patterns; tell how many items each loses, and whether it is used even if it does not fit."""
    while True:
        chosen = rng.choice(len(weights), 65_536, p=weights)
        # Items are dropped as long as a uniform number is below the corruption level.
        lost = rng.geometric(np.maximum(1 - corruption[chosen], 1e-9)) - 1
        yield from zip(chosen.tolist(), lost.tolist(), (rng.random(len(chosen)) < 0.5).tolist(), strict=True)


@functools.cache
def item_counts(seed: int, number: int) -> np.ndarray:
    """Return in how many baskets of T40I10D100K each item is, shape (n,), for the items that occur."""
    counts = np.zeros(ITEMS, np.int64)
    for held in baskets(seed, number):
        counts[list(held)] += 1
    return counts[counts > 0]
