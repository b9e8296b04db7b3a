"""Attacks on private distributions of what people contribute, through the stage that measures people."""

import numpy as np
import pytest
from attacks import falls, stands
from privstream.mechanisms.limits.person_histograms import Grid, PersonHistograms, whole_numbers
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.transforms.batches import EventBatch, Names, StepKey, encode
from privstream.transforms.limits.measuring import MeasurePeople

pytestmark = pytest.mark.slow

GRIDS = (Grid("contributions", whole_numbers(8)), Grid("items_per_window", whole_numbers(8)))
EPSILON, TRIALS = 2.0, 6_000


def events_of(people, of_person):
    """Return events: people with one item each, and one more with items of several windows."""
    users = np.arange(people, dtype=np.uint64)
    for step in range(4):
        more = np.full(of_person, people, np.uint64)
        items = np.arange(len(users) + of_person if step == 0 else of_person, dtype=np.uint64) % np.uint64(9)
        whose = np.concatenate([users, more]) if step == 0 else more
        yield step, EventBatch(whose, items, np.full(len(whose), step, np.int64), Names.none())


def counted(people, of_person, apart=False):
    """Measure people through the stage; `apart`: a broken variant that takes each window of a person for another."""
    records = []
    for step, batch in events_of(people, of_person):
        users = batch.users + np.uint64(1_000 * step) if apart else batch.users
        one = EventBatch(users, batch.items, batch.times, batch.names)
        records.append((StepKey("", step, 0).to_bytes(), encode(one)))
    counts = MeasurePeople(GRIDS, SeededNoise(1), added_up=False).count(records)
    return dict(zip((grid.name for grid in GRIDS), np.split(counts, 2), strict=True))


def seen(counts, seed):
    """Return what an attacker makes of many releases: the likelihood ratio of a person in either place."""
    made, noise = PersonHistograms(epsilon=EPSILON, grids=GRIDS), SeededNoise(seed)
    base, full = counted(5, 0), counted(5, 3)
    found = np.zeros(TRIALS)
    for trial in range(TRIALS):
        noisy = made.release(counts, noise.derive(trial))
        found[trial] = sum(
            (np.abs(noisy[name] - base[name]) - np.abs(noisy[name] - full[name])).sum() / made.scale(name)
            for name in noisy
        )
    return np.round(2 * found).astype(np.int64)


def test_a_person_with_much_in_many_windows_shows_no_more_than_epsilon():
    base, full = counted(5, 0), counted(5, 3)
    assert sum(np.abs(base[name] - full[name]).sum() for name in base) == 2
    stands([seen(base, 1), seen(full, 2)], EPSILON, visible=0.7)


def test_a_person_who_counts_once_for_each_window_is_caught():
    base, full = counted(5, 0, apart=True), counted(5, 3, apart=True)
    assert sum(np.abs(base[name] - full[name]).sum() for name in base) == 8
    falls([seen(base, 3), seen(full, 4)], EPSILON)
