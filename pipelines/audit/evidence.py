"""Lower bounds on epsilon and delta from trials: what an attacker who has seen many runs can prove.

The two probabilities of an event that is chosen beforehand are bounded by Clopper and Pearson (1934).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from scipy import stats

Events = NDArray[np.bool_]

INTERVAL = 0.05
"""`interval` is the lower end of an interval that misses the truth so often."""


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
        epsilon: lower bound of the epsilon that the transform has at the claimed delta.
        delta: lower bound of the delta that it has at the claimed epsilon.
        interval: lower end of a 95% interval of epsilon, by itself.
        share: how much of what the guarantee allows is used, where most of it is; above 1 refutes it.
    """

    epsilon: float
    delta: float
    interval: float
    share: float

    @property
    def violated(self) -> bool:
        """Whether the guarantee is refuted."""
        return self.share > 1

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        found = {"epsilon_at_least": self.epsilon, "delta_at_least": self.delta}
        return found | {"share": self.share, "refuted": self.violated}


def measure(one: Events, other: Events, guarantee: PrivacyGuarantee, wrong: float) -> Evidence:
    """Return what is proved against a guarantee by how often an event happens with two neighbouring inputs.

    Args:
        one: whether it happened in independent trials with the input that makes it likely, shape (n,).
        other: in trials with the other input, shape (m,).
        guarantee: what is claimed of the transform.
        wrong: probability with which a bound may be wrong.
    """

    def bounds(wrong: float) -> tuple[float, float, float]:
        likely = float(at_least(one.sum(), len(one), wrong / 2))
        unlikely = float(at_most(other.sum(), len(other), wrong / 2))
        return likely, unlikely, max(0.0, math.log(max(likely - guarantee.delta, 1e-300) / unlikely))

    likely, unlikely, epsilon = bounds(wrong)
    delta = max(0.0, likely - math.exp(guarantee.epsilon) * unlikely)
    of_delta = delta / guarantee.delta if guarantee.delta else 0.0
    share = max(epsilon / guarantee.epsilon, of_delta)
    return Evidence(epsilon=epsilon, delta=delta, interval=bounds(INTERVAL / 2)[2], share=share)
