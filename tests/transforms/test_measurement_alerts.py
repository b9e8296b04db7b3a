"""Alerts about measurements: each is tested once, in order of time, whatever the order of arrival."""

import math
import random

import numpy as np
import pytest
from apache_beam.testing import test_stream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from event_forms import run_bounded
from every_runner import of_elements, of_stream, one_job
from grids import some_quick
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.privacy.units import PrivacyUnit
from privstream.transforms import AlertRule, Measurement, MeasurementAlerts
from privstream.transforms.alerts.measurement_alerts import KeepMeasurements, KeyMeasurements, TestMeasurements
from tiny_runner import Stage

KEY = b"a key for tests, no secret"
START = 1_700_000_000 // 60 * 60
RULES = (AlertRule(name="load", at_least=40.5), AlertRule(name="level", at_most=-30))
COMMON = {"epsilon": 5.0, "rules": RULES, "window": 10, "start": START, "end": START + 60, "min_alerts": 4}
CONFIGURATIONS = {
    "real": {},
    "whole": {"integer": True, "rules": (AlertRule(name="load", at_least=40), AlertRule(name="level", at_most=-30))},
    "per rule": {"budget": "per_rule", "monotone": True},
    "streams": {"streams": ("s", "t"), "quiet": 1},
}


def make(name: str) -> MeasurementAlerts:
    return MeasurementAlerts(**{**COMMON, **CONFIGURATIONS[name]}, noise=KeyedNoise(KEY))


def random_measurements(made, chance: random.Random) -> list[Measurement]:
    rows = []
    for _ in range(60):
        value = chance.gauss(0, 45)
        rows.append(
            Measurement(
                rule=chance.choice(["load", "level"]),
                time=Timestamp(START + chance.randint(0, 59)),
                value=float(round(value)) if made.plan.mechanism.integer else value,
                stream=chance.choice(made.plan.streams),
            )
        )
    return rows


def reference(made, rows) -> list[tuple]:
    """Return time of the window, stream, rule and gap of each alert: all tests one by one, in their order."""
    plan, mechanism = made.plan, made.plan.mechanism
    names = [rule.name for rule in plan.rules]
    kind = np.int64 if mechanism.integer else np.float64
    alerts = []
    for rules in [[name] for name in names] if plan.by_rule else [names]:
        noise = made.noise.derive("run", b"", rules[0] if plan.by_rule else "")
        state, fired = mechanism.initial_state(), {}
        order = sorted(rows, key=lambda r: (r.time, plan.streams.index(r.stream), names.index(r.rule), r.value))
        for row in order:
            window = row.time.micros // made.steps.period
            asleep = (
                fired.get((row.stream, row.rule), -100) + plan.quiet >= window > fired.get((row.stream, row.rule), -100)
            )
            if row.rule not in rules or mechanism.halted(state) or asleep:
                continue
            rule = plan.rules[names.index(row.rule)]
            values = np.array([rule.sign * row.value]).astype(kind)
            thresholds = np.array([rule.sign * rule.threshold]).astype(kind)
            state, answers = mechanism.step(state, values, noise, thresholds=thresholds)
            if answers.hits[0]:
                fired[row.stream, row.rule] = window
                digits = 2 - math.floor(math.log10(math.sqrt(mechanism.variances(answers)[0])))
                gap = round(float(answers.gaps[0]), digits)
                alerts.append((window * 10, row.stream, row.rule, gap, mechanism.halted(state)))
    return sorted(alerts)


def found(results) -> list[tuple]:
    rows = results.elements("rows")
    return sorted((int(row.window_start), row.stream, row.rule, row.gap, row.stopped) for row in rows)


def run(elements, made):
    return run_bounded("fn_api", elements, made)


@some_quick("seed", [1, 2], 1)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_alerts_are_those_of_the_reference(name, seed):
    made = make(name)
    rows = random_measurements(made, random.Random(seed))
    expected = reference(made, rows)
    assert expected
    results = run(rows, made)
    assert found(results) == expected
    assert all(stamp == row.window_end.micros - 1 for row, stamp in results.outputs["rows"])


def test_windows_may_be_days_of_a_calendar():
    """Clocks change on the third day, which has 23 hours; a measurement of its last one is not of the day after."""
    start, hour = 1_711_666_800, 3_600  # midnight in Berlin, 29 March 2024
    hours = (12, 60, 70, 71, 80)  # since then, of days 1, 3, 3, 4 and 4
    rows = [Measurement("load", Timestamp(start + number * hour), 1000.0) for number in hours]
    given = {"window": "1day Europe/Berlin", "start": start, "end": start + 95 * hour, "min_alerts": 5}
    rows_of = run(rows, MeasurementAlerts(**{**COMMON, **given}, noise=KeyedNoise(KEY))).elements("rows")
    starts = sorted(int(row.window_start) - start for row in rows_of)
    assert starts == [0, 48 * hour, 48 * hour, 71 * hour, 71 * hour]


@one_job("rules", ["streams"], runners=["prism"])
def test_runners_agree(name):
    made = make(name)
    rows = random_measurements(made, random.Random(3))
    results = yield of_elements(rows, made)
    assert found(results) == reference(made, rows)


