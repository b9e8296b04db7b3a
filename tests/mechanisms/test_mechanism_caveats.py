"""What the guarantee of every mechanism says that it rests on: exactly what applies."""

import inspect
from dataclasses import fields, replace

import privstream.mechanisms
import pytest
from privstream.mechanisms.privacy import guarantee as caveats

SAME_DIRECTION = "moves all of them in the same direction"
COLUMNS = {"columns": 3, "horizon": 20}
RULES = {"delta": 1e-6, "max_hits": 4, "starts": (500,), "ends": (400,), "many": (True,)}
RUN = {"delta": 1e-6, "max_hits": 4, "horizon": 100}
FLAGS = {"columns": 1, "thresholds": (9,)}
MONOTONE = (privstream.mechanisms.Monotone(lambda sums: sums.max(axis=1)),)
EXACT = (caveats.KEYED_NOISE,)
PUBLISHED = (caveats.KEYED_NOISE, caveats.PUBLISHED_FLOATS)
NUMBERS = (caveats.KEYED_NOISE, caveats.GIVEN_NUMBERS)

EXAMPLES = {
    "SparseVector": [({}, EXACT), ({"publish": "values"}, EXACT), ({"publish": "gaps"}, EXACT)],
    "NoisyTopK": [({}, EXACT), ({"threshold": 5}, EXACT)],
    "ExponentialMechanismWithGap": [({}, PUBLISHED)],
    "MeasuredTopK": [({"delta": 1e-6, "top": 2}, EXACT)],
    "OnlineMultiplicativeWeights": [({"domain_size": 6, "records": 5000, "alpha": 0.2}, EXACT)],
    "ThresholdMonitor": [
        (RUN, NUMBERS),
        (RUN | {"calibration": "paper"}, NUMBERS),
        (RUN | {"calibration": "clock", "count_share": 0.0}, NUMBERS),
    ],
    "StatusMonitor": [(RUN, NUMBERS), (RUN | {"domain_size": 9}, NUMBERS)],
    "RuleMonitor": [(RULES, NUMBERS)],
    "TreeCounter": [(COLUMNS, EXACT)],
    "BufferedToeplitzCounter": [(COLUMNS | {"delta": 1e-6}, EXACT)],
    "UnknownHorizonCounter": [({}, EXACT)],
    "HistogramQueries": [
        (COLUMNS | {"mode": "anchored"}, EXACT),
        (COLUMNS | {"mode": "anchored", "queries": MONOTONE}, (*EXACT, caveats.GIVEN_FUNCTIONS)),
        (COLUMNS | {"mode": "paper", "queries": MONOTONE}, (*EXACT, caveats.GIVEN_FUNCTIONS)),
    ],
    "ColumnFlags": [(FLAGS, EXACT)],
    "AnchoredFlags": [(FLAGS, EXACT)],
    "SetCardinality": [({"mode": "sparse"}, EXACT), ({"horizon": 9}, EXACT)],
    "KeyedCounts": [
        ({"delta": 1e-6}, NUMBERS),
        ({"public_keys": True, "over": "start", "horizon": 9, "max_value": 5}, NUMBERS),
    ],
    "FoundKeys": [({"delta": 1e-6}, NUMBERS), ({"delta": 1e-6, "horizon": 9, "max_value": 5}, NUMBERS)],
    "NumericQuantiles": [
        ({"delta": 1e-6, "low": 0, "high": 9}, EXACT),
        ({"low": 0, "high": 9, "resolution": 5, "unit": "event"}, EXACT),
    ],
    "RangeCounter": [({"universe": 100}, EXACT)],
    "DynamicPredecessor": [({"universe": 100}, EXACT)],
    "IncrementalPredecessor": [({"universe": 100}, EXACT)],
}


def discovered():
    """Return the names of exported classes that can be made and promise something."""
    exported = {name: getattr(privstream.mechanisms, name) for name in privstream.mechanisms.__all__}
    return {name for name, one in exported.items() if not inspect.isabstract(one) and hasattr(one, "guarantee")}


CASES = [(name, *case) for name, cases in EXAMPLES.items() for case in cases]


def test_every_mechanism_has_an_example():
    assert discovered() == set(EXAMPLES)


@pytest.mark.parametrize(("name", "parameters", "expected"), CASES)
def test_what_the_guarantee_rests_on_is_said(name, parameters, expected, check_proof):
    made = getattr(privstream.mechanisms, name)(epsilon=1.0, **parameters)
    guarantee = made.guarantee
    check_proof(guarantee.proof)
    assert f"Proof: {guarantee.proof}." in guarantee.paragraph()
    assert guarantee.caveats == expected
    assert guarantee.to_dict()["caveats"] == list(expected)
    assert guarantee.paragraph().endswith(" ".join(expected))
    assert SAME_DIRECTION not in guarantee.paragraph()


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_that_all_queries_move_in_one_direction_is_part_of_the_unit(name):
    parameters, _ = EXAMPLES[name][0]
    made = getattr(privstream.mechanisms, name)(epsilon=1.0, **parameters)
    if "monotone" not in {field.name for field in fields(made)}:
        return
    monotone = replace(made, monotone=True, **({"publish": "gaps"} if name == "SparseVector" else {})).guarantee
    assert SAME_DIRECTION in str(monotone.unit)
    assert monotone.compose(made.guarantee, delta=1e-9).unit == monotone.unit
    with pytest.raises(ValueError, match="unit must be protected by all guarantees"):
        made.guarantee.compose(monotone, delta=1e-9)


@pytest.mark.parametrize("name", ["NoisyTopK", "ExponentialMechanismWithGap"])
def test_one_selection_is_not_a_whole_run(name):
    text = getattr(privstream.mechanisms, name)(epsilon=1.0).guarantee.paragraph()
    assert "It covers one selection" in text
    assert "whole run" not in text


def test_counts_that_one_person_changes_move_together():
    assert "all up or all down" in privstream.mechanisms.MeasuredTopK(epsilon=1.0).guarantee.paragraph()


def test_compositions_keep_all_caveats():
    whole = privstream.mechanisms.SparseVector(epsilon=0.5).guarantee
    real = replace(whole, caveats=PUBLISHED)
    assert whole.compose(real, delta=1e-9).caveats == PUBLISHED
