"""Alerts by status: rows of a slow reference on every runner, whom changes charge, and what restored jobs know."""

from collections import defaultdict

import numpy as np
import pytest
from event_forms import as_rows, of_elements
from every_runner import one_job
from privstream.mechanisms.monitor.monitor import Holdings
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import SparseVectorAlerts
from privstream.transforms.questions.by_counts import AlertRule
from slow_reference import hashed, lot

SECOND, WINDOW, START, WINDOWS = 1_000_000, 10, 1000, 8
RULES = (
    AlertRule(name="many", at_least=60, items=("a",), clear_below=40),
    AlertRule(name="all", at_least=30),
    AlertRule(name="two", at_least=50, items=("a", "b")),
)
COMMON = {"epsilon": 40.0, "delta": 1e-2, "rules": RULES, "max_hits": 4, "method": "status", "shards": 2}
COMMON |= {"window": WINDOW, "start": START, "end": START + WINDOWS * WINDOW}
CONFIGURATIONS = {"one": {}, "renewed": {"renew_every": 2 * WINDOW}}
CROWDS = [(90, 40), (90, 0), (50, 10), (10, 5), (0, 0), (80, 80), (20, 60), (0, 90)]
"""How many people have an event of a and of b in each window; the same people, so that charges are used up."""


def transform(name, **changes):
    return SparseVectorAlerts(**COMMON | CONFIGURATIONS[name] | changes, noise=KeyedNoise(b"a key for tests of alerts"))


def random_events(name):
    """Return events (user, item, time), some twice, some before the start and of no rule."""
    rng = np.random.default_rng(8)
    found = [("nobody", "a", START * SECOND - 1), ("somebody", "c", START * SECOND + 5)]
    for window, crowd in enumerate(CROWDS):
        for item, number in zip("ab", crowd, strict=True):
            for person in range(number):
                time = (START + window * WINDOW) * SECOND + int(rng.integers(WINDOW * SECOND))
                found += [(f"user {person}", item, time)] * (1 + (person % 7 == 0))
    return found


def reference(made, events):
    """Return status, window and rule of all rows, by one step of the mechanism after the other."""
    expected = []
    meets = defaultdict(lambda: defaultdict(set))
    for user, item, time in sorted(events, key=lambda event: event[2]):
        window = (time // SECOND - START) // WINDOW
        if window < 0:
            continue
        numbers = {n for n, rule in enumerate(made.rules) if rule.items is None or item in rule.items}
        meets[window][user] |= numbers
    state = made.monitor.initial_state()
    period = made.steps.renewal or WINDOWS
    for window in range(WINDOWS):
        step = made.steps.first + window
        if window % period == 0:
            state = made.monitor.initial_state()
        order = made.noise.derive("item order", step)
        of_window = []
        for user, numbers in meets[window].items():
            person = hashed(made.noise.derive("user hash"), user)
            ranked = sorted(numbers, key=lambda number: lot(order, person, number))
            of_window += [(person, number, rank) for rank, number in enumerate(ranked)]
        users, items, ranks = np.array(of_window, np.uint64).reshape(-1, 3).T
        step = made.steps.in_first_period(step)
        given = Holdings(step=step, users=users, items=items, ranks=ranks.astype(np.uint16))
        noise = made.steps.renewed(made.noise, made.steps.first + window)
        state, found = made.monitor.step(state, given, noise)
        kinds = ("started", "continues", "ended")
        expected += [
            (START + window * WINDOW, made.rules[rule].name, kinds[kind])
            for rule, kind in zip(found.items.tolist(), found.status.tolist(), strict=True)
        ]
    return sorted(expected)


@one_job("rules", CONFIGURATIONS, "one", elsewhere=["renewed"])
def test_rows_are_those_of_the_reference(name):
    made, events = transform(name), random_events(name)
    results = yield of_elements(as_rows(events), made)
    rows = results.elements("rows")
    plain = sorted((row.window_start.micros // SECOND, row.rule, row.status) for row in rows)
    assert plain == reference(made, events)
    assert {row.status for row in rows} == {"started", "continues", "ended"}


def test_rules_with_at_most_are_refused():
    with pytest.raises(ValueError, match="at_most of rule 'few' must not be given"):
        transform("one", rules=(AlertRule(name="few", at_most=30),))
