"""CountedQueries: any number of linear queries, answered from noisy counts that are released once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats
from privstream.mechanisms.keyed_counts.key_table import KeyedStep
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.mechanism import Mechanism
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.noise.tails import NoiseSum
from privstream.mechanisms.privacy.guarantee import KEYED_NOISE, PrivacyGuarantee

LARGEST_DOMAIN = 2**24


@dataclass(frozen=True, eq=False)
class ReleasedCounts:
    """The number of records of each kind, with noise: int64, shape (domain_size,). What is computed from it is free."""

    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        self.counts.setflags(write=False)


@dataclass(frozen=True, kw_only=True)
class CountedQueries(Mechanism[ReleasedCounts]):
    """Adds noise to the number of records of each kind, once; the answer to a query is a sum of these numbers.

    Privacy:
        Unit: one record added, removed or replaced. (epsilon, delta)-DP, however many queries are asked, in any order
        and as often as one likes: answers are functions of the released counts. Public: the parameters.

    Accuracy:
        With probability 1 - beta, the answers to all of so many queries, chosen before the counts were seen, are within
        `errors`; a query moves by the noise of the counts that it adds up, so its error grows with the square root of
        their number.

    Attributes:
        epsilon: privacy loss of the counts, > 0.
        delta: in [0, 1). With 0 noise is discrete Laplace; otherwise of the kind that is smaller.
        domain_size: number of kinds of records, from 1 to 2^24.
        neighbouring: "add_remove" or "replace_one" record.

    Raises:
        ValueError, TypeError: a parameter is out of range or of another type.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> made = CountedQueries(epsilon=1.0, domain_size=4)
        >>> released = made.release([700, 100, 100, 100], SeededNoise(1))
        >>> abs(released.counts[:2].sum() - 800) <= made.errors([[1, 1]], queries=1, beta=0.01)[0]
        True

    Source: Dwork, McSherry, Nissim, Smith (2006), Example 1; docs/proofs/private_queries.md.
    """

    epsilon: float
    delta: float = 0.0
    domain_size: int
    neighbouring: str = "add_remove"

    noise_label = "counted queries"
    state_type = ReleasedCounts

    def __post_init__(self) -> None:
        if checks.integer("domain_size", self.domain_size, minimum=1) > LARGEST_DOMAIN:
            raise ValueError(f"domain_size must be <= 2**24, got {self.domain_size}")
        _ = self.counts

    @cached_property
    def counts(self) -> KeyedCounts:
        """The counts, to one of which a record belongs."""
        return KeyedCounts(epsilon=self.epsilon, delta=self.delta, public_keys=True, neighbouring=self.neighbouring)

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy of the counts, and so of all answers."""
        return replace(
            self.counts.guarantee,
            limits=("It covers one data set.",),
            public=("all parameters", "the queries and their number"),
            adaptivity="Queries may depend on all earlier answers.",
            caveats=(KEYED_NOISE,),
        )

    def initial_state(self) -> ReleasedCounts:
        """Raise: there is no state before the counts are released."""
        raise TypeError("counts must be released first")

    def release(self, counts: ArrayLike, noise: NoiseSource) -> ReleasedCounts:
        """Add noise to counts.

        Args:
            counts: records of each kind, integers, shape (domain_size,); private.
            noise: the noise of this data set; give every data set a source of its own.

        Raises:
            ValueError: there are not `domain_size` counts.
        """
        true = np.asarray(counts, np.int64)
        if true.shape != (self.domain_size,):
            raise ValueError(f"counts must have shape ({self.domain_size},), got {true.shape}")
        keys = np.arange(self.domain_size, dtype=np.uint64)
        given = KeyedStep(step=1, keys=keys, counts=true)
        _, rows = self.counts.step(self.counts.initial_state(keys), given, self._source(noise))
        return ReleasedCounts(rows.counts)

    def errors(self, weights: Sequence[Sequence[float] | Floats], *, queries: int, beta: float) -> Floats:
        """Return by how much each answer is off at most, with probability 1 - beta for so many queries together.

        Args:
            weights: of each query those that are not 0, in (0, 1].
            queries: number of queries for which the statement holds together.
            beta: probability that it does not hold.

        Returns:
            float64, shape (number of queries given,).
        """
        tail = checks.probability("beta", beta) / (2 * checks.integer("queries", queries, minimum=1))
        (noise,) = self.counts.law.noises
        sums = np.array([(np.square(each).sum(), np.sum(each)) for each in weights]).reshape(-1, 2)
        bounds = noise.sums_tail_bound(1, tail, np.sqrt(sums[:, 0]), sums[:, 1])
        if isinstance(noise.law, DiscreteLaplace):  # of sums without weights, exactly
            for row in np.flatnonzero([np.all(np.asarray(each) == 1) for each in weights]).tolist():
                parts = [(noise.law.scale, len(weights[row]))]
                bounds[row] = NoiseSum.laplace(parts).quantile(math.log(tail))
        return bounds

    def accuracy(self, queries: int, beta: float) -> float:
        """Return the error of the class docstring for a query of all kinds of records, which has the largest."""
        return float(self.errors([np.ones(self.domain_size)], queries=queries, beta=beta)[0])
