"""Set cardinality: slow references, error bounds, used up changes, limits, refusals."""

import dataclasses
import functools
import itertools
import math
from typing import ClassVar

import numpy as np
import pytest
from grids import some_quick
from hypothesis import given, settings
from hypothesis import strategies as st
from privstream.mechanisms.cardinality.algorithms import (
    Cardinalities,
    GapChanges,
    HenzingerSricharanSteinerChanges,
    tail,
)
from privstream.mechanisms.cardinality.set_cardinality import SetCardinality
from privstream.mechanisms.checks import HorizonExceeded, SnapshotError
from privstream.mechanisms.counters.continual_counter import node_law
from privstream.mechanisms.counters.toeplitz import BufferedToeplitzCounter
from privstream.mechanisms.counters.trees import KaryTreeCounter, WideTreeCounter
from privstream.mechanisms.counters.unknown_horizon import UnknownHorizonCounter
from privstream.mechanisms.keyed_counts.shared_counts import SharedCounts
from privstream.mechanisms.noise.discrete import DiscreteLaplace, Geometric
from privstream.mechanisms.noise.sources import KeyedNoise, SeededNoise
from privstream.mechanisms.noise.tails import series_share
from privstream.mechanisms.privacy.accounting import GaussianCurve, PureDp, largest_shift
from privstream.mechanisms.privacy.units import EVENT
from privstream.mechanisms.snapshots import pack_state
from scipy import stats

FALSE_ALARM = 1e-10

