"""Guarantees are written with their whole curve, and read back as they were."""

import dataclasses
import importlib
import json
import math
import pkgutil

import numpy as np
import privstream.mechanisms
import pytest
from privstream.mechanisms import (
    AboveThreshold,
    AdaptiveSparseVector,
    BinaryTreeCounter,
    ColumnFlags,
    CountedFlags,
    DynamicPredecessor,
    ExponentialMechanismWithGap,
    FoundKeys,
    HistogramQueries,
    HybridNoisyTopK,
    HybridSparseVector,
    IncrementalPredecessor,
    KaryTreeCounter,
    KeyedCounts,
    MeasuredTopK,
    NoisyTopK,
    NumericQuantiles,
    NumericSparse,
    OnlineMultiplicativeWeights,
    PrivacyGuarantee,
    RangeCounter,
    RuleMonitor,
    SetCardinality,
    Sparse,
    SparseVectorWithGap,
    SquareRootToeplitzCounter,
    StatusMonitor,
    ThresholdMonitor,
)
from privstream.mechanisms.guarantee_records import CURVES, guarantee_record, read_guarantee, read_guarantee_file
from privstream.mechanisms.privacy.accounting import PairCurve, PointCurve, PureDp, SlackCurve
from privstream.mechanisms.privacy.units import EVENT, PERSON, PrivacyUnit

