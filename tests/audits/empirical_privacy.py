"""Lower bounds on epsilon and delta from samples: what an attacker who sees many runs can prove.

Each bound holds with probability 1 - FALSE_ALARM. The event is chosen on one half of the samples and counted on the
other, so choosing costs nothing; its two probabilities are bounded by Clopper and Pearson (1934).
"""

import math
from dataclasses import dataclass

import numpy as np
from privstream.pipelines.audit.evidence import at_least, at_most

FALSE_ALARM = 1e-10


@dataclass(frozen=True)
class Evidence:
    """Bounds that hold together with probability 1 - FALSE_ALARM on the two probabilities of one event.

    `likely` is a lower bound of the probability in one world, `unlikely` an upper bound of that in the other one.
    """

    likely: float
    unlikely: float

    def epsilon(self, delta=0.0):
        """Return a lower bound of epsilon at this delta."""
        return max(0.0, math.log((self.likely - delta) / self.unlikely)) if self.likely > delta else 0.0

    def delta(self, epsilon):
        """Return a lower bound of delta at this epsilon."""
        return max(0.0, self.likely - math.exp(epsilon) * self.unlikely)


def lower_epsilon(one, other, delta=0.0):
    """Return a lower bound of epsilon from outcomes in two neighbouring worlds, coded as integers >= 0, shape (n,)."""
    return _evidence(one, other, lambda evidence: evidence.epsilon(delta)).epsilon(delta)


def lower_delta(one, other, epsilon):
    """Return a lower bound of delta at `epsilon`, from the same samples."""
    return _evidence(one, other, lambda evidence: evidence.delta(epsilon)).delta(epsilon)


def _evidence(one, other, score):
    """Return bounds for the event, and the order of the worlds, that score best on the first half of the samples."""
    size = int(max(one.max(), other.max())) + 1
    (train_one, test_one), (train_other, test_other) = (_halves(sample, size) for sample in (one, other))
    best, choice = -1.0, None
    for train_likely, train_unlikely, test_likely, test_unlikely in (
        (train_one, train_other, test_one, test_other),
        (train_other, train_one, test_other, test_one),
    ):
        # By Neyman and Pearson the best events consist of the outcomes with the largest ratios.
        order = np.argsort(-(train_likely / (train_unlikely + 1.0)), kind="stable")
        hits, false_hits = np.cumsum(train_likely[order]), np.cumsum(train_unlikely[order])
        for end in _candidates(hits):
            evidence = _bounds(hits[end], train_likely.sum(), false_hits[end], train_unlikely.sum())
            if score(evidence) > best:
                best, choice = score(evidence), (order[: end + 1], test_likely, test_unlikely)
    event, test_likely, test_unlikely = choice
    return _bounds(test_likely[event].sum(), test_likely.sum(), test_unlikely[event].sum(), test_unlikely.sum())


def _bounds(hits, trials, false_hits, false_trials):
    """Return what so many hits among trials show in each world."""
    wrong = FALSE_ALARM / 2
    return Evidence(float(at_least(hits, trials, wrong)), float(at_most(false_hits, false_trials, wrong)))


def _halves(sample, size):
    """Return how often each outcome occurs in the first and in the second half."""
    middle = len(sample) // 2
    return np.bincount(sample[:middle], minlength=size), np.bincount(sample[middle:], minlength=size)


def _candidates(hits):
    """Return where to cut: at most about 200 events, spread over their probabilities."""
    levels = np.geomspace(1, hits[-1], 200)
    return np.unique(np.minimum(np.searchsorted(hits, levels), len(hits) - 1))
