"""Attacks on the status monitor by adversaries who choose up-tests and down-tests by what they have seen.

`transcripts` and `many_charges` reckon with the laws that the monitor states, without chance. `simulate` runs the
mechanism itself, with a suspect and two items of its own in each of many runs that one monitor decides at once.
"""

import math

import numpy as np
from laws import end_hazard

NEGLIGIBLE = 1e-14


def transcripts(calibrated, rule, *, tests, charges, free_ends=False):
    """Return the probabilities of all transcripts of so many tests in both worlds, shape (2, n).

    Args:
        rule: given the probabilities so far, the charges left of the life in world 0 and of that in world 1, both of
            shape (2, n), and the number of the test: whether each transcript goes on with an up-test, how many others
            have the item, and of which life the person is who has it in that world alone; shape (n,) each.
        charges: of either life at first.
        free_ends: down-tests charge nobody.
    """
    law, left, done = np.ones((2, 1)), np.array(charges)[:, None], []
    for number in range(tests):
        up, others, life = rule(law, left, number)
        there = (np.arange(2)[:, None] == life) & (np.take_along_axis(left, life[None], 0) > 0)
        counts = others + there
        ends = end_hazard(calibrated, counts)
        miss = np.where(up, calibrated.miss_probability(counts), np.exp(-ends))
        hit = np.where(up, -np.expm1(-calibrated.hazard(counts)), -np.expm1(-ends))
        charged = there & (up | (not free_ends))
        law, left = np.concatenate([law * miss, law * hit], axis=1), np.concatenate([left, left - charged], axis=1)
        over = (left <= 0).all(axis=0)
        done.append(law[:, over])
        goes_on = ~over & (law.max(axis=0) > NEGLIGIBLE)
        law, left = law[:, goes_on], left[:, goes_on]
    return np.concatenate([*done, law], axis=1)


def leaked(law, epsilon):
    """Return the larger of both divergences at epsilon."""
    return max(np.maximum(0, one - math.exp(epsilon) * other).sum() for one, other in (law, law[::-1]))


def small_tests(calibrated, cells):
    """Return how many others an item has whose tests move the likelihood ratio by about eta / `cells`: up, and down."""
    log = math.log(calibrated.eta / cells / math.expm1(calibrated.eta))
    up = max(0, round(calibrated.threshold + log / calibrated.eta))
    return up, max(0, round(calibrated.end_threshold - log / calibrated.eta) - 1)


def best_order(calibrated, epsilon, *, cells, against):
    """Return the rule that is proved to be the best, to tell world `against` from the other, 0 or 1.

    With less evidence than epsilon, tests that become evidence by misses; with more, the others.
    """
    up_others, down_others = small_tests(calibrated, cells)

    def rule(law, left, number):
        with np.errstate(divide="ignore"):
            evidence = np.log(law[against]) - np.log(law[1 - against])
        silence = evidence < epsilon  # a miss should be more likely in the world `against`
        life = np.where(left[0] > 0, 0, 1)
        up = silence == (life != against)
        return up, np.where(up, up_others, down_others), life

    return rule


def any_order(calibrated, seed):
    """Return a rule that decides by chance what each transcript goes on with, around the knees of both thresholds."""
    rng = np.random.default_rng(seed)
    knees = np.array([calibrated.end_threshold, calibrated.threshold])

    def rule(law, left, number):
        size = law.shape[1]
        up = rng.random(size) < 0.5
        others = np.maximum(0, np.rint(knees[up.astype(int)] + calibrated.noise_scale * rng.normal(0, 1.5, size)))
        return up, others.astype(np.int64), np.where(left[1] > 0, rng.integers(0, 2, size), 0)

    return rule
