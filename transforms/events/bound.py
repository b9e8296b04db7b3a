"""The contribution limits per person, without Beam."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """How many contributions (distinct items in windows) count per person; which ones, the person's own events decide.

    Attributes:
        in_run: at most in the run, or in each budget period.
        per_window: at most in one window, random ones; None for no limit beside `in_run`.
        sampled: whether random ones of the whole run count, which is known when the input has ended; else they are
            paced: those that come first, but few enough by each window, so that something is left for the last one.
    """

    in_run: int
    per_window: int | None = None
    sampled: bool = False

    def allowed(self, number: int, windows: int | None) -> int:
        """Return how many may be used by the end of window `number`, from 1; what is not used is carried over.

        Whatever `in_run` is, a quarter of it may be used at once, and the last window may use up the rest. Without a
        last window all of it may be used at any time.
        """
        if self.sampled or windows is None:
            return self.in_run
        return min(self.in_run, -(-self.in_run * (windows + 3 * number) // (4 * windows)))
