"""The paper's constants as a preset: noise Lap(10 Delta) + min(Lap(b), Delta), with what its proof needs."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.monitor.calibration import Calibration, MonitorBudget, with_counts
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.noise.sources import Labels, NoiseSource
from privstream.mechanisms.privacy.accounting import PointCurve, PrivacyCurve
from typing_extensions import override

LEAST_SCALE = 2.0  # of b: Pr[v < -Delta] <= 1/4 needs it


@dataclass(frozen=True, kw_only=True)
class PaperCalibration(Calibration):
    """Hit iff count + w + min(v, Delta) >= threshold, w and v discrete Laplace of scales 10 Delta and b; see `paper`.

    Attributes:
        inner_scale: b; Delta = b ln b, rounded up where v is cut off, and eta = 1 / (10 Delta).
    """

    inner_scale: float

    @property
    def cut_off(self) -> int:
        """Delta, rounded up."""
        return math.ceil(self.inner_scale * math.log(self.inner_scale))

    @functools.cached_property
    @override
    def threshold(self) -> float:
        return float(math.ceil(self.noise_scale * math.log(self.budget.tests / self.budget.beta)))

    @override
    def _surely_hit(self, allowed: float) -> int:
        # Neither noise is so low, but with half of this probability each.
        lowest = (DiscreteLaplace(scale).tail_quantile(allowed / 2) for scale in (self.noise_scale, self.inner_scale))
        return int(self.threshold) + sum(lowest)

    @override
    def draw_thresholds(self, noise: NoiseSource, labels: Labels) -> Integers:
        outer = DiscreteLaplace(self.noise_scale).draw(noise.derive("w"), labels)
        inner = DiscreteLaplace(self.inner_scale).draw(noise.derive("v"), labels)
        return int(self.threshold) - outer - np.minimum(inner, self.cut_off)

    @property
    @override
    def proof(self) -> str:
        return "docs/proofs/kaplan_mansour_stemmer.md, Theorem 3.2 and section 4"

    @functools.cached_property
    @override
    def hits_curve(self) -> PrivacyCurve:
        # The (epsilon, delta) of the paper's theorem.
        return PointCurve(self.budget.hits_epsilon, _hits_delta(self.budget))


def _hits_delta(budget: MonitorBudget) -> float:
    """Return the delta of hits alone: counts get the same share of delta as of epsilon."""
    return budget.hits_delta * (1 - budget.count_share)


@functools.lru_cache(maxsize=64)
def paper(budget: MonitorBudget) -> PaperCalibration:
    """Return the noise of the paper's Theorem 3.2 for `budget`; Theorem 3.8 needs more up to hundreds of hits.

    Privacy: (budget.epsilon, budget.delta) for one person over the whole run.

    Accuracy: `detection_threshold`, about twice the threshold 10 Delta ln(tests / beta).

    Raises:
        ValueError: epsilon is so large that b < 2, where the paper's proof does not hold.

    Source: Kaplan, Mansour, Stemmer (2020), Algorithms 3 and 5, Theorem 3.2;
    docs/proofs/kaplan_mansour_stemmer.md.
    """
    if budget.domain != "known":
        raise ValueError("domain_size must be given with the constants of the paper")
    log = math.log(3 / _hits_delta(budget))
    scale = log * (75 * (budget.max_hits + 1) / log + 25) / budget.hits_epsilon
    if scale < LEAST_SCALE:
        raise ValueError(f"epsilon must be small enough for an inner noise scale >= {LEAST_SCALE:g}, got {scale:g}")
    return with_counts(PaperCalibration(budget=budget, eta=0.1 / (scale * math.log(scale)), inner_scale=scale))