VARIANTS = {
    "sparse": {"horizon": 3000, "max_updates": 20_000, "mode": "sparse"},
    "sparse, unknown K": {"horizon": 3000, "mode": "sparse"},
    "sparse, unknown T": {"max_updates": 20_000, "mode": "sparse"},
    "sparse, unknown K, T": {"mode": "sparse"},
    "paper": {"horizon": 3000, "max_updates": 20_000, "mode": "paper"},
    "paper, unknown K": {"horizon": 3000, "mode": "paper"},
    "paper, unknown T": {"max_updates": 20_000, "mode": "paper"},
    "paper, unknown K, T": {"mode": "paper"},
    "direct": {"horizon": 3000, "mode": "direct"},
    "direct, delta": {"horizon": 3000, "delta": 1e-6, "mode": "direct"},
    "counter": {"horizon": 3000, "visits_per_person": 2, "mode": "counter"},
    "event": {"horizon": 3000, "unit": "event"},
    "event, unknown T": {"unit": "event"},
    "event, delta": {"horizon": 3000, "delta": 1e-6, "unit": "event"},
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


def run(mechanism, changes, seed=1):
    return mechanism.run(mechanism.initial_state(), changes, SeededNoise(seed))


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


class TestRuns:
    @EACH
    @given(data=st.data())
    @settings(max_examples=8, deadline=None)
    def test_a_run_in_pieces_is_the_same_run(self, name, data):
        mechanism, changes = make(name), comings_and_goings(300, 7)
        _, whole = run(mechanism, changes)
        cuts = sorted(data.draw(st.lists(st.integers(0, 300), max_size=4)))
        state, parts = mechanism.initial_state(), []
        for part in np.split(changes, cuts):
            state, published = mechanism.run(mechanism.restore(mechanism.snapshot(state)), part, SeededNoise(1))
            parts.append(published)
        assert same([np.concatenate(column) for column in zip(*parts, strict=True)], whole)

    @EACH
    def test_steps_are_runs_of_length_one(self, name):
        mechanism, changes = make(name), comings_and_goings(120, 3)
        _, whole = run(mechanism, changes)
        state = mechanism.initial_state()
        for i, change in enumerate(changes.tolist()):
            state, published = mechanism.step(state, change, SeededNoise(1))
            assert published == Cardinalities(*(column[i] for column in whole))
            assert type(published.estimates) is int
            assert type(published.exhausted) is bool
        assert state.size == changes.sum()

    @EACH
    def test_estimates_are_whole_and_not_negative(self, name):
        _, published = run(make(name, epsilon=0.05), comings_and_goings(2000, 5, size=1))
        assert published.estimates.dtype == np.int64
        assert published.estimates.min() >= 0
        assert published.estimates.min() == 0 or not name.startswith("direct")

    @EACH
    def test_no_steps_do_nothing(self, name):
        mechanism = make(name)
        state, published = run(mechanism, [])
        assert len(published.estimates) == 0
        assert mechanism.snapshot(state) == mechanism.snapshot(mechanism.initial_state())

    def test_other_parameters_draw_other_noise(self):
        changes = np.zeros(2000, np.int64)
        changes[0] = 10**6
        one, two = (
            run(SetCardinality(epsilon=1.0, horizon=horizon, mode="direct"), changes)[1].estimates - 10**6
            for horizon in (2000, 2001)
        )
        assert np.mean(one == two) < 0.01
        assert abs(stats.spearmanr(one, two).statistic) < 0.15

    def test_golden(self):
        noise = KeyedNoise(b"a key for tests only", "golden")
        changes = np.diff((5000 * (1 + np.sin(np.arange(400) / 30))).astype(int), prepend=0)
        found = {}
        for name in GOLDEN:
            mechanism = make(name)
            state, published = mechanism.run(mechanism.initial_state(), changes, noise)
            found[name] = (
                published.estimates[[0, 10, 150, 399]].tolist(),
                published.error_bounds[-1].item(),
                state.round,
            )
        assert found == GOLDEN


GOLDEN = {
    "sparse": ([4912, 6219, 516, 6226], 649, 63),
    "paper": ([5009, 5009, 1800, 8228], 4164, 10),
    "direct": ([6327, 6853, 2289, 9934], 8252, 0),
    "direct, delta": ([4969, 6656, 174, 8332], 143, 0),
    "event": ([5000, 6622, 218, 8346], 37, 0),
    "sparse, unknown K, T": ([5026, 6457, 666, 6073], 4782, 18),
    "paper, unknown K, T": ([5000, 5846, 3243, 3243], 11097, 5),
    "event, unknown T": ([5001, 6635, 209, 8370], 49, 0),
}


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
        at = np.array([step])
        label = source.bind(at.astype(np.uint64), np.array([size]))
        level, once = int(algorithm.thresholds(at, done)[0]), np.zeros(1, np.uint64)
        middle = math.floor((algorithm.mu_bounds(at, done)[0] - algorithm.tau_bound) / 2)
        mu = int(algorithm.mu(done).draw(source.derive("up"), label)[0])
        tau = int(algorithm.tau.draw(source.derive("up threshold"), once)[0])
        other_mu = int(algorithm.mu(done).draw(source.derive("down"), label)[0])
        other_tau = int(algorithm.tau.draw(source.derive("down threshold"), once)[0])
        if size - shown + mu >= level + tau:
            shown, done = size + mu - tau - middle, done + 1
        elif shown - size + other_mu >= level + other_tau:
            shown, done = size - other_mu + other_tau + middle, done + 1
        published.append(shown)
    return np.maximum(published, 0), done


class TestSparse:
    @pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("sparse")])
    @some_quick("seed", range(2), 0)
    @pytest.mark.slow
    def test_against_the_slow_reference(self, name, seed):
        mechanism, changes = make(name), comings_and_goings(2500, seed, size=300)
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

    @pytest.mark.parametrize("horizon", [None, 500])
    @pytest.mark.parametrize("updates", [None, 5000])
    def test_failure_probabilities_add_up_to_beta(self, horizon, updates):
        algorithm = GapChanges(epsilon=1.0, beta=0.05, horizon=horizon, max_updates=updates)
        steps = np.arange(1, (horizon or 10**6) + 1)
        tests = 2 * np.exp(-algorithm._test_logs(steps)).sum()
        assert 0.8 * 0.025 < tests <= 0.025 * (1 + 1e-9)
        assert math.exp(-(algorithm.tau_bound + 1) / algorithm.tau.scale) <= 0.0125 * (1 + 1e-9)
        law = algorithm.mu(0)
        exceeded = math.exp(-(algorithm.mu_bounds(steps[:1], 0)[0] + 1) / law.scale)
        assert exceeded <= math.exp(-algorithm._test_logs(steps[:1])[0]) * (1 + 1e-9)

    def test_hits_without_an_end_cost_what_the_last_of_their_block_does(self):
        """Blocks are the numbers with equal three leading binary digits."""
        algorithm = GapChanges(epsilon=1.0, beta=0.05, horizon=None, max_updates=None)
        costs = np.array([1 / algorithm.mu(number).scale for number in range(64)])
        last = [
            *range(8),
            *(n | 1 for n in range(8, 16)),
            *(n | 3 for n in range(16, 32)),
            *(n | 7 for n in range(32, 64)),
        ]
        series = np.array([series_share(number + 1) for number in last])
        assert costs / costs[0] == pytest.approx(series / series[0], rel=1e-9)
        assert costs[0] == pytest.approx((1 - 1 / algorithm.tau.scale) * series[0], rel=1e-9)

    @given(scale=st.floats(0.01, 1e6), log=st.floats(0.01, 80))
    def test_tails(self, scale, log):
        bound = float(tail(scale, np.array(log)))
        assert (bound + 1) / scale >= log * (1 - 1e-12)
        assert bound == 0 or bound / scale < log

    @pytest.mark.parametrize("updates", [1, 2, 3, 10, 99, 1000, 12345])
    def test_rounds_suffice_for_the_updates(self, updates):
        """Every hit takes `slack` updates, so that one more than all hits would take more than there are."""
        algorithm = GapChanges(epsilon=1.0, beta=0.05, horizon=1000, max_updates=updates)
        slack = algorithm.slack(np.array([1]), 0)[0]
        assert (algorithm.rounds + 1) * slack > updates
        assert (updates - algorithm.rounds * slack) < slack

    def test_the_number_of_rounds_is_the_best(self):
        chosen = GapChanges(epsilon=1.0, beta=0.05, horizon=1000, max_updates=50_000)
        others = []
        for rounds in range(1, 200):
            other = GapChanges(epsilon=1.0, beta=0.05, horizon=1000, max_updates=50_000)
            object.__setattr__(other, "rounds", rounds)
            others.append(other.error(1000, None))
        assert chosen.error(1000, None) <= 1.005 * min(others)


