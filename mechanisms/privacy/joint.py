"""What several mechanisms cost together: Gaussian parts by the sum of squared shifts, others by privacy losses."""

from __future__ import annotations

import math
from collections.abc import Sequence

from privstream.mechanisms.privacy.accounting import (
    FUNCTION_ERROR,
    ComposedCurve,
    GaussianCurve,
    PrivacyCurve,
    SlackCurve,
)


def joint_curve(curves: Sequence[PrivacyCurve], interval: float = 1e-4) -> PrivacyCurve:
    """Return the curve of mechanisms that run at once and may feed each other.

    Privacy: docs/proofs/monitor.md, Theorem 1. A slack beside a Gaussian curve is covered by a catastrophe of its own,
    and the probabilities of these add up.

    Args:
        curves: of each mechanism, at least one, for the same unit and neighbours.
        interval: grid of the privacy losses of parts that are not Gaussian, > 0.

    Raises:
        ValueError: a slack is larger than what its curve leaves at epsilon 0.

    Example:
        >>> joint_curve([GaussianCurve(shift=0.3), GaussianCurve(shift=0.4)]).shift
        0.5000000000005
    """
    squares: list[float] = []
    lost: list[float] = []
    parts: list[PrivacyCurve] = []
    for curve in curves:
        inner, slack = (curve.curve, curve.slack) if isinstance(curve, SlackCurve) else (curve, 0.0)
        if not isinstance(inner, GaussianCurve):
            parts.append(curve)
            continue
        rest = 1 - inner.delta(0.0)
        if slack >= rest:
            raise ValueError(f"slack must be < {rest:g}, which the curve leaves at epsilon 0, got {slack:g}")
        squares.append(inner.shift**2)
        lost.append(slack / rest)
    if squares:
        parts.insert(0, GaussianCurve(shift=math.sqrt(math.fsum(squares)) * (1 + FUNCTION_ERROR)))
    together = parts[0] if len(parts) == 1 else ComposedCurve(curves=tuple(parts), interval=interval)
    slack = math.fsum(lost) * (1 + FUNCTION_ERROR)
    return SlackCurve(curve=together, slack=slack) if slack else together
