"""How much limits leave out, as rows tell it privately (`--full_share`): in numbers, and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from privstream.mechanisms.keyed_counts.part_told import ASSUMED, TOLD_IN_PART, part_left_out

MUCH = 0.05
"""A run warns if such a share, or a larger one, of what its answers are about counts in none of them."""

SURELY = 3
"""What limits leave out is seen from so many standard deviations of noise on: all runs over files are looked at."""

LEAST_WINDOWS = 4
"""Of so many windows it is seen how much of what is left out is noise."""


class UsedUp(NamedTuple):
    """What rows tell, with noise, of the people who have used up their limit.

    Attributes:
        people: by the end of the last window.
        lower, upper: the ends of the interval of 95%.
        kept: all contributions that count.
    """

    people: int
    lower: int
    upper: int
    kept: float

    def surely(self, limit: int) -> bool:
        """Return whether much of what counts is surely that of people who have used up a limit of the whole run."""
        return self.lower * limit >= MUCH * max(self.kept, 1.0)


def used_up(rows: Sequence[Any], stddev: float) -> UsedUp | None:
    """Return what rows tell of the people who have used up their limit.

    None if no row tells it, or if limits surely leave out much: then a smaller one is not what to think of.

    Privacy: post-processing of what is published.

    Args:
        rows: of one run.
        stddev: of the noise of what limits leave out of a window.
    """
    counted = [row for row in rows if getattr(row, "used_up", None) is not None]
    totals = _totals(rows)
    if not counted or not len(totals):
        return None
    kept, left_out = totals.sum(axis=0).tolist()
    if left_out > SURELY * stddev * math.sqrt(len(totals)) and left_out >= MUCH * (kept + left_out):
        return None
    last = max(counted, key=lambda row: row.window_start)
    return UsedUp(last.used_up, last.used_up_lower, last.used_up_upper, kept)


def share_left_out(rows: Sequence[Any]) -> float | None:
    """Return which part of all contributions limits leave out, in [0, 1], by the noisy totals in rows.

    None if no row tells any, or if their sum is not above 0.

    Privacy: post-processing of what is published.
    """
    kept, left_out = _totals(rows).sum(axis=0).tolist()
    return min(1.0, max(0.0, left_out / (kept + left_out))) if kept + left_out > 0 else None


def limits_bind(rows: Sequence[Any]) -> bool:
    """Tell whether full numbers should be seen first: some are known, and limits leave out much, by noisy totals.

    Noise alone must not explain these: how large it is, differences of windows that follow each other show.
    """
    if (share_left_out(rows) or 0.0) < MUCH or all(row.full is None for row in rows):
        return False
    totals = _totals(rows)
    return bool(totals[:, 1].sum() > SURELY * _noise_of_sums(totals)[1])


def _totals(rows: Sequence[Any]) -> np.ndarray:
    """Return what is told of each window, in order: what counts and what is left out, float64 (windows, 2)."""
    told = {row.window_start.micros: (row.kept, row.left_out) for row in rows if getattr(row, "kept", None) is not None}
    return np.array([told[start] for start in sorted(told)], np.float64).reshape(-1, 2)


def _noise_of_sums(totals: np.ndarray) -> np.ndarray:
    """Return the standard deviations of the sums over all windows, float64 (2,), at most: 0 for too few windows.

    They come from differences of windows that follow each other, in which there are true changes, too.
    """
    if len(totals) < LEAST_WINDOWS:
        return np.zeros(2)
    return np.asarray(np.sqrt(np.square(np.diff(totals, axis=0)).mean(axis=0) / 2 * len(totals)))


def limits_in_words(rows: Sequence[Any], stddevs: tuple[float, float] | None) -> str:
    """Say how much limits leave out, and how many people have used up theirs; empty where no row tells it.

    Args:
        rows: of one run.
        stddevs: of the noise of what counts in a window, and of what is left out; None if only windows can show it.
    """
    totals = _totals(rows)
    if not len(totals):
        return ""
    counted = [row for row in rows if getattr(row, "used_up", None) is not None]
    used = ""
    if counted:
        last = max(counted, key=lambda row: row.window_start)
        between = f"between {last.used_up_lower:,} and {last.used_up_upper:,}"
        used = f"by the last window about {last.used_up:,} people ({between}) have used up theirs"
    noise = _noise_of_sums(totals) if stddevs is None else np.array(stddevs) * math.sqrt(len(totals))
    (kept, left_out), (of_kept, of_left_out) = totals.sum(axis=0).tolist(), np.square(noise).tolist()
    found = part_left_out(kept, left_out, (of_kept, of_left_out))
    if found is None:
        told = "Noise is too large to tell how much limits leave out."
        return f"{told} With noise: {used}." if used else told
    share, least, most = found
    between = f" (between {100 * least:.0f}% and {100 * most:.0f}%)" if of_left_out else ""
    told = f"With noise: limits leave out about {100 * share:.0f}%{between} of all contributions ({TOLD_IN_PART})"
    return f"{told}, and {used}." if used else f"{told}."


FULL_IN_WORDS = (
    f"Full: the number as it would be without limits, if {ASSUMED}; its interval is one of 95% of each row by itself, "
    "if that is so."
)