def slow_paper_changes(mechanism, changes, noise):
    """Algorithms 6 and 7 as printed, errata apart, with noise of our labels."""
    epsilon, beta = mechanism.epsilon, mechanism.beta / 2
    source = noise.derive("set cardinality", mechanism.parameters)

    def share(t):
        return beta / mechanism.horizon if mechanism.horizon else 6 * beta / (math.pi**2 * t**2)

    def instances():
        for j in itertools.count(1):
            budget = epsilon if mechanism.max_updates else 6 * epsilon / (math.pi**2 * j**2)
            updates = mechanism.max_updates or 2 ** (j - 1)
            yield budget / 2, 1 + math.floor(math.sqrt(updates * budget / (16 * math.log(2 / share(1)))))
            if mechanism.max_updates:
                return

    def draw(name, factor, labels):
        return int(node_law(epsilon_1, 0.0, factor * S).draw(source.derive(name), labels)[0])

    runs, size, done, out, published = instances(), 0, 0, None, []
    epsilon_1, S = next(runs)
    count = 0
    for t, change in enumerate(changes.tolist(), start=1):
        size += change
        hit = out is None
        if not hit and epsilon_1:
            mu = draw("mu", 4, source.bind(np.array([t], np.uint64), np.array([size])))
            tau = draw("tau", 2, np.array([done], np.uint64))
            hit = abs(out - size) + mu > 24 * S / epsilon_1 * math.log(2 / share(t)) + tau
        if hit:
            if count == S:
                epsilon_1, S = next(runs, (0, 0))
                count = 0
            if epsilon_1:
                out = size + draw("nu", 1, source.bind(np.array([done], np.uint64), np.array([size])))
                count, done = count + 1, done + 1
        published.append(out)
    return np.maximum(published, 0), done


class TestPaper:
    @pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("paper")])
    @some_quick("seed", range(2), 0)
    @pytest.mark.slow
    def test_against_the_listings(self, name, seed):
        mechanism, changes = make(name, epsilon=10.0), comings_and_goings(2500, seed, size=2000)
        state, published = run(mechanism, changes, seed)
        slow, rounds = slow_paper_changes(mechanism, changes, SeededNoise(seed))
        assert rounds == state.round > 3
        assert np.array_equal(published.estimates, slow)

    def test_the_number_of_estimates(self):
        """S^2 > K epsilon / (16 ln(2 T / beta')), so that S alpha > K."""
        for updates in (1, 10, 10**4, 10**7):
            algorithm = HenzingerSricharanSteinerChanges(epsilon=1.0, beta=0.1, horizon=1000, max_updates=updates)
            log = math.log(2 * 1000 / 0.05)
            alpha = 16 * algorithm.rounds * log
            assert algorithm.rounds * alpha > updates
            assert algorithm.error(1000, None) == math.ceil(4 * alpha + 1)

    def test_instances_halve_no_budget(self):
        algorithm = HenzingerSricharanSteinerChanges(epsilon=1.0, beta=0.05, horizon=1000, max_updates=None)
        epsilons = [algorithm._of_doubling(j).epsilon for j in range(1, 1000)]
        assert 0.999 < math.fsum(epsilons) < 1
        assert algorithm.instance(0) == algorithm._of_doubling(1)
        starts = np.cumsum([algorithm._of_doubling(j).changes for j in range(1, 15)])
        for j, start in enumerate(starts.tolist(), start=2):
            assert algorithm.instance(start - 1) == algorithm._of_doubling(j - 1)
            assert algorithm.instance(start) == algorithm._of_doubling(j)

    def test_what_rounding_spoils_is_refused(self):
        with pytest.raises(ValueError, match="epsilon must be <="):
            SetCardinality(epsilon=300.0, horizon=100, max_updates=100, mode="paper")

    def test_an_epsilon_that_leaves_no_noise_is_refused(self):
        with pytest.raises(ValueError, match=r"^epsilon must be in \[1e-09, 1e\+09\], got "):
            SetCardinality(epsilon=2.0**70, horizon=100)


