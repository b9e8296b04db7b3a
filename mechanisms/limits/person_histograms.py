"""PersonHistograms: how many people contribute how much, on public grids and with noise; each counts once in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.keyed_counts.counted_queries import CountedQueries
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import GIVEN_NUMBERS, KEYED_NOISE, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON

ROUNDED = 1 - 1e-12
"""Shares of epsilon are smaller by this factor, so that their sum is not larger after rounding."""

LARGEST_NUMBER = 1 << 16
WHOLE_NUMBERS = tuple(sorted({2**power for power in range(17)} | {3 * 2**power for power in range(15)}))
"""Edges of the grid of whole numbers: 1, 2, 3, 4, 6, 8, 12, .., 65,536; from 2 on each at most half as large again."""


def whole_numbers(most: int | None = None) -> tuple[float, ...]:
    """Return the edges of the grid of whole numbers, up to a public number that nobody's is above, if there is one."""
    largest = LARGEST_NUMBER if most is None else min(most, LARGEST_NUMBER)
    return tuple(float(edge) for edge in sorted({*WHOLE_NUMBERS, largest}) if edge <= largest)


_MAGNITUDES = tuple(digit * 10.0**power for power in range(-3, 10) for digit in (1, 2, 5))
VALUES = (*(-edge for edge in reversed(_MAGNITUDES)), 0.0, *_MAGNITUDES)
"""Edges of the grid of values: 1, 2 and 5 times powers of ten from 0.001 to 5 * 10^9, their negatives, and 0."""

WHOLE_VALUES = tuple(edge for edge in VALUES if edge == 0 or abs(edge) >= 1)
"""Those of them that whole numbers may be."""


class Grid(NamedTuple):
    """One distribution: what is measured of a person, and the public cells that people are counted in.

    Attributes:
        name: what is measured.
        edges: increasing. Cell 0 has numbers up to the first one, cell i those above `edges[i - 1]` and at most
            `edges[i]`, and the last cell those above all.
        weight: its part of epsilon, as a part of the sum of all weights; > 0.
    """

    name: str
    edges: tuple[float, ...]
    weight: int = 1

    @property
    def cells(self) -> int:
        """Number of cells."""
        return len(self.edges) + 1

    def tally(self, numbers: NDArray[np.generic]) -> Integers:
        """Return how many of some numbers, shape (n,), one for each person, lie in each cell: int64 (cells,)."""
        place = np.searchsorted(np.array(self.edges), numbers, side="left")
        return np.bincount(place, minlength=self.cells).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class PersonHistograms:
    """Publishes, for each of some grids, the number of people in each cell with discrete Laplace noise.

    Privacy:
        Unit: one person over the whole data set. Neighbours: `neighbouring`. (epsilon, 0): a person is in at most one
        cell of each grid, whatever he or she does. Enforced by the caller: one number for each person and grid, which
        depends on that person's data alone. Public: the parameters.

    Accuracy:
        The number of people in a cell is off by discrete Laplace noise of `scale(name)`: with probability 0.95 by at
        most three times that.

    Attributes:
        epsilon: finite and > 0, of all grids together.
        grids: each with a name of its own.
        neighbouring: "add_remove" or "replace_one".

    Raises:
        ValueError, TypeError: a field is out of range or of another type.

    Example:
        >>> from privstream.mechanisms.noise.sources import SeededNoise
        >>> made = PersonHistograms(epsilon=1.0, grids=(Grid("contributions", WHOLE_NUMBERS),))
        >>> true = made.grids[0].tally(np.array([1, 1, 7, 8, 100_000]))
        >>> true[:6].tolist(), int(true[-1])
        ([2, 0, 0, 0, 0, 2], 1)
        >>> noisy = made.release({"contributions": true}, SeededNoise(1))
        >>> bool((abs(noisy["contributions"] - true) < 30).all())
        True

    Source: Dwork, McSherry, Nissim, Smith (2006), Example 1; docs/proofs/limits.md, Theorem 1.
    """

    epsilon: float
    grids: Sequence[Grid]
    neighbouring: str = "add_remove"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        names = [grid.name for grid in self.grids]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"grids must have at least one grid, and names of their own, got {', '.join(names)}")
        for grid in self.grids:
            checks.integer("weight", grid.weight, minimum=1)
            if not grid.edges or not bool((np.diff(grid.edges) > 0).all()):
                raise ValueError(f"edges must increase, got those of {grid.name}")
        _ = self._released

    @cached_property
    def _released(self) -> Mapping[str, CountedQueries]:
        """What publishes the cells of each grid."""
        total = sum(grid.weight for grid in self.grids)
        return {
            grid.name: CountedQueries(
                epsilon=self.epsilon * grid.weight / total * (ROUNDED if len(self.grids) > 1 else 1.0),
                domain_size=grid.cells,
                neighbouring=self.neighbouring,
            )
            for grid in self.grids
        }

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy of all grids together."""
        return PrivacyGuarantee(
            unit=PERSON,
            neighbouring=self.neighbouring,
            epsilon=self.epsilon,
            delta=0.0,
            limits=("Each person counts once in each distribution.", "It covers one data set."),
            public=("all parameters",),
            adaptivity="All of it is published at once.",
            proof="docs/proofs/limits.md, Theorem 1",
            caveats=(KEYED_NOISE, GIVEN_NUMBERS),
        )

    def scale(self, name: str) -> float:
        """Return the scale of the noise in each cell of a grid, in people."""
        return (2.0 if self.neighbouring == "replace_one" else 1.0) / self._released[name].epsilon

    def release(self, counts: Mapping[str, Integers], noise: NoiseSource) -> dict[str, Integers]:
        """Return the counts of all cells with noise.

        Args:
            counts: people in each cell, int64 (cells,), of every grid by its name; private.
            noise: of this data set; the same counts get the same noise, and other counts other noise.

        Raises:
            ValueError: counts of a grid are missing, or have another shape.
        """
        if set(counts) != set(self._released):
            raise ValueError(f"counts must be those of {', '.join(self._released)}, got {', '.join(counts)}")
        return {
            name: made.release(counts[name], noise.derive("people by number", name)).counts
            for name, made in self._released.items()
        }
