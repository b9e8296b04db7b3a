"""What people would do without continual counting: PipelineDP once per window, under composition."""

import importlib.util
import math
import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.privacy.accounting import GaussianCurve, largest_shift

Integers = NDArray[np.int64]


class Found(NamedTuple):
    """Estimates of the sums so far, (windows, columns), and the CPU seconds that they took."""

    sums: NDArray[np.float64]
    seconds: float


def has_pipeline_dp() -> bool:
    """Return whether the peer is installed."""
    return importlib.util.find_spec("pipeline_dp") is not None


def window_counts(rows: Integers, epsilon: float, delta: float) -> Found:
    """Count each window alone, and add up: an event is in one window, so each gets the whole budget."""
    start, found = time.process_time(), np.array([_count(row, epsilon, delta) for row in rows])
    return Found(np.cumsum(found, axis=0), time.process_time() - start)


def running_counts(rows: Integers, epsilon: float, delta: float) -> Found:
    """Count everything so far at each window: the budget is shared, by the exact composition of Gaussian noise."""
    each = epsilon / len(rows)
    if delta:
        each = GaussianCurve(shift=largest_shift(epsilon, delta) / math.sqrt(len(rows))).epsilon(delta)
    start, found = time.process_time(), np.array([_count(row, each, delta) for row in np.cumsum(rows, axis=0)])
    return Found(found, time.process_time() - start)


def _count(counts: Integers, epsilon: float, delta: float) -> list[float]:
    """Release the counts of a public list of categories; each event is a person of its own."""
    import pipeline_dp as dp  # noqa: PLC0415

    events = list(enumerate(np.repeat(np.arange(len(counts)), counts).tolist()))
    accountant = dp.NaiveBudgetAccountant(total_epsilon=epsilon, total_delta=delta)
    engine = dp.DPEngine(accountant, dp.LocalBackend())
    parameters = dp.AggregateParams(
        noise_kind=dp.NoiseKind.GAUSSIAN if delta else dp.NoiseKind.LAPLACE,
        metrics=[dp.Metrics.COUNT],
        max_partitions_contributed=1,
        max_contributions_per_partition=1,
    )
    extractors = dp.DataExtractors(
        partition_extractor=_category, privacy_id_extractor=_person, value_extractor=_nothing
    )
    result: Any = engine.aggregate(events, parameters, extractors, public_partitions=list(range(len(counts))))
    accountant.compute_budgets()
    released = dict(result)
    return [float(released[category].count) for category in range(len(counts))]


def _person(event: tuple[int, int]) -> int:
    return event[0]


def _category(event: tuple[int, int]) -> int:
    return event[1]


def _nothing(event: tuple[int, int]) -> int:
    return 0
