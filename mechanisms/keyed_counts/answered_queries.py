"""AnsweredQueries: a limited number of linear queries, each answered with noise of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats
from privstream.mechanisms.checks import HorizonExceeded
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.discrete import DiscreteLaplace, WideGaussian
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import PureDp, noise_curve, sensitivity_sigma
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, NEIGHBOURING, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PrivacyUnit
from scipy import special
from typing_extensions import override

FRACTION = 20
"""Fractional bits of answers where weights are no whole numbers: sums are rounded to a millionth."""
WEIGHT_BITS = 56
"""Fractional bits of weights. In sums over fewer than 2^35 people they are wrong by less than 2^-22."""
_HALF = WEIGHT_BITS // 2
_ROUNDED = 1e-12  # relative, of what floats round off


@dataclass(frozen=True, kw_only=True)
class AnsweredQueries(Mechanism[int]):
    """Adds noise to each of so many answers; its size depends on their number alone, and not on kinds of records.

    The state is the number of answers given.

    Privacy:
        Unit: one record added, removed or replaced, which moves each answer by at most 1: weights are from 0 to 1.
        (epsilon, delta)-DP for all answers together; queries may depend on all earlier answers. Public: all parameters,
        the queries and their number. Noise is bound to the number of the answer and to what it hides. A run that is
        begun again must ask the same queries in the same order.

    Accuracy:
        With probability 1 - beta all answers are within `accuracy(queries, beta)`, which grows with the square root of
        `queries` if delta > 0, and with `queries` if not.

    Attributes:
        epsilon: privacy loss of all answers together, > 0.
        delta: in [0, 1). With 0 noise is discrete Laplace; otherwise discrete Gaussian, unless that is larger.
        queries: number of answers at most, from 1 to 2^30.
        fraction: answers are whole multiples of 2^-fraction, from 0 to `FRACTION`.
        neighbouring: "add_remove" or "replace_one" record.

    Raises:
        ValueError, TypeError: a parameter is out of range or of another type.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> made = AnsweredQueries(epsilon=1.0, delta=1e-6, queries=10)
        >>> state, values = made.step(made.initial_state(), [5000, 3000], SeededNoise(1))
        >>> state, bool(abs(values[0] - 5000) <= made.accuracy(10, 0.01))
        (2, True)

    Source: Dwork, McSherry, Nissim, Smith (2006); Balle, Wang (2018); docs/proofs/private_queries.md.
    """

    epsilon: float
    delta: float = 0.0
    queries: int
    fraction: int = 0
    neighbouring: str = "add_remove"

    noise_label = "answered queries"
    state_type = int

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.probability("delta", self.delta, zero=True)
        checks.integer("queries", self.queries, minimum=1, maximum=1 << 30)
        checks.integer("fraction", self.fraction, minimum=0, maximum=FRACTION)
        checks.one_of("neighbouring", self.neighbouring, tuple(NEIGHBOURING))
        _ = self.law

    @cached_property
    def law(self) -> DiscreteLaplace | WideGaussian:
        """The noise of an answer, in units of the grid."""
        unit = math.ldexp(1 + _ROUNDED, self.fraction)
        laplace = DiscreteLaplace(self.queries * unit / self.epsilon)
        if self.delta == 0:
            return laplace
        gaussian = WideGaussian(sensitivity_sigma(self.epsilon, self.delta, math.sqrt(self.queries) * unit))
        return gaussian if gaussian.variance < laplace.variance else laplace

    @property
    @override
    def guarantee(self) -> PrivacyGuarantee:
        pure = isinstance(self.law, DiscreteLaplace)
        return PrivacyGuarantee(
            unit=PrivacyUnit(what="query", bound=1),
            neighbouring=self.neighbouring,
            epsilon=self.epsilon,
            delta=self.delta,
            limits=(f"At most {self.queries:,} queries are answered.", "It covers one data set."),
            public=("all parameters", "the queries and their number"),
            adaptivity="Queries may depend on all earlier answers.",
            proof="docs/proofs/private_queries.md, Theorem 1",
            caveats=(KEYED_NOISE,),
            curve=PureDp(self.epsilon) if pure else noise_curve(self.epsilon, self.delta),
        )

    def exact_sum(self, weights: Floats, counts: np.ndarray) -> int:
        """Return a weighted sum of counts, in units of 2^-fraction.

        The sum is rounded, and not its weights, whose errors would add up over people. One record moves it by at most
        2^fraction all the same: rounding keeps order, and a shift by whole units passes through it.

        Args:
            weights: from 0 to 1, shape (n,); whole numbers if `fraction` is 0.
            counts: of records, int64, shape (n,), fewer than 2^35 in all; private.

        Returns:
            A number that is off by at most 2^-fraction (in people), and by nothing if `fraction` is 0.
        """
        fixed = np.rint(np.ldexp(weights, WEIGHT_BITS)).astype(np.int64)
        high, low = fixed >> _HALF, fixed & ((1 << _HALF) - 1)  # neither sum reaches 2^63
        total = (int(high @ counts) << _HALF) + int(low @ counts)
        dropped = WEIGHT_BITS - self.fraction
        return (total + (1 << (dropped - 1))) >> dropped

    def step(self, state: int, sums: ArrayLike, noise: NoiseSource) -> tuple[int, Floats]:
        """Answer queries.

        Args:
            state: how many have been answered.
            sums: the exact answers in units of 2^-fraction, integers below 2^62, shape (n,); private. One record moves
                each by at most 2^fraction.
            noise: the noise of this data set; give every data set a source of its own.

        Returns:
            The next state, and the answers with noise, float64, shape (n,).

        Raises:
            HorizonExceeded: these are more queries than `queries`.
            ValueError: `sums` has another shape.
        """
        true = np.asarray(sums, np.int64)
        if true.ndim != 1:
            raise ValueError(f"sums must have shape (n,), got {true.shape}")
        after = state + len(true)
        if after > self.queries:
            raise HorizonExceeded(f"queries must be <= {self.queries}, got {after}")
        source = self._source(noise)
        labels = source.bind(np.arange(state, after, dtype=np.uint64), true)
        return after, np.ldexp((true + self.law.draw(source, labels)).astype(np.float64), -self.fraction)

    def accuracy(self, queries: int, beta: float) -> float:
        """Return by how much each of so many answers is off at most, all of them with probability 1 - beta."""
        tail = checks.probability("beta", beta) / checks.integer("queries", queries, minimum=1)
        if isinstance(self.law, DiscreteLaplace):
            bound = float(max(0, self.law.tail_quantile(tail / 2)))
        else:  # Pr[X >= z + 1] <= Q(z / sigma) for a discrete Gaussian
            bound = math.ceil(-self.law.sigma * float(special.ndtri(tail / 2)) * (1 + _ROUNDED))
        return math.ldexp(bound, -self.fraction)

    @override
    def _fields(self, state: int) -> dict[str, Any]:
        return {"answered": state}

    @override
    def _state(self, fields: dict[str, Any]) -> int:
        return int(fields["answered"])