class TestAccuracy:
    @EACH
    @some_quick("epsilon", [0.5, 8.0], 8.0)
    def test_bounds_hold_jointly(self, name, epsilon):
        """Of 30 runs, with beta = 0.05, at least so many keep all bounds that a false alarm is rarer than 1e-9."""
        changes = comings_and_goings(600, 11, size=60)
        sizes = np.cumsum(changes)
        kept = 0
        for seed in range(30):
            _, published = run(make(name, epsilon=epsilon, beta=0.05), changes, seed)
            kept += bool(np.all(np.abs(published.estimates - sizes) <= published.error_bounds))
        assert np.abs(changes).sum() <= 20_000
        assert kept >= stats.binom.ppf(1e-9, 30, 0.95)

    @EACH
    def test_bounds_are_what_error_says(self, name):
        mechanism, changes = make(name), comings_and_goings(600, 12, size=60)
        _, published = run(mechanism, changes)
        updates = int(np.abs(changes).sum())
        assert published.error_bounds[-1] <= mechanism.error(600, updates)
        assert mechanism.error(600, updates) <= mechanism.error(601, 10 * updates)

    @pytest.mark.parametrize(("horizon", "laplace"), [(1, True), (4, True), (30, False)])
    def test_direct_noise_with_delta_is_the_smaller_one_and_has_a_label_of_its_own(self, horizon, laplace):
        base = {"epsilon": 1.0, "horizon": horizon, "mode": "direct", "neighbouring": "replace_one"}
        pure, noisy = (SetCardinality(**base, delta=d) for d in (0.0, 1e-6))
        assert isinstance(noisy.algorithm.law, DiscreteLaplace) is laplace
        assert noisy.error(horizon) <= pure.error(horizon)
        if laplace:
            assert noisy.algorithm.law == pure.algorithm.law
            source, sizes = SeededNoise(1).derive("laplace"), np.full(horizon, 10**6)
            labels = source.bind(np.arange(1, horizon + 1, dtype=np.uint64), sizes)
            published = noisy.algorithm.run(noisy.initial_state(), sizes, SeededNoise(1))[1].estimates - sizes
            assert published.tolist() == noisy.algorithm.law.draw(source, labels).tolist()

    @pytest.mark.parametrize("noise", [0.7, 1.0])
    def test_direct_noise_has_its_law_and_no_other(self, noise):
        mechanism = SetCardinality(epsilon=2.0, horizon=4000, mode="direct")
        changes = np.zeros(4000, np.int64)
        changes[0] = 10**7
        left = run(mechanism, changes)[1].estimates - 10**7
        law = node_law(2.0 / noise, 0.0, 4000)
        edges = np.array([-4000, -2000, -1000, -300, 300, 1000, 2000, 4000])
        below = np.array([law.pmf(np.arange(edge - 60_000, edge)).sum() for edge in edges])
        observed = np.histogram(left, [-np.inf, *edges, np.inf])[0]
        p = stats.chisquare(observed, 4000 * np.diff([0, *below, 1])).pvalue
        assert (p > FALSE_ALARM) == (noise == 1.0)

    def test_fresh_noise_at_every_step(self):
        mechanism = SetCardinality(epsilon=1.0, horizon=2000, mode="direct")
        left = run(mechanism, np.eye(1, 2000, dtype=int)[0] * 10**6)[1].estimates - 10**6
        assert abs(np.corrcoef(left[1:], left[:-1])[0, 1]) < 0.16

    @pytest.mark.parametrize(
        ("options", "counter", "moves"),
        [
            ({"unit": "event", "horizon": 100}, KaryTreeCounter, 1),
            ({"unit": "event", "horizon": 100, "neighbouring": "replace_one"}, KaryTreeCounter, 2),
            ({"unit": "event"}, UnknownHorizonCounter, 1),
            ({"visits_per_person": 3, "mode": "counter"}, UnknownHorizonCounter, 3),
            ({"visits_per_person": 3, "mode": "counter", "neighbouring": "replace_one"}, UnknownHorizonCounter, 6),
        ],
    )
    def test_counters_have_noise_for_both_ends_of_a_stay(self, options, counter, moves):
        used = SetCardinality(epsilon=1.0, **options).algorithm.counter
        assert type(used) is counter
        epoch = used if counter is KaryTreeCounter else used.epoch(0)
        assert epoch.law.scale == pytest.approx(2 * moves * epoch.height, rel=1e-9)

    def test_auto_is_the_least_of_the_predicted_errors(self):
        chosen = {}
        for options in (
            {"horizon": 24, "max_updates": 10**5},
            {"horizon": 10_000, "max_updates": 10**5},
            {"horizon": 10_000, "max_updates": 10**5, "visits_per_person": 2},
            {"horizon": 10_000, "max_updates": 10**7, "delta": 1e-6},
            {"unit": "event"},
            {},
        ):
            mechanism = SetCardinality(epsilon=1.0, **options)
            step = mechanism.horizon or 10**6
            errors = [dataclasses.replace(mechanism, mode=mode).error(step) for mode in mechanism.modes]
            assert mechanism.error(step) == min(errors)
            chosen[str(options)] = mechanism.chosen_mode
        assert list(chosen.values()) == ["direct", "sparse", "counter", "direct", "counter", "sparse"]

    def test_replacing_and_streams_cost_their_share(self):
        base = {"horizon": 1000, "max_updates": 10**4, "mode": "sparse"}
        assert (
            SetCardinality(epsilon=2.0, neighbouring="replace_one", **base).algorithm
            == SetCardinality(epsilon=2.0, streams_per_person=2, **base).algorithm
            == SetCardinality(epsilon=1.0, **base).algorithm
        )

    @pytest.mark.parametrize(
        ("mode", "cost"),
        [
            ("direct", lambda algorithm: algorithm.horizon / algorithm.law.scale),
            ("paper", lambda algorithm: algorithm.instance(0).epsilon),
            ("sparse", lambda a: 1 / a.tau.scale + sum(1 / a.mu(number).scale for number in range(a.rounds))),
        ],
    )
    @pytest.mark.parametrize(
        ("streams", "each", "changed"), [(1, 1, 1), (2, 1, 2), (9, 1, 2), (3, 2, 3), (9, 2, 4), (None, 2, 4)]
    )
    def test_who_is_replaced_may_have_been_in_other_streams(self, mode, cost, streams, each, changed):
        """One leaves `each` streams, and the other enters as many: where these differ, each is one more or less."""
        base = {"epsilon": 1.0, "horizon": 100, "max_updates": 10**4, "mode": mode, "neighbouring": "replace_one"}
        one_stream = cost(SetCardinality(**base, streams=streams, streams_per_person=each).algorithm)
        assert changed * one_stream <= 1 + 1e-9
        assert changed * one_stream > (0.5 if mode == "sparse" else 1) - 1e-9  # where both were, sparse costs twice

    def test_direct_gaussian_noise_is_for_all_streams_of_a_person_together_and_for_no_stream_fewer(self):
        base = {"epsilon": 1.0, "delta": 1e-6, "horizon": 100, "mode": "direct", "neighbouring": "replace_one"}
        together = SetCardinality(**base, streams_per_person=3, streams=9).algorithm
        shift = largest_shift(1.0, 1e-6)
        assert math.sqrt(100 * 6) / together.law.sigma <= shift < math.sqrt(100 * 7) / together.law.sigma
        alone = SetCardinality(**base | {"epsilon": 1 / 6, "delta": 1e-6 / 6}).algorithm
        assert together.law.sigma < 1.1 * alone.law.sigma / math.sqrt(6)

    @pytest.mark.parametrize("neighbouring", ["add_remove", "replace_one"])
    def test_visits_cost_their_root_with_gaussian_noise(self, neighbouring):
        base = {"epsilon": 1.0, "delta": 1e-6, "horizon": 100, "mode": "counter", "neighbouring": neighbouring}
        one, many = (SetCardinality(**base, visits_per_person=visits).error(100) for visits in (1, 16))
        assert 3.8 < many / one < 4.2
        pure = [SetCardinality(**base | {"delta": 0.0}, visits_per_person=visits).error(100) for visits in (1, 16)]
        assert pure[1] > 12 * pure[0]  # each visit counts in full

    def test_noise_for_several_streams_has_a_label_of_its_own(self):
        base = {"epsilon": 1.0, "delta": 1e-6, "horizon": 50, "mode": "direct", "neighbouring": "replace_one"}
        together = SetCardinality(**base, streams=2, streams_per_person=2).algorithm
        source, sizes, state = SeededNoise(1), np.full(50, 10**6), SetCardinality(epsilon=1.0).initial_state()
        drawn = source.derive("streams together", 2)
        labels = drawn.bind(np.arange(1, 51, dtype=np.uint64), sizes)
        published = together.run(state, sizes, source)[1].estimates - sizes
        assert published.tolist() == together.law.draw(drawn, labels).tolist()

    @pytest.mark.parametrize("neighbouring", ["add_remove", "replace_one"])
    @pytest.mark.parametrize("options", [{"horizon": 300}, {}], ids=["known horizon", "unknown horizon"])
    def test_counters_with_a_delta_pay_for_all_streams_together(self, options, neighbouring):
        """The variance of three streams is three times that of one, not nine times and more."""
        base = {"epsilon": 1.0, "delta": 1e-6, "mode": "counter", "visits_per_person": 4, "neighbouring": neighbouring}
        one, three = (SetCardinality(**base, **options, streams_per_person=many) for many in (1, 3))
        variances = [made.algorithm.counter.variance(300) for made in (one, three)]
        assert variances[1] == pytest.approx(3 * variances[0], rel=0.01)
        assert three.guarantee.known_curve == one.guarantee.known_curve  # of all streams of a person

    @pytest.mark.parametrize(
        ("streams", "horizon", "visits", "error"), [(2, 24, 1, 52), (2, 1000, 4, 217), (5, 1000, 4, 343), (3, 4, 1, 36)]
    )
    def test_figures_of_counters(self, streams, horizon, visits, error):
        base = {"epsilon": 1.0, "delta": 1e-6, "mode": "counter", "horizon": horizon, "visits_per_person": visits}
        made = SetCardinality(**base, streams_per_person=streams)
        assert made.error(horizon) == error
        shown = dataclasses.replace(made, mode="auto", max_updates=1 << 30)
        assert shown.error(horizon) <= error

    def test_pure_counters_of_several_streams_divide_epsilon_as_they_did(self):
        base = {"horizon": 100, "mode": "counter", "visits_per_person": 2}
        parts = SetCardinality(epsilon=1.5, streams_per_person=3, **base).algorithm
        assert parts == SetCardinality(epsilon=0.5, **base).algorithm

    def test_states_of_counters_with_a_part_of_the_budget_each_are_refused(self):
        base = {"epsilon": 1.0, "delta": 1e-6, "horizon": 500, "mode": "counter", "visits_per_person": 3}
        made = SetCardinality(**base, streams_per_person=2)
        state, _ = made.step(made.initial_state(), 100, SeededNoise(1))
        earlier = pack_state("set cardinality state for several rows", made.parameters, made._fields(state))
        with pytest.raises(SnapshotError):
            made.restore(earlier)
        assert made.restore(made.snapshot(state)).shown == state.shown

    def test_streams_hold_those_of_a_person(self):
        with pytest.raises(ValueError, match="streams must be >= streams_per_person 3, got 2"):
            SetCardinality(epsilon=1.0, streams=2, streams_per_person=3)


