"""Error bounds of live histograms and flags, window by window, that hold for the whole run together."""

from __future__ import annotations

import functools
import math
from typing import cast

import numpy as np
from privstream.mechanisms.counters.counter_error import counter_error
from privstream.mechanisms.histograms.anchored_partition import AnchoredPartition
from privstream.mechanisms.histograms.histogram_queries import HistogramQueries
from privstream.mechanisms.histograms.paper_partition import PaperPartition


def error_bound(mechanism: HistogramQueries, step: int, interval: int) -> int:
    """Return how far answers are off at most at step 1, 2, ..: with probability 1 - beta, all of them, at all steps.

    The bound depends on the step and on how many intervals have been closed, which the answers show anyway; in mode
    direct an interval is a step. See docs/proofs/live_histograms.md.
    """
    if mechanism.chosen_mode == "direct":
        return _direct(mechanism, (step - 1).bit_length() if mechanism.horizon is None else 0)
    if mechanism.chosen_mode == "anchored":
        return _anchored(mechanism, step if mechanism.horizon is None else 1, interval)
    return _paper(mechanism, step, interval)


@functools.lru_cache(maxsize=1024)
def _direct(mechanism: HistogramQueries, doublings: int) -> int:
    """Return the error of a counter: over the horizon, or, without one, up to a power of two of steps."""
    if mechanism.horizon is not None:
        return mechanism.counter.error(mechanism.horizon, mechanism.beta)
    return counter_error(mechanism.counter, 1 << doublings, mechanism.beta)


@functools.lru_cache(maxsize=1024)
def _anchored(mechanism: HistogramQueries, step: int, interval: int) -> int:
    """Return the error of the last sums that the counter gave, and of half of what may have been added unseen."""
    partition = cast(AnchoredPartition, mechanism.partition)
    unseen = int(partition.unseen(np.array([step]), interval)[0])
    return partition.counter_bound(interval) + (unseen + 1) // 2


@functools.lru_cache(maxsize=1024)
def _paper(mechanism: HistogramQueries, step: int, interval: int) -> int:
    """Return the error of the listing."""
    partition, number = cast(PaperPartition, mechanism.partition), interval + 1
    counter = counter_error(partition.counter, number, float(partition.counter_beta(number)))
    rest = float(partition.rise(step, number) + 2 * partition.margin(step, number)) + partition.gamma_bound(number)
    return math.ceil(rest + 3 * counter + 1)
