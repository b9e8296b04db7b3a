"""What the guarantee of every transform says that it rests on: exactly the hashes and roundings that it uses."""

import inspect

import privstream.transforms
import pytest
from privstream.mechanisms import Monotone, SeededNoise
from privstream.mechanisms.privacy.guarantee import CONTRIBUTIONS_HASHED, ITEMS_HASHED, KEYED_NOISE, PEOPLE_HASHED
from privstream.transforms import AlertRule, Domain
from privstream.transforms.stages import PrivateTransform

WINDOWS = {"epsilon": 1.0, "window": 3600, "start": 0, "end": 86400}
LIST = {"domain": Domain(["a", "b", "c"])}
COUNTS = {"epsilon": 1.0, "delta": 1e-6, "max_contributions": 4, "window": 3600}
RULES = {"rules": (AlertRule(name="many", at_least=50, items=("a",)),)}
PERSON = {"unit": "person", "max_contributions": 3}
MOVES = {"leave_values": ("out",)}
FUNCTION = {"queries": (Monotone(lambda sums: sums[:, 0]),)}
NUMERIC = {"low": 0, "high": 10, "resolution": 8}

# For each transform: arguments, and what applies beside keyed noise.
EXAMPLES = {
    "ShiftingHeavyHitters": [
        (COUNTS | WINDOWS | {"method": "clock", "max_contributions": None}, (PEOPLE_HASHED, ITEMS_HASHED)),
        (COUNTS | WINDOWS | LIST | {"method": "status", "max_contributions": None}, (PEOPLE_HASHED,)),
        (COUNTS | WINDOWS | LIST, (PEOPLE_HASHED,)),
    ],
    "KeyedCounts": [
        (COUNTS | WINDOWS, (PEOPLE_HASHED, ITEMS_HASHED, CONTRIBUTIONS_HASHED)),
        (COUNTS | WINDOWS | {"over": "start"}, (PEOPLE_HASHED, ITEMS_HASHED, CONTRIBUTIONS_HASHED)),
        (COUNTS | WINDOWS | {"over": 7200.0}, (PEOPLE_HASHED, ITEMS_HASHED, CONTRIBUTIONS_HASHED)),
        (COUNTS | WINDOWS | LIST, (PEOPLE_HASHED,)),
        (COUNTS | WINDOWS | {"unit": "event", "max_contributions": None}, (ITEMS_HASHED,)),
    ],
    "TopKWithGap": [
        (WINDOWS | LIST | {"top": 1}, (PEOPLE_HASHED,)),
        (WINDOWS | LIST | {"top": 1, "method": "gaps"}, (PEOPLE_HASHED,)),
        (WINDOWS | {"top": 1, "delta": 1e-6}, (PEOPLE_HASHED, ITEMS_HASHED, CONTRIBUTIONS_HASHED)),
    ],
    "SparseVectorAlerts": [
        (WINDOWS | RULES | {"method": "sparse_vector"}, ()),
        (WINDOWS | RULES, (PEOPLE_HASHED,)),
        (WINDOWS | RULES | {"method": "status", "delta": 1e-6}, (PEOPLE_HASHED,)),
    ],
    "ContinualHistogram": [
        (WINDOWS | LIST, ()),
        (WINDOWS | LIST | PERSON, (PEOPLE_HASHED,)),
        (WINDOWS | LIST | FUNCTION, ()),
    ],
    "ThresholdFlags": [
        (WINDOWS | LIST | {"thresholds": 50}, ()),
        (WINDOWS | LIST | {"thresholds": 50} | PERSON, (PEOPLE_HASHED,)),
    ],
    "SetCardinality": [(WINDOWS | MOVES, (PEOPLE_HASHED,))],
    "NumericQuantiles": [
        (WINDOWS | NUMERIC | {"max_contributions": 3}, (PEOPLE_HASHED,)),
        (WINDOWS | NUMERIC | {"unit": "event"}, ()),
    ],
    "RangeCounts": [(WINDOWS | {"universe": 100, "standing": ((1, 2),)}, ())],
    "PredecessorQueries": [(WINDOWS | {"universe": 100, "standing": (1,)}, ())],
    "PrivateQueries": [(LIST | {"epsilon": 1.0, "records": 1000, "alpha": 0.1}, ())],
}
CASES = [(name, *case) for name, cases in EXAMPLES.items() for case in cases]


def discovered():
    exported = {name: getattr(privstream.transforms, name) for name in privstream.transforms.__all__}
    return {name for name, one in exported.items() if inspect.isclass(one) and issubclass(one, PrivateTransform)}


def test_every_transform_has_an_example():
    assert discovered() == set(EXAMPLES)


@pytest.mark.parametrize(("name", "arguments", "applies"), CASES)
def test_what_the_guarantee_rests_on_is_said(name, arguments, applies, check_proof):
    expected = [KEYED_NOISE, *applies]
    guarantee = getattr(privstream.transforms, name)(**arguments, noise=SeededNoise(1)).guarantee
    check_proof(guarantee.proof)
    assert guarantee.neighbouring == "add_remove"
    assert list(guarantee.caveats) == expected
    assert guarantee.to_dict()["caveats"] == expected
