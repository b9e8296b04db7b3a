"""What is kept of a person's events depends on that person's events alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms.events.bounding import SELECTIONS, bound_items, place_in_run

NOISE = KeyedNoise(b"a key for tests, no secret")
EVENTS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(0, 8)), max_size=60)
LIMITS = st.integers(1, 4)
SELECTION = st.sampled_from(SELECTIONS)


def keep(events, limit, selection) -> list[tuple[int, int, int, int]]:
    """Return user, item, time and rank of what is kept, sorted."""
    users, items, times = np.array(events, np.int64).reshape(-1, 3).T
    users, items = users.astype(np.uint64), items.astype(np.uint64)
    rows, ranks, left_out = bound_items(users, items, times, limit=limit, selection=selection, noise=NOISE)
    assert ranks.dtype == np.uint16
    still = set(zip(users[rows].tolist(), items[rows].tolist(), strict=True))
    assert left_out == len({(user, item) for user, item, _ in events} - still)
    kept = zip(users[rows].tolist(), items[rows].tolist(), times[rows].tolist(), ranks.tolist(), strict=True)
    return sorted(kept)


def slow_keep(events, limit, selection) -> list[tuple[int, int, int, int]]:
    """Do the same with lists."""
    return sorted(
        row
        for user in {user for user, _, _ in events}
        for row in slow_keep_one(user, [event[1:] for event in events if event[0] == user], limit, selection)
    )


def slow_keep_one(user, events, limit, selection):
    better = max if selection == "last" else min
    times = {item: better(time for other, time in events if other == item) for item, _ in events}
    lots = {item: int(NOISE.words(np.array([[user, item]], np.uint64))[0, 0, 0]) for item in times}
    order = {
        "last": lambda item: (-times[item], item),
        "first": lambda item: (times[item], item),
        "random": lambda item: lots[item],
    }[selection]
    kept = sorted(sorted(times, key=order)[:limit], key=lots.__getitem__)
    return [(user, item, times[item], rank) for rank, item in enumerate(kept)]


@given(EVENTS, LIMITS, SELECTION)
def test_keeps_what_the_rule_says(events, limit, selection):
    assert keep(events, limit, selection) == slow_keep(events, limit, selection)


@given(EVENTS, LIMITS, SELECTION, st.randoms())
def test_depends_on_nothing_but_the_persons_own_events(events, limit, selection, chance):
    kept = keep(events, limit, selection)
    shuffled = list(events)
    chance.shuffle(shuffled)
    assert keep(shuffled, limit, selection) == kept
    assert keep(events + events, limit, selection) == kept
    for user in {user for user, _, _ in events}:
        alone = keep([event for event in events if event[0] == user], limit, selection)
        assert alone == [row for row in kept if row[0] == user]


@given(EVENTS, LIMITS, SELECTION)
def test_ranks_number_the_items_of_each_person(events, limit, selection):
    kept = keep(events, limit, selection)
    for user in {user for user, _, _ in events}:
        own = [row for row in kept if row[0] == user]
        assert sorted(rank for _, _, _, rank in own) == list(range(len(own)))
        assert len({item for _, item, _, _ in own}) == len(own) <= limit


def test_random_items_are_not_always_the_same():
    events = [(user, item, 0) for user in range(1, 200) for item in range(1, 5)]
    kept = {item for _, item, _, _ in keep(events, 1, "random")}
    assert kept == {1, 2, 3, 4}


@given(st.lists(st.integers(0, 5), max_size=40), st.randoms())
def test_place_in_run_counts_within_each_person(users, chance):
    order = list(range(len(users)))
    chance.shuffle(order)
    order.sort(key=users.__getitem__)
    place = place_in_run(np.array(users, np.uint64), np.array(order, np.int64))
    seen: dict[int, int] = {}
    for row in order:
        assert place[row] == seen.get(users[row], 0)
        seen[users[row]] = seen.get(users[row], 0) + 1