MONITOR = {"epsilon": 1.0, "delta": 1e-6, "max_hits": 4, "horizon": 100}
MECHANISMS = [
    AboveThreshold(epsilon=1.0, threshold=1000, integer=True),
    Sparse(epsilon=1.0, max_hits=20, threshold=1000),
    NumericSparse(epsilon=1.0, delta=1e-6, max_hits=20, threshold=1000, integer=True),
    SparseVectorWithGap(epsilon=1.0, max_hits=20, threshold=1000, integer=True, monotone=True),
    AdaptiveSparseVector(epsilon=1.0, min_hits=20, branches=3, threshold=1000, noise_law="laplace"),
    OnlineMultiplicativeWeights(epsilon=1.0, domain_size=6, records=5360, alpha=0.2),
    OnlineMultiplicativeWeights(epsilon=1.0, delta=1e-6, domain_size=6, records=5360, alpha=0.2),
    *[
        ThresholdMonitor(**MONITOR, calibration=calibration, neighbouring=neighbouring, count_share=share)
        for calibration in ("clock", "target_charging", "paper")
        for neighbouring in ("add_remove", "replace_one")
        for share in (0.0, 0.5)
    ],
    ThresholdMonitor(**MONITOR, domain_size=50),
    StatusMonitor(**MONITOR),
    StatusMonitor(**MONITOR, domain_size=50, neighbouring="replace_one", count_share=0.0),
    RuleMonitor(epsilon=1.0, delta=1e-6, max_hits=4, starts=(500, 9), ends=(400, 9), many=(True, False)),
    BinaryTreeCounter(epsilon=1.0, columns=3, horizon=20),
    KaryTreeCounter(epsilon=1.0, columns=3, horizon=20),
    SquareRootToeplitzCounter(epsilon=1.0, columns=3, delta=1e-6, horizon=20),
    HistogramQueries(epsilon=1.0, columns=3, delta=1e-6, mode="anchored"),
    ColumnFlags(epsilon=1.0, columns=3, thresholds=(400, 10**6, 1000)),
    CountedFlags(epsilon=1.0, delta=1e-6, columns=3, thresholds=(400, 10**6, 1000), horizon=20),
    SetCardinality(epsilon=1.0, horizon=100, max_updates=1000, mode="sparse"),
    RangeCounter(epsilon=1.0, delta=1e-6, universe=1 << 20),
    RangeCounter(epsilon=1.0, universe=1 << 20),
    DynamicPredecessor(epsilon=1.0, universe=1 << 20, horizon=6),
    IncrementalPredecessor(epsilon=1.0, universe=1 << 20, group=3),
    KeyedCounts(epsilon=1.0, delta=1e-6, contributions=7),
    KeyedCounts(epsilon=1.0, delta=1e-6, contributions=7, max_value=4, neighbouring="replace_one"),
    FoundKeys(epsilon=1.0, delta=1e-6, contributions=7, horizon=20, min_people=2),
    KeyedCounts(epsilon=1.0, over="start", horizon=20, unit="event", public_keys=True),
    NumericQuantiles(epsilon=1.0, delta=1e-6, low=0, high=100, contributions=3),
    MeasuredTopK(epsilon=1.0, top=3, releases=5),
    MeasuredTopK(epsilon=1.0, delta=1e-6, top=3, releases=5),
    NoisyTopK(epsilon=1.0, top=3),
    HybridNoisyTopK(epsilon=1.0, top=3, threshold=5),
    HybridSparseVector(epsilon=1.0, top=3, threshold=5),
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


def test_every_mechanism_with_a_guarantee_is_written():
    exported = [getattr(privstream.mechanisms, name) for name in privstream.mechanisms.__all__]
    promising = {
        one for one in exported if isinstance(one, type) and isinstance(getattr(one, "guarantee", None), property)
    }
    missing = {one for one in promising if not any(isinstance(made, one) for made in MECHANISMS)}
    assert {one.__name__ for one in missing} <= {
        "BottomUpTreeCounter",
        "BufferedToeplitzCounter",
        "UnknownHorizonCounter",
    }
    for one in missing:  # their guarantee is that of the counters above
        assert one.guarantee is BinaryTreeCounter.guarantee


def test_every_kind_of_curve_can_be_written():
    """All classes of the package that give privacy loss distributions, but those that others derive from."""
    found = set()
    for module in pkgutil.walk_packages(privstream.mechanisms.__path__, "privstream.mechanisms."):
        for one in vars(importlib.import_module(module.name)).values():
            if isinstance(one, type) and one.__module__.startswith("privstream.") and hasattr(one, "to_pld"):
                found.add(one)
    assert {one.__name__ for one in found} - {PairCurve.__name__, "PrivacyCurve"} == set(CURVES)


def test_a_guarantee_without_a_curve_is_its_one_point():
    one = PrivacyGuarantee(unit=EVENT, neighbouring="add_remove", epsilon=0.5, delta=1e-6)
    assert guarantee_record(one)["curve"] is None
    found = written_and_read(one)
    assert found == one
    assert found.curve is None
    with_curve = dataclasses.replace(one, curve=PointCurve(at_epsilon=0.5, at_delta=1e-6))
    assert found.compose(found, delta=1e-5).epsilon == with_curve.compose(with_curve, delta=1e-5).epsilon


def test_numbers_of_numpy_become_plain():
    one = PrivacyGuarantee(unit=EVENT, neighbouring="add_remove", epsilon=0.5, delta=0.0, curve=PureDp(np.float64(0.5)))
    assert written_and_read(one).curve == PureDp(0.5)


def test_another_curve_is_refused():
    class Mine(PointCurve):
        pass

    one = PrivacyGuarantee(unit=EVENT, neighbouring="add_remove", epsilon=0.5, delta=0.0, curve=Mine(0.5))
    with pytest.raises(TypeError, match=r"curve must be one of PointCurve, .*, got Mine"):
        guarantee_record(one)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 3}, "version of a guarantee must be 1 or 2, got 3"),
        ({"privacy_unit": None}, "privacy_unit must be a record of what, window, origin, bound, same_direction"),
        ({"privacy_unit": {"what": "person", "period": 7}}, "privacy_unit must be a record of what"),
        ({"privacy_unit": {"what": "device"}}, "what must be one of person, event"),
        ({"version": 1, "unit": "one device"}, "unit must be one that version 1 of a guarantee has, got 'one device'"),
        ({"version": 1, "unit": "one change that moves no query by more than 1e"}, "unit must be one that version 1"),
        ({"epsilon": -1.0}, "epsilon must be finite and >= 0"),
        ({"neighbouring": "both"}, "neighbouring must be one of"),
        ({"curve": {"type": "list"}}, "curve must be a record with a type of"),
        ({"curve": [1]}, "curve must be a record with a type of"),
        ({"curve": {"type": "PureDp", "at_epsilon": 1.0}}, "curve must have all fields of PureDp"),
        ({"curve": {"type": "PureDp", "at_epsilon": math.inf, "at_delta": 0.0}}, "at_epsilon must be finite"),
        (
            {"curve": {"type": "PureDp", "at_epsilon": 9.0, "at_delta": 0.0}},
            "curve must promise delta 0 at epsilon 0.5",
        ),
        (
            {"curve": {"type": "ComposedCurve", "curves": [], "interval": 1.0}},
            "curves must be a tuple of privacy curves",
        ),
        ({"curve": {"type": "SlackCurve", "curve": 3, "slack": 0.1}}, "curve must be a privacy curve, got int"),
        ({"limits": 5}, "limits must be a list of texts"),
        ({"caveats": [None]}, "caveats must be a list of texts"),
        ({"adaptivity": 7}, "adaptivity must be a text, got int"),
        ({"version": True}, "version of a guarantee must be an integer, got bool"),
        ({"privacy_unit": {"what": "person", "window": 10**400}}, "window must be <="),
    ],
)
def test_what_was_not_written_so_is_refused(change, message):
    one = PrivacyGuarantee(unit=EVENT, neighbouring="add_remove", epsilon=0.5, delta=0.0)
    with pytest.raises((ValueError, TypeError), match=message):
        read_guarantee(guarantee_record(one) | change)


