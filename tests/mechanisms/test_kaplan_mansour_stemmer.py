import math

import numpy as np
import pytest
from privstream.mechanisms.monitor import kaplan_mansour_stemmer
from privstream.mechanisms.monitor.calibration import MonitorBudget
from privstream.mechanisms.monitor.kaplan_mansour_stemmer import KaplanMansourStemmerCalibration
from privstream.mechanisms.noise.sources import SeededNoise

MILLION, BILLION = 10**6, 10**9
# 10 Delta of Theorem 3.2, and detection thresholds at 1e6 and 1e9 tests; epsilon 1, delta 1e-6, beta 0.01.
TABLE = {
    1: (32_727, 1.21e6, 1.66e6),
    4: (49_487, 1.82e6, 2.51e6),
    16: (122_060, 4.50e6, 6.18e6),
    64: (449_509, 16.6e6, 22.8e6),
}


def budget(**changes):
    return MonitorBudget(**{"epsilon": 1.0, "delta": 1e-6, "max_hits": 4, "tests": MILLION, "beta": 0.01, **changes})


@pytest.mark.parametrize("hits", TABLE)
def test_scales_and_detection_thresholds_are_those_of_the_table(hits):
    scale, million, billion = TABLE[hits]
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


def test_drawn_thresholds_follow_the_hit_probability():
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


def test_items_of_one_person_stay_within_the_delta_of_the_domain():
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
