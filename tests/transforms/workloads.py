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
    "horizon": 8,
    "start": START,
    "beta": 0.5,
    "method": "clock",
}
NO_COUNTS = {"count_share": 0.0}
STATUS = {"method": "status"}
COUNTS = {"method": "counts", "epsilon": 3.0}
CONFIGURATIONS = {
    "plain": {},
    "replace one": {"neighbouring": "replace_one", "shards": 1},
    "sliding": {"period": 4, "start": START, **NO_COUNTS},
    "many items": {"items_per_step": 3, "max_hits": 4},
    "random items": {"items_per_step": 2, "selection": "random", **NO_COUNTS},
    "first item": {"selection": "first", "period": 3, "window": 12, "start": START // 12 * 12, **NO_COUNTS},
    "many first items": {"items_per_step": 2, "selection": "first", "max_hits": 3, "shards": 2, **NO_COUNTS},
    "streams": {"streams_per_person": 2, **NO_COUNTS},
    "public streams": {"streams_per_person": 2, "streams": ("s", "t"), "participation_cap": 3, **NO_COUNTS},
    "capped": {"participation_cap": 3, "max_hits": 3, "items_per_step": 2, **NO_COUNTS},
    "horizon per person": {"start": None, "horizon": 3, "window": 12, "period": 5, **NO_COUNTS},
    "no bound": {"horizon": None, **NO_COUNTS},
    "known domain": {"domain": Domain(ITEMS[:4]), "items_per_step": 2},
    "known domain, streams": {
        "domain": Domain(ITEMS[:3]),
        "streams": ("s", "t", "never seen"),
        "streams_per_person": 2,
        "beta": 0.9,
        **NO_COUNTS,
    },
    "listed domain": {"domain": Domain(ITEMS[:3]), "start": None, "participation_cap": 4, **NO_COUNTS},
    "target charging": {"method": "target_charging", **NO_COUNTS},
    "target charging, known": {"method": "target_charging", "domain": Domain(ITEMS), **NO_COUNTS},
    "paper": {
        "method": "paper",
        "epsilon": 100.0,
        "delta": 0.3,
        "beta": 0.9,
        "max_hits": 1,
        **NO_COUNTS,
    },
    "status": STATUS,
    "status, replace one": {"neighbouring": "replace_one", "shards": 1, **STATUS},
    "status, sliding": {"period": 4, "selection": "first", **STATUS, **NO_COUNTS},
    "status, many items": {"items_per_step": 3, "max_hits": 4, **STATUS},
    "status, streams": {"streams_per_person": 2, **STATUS, **NO_COUNTS},
    "status, capped": {"participation_cap": 3, "max_hits": 3, "items_per_step": 2, **STATUS},
    "status, no start": {"start": None, "horizon": 3, "period": 5, **STATUS, **NO_COUNTS},
    "status, no bound": {"horizon": None, **STATUS},
    "status, known domain": {"domain": Domain(ITEMS[:4]), "items_per_step": 2, "beta": 0.9, **STATUS},
    "status, known domain, streams": {
        "domain": Domain(ITEMS[:3]),
        "streams": ("s", "t", "never seen"),
        "streams_per_person": 2,
        "beta": 0.9,
        **STATUS,
    },
    "status, listed domain": {"domain": Domain(ITEMS[:3]), "start": None, "participation_cap": 4, **STATUS},
    "counts": COUNTS,
    "counts, many items": {"items_per_step": 3, "neighbouring": "replace_one", **COUNTS},
    "counts, public items": {"public_items": Domain([ITEMS[-1], "never seen"]), "shards": 3, **COUNTS},
    "counts, forgetting": {"forget": True, **COUNTS},
    "counts, public streams": {"streams_per_person": 2, "streams": ("s", "t", "never seen"), "shards": 3, **COUNTS},
    "counts, sliding": {"period": 4, "selection": "first", **COUNTS},
    "counts, streams": {"streams_per_person": 2, "participation_cap": 3, **COUNTS},
    "counts, no start": {"start": None, "horizon": 3, "shards": 2, **COUNTS},
    "counts, end": {"horizon": None, "end": START + 80, **COUNTS},
    "counts, known domain": {"domain": Domain(ITEMS[:4]), "items_per_step": 2, "period": 5, **COUNTS},
    "counts, known domain, streams": {
        "domain": Domain(ITEMS[:3]),
        "streams": ("s", "t", "never seen"),
        "streams_per_person": 2,
        **COUNTS,
    },
    "counts, listed domain": {"domain": Domain(ITEMS[:3]), "start": None, "participation_cap": 4, **COUNTS},
}


@functools.cache
def transform(name: str) -> ShiftingHeavyHitters:
    """Return the transform of a configuration; its calibration is kept, since solving for it takes a second."""
    return ShiftingHeavyHitters(**{**COMMON, "noise": KeyedNoise(KEY), **CONFIGURATIONS[name]})


def random_events(name: str, chance: random.Random) -> list[tuple[str, str, int, str]]:
    """Return events around the run of a configuration: some outside of it, some twice, some items with a crowd."""
    made = transform(name)
    streams = ("",) if made.streams_per_person is None else ("s", "t", "u")
    people = max(6, int(1.6 * len(streams) ** 0.5 * made.answer.numbers["threshold"])) + chance.randint(0, 10)
    span = 5 * made.steps.size
    events = []
    for _ in range(people * chance.randint(2, 5)):
        time = START * SECOND + chance.randint(-made.steps.size // 4, span)
        item = chance.choice(ITEMS) if chance.random() < 0.2 else ITEMS[time // (2 * made.steps.size) % 3]
        events.append((f"user {chance.randrange(people)}", item, time, chance.choice(streams)))
    return events + chance.choices(events, k=len(events) // 10)
