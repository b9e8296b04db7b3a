"""Monitors against a slow reference; the status monitor, of items and of rules: its gates, refusals and laws."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from item_streams import (
    DOMAIN,
    check_frequencies,
    check_order_and_snapshots,
    crowds,
    goes_up,
    holdings,
    ids,
    run,
    stays_up,
    streams,
)
from laws import cdf
from privstream.mechanisms.mechanism import UserCounters
from privstream.mechanisms.monitor.monitor import (
    CONTINUES,
    ENDED,
    STARTED,
    Holdings,
    MonitorState,
    ThresholdMonitor,
    UpItems,
)
from privstream.mechanisms.noise.discrete import ONE
from privstream.mechanisms.noise.sources import SeededNoise

# Little noise and thresholds of a few people, so that small data has items that start, continue and end.
KNOWN = ThresholdMonitor(
    calibration="status",
    epsilon=8.0,
    delta=0.2,
    max_hits=3,
    domain_size=DOMAIN,
    tests=1,
    beta=0.9,
    items_per_step=3,
    up_steps=1,
)
UNKNOWN = replace(KNOWN, domain_size=None, delta=0.5, horizon=6, first_step=0, tests=None, beta=0.05)
MONITORS = {
    "known": KNOWN,
    "unknown": UNKNOWN,
    "no counts": replace(KNOWN, count_share=0.0),
    "rules": replace(KNOWN, domain_size=None, items_per_step=1, max_hits=6, starts=(2, 5, 9) * 2, ends=(1, 5, 3) * 2),
    "one item": replace(UNKNOWN, max_hits=2, items_per_step=3),
    "clock, known": replace(KNOWN, calibration="clock"),
    "clock, unknown": replace(UNKNOWN, calibration="clock", epsilon=8.0),
    "paper": replace(KNOWN, calibration="paper", epsilon=60.0),
}
monitors = pytest.mark.parametrize("monitor", MONITORS.values(), ids=MONITORS.keys())


def reference_step(monitor, charged, up, step, rows, noise):
    """Decide a step one item at a time, with dicts: return item -> status, and who has been charged for how many."""
    tested = range(monitor._size) if monitor._size else sorted({item for _, item, _ in rows} | set(up))
    found, charges = {}, []
    for item in tested:
        taking_part = [u for u, held, rank in rows if held == item and rank < monitor.max_hits - charged[u]]
        if item in up:
            stays = stays_up(monitor, step, ids([item]), len(taking_part), noise)[0]
            found[item] = CONTINUES if stays else ENDED
        elif goes_up(monitor, step, ids([item]), len(taking_part), noise)[0]:
            found[item] = STARTED
        if found.get(item, CONTINUES) != CONTINUES:
            charges += taking_part
    for user in charges:
        charged[user] += 1
    return found, len(charges)


def crowd(step, item, size, first=0):
    users = ids(range(first, first + size))
    return Holdings(step=step, users=users, items=ids([item] * size))


class TestAgainstAReference:
    @monitors
    @settings(max_examples=settings.default.max_examples // 4)
    @given(stream=streams(), seed=st.integers(0, 2**32))
    def test_statuses_and_charges(self, monitor, stream, seed):
        noise, state, charged, up = SeededNoise(seed), monitor.initial_state(), defaultdict(int), {}
        for step, rows in enumerate(stream):
            expected, _ = reference_step(monitor, charged, up, step, rows, noise)
            up |= {item: step for item, found in expected.items() if found == STARTED}
            state, found = monitor.step(state, holdings(step, rows), noise)
            assert found.items.tolist() == sorted(expected)
            assert found.status.tolist() == [expected[item] for item in sorted(expected)]
            assert found.since.tolist() == [up[item] for item in sorted(expected)]
            assert len(found.counts) == (len(found.items) if monitor.count_share else 0)
            assert not found.counts[found.status[: len(found.counts)] == CONTINUES].any()
            lasting = monitor.calibration == "status"
            up = {item: since for item, since in up.items() if lasting and expected[item] != ENDED}
            assert state.up.items.tolist() == sorted(up)
            people = sorted({user for user, _, _ in rows})
            assert state.counters.charged(ids(people)).tolist() == [charged[user] for user in people]
            assert max(charged.values(), default=0) <= monitor.max_hits


class TestInvariance:
    @monitors
    @settings(max_examples=settings.default.max_examples // 6)
    @given(stream=streams(), seed=st.integers(0, 2**32))
    def test_order_of_rows_and_snapshots_change_nothing(self, monitor, stream, seed):
        check_order_and_snapshots(monitor, stream, seed)

    def test_up_tests_and_down_tests_have_noise_of_their_own(self):
        """Otherwise an item that has just gone up would say how its next test ends."""
        monitor, items, source = replace(KNOWN, epsilon=1.0, delta=1e-3, domain_size=40), ids(range(40)), SeededNoise(3)
        laws = monitor.calibrated.threshold_law, monitor.calibrated.end_law
        middle = [int(np.searchsorted(cdf(law, np.arange(400)), 0.5)) for law in laws]
        starts, stays = (
            np.array([test(monitor, step, items, count, source) for step in range(50)])
            for test, count in zip((goes_up, stays_up), middle, strict=True)
        )
        assert 0.3 < starts.mean() < 0.7
        assert 0.3 < stays.mean() < 0.7
        assert abs(np.corrcoef(starts.ravel(), stays.ravel())[0, 1]) < 0.2


class TestGates:
    @pytest.mark.parametrize("charged", [0, 1, 2, 3])
    def test_ranks(self, charged):
        """With c charges left, a person counts for the items ranked below c, whether they start or end."""
        counters = UserCounters()
        for step in range(charged):
            rows, charges, _ = UNKNOWN.decide(counters, crowd(step, 50 + step, 60), SeededNoise(1))
            assert rows.status.tolist() == [STARTED]
            counters = counters.add(charges)
        others = [(100 * (item + 1) + i, item, 0) for item in (0, 2) for i in range(60)]
        given_step = holdings(4, [*others, (7, 0, 2), (7, 1, 0), (7, 2, 1)])
        up = UpItems(ids([1]), np.array([3]))
        rows, charges, after = UNKNOWN.decide(counters, given_step, SeededNoise(2), up)
        changes = np.count_nonzero(rows.status != CONTINUES)
        assert rows.items.tolist() == [0, 1, 2]
        assert UserCounters().add(charges).charged(ids([7])).tolist() == [min(changes, 3 - charged)]
        assert after.items.tolist() == rows.items[rows.status != ENDED].tolist()


class TestCharges:
    def test_lasting_costs_nothing_and_ending_charges_who_is_left(self):
        monitor = replace(UNKNOWN, horizon=100, items_per_step=1, epsilon=1.0, delta=1e-6, beta=1e-9)
        size = monitor.detection_threshold
        steps = [crowd(step, 7, size) for step in range(20)]
        states, outputs = run(monitor, steps, SeededNoise(1))
        assert [rows.status.tolist() for rows in outputs] == [[STARTED]] + 19 * [[CONTINUES]]
        assert all(rows.since.tolist() == [0] for rows in outputs)
        assert set(states[-1].counters.charged(ids(range(size)))) == {1}
        few = np.count_nonzero(cdf(monitor.calibrated.end_law, np.arange(400)) <= 1e-9) - 1
        assert few >= 1
        state, rows = monitor.step(states[-1], crowd(20, 7, few), SeededNoise(1))
        assert rows.status.tolist() == [ENDED]
        assert state.counters.charged(ids(range(size))).tolist() == [2] * few + [1] * (size - few)
        assert not len(state.up)


class TestRefusals:
    def test_a_gap_while_an_item_is_up(self):
        state = MonitorState(UserCounters(), UpItems(ids([1]), np.array([2])), 2)
        with pytest.raises(ValueError, match="step must be 3 with rules or while an item is up, got 4"):
            UNKNOWN.step(UNKNOWN.restore(UNKNOWN.snapshot(state)), holdings(4, []), SeededNoise(1))
        UNKNOWN.step(state, holdings(3, []), SeededNoise(1))


def test_up_items_go_down_as_often_as_stated():
    repeats = 3000
    monitor = replace(UNKNOWN, items_per_step=1, count_share=0.0, epsilon=1.0, delta=1e-3)
    stated = cdf(monitor.calibrated.end_law, np.arange(400))
    counts = np.searchsorted(stated, (0.1, 0.5, 0.8))
    given_step, held = crowds(counts, repeats, step=1)
    up = UpItems(ids(range(len(held))), np.zeros(len(held), np.int64))
    *_, after = monitor.decide(UserCounters(), given_step, SeededNoise(11), up)
    check_frequencies(after.items, held, counts, repeats, stated)


def test_counts_of_changes_have_the_noise_that_is_stated():
    monitor = replace(UNKNOWN, items_per_step=1, epsilon=2.0)
    size, repeats = 60, 2000
    people = np.arange(size * repeats, dtype=np.uint64)
    given_step = Holdings(step=0, users=people, items=people % np.uint64(repeats))
    state, rows = monitor.step(monitor.initial_state(), given_step, SeededNoise(14))
    assert np.all(rows.status == STARTED)
    assert np.std(rows.counts - size) == pytest.approx(monitor.count_stddev, rel=0.2)
    assert abs(np.mean(rows.counts - size)) < 7 * monitor.count_stddev / np.sqrt(repeats)
    _, rows = monitor.step(state, replace(given_step, step=1, users=people[:0], items=people[:0]), SeededNoise(14))
    ended = rows.counts[rows.status == ENDED]
    assert np.std(ended) == pytest.approx(monitor.count_stddev, rel=0.2)


RULES = ThresholdMonitor(
    calibration="status", epsilon=1.0, delta=1e-6, max_hits=4, starts=(500, 900), ends=(400, 900), tests=600
)


def numbers(step, *people):
    """So many people count for each rule, others at every step."""
    users = np.concatenate([ids(range(number)) + np.uint64(10_000 * step) for number in people])
    rules = np.repeat(np.arange(len(people)), people)
    return Holdings(step=step, users=users, items=ids(rules), ranks=rules.astype(np.uint16))


def followed(monitor, steps, seed):
    _, found = run(monitor, [numbers(step, *each) for step, each in enumerate(steps)], SeededNoise(seed))
    return [dict(zip(rows.items.tolist(), rows.status.tolist(), strict=True)) for rows in found]


def test_rules_start_continue_and_end():
    margin = RULES.detection_threshold
    steps = [(0, 0), (500 + margin, 0), (450, 900 + margin), (400 - margin, 900 - margin), (450, 0)]
    wanted = [{}, {0: STARTED}, {0: CONTINUES, 1: STARTED}, {0: ENDED, 1: ENDED}, {}]
    assert all(followed(RULES, steps, seed) == wanted for seed in range(20))


def test_the_margin_of_rules_holds_and_is_not_much_too_large():
    monitor = replace(RULES, starts=(500,), ends=(500,), tests=100, beta=0.5)
    wrong = {1.0: 0, 0.5: 0}
    for share in wrong:
        moved = round(monitor.detection_threshold * share)
        steps = [(500 - moved,), (500 + moved,), (500 + moved,), (500 - moved,)]
        wanted = [{}, {0: STARTED}, {0: CONTINUES}, {0: ENDED}]
        wrong[share] = sum(followed(monitor, steps, seed) != wanted for seed in range(300))
    assert wrong[1.0] <= 300 * 4 * 0.5 / 100 + 8
    assert wrong[0.5] > 60


@pytest.mark.parametrize("kind", [0, 1])
def test_one_person_changes_hazards_of_rules_by_no_more_than_eta(kind):
    """Hazards of misses for rising numbers, and of staying for falling ones: exactly e^eta from number to number."""
    found = RULES.calibrated
    law = (found.threshold_law, found.end_law)[kind]
    words = np.array([int(high) << 64 | int(low) for high, low in zip(law.high, law.low, strict=True)], object)
    chances = np.array([float((word if kind == 0 else ONE - word) / ONE) for word in words])
    hazards = -np.log1p(-chances[chances < 1])
    usual = hazards[(hazards > 1e-12) & (hazards < 10)]
    assert len(usual) > 300
    assert np.allclose(usual[1:] / usual[:-1], np.exp(found.eta if kind == 0 else -found.eta), rtol=1e-4)


def test_of_rules_every_step_is_decided_and_nobody_counts_twice():
    state, _ = RULES.step(RULES.initial_state(), numbers(3, 0, 0), SeededNoise(1))
    with pytest.raises(ValueError, match="step must be 4 with rules"):
        RULES.step(state, numbers(5, 0, 0), SeededNoise(1))
    for rows in ([(1, 2, 0)], [(1, 0, 2)], [(1, 0, 0), (1, 0, 1)], [(1, 0, 0), (1, 1, 0)]):
        with pytest.raises(ValueError, match=r"items must be|ranks must be"):
            RULES.step(RULES.initial_state(), holdings(0, rows), SeededNoise(1))
