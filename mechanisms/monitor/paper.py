"""The paper's constants as a preset: noise Lap(10 Delta) + min(Lap(b), Delta), with what its proof needs."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.monitor.calibration import Calibration, MonitorBudget, with_counts
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.noise.sources import Labels, NoiseSource
from privstream.mechanisms.privacy.accounting import PointCurve, largest
from typing_extensions import override

_REACH = 45.0
LEAST_SCALE = 2.0  # of b: Pr[v < -Delta] <= 1/4 needs it
COMPOSITION_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, kw_only=True)
class PaperCalibration(Calibration):
    """Hit iff count + w + min(v, Delta) >= threshold, w and v discrete Laplace of scales 10 Delta and b; see `paper`.

    Attributes:
        inner_scale: b.
        cut_off: Delta = b ln b, rounded up where v is cut off.
    """

    inner_scale: float
    cut_off: float

    @property
    def noise_scale(self) -> float:
        """Scale of the noise, in people."""
        return 10 * self.cut_off

    @override
    def threshold_at(self, step: int) -> float:
        return float(math.ceil(self.noise_scale * math.log(self.budget.tests / self.budget.beta)))

    @override
    def miss_probability(self, counts: ArrayLike, *, step: int = 1) -> Floats:
        return self._below(self.threshold_at(step) - 1 - np.asarray(counts, dtype=np.float64))

    @override
    def hit_probability(self, counts: ArrayLike, *, step: int = 1) -> Floats:
        return self._above(self.threshold_at(step) - np.asarray(counts, dtype=np.float64))

    @override
    def draw_thresholds(self, noise: NoiseSource, labels: Labels, *, step: int = 1) -> Integers:
        drawn, attempt = self._draw(noise, labels, step), 0
        while (drawn < 1).any():
            attempt += 1
            drawn = np.where(drawn < 1, self._draw(noise.derive("again", attempt), labels, step), drawn)
        return drawn

    def _draw(self, noise: NoiseSource, labels: Labels, step: int) -> Integers:
        outer = DiscreteLaplace(self.noise_scale).draw(noise.derive("w"), labels)
        inner = DiscreteLaplace(self.inner_scale).draw(noise.derive("v"), labels)
        return int(self.threshold_at(step)) - outer - np.minimum(inner, math.ceil(self.cut_off))

    @property
    @override
    def proof(self) -> str:
        return "docs/proofs/kaplan_mansour_stemmer.md, Theorem 3.2, Theorem 3.8 and section 4"

    @functools.cached_property
    @override
    def hits_curve(self) -> PointCurve:
        # The (epsilon, delta) of the paper's theorem.
        return PointCurve(self.budget.hits_epsilon, _hits_delta(self.budget))

    def _above(self, least: Floats) -> Floats:
        """Return Pr[w + min(v, Delta) >= least], `least` integer: a sum over all v that can be drawn."""
        inner, chances = self._inner
        return np.array([chances @ _tail(one - inner, self.noise_scale) for one in np.ravel(least)]).reshape(
            np.shape(least)
        )

    def _below(self, most: Floats) -> Floats:
        """Return Pr[w + min(v, Delta) <= most], `most` integer."""
        inner, chances = self._inner
        return np.array([chances @ _tail(inner - one, self.noise_scale) for one in np.ravel(most)]).reshape(
            np.shape(most)
        )

    @functools.cached_property
    def _inner(self) -> tuple[Floats, Floats]:
        """The values of min(v, Delta), but those of a probability of e^-45, and how probable each is."""
        values = np.arange(-math.ceil(_REACH * self.inner_scale), math.ceil(self.cut_off) + 1.0)
        chances = DiscreteLaplace(self.inner_scale).pmf(values)
        chances[-1] = _tail(math.ceil(self.cut_off), self.inner_scale)
        return values, chances


def _tail(least: ArrayLike, scale: float) -> Floats:
    """Return Pr[X >= least] for discrete Laplace X and integers."""
    least, norm = np.asarray(least, dtype=np.float64), 1 + math.exp(-1 / scale)
    far: Floats = np.exp(-np.maximum(least, 1) / scale) / norm
    return np.where(least >= 1, far, 1 - np.exp(-np.maximum(1 - least, 1) / scale) / norm)


def _scale_of_theorem_3_2(epsilon: float, delta: float, hits: int) -> float:
    """Return b of Theorem 3.2 for a target (epsilon, delta)."""
    log = math.log(3 / delta)
    return log * (75 * (hits + 1) / log + 25) / epsilon


def _scale_of_theorem_3_8(epsilon: float, delta: float, hits: int, share: float) -> float:
    """Return b of Theorem 3.8, made explicit, with `share` of delta given to advanced composition."""
    rest = share * delta
    epochs = 1
    while epochs * math.floor(math.log(3 * epochs / (delta - rest))) < hits:
        epochs = max(epochs + 1, math.ceil(hits / math.floor(math.log(3 * (epochs + 1) / (delta - rest)))))
    log = math.log(3 * epochs / (delta - rest))
    spread = math.sqrt(2 * epochs * math.log(1 / rest))
    each = largest(lambda xi: spread * xi + epochs * xi * math.expm1(xi) <= epsilon, 0.0, min(epsilon, 1.0))
    return log * (75 * (math.floor(log) + 1) / log + 25) / each


def _hits_delta(budget: MonitorBudget) -> float:
    """Return the delta of hits alone: counts get the same share of delta as of epsilon."""
    return budget.hits_delta * (1 - budget.count_share)


@functools.lru_cache(maxsize=64)
def paper(budget: MonitorBudget) -> PaperCalibration:
    """Return the noise of the paper for `budget`, by the better of its Theorems 3.2 and 3.8.

    Privacy: (budget.epsilon, budget.delta) for one person over the whole run; also for linear queries, which charge
    their values in [0, 1].

    Accuracy: `detection_threshold`, about twice the threshold 10 Delta ln(tests / beta).

    Raises:
        ValueError: epsilon is so large that b < 2, where the paper's proof does not hold.

    Source: Kaplan, Mansour, Stemmer (2020), Algorithms 3 and 5, Theorems 3.2 and 3.8;
      docs/proofs/kaplan_mansour_stemmer.md.
    """
    if budget.domain != "known":
        raise ValueError("domain_size must be given with the constants of the paper")
    epsilon, delta, hits = budget.hits_epsilon, _hits_delta(budget), budget.max_hits
    scales = [_scale_of_theorem_3_8(epsilon, delta, hits, share) for share in COMPOSITION_SHARES]
    scale = min(_scale_of_theorem_3_2(epsilon, delta, hits), *scales)
    if scale < LEAST_SCALE:
        raise ValueError(f"epsilon must be small enough for an inner noise scale >= {LEAST_SCALE:g}, got {scale:g}")
    return with_counts(PaperCalibration(budget=budget, inner_scale=scale, cut_off=scale * math.log(scale)))
