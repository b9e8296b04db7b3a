"""Rules about numbers of people: when they begin to be met and end, whom changes charge, and the laws of the tests."""

import math
from dataclasses import replace

import numpy as np
import pytest
from privstream.mechanisms import SeededNoise
from privstream.mechanisms.monitor.holdings import Holdings
from privstream.mechanisms.monitor.item_monitors import CONTINUES, ENDED, STARTED
from privstream.mechanisms.monitor.rule_monitor import RuleMonitor
from privstream.mechanisms.noise.discrete import ONE

MONITOR = RuleMonitor(
    epsilon=1.0,
    delta=1e-6,
    max_hits=4,
    starts=(500, 300, 900),
    ends=(400, 400, 900),
    many=(True, False, True),
    tests=900,
)
ONE_RULE = replace(MONITOR, starts=(500,), ends=(500,), many=(True,))


def given(step: int, *numbers: int, first: int = 0) -> Holdings:
    """So many people count for each rule; the same people for all of them. The second of three is ranked first."""
    people = np.concatenate([np.arange(first, first + number, dtype=np.uint64) for number in numbers])
    rules = np.repeat(np.arange(len(numbers)), numbers)
    ranks = np.array([1, 0, 2], np.uint16)[rules] if len(numbers) == 3 else rules.astype(np.uint16)
    return Holdings(step=step, users=people, items=rules.astype(np.uint64), ranks=ranks)


def run(monitor: RuleMonitor, numbers: list[tuple[int, ...]], seed: int = 1, fresh: bool = True):
    """Return the rows of steps; `fresh`: other people at each step, so that nobody is dropped."""
    state, found = monitor.initial_state(), []
    for step, each in enumerate(numbers):
        state, rows = monitor.step(state, given(step, *each, first=10_000 * step * fresh), SeededNoise(seed))
        found.append(dict(zip(rows.items.tolist(), rows.status.tolist(), strict=True)))
    return state, found


def test_rules_begin_continue_and_end():
    margin = MONITOR.margin_in(MONITOR.tests)
    many, few, exact = (500 + margin, 400 - margin), (300 - margin, 400 + margin), (900 + margin, 900 - margin)
    steps = [(0, 700, 0), (many[0], few[0], 0), (450, 350, exact[0]), (many[1], few[1], exact[1]), (450, 350, 0)]
    for seed in range(20):
        _, found = run(MONITOR, steps, seed)
        assert found == [
            {},
            {0: STARTED, 1: STARTED},
            {0: CONTINUES, 1: CONTINUES, 2: STARTED},
            {0: ENDED, 1: ENDED, 2: ENDED},
            {},
        ]


def test_the_margin_holds_and_is_not_much_too_large():
    monitor = replace(ONE_RULE, tests=100, beta=0.5)
    wrong = {1.0: 0, 0.5: 0}
    for share in wrong:
        moved = round(monitor.margin_in(100) * share)
        for seed in range(300):
            _, found = run(monitor, [(500 - moved,), (500 + moved,), (500 + moved,), (500 - moved,)], seed)
            wrong[share] += found != [{}, {0: STARTED}, {0: CONTINUES}, {0: ENDED}]
    assert wrong[1.0] <= 300 * 4 * 0.5 / 100 + 8
    assert wrong[0.5] > 60


@pytest.mark.parametrize("kind", [0, 1])
def test_one_person_changes_hazards_by_no_more_than_eta(kind):
    """Hazards of misses for rising numbers, and of staying for falling ones: exactly e^eta from number to number."""
    law, eta = ONE_RULE._laws[kind], ONE_RULE.calibrated.eta
    words = np.array([int(high) << 64 | int(low) for high, low in zip(law.high, law.low, strict=True)], object)
    below = np.array([float(word / ONE) for word in words])
    rest = np.array([float((ONE - word) / ONE) for word in words])
    hazards = -np.log1p(-(below if kind == 0 else rest))
    usual = hazards[(hazards > 1e-12) & (hazards < 10)]
    ratios = usual[1:] / usual[:-1]
    wanted = math.exp(eta if kind == 0 else -eta)
    assert len(ratios) > 300
    assert np.allclose(ratios, wanted, rtol=1e-4)


