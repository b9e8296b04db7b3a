"""What the guarantee of every transform says that it rests on: exactly the hashes and roundings that it uses."""

import pytest
from examples import EXAMPLES, example
from privstream.mechanisms.privacy.guarantee import CONTRIBUTIONS_HASHED, ITEMS_HASHED, KEYED_NOISE, PEOPLE_HASHED

UNHASHED = {"quantiles of events", "alerts by sparse vector", "histogram", "flags", "ranges", "predecessors", "queries"}
OF_EVENTS = UNHASHED | {"counts of events"}
FOUND = {"heavy hitters", "counts", "counts since the start", "counts of the last windows", "top-k"}
ITEMS_FOUND = FOUND | {"heavy hitters by status", "heavy hitters by clock", "counts of events"}
REMEMBERED = FOUND | {"counts of a list", "largest counts of a list"}
"""What has no list of items knows them by hashes; what counts once for a key, or finds it, contributions as well."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_the_guarantee_rests_on_is_said(name, check_proof):
    hashed = (PEOPLE_HASHED, name not in OF_EVENTS), (ITEMS_HASHED, name in ITEMS_FOUND)
    expected = [KEYED_NOISE, *(what for what, is_so in (*hashed, (CONTRIBUTIONS_HASHED, name in REMEMBERED)) if is_so)]
    guarantee = example(name).guarantee
    check_proof(guarantee.proof)
    assert list(guarantee.caveats) == guarantee.to_dict()["caveats"] == expected
