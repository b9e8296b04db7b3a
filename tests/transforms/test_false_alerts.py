"""Alerts of nobody: what is foretold of them is what noise alone does; where there are hardly any, nothing is said."""

import math

import numpy as np
import pytest
from privstream.mechanisms.keyed_counts.shared_counts import SharedCounts
from privstream.mechanisms.monitor.holdings import Holdings
from privstream.mechanisms.noise.sources import KeyedNoise, SeededNoise
from privstream.transforms import AlertRule, MeasurementAlerts, SparseVectorAlerts
from privstream.transforms.alerts.count_tests import CompareCounts
from privstream.transforms.alerts.threshold_tests import encode_counts
from scipy import stats

KEY = bytes(range(32))
NOBODY = Holdings(step=0, users=np.empty(0, np.uint64), items=np.empty(0, np.uint64))
WINDOWS = 2000


def made(method, rules, **more):
    given = {"epsilon": 1.0, "delta": 1e-6, "window": 1, "start": 0, "end": WINDOWS, "noise": KeyedNoise(KEY)} | more
    return SparseVectorAlerts(rules=tuple(rules), method=method, **given)


def by_counts(alerts):
    """Return how often each rule is met in a run with nobody."""
    stage = CompareCounts(method=alerts.counted, steps=alerts.steps, timer_offset=3, noise=alerts.noise)
    found, state = dict.fromkeys((rule.name for rule in alerts.plan.rules), 0), stage.initial(b"")
    for step in range(WINDOWS):
        state, rows = stage.advance(b"", step, [encode_counts(("",), np.zeros((1, len(found)), np.int64))], state)
        for row in rows:
            found[row.rule] += 1
    return found


def near(number, expected, runs_of=1):
    """Tell whether a number of rare events is as expected; alerts of means come in runs, and fluctuate more."""
    return abs(number - expected) <= 0.1 * expected + 6.2 * math.sqrt(expected * runs_of)


@pytest.mark.slow
def test_counts_meet_rules_as_often_as_is_foretold():
    rules = [AlertRule(name="kettle", at_least=400), AlertRule(name="days", at_least=160, windows=4)]
    alerts = made(
        "counts", [*rules, AlertRule(name="far", at_least=10**5), AlertRule(name="few", at_most=3)], renew_every=WINDOWS
    )
    foretold = {each.rule.name: each for each in alerts.false_alerts}
    assert list(foretold) == ["kettle", "days"], "of at_most nothing is said, and nothing where there are hardly any"
    assert foretold["days"].tests == WINDOWS - 3
    found = by_counts(alerts)
    for name, each in foretold.items():
        assert each.expected > 30
        assert near(found[name], each.expected, each.rule.windows), (name, found[name], each.expected)
        assert not near(found[name], 2 * each.expected, each.rule.windows)


def test_noise_in_common_makes_alerts_as_probable_as_is_foretold():
    """In one run they are more or fewer, all of them together: their number says little of the probability."""
    alerts = made("counts", [AlertRule(name="kettle", at_least=100), AlertRule(name="days", at_least=40, windows=4)])
    assert isinstance(alerts.counted.counts, SharedCounts)
    for each, windows in zip(alerts.false_alerts, (1, 4), strict=True):
        exact = stats.norm.sf((each.rule.at_least - 0.5 / windows) / alerts.counted.stddev(windows))
        assert each.probability == pytest.approx(exact, rel=0.1)
        assert each.probability != pytest.approx(2 * exact, rel=0.1)


@pytest.mark.slow
def test_quiet_windows_are_not_tested():
    alerts = made("counts", [AlertRule(name="kettle", at_least=100)], quiet=3)
    (each,) = alerts.false_alerts
    assert each.expected < WINDOWS / 4
    assert near(by_counts(alerts)["kettle"], each.expected)


@pytest.mark.slow
def test_status_starts_as_often_as_is_foretold():
    alerts = made("status", [AlertRule(name="kettle", at_least=8)])
    (each,) = alerts.false_alerts
    monitor, noise = alerts.counted.monitor, KeyedNoise(KEY)
    state, started = monitor.initial_state(), 0
    for step in range(WINDOWS):
        state, rows = monitor.step(state, Holdings(step=step, users=NOBODY.users, items=NOBODY.items), noise)
        started += int((rows.status == 0).sum())
    assert each.expected > 20
    assert near(started, each.expected)


@pytest.mark.slow
def test_sparse_vector_hits_as_often_as_is_foretold():
    alerts = made("sparse_vector", [AlertRule(name="kettle", at_least=10)], min_alerts=4)
    (each,) = alerts.false_alerts
    mechanism, runs = alerts.plan.mechanism, 4000
    first = 0
    for run in range(runs):  # the hidden threshold is that of a run: so only the first test of each counts
        _, answers = mechanism.step(mechanism.initial_state(), [0], SeededNoise(run), thresholds=[10])
        first += int(answers.hits[0])
    assert near(first, runs * each.probability)
    assert each.probability * runs > 20


@pytest.mark.parametrize("method", ["counts", "status", "sparse_vector"])
def test_the_threshold_that_is_enough_is_enough_and_no_smaller_one(method):
    (each,) = made(method, [AlertRule(name="kettle", at_least=1)]).false_alerts
    assert made(method, [AlertRule(name="kettle", at_least=each.enough)]).false_alerts == ()
    (last,) = made(method, [AlertRule(name="kettle", at_least=each.enough - 1)]).false_alerts
    assert last.expected * 1.1 >= 0.5 and last.expected < 0.8


def test_what_is_said_names_rules_and_what_helps():
    rules = [AlertRule(name=f"r{i}", at_least=100) for i in range(5)]
    alerts = made("counts", rules, end=90)
    assert "With nobody at all, noise alone is to meet rule 'r0' in about " in alerts.accuracy.sentence
    assert "; 2 other rules likewise." in alerts.accuracy.sentence
    assert "rule 'r2' at_least " in alerts.advice and "r3" not in alerts.advice
    assert "A larger --epsilon, longer windows" in alerts.advice and '"windows": n' in alerts.advice
    assert set(alerts.accuracy.numbers["false_alerts"]) == {rule.name for rule in rules}
    fine = made("counts", [AlertRule(name="r", at_least=10**4)], end=90)
    assert not fine.advice and "nobody" not in fine.accuracy.sentence and "false_alerts" not in fine.accuracy.numbers


def test_all_streams_are_tested_and_measurements_are_no_people():
    one, three = (
        made("counts", [AlertRule(name="kettle", at_least=100)], streams=streams) for streams in (("a",), tuple("abc"))
    )
    assert three.false_alerts[0].tests == 3 * one.false_alerts[0].tests
    loads = MeasurementAlerts(
        epsilon=1.0, rules=(AlertRule(name="load", at_least=0.5),), window=60, start=0, end=600, noise=KeyedNoise(KEY)
    )
    assert "nobody" not in loads.accuracy.sentence and not loads.advice
