"""Attacks on alerts, through the stages that count and test: who is in all windows must not show more than epsilon."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from apache_beam.utils.timestamp import Timestamp
from attacks import falls, stands
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.snapshots import pack
from privstream.transforms import AlertRule, Measurement, MeasurementAlerts, SparseVectorAlerts
from privstream.transforms.alerts.measurement_alerts import KeyMeasurements, TestMeasurements
from privstream.transforms.alerts.threshold_tests import ONE_RUN, CountMeeting, MeetRules, TestCounts
from privstream.transforms.batches import EventBatch, InStreams, Names, StepKey

pytestmark = pytest.mark.slow

RUNS = 800
WINDOWS = 12  # of the control that starts anew
CLAIMED = 2.0


def alerts(rules, **others):
    common = {"epsilon": CLAIMED, "window": 1, "start": 0, "end": WINDOWS, "min_alerts": 1, "branches": 1}
    common["method"] = "sparse_vector"
    return SparseVectorAlerts(**{**common, **others}, rules=rules, noise=SeededNoise(1))


def counts_of(made, people, meet=None):
    """Count people through the stages: so many in each window, each with nine events of every item there is."""
    fn = MeetRules(rules=made.plan.rules, steps=made.steps, timer_offset=1, noise=made.noise, by_people=False)
    fn.setup()
    if meet is not None:
        fn.meet = meet
    count = CountMeeting(len(made.plan.rules), by_stream=False)
    counted = []
    for window, number in enumerate(people):
        users = np.repeat(np.arange(number, dtype=np.uint64), 9)
        items = np.full(len(users), 7, np.uint64)
        events = EventBatch(users, items, np.zeros(len(users), np.int64), Names.none())
        batch = InStreams.of("", events).to_bytes()
        for element in fn.close(StepKey("", window, 0), [batch]):
            counted += [record[8:] for _, record in count.process(element)]
    assert len(counted) == len(people)
    return counted


def outcomes(made, batches, seed, runs=RUNS):
    """Code how many tests fired in each window, and the last gap, up to 8, in many runs."""
    fn = TestCounts(plan=made.plan, steps=made.steps, timer_offset=3, noise=made.noise)
    codes = np.zeros(runs, np.int64)
    for run in range(runs):
        fn.noise = SeededNoise(seed).derive(run)
        state, gap = fn.initial(ONE_RUN), 0
        for window, batch in enumerate(batches):
            state, rows = fn.advance(ONE_RUN, window, [batch], state)
            codes[run] = codes[run] * 16 + len(rows)
            gap = min(7, int(rows[-1].gap)) if rows else gap
        codes[run] = codes[run] * 8 + gap * (len(made.plan.rules) == 1)
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
        (ONE, {"branches": 2}),
        (MANY, {}),
        (MANY[:3], {"budget": "per_rule"}),
        (BOTH, {}),
        (ONE, {"neighbouring": "replace_one"}),
    ],
)
def test_a_person_in_many_windows_shows_no_more_than_epsilon(rules, others):
    stands(worlds(alerts(rules, **others), (4, 4, 4), (5, 5, 5)), CLAIMED)


def test_a_person_in_some_windows_shows_a_part_of_epsilon():
    stands(worlds(alerts(ONE), (4, 4, 5), (5, 5, 5), runs=1_500), CLAIMED, visible=0.01)


def test_a_budget_that_is_not_split_is_caught():
    made = copy.copy(alerts(MANY, budget="per_rule"))
    made.plan = replace(made.plan, mechanism=alerts(ONE).plan.mechanism)
    falls(worlds(made, (4,), (5,), runs=1_300), CLAIMED)


def test_events_in_place_of_people_are_caught():
    """Counting events is no query of sensitivity 1: the person has nine in each window."""

    def meet(users, items):
        return users, np.zeros(len(users), np.int64)

    falls(worlds(alerts((AlertRule(name="all", at_least=45),)), (4, 4, 4), (5, 5, 5), meet), CLAIMED)


def test_noise_of_one_window_used_in_all_is_caught():
    """A mechanism that is started anew in every window spends epsilon in each of them."""
    made = alerts(ONE)
    fn = TestCounts(plan=made.plan, steps=made.steps, timer_offset=3, noise=made.noise)
    seen = []
    for people in (4, 5):
        batches, codes = counts_of(made, (people,) * WINDOWS), np.zeros(RUNS, np.int64)
        for run in range(RUNS):
            for window, batch in enumerate(batches):
                fn.noise = SeededNoise(people).derive(run, window)
                _, rows = fn.advance(ONE_RUN, window, [batch], fn.initial(ONE_RUN))
                codes[run] += len(rows)
        seen.append(codes)
    falls(seen, CLAIMED)


class TestOfMeasurements:
    """Measurements of equal time and rule are sorted by value; all of them may move, in any direction."""

    def outcomes(self, made, values, seed):
        check = KeyMeasurements(rules=made.plan.rules, streams=("",), steps=made.steps, whole=True)
        keyed_batches = [out for value in values for out in check.process(Measurement("x", Timestamp(0), value))]
        fn = TestMeasurements(plan=made.plan, steps=made.steps, timer_offset=2, noise=made.noise)
        batch = pack("measurements", 1, {str(i): data for i, (_, (_, data)) in enumerate(keyed_batches)})
        codes = np.zeros(RUNS, np.int64)
        for run in range(RUNS):
            fn.noise = SeededNoise(seed).derive(run)
            _, rows = fn.advance(ONE_RUN, 0, [batch], fn.initial(ONE_RUN))
            codes[run] = sum(8 * (i + 1) + min(7, int(row.gap)) for i, row in enumerate(rows))
        return codes

    def worlds(self, one, other):
        return [self.outcomes(self.make(), values, seed) for seed, values in enumerate((one, other))]

    def make(self):
        rules = (AlertRule(name="x", at_least=3),)
        return MeasurementAlerts(
            epsilon=CLAIMED, rules=rules, window=1, start=0, end=1, min_alerts=1, branches=1, integer=True,
            noise=SeededNoise(1),
        )  # fmt: skip

    def test_moved_by_one_they_show_no_more_than_epsilon(self):
        stands(self.worlds([2, 3, 2, 3], [3, 2, 1, 2]), CLAIMED)

    def test_moved_by_more_they_are_caught(self):
        falls(self.worlds([-10, -10, -10, -10], [6, 6, 6, 6]), CLAIMED)