def test_equal_curves_compose_as_one_by_one():
    curve = SlackCurve(curve=PureDp(0.5), slack=1e-9)
    one = PrivacyGuarantee(unit=EVENT, neighbouring="add_remove", epsilon=0.5, delta=1e-9, curve=curve)
    other = dataclasses.replace(one, epsilon=0.25, curve=SlackCurve(curve=PureDp(0.25), slack=1e-9))
    many = one.compose(*[one] * 4, *[other] * 3, delta=1e-6).epsilon
    step_by_step = one.compose(other, one, delta=1e-6).compose(*[one] * 3, *[other] * 2, delta=1e-6).epsilon
    assert many == pytest.approx(step_by_step, rel=1e-3)


def of_first_version(unit, **changes):
    """Return a record as version 1 wrote it."""
    one = PrivacyGuarantee(unit=EVENT, neighbouring="add_remove", epsilon=0.5, delta=0.0, curve=PureDp(0.5))
    record = guarantee_record(one) | {"version": 1, "unit": unit} | changes
    return {name: value for name, value in record.items() if name not in ("privacy_unit", "proof")}


@pytest.mark.parametrize(
    ("words", "unit"),
    [
        ("one event", EVENT),
        ("one row over the whole run", PrivacyUnit(what="row")),
        ("one person over the whole run", PERSON),
        ("one person over all releases", PERSON),
        ("one update (insertion or deletion of one point) over the whole run", EVENT),
        ("one update (insertion of one point) over the whole run", EVENT),
        ("one person who makes at most 3 updates (insertion of one point each) over the whole run", PERSON),
        ("one change of the data that moves no query by more than 1", PrivacyUnit(what="query")),
        (
            "one change of the data that moves no utility by more than 2.5e-07, and moves all of them in the same "
            "direction",
            PrivacyUnit(what="utility", bound=2.5e-7, same_direction=True),
        ),
        (
            "one change that moves no measurement of the whole run by more than 1",
            PrivacyUnit(what="measurement"),
        ),
    ],
)
def test_version_1_is_still_read(words, unit):
    found = read_guarantee(of_first_version(words))
    assert (found.unit, found.epsilon, found.curve, found.proof) == (unit, 0.5, PureDp(0.5), "")


def test_windows_of_version_1_are_as_long_as_the_command_was_asked_for():
    record = of_first_version("one person in one window")
    assert read_guarantee(record, {"window": 0.5}).unit == PrivacyUnit(what="person", window=500_000)
    for parameters in (None, {"window": "hour"}):
        with pytest.raises(TypeError, match="window must be a number"):
            read_guarantee(record, parameters)


def test_a_file_that_is_no_guarantee_is_named(tmp_path):
    path = tmp_path / "rows.guarantee.json"
    one = PrivacyGuarantee(unit=EVENT, neighbouring="add_remove", epsilon=0.5, delta=0.0, curve=PureDp(0.5))
    path.write_text(json.dumps({"guarantee": guarantee_record(one), "parameters": {}}))
    assert (read_guarantee_file(str(path)), read_guarantee_file(str(path)).curve) == (one, PureDp(0.5))
    for content in ("[]", "{", "{}", json.dumps({"guarantee": {"version": 7}, "parameters": {}})):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"rows.guarantee.json must be a guarantee that a command has written"):
            read_guarantee_file(str(path))
