"""Attacks on the status monitor by adversaries who choose up-tests and down-tests by what they have seen.

`transcripts` and `many_charges` reckon with the laws that the monitor states, without chance. `simulate` runs the
mechanism itself, with a suspect and two items of its own in each of many runs that one monitor decides at once.
"""

import math

import numpy as np
from monitor_attacks import coded, holdings
from privstream.mechanisms.monitor.holdings import UserCounters
from privstream.mechanisms.monitor.status_monitor import UpItems
from privstream.mechanisms.noise.sources import SeededNoise
from scipy import signal

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
        miss = np.where(up, calibrated.miss_probability(counts), calibrated.stay_probability(counts))
        hit = np.where(up, calibrated.hit_probability(counts), calibrated.end_probability(counts))
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


def many_charges(eta, charges, epsilon, cells):
    """Return the divergence that the best order reaches with many charges, by tests of hazards h and e^eta h.

    x = epsilon + step a - jump b is what evidence lacks, a the misses and b the hits, counted up and down. Far away
    the adversary rests: what is returned is never too large.
    """
    step, rate = eta / cells, math.exp(eta)
    slow, fast = step / (rate - 1), rate * step / (rate - 1)
    jump = math.log(math.expm1(-fast) / math.expm1(-slow))
    below, above = int(1.5 / step), int((epsilon + 2) / step)
    places = np.arange(-below, above)

    def origin(b):
        return math.ceil((jump * b - epsilon) / step)

    def lacking(b):
        return epsilon - jump * b + step * (origin(b) + places)

    def seen_from(values, b, target):
        """Return the values of `target` hits at the same numbers of misses as those of b."""
        shift = origin(b) - origin(target)
        moved = np.maximum(0, -np.expm1(lacking(b) + jump * (b - target)))
        low, high = max(0, -shift), min(len(places), len(places) - shift)
        moved[low:high] = values[target][low + shift : high + shift]
        return moved

    values = {b: np.maximum(0, -np.expm1(lacking(b))) for b in range(-charges, charges + 1)}
    for left in range(1, charges + 1):
        following = {}
        for b in range(left - charges, charges - left + 1, 2):
            down = -math.expm1(-slow) * seen_from(values, b, b - 1)
            up = -math.expm1(-fast) * seen_from(values, b, b + 1)
            stay, miss = math.exp(-slow), math.exp(-fast)
            at_zero = (stay * up[below - 1] + down[below]) / (1 - stay * miss)
            before = miss * at_zero + up[below - 1]
            right, _ = signal.lfilter([1.0], [1.0, -stay], down[below + 1 :], zi=[stay * at_zero])
            to_left, _ = signal.lfilter([1.0], [1.0, -miss], up[: below - 1][::-1], zi=[miss * before])
            following[b] = np.concatenate([to_left[::-1], [before, at_zero], right])
        values = following
    return float(values[0][below - origin(0)])


def simulate(monitor, prefers_up, world, *, runs, steps, seed, charges):
    """Run the attack with the suspects (world 0) or without, and return coded evidence, int64 (runs,).

    Args:
        prefers_up: given evidence (with against without), shape (runs,), and the step: who wants an up-test next.
        charges: after so many the attacker takes a suspect to be dropped.
    """
    calibrated, noise = monitor.calibrated, SeededNoise(2 * seed + world)
    sure = calibrated.detection_threshold(10**4, 1e-3)
    small = small_tests(calibrated, 3)
    counters, up, evidence = UserCounters(), UpItems.none(), np.zeros(runs)
    left = np.full(runs, charges)
    for step in range(steps):
        is_up = np.zeros((runs, 2), bool)
        is_up.ravel()[up.items.astype(np.int64)] = True
        wants_up = prefers_up(evidence, step)
        acts = (left > 0) & np.where(wants_up, ~is_up[:, 0], is_up[:, 1])
        others = np.stack([np.where(acts & wants_up, small[0], 0), np.where(acts & ~wants_up, small[1], sure)], axis=1)
        held = (acts & (world == 0))[:, None] & np.stack([wants_up, ~wants_up], axis=1)
        _, up, charged = monitor.decide(counters, up, holdings(others, held, step), noise)
        counters = counters.add(charged)
        now = np.zeros((runs, 2), bool)
        now.ravel()[up.items.astype(np.int64)] = True
        changed = np.where(wants_up, now[:, 0], ~now[:, 1])
        evidence += np.where(acts, _log_ratio(calibrated, others, wants_up, changed), 0.0)
        left = left - (acts & changed)
    return coded(evidence)


def _log_ratio(calibrated, others, wants_up, changed):
    """Return the log likelihood ratio, with against without, of one test of each run."""
    log = []
    for more in (1, 0):
        counts = np.where(wants_up, others[:, 0], others[:, 1]) + more
        starts, ends = calibrated.hit_probability(counts), calibrated.end_probability(counts)
        fails, stays = calibrated.miss_probability(counts), calibrated.stay_probability(counts)
        law = np.where(wants_up, np.where(changed, starts, fails), np.where(changed, ends, stays))
        log.append(np.log(np.maximum(law, 1e-300)))
    return log[0] - log[1]
