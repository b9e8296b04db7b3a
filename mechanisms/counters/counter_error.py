"""The error that a counter keeps within for all its steps."""

from __future__ import annotations

import functools
from typing import Any

from privstream.mechanisms.counters.continual_counter import ContinualCounter


def counter_error(counter: ContinualCounter, intervals: int, beta: float) -> int:
    """Return an error that the counter keeps within for all its steps with probability 1 - beta, at `intervals` steps.

    Steps are counted up to a power of two, each with its share of beta.
    """
    return _doubled_error(counter, max(0, intervals - 1).bit_length(), beta)


@functools.lru_cache(maxsize=4096)
def _doubled_error(counter: Any, doublings: int, beta: float) -> int:
    steps = min(1 << doublings, counter.horizon)
    return int(counter.error(steps, beta / ((doublings + 1) * (doublings + 2))))
