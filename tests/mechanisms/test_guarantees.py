"""Guarantees and curves: what is read as it was written, how curves add up, and the shifts that dominate them."""

import importlib
import json
import math
import pkgutil

import numpy as np
import privstream.mechanisms
import pytest
from privstream.mechanisms import PrivacyGuarantee
from privstream.mechanisms.privacy.accounting import (
    ClockCurve,
    ComposedCurve,
    GaussianCurve,
    PointCurve,
    PureComposition,
    PureDp,
    SlackCurve,
    StatusCurve,
    beside,
    gaussian_sigma,
    joint_curve,
    largest_shift,
    shift_beside,
    shift_of_noise,
)
from privstream.mechanisms.privacy.guarantee import (
    CURVES,
    guarantee_record,
    read_guarantee,
    read_guarantee_file,
    shift_of,
    shift_of_point,
)
from privstream.mechanisms.privacy.units import EVENT, PERSON
from scipy import stats

EPSILONS = (0.0, 0.1, 0.5, 0.9, 1.0, 1.5, 4.0)
NOISE, CLOCK = GaussianCurve(shift=0.25), ClockCurve(eta=0.1, clocks=20)


def promise(epsilon, delta, curve=None):
    return PrivacyGuarantee(unit=PERSON, epsilon=epsilon, delta=delta, curve=curve)


def written_and_read(guarantee: PrivacyGuarantee) -> PrivacyGuarantee:
    return read_guarantee(json.loads(json.dumps(guarantee_record(guarantee), allow_nan=False)))


KINDS = [
    (NOISE, 1.001),
    (SlackCurve(curve=NOISE, slack=5e-7), 1.1),
    (PointCurve(at_epsilon=0.5, at_delta=5e-7), None),
    (PureDp(0.5), None),
    (ComposedCurve(curves=(NOISE, CLOCK, PureDp(0.1))), 1.1),
    (CLOCK, 1.02),
    (StatusCurve(eta=0.1, charges=20), 1.02),
    (PureComposition(rounds=20, round_epsilon=0.1), 1.2),
]
kinds = pytest.mark.parametrize(("curve", "most"), KINDS, ids=lambda curve: type(curve).__name__)


@kinds
def test_a_guarantee_comes_back_with_its_curve(curve, most):
    one = promise(curve.epsilon(1e-6), 1e-6, curve)
    found = written_and_read(one)
    assert (found, found.curve) == (one, curve)
    assert [found.curve.delta(each) for each in EPSILONS] == [curve.delta(each) for each in EPSILONS]


def test_every_kind_of_curve_can_be_written():
    """All classes of the package that give privacy loss distributions, but those that others derive from."""
    found = set()
    for module in pkgutil.walk_packages(privstream.mechanisms.__path__, "privstream.mechanisms."):
        for one in vars(importlib.import_module(module.name)).values():
            if isinstance(one, type) and one.__module__.startswith("privstream.") and hasattr(one, "to_pld"):
                found.add(one)
    assert {one.__name__ for one in found} - {"PrivacyCurve", "DivergenceCurve"} == set(CURVES)


def test_a_guarantee_without_a_curve_is_its_one_point():
    one = PrivacyGuarantee(unit=EVENT, epsilon=0.5, delta=1e-6)
    assert guarantee_record(one)["curve"] is None
    found = written_and_read(one)
    assert found == one
    assert found.curve is None
    assert found.known_curve == PointCurve(at_epsilon=0.5, at_delta=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"privacy_unit": {"what": "person", "period": 7}}, "privacy_unit must be a record of what"),
        ({"epsilon": -1.0}, "epsilon must be finite and >= 0"),
        ({"curve": {"type": "list"}}, "curve must be a record with a type of"),
        ({"curve": {"type": "PureDp", "at_epsilon": 1.0}}, "curve must have all fields of PureDp"),
        ({"curve": {"type": "PureDp", "at_epsilon": math.inf, "at_delta": 0.0}}, "at_epsilon must be finite"),
        (
            {"curve": {"type": "PureDp", "at_epsilon": 9.0, "at_delta": 0.0}},
            "curve must promise delta 0 at epsilon 0.5",
        ),
        (
            {"curve": {"type": "ComposedCurve", "curves": [], "interval": 1.0}},
            "curve must be one that can be computed",
        ),
        ({"curve": {"type": "SlackCurve", "curve": 3, "slack": 0.1}}, "curve must be one that can be computed"),
        ({"limits": 5}, "limits must be a list of texts"),
        ({"caveats": [None]}, "caveats must be a list of texts"),
        ({"adaptivity": 7}, "adaptivity must be a text, got int"),
        ({"privacy_unit": {"what": "person", "window": 10**400}}, "window must be <="),
    ],
)
def test_what_was_not_written_so_is_refused(change, message):
    one = PrivacyGuarantee(unit=EVENT, epsilon=0.5, delta=0.0)
    with pytest.raises((ValueError, TypeError), match=message):
        read_guarantee(guarantee_record(one) | change)


