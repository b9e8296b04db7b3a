"""Set cardinality: slow references, error bounds, used up changes, limits, refusals."""

import functools
import math

import numpy as np
import pytest
from grids import some_quick
from privstream.mechanisms.continual.cardinality import Cardinalities, GapChanges, SetCardinality
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.noise.sources import SeededNoise
from scipy import stats

FALSE_ALARM = 1e-10

VARIANTS = {
    "sparse": {"horizon": 3000, "max_updates": 20_000, "mode": "sparse"},
    "sparse, unknown K": {"horizon": 3000, "mode": "sparse"},
    "sparse, unknown T": {"max_updates": 20_000, "mode": "sparse"},
    "sparse, unknown K, T": {"mode": "sparse"},
    "counts": {"horizon": 3000},
    "counts, delta": {"horizon": 3000, "delta": 1e-6},
    "counts, limited": {"contributions": 30, "delta": 1e-6},
}
EACH = pytest.mark.parametrize("name", VARIANTS)


@functools.lru_cache(maxsize=256)
def make(name, **changes):
    return SetCardinality(**({"epsilon": 4.0} | VARIANTS[name] | changes))


def comings_and_goings(steps, seed, size=40):
    """Return changes that keep the set from being empty, with jumps and quiet stretches."""
    rng = np.random.default_rng(seed)
    changes = rng.integers(-size, size + 1, steps)
    changes[steps // 3 : steps // 2] = 0
    sizes = np.maximum(np.cumsum(changes), 0)
    return np.diff(sizes, prepend=0)


def run(mechanism, changes, seed=1, state=None):
    """Return the last state, and the columns of what is published."""
    state, published = state or mechanism.initial_state(), []
    for change in np.asarray(changes).tolist():
        state, one = mechanism.step(state, change, SeededNoise(seed))
        published.append(one)
    return state, Cardinalities(*map(np.array, zip(*published, strict=True)))


def slow_gap_changes(mechanism, changes, noise):
    """Theorem 1's mechanism, one step and one test at a time."""
    algorithm = mechanism.algorithm
    source = noise.derive("set cardinality", mechanism.parameters)
    size, shown, done, published = 0, 0, 0, []
    for step, change in enumerate(changes.tolist(), start=1):
        size += change
        if algorithm.rounds is not None and done == algorithm.rounds:
            published.append(shown)
            continue
        label = source.bind(np.array([step], np.uint64), np.array([size]))
        level, once = algorithm.threshold(step, done), np.zeros(1, np.uint64)
        middle = math.floor((algorithm.mu_bound(step, done) - algorithm.tau_bound) / 2)
        mu = int(algorithm.mu(done).draw(source.derive("up"), label)[0])
        tau = int(algorithm.tau.draw(source.derive("up threshold"), once)[0])
        other_mu = int(algorithm.mu(done).draw(source.derive("down"), label)[0])
        other_tau = int(algorithm.tau.draw(source.derive("down threshold"), once)[0])
        if size - shown + mu >= level + tau:
            shown, done = size + mu - tau - middle, done + 1
        elif shown - size + other_mu >= level + other_tau:
            shown, done = size - other_mu + other_tau + middle, done + 1
        published.append(shown)
    return np.array(published), done


class TestSparse:
    @pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("sparse")])
    @some_quick("seed", range(2), 0)
    @pytest.mark.slow
    def test_against_the_slow_reference(self, name, seed):
        mechanism, changes = make(name), comings_and_goings(1200, seed, size=300)
        state, published = run(mechanism, changes, seed)
        slow, rounds = slow_gap_changes(mechanism, changes, SeededNoise(seed))
        assert rounds == state.round >= 2
        assert np.array_equal(published.estimates, slow)

    @pytest.mark.parametrize("horizon", [None, 1, 24, 10**6])
    @pytest.mark.parametrize("updates", [None, 1, 7, 1000, 10**8, 10**12])
    @pytest.mark.parametrize("epsilon", [0.01, 1.0, 20.0])
    def test_rounds_cost_no_more_than_the_budget(self, horizon, updates, epsilon):
        algorithm = GapChanges(epsilon=epsilon, beta=0.05, horizon=horizon, max_updates=updates)
        assert algorithm.rounds is None or 1 <= algorithm.rounds <= updates
        numbers = range(2000) if algorithm.rounds is None else range(min(2000, algorithm.rounds))
        spent, once = [1 / algorithm.mu(i).scale for i in numbers], 1 / algorithm.tau.scale
        if algorithm.rounds is None:
            rest = 1 / (2.11 * math.log(2001))  # the integral from 2001 on of 1 / (n ln^2 n)
            assert once + math.fsum(spent) + rest * (epsilon - once) <= epsilon
        else:
            assert once + algorithm.rounds * max(spent) <= epsilon


class TestAccuracy:
    @EACH
    @some_quick("epsilon", [0.5, 8.0], 8.0)
    def test_bounds_hold_jointly(self, name, epsilon):
        """Of 30 runs, with beta = 0.05, at least so many keep all bounds that a false alarm is rarer than 1e-9."""
        changes = comings_and_goings(200, 11, size=60)
        sizes = np.cumsum(changes)
        kept = 0
        for seed in range(30):
            _, published = run(make(name, epsilon=epsilon), changes, seed)
            kept += bool(np.all(np.abs(published.estimates - sizes) <= published.error_bounds))
        assert np.abs(changes).sum() <= 20_000
        assert kept >= stats.binom.ppf(1e-9, 30, 0.95)

    @pytest.mark.parametrize("noise", [0.7, 1.0])
    def test_noise_of_counts_has_its_law_and_no_other(self, noise):
        mechanism = SetCardinality(epsilon=2.0, horizon=4000)
        changes = np.zeros(4000, np.int64)
        changes[0] = 10**7
        left = run(mechanism, changes)[1].estimates - 10**7
        law = DiscreteLaplace(4000 * noise / 2)
        edges = np.array([-4000, -2000, -1000, -300, 300, 1000, 2000, 4000])
        below = np.array([law.pmf(np.arange(edge - 60_000, edge)).sum() for edge in edges])
        observed = np.histogram(left, [-np.inf, *edges, np.inf])[0]
        p = stats.chisquare(observed, 4000 * np.diff([0, *below, 1])).pvalue
        assert (p > FALSE_ALARM) == (noise == 1.0)


class TestUsedUp:
    """More updates than the public guess: the estimate stays, the flag goes up, nothing is spent."""

    def test_the_last_value_is_published_for_ever(self):
        mechanism = SetCardinality(epsilon=1.0, horizon=4000, max_updates=500, mode="sparse")
        changes = np.where(np.arange(400) % 2, -(10**6), 10**6)
        state, published = run(mechanism, changes)
        first = int(np.argmax(published.exhausted))
        assert published.exhausted[first:].all()
        assert not published.exhausted[:first].any()
        assert state.exhausted
        assert state.round == mechanism.algorithm.rounds
        assert len(set(published.estimates[first:].tolist())) == 1
        assert len(set(published.estimates.tolist())) <= mechanism.algorithm.rounds + 1
        restored = mechanism.restore(mechanism.snapshot(state))
        assert restored.exhausted is True
        after, more = run(mechanism, [10**9], 2, restored)
        assert more.exhausted.tolist() == [True]
        assert more.estimates[0] == published.estimates[-1]
        assert after.size == state.size + 10**9
