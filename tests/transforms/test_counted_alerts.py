"""Alerts by noisy counts: what a slow reference gives, when "auto" takes them, and what margins mean."""

import random

import numpy as np
import pytest
from alert_workloads import COMMON, COUNTED, KEY, RULES, random_events, reference_of_counts, transform, true_counts
from event_forms import as_rows, run_bounded
from grids import some_quick
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import AlertRule, SparseVectorAlerts
from privstream.transforms.alerts.count_tests import CompareCounts
from privstream.transforms.alerts.counts import ONE_RUN, encode_counts
from privstream.transforms.timing.public_clock import SEED, stepped
from tiny_runner import Stage

SEED_OF_EVENTS = 5
ONE = {"rules": RULES[:1], "noise": KeyedNoise(KEY), "window": 1, "start": 0, "epsilon": 1.0}


@some_quick("name", COUNTED, "counts, own streams")
def test_alerts_are_those_of_the_reference(name):
    events = random_events(name, random.Random(SEED_OF_EVENTS))
    random.Random(0).shuffle(events)
    made = transform(name)
    results = run_bounded("fn_api", as_rows(events), made)
    expected = reference_of_counts(made, events)
    assert expected
    assert sorted(results.elements("rows")) == expected
    assert results.elements("dead") == []
    assert results.counters["privstream:alerts_published"] == len(expected)
    assert all(stamp == row.window_end.micros - 1 for row, stamp in results.outputs["rows"])


@pytest.mark.parametrize("name", ["counts", "counts, sliding, quiet"])
@pytest.mark.parametrize("seed", range(3))
def test_crashes_and_timers_in_any_order_change_nothing(name, seed):
    made, chance = transform(name), random.Random(seed)
    events = random_events(name, chance)
    fn = CompareCounts(method=made.counted, steps=made.steps, timer_offset=3, noise=made.noise)
    stage = Stage(fn, chance, crashes=0.3, workers=2)
    records = [(ONE_RUN, SEED)]
    for (step, stream, rule), count in true_counts(made, events).items():
        if made.steps.first <= step < made.steps.end:
            vector = np.array([count * (other.name == rule) for other in made.plan.rules])
            records.append((ONE_RUN, stepped(step, encode_counts((stream,), vector))))
    stage.feed(records)
    stage.advance(made.steps.decision_time(made.steps.first + 3, 3).micros)
    stage.advance(2**62 // 1000 * 1000)
    assert sorted(stage.take()) == reference_of_counts(made, events)


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({"end": 12}, "counts"),
        ({"end": 365}, "sparse_vector"),
        ({"end": 100, "delta": 1e-6}, "status"),
        ({"end": 30, "delta": 1e-6}, "counts"),
        ({"end": 365, "delta": 1e-6}, "status"),
        ({"end": None, "delta": 1e-6}, "status"),
        ({"end": 365, "delta": 1e-6, "quiet": 1, "min_alerts": 1}, "sparse_vector"),
        ({"end": 365, "delta": 1e-6, "quiet": 1, "min_alerts": 100}, "counts"),
    ],
)
def test_auto_takes_the_smaller_margin(changes, taken):
    found = SparseVectorAlerts(**ONE | changes)
    assert found.method == taken
    if found.windows is not None:
        methods = ["counts", "sparse_vector"] + ["status"] * ("delta" in changes and "quiet" not in changes)
        asked = [SparseVectorAlerts(**ONE | changes, method=method) for method in methods]
        assert found.margin() == min(each.margin() for each in asked) == found.accuracy.error


def test_counts_need_an_end():
    with pytest.raises(ValueError, match="end must be given for counts: they pay for every window"):
        SparseVectorAlerts(**ONE, method="counts")
    with pytest.raises(ValueError, match=r"delta must be in \[0, 1\), got 1"):
        SparseVectorAlerts(**ONE, end=5, delta=1.0)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_margin_holds_for_all_tests_of_a_run_together(delta):
    """Values that pass by more than the margin, and others that miss by more, in all windows of many runs."""
    rules = (AlertRule(name="many", at_least=5_000),)
    made = SparseVectorAlerts(**ONE | {"rules": rules, "end": 50, "delta": delta, "beta": 0.2, "method": "counts"})
    margin, wrong = int(made.margin()), 0
    fn = CompareCounts(method=made.counted, steps=made.steps, timer_offset=3, noise=made.noise)
    for run in range(20):
        fn.noise = made.noise.derive("run", run)
        state, failures = fn.initial(b""), 0
        for step in range(50):
            over = step % 2 == 0
            value = 5_000 + margin if over else 5_000 - margin - 1
            _, rows = fn.advance(b"", step, [encode_counts(("",), np.array([[value]]))], state)
            failures += bool(rows) != over
        wrong += bool(failures)
    assert wrong <= 14  # 2 are expected: half of beta, since a value may fail on one side only


def test_no_alert_stops_a_run():
    made = transform("counts")
    crowd = [
        (f"user {i}", "a", time * 1_000_000, "")
        for i in range(200)
        for time in range(COMMON["start"], COMMON["end"], 10)
    ]
    rows = reference_of_counts(made, crowd)
    assert len(rows) == 2 * 12  # everybody, and a or b
    assert {(row.stopped, row.epsilon_spent, row.epsilon_left) for row in rows} == {(False, 0.0, 0.0)}
    assert len(rows) > made.plan.mechanism.min_hits


def test_a_person_pays_for_every_rule_in_every_window_of_every_stream():
    def contributions(**given):
        return SparseVectorAlerts(**{**ONE, "end": 10, "method": "counts", **given}).counted.counts.contributions

    assert contributions() == 10
    assert contributions(rules=RULES) == 30
    assert contributions(streams=("s", "t", "u")) == 30
    assert contributions(streams=("s", "t", "u"), streams_per_person=2) == 20
    found = SparseVectorAlerts(**ONE, end=10, method="counts", delta=1e-6).guarantee
    assert (found.epsilon, found.delta, found.horizon) == (1.0, 1e-6, 10)
    assert "A person makes at most" not in found.paragraph()
    assert "Each person counts once for a rule in each of 10 windows of a stream." in found.limits


def test_a_rule_that_nobody_meets_may_fire_by_noise_alone_and_one_far_below_does_not():
    rules = (AlertRule(name="silence", at_most=0), AlertRule(name="crowd", at_least=10_000))
    made = SparseVectorAlerts(**ONE | {"rules": rules, "end": 40, "method": "counts", "delta": 1e-6})
    rows = run_bounded("fn_api", [("nobody", "a")], made).elements("rows")
    assert {row.rule for row in rows} == {"silence"}
    assert 5 < len(rows) < 36
