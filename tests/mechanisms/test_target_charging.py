"""Target charging, and the published calibrations of Kaplan, Mansour and Stemmer."""

import math

import numpy as np
import pytest
from privstream.mechanisms.monitor import kaplan_mansour_stemmer, target_charging
from privstream.mechanisms.monitor.calibration import MonitorBudget
from privstream.mechanisms.monitor.kaplan_mansour_stemmer import KaplanMansourStemmerCalibration
from privstream.mechanisms.monitor.target_charging import ResponseCurve
from privstream.mechanisms.noise.sources import SeededNoise

MILLION, BILLION = 10**6, 10**9
# Noise scale and detection thresholds at 1e6 and 1e9 tests; epsilon 1, delta 1e-6, beta 0.01.
TABLE = {1: (15.7, 582, 800), 4: (21.5, 794, 1092), 16: (33.2, 1224, 1684), 64: (56.9, 2098, 2884)}


def budget(**changes):
    return MonitorBudget(**{"epsilon": 1.0, "delta": 1e-6, "max_hits": 4, "tests": MILLION, "beta": 0.01, **changes})


def response_strings(rate, hits, length):
    """Probabilities of all outcomes of `hits` ends of rounds of randomised response, without and with the person."""
    low = 1 / (1 + math.exp(rate))
    final = []
    states = {(0, 0): (1.0, 1.0)}
    for _ in range(length):
        ahead = {}
        for (misses, done), (p, q) in states.items():
            for hit, x, y in ((1, low, 1 - low), (0, 1 - low, low)):
                if done + hit == hits:
                    final.append((p * x, q * y))
                    continue
                key = (misses + 1 - hit, done + hit)
                a, b = ahead.get(key, (0.0, 0.0))
                ahead[key] = (a + p * x, b + q * y)
        states = ahead
    return np.array(final + list(states.values()))


# Exact integer thresholds: one less than printed, since 2t - 1 people already suffice.
@pytest.mark.parametrize("hits", TABLE)
def test_scales_and_detection_thresholds_are_those_of_the_table(hits):
    scale, million, billion = TABLE[hits]
    found = [target_charging.calibrate(budget(max_hits=hits, tests=tests)) for tests in (MILLION, BILLION)]
    assert found[0].noise_scale == pytest.approx(scale, abs=0.051)
    assert abs(found[0].detection_threshold(MILLION, 0.01) - million) <= 1
    assert abs(found[1].detection_threshold(BILLION, 0.01) - billion) <= 1


@pytest.mark.parametrize("hits", [1, 3])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.5])
def test_curve_is_the_divergence_of_the_rounds_themselves(hits, epsilon):
    rate = 0.7
    without, within = response_strings(rate, hits, 80).T
    exact = [np.maximum(0, a - math.exp(epsilon) * b).sum() for a, b in ((within, without), (without, within))]
    found = ResponseCurve(epsilon_per_test=rate, hits=hits).one_way(np.array([epsilon]))
    assert [side[0] for side in found] == pytest.approx(exact, rel=1e-9, abs=1e-10)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0])
def test_replacing_is_the_divergence_of_forward_and_backward_rounds(epsilon):
    rate, hits = 0.4, 2
    without, within = response_strings(rate, hits, 80).T
    old, new = np.outer(within, without), np.outer(without, within)
    exact = np.maximum(0, old - math.exp(epsilon) * new).sum()
    found = ResponseCurve(epsilon_per_test=rate, hits=hits, neighbouring="replace_one").delta(epsilon)
    assert found == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("neighbouring", ["add_remove", "replace_one"])
@pytest.mark.parametrize("hits", [1, 16])
def test_delta_grows_with_the_rate_and_the_solver_uses_it_up(hits, neighbouring):
    curves = [
        ResponseCurve(epsilon_per_test=rate, hits=hits, neighbouring=neighbouring) for rate in np.geomspace(1e-3, 3, 99)
    ]
    assert np.all(np.diff([curve.delta(1.0) for curve in curves]) >= -1e-11)
    spent = target_charging.calibrate(budget(max_hits=hits, neighbouring=neighbouring)).hits_curve.delta(1.0)
    assert 1e-6 * (1 - 1e-6) < spent <= 1e-6


