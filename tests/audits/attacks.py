"""Attacks with samples: what is seen in two neighbouring worlds must not refute the claim; of a broken variant it must.

The event that says most is chosen on a part of the samples and counted on the others, so choosing costs nothing. All
lower bounds are those of Clopper and Pearson; each is wrong with probability `FALSE_ALARM` at most.
"""

import math
from functools import partial

import numpy as np
from laws import FALSE_ALARM
from scipy import stats

CHOOSING = 4
"""A part of the samples, one over this number, chooses events; the others are measured."""

MOST_EVENTS = 400


def at_least(successes, trials, wrong):
    """Return the lower bound of a probability by Clopper and Pearson, too high with probability `wrong` at most."""
    found = stats.beta.ppf(wrong, np.maximum(successes, 1), trials - np.asarray(successes) + 1)
    return np.where(np.asarray(successes) > 0, found, 0.0)


def at_most(successes, trials, wrong):
    """Return the upper bound, too low with probability `wrong` at most."""
    return 1 - at_least(trials - np.asarray(successes), trials, wrong)


def lower_epsilon(one, other, delta=0.0):
    """Return a lower bound of epsilon at delta from outcomes in two neighbouring worlds: numbers, or tuples of them."""
    return _samples(one, other).epsilon(delta)


def lower_delta(one, other, epsilon):
    """Return a lower bound of delta at epsilon."""
    return _samples(one, other).delta(epsilon)


def stands(worlds, epsilon, *, visible=0.0, curve=None, at=None):
    """Check that two worlds show no more than is claimed, and that of it they show at least the share `visible`.

    Args:
        worlds: outcomes in either world.
        epsilon: what is claimed, at delta 0 where there is no curve.
        visible: of epsilon, or of the delta that the curve allows at epsilon, so that the attack is one.
        curve: the privacy curve that is claimed.
        at: where on the curve.
    """
    samples = _samples(*worlds)
    if curve is None:
        _report(samples.epsilon(), epsilon, visible)
        return
    for point in sorted({epsilon, *(at if at is not None else (0.0, epsilon / 3, 2 * epsilon / 3))}):
        _report(samples.delta(point), curve.delta(point), visible if point == epsilon else 0.0)
    allowed = curve.delta(epsilon)
    assert samples.epsilon(allowed) <= epsilon


def falls(worlds, epsilon, *, delta=0.0, beyond=1.0):
    """Check that two worlds of a broken variant show more than `beyond` times the claim: of delta if there is one."""
    samples = _samples(*worlds)
    found, claimed = (samples.delta(epsilon), delta) if delta else (samples.epsilon(), epsilon)
    print(f"\nbroken: {found:.4g} against {claimed:.4g} claimed")
    assert found > beyond * claimed


def _report(found, claimed, visible):
    print(f"\nfound {found:.4g} of {claimed:.4g}")
    assert visible * claimed <= found <= claimed


def _samples(one, other):
    if np.ndim(one[0]):
        together = np.concatenate([one, other])
        _, codes = np.unique(together, axis=0, return_inverse=True)
        one, other = codes[: len(one)], codes[len(one) :]
    return Samples(one, other, FALSE_ALARM / 2)


class Samples:
    """Codes of outcomes in two worlds; `wrong`: with which the bound of each of two probabilities may be wrong."""

    def __init__(self, one, other, wrong):
        self.wrong = wrong
        outcomes, codes = np.unique(np.concatenate([one, other]), return_inverse=True)
        tallies = [_tallies(sample, len(outcomes)) for sample in (codes[: len(one)], codes[len(one) :])]
        choosing, counting = np.stack(tallies, axis=1)
        self._worlds = []
        for likely, unlikely in ((0, 1), (1, 0)):
            # By Neyman and Pearson the best events consist of the outcomes with the largest ratios.
            order = np.argsort(-choosing[likely] / (choosing[unlikely] + 1.0), kind="stable")
            ends = np.flatnonzero(choosing[likely][order])[::-1]
            first, rest = (np.cumsum(part[[likely, unlikely]][:, order], axis=1) for part in (choosing, counting))
            self._worlds.append((ends, first, rest))

    def epsilon(self, delta=0.0):
        """Return a lower bound of the epsilon that there is at this delta."""
        return self._best(partial(_epsilon, delta=delta))

    def delta(self, epsilon):
        """Return a lower bound of the delta that there is at this epsilon."""
        return self._best(lambda likely, unlikely: likely - math.exp(epsilon) * unlikely)

    def _best(self, score):
        highest, found = -math.inf, 0.0
        for ends, choosing, counting in self._worlds:
            tried = ends[np.unique(np.linspace(0, len(ends) - 1, MOST_EVENTS).astype(int))]
            scores = score(*self._bounds(choosing, tried))
            if scores.max() > highest:
                highest, end = float(scores.max()), tried[[scores.argmax()]]
                found = float(score(*self._bounds(counting, end))[0])
        return max(0.0, found)

    def _bounds(self, events, ends):
        (likely, unlikely), (trials, others) = events[:, ends], events[:, -1].tolist()
        return at_least(likely, trials, self.wrong), at_most(unlikely, others, self.wrong)


def _tallies(codes, size):
    chosen = len(codes) // CHOOSING
    return np.stack([np.bincount(part, minlength=size) for part in (codes[:chosen], codes[chosen:])])


def _epsilon(likely, unlikely, delta):
    return np.log(np.maximum(likely - delta, 1e-300) / unlikely)