class TestNoiseInCommon:
    """Noise with delta > 0, a part of which is in all sizes of a stream: docs/proofs/cardinality.md, Theorem 3."""

    BASE: ClassVar = {"epsilon": 1.0, "delta": 1e-6, "mode": "direct"}

    @pytest.mark.parametrize("streams", [1, 2])
    def test_no_person_is_seen_by_more_than_the_shift(self, streams):
        """Every person, in so many streams of five windows, by the inverse of the whole matrix."""
        law = SetCardinality(**self.BASE, horizon=5, streams_per_person=streams).algorithm.law
        own, common = law.variances
        inverse = np.linalg.inv(np.kron(np.eye(streams), own * np.eye(5) + common))
        people = (np.array(v, float) for v in itertools.product((0, 1), repeat=5 * streams))
        worst = max(person @ inverse @ person for person in people)
        assert 0.95 * largest_shift(1.0, 1e-6) ** 2 < worst <= largest_shift(1.0, 1e-6) ** 2

    @pytest.mark.parametrize(
        ("horizon", "streams", "error", "apart"),
        [(7, 1, 21, 30), (30, 1, 43, 73), (365, 1, 162, 308), (24, 3, 66, 110)],
    )
    def test_figures(self, horizon, streams, error, apart):
        assert SetCardinality(**self.BASE, horizon=horizon, streams_per_person=streams).error(horizon) == error
        replaced = {"neighbouring": "replace_one", "streams": streams, "streams_per_person": streams}
        assert SetCardinality(**self.BASE, horizon=horizon, **replaced).error(horizon) == apart

    @pytest.mark.parametrize(
        ("changes", "shared"),
        [
            ({}, True),
            ({"streams_per_person": 3}, True),
            ({"delta": 0.0}, False),
            ({"neighbouring": "replace_one"}, False),
            ({"horizon": 2}, False),  # Laplace noise is smaller
            ({"horizon": 1}, False),
            ({"epsilon": 1000.0}, False),  # the grid would be too coarse
        ],
    )
    def test_where_it_is_taken(self, changes, shared):
        made = SetCardinality(**self.BASE | {"horizon": 30} | changes)
        assert isinstance(made.algorithm.law, SharedCounts) is shared
        state = made.snapshot(made.initial_state())
        assert (b"noise in common" in state) is shared
        former = pack_state("set cardinality state", made.parameters, made._fields(made.initial_state()))
        if shared:  # earlier commits had independent noise, which must not go on with this one
            with pytest.raises(SnapshotError, match="kind must be 'set cardinality state with noise in common'"):
                made.restore(former)
        else:
            assert made.restore(former).step == 0

    def test_one_part_is_the_same_in_all_steps_and_another_one_in_each_stream(self):
        made = SetCardinality(**self.BASE, horizon=50)
        own, common = made.algorithm.law.variances
        changes = np.eye(1, 50, dtype=int)[0] * 10**6
        runs = np.array([run(made, changes, seed)[1].estimates for seed in range(400)]) - 10**6
        error = 6.5 * math.sqrt(2 / 400)
        for number, variance in ((1, own + common), (50, own / 50 + common)):
            ratio = runs[:, :number].mean(axis=1).var() / variance
            assert abs(ratio - 1) < error
            assert abs(1.3**2 * ratio - 1) > error
        assert abs(np.corrcoef(runs[:-1].mean(axis=1), runs[1:].mean(axis=1))[0, 1]) < 0.33  # of another source

    def test_the_guess_of_auto_is_made_with_it(self):
        base = {"epsilon": 1.0, "delta": 1e-6, "horizon": 365, "max_updates": 5000}
        one, other = (SetCardinality(**base, neighbouring=name) for name in ("add_remove", "replace_one"))
        assert one.chosen_mode == "direct"
        assert one.error(365) == 162 < other.error(365)


