"""Attacks on private queries, through the stages that count and answer: one person more, with many records."""

import numpy as np
import pytest
from attacks import falls, stands
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
