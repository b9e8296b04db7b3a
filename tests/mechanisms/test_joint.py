"""What several mechanisms cost together."""

import itertools
import math

import numpy as np
import pytest
from privstream.mechanisms.privacy.accounting import (
    ComposedCurve,
    GaussianCurve,
    GaussianWithPoints,
    PointCurve,
    PrivacyCurve,
    PureDp,
    SlackCurve,
    joint_curve,
    largest_shift,
)
from scipy import stats


def test_gaussian_parts_add_up_by_squares() -> None:
    """Two shifts of 3 and 4 are one of 5."""
    curve = joint_curve([GaussianCurve(shift=0.3), GaussianCurve(shift=0.4)])
    assert isinstance(curve, GaussianCurve)
    assert curve.shift == pytest.approx(0.5, rel=1e-9) and curve.shift >= 0.5


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.3])
def test_the_largest_shift_keeps_its_delta(delta: float) -> None:
    """It leaves hardly anything of it."""
    for epsilon in (0.1, 1.0, 8.0):
        assert 0.999 * delta < GaussianCurve(shift=largest_shift(epsilon, delta)).delta(epsilon) <= delta


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


POINTS = (PointCurve(at_epsilon=0.8, at_delta=3e-3), PureDp(0.3), PureDp(0.3))


@pytest.mark.parametrize("shift", [0.0, 0.2, 1.5])
@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0, 3.0])
def test_points_beside_gaussian_noise_have_a_closed_form(shift: float, epsilon: float) -> None:
    """It is what a numerical integral over both laws says, and what a fine grid rounds up."""
    found = GaussianWithPoints(shift=shift, points=POINTS)
    noise = [GaussianCurve(shift=shift)] if shift else []
    grid = ComposedCurve(curves=(*noise, *POINTS), interval=1e-4).delta(epsilon)
    assert found.delta(epsilon) * (1 - 1e-9) <= grid <= found.delta(epsilon) * 1.01 + 2e-4 * math.exp(-epsilon)

    outcomes = np.linspace(-12, 12 + shift, 200_001) if shift else np.zeros(1)
    one = stats.norm.pdf(outcomes - shift) * (outcomes[1] - outcomes[0]) if shift else np.ones(1)
    other = stats.norm.pdf(outcomes) * (outcomes[1] - outcomes[0]) if shift else np.ones(1)
    total, shown = 0.0, 1 - math.prod(1 - point.at_delta for point in POINTS)
    for signs in itertools.product((1, -1), repeat=len(POINTS)):
        chance = [1 / (1 + math.exp(-sign * point.at_epsilon)) for sign, point in zip(signs, POINTS, strict=True)]
        same, swapped = math.prod(chance), math.prod(1 - each for each in chance)
        total += np.maximum(0.0, same * one - math.exp(epsilon) * swapped * other).sum()
    assert found.delta(epsilon) == pytest.approx(shown + (1 - shown) * total, rel=1e-5, abs=1e-12)


def test_a_monitor_of_points_and_noise_needs_no_distributions() -> None:
    """The least epsilon is at most what each adds by itself; a slack of a point is a part of its delta."""
    parts = [GaussianCurve(shift=0.2), SlackCurve(curve=PureDp(0.5), slack=1e-8)]
    found = joint_curve(parts)
    assert found == GaussianWithPoints(shift=found.shift, points=(PointCurve(at_epsilon=0.5, at_delta=1e-8),))
    assert isinstance(joint_curve([PureDp(0.1)] * 11), ComposedCurve)
    with pytest.raises(TypeError, match="points must be a tuple of 1 to 10 points"):
        GaussianWithPoints(shift=0.1, points=())
