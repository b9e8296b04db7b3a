"""Linear queries by multiplicative weights."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from privstream.mechanisms.checks import BudgetSpent
from privstream.mechanisms.noise.sources import KeyedNoise, SeededNoise
from privstream.mechanisms.sparse_vector.multiplicative_weights import LinearQueries, OnlineMultiplicativeWeights
from privstream.mechanisms.sparse_vector.query_mechanism import Progress

GOLDEN = ([603, 613, 194, 387, 387, 581], [True, False, False, False, False, False])


def run(mechanism, counts, queries, noise):
    return mechanism.step(mechanism.initial_state(), LinearQueries(np.array(counts), np.array(queries)), noise)


def skewed(size, records):
    counts = records / np.arange(1, size + 1)
    return np.floor(counts * records / counts.sum()).astype(np.int64)


def random_queries(count, size, seed, *, integer):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2, (count, size)) if integer else rng.random((count, size))


def plain_run(mechanism, counts, queries, noise):
    """The algorithm as it is printed: one query, and one one-sided test, at a time."""
    source = noise.derive("multiplicative weights", mechanism.parameters)
    law, tests, answers = np.full(len(counts), 1 / len(counts)), Progress(), []
    for query in queries:
        truth, expected = (query * counts).sum(), mechanism.records * (query * law).sum()
        answer, direction = expected, 0
        for sign in (1, -1):
            bar = sign * expected + mechanism.alpha * mechanism.records
            tests, found = mechanism.tests.step(
                tests, [sign * truth], source, thresholds=math.ceil(bar) if mechanism.integer else bar
            )
            if found.hits[0]:
                answer, direction = sign * found.values[0], sign
                break
        answers.append((float(answer), direction != 0))
        law = law * np.exp(direction * mechanism.alpha / 2 * query)
        law /= law.sum()
        if tests.hits == mechanism.max_updates:
            break
    return answers


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(2, 12),
    integer=st.booleans(),
    epsilon=st.sampled_from([0.5, 20.0, 5000.0]),
    cuts=st.lists(st.integers(0, 40), max_size=3),
)
@pytest.mark.slow
def test_same_as_one_query_at_a_time(seed, size, integer, epsilon, cuts):
    mechanism = OnlineMultiplicativeWeights(
        epsilon=epsilon, domain_size=size, records=10_000, alpha=0.35, integer=integer
    )
    counts, queries = skewed(size, 10_000), random_queries(40, size, seed, integer=integer)
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


@pytest.mark.parametrize("integer", [False, True])
def test_answers_are_as_accurate_as_stated_and_few_are_measured(integer):
    size, count, beta = 32, 400, 1e-9
    draft = OnlineMultiplicativeWeights(epsilon=1.0, domain_size=size, records=1, alpha=0.2, integer=integer)
    records = draft.records_needed(count, beta)
    mechanism = OnlineMultiplicativeWeights(epsilon=1.0, domain_size=size, records=records, alpha=0.2, integer=integer)
    counts = skewed(size, records)
    counts[0] += records - counts.sum()
    queries = random_queries(count, size, 1, integer=integer)
    # Also the hardest ones: ever larger prefixes of a skewed histogram.
    queries[::7] = np.arange(size) < np.arange(len(queries[::7]))[:, None] % size
    state, answers = run(mechanism, counts, queries, SeededNoise(1))
    errors = np.abs(answers.values - queries @ counts)
    assert answers.answered == count
    assert errors.max() <= mechanism.accuracy(count, beta)
    assert 0 < mechanism.updates(state) == answers.measured.sum() < mechanism.max_updates / 4
    # The uniform hypothesis alone is not as good, nor are measurements with the budget split among all queries.
    assert np.abs(records * queries.mean(axis=1) - queries @ counts).max() > 1.5 * errors.max()


def test_updates_lower_the_relative_entropy():
    mechanism = OnlineMultiplicativeWeights(epsilon=1e5, domain_size=20, records=10**6, alpha=0.1)
    counts = skewed(20, 10**6)
    law = counts / counts.sum()
    state, entropies = mechanism.initial_state(), []
    for query in random_queries(300, 20, 2, integer=False):
        entropies.append(float(law @ (np.log(law) - state.log_law)))
        before = mechanism.updates(state)
        state, _ = mechanism.step(state, LinearQueries(counts, query[None]), SeededNoise(1))
        if mechanism.updates(state) > before:
            fall = entropies[-1] - float(law @ (np.log(law) - state.log_law))
            assert fall >= mechanism.alpha**2 / 4
    assert mechanism.updates(state) > 0


def test_repeated_query_is_learned():
    mechanism = OnlineMultiplicativeWeights(epsilon=1.0, domain_size=4, records=10**7, alpha=0.1, integer=True)
    counts = np.array([7, 1, 1, 1]) * 10**6
    state, answers = run(mechanism, counts, [[1, 0, 0, 0]] * 60, SeededNoise(1))
    assert answers.measured[0]
    assert not answers.measured[-1]
    assert abs(answers.values - 7 * 10**6).max() <= mechanism.accuracy(60, 1e-9)
    assert mechanism.updates(state) < 40


def test_halts_and_refuses():
    """With too few records noise decides, and the updates run out."""
    mechanism = OnlineMultiplicativeWeights(epsilon=1.0, domain_size=2, records=10, alpha=0.9, integer=True)
    state, answers = run(mechanism, [5, 5], [[1, 0]] * 1000, SeededNoise(1))
    assert mechanism.updates(state) == mechanism.max_updates == answers.measured.sum() == 4
    assert answers.answered < 1000
    assert answers.measured[-1]
    with pytest.raises(BudgetSpent, match="updates must stay <= 4; the run has halted"):
        mechanism.step(state, LinearQueries(np.array([5, 5]), np.array([[1, 0]])), SeededNoise(1))


def test_what_a_run_has_used_grows_with_updates_up_to_epsilon():
    options = {"epsilon": 0.5, "domain_size": 4, "records": 10**5, "alpha": 0.9, "integer": True}
    mechanism = OnlineMultiplicativeWeights(**options)
    state = mechanism.initial_state()
    assert mechanism.spent(state) == 0
    used = []
    while mechanism.updates(state) < mechanism.max_updates:
        given = LinearQueries(np.array([10**9, 0, 0, 0]), np.array([[1, 0, 0, 0]]))  # always far from the hypothesis
        state, _ = mechanism.step(state, given, SeededNoise(1))
        used.append(mechanism.spent(state))
    each = 0.5 / mechanism.max_updates
    # A hit costs its part of epsilon. Before the last one, the threshold of the next test: half of 8/9 of a part.
    expected = [each * (hits + 4 / 9) for hits in range(1, mechanism.max_updates)] + [0.5]
    np.testing.assert_allclose(used, expected)
    given = LinearQueries(np.array([25_000] * 4), np.array([[1, 0, 0, 0]]))
    quiet, _ = mechanism.step(mechanism.initial_state(), given, SeededNoise(1))
    assert mechanism.updates(quiet) == 0
    assert mechanism.spent(quiet) == pytest.approx(each * 4 / 9)
    composed = OnlineMultiplicativeWeights(**options, delta=1e-6)
    assert composed.spent(composed.step(composed.initial_state(), given, SeededNoise(1))[0]) == 0.5


def test_constants():
    mechanism = OnlineMultiplicativeWeights(epsilon=1.0, delta=1e-6, domain_size=1000, records=10**6, alpha=0.1)
    assert mechanism.max_updates == math.floor(400 * math.log(1000)) + 1
    error = mechanism.tests.accuracy(20_000, 0.05)
    assert mechanism.accuracy(10_000, 0.05) == pytest.approx(10**5 + error)
    assert mechanism.records_needed(10_000, 0.05) == math.ceil(error / (7 / 16 * 0.1))
    assert mechanism.records_needed(mechanism.max_updates, 0.05) == 1  # each of them can be measured
    assert mechanism.guarantee.epsilon == 1.0
    assert f"halts after {mechanism.max_updates} measured answers" in mechanism.guarantee.paragraph()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"domain_size": 1}, ValueError, "domain_size must be >= 2, got 1"),
        ({"domain_size": 2**24 + 1}, ValueError, "domain_size must be <= 2**24, got 16777217"),
        ({"alpha": 1.0}, ValueError, "alpha must be in (0, 1), got 1.0"),
        ({"alpha": 5e-324}, ValueError, "alpha must be >= 1e-12, got 5e-324"),
        ({"neighbouring": "x"}, ValueError, "neighbouring must be one of add_remove, replace_one, got 'x'"),
    ],
)
def test_parameters_are_checked(options, error, message):
    with pytest.raises(error) as caught:
        OnlineMultiplicativeWeights(**{"epsilon": 1.0, "domain_size": 4, "records": 100, "alpha": 0.5} | options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("counts", "queries", "error", "message"),
    [
        ([1, 2, 3], [[1, 0]], ValueError, "counts must be 2 numbers >= 0, got shape (3,)"),
        ([1, -2], [[1, 0]], ValueError, "counts must be 2 numbers >= 0, got shape (2,)"),
        ([1.0, 2.0], [[1, 0]], TypeError, "counts must be integers, got float64"),
        ([2**61, 2], [[1, 0]], ValueError, "counts must sum to at most 2**60"),
        ([1, 2], [1, 0], ValueError, "queries must have shape (n, 2), got (2,)"),
        ([1, 2], [[1, 2]], ValueError, "queries must have values in [0, 1]"),
        ([1, 2], [[0.5, 1]], TypeError, "queries must be 0 or 1, got float64"),
    ],
)
def test_inputs_are_checked(counts, queries, error, message):
    mechanism = OnlineMultiplicativeWeights(epsilon=1.0, domain_size=2, records=10, alpha=0.5, integer=True)
    with pytest.raises(error) as caught:
        run(mechanism, counts, queries, SeededNoise(1))
    assert str(caught.value) == message


def test_values_must_be_numbers():
    mechanism = OnlineMultiplicativeWeights(epsilon=1.0, domain_size=2, records=10, alpha=0.5)
    with pytest.raises(ValueError, match="queries must have values in"):
        run(mechanism, [1, 2], [[math.nan, 0.5]], SeededNoise(1))


def test_golden():
    mechanism = OnlineMultiplicativeWeights(epsilon=200.0, domain_size=5, records=1000, alpha=0.3, integer=True)
    queries = random_queries(6, 5, 3, integer=True)
    _, answers = run(mechanism, [600, 100, 100, 100, 100], queries, KeyedNoise(b"a key for tests only", "golden"))
    assert (answers.values.round().astype(int).tolist(), answers.measured.tolist()) == GOLDEN
