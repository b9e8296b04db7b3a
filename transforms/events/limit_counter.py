"""How much a limit leaves out, for who runs it: counters of what came to it and of what it left out."""

from __future__ import annotations

from apache_beam.metrics.metric import Metrics
from privstream.transforms.timing.steps import Steps

PARTS = ("", "_at_first", "_at_last")
"""How names of counters end: in all, in the first quarter of the windows, and in the last."""

QUARTER = 4


class LimitCounter:
    """Counts what comes to a limit, and what it leaves out; with `steps`, at the beginning and at the end of a run too.

    A limit that people use up leaves out more at the end, which can look like a decline. Where the number of windows is
    public, and more than one, what comes in the first quarter of them and in the last is counted by itself; where
    everything starts afresh, that is in the quarters of each period. The counters are exact, and not for publication.

    Args:
        name: of the limit: the counters are `<name>_before_limit` and `<name>_over_limit`, and those of quarters.
        steps: the windows; None where it is not known to which one an event belongs.
    """

    def __init__(self, name: str, steps: Steps | None = None) -> None:
        self._came = [Metrics.counter("privstream", f"{name}_before_limit{part}") for part in PARTS]
        self._left_out = [Metrics.counter("privstream", f"{name}_over_limit{part}") for part in PARTS]
        self._steps = None if steps is None or (steps.count or 1) < 2 else steps

    def add(self, step: int, came: int, left_out: int) -> None:
        """Count what came in a step, and how much of it was left out."""
        for part in self._parts(step):
            self._came[part].inc(came)
            self._left_out[part].inc(left_out)

    def _parts(self, step: int) -> list[int]:
        """Return which counters a step belongs to."""
        if self._steps is None or self._steps.count is None:
            return [0]
        number, windows = self._steps.number(step), self._steps.count
        first, last = QUARTER * (number - 1) < windows, QUARTER * (windows - number) < windows
        return [0, *([1] if first else []), *([2] if last else [])]