class TestUsedUp:
    """More updates than the public guess: the estimate stays, the flag goes up, nothing is spent."""

    @pytest.mark.parametrize("mode", ["sparse", "paper"])
    def test_the_last_value_is_published_for_ever(self, mode):
        mechanism = SetCardinality(epsilon=1.0, horizon=4000, max_updates=500, mode=mode)
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
        after, more = mechanism.run(restored, [10**9], SeededNoise(2))
        assert more.exhausted.tolist() == [True]
        assert more.estimates[0] == published.estimates[-1]
        assert after.size == state.size + 10**9

    @some_quick("name", [name for name in VARIANTS if "unknown K" in name])
    def test_without_a_guess_changes_never_end(self, name):
        jumps = np.where(np.arange(150) % 2, -(10**9), 10**9)
        state, published = run(make(name), jumps)
        assert not published.exhausted.any()
        assert state.round > 100
        assert np.all(np.diff(published.error_bounds) >= 0)

    def test_the_flag_is_no_secret(self):
        """It is a function of the estimates: up after the last of so many changes."""
        mechanism = SetCardinality(epsilon=1.0, horizon=1000, max_updates=5000, mode="sparse")
        _, published = run(mechanism, np.where(np.arange(1000) % 2, -(10**6), 10**6))
        moves = np.cumsum(np.diff(published.estimates, prepend=0) != 0)
        assert np.array_equal(published.exhausted, moves >= mechanism.algorithm.rounds)

    @EACH
    def test_the_horizon_ends_the_run(self, name):
        mechanism = make(name)
        if mechanism.horizon is None:
            pytest.skip("no horizon")
        state, _ = run(mechanism, np.zeros(3000, np.int64))
        with pytest.raises(HorizonExceeded, match="step must be <= horizon 3000, got 3001"):
            mechanism.step(state, 0, SeededNoise(1))
        with pytest.raises(HorizonExceeded, match="step must be <= horizon 3000, got 3001"):
            mechanism.error(3001)


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"unit": "device"}, "unit must be one of user, event, got 'device'"),
            ({"mode": "best"}, "mode must be one of auto, sparse, direct, counter, paper, got 'best'"),
            ({"horizon": 2**41}, "horizon must be <= 1099511627776, got 2199023255552"),
            ({"unit": "event", "max_updates": 5}, "max_updates must not be given with unit event"),
            ({"unit": "event", "visits_per_person": 5}, "visits_per_person must not be given with unit event"),
            ({"unit": "event", "mode": "sparse"}, "mode must be auto or counter with unit event, got 'sparse'"),
            ({"unit": "event", "streams_per_person": 3}, "streams_per_person must be 1 with unit event, got 3"),
            ({"mode": "counter"}, "visits_per_person must be given in mode counter with unit user"),
            ({"mode": "direct"}, "horizon must be given in mode direct"),
        ],
    )
    def test_parameters(self, options, message):
        with pytest.raises(ValueError, match=f"^{message}$"):
            SetCardinality(epsilon=1.0, **options)

    @pytest.mark.parametrize(
        ("changes", "error", "message"),
        [
            ([[1]], ValueError, r"changes must have shape \(n,\)"),
            ([0.5], TypeError, "changes must be integers, got float64"),
            ([math.nan], TypeError, "changes must be integers, got float64"),
            ([True], TypeError, "changes must be integers, got bool"),
            ([2**41], ValueError, r"changes must be between -2\*\*40 and 2\*\*40"),
            ([3, -4], ValueError, r"changes must keep the number of people between 0 and 2\*\*40"),
            ([2**40, 2**40], ValueError, r"changes must keep the number of people between 0 and 2\*\*40"),
        ],
    )
    def test_changes(self, changes, error, message):
        with pytest.raises(error, match=message):
            run(SetCardinality(epsilon=1.0), changes)

    def test_snapshots_of_other_parameters(self):
        one, other = make("sparse"), make("sparse", epsilon=3.0)
        with pytest.raises(SnapshotError, match="snapshot must be made by a mechanism with equal parameters"):
            other.restore(one.snapshot(one.initial_state()))

    @pytest.mark.parametrize("delta", [0.0, 1e-6])
    def test_snapshots_of_other_counters(self, delta):
        """As earlier commits wrote them: with the sums of their noise, which is on a finer grid, it would be seen."""
        made = SetCardinality(epsilon=1.0, delta=delta, horizon=24, unit="event")
        assert isinstance(made.algorithm.counter, WideTreeCounter)
        assert made.restore(made.snapshot(made.initial_state())).step == 0
        budget = {"epsilon": 1.0, "horizon": 24, "neighbouring": "replace_one", "rows_per_unit": 1}
        former = BufferedToeplitzCounter(delta=delta, **budget) if delta else KaryTreeCounter(**budget)
        state = dataclasses.replace(made.initial_state(), memory=former.initial_state().memory)
        data = pack_state("set cardinality state", made.parameters, made._fields(state))
        with pytest.raises(SnapshotError, match="snapshot kind must be 'set cardinality state of a wide tree'"):
            made.restore(data)


