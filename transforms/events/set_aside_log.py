"""The log of each worker reports which records became dead letters: how many, by reason, from time to time."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import apache_beam as beam
from privstream.transforms.events.dead_letters import DeadLetter

SECONDS_BETWEEN_LINES = 60
REASONS_NAMED = 5

_LOGGER = logging.getLogger(__name__)


class SetAsideLog:
    """Counts the records that a worker process has read and set aside, and logs the first ones and then once a minute.

    *Privacy*: lines say how many records break which rule; they are exact, and for operators alone, like counters.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._reasons: Counter[str] = Counter()
        self._read = 0
        self._last: float | None = None

    def read(self, records: int) -> None:
        """Count records that were read, whether they can be used or not."""
        with self._lock:
            self._read += records

    def add(self, reasons: Counter[str]) -> None:
        """Count records that were set aside, and log what has not been logged unless a line came lately."""
        with self._lock:
            self._reasons += reasons
            now = self._clock()
            if self._last is None or now - self._last >= SECONDS_BETWEEN_LINES:
                self._write(now)

    def flush(self) -> None:
        """Log what has not been logged, and forget what was read: the worker ends, and another pipeline may follow."""
        with self._lock:
            self._write(self._clock())
            self._read = 0

    def _write(self, now: float) -> None:
        """Write a line about all since the last one."""
        number = self._reasons.total()
        if not number:
            return
        read = f" of {self._read:,}" if self._read >= number else ""
        named = self._reasons.most_common(REASONS_NAMED)
        parts = [f"{times:,} because {reason}" for reason, times in named]
        if rest := number - sum(times for _, times in named):
            parts.append(f"{rest:,} for other reasons")
        _LOGGER.warning(
            "privstream: %s%s records could not be used: %s; with_dead_letters() gives them",
            f"{number:,}",
            read,
            ", ".join(parts),
        )
        self._reasons.clear()
        self._read, self._last = 0, now


LOG = SetAsideLog()
"""That of this process."""


class LogSetAside(beam.DoFn):
    """Tell the log what a stage sets aside."""

    def __init__(self) -> None:
        self._reasons: Counter[str] = Counter()

    def start_bundle(self) -> None:
        """Start with nothing."""
        self._reasons = Counter()

    def process(self, letter: DeadLetter) -> Iterator[None]:
        """Count a dead letter."""
        self._reasons[letter.reason] += 1
        yield from ()

    def finish_bundle(self) -> None:
        """Pass on what was counted."""
        if self._reasons:
            LOG.add(self._reasons)

    def teardown(self) -> None:
        """Log what is left."""
        LOG.flush()
