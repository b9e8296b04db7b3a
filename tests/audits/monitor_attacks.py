"""Attacks on the threshold monitor: many runs at once through the mechanism itself, each with one suspect.

Runs have people and items of their own, so that one monitor decides all of them in one step: no person and no test
belongs to two runs. The attacker chooses, by run and step, how many others hold each item and, for each of the two
worlds, which items the suspect holds, knowing all answers before. Outcomes are coded by their log likelihood ratio
between the worlds, computed from the laws the mechanism states: the best statistic there is if it keeps to them.
"""

from dataclasses import dataclass, replace

import numpy as np
from privstream.mechanisms.mechanism import UserCounters
from privstream.mechanisms.monitor.monitor import Holdings, ThresholdMonitor
from privstream.mechanisms.noise.sources import SeededNoise

CROWD = np.uint64(1 << 40)
INFINITE = 60.0
BINS_PER_NAT = 20


@dataclass
class Plan:
    """What the attacker does at one step: integers, shape (runs, items), and a mask of that shape for each world."""

    others: np.ndarray
    held: tuple[np.ndarray, np.ndarray]


def constant(others, one, other=None):
    """Do the same at every step: how many others hold each item, and which the suspect holds in either world."""
    one = np.asarray(one, bool)
    masks = (one, np.zeros_like(one) if other is None else np.asarray(other, bool))

    def strategy(step, hits):
        runs = hits.shape[1]
        return Plan(np.tile(np.asarray(others), (runs, 1)), tuple(np.tile(mask, (runs, 1)) for mask in masks))

    return strategy


def for_runs(monitor, runs, items):
    """Return the monitor with room for all runs: one domain for all, and the noise and threshold of one."""
    if monitor.domain_size is None:
        return monitor
    tests = monitor.tests or monitor.domain_size * monitor.horizon
    return replace(monitor, domain_size=runs * items, tests=tests)


@dataclass(frozen=True)
class Belief:
    """What the attacker takes to be true: the laws of `monitor`, hits that drop a person, and whether ranks gate."""

    monitor: ThresholdMonitor
    max_hits: int
    gated: bool = True


def simulate(monitor, strategy, world, *, runs, items, steps, seed, belief=None):
    """Run the attack in world 0 (with the suspect's first data) or 1, and return coded outcomes, int64 (runs,)."""
    belief = Belief(monitor, monitor.max_hits) if belief is None else belief
    belief = replace(belief, monitor=for_runs(belief.monitor, runs, items))
    noise = SeededNoise(2 * seed + world)
    return coded(_score(for_runs(monitor, runs, items), belief, strategy, world, (runs, items), steps, noise))


def coded(score):
    """Code log likelihood ratios as integers."""
    return np.rint((np.clip(score, -INFINITE, INFINITE) + INFINITE) * BINS_PER_NAT).astype(np.int64)


def _score(monitor, belief, strategy, world, shape, steps, noise):
    counters, score = UserCounters(), np.zeros(shape[0])
    charged = np.zeros((2, shape[0]), np.int64)
    hits = np.zeros((0, *shape), bool)
    for step in range(steps):
        plan = strategy(step, hits)
        published, charges, _ = monitor.decide(counters, holdings(plan.others, plan.held[world], step), noise)
        counters = counters.add(charges)
        items = published.items.astype(np.int64)
        hit, count = np.zeros(shape, bool), np.zeros(shape, np.int64)
        hit.ravel()[items] = True
        if len(published.counts):
            count.ravel()[items] = published.counts
        score += _log_ratio(belief, plan, hit, count, charged, step)
        hits = np.concatenate([hits, hit[None]])
    return score


def holdings(others, held, step):
    """Return the data of one step: the suspect of run j, who holds `held[j]`, is person j; everybody else is new."""
    items = others.shape[1]
    suspects, places = np.nonzero(held)
    ranks = (np.cumsum(held, axis=1) - 1)[suspects, places]
    crowd = np.repeat(np.arange(others.size), others.ravel())
    strangers = CROWD * np.uint64(step + 1) + np.arange(len(crowd), dtype=np.uint64)
    return Holdings(
        step=step,
        users=np.concatenate([suspects.astype(np.uint64), strangers]),
        items=np.concatenate([suspects * items + places, crowd]).astype(np.uint64),
        ranks=np.concatenate([ranks, np.zeros(len(crowd), np.int64)]).astype(np.uint16),
    )


def _log_ratio(belief, plan, hit, count, charged, step):
    """Return the log likelihood ratio of one step's answers, world 0 against world 1; update the charges of both."""
    calibrated = belief.monitor.calibrated
    log, holders = [], []
    for world in (0, 1):
        ranks = np.cumsum(plan.held[world], axis=1) - 1 if belief.gated else np.zeros(hit.shape, np.int64)
        active = plan.held[world] & (ranks < (belief.max_hits - charged[world])[:, None])
        holders.append(plan.others + active)
        chance = -np.expm1(-calibrated.hazard(holders[world]))
        miss = np.where(holders[world] > 0, calibrated.miss_probability(holders[world]), 1 - chance)
        log.append(np.log(np.maximum(np.where(hit, chance, miss), 1e-300)))
        charged[world] += (active & hit).sum(axis=1)
    ratio = log[0] - log[1]
    if calibrated.count_sigma is not None:
        gain = (count - holders[1]) ** 2 - (count - holders[0]) ** 2
        ratio += np.where(hit, gain, 0) / (2 * calibrated.count_sigma**2)
    return ratio.sum(axis=1)
