"""Records that cannot be used: they leave the pipeline by an output of their own, and are logged."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from apache_beam.coders import RowCoder
from apache_beam.coders.typecoders import registry
from apache_beam.pvalue import TaggedOutput
from privstream.transforms.reading.fields import DEAD_LETTERS, BrokenRuleError, DeadLetter, broken_letter

registry.register_coder(DeadLetter, RowCoder)


def set_aside(
    rule: BrokenRuleError, record: str, source: str = "event", *, counter: str = "events", number: int = 1
) -> Any:
    """Count records that break a rule, in all and by the code of the rule, and return their dead letter."""
    return TaggedOutput(DEAD_LETTERS, broken_letter(rule, record, source, counted_as=counter, number=number))


def text_of(element: Any) -> str:
    """Return any element as text that can be written in UTF-8."""
    try:
        return repr(element).encode("utf-8", "backslashreplace").decode()
    except Exception:  # it may be anything, and what cannot be shown must not end the run
        return f"a {type(element).__name__} that cannot be shown"


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
            if self._reasons:
                self._write(self._clock())
            self._read = 0

    def _write(self, now: float) -> None:
        """Write a line about all since the last one."""
        number = self._reasons.total()
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
