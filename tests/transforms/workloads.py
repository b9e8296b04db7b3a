"""Transforms that hit often and drop people soon, and small random events for them."""

import functools
import random

from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import Domain, ShiftingHeavyHitters

KEY = b"a key for tests, no secret"
SECOND = 1_000_000
START = 1_700_000_000 // 20 * 20  # a multiple of all windows here
ITEMS = ("a", "b", "c", "ä\u2028\U0001f600", "e" * 300)

COMMON = {
    "epsilon": 30.0,
    "delta": 1e-2,
    "max_hits": 2,
    "window": 10,
    "start": START,
    "end": START + 80,
    "method": "clock",
}
STATUS = {"method": "status"}
CONFIGURATIONS = {
    "plain": {},
    "one shard": {"shards": 1},
    "many items": {"max_per_window": 3, "max_hits": 4},
    "known domain": {"domain": Domain(ITEMS[:4]), "max_per_window": 2},
    "status": STATUS,
    "status, many items": {"max_per_window": 3, "max_hits": 4, **STATUS},
    "status, known domain": {"domain": Domain(ITEMS[:4]), "max_per_window": 2, **STATUS},
}


@functools.cache
def transform(name: str, **changes: int) -> ShiftingHeavyHitters:
    """Return the transform of a configuration; its calibration is kept, since solving for it takes a second."""
    return ShiftingHeavyHitters(**{**COMMON, "noise": KeyedNoise(KEY), **CONFIGURATIONS[name], **changes})


def random_events(name: str, chance: random.Random) -> list[tuple[str, str, int]]:
    """Return events around the run of a configuration: some outside of it, some twice, some items with a crowd."""
    made = transform(name)
    people = max(6, int(1.6 * made.monitor.calibrated.threshold)) + chance.randint(0, 10)
    span = 5 * made.steps.size
    events = []
    for _ in range(people * chance.randint(2, 5)):
        time = START * SECOND + chance.randint(-made.steps.size // 4, span)
        item = chance.choice(ITEMS) if chance.random() < 0.2 else ITEMS[time // (2 * made.steps.size) % 3]
        events.append((f"user {chance.randrange(people)}", item, time))
    return events + chance.choices(events, k=len(events) // 10)
