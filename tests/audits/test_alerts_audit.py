"""Attacks on alerts, through the stages that count and test: who is in all windows must not show more than epsilon."""

import numpy as np
import pytest
from attacks import falls, stands
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.transforms import AlertRule, SparseVectorAlerts
from privstream.transforms.alerts.threshold_tests import MeetRules, TestCounts
from privstream.transforms.batches import EventBatch, Names, StepKey, encode
from privstream.transforms.holders import CountHolders

pytestmark = pytest.mark.slow

RUNS = 800
WINDOWS = 12  # of the control that starts anew
CLAIMED = 2.0


def alerts(rules, **others):
    common = {"epsilon": CLAIMED, "window": 1, "start": 0, "end": WINDOWS, "min_alerts": 1}
    common["method"] = "sparse_vector"
    return SparseVectorAlerts(**{**common, **others}, rules=rules, noise=SeededNoise(1))


def counts_of(made, people, meet=None):
    """Count people through the stages: so many in each window, each with nine events of every item there is."""
    fn = MeetRules(rules=made.rules, steps=made.steps, noise=made.noise)
    fn.setup()
    if meet is not None:
        fn._met.meet = meet
    count = CountHolders()
    counted = []
    for window, number in enumerate(people):
        users = np.repeat(np.arange(number, dtype=np.uint64), 9)
        items = np.full(len(users), 7, np.uint64)
        events = EventBatch(users, items, np.zeros(len(users), np.int64), Names.none())
        batch = encode(events)
        for element in fn.close(StepKey(window, 0), [batch]):
            counted += [record[8:] for _, record in count.process(element)]
    assert len(counted) == len(people)
    return counted


def stage_of(made):
    mechanism = made.sparse_vector
    return TestCounts(rules=made.rules, mechanism=mechanism, steps=made.steps, timer_offset=3, noise=made.noise)


def outcomes(made, batches, seed, runs=RUNS):
    """Code how many tests fired in each window, and the last gap, up to 8, in many runs."""
    fn = stage_of(made)
    codes = np.zeros(runs, np.int64)
    for run in range(runs):
        fn.noise = SeededNoise(seed).derive(run)
        state, gap = fn.initial(b""), 0
        for window, batch in enumerate(batches):
            state, rows = fn.step(b"", window, [batch], state)
            codes[run] = codes[run] * 16 + len(rows)
            gap = min(7, int(rows[-1].estimate - rows[-1].threshold)) if rows else gap
        codes[run] = codes[run] * 8 + gap * (len(made.rules) == 1)
    return codes


def worlds(made, one, other, meet=None, runs=RUNS):
    """Return outcomes in two worlds: the number of people in each window."""
    return [outcomes(made, counts_of(made, people, meet), seed, runs) for seed, people in enumerate((one, other))]


ONE = (AlertRule(name="all", at_least=5),)
MANY = tuple(AlertRule(name=f"rule {i}", at_least=5) for i in range(12))
BOTH = (AlertRule(name="many", at_least=5), AlertRule(name="few", at_most=5))


@pytest.mark.parametrize(
    ("rules", "others"),
    [
        (ONE, {}),
        (MANY, {}),
        (BOTH, {}),
    ],
)
def test_a_person_in_many_windows_shows_no_more_than_epsilon(rules, others):
    stands(worlds(alerts(rules, **others), (4, 4, 4), (5, 5, 5)), CLAIMED)


def test_events_in_place_of_people_are_caught():
    """Counting events is no query of sensitivity 1: the person has nine in each window."""

    def meet(users, items):
        return users, np.zeros(len(users), np.int64)

    falls(worlds(alerts((AlertRule(name="all", at_least=45),)), (4, 4, 4), (5, 5, 5), meet), CLAIMED)


def test_noise_of_one_window_used_in_all_is_caught():
    """A mechanism that is started anew in every window spends epsilon in each of them."""
    made = alerts(ONE)
    fn = stage_of(made)
    seen = []
    for people in (4, 5):
        batches, codes = counts_of(made, (people,) * WINDOWS), np.zeros(RUNS, np.int64)
        for run in range(RUNS):
            for window, batch in enumerate(batches):
                fn.noise = SeededNoise(people).derive(run, window)
                _, rows = fn.step(b"", window, [batch], fn.initial(b""))
                codes[run] += len(rows)
        seen.append(codes)
    falls(seen, CLAIMED)