class TestGuarantee:
    def test_says_what_a_person_may_do(self):
        paragraph = SetCardinality(epsilon=1.0).guarantee.paragraph()
        assert "one person over the whole run" in paragraph
        assert "as often as they like" in paragraph
        counted = SetCardinality(epsilon=1.0, mode="counter", visits_per_person=3, streams_per_person=2).guarantee
        assert counted.limits == (
            "A person enters the set at most 3 times.",
            "A person takes part in at most 2 streams.",
        )
        assert SetCardinality(epsilon=1.0, unit="event").guarantee.unit == EVENT

    def test_unused_visits_are_no_condition(self):
        mechanism = SetCardinality(epsilon=1.0, horizon=5, visits_per_person=1000, max_updates=100)
        assert mechanism.chosen_mode != "counter"
        assert "at most" not in mechanism.guarantee.paragraph().replace("It holds for at most", "")

    def test_geometric_noise_of_a_round_is_what_it_costs(self):
        assert Geometric(3.0).pmf(np.arange(5))[1:] / Geometric(3.0).pmf(np.arange(5))[:-1] == pytest.approx(
            [math.exp(-1 / 3)] * 4
        )


class TestCurve:
    """What a run promises beside its epsilon and delta."""

    @pytest.mark.parametrize("neighbouring", ["add_remove", "replace_one"])
    @pytest.mark.parametrize("streams", [1, 3])
    @pytest.mark.parametrize(
        "options",
        [
            {"horizon": 30, "mode": "direct"},
            {"horizon": 3000, "mode": "direct"},
            {"horizon": 3000, "mode": "counter", "visits_per_person": 5},
            {"mode": "counter", "visits_per_person": 5},
        ],
    )
    def test_noise_that_is_gaussian_has_its_whole_curve(self, options, streams, neighbouring):
        made = SetCardinality(epsilon=1.0, delta=1e-6, streams_per_person=streams, neighbouring=neighbouring, **options)
        curve = made.guarantee.curve
        assert isinstance(curve, GaussianCurve)
        assert curve.delta(1.0) <= 1e-6
        assert curve.shift == largest_shift(1.0, 1e-6)

    def test_noise_of_sizes_is_what_the_curve_says(self):
        """The shift of somebody who is in all sizes of three streams, in deviations: independent noise."""
        made = SetCardinality(
            epsilon=1.0,
            delta=1e-6,
            horizon=100,
            mode="direct",
            streams_per_person=3,
            neighbouring="replace_one",
            streams=3,
        )
        moved = math.sqrt(3 * 100 / made.algorithm.law.variance)
        assert 0.98 * made.curve.shift < moved <= made.curve.shift

    @pytest.mark.parametrize("mode", ["sparse", "paper", "direct"])
    def test_what_spends_no_delta_promises_none(self, mode):
        made = SetCardinality(epsilon=1.0, delta=1e-6, horizon=2, mode=mode, max_updates=100)
        assert made.guarantee.curve == PureDp(1.0)
        assert made.guarantee.known_curve.epsilon(1e-6) <= 1.0

    def test_an_event_has_the_curve_of_its_counter(self):
        made = SetCardinality(epsilon=1.0, delta=1e-6, horizon=3000, unit="event")
        assert made.algorithm.counter.curve == GaussianCurve(shift=largest_shift(1.0, 1e-6))
        assert made.curve.shift == pytest.approx(made.algorithm.counter.curve.shift, rel=1e-9)


