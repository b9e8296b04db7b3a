"""Attacks on counts per key through all stages: ours must stand, limits that forget must fall."""

import copy
import random

import numpy as np
import pytest
from attacks import falls, stands
from counts_chain import Chain
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.transforms import Domain
from privstream.transforms.batches import HolderBatch, decode
from privstream.transforms.counts.contributions import CountContributions
from privstream.transforms.counts.random_contributions import CountRandomContributions
from privstream.transforms.counts.transform import KeyedCounts
from privstream.transforms.events.bounding import PartOfPeople
from tiny_runner import dofns_of

pytestmark = pytest.mark.slow

RUNS = 3000
CLAIMED = 2.0
WINDOWS = 4
SECOND = 1_000_000
NAMES = np.array([f"run {i:04}" for i in range(RUNS)])


class ForgetfulAtRandom(CountRandomContributions):
    """Chooses of each window by itself, and forgets what has counted before."""

    def _counted(self, records):
        counted = {}
        for step, each in records.items():
            held = HolderBatch.join([decode(HolderBatch, PartOfPeople.split_off(record)[1]) for record in each])
            for _, chosen in self.choose({step: held}):
                counted[step] = self._count(chosen.held, chosen.rows, chosen.new)
        return counted, np.zeros(3, np.int64)


class Forgetful(CountContributions):
    """Limits each window by itself."""

    def step(self, key, step, batches, state):
        return super().step(key, step, batches, self.decode(key, []))


def counts(seed, **options):
    """Counts of many public keys; each run is a key, with noise and a suspect of its own."""
    return KeyedCounts(
        **{"epsilon": CLAIMED, "window": 1, "start": 0, "end": WINDOWS, "domain": Domain(NAMES.tolist()), "shards": 2,
           "noise": SeededNoise(seed)} | options
    )  # fmt: skip


def above_the_others(made, suspects, stage):
    """Return how far counts are above those of the others, (runs, windows).

    The suspect of a run has the key in every window, more often than may count. In each window as many others have it
    as the last count was off: what goes in depends on what came out.
    """
    fn = copy.copy(dofns_of(made)["CountContributions"])
    fn.__class__ = stage
    chain = Chain(made, random.Random(0), instead={"CountContributions": fn})
    found, others, total = [], np.zeros(RUNS, np.int64), np.zeros(RUNS, np.int64)
    for window in range(WINDOWS):
        others = np.clip(np.abs(found[-1]), 0, 5) if found else others
        total = others + (total if made.mechanism.over == "start" else 0)
        crowd = np.repeat(np.arange(RUNS), others)
        events = [(f"other {window} {i}", NAMES[run], window * SECOND + i) for i, run in enumerate(crowd)]
        events += [(f"suspect {i % RUNS}", NAMES[i % RUNS], window * SECOND) for i in range(suspects * RUNS)]
        chain.arrive(events, 1_000_000)
        chain.advance(made.steps.decision_time(made.steps.first + window, 9).micros)
        rows, chain.rows = sorted(chain.rows, key=lambda row: row.item), []
        found.append(np.array([row.noisy for row in rows]) - total)
    return np.array(found).T


def at_the_end(made, suspects, stage):
    """Return how far counts are above 0, (runs, windows), where a suspect alone has the key, in every window."""
    fn = copy.copy(dofns_of(made)["CountRandomContributions"])
    fn.__class__ = stage
    chain = Chain(made, random.Random(0), instead={"CountRandomContributions": fn})
    events = [
        (f"suspect {i % RUNS}", NAMES[i % RUNS], window * SECOND)
        for window in range(WINDOWS)
        for i in range(suspects * RUNS)
    ]
    chain.arrive(events, 1_000_000)
    chain.advance(made.steps.decision_time(made.steps.first + WINDOWS, 9).micros)
    rows = sorted(chain.rows, key=lambda row: (row.item, row.window_start))
    return np.array([row.noisy for row in rows]).reshape(RUNS, WINDOWS)


def worlds(view, stage=CountContributions, **options):
    return [view(above_the_others(counts(seed, **options), suspects, stage)) for seed, suspects in enumerate((0, 2))]


def which_are_high(found):
    """Tell in which windows the suspect seems to be there."""
    return (found >= 1).astype(np.int64) @ (1 << np.arange(WINDOWS))


def last_one(found):
    return np.clip(found[:, -1], -20, 30) + 20


def test_a_person_who_comes_too_often_is_hidden():
    stands(worlds(which_are_high, max_contributions=2), CLAIMED, visible=0.5)


def test_a_person_who_counts_once_since_the_start_is_hidden():
    stands(worlds(last_one, max_contributions=1, over="start"), CLAIMED, visible=0.2)


@pytest.mark.parametrize(("view", "over", "limit"), [(which_are_high, "window", 1), (last_one, "start", 1)])
def test_limits_that_forget_fall(view, over, limit):
    falls(worlds(view, Forgetful, max_contributions=limit, over=over), CLAIMED)


def at_random(stage, limit):
    """Return what is seen of a suspect with four contributions, of which so many may count, and of nobody."""
    made = [counts(seed, max_contributions=limit).to_finish() for seed in range(2)]
    return [which_are_high(at_the_end(each, suspects, stage)) for suspects, each in enumerate(made)]


def test_random_contributions_of_a_person_are_hidden():
    stands(at_random(CountRandomContributions, 2), CLAIMED, visible=0.3)


def test_random_contributions_without_a_memory_fall():
    falls(at_random(ForgetfulAtRandom, 1), CLAIMED)
