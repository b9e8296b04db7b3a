"""Attacks on private queries, through the stages that count and answer: one person more, with many records."""

import math
from functools import cached_property

import numpy as np
import pytest
from attacks import falls, stands
from privstream.mechanisms.keyed_counts.answered_queries import AnsweredQueries
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.transforms import Domain, PrivateQueries
from privstream.transforms.batches import EventBatch, Names, encode
from privstream.transforms.queries.answering import CountRecords, SparseQuery, decode_counts

pytestmark = pytest.mark.slow

RUNS, QUERIES = 1_000, 4
CLAIMED = 2.0


def make():
    return PrivateQueries(
        epsilon=CLAIMED,
        domain=Domain(["a", "b"]),
        method="multiplicative_weights",
        records=10,
        alpha=0.85,
        queries=QUERIES,
        noise=SeededNoise(1),
    )


def counts_of(people, choose=None):
    """Count people through the stage; each has forty records of the first item."""
    fn = CountRecords(2, "last", SeededNoise(1))
    users = np.repeat(np.arange(people, dtype=np.uint64), 40)
    if choose is not None:
        users = choose(users)
    batch = EventBatch(users, np.zeros(len(users), np.uint64), np.arange(len(users), dtype=np.int64), Names.none())
    ((_, data),) = fn.process((b"", [encode(batch)]))
    return decode_counts(data)


def outcomes(counts, seed):
    """Code how many answers were measured, and what they said in sum, in many runs."""
    made = make()
    queries = [SparseQuery(f"q{i}", i, np.array([0]), np.array([1.0])) for i in range(QUERIES)]
    codes = np.zeros(RUNS, np.int64)
    for run in range(RUNS):
        answers = made.answers(SeededNoise(seed).derive(run))
        _, rows = answers.answer(counts, answers.initial(), queries, 0)
        measured = [row for row in rows if row.source == "measured"]
        total = int(np.clip(sum(row.estimate for row in measured) // 20, -5, 40)) + 6 if measured else 0
        codes[run] = len(measured) * 64 + total
    return codes


def test_a_person_with_many_records_shows_no_more_than_epsilon():
    stands([outcomes(counts_of(13), 1), outcomes(counts_of(14), 2)], CLAIMED)


def test_records_in_place_of_people_are_caught():
    """Without the choice of one record, a person moves a query by forty."""

    def all_apart(users):
        return np.arange(len(users), dtype=np.uint64)

    one, other = counts_of(1, all_apart), counts_of(2, all_apart)
    assert (one.tolist(), other.tolist()) == ([40, 0], [80, 0])
    falls([outcomes(one, 1), outcomes(other, 2)], CLAIMED)


class ForOneAnswer(AnsweredQueries):
    """Noise for a single query, though there are many."""

    @cached_property
    def law(self):
        return AnsweredQueries(epsilon=self.epsilon, delta=self.delta, queries=1).law


def sums_of_answers(kind, people, seed, *, delta, queries, runs):
    """Return the sum of all answers to one query that is asked again and again, in steps of a fifth of its deviation.

    The adversary asks about an item that so many people have: for Gaussian noise the sum is the likelihood ratio.
    """
    made = kind(epsilon=CLAIMED, delta=delta, queries=queries)
    step = max(1.0, math.sqrt(queries * made.law.variance) / 5)
    noise = SeededNoise(seed)
    sums = [made.step(0, [people] * queries, noise.derive(run))[1].sum() for run in range(runs)]
    return np.clip(np.rint(np.array(sums) / step), -40, 40).astype(np.int64)


@pytest.mark.parametrize(("delta", "queries"), [(0.0, 1), (0.05, 16)])
def test_answers_with_noise_of_their_own_stand(delta, queries):
    runs = 20_000
    worlds = [
        sums_of_answers(AnsweredQueries, people, people, delta=delta, queries=queries, runs=runs) for people in (0, 1)
    ]
    curve = AnsweredQueries(epsilon=CLAIMED, delta=delta, queries=queries).guarantee.curve
    if delta:
        stands(worlds, CLAIMED, curve=curve, at=(0.5, 1.0))
        stands(worlds, 0.0, curve=curve, visible=0.7)
    else:
        stands(worlds, CLAIMED, visible=0.5)


def test_many_answers_with_the_noise_of_one_fall():
    worlds = [sums_of_answers(ForOneAnswer, people, people, delta=0.05, queries=16, runs=4000) for people in (0, 1)]
    falls(worlds, CLAIMED, delta=0.05)
