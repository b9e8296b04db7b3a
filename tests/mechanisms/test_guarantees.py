"""Guarantees and accuracy: what they say, how they add up, and that they are read as they were written."""

import importlib
import json
import math
import pkgutil

import privstream.mechanisms
import pytest
from privstream.mechanisms import (
    DynamicPredecessor,
    ExponentialMechanismWithGap,
    FoundKeys,
    HistogramQueries,
    IncrementalPredecessor,
    KeyedCounts,
    MeasuredTopK,
    NoisyTopK,
    NumericQuantiles,
    OnlineMultiplicativeWeights,
    PrivacyGuarantee,
    RangeCounter,
    SetCardinality,
    SparseVector,
    ThresholdMonitor,
)
from privstream.mechanisms.guarantee_records import CURVES, guarantee_record, read_guarantee, read_guarantee_file
from privstream.mechanisms.privacy.accounting import ComposedCurve, GaussianCurve, PointCurve, PureDp, SlackCurve
from privstream.mechanisms.privacy.clocks import ClockCurve
from privstream.mechanisms.privacy.units import EVENT

MONITOR = {"epsilon": 1.0, "delta": 1e-6, "max_hits": 4, "horizon": 100}
MECHANISMS = [
    SparseVector(epsilon=1.0, max_hits=20, threshold=1000),
    SparseVector(epsilon=1.0, delta=1e-6, max_hits=20, threshold=1000, publish="values"),
    SparseVector(epsilon=1.0, max_hits=20, threshold=1000, publish="gaps", branches=3, monotone=True),
    OnlineMultiplicativeWeights(epsilon=1.0, domain_size=6, records=5360, alpha=0.2),
    OnlineMultiplicativeWeights(epsilon=1.0, delta=1e-6, domain_size=6, records=5360, alpha=0.2),
    ThresholdMonitor(**MONITOR),
    *[
        ThresholdMonitor(**MONITOR, domain_size=50, calibration=calibration, count_share=share)
        for calibration in ("clock", "paper")
        for share in (0.0, 0.5)
    ],
    ThresholdMonitor(**MONITOR, calibration="status"),
    ThresholdMonitor(**MONITOR, calibration="status", domain_size=50, count_share=0.0),
    ThresholdMonitor(epsilon=1.0, delta=1e-6, max_hits=4, calibration="status", starts=(500, 9), ends=(400, 9)),
    HistogramQueries(epsilon=1.0, columns=3, delta=1e-6, mode="anchored"),
    HistogramQueries(epsilon=1.0, columns=3, thresholds=(400, 10**6, 1000), mode="paper"),
    HistogramQueries(epsilon=1.0, delta=1e-6, columns=3, thresholds=(400, 10**6, 1000), horizon=20),
    SetCardinality(epsilon=1.0, horizon=100, max_updates=1000, mode="sparse"),
    RangeCounter(epsilon=1.0, delta=1e-6, universe=1 << 20, ranges=((1, 500), (300, 900))),
    RangeCounter(epsilon=1.0, universe=1 << 20, ranges=((1, 500), (300, 900))),
    DynamicPredecessor(epsilon=1.0, universe=1 << 20, horizon=6),
    IncrementalPredecessor(epsilon=1.0, universe=1 << 20),
    KeyedCounts(epsilon=1.0, delta=1e-6, contributions=7, public_keys=True),
    KeyedCounts(epsilon=1.0, delta=1e-6, contributions=7, max_value=4, over="start", horizon=9),
    FoundKeys(epsilon=1.0, delta=1e-6, contributions=7, horizon=20, min_people=2),
    KeyedCounts(epsilon=1.0, over="start", horizon=20, unit="event", public_keys=True),
    NumericQuantiles(epsilon=1.0, delta=1e-6, low=0, high=100, contributions=3),
    MeasuredTopK(epsilon=1.0, top=3, releases=5),
    MeasuredTopK(epsilon=1.0, delta=1e-6, top=3, releases=5),
    NoisyTopK(epsilon=1.0, top=3),
    NoisyTopK(epsilon=1.0, top=3, threshold=5),
    ExponentialMechanismWithGap(epsilon=1.0),
]
EPSILONS = (0.0, 0.1, 0.5, 0.9, 1.0, 1.5, 4.0)


def written_and_read(guarantee: PrivacyGuarantee) -> PrivacyGuarantee:
    return read_guarantee(json.loads(json.dumps(guarantee_record(guarantee), allow_nan=False)))


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda one: type(one).__name__)
def test_a_guarantee_comes_back_with_its_curve(mechanism):
    guarantee = mechanism.guarantee
    found = written_and_read(guarantee)
    assert found == guarantee
    assert found.curve == guarantee.curve
    assert guarantee.curve is not None
    assert [found.curve.delta(epsilon) for epsilon in EPSILONS] == [guarantee.curve.delta(each) for each in EPSILONS]
    assert found.curve.delta(found.epsilon) <= found.delta * (1 + 1e-6) + 1e-15


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
        ({"version": 3}, "version of a guarantee must be 2, got 3"),
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
        ({"version": True}, "version of a guarantee must be 2, got True"),
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
