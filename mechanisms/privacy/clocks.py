"""What hits and changes of status cost a person: privacy curves of exponential clocks."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats
from privstream.mechanisms.privacy.accounting import DivergenceCurve, excess
from scipy import special
from typing_extensions import override


@dataclass(frozen=True, kw_only=True)
class ClockCurve(DivergenceCurve):
    """Privacy of `clocks` exponential clocks whose rate one person multiplies by e^eta.

    Source: docs/proofs/clock.md, section 2.
    """

    eta: float
    clocks: int

    def __post_init__(self) -> None:
        checks.positive("eta", self.eta)
        checks.integer("clocks", self.clocks, minimum=1)

    @override
    def one_way(self, epsilon: Floats) -> tuple[Floats, ...]:
        k, rate, growth = self.clocks, math.exp(self.eta), math.expm1(self.eta)
        late = np.maximum(0.0, epsilon + k * self.eta) / growth
        early = np.maximum(0.0, k * self.eta - epsilon) / growth
        within = excess(special.gammainc(k, rate * early), epsilon, special.gammainc(k, early))
        without = excess(special.gammaincc(k, late), epsilon, special.gammaincc(k, rate * late))
        return within, without


LARGEST_CHARGES = 1 << 14
_SERIES_ERROR = 1e-9  # relative, of the sums below; tested against mpmath


@dataclass(frozen=True, kw_only=True)
class StatusCurve(DivergenceCurve):
    """Privacy of one person's `charges` when an adversary chooses before each moment which of two clocks runs.

    One clock has rate 1 without the person and e^eta with, the other one the other way round; each ring is a charge.

    Source: docs/proofs/status_monitor.md, Theorem 1.
    """

    eta: float
    charges: int

    def __post_init__(self) -> None:
        checks.positive("eta", self.eta)
        checks.integer("charges", self.charges, minimum=1, maximum=LARGEST_CHARGES)

    @override
    def one_way(self, epsilon: Floats) -> tuple[Floats, ...]:
        distance = np.abs(epsilon)
        found = np.zeros_like(distance)
        for rings in range(self.charges):
            found += self._rings(distance, np.array(float(rings))) * self._at_zero[self.charges - rings]
        found *= 1 + _SERIES_ERROR
        return (np.where(epsilon >= 0, found, np.exp(-distance) * found - np.expm1(-distance)),)

    def _rings(self, distance: Floats, rings: Floats) -> Floats:
        """Return the chance of this number of rings, each of which adds eta to the distance, before it is spent."""
        whole = distance + rings * self.eta
        mean = whole / math.expm1(self.eta)
        poisson = np.exp(special.xlogy(rings, mean) - mean - special.gammaln(rings + 1))
        return np.asarray(poisson * np.where(rings == 0, 1.0, distance / np.where(whole > 0, whole, 1.0)))

    @functools.cached_property
    def _at_zero(self) -> Floats:
        """The divergence at epsilon = 0 for 0, 1, .., `charges` charges."""
        sure, open_ = math.tanh(self.eta / 2), 2 * float(special.expit(-self.eta))
        back = self._rings(np.array(self.eta), np.arange(float(self.charges)))
        found = np.zeros(self.charges + 1)
        for charges in range(1, self.charges + 1):
            found[charges] = sure + open_ * (back[:charges] @ found[charges - 1 :: -1])
        return found
