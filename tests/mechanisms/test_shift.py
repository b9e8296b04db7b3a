"""The Gaussian shift and the slack of each curve dominate it everywhere, and are hardly larger than they must be."""

import numpy as np
import pytest
from privstream.mechanisms.privacy.accounting import (
    ClockCurve,
    ComposedCurve,
    GaussianCurve,
    PointCurve,
    PureComposition,
    PureDp,
    SlackCurve,
    StatusCurve,
    largest_shift,
)
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.shift import shift_of, shift_of_point
from privstream.mechanisms.privacy.units import PERSON
from scipy import stats

NOISE, CLOCK = GaussianCurve(shift=0.25), ClockCurve(eta=0.1, clocks=20)


def promise(epsilon, delta, curve=None) -> PrivacyGuarantee:
    return PrivacyGuarantee(unit=PERSON, epsilon=epsilon, delta=delta, curve=curve)


@pytest.mark.parametrize(
    ("curve", "most"),
    [
        (NOISE, 1.001),
        (SlackCurve(curve=NOISE, slack=5e-7), 1.1),
        (PointCurve(at_epsilon=0.5, at_delta=5e-7), None),
        (PureDp(0.5), None),
        (ComposedCurve(curves=(NOISE, CLOCK, PureDp(0.1))), 1.1),
        (CLOCK, 1.02),
        (StatusCurve(eta=0.1, charges=20), 1.02),
        (PureComposition(rounds=20, round_epsilon=0.1), 1.2),
    ],
    ids=lambda curve: type(curve).__name__,
)
def test_a_shift_and_a_slack_dominate_each_curve(curve, most):
    epsilon = curve.epsilon(1e-6)
    mu, slack = shift_of(promise(epsilon, 1e-6, curve))
    assert 0 <= slack <= 1e-6
    for one in np.linspace(0.0, 4 * epsilon, 101):
        bound = slack + (1 - slack) * GaussianCurve(shift=mu).delta(one)
        assert curve.delta(one) <= bound * (1 + 1e-9) + 1e-15
    if most is not None:
        assert mu <= most * largest_shift(epsilon, 1e-6)


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 30.0, 2000.0])
def test_the_shift_of_a_pure_epsilon_is_the_least_one(epsilon):
    mu, slack = shift_of_point(epsilon, 0.0)
    assert slack == 0
    assert stats.norm.logsf(mu / 2) == pytest.approx(-np.logaddexp(0, epsilon), rel=1e-6)
    if epsilon < 10:
        for one in np.linspace(0.0, epsilon, 50):
            assert PureDp(epsilon).delta(one) <= GaussianCurve(shift=mu).delta(one) + 1e-12


def test_without_a_curve_it_is_that_of_the_point_and_a_wrong_curve_is_refused():
    assert shift_of(promise(1.0, 1e-6)) == shift_of_point(1.0, 1e-6)
    with pytest.raises(ValueError, match="curve must promise delta 1e-06 at epsilon 1"):
        shift_of(promise(1.0, 1e-6, GaussianCurve(shift=1.0)))
