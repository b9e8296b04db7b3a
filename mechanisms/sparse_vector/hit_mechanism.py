"""What mechanisms that answer hit or miss share."""

from abc import abstractmethod
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from privstream.mechanisms.mechanism import Mechanism, packed_parameters
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.caveats import COMPARED_FLOATS
from privstream.mechanisms.sparse_vector.hidden_threshold import HiddenThreshold, Progress
from privstream.mechanisms.sparse_vector.query_mechanism import QueryMechanism


class Answers(NamedTuple):
    """Hit or miss for the first queries of a step, in order; fewer than asked if the mechanism halted among them."""

    hits: NDArray[np.bool_]

    @property
    def answered(self) -> int:
        """Number of queries answered."""
        return len(self.hits)


class HitMechanism(QueryMechanism, Mechanism[Progress]):
    """A mechanism that answers hit or miss. Its state is how far its tests are: a function of published answers."""

    floats = COMPARED_FLOATS
    noise_label = "sparse vector"
    state_type = Progress
    parameters = cached_property(packed_parameters)

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
        state, hits = self.tests.test(state, gaps, self._source(noise))
        return state, Answers(hits)
