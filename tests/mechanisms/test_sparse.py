import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import common, privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.checks import BudgetSpent
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.papers.sparse_vector import AboveThreshold
from privstream.mechanisms.sparse_vector.query_mechanism import HiddenThreshold, Progress
from privstream.mechanisms.sparse_vector.sparse import PureComposition, Sparse


def run(mechanism, values, noise, **options):
    return mechanism.step(mechanism.initial_state(), values, noise, **options)


def plain_tests(tests, gaps, noise):
    """The algorithm as it is printed, one query at a time."""
    threshold_noise, query_noise = noise.derive("threshold"), noise.derive("query")
    hits = []
    for i, gap in enumerate(gaps):
        at = np.array([i], dtype=np.uint64)
        lives = np.array([sum(hits)], dtype=np.uint64)
        noisy = gap + tests._law(2 * tests.scale).draw(query_noise, at)
        hits.append(bool(noisy >= tests._law(tests.scale).draw(threshold_noise, lives)))
        if sum(hits) == tests.max_hits:
            break
    return hits


@pytest.mark.parametrize("integer", [False, True])
@given(
    seed=st.integers(0, 10**6),
    max_hits=st.integers(1, 40),
    gaps=st.lists(st.integers(-60, 10), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
)
def test_same_as_one_query_at_a_time(integer, seed, max_hits, gaps, cuts):
    tests = HiddenThreshold(scale=9.0, max_hits=max_hits, integer=integer)
    expected = plain_tests(tests, gaps, SeededNoise(seed))
    state, found = Progress(), []
    bounds = [0, *sorted(min(cut, len(gaps)) for cut in cuts), len(gaps)]
    for start, stop in itertools.pairwise(bounds):
        if state.hits < max_hits:
            state, hits = tests.test(
                state, np.array(gaps[start:stop], np.int64 if integer else float), SeededNoise(seed)
            )
            found += hits.tolist()
    assert found == expected
    assert state == Progress(asked=len(expected), hits=sum(expected))


def test_blocks_of_noise_do_not_show():
    # More queries than one chunk and more hits than one block of threshold noises.
    tests = HiddenThreshold(scale=5.0, max_hits=3000, integer=True)
    gaps = np.full(140_000, -40)
    gaps[::100] = 3
    _, whole = tests.test(Progress(), gaps, SeededNoise(5))
    state, pieces = Progress(), []
    for piece in np.array_split(gaps, 23):
        state, hits = tests.test(state, piece, SeededNoise(5))
        pieces.append(hits)
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    assert 800 < whole.sum() == state.hits < 3000


@pytest.mark.parametrize("integer", [False, True])
def test_halts_at_the_last_hit(integer):
    mechanism = Sparse(epsilon=1.0, max_hits=3, threshold=1000, integer=integer)
    values = np.zeros(1000, dtype=np.int64)
    values[[10, 500, 501, 700]] = 9000
    state, answers = run(mechanism, values, SeededNoise(1))
    assert np.flatnonzero(answers.hits).tolist() == [10, 500, 501]
    assert (answers.answered, state) == (502, Progress(asked=502, hits=3))
    with pytest.raises(BudgetSpent, match="hits must stay <= 3"):
        mechanism.step(state, [0], SeededNoise(1))


@pytest.mark.parametrize(
    ("epsilon", "delta", "max_hits", "scale"),
    [(1.0, 0.0, 1, 2.0), (0.5, 0.0, 10, 40.0), (2.0, 1e-6, 50, math.sqrt(32 * 50 * math.log(1e6)) / 2)],
)
def test_noise_scale_and_accuracy_are_the_formulas(epsilon, delta, max_hits, scale):
    mechanism = Sparse(epsilon=epsilon, delta=delta, max_hits=max_hits)
    assert mechanism.noise_scale == pytest.approx(scale, rel=1e-12)
    logs = math.log(1000) + math.log(2 * max_hits / 0.05)
    root = math.sqrt(512 * max_hits * math.log(1 / delta)) if delta else 8 * max_hits
    assert mechanism.accuracy(1000, 0.05) == pytest.approx(root * logs / epsilon, rel=1e-12)


def test_one_hit_is_above_threshold():
    assert Sparse(epsilon=0.3).noise_scale == AboveThreshold(epsilon=0.3).noise_scale
    assert Sparse(epsilon=0.3).accuracy(99, 0.1) == AboveThreshold(epsilon=0.3).accuracy(99, 0.1)


@pytest.mark.parametrize("rounds", [1, 2, 7, 300])
@pytest.mark.parametrize("round_epsilon", [0.01, 0.2, 1.5])
def test_pure_composition_agrees_with_privacy_loss_distributions(rounds, round_epsilon):
    curve = PureComposition(rounds=rounds, round_epsilon=round_epsilon)
    parameters = common.DifferentialPrivacyParameters(round_epsilon, 0)
    interval = round_epsilon / 64  # so that the peer rounds nothing up
    single = privacy_loss_distribution.from_privacy_parameters(parameters, value_discretization_interval=interval)
    peer, mine = single.self_compose(rounds), curve.to_pld(interval)
    for share in (0.0, 0.1, 0.33, 0.77, 0.999):
        epsilon = share * rounds * round_epsilon
        exact = pytest.approx(curve.delta(epsilon), rel=1e-6, abs=1e-12)
        assert peer.get_delta_for_epsilon(epsilon) == exact
        assert mine.get_delta_for_epsilon(epsilon) == exact
    assert curve.delta(rounds * round_epsilon) == 0
    assert curve.epsilon(0) == pytest.approx(rounds * round_epsilon)


@given(
    epsilon=st.floats(0.01, 300),
    delta=st.floats(1e-12, 0.5),
    max_hits=st.integers(1, 10**5),
)
def test_textbook_noise_is_accepted_wherever_the_proof_covers_it(epsilon, delta, max_hits):
    if epsilon <= 8 * math.log(1 / delta) or max_hits <= 8 * math.log(1 / delta):
        assert Sparse(epsilon=epsilon, delta=delta, max_hits=max_hits).curve.delta(epsilon) <= delta * (1 + 1e-9)


def test_textbook_noise_is_refused_where_it_fails():
    with pytest.raises(ValueError, match=r"epsilon must be smaller for delta 0\.01 and 10000 hits.*got 60"):
        Sparse(epsilon=60, delta=0.01, max_hits=10_000)


def test_guarantee_is_tighter_than_stated():
    mechanism = Sparse(epsilon=1.0, delta=1e-6, max_hits=1000)
    assert (mechanism.guarantee.epsilon, mechanism.guarantee.delta) == (1.0, 1e-6)
    assert mechanism.guarantee.curve.epsilon(1e-6) == pytest.approx(0.376, abs=1e-3)
    assert Sparse(epsilon=1.0, max_hits=10).guarantee.curve.delta(1.0) == 0