def quiet_and_not(steps, shape):
    """Return sizes that lie still, move slowly, jump, or go up and down in turn."""
    at = np.arange(steps)
    return {
        "quiet": np.full(steps, 1500),
        "slow": 1500 + at,
        "jump": np.where(at < steps // 2, 500, 1500),
        "empty": np.zeros(steps, np.int64),
        "in turn": np.where(at % 2 == 0, 1450, 1550),
    }[shape]


GAINS = {"quiet": 2.0, "slow": 1.7, "jump": 1.7, "empty": 2.0, "in turn": 0.9}
CASES = [(delta, shape, better) for delta in (1e-6, 0.0) for shape, better in GAINS.items()]
RUNS = 300
"""Of each shape: noise in common is one draw for a run, so that so few say that 95% are held."""


class TestSmoothed:
    @some_quick("case", CASES, CASES[0], CASES[-1])
    def test_sizes_of_all_steps_together_are_nearer_and_in_their_intervals(self, case):
        """Noise has deviations of 30 and 240, which some sets move by in turn: these gain nothing, and are held."""
        delta, shape, better = case
        mechanism = SetCardinality(epsilon=1.0, delta=delta, horizon=168, mode="direct")
        sizes = (quiet_and_not(168, shape) * (1 if delta else 8))[:, None]
        draw = np.random.default_rng(5)
        own, common = mechanism.algorithm.stddevs
        noise = draw.normal(0, own, (168, RUNS)) if common else draw.laplace(0, own / math.sqrt(2), (168, RUNS))
        noise += common * draw.normal(size=RUNS)
        found = mechanism.smooth(sizes + noise)
        assert np.all((found.lower >= 0) & (found.lower <= found.estimates) & (found.estimates <= found.upper))
        assert np.mean((found.lower <= sizes) & (sizes <= found.upper)) > 0.9
        assert better * np.std(found.estimates - sizes) < np.std(noise)

    def test_an_estimate_that_differs_is_in_its_interval(self):
        mechanism = make("direct, delta", epsilon=1.0, horizon=40)
        own, common = mechanism.algorithm.stddevs
        assert 0 < common < own and math.hypot(own, common) == pytest.approx(mechanism.algorithm.law.stddev())
        sizes = np.full((40, 2), 5000.0)
        sizes[20, 0] += 2 * own
        found = mechanism.smooth(sizes)
        assert found.upper[20, 0] > sizes[20, 0] + own > found.upper[20, 1] + own
        assert np.all(found.upper - found.estimates >= 1.95 * common), "what all have in common does not become smaller"
        assert mechanism.smooth([[-30.0]]).lower.tolist() == [[0.0]]

    def test_signed_estimates_are_the_published_ones(self):
        mechanism, changes = make("direct", epsilon=0.05), comings_and_goings(200, 5, size=1)
        _, signed = mechanism.run(mechanism.initial_state(), changes, SeededNoise(1), signed=True)
        assert signed.estimates.min() < 0
        assert np.array_equal(np.maximum(signed.estimates, 0), run(mechanism, changes)[1].estimates)

    def test_refusals(self):
        assert [name for name in VARIANTS if make(name).smooths] == ["direct", "direct, delta"]
        with pytest.raises(ValueError, match="mode must be direct where sizes are smoothed, got counter"):
            make("event").smooth([[1.0]])
        with pytest.raises(ValueError, match="values must be two-dimensional, got 1 dimensions"):
            make("direct").smooth([1.0])
        with pytest.raises(ValueError, match="values must have at least one window"):
            make("direct").smooth(np.zeros((0, 2)))
