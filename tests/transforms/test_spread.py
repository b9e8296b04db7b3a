"""Contributions that are spread over the run: what counts, against plain Python, and who is told what."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from event_forms import as_rows, run_bounded
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.transforms import Domain, KeyedCounts

HOUR, SECOND = 3600, 1_000_000
ITEMS = ("a", "b", "c", "d", "e")


def made(**given):
    common = {"epsilon": 400.0, "window": HOUR, "start": 0, "windows": 6, "max_contributions": 7, "spread": True}
    return KeyedCounts(**common | {"domain": Domain(ITEMS), "noise": SeededNoise(1)} | given)


def events(seed=1):
    """Events of 40 people in 6 hours: some come early, some late, some always, some twice for the same item."""
    rng = np.random.default_rng(seed)
    found = []
    for person in range(40):
        for hour in range(6):
            if (person % 4 == 0 and hour > 2) or (person % 4 == 1 and hour < 3):
                continue
            for item in rng.permutation(5)[: rng.integers(0, 6)].tolist():
                found += [(f"u{person}", ITEMS[item], (hour * HOUR + 60) * SECOND, "")] * (1 + person % 2)
    return found


def totals(transform, rows):
    """Return the sum of all counts by hour, from the rows that a transform publishes."""
    found = Counter()
    for row in run_bounded("fn_api", as_rows(rows), transform).elements("rows"):
        found[row.window_start.micros // (HOUR * SECOND)] += row.count
    return {hour: number for hour, number in found.items() if number}


def reference(rows, allowed):
    """Count in plain Python how many contributions of each hour count, `allowed` up to hour 1, 2, .."""
    held = defaultdict(set)
    for user, item, time, _ in rows:
        held[user, time // (HOUR * SECOND)].add(item)
    used, found = Counter(), Counter()
    for user, hour in sorted(held, key=lambda one: one[1]):
        number = min(len(held[user, hour]), allowed(hour) - used[user])
        used[user] += number
        found[hour] += number
    return {hour: number for hour, number in found.items() if number}


@pytest.mark.slow
def test_a_person_has_used_no_more_than_the_part_of_the_run():
    assert totals(made(), events()) == reference(events(), lambda hour: math.ceil(7 * (hour + 1) / 6))


def test_without_it_those_of_the_first_windows_count():
    assert totals(made(spread=False, selection="first"), events()) == reference(events(), lambda hour: 7)


@pytest.mark.slow
def test_what_is_allowed_starts_afresh_with_a_period():
    transform = made(windows=None, end=6 * HOUR, renew_every=3 * HOUR)
    found = totals(transform, events())
    for first in (0, 3):
        rows = [row for row in events() if first <= row[2] // (HOUR * SECOND) < first + 3]
        expected = reference(rows, lambda hour, first=first: math.ceil(7 * (hour - first + 1) / 3))
        assert {hour: number for hour, number in found.items() if first <= hour < first + 3} == expected


def test_all_contributions_may_count_at_the_end():
    late = [(f"u{person}", item, (5 * HOUR + 1) * SECOND, "") for person in range(9) for item in ITEMS]
    assert totals(made(max_contributions=4), late) == {5: 36}


def test_nothing_else_of_the_guarantee_changes():
    spread, plain = made().guarantee, made(spread=False).guarantee
    assert spread == plain


def test_a_run_with_it_shares_no_noise_with_one_without():
    labels = np.arange(4, dtype=np.uint64)
    words = [made(spread=spread).counting_noise.words(labels) for spread in (True, False)]
    assert not (words[0] == words[1]).any()


def test_it_is_told_that_later_windows_miss_no_more():
    told = made().accuracy.sentence
    assert "by each window no more than its part of the run, with those carried over that were not used" in told
    assert "most so in later windows" not in told
    assert "most so in later windows" in made(spread=False, selection="first").accuracy.sentence


@pytest.mark.parametrize(
    "given",
    [
        {"unit": "event", "max_contributions": None},
        {"windows": None, "start": None, "domain": None, "delta": 1e-6},
    ],
)
def test_it_is_refused_where_it_means_nothing(given):
    with pytest.raises(ValueError, match="spread must not be given with the unit event, or without start, and end or"):
        made(**given)


def test_it_is_a_choice():
    with pytest.raises(TypeError, match="spread must be true or false, got int"):
        made(spread=1)