def test_loss_distribution_is_pessimistic_and_close():
    curve = ResponseCurve(epsilon_per_test=0.05, hits=4)
    pld = curve.to_pld(1e-3)
    for epsilon in (0.1, 0.5, 1.0):
        exact = curve.delta(epsilon)
        assert exact * (1 - 1e-6) - 1e-12 <= pld.get_delta_for_epsilon(epsilon) <= exact * 1.01 + 1e-11


@pytest.mark.parametrize("changes", [{}, {"domain": "unknown", "tests_per_person": 1000}])
def test_law_of_hidden_thresholds_is_the_hit_probability(changes):
    found = target_charging.calibrate(budget(max_hits=1, **changes))
    counts = np.arange(1, 700)
    absent = float(found.absent_hit_probability())
    assert absent == pytest.approx(float(found.hit_probability(0)), rel=1e-9)
    cdf = found.threshold_law().cdf(counts)
    assert 1 - (1 - absent) * (1 - cdf) == pytest.approx(found.hit_probability(counts), rel=1e-9, abs=1e-15)
    assert found.hit_probability(counts) + found.miss_probability(counts) == pytest.approx(1)


def test_tests_are_private_at_the_rate_of_the_noise():
    found = target_charging.calibrate(budget())
    hit, miss = found.hit_probability(np.arange(900)), found.miss_probability(np.arange(900))
    bound = math.exp(1 / found.noise_scale) * (1 + 1e-12)
    assert np.all(hit[1:] <= bound * hit[:-1])
    assert np.all(miss[:-1] <= bound * miss[1:])


def test_items_of_one_person_stay_within_the_delta_of_the_domain():
    bounded = target_charging.calibrate(budget(domain="unknown", tests_per_person=1000))
    assert (1 - float(bounded.hit_probability(1))) ** -1000 - 1 <= 5e-7
    assert (1 - float(bounded.hit_probability(2))) ** -1000 - 1 > 5e-7  # no larger threshold than needed
    rising = target_charging.calibrate(budget(domain="unknown"))
    assert rising.threshold_at(1) < rising.threshold_at(4) == rising.threshold_at(7)


def test_drawn_thresholds_follow_the_hit_probability():
    found = target_charging.calibrate(budget())
    drawn = found.draw_thresholds(SeededNoise(12), 100_000)
    assert drawn.min() >= 1
    for count in (360, 397, 430):
        # Hoeffding: false alarm below 2 exp(-2 n x^2) = 1e-10.
        assert abs(np.mean(drawn <= count) - float(found.hit_probability(count))) < math.sqrt(math.log(2e10) / 2e5)


# 10 Delta of Theorem 3.2, and detection thresholds at 1e6 and 1e9 tests; epsilon 1, delta 1e-6, beta 0.01.
PAPER_TABLE = {
    1: (32_727, 1.21e6, 1.66e6),
    4: (49_487, 1.82e6, 2.51e6),
    16: (122_060, 4.50e6, 6.18e6),
    64: (449_509, 16.6e6, 22.8e6),
}


@pytest.mark.parametrize("hits", PAPER_TABLE)
def test_scales_and_detection_thresholds_of_the_paper_are_those_of_the_table(hits):
    scale, million, billion = PAPER_TABLE[hits]
    found = [kaplan_mansour_stemmer.calibrate(budget(max_hits=hits, tests=tests)) for tests in (MILLION, BILLION)]
    assert found[0].noise_scale == pytest.approx(scale, abs=0.5)
    assert found[0].detection_threshold(MILLION, 0.01) == pytest.approx(million, rel=0.005)
    assert found[1].detection_threshold(BILLION, 0.01) == pytest.approx(billion, rel=0.005)


