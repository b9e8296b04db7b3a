"""What a guarantee for one unit means for another: Theorems 1 and 2 of docs/proofs/units.md, by enumeration."""

import itertools
import math
from collections import deque

import pytest
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.privacy.accounting import GaussianCurve, PointCurve, PureDp, group_point
from privstream.mechanisms.privacy.units import EVENT, PERSON, SECOND, PrivacyUnit

ROW = PrivacyUnit(what="row")
HOUR = PrivacyUnit(what="person", window=3600 * SECOND)
DAY = 86_400 * SECOND
TWO_HOURS = PrivacyUnit(what="person", window=7200 * SECOND)
ADD, REPLACE = "add_remove", "replace_one"
PAIRS = [(unit, how) for unit in (PERSON, HOUR, EVENT, ROW) for how in (ADD, REPLACE)]

PEOPLE, TIMES, AN_HOUR = range(2), range(4), 2
SLOTS = list(itertools.product(PEOPLE, TIMES))
INPUTS = [frozenset(chosen) for size in range(len(SLOTS) + 1) for chosen in itertools.combinations(SLOTS, size)]


def places(unit):
    """Return where a portion of the unit may lie: sets of slots that hold all that may be in one portion."""
    if unit in (EVENT, ROW):
        return [frozenset([slot]) for slot in SLOTS]
    length = len(TIMES) if unit.window is None else AN_HOUR
    starts = range(0, len(TIMES), length)
    return [frozenset((who, first + i) for i in range(length)) for who in PEOPLE for first in starts]


def neighbours(unit, how):
    """Return all inputs that differ from each input by one change, by the definition of neighbours."""
    found = {one: set() for one in INPUTS}
    for old, new in itertools.product(INPUTS, places(unit)):
        portion = old & new
        if portion:
            found[old].add(old - portion)
            found[old - portion].add(old)
    if how == ADD:
        return found
    replaced = {one: set(others) for one, others in found.items()}
    for old, one, other in itertools.product(INPUTS, places(unit), places(unit)):
        moves = unit != ROW or {time for _, time in one} == {time for _, time in other}
        if moves and old & one and (one == other or not old & other):
            rest = old - one
            for size in range(len(other) + 1):
                replaced[old].update(rest | set(put) for put in itertools.combinations(sorted(other), size))
    return replaced


GRAPHS = {pair: neighbours(*pair) for pair in PAIRS}


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


@pytest.mark.parametrize("given", PAIRS, ids=str)
def test_so_many_changes_are_enough_and_no_pair_is_left_out(given):
    apart = {start: distances(GRAPHS[given], start) for start in INPUTS}
    for other in PAIRS:
        most = max(apart[one][two] for one, several in GRAPHS[other].items() for two in several if one != two)
        changes = given[0].changes(given[1], *other)
        if changes is None:
            assert most > 1, (given, other)
        else:
            assert most <= changes <= 2 * most, (given, other)
        if changes == 2 and other[1] == ADD:
            assert most == 2, "one change is enough"


@pytest.mark.parametrize(
    ("unit", "how", "other", "others", "changes"),
    [
        (PERSON, ADD, PERSON, ADD, 1),
        (PERSON, ADD, EVENT, ADD, 2),
        (PERSON, REPLACE, EVENT, ADD, 1),
        (PERSON, ADD, EVENT, REPLACE, 4),
        (PERSON, REPLACE, EVENT, REPLACE, 2),
        (PERSON, ADD, PERSON, REPLACE, 2),
        (PERSON, REPLACE, PERSON, ADD, 1),
        (PERSON, ADD, HOUR, ADD, 2),
        (HOUR, ADD, PERSON, ADD, None),
        (HOUR, REPLACE, PERSON, ADD, None),
        (HOUR, REPLACE, EVENT, ADD, 1),
        (HOUR, ADD, TWO_HOURS, ADD, None),
        (TWO_HOURS, ADD, HOUR, ADD, 2),
        (PrivacyUnit(what="person", window=5400 * SECOND), REPLACE, HOUR, ADD, None),
        (EVENT, ADD, PERSON, ADD, None),
        (EVENT, REPLACE, ROW, ADD, 1),
        (ROW, REPLACE, EVENT, REPLACE, 2),
    ],
    ids=str,
)
def test_what_a_guarantee_is_for_another_unit(unit, how, other, others, changes):
    assert unit.changes(how, other, others) == changes


def test_a_window_holds_others_whose_ends_meet_its_own():
    two, one = (PrivacyUnit(what="person", window=hours * 3600 * SECOND, origin=600 * SECOND) for hours in (2, 1))
    assert two.changes(ADD, one, ADD) == 2
    assert two.changes(ADD, HOUR, ADD) is one.changes(ADD, two, ADD) is two.changes(ADD, PERSON, ADD) is None


def test_changes_of_values_are_compared_with_their_like_alone():
    any_way, one_way = (PrivacyUnit(what="query", same_direction=same) for same in (False, True))
    wide = PrivacyUnit(what="query", bound=2)
    assert any_way.changes(ADD, one_way, ADD) == wide.changes(ADD, any_way, ADD) == 1
    assert one_way.changes(ADD, any_way, ADD) is any_way.changes(ADD, wide, ADD) is None
    assert any_way.changes(ADD, any_way, REPLACE) is any_way.changes(ADD, PrivacyUnit(what="utility"), ADD) is None
    assert (
        any_way.changes(ADD, PERSON, ADD) is PERSON.changes(ADD, any_way, ADD) is EVENT.changes(ADD, wide, ADD) is None
    )


def test_an_event_may_cost_what_two_people_do():
    """A person's first event counts; an earlier one is added: one count falls, another grows."""
    law = DiscreteLaplace(1 / 0.7)
    chances = {noise: float(law.log_pmf(noise)) for noise in range(-5, 6)}
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
        *(PERSON, HOUR, EVENT, ROW),
        PrivacyUnit(what="person", window=7 * DAY, origin=4 * DAY),
        PrivacyUnit(what="utility", bound=0.25),
        PrivacyUnit(what="query", same_direction=True),
    ],
    ids=str,
)
def test_units_are_written_and_read(unit):
    assert PrivacyUnit.from_dict(unit.to_dict()) == unit
