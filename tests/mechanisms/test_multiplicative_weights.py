"""Online multiplicative weights: a slow reference, accuracy, the hypothesis, and the budget."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from privstream.mechanisms.checks import BudgetSpent
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.selection.multiplicative_weights import LinearQueries, OnlineMultiplicativeWeights
from privstream.mechanisms.selection.sparse_vector import Progress


def run(mechanism, counts, queries, noise):
    return mechanism.step(mechanism.initial_state(), LinearQueries(np.array(counts), np.array(queries)), noise)


def skewed(size, records):
    counts = records / np.arange(1, size + 1)
    return np.floor(counts * records / counts.sum()).astype(np.int64)


def random_queries(count, size, seed):
    return np.random.default_rng(seed).integers(0, 2, (count, size))


def plain_run(mechanism, counts, queries, noise):
    """The algorithm as it is printed: one query, and one one-sided test, at a time."""
    source = noise.derive("multiplicative weights", mechanism.parameters)
    law, tests, answers = np.full(len(counts), 1 / len(counts)), Progress(), []
    for query in queries:
        truth, expected = (query * counts).sum(), mechanism.records * (query * law).sum()
        answer, direction = expected, 0
        for sign in (1, -1):
            bar = math.ceil(sign * expected + mechanism.alpha * mechanism.records)
            tests, found = mechanism.tests.step(tests, [sign * truth], source, thresholds=bar)
            if found.hits[0]:
                answer, direction = sign * found.numbers[0], sign
                break
        answers.append((float(answer), direction != 0))
        law = law * np.exp(direction * mechanism.alpha / 2 * query)
        law /= law.sum()
        if tests.hits == mechanism.max_updates:
            break
    return answers


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(2, 12),
    epsilon=st.sampled_from([0.5, 20.0, 5000.0]),
    cuts=st.lists(st.integers(0, 40), max_size=3),
)
def test_same_as_one_query_at_a_time(seed, size, epsilon, cuts):
    mechanism = OnlineMultiplicativeWeights(epsilon=epsilon, domain_size=size, records=10_000, alpha=0.35)
    counts, queries = skewed(size, 10_000), random_queries(40, size, seed)
    expected = plain_run(mechanism, counts, queries, SeededNoise(seed))
    state, values, measured = mechanism.initial_state(), [], []
    for start, stop in itertools.pairwise([0, *sorted(cuts), 40]):
        if mechanism.updates(state) < mechanism.max_updates:
            state, answers = mechanism.step(state, LinearQueries(counts, queries[start:stop]), SeededNoise(seed))
            values += answers.values.tolist()
            measured += answers.measured.tolist()
    assert measured == [flag for _, flag in expected]
    assert values == pytest.approx([value for value, _ in expected], rel=1e-9)
    assert mechanism.updates(state) == sum(measured)
    assert np.exp(state.log_law).sum() == pytest.approx(1)


def test_answers_are_as_accurate_as_stated_and_few_are_measured():
    size, count, beta = 32, 400, 1e-9
    records = OnlineMultiplicativeWeights(epsilon=1.0, domain_size=size, records=1, alpha=0.2).records_needed(
        count, beta
    )
    mechanism = OnlineMultiplicativeWeights(epsilon=1.0, domain_size=size, records=records, alpha=0.2)
    counts = skewed(size, records)
    counts[0] += records - counts.sum()
    queries = random_queries(count, size, 1)
    # Also the hardest ones: ever larger prefixes of a skewed histogram.
    queries[::7] = np.arange(size) < np.arange(len(queries[::7]))[:, None] % size
    state, answers = run(mechanism, counts, queries, SeededNoise(1))
    errors = np.abs(answers.values - queries @ counts)
    assert len(answers.values) == count
    assert errors.max() <= mechanism.accuracy(count, beta)
    assert 0 < mechanism.updates(state) == answers.measured.sum() < mechanism.max_updates / 4
    # The uniform hypothesis alone is not as good.
    assert np.abs(records * queries.mean(axis=1) - queries @ counts).max() > 1.5 * errors.max()


def test_updates_lower_the_relative_entropy():
    mechanism = OnlineMultiplicativeWeights(epsilon=1e5, domain_size=20, records=10**6, alpha=0.1)
    counts = skewed(20, 10**6)
    law = counts / counts.sum()
    state = mechanism.initial_state()
    for query in random_queries(200, 20, 2):
        before, entropy = mechanism.updates(state), float(law @ (np.log(law) - state.log_law))
        state, _ = mechanism.step(state, LinearQueries(counts, query[None]), SeededNoise(1))
        if mechanism.updates(state) > before:
            assert entropy - float(law @ (np.log(law) - state.log_law)) >= mechanism.alpha**2 / 4
    assert mechanism.updates(state) > 0


def test_halts_and_says_what_it_has_used():
    """With too few records noise decides, and the updates run out."""
    mechanism = OnlineMultiplicativeWeights(epsilon=0.5, domain_size=2, records=10, alpha=0.9)
    state, answers = run(mechanism, [5, 5], [[1, 0]] * 1000, SeededNoise(1))
    assert mechanism.updates(state) == mechanism.max_updates == answers.measured.sum() == 4
    assert len(answers.values) < 1000 and answers.measured[-1]
    with pytest.raises(BudgetSpent, match="updates must stay <= 4; the run has halted"):
        mechanism.step(state, LinearQueries(np.array([5, 5]), np.array([[1, 0]])), SeededNoise(1))