def test_changes_charge_who_counted_and_nothing_else_does():
    monitor = replace(ONE_RULE, max_hits=2)
    state, _ = run(monitor, [(900,), (900,), (900,)], fresh=False)
    assert state.counters.charged(np.arange(901, dtype=np.uint64)).tolist() == [1] * 900 + [0]
    state, rows = monitor.step(state, given(3, 20), SeededNoise(1))
    assert rows.status.tolist() == [ENDED]
    assert state.counters.charged(np.array([0, 19, 20], np.uint64)).tolist() == [2, 2, 1]
    state, rows = monitor.step(state, given(4, 900), SeededNoise(1))
    assert rows.status.tolist() == [STARTED]
    assert abs(int(rows.counts[0]) - 880) < 80, "those charged twice no longer count"
    assert state.counters.charged(np.array([0, 20], np.uint64)).tolist() == [2, 2]


def test_of_a_person_the_rules_ranked_below_the_charges_left_count():
    monitor = replace(MONITOR, max_hits=3, starts=(300, 300, 300), ends=(300, 300, 300), many=(True, True, True))
    state, found = run(monitor, [(900, 900, 900)], fresh=False)
    assert found == [{0: STARTED, 1: STARTED, 2: STARTED}]
    assert set(state.counters.charged(np.arange(900, dtype=np.uint64)).tolist()) == {3}
    _, rows = monitor.step(state, given(1, 900, 900, 900), SeededNoise(1))
    assert rows.status.tolist() == [ENDED] * 3, "nobody counts any more"


@pytest.mark.parametrize("others", [0, 1])
def test_rules_of_few_people_stop_before_anybody_is_missing(others):
    """900 people at every step but some: as long as such a rule is tested, nobody has been left out of it."""
    few = replace(
        ONE_RULE, many=(False, True)[: 1 + others], starts=(300, 500)[: 1 + others], ends=(400, 500)[: 1 + others]
    )
    few = replace(few, max_hits=3)
    state, seen = few.initial_state(), []
    for step in range(12):
        number = 900 if step % 2 else 0
        state, rows = few.step(state, given(step, *[number] * (1 + others)), SeededNoise(step))
        seen.append((0 in rows.items, rows.stopped))
    stop = [stopped for _, stopped in seen].index(True)
    assert [active for active, _ in seen[: stop + 1]] == ([True] * 3, [True, True])[others]
    assert not any(active or stopped for active, stopped in seen[stop + 1 :])


def test_ranks_of_rules_of_few_people_come_first():
    wrong = Holdings(step=0, users=np.zeros(1, np.uint64), items=np.ones(1, np.uint64), ranks=np.ones(1, np.uint16))
    with pytest.raises(ValueError, match="ranks of rules of few people must come first"):
        MONITOR.step(MONITOR.initial_state(), wrong, SeededNoise(1))


def test_every_step_is_decided():
    state, _ = MONITOR.step(MONITOR.initial_state(), given(3, 0, 0, 0), SeededNoise(1))
    for step in (3, 5):
        with pytest.raises(ValueError, match=f"step must be 4, got {step}: every step is decided"):
            MONITOR.step(state, given(step, 0, 0, 0), SeededNoise(1))


def test_holdings_that_break_a_rule_are_refused():
    state = ONE_RULE.initial_state()
    with pytest.raises(ValueError, match="items must be numbers of rules, < 1"):
        ONE_RULE.step(state, given(0, 1, 1), SeededNoise(1))
    twice = Holdings(step=0, users=np.zeros(2, np.uint64), items=np.zeros(2, np.uint64))
    with pytest.raises(ValueError, match="ranks and items must be distinct for each person"):
        ONE_RULE.step(state, twice, SeededNoise(1))
