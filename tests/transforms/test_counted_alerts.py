"""Alerts by noisy counts: what a slow reference gives, when "auto" takes them, and what margins mean."""

import math
import random

import numpy as np
import pytest
from alert_workloads import COMMON, COUNTED, KEY, RULES, random_events, reference_of_counts, transform
from event_forms import as_rows, run_bounded
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.keyed_counts.shared_counts import SharedCounts
from privstream.mechanisms.monitor.holdings import Holdings
from privstream.mechanisms.monitor.status_monitor import ENDED
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import AlertRule, SparseVectorAlerts
from privstream.transforms.alerts.count_tests import CompareCounts
from privstream.transforms.alerts.methods import CountedAlerts
from privstream.transforms.alerts.rules import describe
from privstream.transforms.alerts.threshold_tests import encode_counts

SEED_OF_EVENTS = 5
FEW = (AlertRule(name="few", at_most=20),)
UNTIL = (AlertRule(name="few", at_most=20, until=30),)
LASTING = (AlertRule(name="days", at_least=20, windows=4), RULES[0])
ONE = {"rules": RULES[:1], "noise": KeyedNoise(KEY), "window": 1, "start": 0, "epsilon": 1.0}


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({"end": 12}, "counts"),
        ({"end": 365}, "counts"),
        ({"end": 100, "delta": 1e-6}, "counts"),
        ({"end": 365, "delta": 1e-6}, "counts"),
        ({"end": 1000, "delta": 1e-6}, "status"),
        ({"end": 365, "delta": 1e-6, "quiet": 1, "min_alerts": 1}, "counts"),
        ({"end": 365, "delta": 1e-6, "rules": FEW}, "counts"),
        ({"end": 365, "delta": 1e-6, "rules": LASTING}, "counts"),
        ({"renew_every": 30}, "counts"),
        ({"renew_every": 365, "delta": 1e-6}, "status"),
        ({"delta": 1e-6}, "status"),
        ({"delta": 1e-6, "rules": UNTIL}, "status"),
        ({"delta": 1e-6, "end": 3, "rules": UNTIL}, "status"),
    ],
)
def test_auto_takes_what_never_stops(changes, taken):
    assert SparseVectorAlerts(**ONE | changes).method == taken


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "end or renew_every must be given for counts: they pay for every window; delta must be > 0 for status; "),
        ({}, "sparse_vector, which stops when its budget is spent, is taken by its name alone"),
        ({"delta": 1e-6, "rules": FEW}, "with a rule that has at_most, status is taken by its name alone"),
        (
            {"end": 5, "rules": UNTIL},
            "^delta must be > 0 for status; until of rule 'few' must not be given with",
        ),
        ({"delta": 1e-6, "rules": LASTING}, "windows of rule 'days' must be 1 with the method 'status', got"),
    ],
)
def test_auto_says_what_to_give_where_nothing_can_last(changes, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        SparseVectorAlerts(**ONE | changes)


def alerts_of(made, numbers, run):
    """Return in which windows a rule about everybody is met, by the stages' own mechanisms."""
    if isinstance(made.counted, CountedAlerts):
        stage = CompareCounts(
            method=made.counted, steps=made.steps, timer_offset=3, noise=made.noise.derive("run", run)
        )
        state, found = stage.initial(b""), []
        for step, number in enumerate(numbers):
            state, rows = stage.advance(b"", step, [encode_counts(("",), np.array([[number]]))], state)
            found.append(bool(rows))
        return found
    monitor, found = made.counted.monitor, []
    state = monitor.initial_state()
    for step, number in enumerate(numbers):
        given = Holdings(step=step, users=np.arange(number, dtype=np.uint64), items=np.zeros(number, np.uint64))
        state, rows = monitor.step(state, given, made.noise.derive("run", run))
        found.append(any(status != ENDED for status in rows.status.tolist()))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("method", ["counts", "status"])
def test_methods_are_compared_by_what_they_do(method):
    """Usual numbers give no alert in the whole run; others, so far from them, one in half of the windows they last."""
    runs, windows, threshold = 100, 16, 400
    rules = (AlertRule(name="many", at_least=threshold),)
    made = SparseVectorAlerts(**ONE | {"rules": rules}, end=windows, delta=1e-6, method=method)
    low = threshold - math.ceil(made.counted.distance(10**9, windows))
    wrong = sum(any(alerts_of(made, [low] * windows, run)) for run in range(runs))
    assert wrong <= 25, "5 are expected at most"
    for duration in (1, 4, 16):
        high = low + round(made.counted.distance(duration, windows))
        met = sum(2 * sum(alerts_of(made, [high] * duration, run)) >= duration for run in range(runs))
        assert 15 <= met <= 85, "50 are expected"


def test_counts_need_an_end():
    with pytest.raises(ValueError, match="end or renew_every must be given for counts: they pay for every window"):
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


@pytest.mark.slow
def test_options_of_other_methods_shape_nothing():
    events = random_events("counts", random.Random(SEED_OF_EVENTS))

    def rows(**given):
        made = SparseVectorAlerts(**COMMON | COUNTED["counts"] | {"method": "counts", "noise": KeyedNoise(KEY)} | given)
        return made.accuracy, sorted(run_bounded("fn_api", as_rows(events), made).elements("rows"))

    assert rows() == rows(max_hits=9, branches=5, min_alerts=2, budget="per_rule")
    assert rows(quiet=2) != rows(), "it silences rules after an alert, by every method"


def test_labels_of_rules_without_windows_are_as_they_were():
    golden = b'[[["a", 1, 5.0, ["x"]], ["b", -1, 3.0, null, 4.0]], [60, null]]'
    rules = (AlertRule(name="a", at_least=5, items=("x",)), AlertRule(name="b", at_most=3, until=4))
    assert describe(rules, 60, None) == golden
    assert describe((AlertRule(name="a", at_least=5, windows=4),)) != describe(
        (AlertRule(name="a", at_least=5, until=4),)
    )


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_noise_of_a_mean_is_smaller(delta):
    rules = (AlertRule(name="days", at_least=300, windows=9), AlertRule(name="day", at_least=500))
    made = SparseVectorAlerts(**ONE | {"rules": rules}, end=40, delta=delta, method="counts")
    one = SparseVectorAlerts(**ONE | {"rules": RULES[:2]}, end=40, delta=delta, method="counts")
    assert made.margin() == made.margin(rule="day") == one.margin() == made.accuracy.error
    assert made.margin(rule="days") <= made.margin() / (3 if delta == 0 else 2) + 1
    with pytest.raises(ValueError, match="rule must be the name of a rule, got 'night'"):
        made.margin(rule="night")
    numbers = made.accuracy.numbers
    assert numbers["margins"] == {"days": made.margin(rule="days"), "day": made.margin()}
    assert numbers["gap_stddevs"] == [made.counted.stddev(1), made.counted.stddev(9)]
    assert "as a mean over 9 windows in a row (of rules about 9), that passes its threshold" in made.accuracy.sentence
    assert "mean" not in one.accuracy.sentence and "margins" not in one.accuracy.numbers
    zeros = np.zeros(1, np.int64)
    runs = [made.noise.derive("run", run) for run in range(2000)]
    means = np.array([sum(int(made.counted.noisy(b"", step, zeros, run)[0]) for step in range(9)) for run in runs]) / 9
    assert means.std() == pytest.approx(numbers["gap_stddevs"][1], rel=0.1)  # 6.3 deviations of such a deviation


def lasting(**changes):
    rules = (AlertRule(name="days", at_least=20, windows=3), AlertRule(name="day", at_least=20))
    return SparseVectorAlerts(
        **{**ONE, "rules": rules, "epsilon": 400.0, "delta": 1e-6, "end": 12, "method": "counts"} | changes
    )


def days(made, numbers):
    """Return the windows in which the rule about three of them gives an alert, and the rows."""
    crowd = [(f"user {i}", "a", step * 1_000_000, "") for step, number in enumerate(numbers) for i in range(number)]
    rows = sorted(run_bounded("fn_api", as_rows(crowd), made).elements("rows"))
    found = [row for row in rows if row.rule == "days"]
    return [row.window_start.micros // 1_000_000 for row in found], found


def test_a_rule_over_several_windows_is_about_their_mean():
    numbers = [40, 40, 40, 40, 0, 0, 0, 0, 100, 0, 0, 0]
    windows, rows = days(lasting(), numbers)
    assert windows == [2, 3, 4, 8, 9, 10], "one window of 100 people is 33 on average, and two of 40 are 27"
    assert [row.status for row in rows] == ["started", "continues", "continues"] * 2
    assert rows[3].since.micros == 8_000_000
    for row, mean in zip(rows, [40, 40, 80 / 3, 100 / 3, 100 / 3, 100 / 3], strict=True):
        assert row.estimate == pytest.approx(mean, abs=1)
        assert row.gap == pytest.approx(row.estimate - 20)
        assert row.gap_lower_bound <= row.gap
        assert row.gap_stddev == lasting().counted.stddev(3)


def test_a_period_begins_with_no_numbers():
    made = lasting(renew_every=4)
    windows, _ = days(made, [40] * 12)
    assert windows == [2, 3, 6, 7, 10, 11]
    told = "A rule about n windows is tested from the n-th of the run{} on: its mean has none before it."
    assert told.format(" or period") in made.accuracy.sentence
    assert told.format("") in lasting().accuracy.sentence
    assert "n-th" not in SparseVectorAlerts(**ONE, end=12, method="counts", renew_every=4).accuracy.sentence


@pytest.mark.slow
def test_a_mean_has_windows_in_which_its_rule_is_quiet_and_a_period_ends_the_quiet():
    made = lasting(quiet=2)
    assert days(made, [40, 40, 40, 100, 100, 0, 0, 0, 0, 0, 0, 0])[0] == [2, 5]
    quiet = "A rule is not tested in the 2 windows after an alert of it in the same stream"
    assert f"{quiet}; a mean over several windows has their numbers all the same." in made.accuracy.sentence
    assert days(lasting(quiet=2, renew_every=4), [40] * 12)[0] == [2, 6, 10], "3 windows are quiet in one period"
    renewed = lasting(quiet=2, renew_every=4).accuracy.sentence
    assert f"{quiet}, or until everything starts afresh; a mean" in renewed
    assert "not tested" not in lasting().accuracy.sentence


def test_a_state_of_other_rules_is_refused():
    made, other = lasting(), lasting(rules=RULES[:2])
    stages = [
        CompareCounts(method=each.counted, steps=each.steps, timer_offset=3, noise=each.noise) for each in (made, other)
    ]
    data = [stage.snapshot(stage.initial(b"")) for stage in stages]
    for stage, wrong in zip(stages, reversed(data), strict=True):
        with pytest.raises(SnapshotError, match="state must be of a run with the same rules"):
            stage.restore(wrong)


def test_a_state_of_other_noise_is_refused(monkeypatch):
    """Windows with independent noise, and then the noise in common of a whole run, would show more than either."""
    made = SparseVectorAlerts(**ONE, end=24, method="counts", delta=1e-6)
    stage = CompareCounts(method=made.counted, steps=made.steps, timer_offset=3, noise=made.noise)
    assert stage.shares
    shared = stage.snapshot(stage.initial(b""))
    assert stage.restore(shared).fired.shape == (1, 1)
    monkeypatch.setattr(CompareCounts, "shares", False)  # as at earlier commits
    apart = stage.snapshot(stage.initial(b""))
    assert stage.restore(apart).fired.shape == (1, 1)
    for shares, wrong in ((False, shared), (True, apart)):
        monkeypatch.setattr(CompareCounts, "shares", shares)
        with pytest.raises(SnapshotError, match="state must be of a run with the same noise"):
            stage.restore(wrong)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"end": 2}, "windows of rule 'days' must be <= the number of windows between start and end, .* 2, got 3"),
        ({"renew_every": 2}, "windows of rule 'days' must be <= .* until everything starts afresh, 2, got 3"),
        ({"method": "sparse_vector"}, "windows of rule 'days' must be 1 with the method 'sparse_vector', got"),
        ({"method": "status"}, "windows of rule 'days' must be 1 with the method 'status', got"),
    ],
)
def test_rules_over_several_windows_that_cannot_be(changes, message):
    with pytest.raises(ValueError, match=message):
        lasting(**changes)


