"""How much limits leave out, as rows tell it privately (`--full_share`): in numbers, and in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MUCH = 0.05
"""A run warns if such a share, or a larger one, of what its answers are about counts in none of them."""

LEAST_WINDOWS = 4
"""Of so many windows it is seen how much of what is left out is noise."""


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
    left_out = _totals(rows)[:, 1]
    noise = np.sqrt(np.square(np.diff(left_out)).mean() / 2) if len(left_out) >= LEAST_WINDOWS else 0.0
    return bool(left_out.sum() > 2 * noise * np.sqrt(len(left_out)))


def _totals(rows: Sequence[Any]) -> np.ndarray:
    """Return what is told of each window, in order: what counts and what is left out, float64 (windows, 2)."""
    told = {row.window_start.micros: (row.kept, row.left_out) for row in rows if getattr(row, "kept", None) is not None}
    return np.array([told[start] for start in sorted(told)], np.float64).reshape(-1, 2)


def limits_in_words(rows: Sequence[Any]) -> str:
    """Say how much limits leave out, and how many people have used up theirs; empty where no row tells it."""
    if (share := share_left_out(rows)) is None:
        return ""
    told = f"With noise: limits leave out about {100 * share:.0f}% of all contributions"
    counted = [row for row in rows if getattr(row, "used_up", None) is not None]
    if not counted:
        return f"{told}."
    last = max(counted, key=lambda row: row.window_start)
    return (
        f"{told}, and by the last window about "
        f"{last.used_up:,} people (between {last.used_up_lower:,} and {last.used_up_upper:,}) have used up theirs."
    )


FULL_IN_WORDS = (
    "Full: the number as it would be without limits, if what they leave out is like what counts; its interval is one "
    "of 95% of each row by itself, if that is so."
)
