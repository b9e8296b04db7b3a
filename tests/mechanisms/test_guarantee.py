import dataclasses
import json
import math

import pytest
from privstream.mechanisms.monitor import clock
from privstream.mechanisms.monitor.calibration import MonitorBudget
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import EVENT

FIELDS = {"unit": EVENT, "neighbouring": "add_remove", "epsilon": 1.0, "delta": 1e-6}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"epsilon": -1.0}, ValueError, "epsilon must be finite and >= 0, got -1.0"),
        ({"epsilon": math.inf}, ValueError, "epsilon must be finite and >= 0, got inf"),
        ({"epsilon": True}, TypeError, "epsilon must be a number, got bool"),
        ({"delta": 1.0}, ValueError, r"delta must be in \[0, 1\), got 1.0"),
        ({"neighbouring": "swap"}, ValueError, "neighbouring must be one of add_remove, replace_one, got 'swap'"),
        ({"horizon": 0}, ValueError, "horizon must be >= 1, got 0"),
        ({"unit": "one event"}, TypeError, "unit must be a PrivacyUnit, got str"),
    ],
)
def test_fields_are_checked(changes, error, message):
    with pytest.raises(error, match=message):
        PrivacyGuarantee(**{**FIELDS, **changes})


def test_it_is_frozen_data_and_the_curve_does_not_count():
    one = PrivacyGuarantee(**FIELDS, curve=clock.ClockCurve(eta=0.1, clocks=1))
    assert one == PrivacyGuarantee(**FIELDS)
    assert "curve" not in repr(one)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.epsilon = 2.0


def test_steps_may_be_called_windows_in_sentences_alone():
    one = PrivacyGuarantee(**FIELDS, horizon=7)
    other = dataclasses.replace(one, step="window")
    assert "at most 7 steps" in one.paragraph() and "at most 7 windows" in other.paragraph()
    assert "The inputs of each window may depend" in other.paragraph()
    assert one == other and other.to_dict()["adaptivity"] == one.adaptivity


def test_json_holds_every_field_but_the_curve():
    one = PrivacyGuarantee(**FIELDS, limits=("Few.",), caveats=("Perhaps.",), proof="x.md", horizon=7)
    found = json.loads(json.dumps(one.to_dict()))
    assert {field.name for field in dataclasses.fields(PrivacyGuarantee)} - set(found) == {"curve", "step"}
    assert found["limits"] == ["Few."]
    assert found["caveats"] == ["Perhaps."]
    assert found["paragraph"].endswith(" Proof: x.md. Perhaps.")
    assert (found["unit"], found["privacy_unit"]) == ("one event", {"what": "event"})
    assert found["horizon"] == 7


def test_the_paragraph_of_a_monitor_names_unit_neighbours_budget_limits_public_and_adversary():
    budget = MonitorBudget(
        epsilon=1.0, delta=1e-6, max_hits=4, tests=100, beta=0.1, domain="unknown", tests_per_person=50
    )
    paragraph = clock.calibrate(budget).guarantee.paragraph()
    for part in (
        "(epsilon = 1, delta = 1e-06)-differential privacy for one person over the whole run",
        "adding or removing",
        "charged for at most 4 hits",
        "at most 50 tests",
        "one 64-bit number",
        "cannot break these",
        "Public: all parameters",
        "adversary may choose",
    ):
        assert part in paragraph
    assert "\n" not in paragraph
