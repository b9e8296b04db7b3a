"""Lower bounds on epsilon and delta from samples: what an attacker who has seen many runs can prove.

The event that says most is chosen on a part of the samples and counted on the others, so choosing costs nothing; its
two probabilities are bounded by Clopper and Pearson (1934).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.arrays import Floats
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from scipy import stats

Integers = NDArray[np.intp]
Outcomes = NDArray[Any]
Score = Callable[[Floats, Floats], Floats]

CHOOSING = 4
"""One part in so many of the trials chooses events; the others are measured."""

INTERVAL = 0.05
"""`interval` is the lower end of an interval that misses the truth so often."""

MOST_EVENTS = 400


def at_least(successes: Any, trials: Any, wrong: float) -> Any:
    """Return a lower bound of a probability, too high with probability `wrong` at most."""
    found = stats.beta.ppf(wrong, np.maximum(successes, 1), trials - np.asarray(successes) + 1)
    return np.where(np.asarray(successes) > 0, found, 0.0)


def at_most(successes: Any, trials: int, wrong: float) -> Any:
    """Return an upper bound of a probability, too low with probability `wrong` at most."""
    found = stats.beta.isf(wrong, np.asarray(successes) + 1, np.maximum(trials - np.asarray(successes), 1))
    return np.where(np.asarray(successes) < trials, found, 1.0)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the samples of two neighbouring inputs prove, all of it together with probability 1 - `wrong`.

    Attributes:
        guarantee: what is claimed.
        epsilon: lower bound of the epsilon that the transform has at the claimed delta.
        delta: lower bound of the delta that it has at the claimed epsilon.
        interval: lower end of a 95% interval of epsilon, by itself.
    """

    guarantee: PrivacyGuarantee
    epsilon: float
    delta: float
    interval: float

    @property
    def violated(self) -> bool:
        """Whether the guarantee is refuted."""
        return self.epsilon > self.guarantee.epsilon or self.delta > self.guarantee.delta

    @property
    def share(self) -> float:
        """How much of what the guarantee allows has been found to be used, where most of it is; above 1 refutes it."""
        of_delta = self.delta / self.guarantee.delta if self.guarantee.delta else 0.0
        return max(self.epsilon / self.guarantee.epsilon, of_delta)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        found = {"epsilon_at_least": self.epsilon, "delta_at_least": self.delta}
        return found | {"share": self.share, "refuted": self.violated}


def measure(one: Floats, other: Floats, guarantee: PrivacyGuarantee, wrong: float) -> Evidence:
    """Return what scores with two neighbouring inputs prove against a guarantee.

    Args:
        one: of independent trials with one input, shape (n,); the more a score looks like this input, the larger.
        other: of independent trials with the other input, shape (m,).
        guarantee: what is claimed of the transform.
        wrong: probability with which some bound may be wrong: of two, each of two probabilities.
    """
    samples = Samples(one, other, wrong / 4)
    return Evidence(
        guarantee=guarantee,
        epsilon=samples.epsilon(guarantee.delta),
        delta=samples.delta(guarantee.epsilon),
        interval=Samples(one, other, INTERVAL / 4).epsilon(guarantee.delta),
    )


class Samples:
    """Outcomes of independent trials with two neighbouring inputs; a part of them chooses events, the others count.

    Args:
        one: with one input, shape (n,).
        other: with the other input, shape (m,).
        wrong: probability with which the bound of each of the two probabilities of an event may be wrong.
        scored: whether an outcome looks the more like the first input, the larger it is. If not, outcomes are mere
            codes, and the part that chooses also tells which of them look like which input.
    """

    def __init__(self, one: Outcomes, other: Outcomes, wrong: float, *, scored: bool = True) -> None:
        self.wrong = wrong
        outcomes, codes = np.unique(np.concatenate([one, other]), return_inverse=True)
        tallies = [_tallies(sample, len(outcomes)) for sample in (codes[: len(one)], codes[len(one) :])]
        choosing, counting = np.stack(tallies, axis=1)
        descending = np.arange(len(outcomes))[::-1]
        self._worlds: list[tuple[Integers, Integers, Integers]] = []
        for likely, unlikely, by_score in ((0, 1, descending), (1, 0, descending[::-1])):
            # By Neyman and Pearson the best events consist of the outcomes with the largest ratios.
            ratios = choosing[likely] / (choosing[unlikely] + 1.0)
            order = by_score if scored else np.argsort(-ratios, kind="stable")
            ends = np.flatnonzero(choosing[likely][order])[::-1]
            first, rest = (np.cumsum(part[[likely, unlikely]][:, order], axis=1) for part in (choosing, counting))
            self._worlds.append((ends, first, rest))

    def epsilon(self, delta: float = 0.0) -> float:
        """Return a lower bound of the epsilon that there is at this delta."""
        return self._best(partial(_epsilon, delta=delta))

    def delta(self, epsilon: float) -> float:
        """Return a lower bound of the delta that there is at this epsilon."""
        return self._best(partial(_delta, epsilon=epsilon))

    def _best(self, score: Score) -> float:
        """Return a lower bound, at least 0, of a score of two probabilities: of the event that looks best."""
        highest, found = -math.inf, 0.0
        for ends, choosing, counting in self._worlds:
            tried = ends[np.unique(np.linspace(0, len(ends) - 1, MOST_EVENTS).astype(int))]
            scores = score(*self._bounds(choosing, tried))
            if scores.max() > highest:
                highest, end = float(scores.max()), tried[[scores.argmax()]]
                found = float(score(*self._bounds(counting, end))[0])
        return max(0.0, found)

    def _bounds(self, events: Integers, ends: Integers) -> tuple[Floats, Floats]:
        """Bound the probabilities, from below and from above, of the events that end here."""
        (likely, unlikely), (trials, others) = events[:, ends], events[:, -1].tolist()
        return at_least(likely, trials, self.wrong), at_most(unlikely, others, self.wrong)


def _tallies(codes: Integers, size: int) -> Integers:
    """Return how often each outcome occurs in the part that chooses, and in the others."""
    chosen = len(codes) // CHOOSING
    return np.stack([np.bincount(part, minlength=size) for part in (codes[:chosen], codes[chosen:])])


def _epsilon(likely: Floats, unlikely: Floats, delta: float) -> Floats:
    """Return the epsilon that two probabilities need at this delta."""
    return np.log(np.maximum(likely - delta, 1e-300) / unlikely)


def _delta(likely: Floats, unlikely: Floats, epsilon: float) -> Floats:
    """Return the delta that two probabilities need at this epsilon."""
    return likely - math.exp(epsilon) * unlikely
