"""How much limits leave out, as rows tell it privately (`counts --full_share`): in numbers, and in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MUCH = 0.05
"""A run warns if such a share, or a larger one, of what its answers are about counts in none of them."""


def share_left_out(rows: Sequence[Any]) -> float | None:
    """Return which part of all contributions limits leave out, in [0, 1], by the noisy totals in rows of `counts`.

    None if no row tells any, or if their sum is not above 0.

    Privacy: post-processing of what is published.
    """
    told = {row.window_start.micros: (row.kept, row.left_out) for row in rows if getattr(row, "kept", None) is not None}
    kept, left_out = (sum(numbers) for numbers in zip(*told.values(), strict=True)) if told else (0, 0)
    return min(1.0, max(0.0, left_out / (kept + left_out))) if kept + left_out > 0 else None


def limits_bind(rows: Sequence[Any]) -> bool:
    """Tell whether full numbers should be seen first: some are known, and limits leave out much, by noisy totals."""
    return (share_left_out(rows) or 0.0) >= MUCH and any(row.full is not None for row in rows)


def limits_in_words(rows: Sequence[Any]) -> str:
    """Say how much limits leave out, and how many people have used up theirs; empty where no row tells it."""
    if (share := share_left_out(rows)) is None:
        return ""
    last = max((row for row in rows if row.used_up is not None), key=lambda row: row.window_start)
    return (
        f"With noise: limits leave out about {100 * share:.0f}% of all contributions, and by the last window about "
        f"{last.used_up:,} people (between {last.used_up_lower:,} and {last.used_up_upper:,}) have used up theirs."
    )


FULL_IN_WORDS = (
    "Full: the number as it would be without limits, if what they leave out is like what counts; its interval is one "
    "of 95% of each row by itself, if that is so."
)
