"""What several mechanisms cost together."""

import pytest
from privstream.mechanisms.privacy.accounting import (
    ClockCurve,
    ComposedCurve,
    GaussianCurve,
    PrivacyCurve,
    PureDp,
    SlackCurve,
    beside,
    gaussian_sigma,
    joint_curve,
    largest_shift,
    shift_beside,
    shift_of_noise,
)


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


@pytest.mark.parametrize("others", [PureDp(0.3), ClockCurve(eta=0.05, clocks=4)])
def test_gaussian_noise_takes_what_another_mechanism_leaves(others: PrivacyCurve) -> None:
    """Both together keep the budget, and use nearly all of it."""
    shift = shift_beside(others, 1.0, 1e-6)
    assert 0.98e-6 < beside(others, shift, 1.0).delta(1.0) <= 1e-6
    assert 0.3 * largest_shift(1.0, 1e-6) < shift < largest_shift(1.0, 1e-6)
    sigma = gaussian_sigma(shift, 2.0, 4)
    assert shift_of_noise(sigma, 4) == pytest.approx(shift, rel=1e-4) and shift_of_noise(sigma, 4) <= shift * (
        1 + 1e-11
    )


def test_gaussian_noise_is_refused_where_nothing_is_left() -> None:
    """The other mechanism spends all, or delta is below what accounts resolve."""
    with pytest.raises(ValueError, match="must leave enough for noisy counts"):
        shift_beside(PureDp(1.5), 1.0, 1e-6)
    with pytest.raises(ValueError, match="delta must leave at least 1e-13"):
        shift_beside(PureDp(0.1), 1.0, 1e-14)
