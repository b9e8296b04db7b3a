"""The threshold monitor and its counters of people: refusals, laws, what it must detect."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from item_streams import DOMAIN, check_frequencies, crowds, holdings, ids
from laws import FALSE_ALARM
from privstream.mechanisms.checks import HorizonExceeded
from privstream.mechanisms.mechanism import Charges, UserCounters
from privstream.mechanisms.monitor.calibration import MonitorBudget, calibrate, paper
from privstream.mechanisms.monitor.monitor import Holdings, ThresholdMonitor
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace
from privstream.mechanisms.noise.sources import SeededNoise
from scipy import stats

# Little noise and thresholds of a few people, so that small data has hits, misses and dropped people.
KNOWN = ThresholdMonitor(epsilon=8.0, delta=0.2, max_hits=3, domain_size=DOMAIN, tests=1, beta=0.9, items_per_step=3)
UNKNOWN = ThresholdMonitor(epsilon=8.0, delta=0.5, max_hits=3, horizon=6, first_step=0, items_per_step=3)
NOISY = dict(epsilon=1.0, delta=1e-3)


class TestRefusals:
    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            ([(1, 2, 0), (1, 2, 1)], "items must be distinct for each person"),
            ([(1, 2, 0), (1, 3, 0)], "ranks must be distinct for each person; a person without ranks has one item"),
            ([(1, 2, 3)], "ranks must be < items_per_step 3"),
            ([(1, 6, 0)], "items must be < 6, the number of public items"),
        ],
    )
    def test_holdings_that_break_the_bound(self, rows, message):
        with pytest.raises(ValueError, match=f"^{message}$"):
            KNOWN.step(KNOWN.initial_state(), holdings(0, rows), SeededNoise(1))

    def test_without_ranks_a_person_holds_one_item(self):
        two = Holdings(step=0, users=ids([1, 1]), items=ids([1, 2]))
        for monitor in (KNOWN, replace(KNOWN, items_per_step=1)):
            with pytest.raises(ValueError, match="ranks must be distinct"):
                monitor.step(monitor.initial_state(), two, SeededNoise(1))

    def test_steps_out_of_order(self):
        state, _ = UNKNOWN.step(UNKNOWN.initial_state(), holdings(2, []), SeededNoise(1))
        for step in (0, 1, 2):
            with pytest.raises(ValueError, match=f"step must be > the last step 2, got {step}"):
                UNKNOWN.step(state, holdings(step, []), SeededNoise(1))
            with pytest.raises(ValueError, match="step must be > the last step 2"):
                UNKNOWN.step(UNKNOWN.restore(UNKNOWN.snapshot(state)), holdings(step, []), SeededNoise(1))

    def test_horizon(self):
        monitor = replace(UNKNOWN, first_step=5)
        for step in (4, 11):
            with pytest.raises(HorizonExceeded, match=f"step must be >= 5 and < 11, got {step}"):
                monitor.step(monitor.initial_state(), holdings(step, []), SeededNoise(1))
        for step in (5, 10):
            monitor.step(monitor.initial_state(), holdings(step, []), SeededNoise(1))
        with pytest.raises(HorizonExceeded, match="step must be >= 5, got 4"):
            replace(KNOWN, first_step=5).step(KNOWN.initial_state(), holdings(4, []), SeededNoise(1))
        with pytest.raises(ValueError, match="horizon must be given without a public list of items"):
            replace(UNKNOWN, horizon=None)


def test_the_chances_of_a_lonely_person_add_up_to_half_of_delta_over_all_items_of_all_steps():
    alone = -math.expm1(-UNKNOWN.calibrated.hazard(1))
    assert 0.999 * UNKNOWN.delta / 2 < 1 - (1 - alone) ** (6 * 3) <= UNKNOWN.delta / 2 * (1 + 1e-9)


def test_noise_and_detection_thresholds_of_the_paper():
    """Epsilon 1, delta 1e-6, beta 0.01: from the exact ones on; those of clocks are in test_clock.py."""
    scales = {1: 32_727, 4: 49_487, 16: 122_060, 64: 449_509}
    thresholds = {1: (1.21e6, 1.66e6), 4: (1.82e6, 2.51e6), 16: (4.50e6, 6.18e6), 64: (16.6e6, 22.8e6)}
    shared = {"epsilon": 1.0, "delta": 1e-6, "beta": 0.01, "domain_size": 1000, "count_share": 0.0}
    for hits, scale in scales.items():
        for tests, expected in zip((10**6, 10**9), thresholds[hits], strict=True):
            made = ThresholdMonitor(**shared, max_hits=hits, tests=tests, calibration="paper")
            assert 0.995 * expected < made.detection_threshold < 1.03 * expected
            assert made.calibrated.noise_scale == pytest.approx(scale, rel=0.005)


def rejected(observed, probabilities):
    """Tell whether counts of outcomes contradict their probabilities (Pearson; every expected count is large)."""
    observed, expected = np.asarray(observed, float), np.sum(observed) * np.asarray(probabilities, float)
    assert expected.min() > 20
    statistic = np.sum((observed - expected) ** 2 / expected)
    return stats.chi2.sf(statistic, len(observed) - 1) < FALSE_ALARM


def hits_of_the_paper(calibrated, counts):
    """Return Pr[count + w + min(v, Delta) >= threshold] for each count."""
    v = np.arange(-math.ceil(45 * calibrated.inner_scale), math.ceil(45 * calibrated.inner_scale))
    needed = (calibrated.threshold - counts[:, None] - np.minimum(v, calibrated.cut_off)).astype(int)
    w = np.arange(needed.min(), max(needed.max(), math.ceil(45 * calibrated.noise_scale)) + 1)
    above = np.cumsum(DiscreteLaplace(calibrated.noise_scale).pmf(w)[::-1])[::-1]
    return above[needed - needed.min()] @ DiscreteLaplace(calibrated.inner_scale).pmf(v)


@pytest.mark.parametrize(("calibration", "known"), [("clock", True), ("clock", False), ("paper", True)])
def test_hit_frequencies(calibration, known):
    repeats = 3000
    monitor = replace(KNOWN if known else UNKNOWN, calibration=calibration, items_per_step=1, count_share=0.0)
    monitor = replace(monitor, tests=30, **(dict(epsilon=100.0, delta=0.9) if calibration == "paper" else NOISY))
    reach = np.arange(2000)
    found = monitor.calibrated
    stated = hits_of_the_paper(found, reach) if calibration == "paper" else -np.expm1(-found.hazard(reach))
    counts = np.searchsorted(stated, (0.1, 0.5, 0.8))
    if known:
        monitor = replace(monitor, domain_size=3 * repeats)
    given_step, held = crowds(counts, repeats)
    hits, *_ = monitor.decide(UserCounters(), given_step, SeededNoise(11))
    check_frequencies(hits.items, held, counts, repeats, stated)


def test_noisy_counts_have_the_law_of_the_discrete_gaussian():
    monitor = replace(UNKNOWN, items_per_step=1, epsilon=2.0)
    sigma, sure = monitor.calibrated.count_sigma, 60
    assert monitor.calibrated.miss_probability(sure) < 1e-12
    given_step, held = crowds(np.array([sure, sure + 7]), 10_000)
    hits, *_ = monitor.decide(UserCounters(), given_step, SeededNoise(14))
    noise = hits.counts - held[hits.items.astype(np.int64)]
    reach = math.ceil(2 * sigma)
    observed = np.bincount(np.clip(noise, -reach, reach) + reach, minlength=2 * reach + 1)
    for factor in (1, 1.3, 1 / 1.3):
        law = DiscreteGaussian(factor * sigma)
        inner = law.pmf(np.arange(-reach + 1, reach))
        tail = (1 - inner.sum()) / 2
        assert rejected(observed, [tail, *inner, tail]) == (factor != 1)
    assert np.std(noise) == pytest.approx(monitor.count_stddev, rel=0.05)


@pytest.mark.slow
def test_noise_of_counts_depends_on_the_count():
    """A replay of the same data repeats the answer; other data draws fresh noise, and exposes no exact difference."""
    monitor = replace(UNKNOWN, items_per_step=1, epsilon=2.0)
    differences = []
    for seed in range(300):
        results = []
        for count in (60, 60, 65):
            rows = Holdings(step=0, users=ids(range(count)), items=ids([9] * count))
            results.append(int(monitor.decide(UserCounters(), rows, SeededNoise(seed))[0].counts[0]))
        assert results[0] == results[1]
        differences.append(results[2] - results[0])
    assert len(set(differences)) > 10


people = st.integers(0, 2**64 - 1) | st.integers(0, 20)
mentions = st.lists(st.lists(people, max_size=30), max_size=30)


def added_up(steps):
    counters = UserCounters()
    for step in steps:
        counters = counters.add(Charges.of(ids(step)))
    return counters


@given(mentions)
def test_equals_a_plain_counter(steps):
    counters, plain = added_up(steps), Counter(person for step in steps for person in step)
    asked = [*plain, 0, 1, 2**64 - 1, *plain]
    assert counters.charged(ids(asked)).tolist() == [plain[person] for person in asked]
    compact = counters.compact()
    assert compact.keys.tolist() == sorted(plain)
    assert compact.values.tolist() == [plain[person] for person in sorted(plain)]


def test_counts_beyond_two_bytes_do_not_wrap_round():
    counters = UserCounters().add(Charges(ids([1, 2]), np.array([65_535, 5], np.uint16)))
    counters = counters.add(Charges.of(ids([1]))).add(Charges.of(ids([1])))
    assert counters.charged(ids([1, 2])).tolist() == [65_537, 5]
    merged = counters.add(Charges.of(ids([1, 2, 3])))
    assert len(merged.runs) == 1
    assert merged.charged(ids([1, 2, 3])).tolist() == [65_538, 6, 1]
    assert Charges.from_bytes(merged.compact().to_bytes()).values.tolist() == [65_538, 6, 1]
    assert Charges.of(np.full(70_000, 9, np.uint64)).values.tolist() == [70_000]


BUDGET = {"epsilon": 1.0, "max_hits": 4, "tests": 10**6, "beta": 0.01, "count_share": 0.25}


@pytest.mark.parametrize("calibrator", [calibrate, paper])
def test_hits_and_counts_together_use_up_the_budget_and_no_more(calibrator):
    unknown = {} if calibrator is paper else {"domain": "unknown", "tests_per_person": 100}
    found = calibrator(MonitorBudget(delta=1e-6, **unknown, **BUDGET))
    assert found.privacy_curve.delta(1.0) <= 1e-6
    assert found.privacy_curve.delta(0.98) > 1e-6
