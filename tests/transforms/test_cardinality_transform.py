"""Set sizes: the rows of the slow reference on every runner, whatever happens on the way."""

import random

import numpy as np
import pytest
from cardinality_workloads import CONFIGURATIONS, SECOND, START, WINDOWS, expected, random_events, sizes, transform
from event_forms import as_arrow, as_rows, of_elements
from every_runner import one_job
from grids import some_quick
from hypothesis import given, settings
from hypothesis import strategies as st
from privstream.transforms.questions.cardinality_stages import NOBODY, Members
from tiny_runner import drive


@one_job("sets", CONFIGURATIONS, "doors", "sessions with ends", elsewhere=["doors", "sessions, limited"])
def test_rows_are_those_of_the_reference(name):
    events = random_events(name, random.Random(6))
    made = transform(name)
    results = yield of_elements(as_arrow(events) if name == "doors" else as_rows(events), made)
    assert sorted(results.elements("rows"), key=lambda row: row[:2]) == expected(made, events)
    assert len(results.elements("rows")) == WINDOWS
    assert results.elements("dead") == []
    assert all(stamp == row.window_end.micros - 1 for row, stamp in results.outputs["rows"])


def test_workloads_are_interesting():
    """Sizes move, limits bind, changes are used up: else the tests above would say little."""
    for name in CONFIGURATIONS:
        events = random_events(name, random.Random(6))
        made = transform(name)
        assert len(set(sizes(made, events))) > 4
        if made.max_contributions is not None:
            assert sizes(made, events) != sizes(transform(name, max_contributions=WINDOWS), events)
        rows = expected(made, events)
        assert len({row.noisy for row in rows}) > 1 + (made.mechanism.mode == "sparse")
        assert (-1 in {row.error_bound for row in rows}) == (name == "doors, used up")


@pytest.mark.slow
def test_a_long_log_is_compacted_and_forgets_who_has_left(monkeypatch):
    monkeypatch.setattr("privstream.transforms.timing.step_fn.LEAST_COMPACTION", 500)
    for name in ("doors", "doors with time-out, limited", "sessions with ends"):
        chance = random.Random(5)
        events = random_events(name, chance, 600)
        made = transform(name)
        chain = drive(made, events, chance, crashes=0.1, workers=2)
        assert sorted(chain.rows, key=lambda row: row[:2]) == expected(made, events)
    crowd = [(f"once {i}", "in", (START + 1) * SECOND + i) for i in range(2000)]
    crowd += [(f"once {i}", "out", (START + 12) * SECOND + i) for i in range(2000)]
    crowd += [("one", "in" if i % 2 else "out", (START + 10 * i) * SECOND) for i in range(2, 30)]
    track = drive(transform("doors", shards=1), crowd, random.Random(2)).stages[0]
    log = [value for (_, place), values in track.cells.states.items() if place.endswith("log") for value in values]
    assert sum(map(len, log)) < 8000


@given(st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12), max_size=12))
def test_members_are_a_dictionary(told):
    members, wanted = NOBODY, {}
    everybody = np.arange(31, dtype=np.uint64)
    for step, pairs in enumerate(told):
        words = {person: max(step, until) for person, until in pairs}
        known = Members(np.array(list(words), np.uint64), np.array(list(words.values()), np.int64))
        members = Members.latest([members, Members.from_bytes(known.to_bytes())]).after(step)
        wanted = {person: until for person, until in (wanted | words).items() if until > step}
        assert members.of(everybody).tolist() == [wanted.get(person, 0) for person in range(31)]
        assert members.people.tolist() == sorted(wanted)


PEOPLE = st.lists(st.tuples(st.sampled_from(["in", "out", "look"]), st.integers(0, 399)), max_size=30)


@some_quick("name", ["doors", "sessions, limited", "doors, limited"], "sessions, limited")
@given(moves=PEOPLE)
@settings(max_examples=25, deadline=None)
def test_one_person_changes_each_size_by_one_at_most(name, moves):
    """At the ends of at most `max_contributions` windows, whatever others do."""
    made = transform(name)
    crowd = random_events(name, random.Random(3), 80)
    person = [("one", item, (START + second) * SECOND) for item, second in moves]
    moved = np.subtract(*(sizes(made, some) for some in (crowd + person, crowd)))
    assert set(moved.tolist()) <= {0, 1}
    assert moved.sum() <= (made.max_contributions or WINDOWS)
