"""What several mechanisms cost together."""

import math

import pytest
from privstream.mechanisms.privacy.accounting import (
    ComposedCurve,
    GaussianCurve,
    PrivacyCurve,
    PureDp,
    SlackCurve,
    joint_curve,
)


def test_gaussian_parts_add_up_by_squares() -> None:
    """Two shifts of 3 and 4 are one of 5."""
    curve = joint_curve([GaussianCurve(shift=0.3), GaussianCurve(shift=0.4)])
    assert isinstance(curve, GaussianCurve)
    assert curve.shift == pytest.approx(0.5, rel=1e-9) and curve.shift >= 0.5


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_slack_is_at_least_what_it_covers(epsilon: float) -> None:
    """Alone a curve with slack gets no better; two cost at least what their distributions compose to, nearly."""
    one = SlackCurve(curve=GaussianCurve(shift=0.3), slack=1e-3)
    assert joint_curve([one]).delta(epsilon) >= one.delta(epsilon)
    ours, theirs = joint_curve([one, one]).delta(epsilon), ComposedCurve(curves=(one, one)).delta(epsilon)
    assert theirs * (1 - 1e-3) <= ours <= theirs + 5e-4  # each catastrophe is counted as if no other one had come


def test_other_parts_are_composed() -> None:
    """A pure part beside a Gaussian one costs more than each of them, and at most their sum."""
    parts: list[PrivacyCurve] = [GaussianCurve(shift=0.2), PureDp(0.5)]
    found = joint_curve(parts).epsilon(1e-6)
    assert max(part.epsilon(1e-6) for part in parts) < found <= sum(part.epsilon(5e-7) for part in parts) + 1e-3


def test_slack_that_leaves_nothing_is_refused() -> None:
    """No catastrophe is so likely."""
    with pytest.raises(ValueError, match="slack must be <"):
        joint_curve([SlackCurve(curve=GaussianCurve(shift=3.0), slack=0.5)])
    assert math.isfinite(joint_curve([PureDp(1.0)]).epsilon(1e-6))