def test_equal_measurements_are_tests_of_their_own():
    made = make("whole")
    rows = [Measurement("load", Timestamp(START), 1000.0)] * 3
    assert len(found(run(rows, made))) == 3


def test_what_breaks_a_rule_is_a_dead_letter():
    made = make("whole")
    at = Timestamp(START)
    bad = {
        "rule must be the name of a rule": Measurement("other", at, 1.0),
        "value must be finite": Measurement("load", at, float("nan")),
        "value must be a number, got str": Measurement("load", at, "1"),
        "value must be a number, got bool": Measurement("load", at, True),
        "value must be a number, got complex128": Measurement("load", at, np.complex128(1 + 2j)),
        "value must be a number, got timedelta64": Measurement("load", at, np.timedelta64(5, "s")),
        "stream must be one of the public streams": Measurement("load", at, 1.0, "s"),
        "time must be between 1970-01-01 and 2200-01-01": Measurement("load", -5, 1.0),
        "measurement must have a field rule": (1, 2),
    }
    infinite = Measurement("load", at, float("-inf"))
    good = Measurement("load", at, 1000.0)
    results = run([*bad.values(), infinite, good], made)
    reasons = [letter.reason for letter in results.elements("dead")]
    assert len(reasons) == len(bad) + 1
    for message in bad:
        assert any(message in reason for reason in reasons), message
    assert len(found(results)) == 1
    assert results.counters["privstream:events_malformed"] == len(bad) + 1


def test_large_and_broken_values_are_cut_off_and_rounded_down():
    """Neither moves two values further apart, so that they are not set aside."""
    made, real = make("whole"), make("real")
    pairs = ((1000.9, 1000.0), (10**400, 2.0**53), (1e300, 2.0**53), (np.float32(7.5), 7.0))
    starts = [Timestamp(START + 10 * window) for window in range(len(pairs))]
    given, used = (
        found(run([Measurement("load", *each) for each in zip(starts, values, strict=True)], made))
        for values in zip(*pairs, strict=True)
    )
    assert given == used != []
    assert found(run([Measurement("load", Timestamp(START), -1e300)], real)) == []
    (alert,) = run([Measurement("level", Timestamp(START), -(10**400))], real).elements("rows")
    assert alert.estimate == pytest.approx(-(2.0**53))


@one_job("late counts", runners=["prism"])
def test_late_measurements_are_set_aside():
    made = make("real")
    early, late = Measurement("load", Timestamp(START), 1000.0), Measurement("load", Timestamp(START + 1), 900.0)
    source = (
        test_stream.TestStream()
        .add_elements([TimestampedValue(early, early.time)])
        .advance_watermark_to(START + 10)
        .add_elements([TimestampedValue(late, late.time)])
        .advance_watermark_to_infinity()
    )
    results = yield of_stream(source, made)
    assert found(results) == reference(made, [early])
    assert [letter.source for letter in results.elements("dead")] == ["late measurement"]


@pytest.mark.parametrize(("others", "tests"), [(1000.0, 2), (1000.5, 2)])
def test_a_late_copy_is_late_whether_or_not_it_equals_what_was_in_time(others, tests):
    """Otherwise the number of tests, which is public, would tell that two private values are equal."""
    made = make("real")
    check = KeyMeasurements(rules=made.plan.rules, streams=made.plan.streams, steps=made.steps, whole=False)
    at = Timestamp(START)
    *in_time, late = [
        batch for value in (others, others, 1000.0) for batch in check.process(Measurement("load", at, value))
    ]
    key = late[0]
    stage = Stage(KeepMeasurements(steps=made.steps, timer_offset=1), random.Random(1))
    stage.feed([*in_time, late, (key, (b"".join(digest for _, (digest, _) in in_time), b""))])
    stage.advance(made.steps.decision_time(made.steps.first, 1).micros)
    ((_, kept),) = stage.take()
    test = TestMeasurements(plan=made.plan, steps=made.steps, timer_offset=2, noise=made.noise)
    assert len(test.read(("",), [kept[8:]]).values) == tests
    assert [letter.source for letter in stage.dead] == ["late measurement"]


def test_the_guarantee_says_nothing_of_persons():
    found = make("real").guarantee
    assert found.unit == PrivacyUnit(what="measurement")
    assert "person is not checked here" in found.paragraph()
    assert (found.epsilon, found.delta) == (5.0, 0.0)
    assert make("per rule").plan.mechanism.epsilon == 2.5
    assert make("per rule").plan.mechanism.monotone


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"monotone": True}, ValueError, "monotone must be False for rules of both directions that share a budget"),
        ({"integer": True}, TypeError, "threshold of rule 'load' must be an integer, got float"),
        (
            {"rules": [AlertRule(name="x", at_least=1, items=("a",))]},
            ValueError,
            "rule 'x' must name no items: it is about a measurement",
        ),
        (
            {"rules": [AlertRule(name="x", at_least=-1e17)]},
            ValueError,
            r"threshold of rule 'x' must be between -2\*\*53 and 2\*\*53, got -1e\+17",
        ),
    ],
)
def test_bad_arguments(changes, error, message):
    with pytest.raises(error, match=message):
        MeasurementAlerts(**{**COMMON, **changes}, noise=KeyedNoise(KEY))
