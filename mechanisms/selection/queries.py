"""What selections share: integer queries of sensitivity 1, their checks, their noise and their guarantee."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.noise.discrete import DiscreteLaplace, Geometric
from privstream.mechanisms.noise.sources import Labels, NoiseSource
from privstream.mechanisms.privacy.accounting import ComposedCurve, PointCurve, PrivacyCurve, PureDp
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PrivacyUnit

LARGEST = 2**60
"""Of values and thresholds: their sums with noise stay within 64 bits."""

_SMALLEST_SCALE, _LARGEST_SCALE = 1e-6, 1e11  # what the laws draw exactly, and fits into 64-bit integers


class QueryMechanism(ABC):
    """A mechanism on integer queries, none of which one unit that is added or removed moves by more than 1.

    A parameter that a subclass does not have is as it is here.
    """

    epsilon: float  # privacy loss of the whole run, or of one selection, > 0
    delta: float = 0.0
    monotone: bool = False
    """Whether one change of the data moves all queries in one direction, as adding a person does: half the noise."""

    proof: ClassVar[str] = ""
    public: ClassVar[tuple[str, ...]] = ("all parameters", "the number of queries and their order")
    adaptivity: ClassVar[str] = "The queries may depend on everything published before."
    caveats: ClassVar[tuple[str, ...]] = (KEYED_NOISE,)

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy of the whole run, or of one selection."""
        return PrivacyGuarantee(
            unit=self.unit,
            epsilon=self.epsilon,
            delta=self.delta,
            limits=self.limits,
            public=self.public,
            adaptivity=self.adaptivity,
            proof=str(self.proof),
            caveats=self.caveats,
            curve=self.curve,
        )

    @property
    def unit(self) -> PrivacyUnit:
        """What the guarantee protects."""
        return PrivacyUnit(what="query", same_direction=self.monotone)

    @property
    @abstractmethod
    def limits(self) -> tuple[str, ...]:
        """What the guarantee covers."""

    @property
    def curve(self) -> PrivacyCurve:
        """All (epsilon, delta) of what the guarantee covers."""
        return PureDp(self.epsilon)

    def _check_queries(self, *scales: float) -> None:
        """Check the parameters that these mechanisms share, and the noise scales that they give."""
        checks.positive("epsilon", self.epsilon)
        for scale in scales:
            if not _SMALLEST_SCALE <= scale <= _LARGEST_SCALE:
                raise ValueError(f"epsilon must give a noise scale in [1e-6, 1e11], got a noise scale of {scale:g}")
        checks.boolean("monotone", self.monotone)


def composed(curves: tuple[PrivacyCurve, ...], epsilon: float, delta: float, interval: float = 1e-4) -> PrivacyCurve:
    """Return what curves make together; (epsilon, delta), which they add up to, where the grid of losses has more."""
    found = ComposedCurve(curves=curves, interval=interval)
    return found if found.delta(epsilon) <= delta else PointCurve(at_epsilon=epsilon, at_delta=delta)


def integers(name: str, values: ArrayLike, *, single: bool = False) -> Integers:
    """Return a row of integers within range, or perhaps a single one, as a fresh int64 array; quotes no value."""
    array: NDArray[Any] = np.asarray(values)
    if array.ndim != 1 and not (single and array.ndim == 0):
        raise ValueError(f"{name} must be one-dimensional, got {array.ndim} dimensions")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got {array.dtype}")
    if array.size and (array.max() > LARGEST or array.min() < -LARGEST):
        raise ValueError(f"{name} must be between -2**60 and 2**60")
    return array.astype(np.int64)


def noisy(values: Integers, law: Geometric | DiscreteLaplace, labels: Labels, noise: NoiseSource) -> Integers:
    """Return values with noise that depends on label and value: see `NoiseSource.bind`."""
    return values + law.draw(noise.derive("noise"), noise.derive("value").bind(labels, values))


def leaders(totals: NDArray[Any], count: int) -> Integers:
    """Return the indices of the `count` largest values in descending order, of equal ones the lower index first."""
    if count < len(totals):
        bar = np.partition(totals, len(totals) - count)[len(totals) - count]
        above = np.flatnonzero(totals > bar)
        chosen = np.concatenate([above, np.flatnonzero(totals == bar)[: count - len(above)]])
    else:
        chosen = np.arange(len(totals))
    return chosen[np.lexsort((chosen, -totals[chosen]))]


def excess_quantile(query: Geometric | DiscreteLaplace, threshold: Geometric | DiscreteLaplace, beta: float) -> float:
    """Return a t such that a gap exceeds the truth by more than t with probability <= beta, the least up to about 1/2.

    The error of a gap is the query's noise A minus the threshold's B, each less its mean: docs/proofs/free_gap.md,
    section 5.
    """
    a, c = 1 / query.scale, 1 / threshold.scale
    ahead = math.expm1(-c) / math.expm1(-a - c)  # Pr[A >= B]
    return max(-1, math.ceil(math.log(ahead / beta) / a) - 1) - query.mean + threshold.mean
