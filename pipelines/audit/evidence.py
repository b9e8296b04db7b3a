"""Lower bounds on epsilon and delta from samples: what an attacker who has seen many runs can prove.

The event that says most is chosen on a part of the samples and counted on the others, so choosing costs nothing; its
two probabilities are bounded by Clopper and Pearson (1934).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from scipy import stats

Floats = NDArray[np.float64]
Score = Callable[[Floats, Floats], Floats]

CHOOSING = 4
"""One part in so many of the samples chooses the events."""

MOST_EVENTS = 400
PARTS = (0.0, 0.25, 0.5, 0.75)
"""Of epsilon: where, beside epsilon itself, delta is bounded. Too little noise shows there first."""


def at_least(successes: Any, trials: int, wrong: float) -> Any:
    """Return a lower bound of a probability, too high with probability `wrong` at most."""
    found = stats.beta.ppf(wrong, np.maximum(successes, 1), trials - np.asarray(successes) + 1)
    return np.where(np.asarray(successes) > 0, found, 0.0)


def at_most(successes: Any, trials: int, wrong: float) -> Any:
    """Return an upper bound of a probability, too low with probability `wrong` at most."""
    found = stats.beta.isf(wrong, np.asarray(successes) + 1, np.maximum(trials - np.asarray(successes), 1))
    return np.where(np.asarray(successes) < trials, found, 1.0)


class Point(NamedTuple):
    """What is claimed at one epsilon, and what was found.

    Attributes:
        epsilon: where on the privacy curve.
        claimed: the delta that the guarantee allows there.
        found: a lower bound of the delta that the transform has there.
    """

    epsilon: float
    claimed: float
    found: float


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the samples of two neighbouring inputs prove, all of it together with probability 1 - `wrong`.

    Attributes:
        claimed: epsilon of the guarantee.
        delta: delta of the guarantee.
        epsilon: lower bound of the epsilon that the transform has at this delta.
        points: lower bounds of delta along the privacy curve; the last one is at the claimed epsilon.
    """

    claimed: float
    delta: float
    epsilon: float
    points: tuple[Point, ...]

    @property
    def violated(self) -> bool:
        """Whether the guarantee is refuted."""
        return self.epsilon > self.claimed or any(point.found > point.claimed for point in self.points)

    @property
    def share(self) -> float:
        """How much of what the guarantee allows has been found to be used, where most of it is; above 1 refutes it."""
        parts = [point.found / point.claimed for point in self.points if point.claimed > 0]
        return max(self.epsilon / self.claimed, *parts)


def measure(one: Floats, other: Floats, guarantee: PrivacyGuarantee, wrong: float) -> Evidence:
    """Return what scores with two neighbouring inputs prove against a guarantee.

    Args:
        one: of independent trials with one input, shape (n,); the more a score looks like this input, the larger.
        other: of independent trials with the other input, shape (m,).
        guarantee: what is claimed of the transform.
        wrong: probability with which some bound may be wrong.
    """
    epsilon, delta, curve = guarantee.epsilon, guarantee.delta, guarantee.known_curve
    each = wrong / (2 * (len(PARTS) + 2))
    samples = _Samples(one, other, each)
    found = samples.best(partial(_epsilon, delta=delta))
    points = []
    for at in (*(part * epsilon for part in PARTS), epsilon):
        claimed = delta if at == epsilon else min(1.0, curve.delta(at))
        points.append(Point(at, claimed, samples.best(partial(_delta, epsilon=at))))
    return Evidence(claimed=epsilon, delta=delta, epsilon=found, points=tuple(points))


class _Samples:
    """Scores of both inputs, a part of which chooses events."""

    def __init__(self, one: Floats, other: Floats, wrong: float) -> None:
        self.wrong = wrong
        # What makes the other input likely is a small score.
        self.worlds = [(one, other), (-other, -one)]

    def best(self, score: Score) -> float:
        """Return a lower bound, at least 0, of a score of two probabilities: of the event that looks best."""
        highest, chosen = -math.inf, (0, math.inf)
        for world, (likely, unlikely) in enumerate(self.worlds):
            first = likely[: len(likely) // CHOOSING]
            limits = np.unique(first)
            limits = limits[np.unique(np.linspace(0, len(limits) - 1, MOST_EVENTS).astype(int))]
            scores = score(*self._bounds(first, unlikely[: len(unlikely) // CHOOSING], limits))
            if scores.max() > highest:
                highest, chosen = float(scores.max()), (world, float(limits[scores.argmax()]))
        world, limit = chosen
        likely, unlikely = self.worlds[world]
        rest = likely[len(likely) // CHOOSING :], unlikely[len(unlikely) // CHOOSING :]
        return max(0.0, float(score(*self._bounds(*rest, np.array([limit])))[0]))

    def _bounds(self, likely: Floats, unlikely: Floats, limits: Floats) -> tuple[Floats, Floats]:
        """Bound the probabilities, from below and from above, of scores that reach these limits."""
        hits, false_hits = (len(each) - np.searchsorted(np.sort(each), limits) for each in (likely, unlikely))
        return at_least(hits, len(likely), self.wrong), at_most(false_hits, len(unlikely), self.wrong)


def _epsilon(likely: Floats, unlikely: Floats, delta: float) -> Floats:
    """Return the epsilon that two probabilities need at this delta."""
    return np.log(np.maximum(likely - delta, 1e-300) / unlikely)


def _delta(likely: Floats, unlikely: Floats, epsilon: float) -> Floats:
    """Return the delta that two probabilities need at this epsilon."""
    return likely - math.exp(epsilon) * unlikely
