"""Configurations of set sizes, random comings and goings, and the slow way to say who is there."""

import random
from collections import defaultdict

import numpy as np
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import CardinalityEstimate, SetCardinality

KEY = b"a key for tests of set sizes"
SECOND = 1_000_000
START = 1_000
WINDOWS = 40
COMMON = {"window": 10, "start": START, "end": START + 10 * WINDOWS, "epsilon": 60.0, "shards": 3}
DOORS = {"enter_values": ("in", "back"), "leave_values": ("out",)}

CONFIGURATIONS = {
    "doors": {**DOORS, "max_updates": 300, "method": "sparse_counter", "epsilon": 2000.0},
    "doors, used up": {**DOORS, "max_updates": 9, "method": "sparse_counter", "epsilon": 2000.0},
    "doors, unknown K": {**DOORS, "method": "sparse_counter", "epsilon": 9000.0},
    "sessions": {"timeout": 25},
    "sessions, limited": {"timeout": 25, "max_contributions": 6, "delta": 1e-6},
    "sessions with ends": {
        "timeout": 70, "leave_values": ("out",), "max_updates": 200, "method": "sparse_counter", "epsilon": 900.0,
    },
    "entrance only": {"timeout": 33.5, "enter_values": ("in",)},
    "doors, limited": {**DOORS, "max_contributions": 7},
    "doors with time-out, limited": {**DOORS, "timeout": 55, "max_contributions": 9},
}  # fmt: skip


def transform(name: str, **changes) -> SetCardinality:
    return SetCardinality(**{**COMMON, "noise": KeyedNoise(KEY), **CONFIGURATIONS[name], **changes})


def random_events(name: str, chance: random.Random, n: int = 500) -> list[tuple[str, str, int]]:
    """Events of 25 people, some doubled, some at the same time, some outside of the run."""
    events = []
    for _ in range(n):
        time = chance.randrange((START - 20) * SECOND, (START + 10 * WINDOWS + 20) * SECOND)
        if chance.random() < 0.5:
            time = time // (5 * SECOND) * 5 * SECOND  # many at one time, and at the ends of windows
        if START + 200 <= time // SECOND < START + 260:
            continue  # a quiet minute
        item = chance.choices(["in", "back", "out", "look"], weights=[5, 2, 5, 1])[0]
        user = f"user {min(chance.randrange(25), chance.randrange(25))}"
        events.append((user, item, time))
        if chance.random() < 0.2:
            events.append((user, chance.choice(["in", "out"]), time))
    return events + chance.choices(events, k=n // 10)


def kind_of(made: SetCardinality, item: str) -> str | None:
    """Say whether an item enters, leaves, or neither."""
    if item in (made.actions.end or ()):
        return "leave"
    return "enter" if made.actions.begin is None or item in made.actions.begin else None


def usable(made: SetCardinality, events) -> list[tuple[str, str, int]]:
    """Return the events that count, by time, with their kind as item; at one time leaving comes last."""
    first, end = made.steps.first * made.steps.size, made.steps.end * made.steps.size
    kept = [(user, kind_of(made, item), time) for user, item, time in events]
    kept = [e for e in kept if e[1] and first <= e[2] < end]
    return sorted(kept, key=lambda e: (e[2], e[1]))


def there(made: SetCardinality, kind: str, time: int, moment: int) -> bool:
    """Say whether a person whose last event is this one is there at a moment."""
    return kind == "enter" and (made.timeout is None or moment - time <= made.timeout)


def sizes(made: SetCardinality, events) -> list[int]:
    """Count for each window who is there at its end, and has not been counted too often: by their last events."""
    windows, said, found = defaultdict(int), {}, []
    by_step = defaultdict(dict)
    for user, kind, time in usable(made, events):
        by_step[time // made.steps.size][user] = kind, time
    for step in range(made.steps.first, made.steps.end):
        said |= by_step[step]
        present = [user for user, move in said.items() if there(made, *move, (step + 1) * made.steps.size)]
        counted = [user for user in present if windows[user] < (made.max_contributions or WINDOWS)]
        for user in counted:
            windows[user] += 1
        found.append(len(counted))
    return found


def expected(made: SetCardinality, events) -> list[CardinalityEstimate]:
    """Return the rows that the transform must give, sorted."""
    changes, rows, state = np.diff(sizes(made, events), prepend=0).tolist(), [], made.mechanism.initial_state()
    for i, change in enumerate(changes):
        state, (estimate, bound, exhausted) = made.mechanism.step(state, change, made.publishing_noise)
        start = (made.steps.first + i) * made.steps.size
        ends = Timestamp(micros=start), Timestamp(micros=start + made.steps.size)
        spread = made.mechanism.spread
        reach = bound if spread is None else spread
        interval = (None, None) if exhausted else (max(0, estimate - reach), max(0, estimate + reach))
        people = max(0, estimate)
        noisy = estimate if made.method == "counts" else people
        rows.append(CardinalityEstimate(*ends, people, *interval, noisy, -1 if exhausted else bound))
    return sorted(rows, key=lambda row: row[:2])