def test_a_file_that_is_no_guarantee_is_named(tmp_path):
    path = tmp_path / "rows.guarantee.json"
    one = PrivacyGuarantee(unit=EVENT, epsilon=0.5, delta=0.0, curve=PureDp(0.5))
    path.write_text(json.dumps({"guarantee": guarantee_record(one), "parameters": {}}))
    assert (read_guarantee_file(str(path)), read_guarantee_file(str(path)).curve) == (one, PureDp(0.5))
    for content in ("[]", "{", "{}", json.dumps({"guarantee": {"version": 7}, "parameters": {}})):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"rows.guarantee.json must be a guarantee that a command has written"):
            read_guarantee_file(str(path))


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
    assert curve.to_pld(1e-4).get_delta_for_epsilon(1.001) == pytest.approx(1e-5, rel=1e-6)


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
    assert ComposedCurve(curves=(PureDp(0.5), PureDp(0.25))).epsilon(1e-9) == pytest.approx(0.75, abs=1e-3)
    clocks = ClockCurve(eta=0.05, clocks=1)
    both = ComposedCurve(curves=(clocks, clocks), interval=1e-3)
    assert both.epsilon(1e-6) < 2 * clocks.epsilon(5e-7)
    assert both.delta(0.8) == pytest.approx(ClockCurve(eta=0.05, clocks=2).delta(0.8), rel=0.01)
    assert both.delta(0.8) >= ClockCurve(eta=0.05, clocks=2).delta(0.8) * (1 - 1e-6)


@kinds
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


def test_gaussian_parts_add_up_by_squares():
    curve = joint_curve([GaussianCurve(shift=0.3), GaussianCurve(shift=0.4)])
    assert isinstance(curve, GaussianCurve)
    assert curve.shift == pytest.approx(0.5, rel=1e-9) and curve.shift >= 0.5


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.3])
def test_the_largest_shift_keeps_its_delta(delta):
    for epsilon in (0.1, 1.0, 8.0):
        assert 0.999 * delta < GaussianCurve(shift=largest_shift(epsilon, delta)).delta(epsilon) <= delta


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_slack_is_at_least_what_it_covers(epsilon):
    one = SlackCurve(curve=GaussianCurve(shift=0.3), slack=1e-3)
    assert joint_curve([one]).delta(epsilon) >= one.delta(epsilon)
    ours, theirs = joint_curve([one, one]).delta(epsilon), ComposedCurve(curves=(one, one)).delta(epsilon)
    assert theirs * (1 - 1e-3) <= ours <= theirs + 5e-4  # each catastrophe is counted as if no other one had come


@pytest.mark.parametrize("others", [PureDp(0.3), ClockCurve(eta=0.05, clocks=4)])
def test_gaussian_noise_takes_what_another_mechanism_leaves(others):
    shift = shift_beside(others, 1.0, 1e-6)
    assert 0.98e-6 < beside(others, shift, 1.0).delta(1.0) <= 1e-6
    assert 0.3 * largest_shift(1.0, 1e-6) < shift < largest_shift(1.0, 1e-6)
    sigma = gaussian_sigma(shift, 2.0, 4)
    assert shift_of_noise(sigma, 4) == pytest.approx(shift, rel=1e-4) and shift_of_noise(sigma, 4) <= shift * (
        1 + 1e-11
    )


def test_gaussian_noise_is_refused_where_nothing_is_left():
    with pytest.raises(ValueError, match="must leave enough for noisy counts"):
        shift_beside(PureDp(1.5), 1.0, 1e-6)
    with pytest.raises(ValueError, match="delta must leave at least 1e-13"):
        shift_beside(PureDp(0.1), 1.0, 1e-14)
