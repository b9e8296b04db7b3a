"""What a guarantee for one unit means for another: Theorems 1 and 2 of docs/proofs/units.md, by enumeration."""

import itertools
import math
from collections import deque

import pytest
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.privacy.accounting import GaussianCurve, PointCurve, PureDp, group_point
from privstream.mechanisms.privacy.units import EVENT, PERSON, SECOND, PrivacyUnit

HOUR = PrivacyUnit(what="person", window=3600 * SECOND)
DAY = 86_400 * SECOND
UNITS = (PERSON, HOUR, EVENT)

PEOPLE, TIMES, AN_HOUR = range(2), range(4), 2
SLOTS = list(itertools.product(PEOPLE, TIMES))
INPUTS = [frozenset(chosen) for size in range(len(SLOTS) + 1) for chosen in itertools.combinations(SLOTS, size)]


def places(unit):
    """Return where a portion of the unit may lie: sets of slots that hold all that may be in one portion."""
    if unit == EVENT:
        return [frozenset([slot]) for slot in SLOTS]
    length = len(TIMES) if unit.window is None else AN_HOUR
    starts = range(0, len(TIMES), length)
    return [frozenset((who, first + i) for i in range(length)) for who in PEOPLE for first in starts]


def neighbours(unit):
    """Return all inputs that differ from each input by one change, by the definition of neighbours."""
    found = {one: set() for one in INPUTS}
    for old, new in itertools.product(INPUTS, places(unit)):
        portion = old & new
        if portion:
            found[old].add(old - portion)
            found[old - portion].add(old)
    return found


GRAPHS = {unit: neighbours(unit) for unit in UNITS}


def distances(graph, start):
    """Return how many changes lead from one input to each other."""
    found, queue = {start: 0}, deque([start])
    while queue:
        here = queue.popleft()
        for there in graph[here]:
            if there not in found:
                found[there] = found[here] + 1
                queue.append(there)
    return found


@pytest.mark.parametrize("given", UNITS, ids=str)
def test_so_many_changes_are_enough_and_no_pair_is_left_out(given):
    apart = {start: distances(GRAPHS[given], start) for start in INPUTS}
    for other in UNITS:
        most = max(apart[one][two] for one, several in GRAPHS[other].items() for two in several if one != two)
        changes = given.changes(other)
        assert most > 1 if changes is None else most == changes, (given, other)


def test_changes_of_values_are_compared_with_their_like_alone():
    any_way, one_way = (PrivacyUnit(what="query", same_direction=same) for same in (False, True))
    wide = PrivacyUnit(what="query", bound=2)
    assert any_way.changes(one_way) == wide.changes(any_way) == 1
    assert one_way.changes(any_way) is any_way.changes(wide) is any_way.changes(PrivacyUnit(what="utility")) is None
    assert any_way.changes(PERSON) is PERSON.changes(any_way) is EVENT.changes(wide) is None


def test_an_event_may_cost_what_two_people_do():
    """A person's first event counts; an earlier one is added: one count falls, another grows."""
    law = DiscreteLaplace(1 / 0.7)
    chances = {noise: math.log(law.pmf(noise)) for noise in range(-5, 6)}
    loss = max(chances[a] + chances[b] - chances[a + 1] - chances[b - 1] for a in range(-4, 4) for b in range(-4, 4))
    assert loss == pytest.approx(2 * 0.7)


def test_several_changes_cost_at_least_what_they_cost_a_gaussian():
    for changes, shift, delta in itertools.product((2, 3, 4), (0.1, 0.5), (1e-9, 1e-6)):
        curve = GaussianCurve(shift=shift)
        point = group_point(curve, curve.epsilon(delta), delta, changes)
        assert point.at_delta == delta, "the delta that was stated is kept"
        exact = GaussianCurve(shift=changes * shift).epsilon(delta)
        assert exact <= point.at_epsilon < 1.5 * exact


def test_several_changes_of_one_point_and_of_none():
    assert group_point(PureDp(0.5), 0.5, 0.0, 4) == PointCurve(2.0, 0.0)
    found = group_point(PointCurve(0.5, 1e-6), 0.5, 1e-6, 3)
    assert found.at_epsilon == 1.5
    assert found.at_delta == pytest.approx(1e-6 * (1 + math.exp(0.5) + math.exp(1.0)))
    assert group_point(PointCurve(0.5, 0.4), 0.5, 0.4, 2) is None
    assert group_point(PointCurve(1e6, 1e-6), 1e6, 1e-6, 2) is None
    assert group_point(PureDp(1e6), 1e6, 0.0, 2) == PointCurve(2e6, 0.0)


@pytest.mark.parametrize(
    "unit",
    [
        *UNITS,
        PrivacyUnit(what="person", window=7 * DAY, origin=4 * DAY),
        PrivacyUnit(what="utility", bound=0.25),
        PrivacyUnit(what="query", same_direction=True),
    ],
    ids=str,
)
def test_units_are_written_and_read(unit):
    assert PrivacyUnit.from_dict(unit.to_dict()) == unit
