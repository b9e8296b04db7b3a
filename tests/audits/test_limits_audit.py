"""Attacks on the private histogram of contributions, and on the share that limits drop, through the stages."""

import numpy as np
import pytest
from attacks import falls, stands
from privstream.mechanisms.limits.contributions import ContributionHistogram
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.transforms.batches import EventBatch, Names, StepKey, encode
from privstream.transforms.questions.limits import people_by_contributions

pytestmark = pytest.mark.slow

MADE = ContributionHistogram(2.0, (1, 2, 3, 4, 6, 8))
TRIALS = 6_000


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
        records.append((StepKey(step, 0).to_bytes(), encode(one)))
    return people_by_contributions(records, MADE)


def seen(counts, seed, base, full):
    """Return what an attacker makes of many releases: the likelihood ratio of a person in either place."""
    noise = SeededNoise(seed)
    noisy = np.array([MADE.release(counts, noise.derive(trial)) for trial in range(TRIALS)])
    return np.round(2 * 2.0 * (np.abs(noisy - base) - np.abs(noisy - full)).sum(axis=1)).astype(np.int64)


def test_a_person_with_much_in_many_windows_shows_no_more_than_epsilon():
    base, full = counted(5, 0), counted(5, 3)
    assert np.abs(base - full).sum() == 1
    stands([seen(base, 1, base, full), seen(full, 2, base, full)], MADE.epsilon, visible=0.5)


def test_a_person_who_counts_once_for_each_window_is_caught():
    base, full = counted(5, 0, apart=True), counted(5, 3, apart=True)
    assert np.abs(base - full).sum() == 4
    falls([seen(base, 3, base, full), seen(full, 4, base, full)], MADE.epsilon)
