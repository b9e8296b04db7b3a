"""Alerts are those of the reference on every runner, each window is tested once, and late events change nothing."""

import random

import apache_beam as beam
import numpy as np
import pytest
from alert_workloads import (
    COMMON,
    CONFIGURATIONS,
    COUNTED,
    ITEMS,
    KEY,
    RULES,
    SECOND,
    START,
    check,
    random_events,
    reference,
    same,
    transform,
    true_counts,
)
from event_forms import as_arrow, as_rows, crowd_at, run_bounded
from every_runner import of_elements, of_stream, one_job
from grids import some_quick
from hypothesis import given, settings
from hypothesis import strategies as st
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.privacy.units import PERSON
from privstream.transforms import Alert, AlertRule, SparseVectorAlerts
from privstream.transforms.alerts.count_tests import CompareCounts
from privstream.transforms.alerts.threshold_tests import ONE_RUN, MeetRules, TestCounts, encode_counts
from privstream.transforms.timing.clocked import SEED, stepped
from tiny_runner import Stage

SEED_OF_EVENTS = 5


@some_quick("name", [*CONFIGURATIONS, *COUNTED], "sliding, quiet", "counts, own streams")
def test_alerts_are_those_of_the_reference(name):
    events = random_events(name, random.Random(SEED_OF_EVENTS))
    random.Random(0).shuffle(events)
    made = transform(name)
    results = run_bounded("fn_api", as_rows(events), made)
    rows = results.elements("rows")
    check(made, rows, events)
    assert results.elements("dead") == []
    assert results.counters["privstream:alerts_published"] == len(rows)
    if name in CONFIGURATIONS and not made.plan.by_stream:  # otherwise the limit on streams handles steps, too
        assert results.counters["privstream:steps_handled"] == made.steps.end - made.steps.first
    assert all(stamp == row.window_end.micros - 1 for row, stamp in results.outputs["rows"])


@one_job("rules", ["both directions", "own streams", "counts, lasting"], "both directions", "counts, lasting")
def test_runners_agree(name):
    events = random_events(name, random.Random(SEED_OF_EVENTS))
    results = yield of_elements(as_arrow(events), transform(name))
    check(transform(name), results.elements("rows"), events)


def test_the_workloads_reach_all_branches_and_stops():
    rows = [row for name in CONFIGURATIONS for row in reference(transform(name), random_events(name, random.Random(5)))]
    assert any(row.stopped for row in rows)
    assert len({round(row.epsilon_spent, 6) for row in rows}) > len(CONFIGURATIONS)
    assert {row.rule for row in rows} >= {rule.name for rule in RULES} | {"silence"}
    assert {row.stream for row in rows} >= {"", "s", "t"}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_run_that_stopped_publishes_nothing_more(name):
    made = transform(name)
    rows = reference(made, random_events(name, random.Random(SEED_OF_EVENTS)))
    plan = made.plan
    for key in {(row.stream if plan.by_stream else "", row.rule if plan.by_rule else "") for row in rows}:
        mine = [row for row in rows if key == (row.stream if plan.by_stream else "", row.rule if plan.by_rule else "")]
        mine.sort(key=lambda row: -row.epsilon_left)
        assert not any(row.stopped for row in mine[:-1])
        assert mine[-1].stopped == (mine[-1].epsilon_left < plan.mechanism.hit_epsilon - 1e-5)
        spent = plan.mechanism.threshold_epsilon + sum(row.epsilon_spent for row in mine)
        assert spent + mine[-1].epsilon_left == pytest.approx(plan.mechanism.epsilon, abs=1e-4)
        assert all(row.epsilon_left <= plan.mechanism.epsilon - row.epsilon_spent for row in mine)