@pytest.mark.parametrize(
    ("windows", "error", "message"),
    [
        (0, ValueError, "windows of rule 'x' must be >= 1, got 0"),
        (1001, ValueError, "windows of rule 'x' must be <= 1000, got 1001"),
        (2.0, TypeError, "windows of rule 'x' must be an integer, got float"),
    ],
)
def test_numbers_of_windows_are_checked(windows, error, message):
    with pytest.raises(error, match=message):
        AlertRule(name="x", at_least=1, windows=windows)


def test_the_largest_sums_fit():
    rules = (AlertRule(name="x", at_least=2**53, windows=1000), AlertRule(name="y", at_most=2**53, windows=1000))
    made = lasting(rules=rules, end=1000)
    stage = CompareCounts(method=made.counted, steps=made.steps, timer_offset=3, noise=made.noise)
    latest = np.full((1000, 2), -(2**40), np.int64)
    assert stage._gaps(np.arange(2), latest).tolist() == [-1000 * (2**53 + 2**40), 1000 * (2**53 + 2**40)]


def test_noise_in_common_is_taken_where_it_is_smaller_and_may_be():
    def counts(**given):
        return SparseVectorAlerts(
            **{**ONE, "end": 30, "method": "counts", "rules": RULES, "delta": 1e-6} | given
        ).counted.counts

    shared = counts()
    assert isinstance(shared, SharedCounts)
    assert (shared.cells, shared.contributions, shared.horizon) == (90, 90, 30)
    assert shared.stddev() == pytest.approx(22.15, abs=0.01)
    assert counts(renew_every=30).stddev(1) == pytest.approx(40.1, abs=0.1)
    by_stream = counts(streams=("s", "t", "u"), streams_per_person=2)
    assert (by_stream.cells, by_stream.contributions) == (270, 180)
    for other in (
        {"delta": 0.0},
        {"neighbouring": "replace_one"},
        {"renew_every": 30},
        {"end": 1, "rules": RULES[:1]},
        {"streams": tuple("abcdefghijkl"), "streams_per_person": 1, "end": 2, "rules": RULES[:1]},  # Laplace noise
    ):
        assert isinstance(counts(**other), KeyedCounts)