def test_theorem_3_8_is_used_when_it_is_better():
    def scale(hits):
        return kaplan_mansour_stemmer.calibrate(budget(max_hits=hits)).noise_scale

    assert scale(10**6) / scale(10**4) < 20  # linear growth would be a hundredfold


def test_probabilities_are_those_of_the_sum_of_both_noises():
    outer, inner = 14.0, 2.3
    found = KaplanMansourStemmerCalibration(budget=budget(tests=10), noise_scale=outer, inner_scale=inner, cut_off=3.2)
    v, w = np.arange(-400, 401), np.arange(-3000, 3001)
    p = np.outer(np.tanh(0.5 / outer) * np.exp(-abs(w) / outer), np.tanh(0.5 / inner) * np.exp(-abs(v) / inner))
    least = math.ceil(found.threshold) - np.add.outer(w, np.minimum(v, 4))
    counts = np.array([0, 5, 60, 90, 94, 95, 96, 97, 98, 99, 100, 140, 400])
    hit, miss = found.hit_probability(counts), found.miss_probability(counts)
    assert hit == pytest.approx([p[least <= count].sum() for count in counts], rel=1e-9)
    assert miss == pytest.approx([p[least > count].sum() for count in counts], rel=1e-9)


def test_drawn_thresholds_of_the_paper_follow_the_hit_probability():
    found = kaplan_mansour_stemmer.calibrate(budget())
    drawn = found.draw_thresholds(SeededNoise(13), 100_000)
    for share in (0.9, 1.0, 1.05):
        count = int(share * found.threshold)
        p = float(found.hit_probability(count))
        # Hoeffding: false alarm below 2 exp(-2 n x^2) = 1e-10.
        assert abs(np.mean(drawn <= count) - p) < math.sqrt(math.log(2e10) / 2e5)


def test_draws_below_one_are_drawn_again_or_raised():
    shared = {"noise_scale": 14.0, "inner_scale": 2.3, "cut_off": 3.2}
    known = KaplanMansourStemmerCalibration(budget=budget(tests=1, beta=0.9), **shared)
    drawn = known.draw_thresholds(SeededNoise(14), 20_000)
    absent = float(known.absent_hit_probability())
    assert absent > 0.2
    assert drawn.min() == 1
    count = int(known.threshold) + 10
    p = (float(known.hit_probability(count)) - absent) / (1 - absent)
    assert abs(np.mean(drawn <= count) - p) < math.sqrt(math.log(2e10) / 4e4)
    unknown = KaplanMansourStemmerCalibration(budget=budget(domain="unknown", tests_per_person=1), **shared)
    assert unknown.draw_thresholds(SeededNoise(14), 1000).min() >= 1
    assert unknown.hit_probability(0) == 0
    assert unknown.absent_hit_probability() == 0


def test_items_of_one_person_stay_within_the_delta_of_the_domain_in_the_paper():
    found = kaplan_mansour_stemmer.calibrate(budget(domain="unknown", tests_per_person=1000))
    allowed = -math.log1p(-5e-7) / 1000
    assert float(found.hit_probability(1)) <= allowed
    assert float(found.hit_probability(2)) > allowed * (1 - 1e-9)


def test_replacing_is_two_changes():
    found = kaplan_mansour_stemmer.calibrate(budget(neighbouring="replace_one"))
    half = kaplan_mansour_stemmer.calibrate(budget(epsilon=0.5, delta=1e-6 / (1 + math.exp(0.5))))
    assert found.noise_scale == pytest.approx(half.noise_scale, rel=1e-12)


def test_an_epsilon_too_large_for_the_proof_is_refused():
    with pytest.raises(ValueError, match=r"epsilon must be small enough for an inner noise scale >= 2, got 1\."):
        kaplan_mansour_stemmer.calibrate(budget(epsilon=400.0, max_hits=1))