def test_every_window_is_tested_without_any_event():
    made = SparseVectorAlerts(
        **{**COMMON, "rules": (AlertRule(name="silence", at_most=200),), "noise": KeyedNoise(KEY), "min_alerts": 12}
    )
    rows = run_bounded("fn_api", [("nobody", "a")], made).elements("rows")
    assert same(rows, reference(made, []))
    assert [row.window_start.seconds() - START for row in sorted(rows)] == list(range(0, 120, 10))


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(ITEMS)), max_size=30),
    st.lists(st.sampled_from(ITEMS), min_size=1, max_size=8),
)
@settings(max_examples=2 * settings.default.max_examples, deadline=None)
def test_one_person_moves_each_count_by_at_most_one(others, own):
    made = transform("shared")
    fn = MeetRules(rules=RULES, steps=made.steps, timer_offset=1, noise=made.noise, by_people=False)
    fn.setup()

    def counts(events):
        users = np.array([user for user, _ in events], np.uint64)
        texts = "".join(item for _, item in events).encode()
        ends = np.cumsum([0] + [len(item.encode()) for _, item in events])
        items = made.noise.derive("item hash").hash_bytes(np.frombuffer(texts, np.uint8), ends)
        rows, rules = fn.meet(users, items)
        assert len(set(zip(users[rows].tolist(), rules.tolist(), strict=True))) == len(rows)
        return np.bincount(rules, minlength=len(RULES))

    moved = counts(others + [(9, item) for item in own]) - counts(others)
    assert set(moved.tolist()) <= {0, 1}
    assert moved[0] == 1
    expected = [len({user for user, item in others if rule.items is None or item in rule.items}) for rule in RULES]
    assert counts(others).tolist() == expected


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["sliding, quiet", "per rule", "counts", "counts, sliding, quiet", "counts, lasting"])
def test_crashes_and_timers_in_any_order_change_nothing(name, seed):
    made, chance = transform(name), random.Random(seed)
    events = random_events(name, chance)
    common = {"steps": made.steps, "timer_offset": 3, "noise": made.noise}
    fn = CompareCounts(method=made.counted, **common) if name in COUNTED else TestCounts(plan=made.plan, **common)
    stage = Stage(fn, chance, crashes=0.3, workers=2)
    records = [(ONE_RUN, SEED)]
    for (step, stream, rule), count in true_counts(made, events).items():
        if made.steps.first <= step < made.steps.end:
            vector = np.array([count * (other.name == rule) for other in made.plan.rules])
            part = chance.randint(0, count) * (vector > 0)
            records += [(ONE_RUN, stepped(step, encode_counts((stream,), some))) for some in (part, vector - part)]
    stage.feed(records)
    first = made.steps.decision_time(made.steps.first, 3).micros
    for watermark in sorted(first + chance.randrange(200 * SECOND) for _ in range(5)):
        stage.advance(watermark)
    stage.advance(2**62 // 1000 * 1000)
    check(made, stage.take(), events)
    assert all(place[1].endswith("_progress") for place, values in stage.cells.states.items() if values)


def test_who_is_over_the_limit_of_streams_is_left_out():
    made = SparseVectorAlerts(
        **{**COMMON, **CONFIGURATIONS["own streams"], "epsilon": 100.0, "quiet": 0, "min_alerts": 30},
        noise=KeyedNoise(KEY),
    )
    early, late = START * SECOND, (START + 30) * SECOND
    settled = [(f"user {i}", "a", early, "s") for i in range(60)]
    guests = [(f"user {i}", "a", late, "t") for i in range(60)]
    rows = run_bounded("fn_api", as_rows(settled + guests), made).elements("rows")
    assert {(row.stream, row.window_start.micros) for row in rows} == {("s", early)}
    assert same(rows, reference(made, settled))
    new = [(f"guest {i}", "a", late, "t") for i in range(60)]
    rows = run_bounded("fn_api", as_rows(settled + new), made).elements("rows")
    assert {row.stream for row in rows} == {"s", "t"}


@one_job("late counts", ["alone", "beside one"], runners=["prism"])
def test_late_events_are_set_aside_whoever_was_there(case):
    """A crowd that comes after the decision counts for nothing, whether or not somebody was there before."""
    made = transform("shared")
    crowd = [(f"late {i}", "a", START * SECOND + i, "") for i in range(60)]
    others = [] if case == "alone" else [("somebody", "a", START * SECOND, "")]
    results = yield of_stream(crowd_at(START + 10, crowd, others), made)
    assert same(results.elements("rows"), reference(made, others))
    assert len(results.elements("dead")) == len(crowd)
    assert {letter.record for letter in results.elements("dead")} == {"a"}
    assert reference(made, crowd) != reference(made, [])


def test_the_label_of_the_noise_holds_what_changes_the_law():
    base = SparseVectorAlerts(**COMMON, noise=KeyedNoise(KEY))
    others = [
        {"rules": (*RULES[:2], AlertRule(name="b or ä", at_least=10, items=RULES[2].items))},
        {"rules": RULES[::-1]},
        {"window": 20},
        {"period": 5},
        {"quiet": 1},
        {"budget": "per_rule"},
        {"streams": ("s",)},
        {"allowed_lateness": 1},
        {"start": START - 10},
    ]
    words = {int(SparseVectorAlerts(**{**COMMON, **o}, noise=KeyedNoise(KEY)).noise.words(1)[0, 0, 0]) for o in others}
    assert len(words) == len(others)
    assert int(base.noise.words(1)[0, 0, 0]) not in words
    longer = SparseVectorAlerts(**{**COMMON, "end": COMMON["end"] + 10, "shards": 7}, noise=KeyedNoise(KEY))
    assert int(longer.noise.words(1)[0, 0, 0]) == int(base.noise.words(1)[0, 0, 0])


class TestGuarantee:
    def test_of_one_person_over_the_whole_run(self):
        found = transform("shared streams").guarantee
        assert (found.unit, found.epsilon, found.delta) == (PERSON, 8.0, 0.0)
        assert found.horizon is None  # however long the run
        assert "any number of windows" in found.paragraph()
        assert transform("shared").guarantee.unit == PERSON

    @pytest.mark.parametrize(
        ("changes", "share"),
        [
            ({}, 1),
            ({"budget": "per_rule"}, 3),
            ({"streams": ("s", "t", "u", "v"), "budget": "per_rule"}, 3),
            ({"streams": ("s", "t", "u", "v"), "streams_per_person": 1}, 1),
            ({"streams": ("s", "t", "u", "v"), "streams_per_person": 2, "budget": "per_rule"}, 6),
            ({"streams": ("s", "t", "u", "v"), "streams_per_person": 9}, 4),
            ({"streams": ("s", "t", "u", "v"), "streams_per_person": 1, "neighbouring": "replace_one"}, 2),
            ({"streams": ("s", "t", "u"), "streams_per_person": 2, "neighbouring": "replace_one"}, 3),
        ],
    )
    def test_the_runs_that_one_person_is_in_share_epsilon(self, changes, share):
        made = SparseVectorAlerts(**{**COMMON, **changes}, noise=KeyedNoise(KEY))
        assert made.plan.mechanism.epsilon == pytest.approx(COMMON["epsilon"] / share)
        assert made.guarantee.epsilon == COMMON["epsilon"]

    def test_the_discount_for_counts_is_taken_only_where_all_move_together(self):
        assert transform("shared").plan.mechanism.monotone
        assert not transform("both directions").plan.mechanism.monotone
        assert not transform("replace one").plan.mechanism.monotone
        split = SparseVectorAlerts(
            **{**COMMON, **CONFIGURATIONS["both directions"], "budget": "per_rule"}, noise=KeyedNoise(KEY)
        )
        assert split.plan.mechanism.monotone

    def test_the_margin_is_that_of_all_tests(self):
        made = transform("shared streams")
        assert made.margin() == made.plan.mechanism.accuracy(12 * 3 * 3, 0.05)
        assert made.margin(5) == made.plan.mechanism.accuracy(5 * 3 * 3, 0.05)
        assert transform("per rule").margin() == transform("per rule").plan.mechanism.accuracy(12, 0.05)


class TestRules:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"name": ""}, "name of a rule must not be empty"),
            ({"name": "x"}, "rule 'x' must have one of at_least and at_most"),
            ({"name": "x", "at_least": 1, "at_most": 2}, "must have one of at_least and at_most"),
            ({"name": "x", "at_least": float("nan")}, "threshold of rule 'x' must be finite, got nan"),
            ({"name": "x", "at_least": 1, "items": ()}, "items of rule 'x' must be distinct, at least one"),
            ({"name": "x", "at_least": 1, "items": ("a", "a")}, "items of rule 'x' must be distinct"),
        ],
    )
    def test_bad_rules(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            AlertRule(**arguments)

    def test_bad_types(self):
        with pytest.raises(TypeError, match="items of rule 'x' must be texts"):
            AlertRule(name="x", at_least=1, items="abc")
        with pytest.raises(TypeError, match="name of a rule must be text, got int"):
            AlertRule(name=3, at_least=1)

    @pytest.mark.parametrize(
        ("changes", "error", "message"),
        [
            ({"rules": ()}, ValueError, "rules must have distinct names, and there must be at least one"),
            ({"rules": RULES[:1] * 2}, ValueError, "rules must have distinct names"),
            ({"rules": ["x"]}, TypeError, "rules must be a sequence of AlertRule"),
            (
                {"rules": [AlertRule(name="x", at_least=0.5)]},
                TypeError,
                "threshold of rule 'x' must be an integer, got float",
            ),
            ({"rules": [AlertRule(name="x", at_most=-1)]}, ValueError, "threshold of rule 'x' must be >= 0, got -1"),
            ({"rules": [AlertRule(name="x", at_least=2**62)]}, ValueError, "threshold of rule 'x' must be between"),
            ({"min_alerts": 0}, ValueError, "min_alerts must be >= 1, got 0"),
            ({"budget": "each"}, ValueError, "budget must be one of shared, per_rule, got 'each'"),
            ({"quiet": -1}, ValueError, "quiet must be >= 0, got -1"),
            ({"streams": "st"}, ValueError, "streams must be distinct names, at least one, got 'st'"),
            ({"streams_per_person": 1}, ValueError, "streams must be given with streams_per_person"),
            ({"start": None}, TypeError, "start must be a number, got NoneType"),
            ({"start": START + 1e-4}, ValueError, "start must be >= 0 and a whole number of milliseconds"),
            ({"beta": 1.0}, ValueError, r"beta must be in \(0, 1\), got 1.0"),
        ],
    )
    def test_bad_arguments(self, changes, error, message):
        with pytest.raises(error, match=message):
            SparseVectorAlerts(**{**COMMON, "noise": KeyedNoise(KEY), **changes})

    def test_bounded_input_needs_an_end(self):
        made = SparseVectorAlerts(**{**COMMON, "end": None, "noise": KeyedNoise(KEY)})
        with pytest.raises(ValueError, match="windows must be given for a run without an end"):
            made.margin()
        pipeline = beam.Pipeline()
        with pytest.raises(ValueError, match="end must be given when the input is bounded"):
            _ = pipeline | beam.Create([("u", "i")]) | made


def test_rows_have_the_documented_fields():
    rows = reference(transform("both directions"), random_events("both directions", random.Random(SEED_OF_EVENTS)))
    assert Alert.__doc__ is not None
    for field in Alert._fields:
        assert f"{field}:" in Alert.__doc__
    for row in rows:
        sign = -1 if row.rule == "silence" else 1
        assert row.estimate == pytest.approx(row.threshold + sign * row.gap)
        assert row.gap_lower_bound < row.gap
        assert row.gap >= 0
