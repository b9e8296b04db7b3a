"""PipelineDP and OpenDP on contributions to keys that nobody knew: which keys they release, with counts and sums.

A contribution is a row (person, key, value). Both peers get rows that keep the limits, so that they drop none: at most
`contributions` rows of a person, with one to a key, and values in [0, largest].
"""

import functools
import importlib.util
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Released = dict[Any, tuple[float, float]]
"""Keys with a count and a sum."""


def installed(module: str, name: str) -> bool:
    """Return whether a peer is installed; say so if not."""
    found = importlib.util.find_spec(module) is not None
    if not found:
        print(f"{name} is not installed and left out: pip install 'privstream[bench]'")
    return found


def pipeline_dp(
    rows: list[tuple[int, Any, float]], epsilon: float, delta: float, contributions: int, largest: float | None
) -> Released:
    """Release keys by its private partition selection; noise and selection are Gaussian, the better choice here."""
    import pipeline_dp as dp  # noqa: PLC0415

    accountant = dp.NaiveBudgetAccountant(total_epsilon=epsilon, total_delta=delta)
    engine = dp.DPEngine(accountant, dp.LocalBackend())
    values = {} if largest is None else {"min_value": 0.0, "max_value": largest}
    parameters = dp.AggregateParams(
        noise_kind=dp.NoiseKind.GAUSSIAN,
        metrics=[dp.Metrics.COUNT] + ([dp.Metrics.SUM] if values else []),
        max_partitions_contributed=contributions,
        max_contributions_per_partition=1,
        partition_selection_strategy=dp.PartitionSelectionStrategy.GAUSSIAN_THRESHOLDING,
        **values,
    )
    extractors = dp.DataExtractors(privacy_id_extractor=_person, partition_extractor=_key, value_extractor=_value)
    result: Any = engine.aggregate(rows, parameters, extractors)
    accountant.compute_budgets()
    return {key: (found.count, found.sum if values else math.nan) for key, found in result}


def open_dp(
    counts: Integers, sums: Integers, epsilon: float, delta: float, contributions: int, largest: int
) -> Released:
    """Release keys whose noisy count reaches a threshold, and their noisy sums; half of the budget each."""
    import opendp.prelude as dp  # noqa: PLC0415

    released = open_dp_counts(counts, epsilon, delta, contributions, shares=2)
    unit = unit_scale(epsilon, delta / 2) * math.sqrt(2 * contributions)
    vectors = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    keys = list(released)
    noisy = dp.m.make_gaussian(*vectors, scale=unit * largest)(sums[keys].tolist())
    return {key: (released[key], total) for key, total in zip(keys, noisy, strict=True)}


def open_dp_counts(
    counts: Integers, epsilon: float, delta: float, contributions: int, shares: int = 1
) -> dict[int, float]:
    """Release keys whose noisy count reaches a threshold, with these counts, for one of so many shares of the budget.

    Half of delta pays for keys that one person makes known. It composes by zero-concentrated privacy.
    """
    import opendp.prelude as dp  # noqa: PLC0415

    dp.enable_features("contrib")
    unit = unit_scale(epsilon, delta / 2) * math.sqrt(shares * contributions)
    numbers = dp.map_domain(dp.atom_domain(T=int), dp.atom_domain(T=float, nan=False))
    space = numbers, dp.l02inf_distance(dp.absolute_distance(T=float))

    def select(threshold: float) -> Any:
        return dp.m.make_gaussian_threshold(*space, scale=unit, threshold=threshold)

    change = (contributions, math.sqrt(contributions), 1.0)
    threshold = dp.binary_search(lambda at: select(at).map(change)[1] <= delta / 2, bounds=(2.0, 1e6))
    released: dict[int, float] = select(threshold)({key: float(counts[key]) for key in np.flatnonzero(counts).tolist()})
    return released


@functools.cache
def unit_scale(epsilon: float, delta: float) -> float:
    """Return the scale of Gaussian noise on one number of sensitivity 1, by the accounting of OpenDP."""
    import opendp.prelude as dp  # noqa: PLC0415

    space = dp.atom_domain(T=int), dp.absolute_distance(T=int)

    def spent(scale: float) -> float:
        return float(
            dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(dp.m.make_gaussian(*space, scale)), delta).map(1)[0]
        )

    return float(dp.binary_search(lambda scale: spent(scale) <= epsilon, bounds=(0.01, 1e4)))


def _person(row: tuple[int, Any, float]) -> int:
    return row[0]


def _key(row: tuple[int, Any, float]) -> Any:
    return row[1]


def _value(row: tuple[int, Any, float]) -> float:
    return row[2]
