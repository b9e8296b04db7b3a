import math

import pytest
from privstream.mechanisms.monitor.clock import ClockCurve
from privstream.mechanisms.privacy.accounting import ComposedCurve, GaussianCurve, PointCurve, PureDp, SlackCurve
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import EVENT, PERSON


def guarantee(epsilon=0.5, delta=0.0, **changes):
    fields = {"unit": EVENT, "neighbouring": "add_remove", "epsilon": epsilon, "delta": delta}
    return PrivacyGuarantee(**{**fields, **changes})


def test_a_point_says_what_randomised_response_says_elsewhere():
    curve = PureDp(1.0)
    response = math.e / (1 + math.e)
    assert curve.delta(0.0) == pytest.approx(2 * response - 1)
    assert curve.delta(0.5) == pytest.approx(response - math.exp(0.5) * (1 - response))
    assert curve.delta(1.0) == curve.delta(5.0) == 0.0
    assert PointCurve(1.0, 1e-6).delta(2.0) == 1e-6
    assert PointCurve(1.0, 1e-6).epsilon(1e-6) == 1.0
    assert PointCurve(1.0, 1e-6).epsilon(1e-7) == math.inf


def test_epsilon_inverts_delta_from_above():
    curve = ClockCurve(eta=0.0669, clocks=4)
    for delta in (1e-3, 1e-6, 1e-9):
        epsilon = curve.epsilon(delta)
        assert curve.delta(epsilon) <= delta < curve.delta(epsilon * (1 - 1e-6))
    assert curve.epsilon(0.9) == 0.0


def test_slack_adds_to_delta():
    curve = SlackCurve(curve=PureDp(1.0), slack=1e-5)
    assert curve.delta(1.0) == 1e-5
    assert curve.epsilon(2e-5) == pytest.approx(PureDp(1.0).epsilon(1e-5))
    assert curve.epsilon(1e-6) == math.inf
    assert curve.to_pld().get_delta_for_epsilon(1.001) == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize("inner", [GaussianCurve(shift=1.0), ClockCurve(eta=0.5, clocks=4)], ids=repr)
def test_no_delta_of_a_distribution_with_slack_is_below_its_curve(inner):
    curve = SlackCurve(curve=inner, slack=0.1)
    loss = curve.to_pld(1e-3)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0):
        assert loss.get_delta_for_epsilon(epsilon) >= curve.delta(epsilon) - 1e-9
        assert loss.get_delta_for_epsilon(epsilon) <= inner.delta(epsilon) + 0.1 / (1 - inner.delta(0.0)) + 1e-3
    with pytest.raises(ValueError, match=r"slack must be < 0\.6"):
        SlackCurve(curve=GaussianCurve(shift=1.0), slack=0.7).to_pld(1e-3)


def test_composition_adds_pure_epsilons_and_beats_adding_clocks():
    assert guarantee(0.5).compose(guarantee(0.25), delta=1e-9).epsilon == pytest.approx(0.75, abs=1e-3)
    clocks = ClockCurve(eta=0.05, clocks=1)
    both = ComposedCurve(curves=(clocks, clocks), interval=1e-3)
    assert both.epsilon(1e-6) < 2 * clocks.epsilon(5e-7)
    assert both.delta(0.8) == pytest.approx(ClockCurve(eta=0.05, clocks=2).delta(0.8), rel=0.01)
    assert both.delta(0.8) >= ClockCurve(eta=0.05, clocks=2).delta(0.8) * (1 - 1e-6)


def test_a_composed_guarantee_keeps_limits_and_the_shortest_horizon():
    found = guarantee(limits=("a",), horizon=9).compose(guarantee(limits=("a", "b"), horizon=5), delta=1e-9)
    assert found.limits == ("a", "b")
    assert found.horizon == 5
    assert found.curve.delta(found.epsilon) <= found.delta


@pytest.mark.parametrize(
    ("guarantees", "message"),
    [
        (
            (guarantee(unit=PERSON), guarantee()),
            r"unit must be protected by all guarantees: one for one event \(add_remove\) promises nothing to one "
            r"person over the whole run \(add_remove\)",
        ),
        ((guarantee(0.5, 1e-3),), "delta must be > the sum of what the guarantees cannot do without, got 1e-09"),
    ],
)
def test_what_cannot_be_composed_is_refused(guarantees, message):
    with pytest.raises(ValueError, match=message):
        guarantees[0].compose(*guarantees[1:], delta=1e-9)
