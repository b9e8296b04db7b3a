"""What mechanisms with a hidden threshold share: the state of a run and its snapshots, and answers of hit or miss."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.units import PrivacyUnit
from privstream.mechanisms.snapshots import pack_state, unpack_state
from privstream.mechanisms.sparse_vector.hidden_threshold import HiddenThreshold, Progress, parameters

UNIT = PrivacyUnit(what="query")
PUBLIC = ("all parameters", "the thresholds", "the number of queries")
WHOLE_RUN = "It covers the whole run"
ADAPTIVITY = "Queries and thresholds may depend on all earlier answers."


class Answers(NamedTuple):
    """Hit or miss for the first queries of a step, in order; fewer than asked if the mechanism halted among them."""

    hits: NDArray[np.bool_]

    @property
    def answered(self) -> int:
        """Number of queries answered."""
        return len(self.hits)


class SparseVectorMechanism(ABC):
    """A mechanism whose state is how far its tests are: a function of the published answers."""

    threshold: float

    def initial_state(self) -> Progress:
        """Return the state before the first query."""
        return Progress()

    def snapshot(self, state: Progress) -> bytes:
        """Return `state` as bytes."""
        return pack_state(f"{type(self).__name__} state", parameters(self), vars(state))

    def restore(self, data: bytes) -> Progress:
        """Return the state in a snapshot of a mechanism with equal parameters, else raise SnapshotError."""
        return Progress(**unpack_state(f"{type(self).__name__} state", parameters(self), data))


class HitMechanism(SparseVectorMechanism):
    """A mechanism that answers hit or miss, and nothing else."""

    @property
    @abstractmethod
    def tests(self) -> HiddenThreshold:
        """The tests, with their noise."""

    def accuracy(self, queries: int, beta: float) -> float:
        """Return the alpha of the class docstring for so many queries."""
        return self.tests.accuracy(queries, beta)

    def step(
        self, state: Progress, values: ArrayLike, noise: NoiseSource, *, thresholds: ArrayLike | None = None
    ) -> tuple[Progress, Answers]:
        """Answer queries in order, up to and including the last hit that is paid for.

        A vector is answered in pieces as it is at once.

        Args:
            state: where the run stands.
            values: true values of the queries, shape (n,); private.
            noise: the noise of this run; give every run a source of its own.
            thresholds: one threshold or n, in place of `threshold`; public.

        Returns:
            The next state, and the answers: fewer than n if the run halted before the last query.

        Raises:
            BudgetSpent: the run had halted before.
        """
        gaps = self.tests.gaps(values, self.threshold if thresholds is None else thresholds)
        state, hits = self.tests.test(state, gaps, noise.derive("sparse vector", parameters(self)))
        return state, Answers(hits)
