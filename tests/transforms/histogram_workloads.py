"""Configurations of live histograms and flags, and events for them."""

import random

from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms.questions.running_stages import ContinualHistogram, ThresholdFlags
from privstream.transforms.reading.domain import Domain

KEY = b"a key for tests of live histograms"
SECOND = 1_000_000
START = 1_000
NAMES = ["cat", "dog", "eel", "fox", "gnu", "été"]
COMMON = {"domain": Domain(NAMES), "window": 10, "start": START, "end": START + 400, "epsilon": 2.0}
EVERYTHING = ("histogram", "max", "min", "median", "quantile:0.9", "top:3")

CONFIGURATIONS = {
    "plain": {"queries": EVERYTHING},
    "approximate": {"delta": 1e-6, "queries": ("histogram",)},
    "anchored": {
        "queries": ("histogram", "top:2"), "largest": 100, "epsilon": 40.0,
    },
    "extremes": {
        "queries": ("max", "min"), "epsilon": 60.0, "largest": 100,
    },
}  # fmt: skip
FLAGS = {
    "flags": {"thresholds": 30, "epsilon": 50.0},
    "flags, each": {
        "thresholds": dict(zip(NAMES, (5, 10, 20, 40, 80, 160), strict=True)),
        "epsilon": 300.0,
    },
}  # fmt: skip


def transform(name: str, **changes):
    if name in FLAGS:
        return ThresholdFlags(**{**COMMON, "noise": KeyedNoise(KEY), **FLAGS[name], **changes})
    return ContinualHistogram(**{**COMMON, "noise": KeyedNoise(KEY), **CONFIGURATIONS[name], **changes})


def random_events(name: str, chance: random.Random, n: int = 600) -> list[tuple[str, str, int]]:
    """Events of 25 people, some outside of the run and the domain."""
    events = []
    for _ in range(n):
        (item,) = chance.choices([*NAMES, "unknown"], weights=[40, 20, 10, 5, 5, 5, 2])
        time = chance.randrange((START - 20) * SECOND, (START + 420) * SECOND)
        user = f"user {min(chance.randrange(25), chance.randrange(25))}"
        events.append((user, item, time))
        if chance.random() < 0.1:
            events.append(events[-1])
    return events
