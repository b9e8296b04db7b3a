"""What the standard methods would find with a monitor's budget: the sparse vector technique, and a histogram per step.

Both get every advantage that is proven: exact composition, exact tails, the best split of failure probabilities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
from privstream.mechanisms import checks
from privstream.mechanisms.monitor.calibration import MonitorBudget
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.privacy.accounting import ROUNDING, largest
from privstream.mechanisms.sparse_vector.sparse import PureComposition
from scipy import special


@dataclass(frozen=True, kw_only=True)
class StandardMethod:
    """Noise and threshold of a standard method.

    Attributes:
        noise_scale: scale of the noise of one test, in people: Laplace for `sparse`, else a standard deviation.
        threshold: what a noisy count must reach to be reported.
        detection_threshold: least count that is found with probability 1 - beta in all tests at once.
        count_stddev: standard deviation of the noise on the counts that are reported; None if none are.
        limit: sentence that says what the method needs to know before.
    """

    noise_scale: float
    threshold: int
    detection_threshold: int
    count_stddev: float | None
    limit: str


def sparse(budget: MonitorBudget, *, total_hits: int) -> StandardMethod:
    """Plan AboveThreshold, run again after each hit until `total_hits`; all people share one budget.

    Privacy: hits alone meet the same (epsilon, delta) as the hits of a calibration for `budget`, for one person over
    the whole run: each run of AboveThreshold costs every person the same, whoever took part in its hit.

    Raises:
        ValueError: the domain is unknown and no bound on a person's tests is given.
    """
    checks.integer("total_hits", total_hits, minimum=1)
    epsilon, goal = budget.hits_epsilon, budget.hits_delta * (1 - ROUNDING)

    def accept(round_epsilon: float) -> bool:
        return PureComposition(rounds=total_hits, round_epsilon=round_epsilon).delta(epsilon) <= goal

    scale = 2 / largest(accept, epsilon / total_hits, epsilon + math.log(2 / budget.hits_delta))

    def reach(tests: int, beta: float) -> int:
        """Return what the noise of all tests stays below with probability 1 - beta: 2/3 of beta for the queries."""
        query = DiscreteLaplace(2 * scale).tail_quantile(2 * beta / (3 * tests))
        return query + DiscreteLaplace(scale).tail_quantile(beta / (3 * total_hits))

    up = reach(*_falsely(budget))
    threshold = up + (2 if budget.domain == "unknown" else 1)
    return StandardMethod(
        noise_scale=2 * scale,
        threshold=threshold,
        detection_threshold=threshold + reach(budget.tests, budget.beta / 2),
        count_stddev=None,
        limit=f"It stops for good after {total_hits:,} hits in the whole stream, whoever was in them.",
    )


def histogram_per_step(budget: MonitorBudget, *, steps: int) -> StandardMethod:
    """Plan a fresh histogram with Gaussian noise at each of `steps` steps; what is above a threshold is reported.

    Privacy: one person changes `items_per_step` counts at each step, twice as many if replaced; composed exactly.

    Raises:
        ValueError: the domain is unknown and no bound on a person's tests is given.
    """
    changed = checks.integer("steps", steps, minimum=1) * budget.items_per_step * budget.streams_per_person
    sensitivity = math.sqrt(changed * (2 if budget.neighbouring == "replace_one" else 1))
    goal = DifferentialPrivacyParameters(budget.epsilon, budget.hits_delta)
    sigma = float(GaussianPrivacyLoss.from_privacy_guarantee(goal, sensitivity).standard_deviation)

    def reach(tests: int, beta: float) -> float:
        return -sigma * float(special.ndtri(beta / tests))

    lone = 1 if budget.domain == "unknown" else 0
    threshold = lone + math.ceil(reach(*_falsely(budget)))
    return StandardMethod(
        noise_scale=sigma,
        threshold=threshold,
        detection_threshold=threshold + math.ceil(reach(budget.tests, budget.beta / 2)),
        count_stddev=sigma,
        limit=f"Each person takes part in at most {steps:,} steps.",
    )


def laplace_per_step(budget: MonitorBudget, *, steps: int) -> StandardMethod:
    """Plan a fresh histogram with discrete Laplace noise at each of `steps` steps, composed exactly.

    Privacy: as for `histogram_per_step`, if one person is added or removed.
    """
    rounds = checks.integer("steps", steps, minimum=1) * budget.items_per_step * budget.streams_per_person
    epsilon, goal = budget.hits_epsilon, budget.hits_delta * (1 - ROUNDING)

    def accept(round_epsilon: float) -> bool:
        return PureComposition(rounds=rounds, round_epsilon=round_epsilon).delta(epsilon) <= goal

    noise = DiscreteLaplace(1 / largest(accept, epsilon / rounds, epsilon + math.log(2 / budget.hits_delta)))
    tests, chance = _falsely(budget)
    threshold = (1 if budget.domain == "unknown" else 0) + noise.tail_quantile(chance / tests)
    return StandardMethod(
        noise_scale=noise.scale,
        threshold=threshold,
        detection_threshold=threshold + noise.tail_quantile(budget.beta / (2 * budget.tests)),
        count_stddev=math.sqrt(noise.variance),
        limit=f"Each person takes part in at most {steps:,} steps.",
    )


def _falsely(budget: MonitorBudget) -> tuple[int, float]:
    """Return the tests in which noise alone must not make a hit, and the probability with which it may.

    Known domain: all tests of items that nobody holds. Unknown: the tests of items that one person holds alone.
    """
    if budget.domain == "known":
        return budget.tests, budget.beta / 2
    if budget.tests_per_person is None:
        raise ValueError("horizon must be a number of steps for this method")
    people = 2 if budget.neighbouring == "replace_one" else 1
    return budget.tests_per_person * budget.streams_per_person, budget.domain_delta / people
