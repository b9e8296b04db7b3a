"""What counts of the data: which limits are named, and what the counters say that they leave out."""

import inspect
import random
from collections import Counter

import apache_beam as beam
import pytest
from apache_beam.utils.timestamp import Timestamp
from event_forms import as_rows, run_bounded
from examples import EXAMPLES, START, example
from privstream.transforms import AlertRule, Domain, LinearQuery, PrivateQueries
from runner_harness import run

SECOND = 1_000_000
LIST = Domain(["a", "b", "c"])
UNBOUNDED = {"start": None, "end": None}


def options_named(made: beam.PTransform) -> list[str]:
    """Return the options of the limits that a transform names."""
    return [limit.option for limit in made.coverage.limits]


@pytest.mark.parametrize("name", EXAMPLES)
def test_accuracy_says_what_intervals_hold(name):
    made = example(name)
    found = made.accuracy.to_dict()
    assert set(found["intervals"]) == {"hold", "scope", "leave_out", "note", "probability", "limits"}
    assert found["intervals"]["hold"] and found["intervals"]["scope"]
    limits = made.coverage.limits
    assert bool(found["intervals"]["leave_out"]) == bool(limits)
    assert all(limit.text in found["sentence"] for limit in limits)
    assert set(options_named(made)) <= {"", *inspect.signature(type(made)).parameters}


@pytest.mark.parametrize(
    ("name", "changes", "options"),
    [
        ("counts", {}, ["max_contributions"]),
        ("counts of events", {}, []),
        ("counts of a list", {"max_contributions": 3}, ["max_contributions"]),
        ("counts of a list", {"max_contributions": 4}, []),
        ("counts of a list", {"max_contributions": 4, "over": "window"}, ["max_contributions"]),
        ("counts of a list", {"max_contributions": 8, "over": "window"}, []),
        ("counts of a list", {"max_contributions": 8, "over": 20, "end": START + 30}, ["max_contributions"]),
        ("counts of a list", {"max_contributions": 8, "streams": ("s", "t", "u")}, ["max_contributions"]),
        ("counts of a list", {"max_contributions": 12, "streams": ("s", "t", "u")}, []),
        ("quantiles", {}, ["", "max_contributions"]),
        ("quantiles", {"max_contributions": 2}, [""]),
        ("quantiles of events", {}, []),
        ("heavy hitters by clock", {}, ["items_per_step"]),
        ("heavy hitters by clock", {"max_hits": 1}, ["items_per_step", "max_hits"]),
        ("heavy hitters by clock", {"participation_cap": 1}, ["items_per_step", "participation_cap"]),
        ("heavy hitters by clock", {"participation_cap": 2}, ["items_per_step"]),
        (
            "heavy hitters by clock",
            UNBOUNDED | {"horizon": 1, "participation_cap": 2},
            ["items_per_step", "participation_cap"],
        ),
        ("heavy hitters by clock", UNBOUNDED | {"horizon": 1}, ["items_per_step", "participation_cap"]),
        ("heavy hitters", {"max_hits": 1}, ["items_per_step", "max_hits"]),
        ("heavy hitters by counts", {"max_hits": 1}, ["items_per_step"]),
        ("heavy hitters in streams, by counts", {}, ["items_per_step", "streams_per_person"]),
        ("heavy hitters in streams, by counts", {"streams_per_person": 3}, ["items_per_step"]),
        ("heavy hitters of a list, by counts", {"items_per_step": 4}, []),
        ("top-k", {}, ["items_per_step"]),
        ("top-k", {"items_per_step": 4}, []),
        ("top-k", {"participation_cap": 1, "items_per_step": 4}, ["participation_cap"]),
        ("top-k in streams", {}, ["items_per_step", "streams_per_person"]),
        ("top-k without a list", {}, ["items_per_step"]),
        (
            "top-k without a list",
            {"items_per_step": 4, "participation_cap": 1},
            ["items_per_step", "participation_cap"],
        ),
        ("alerts", {}, []),
        ("alerts in streams", {}, ["streams_per_person"]),
        ("alerts by status", {}, []),
        ("alerts by status", {"max_hits": 1}, ["max_hits"]),
        ("histogram", {}, []),
        ("histogram", {"categories_per_row": 2}, ["categories_per_row"]),
        ("histogram", {"categories_per_row": 4}, []),
        ("histogram of people", {"max_per_window": 1}, ["max_contributions", "max_per_window"]),
        ("histogram of people", {"max_per_window": 2}, ["max_contributions"]),
        ("flags of people", {}, ["max_contributions"]),
        ("cardinality", {}, []),
        ("cardinality", {"max_contributions": 2}, []),
        ("cardinality", {"max_contributions": 1}, ["max_contributions"]),
        ("cardinality", {"streams": ("s", "t")}, ["streams_per_person"]),
        ("ranges", {}, []),
        ("predecessors", {}, []),
        ("queries", {}, [""]),
    ],
)
def test_limits_are_named_that_can_bind_and_no_others(name, changes, options):
    made = example(name, **changes)
    assert options_named(made) == options
    everything = ("usable and in time" in made.coverage.holds) or "measurements" in made.coverage.holds
    assert everything == (not options)


def test_with_renewal_limits_and_scopes_are_those_of_a_period():
    found = example("counts", renew_every=10).accuracy.coverage
    assert "at most 2 contributions in one period (max_contributions)" in found.leaves_out
    assert found.scope.endswith(" together, in one period")


@pytest.mark.parametrize(
    ("name", "changes", "scope"),
    [
        ("counts", {}, "all of up to 10,000 items together"),
        ("counts", {"end": None}, "all of up to 10,000 items of a window together"),
        ("counts of a list", {}, "all of them together"),
        ("counts of a list", {"streams": ("s", "t")}, "all of them together"),
        ("counts of a list", {"end": None, "over": "window"}, "all of a window together"),
        ("quantiles", {}, "each by itself"),
        ("quantiles", {"end": None, "streams": ("s", "t")}, "each by itself"),
        ("histogram", {"streams": ("s", "t")}, "all of a stream together"),
        ("flags", {"streams": ("s", "t")}, "all of a stream together"),
        ("cardinality", {"streams": ("s", "t")}, "all of a stream together"),
        ("ranges", {"streams": ("s", "t")}, "all of a stream together"),
        ("predecessors", {"streams": ("s", "t")}, "all of a stream together"),
        ("predecessors", {}, "all of them together"),
        ("heavy hitters", {}, "each by itself"),
        ("heavy hitters by counts", {}, "all of them together"),
        ("top-k", {}, "each by itself"),
        ("top-k without a list", {}, "up to 10,000 items of a window together"),
        ("alerts", {}, "each test by itself, with an alert or without"),
    ],
)
def test_which_intervals_hold_together(name, changes, scope):
    assert example(name, **changes).coverage.scope == scope


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("heavy hitters by counts", "threshold"),
        ("alerts", "may be noise"),
        ("alerts by counts", "may be noise"),
        ("measurements", "may be noise"),
    ],
)
def test_numbers_that_are_published_for_their_noise_say_so(name, words):
    assert words in example(name).coverage.note


@pytest.mark.slow
def test_rules_that_stop_say_so():
    rules = (AlertRule(name="outage", at_most=20),)
    assert "after 1 start or end of an alert" in example("alerts by status", rules=rules, max_hits=1).coverage.note
    assert example("alerts by status", rules=rules, max_hits=2).coverage.note == "", "two windows charge no more"
    assert example("alerts by status", max_hits=1).coverage.note == ""


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("counts of the last windows", {}, "the numbers of contributions that count"),
        ("counts of the last windows", {"unit": "event", "max_contributions": None}, "the numbers of all events"),
        ("counts", {"max_value": 5}, "what each person adds for an item in a window, clipped to max_value"),
        ("counts since the start", {"max_value": 5}, "in the first window with it, clipped to max_value"),
        ("counts of events", {"max_value": 5}, "of the values of events, clipped to max_value"),
        ("counts", {"selection": "first"}, "those of the first windows, and random ones in a window"),
        ("top-k", {}, "their order and gaps may be others, and an item may seem to fall only because its people"),
        (
            "top-k without a list",
            {},
            "The order is that of estimates: an item that leads, or has just been found, is more",
        ),
        ("heavy hitters", {"selection": "random"}, "at most 1 item in a window (items_per_step), chosen at random"),
        ("top-k in streams", {"participation_cap": 1}, "at most 1 window of all streams together, in the whole run"),
        ("histogram of people", {}, "each for one category"),
        ("histogram", {"categories_per_row": 2}, "each event counts with at most 2 categories (categories_per_row)"),
        ("counts since the start", {"selection": "first"}, "which can look like a standstill"),
    ],
)
def test_words_are_those_of_what_is_counted(name, changes, words):
    found = example(name, **changes).coverage
    assert "±" not in found.note, "tables and pages say what they write after it, and pages write another width"
    assert words in f"{found.holds} {found.leaves_out} {found.note}"


def test_a_list_that_is_longer_than_what_counts_in_a_window_can_be_cut_off():
    listed = Domain([str(number) for number in range(65_536)])
    made = example("counts of a list", domain=listed, max_contributions=65_536, delta=1e-3)
    assert options_named(made) == ["max_contributions"]


def counted(made: beam.PTransform, events: list[tuple[str, str, int, str]]) -> Counter[str]:
    results = run_bounded("fn_api", as_rows(events), made)
    return Counter({name.partition(":")[2]: number for name, number in results.counters.items()})


def shopping() -> list[tuple[str, str, int, str]]:
    """Return events of people who have up to nine items in each of two windows, some of them twice."""
    chance = random.Random(3)
    events = [
        (f"p{person}", f"{chance.randrange(9)}", (START + chance.randrange(20)) * SECOND, "")
        for person in range(60)
        for _ in range(person // 4)
    ]
    return events + events[:40]


def triples(events: list[tuple[str, str, int, str]]) -> Counter[str]:
    """Return how many different items in windows each person has."""
    return Counter(user for user, _, _ in {(user, item, time // SECOND // 10) for user, item, time, _ in events})


@pytest.mark.parametrize("limit", [1, 5, 100])
def test_counts_say_how_much_was_left_out(limit):
    events = shopping()
    told, came = counted(example("counts", max_contributions=limit), events), triples(events)
    assert told["items_before_limit"] == came.total()
    assert told["contributions_before_limit"] == came.total() - told["items_over_limit"]
    kept = sum(min(limit, number) for number in came.values())
    assert told["items_over_limit"] + told["contributions_over_limit"] == came.total() - kept
    assert (kept < came.total()) == (limit < 100)


def test_since_the_start_a_pair_comes_once_and_is_left_out_again_and_again():
    events = shopping()
    pairs = Counter(user for user, _ in {(user, item) for user, item, _, _ in events})
    told = counted(example("counts since the start", max_contributions=100), events)
    assert told["contributions_before_limit"] == pairs.total()
    assert told["contributions_over_limit"] == told["items_over_limit"] == 0
    always = [("p", item, (START + 10 * window) * SECOND, "") for window in range(2) for item in "ab"]
    told = counted(example("counts since the start", max_contributions=1), always)
    assert told["items_over_limit"] + told["contributions_over_limit"] in (2, 3)


@pytest.mark.slow
def test_what_is_left_out_at_the_end_is_counted_by_itself():
    """Two people with one item in each of eight windows, of which five count."""
    events = [(f"p{i}", "1", (START + 10 * window) * SECOND, "") for window in range(8) for i in range(2)]
    told = counted(example("counts", max_contributions=5, end=START + 80, selection="first"), events)
    assert (told["contributions_before_limit"], told["contributions_over_limit"]) == (16, 6)
    assert (told["contributions_before_limit_at_first"], told["contributions_over_limit_at_first"]) == (4, 0)
    assert (told["contributions_before_limit_at_last"], told["contributions_over_limit_at_last"]) == (4, 4)
    by_period = example("counts", max_contributions=1, end=START + 80, renew_every=20, selection="first")
    renewed = counted(by_period, events)
    assert (renewed["contributions_over_limit_at_first"], renewed["contributions_over_limit_at_last"]) == (0, 8)


def test_rankings_say_how_much_was_left_out():
    events = [(user, str(1 + int(item) % 4), time, stream) for user, item, time, stream in shopping()]
    listed = [event for event in events if event[1] in "123"]
    changes = {"items_per_step": 1, "participation_cap": 1}
    told = counted(example("top-k", **changes), events)
    windows = Counter(user for user, _ in {(user, time // SECOND // 10) for user, _, time, _ in listed})
    assert told["items_before_limit"] == triples(listed).total()
    assert told["items_over_limit"] == triples(listed).total() - windows.total()
    assert told["holdings_before_limit"] == windows.total()
    assert told["holdings_over_limit"] == windows.total() - len(windows)
    assert told["events_outside_domain"] == len(events) - len(listed)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "windows"), [("heavy hitters by clock", 2), ("heavy hitters", 2)])
def test_people_who_are_charged_out_are_counted(name, windows):
    """In the first window all are charged; in the second they are there, and nobody counts."""
    crowd = [(f"p{i}", "1", (START + 10 * window) * SECOND, "") for window in range(windows) for i in range(60)]
    told = counted(example(name, max_hits=1), crowd)
    assert (told["charged_before_limit"], told["charged_over_limit"]) == (120, 60)
    free = counted(example(name, max_hits=2), crowd)
    assert (free["charged_before_limit"], free["charged_over_limit"]) == (120, 0)


def test_people_whom_alerts_charge_out_are_counted():
    crowd = [(f"p{i}", "1", (START + 10 * window) * SECOND, "") for window in range(2) for i in range(60)]
    told = counted(example("alerts by status", max_hits=1), crowd)
    assert (told["charged_before_limit"], told["charged_over_limit"]) == (120, 60)


def test_histograms_say_how_much_was_left_out():
    events = [(f"p{i}", "1\x1f2\x1f3\x1f9", (START + i % 20) * SECOND, "") for i in range(12)]
    told = counted(example("histogram", categories_per_row=2), [*events, ("p", "1\x1f2\x1f3", 5, "")])
    assert (told["categories_before_limit"], told["categories_over_limit"]) == (36, 12)
    assert told["events_outside_run"] == 1, "its categories are none of the run's"
    singles = [("p", "1", (START + i) * SECOND, "") for i in range(20)]
    told = counted(example("histogram of people", max_per_window=4, max_contributions=5), singles)
    assert (told["items_before_limit"], told["items_over_limit"]) == (20, 12)
    assert (told["contributions_before_limit"], told["contributions_over_limit"]) == (8, 3)


@pytest.mark.slow
def test_sums_say_how_much_of_them_was_left_out():
    """A person's 400 counts as 100; of two who have 80 twice for an item, 160 counts as 100: 420 of 820 are lost."""
    paid = [("p", 400, 0), ("q", 80, 1), ("q", 80, 2), ("r", 80, 3), ("r", 80, 4), ("s", 100, 5), ("p", 900, -9)]
    rows = [beam.Row(user=u, item="1", value=v, time=Timestamp(START + t), stream="") for u, v, t in paid]
    for name, lost in (("counts", 300 + 2 * 60), ("counts of events", 300)):
        results = run_bounded("fn_api", rows, example(name, max_value=100))
        told = {name.partition(":")[2]: number for name, number in results.counters.items()}
        assert (told["sums_before_limit"], told["sums_over_limit"]) == (8_200, 10 * lost)
        assert told["values_clipped"] == 1


def test_quantiles_say_how_much_was_left_out():
    rows = [beam.Row(user="p", value=1.0 + i % 5, time=Timestamp(START + i), stream="") for i in range(20)]
    rows += [beam.Row(user="p", value=99.0, time=Timestamp(time), stream="") for time in (START + 15, 5)]
    results = run_bounded("fn_api", rows, example("quantiles", max_contributions=1))
    told = {name.partition(":")[2]: number for name, number in results.counters.items()}
    assert (told["values_before_limit"], told["values_over_limit"]) == (21, 19)
    assert told["values_clipped"] == 1, "what is outside of the run is not clipped"
    assert (told["contributions_before_limit"], told["contributions_over_limit"]) == (2, 1)


def test_sets_say_how_much_was_left_out():
    events = [("p", "12"[i % 2], (START + 10 * i) * SECOND, "") for i in range(6)]
    made = example("cardinality", timeout=None, enter_values=("1",), max_contributions=2, end=START + 60)
    told = counted(made, events)
    assert (told["entries_before_limit"], told["entries_over_limit"]) == (3, 3)


def test_queries_say_how_much_was_left_out():
    made = PrivateQueries(epsilon=500.0, domain=LIST, noise=example("queries").noise)
    people = [("p", "a"), ("p", "a"), ("p", "b"), ("q", "c")]

    def build(pipeline):
        queries = pipeline | "Queries" >> beam.Create([LinearQuery("one", Timestamp(1), ("a",))])
        events = pipeline | "Events" >> beam.Create([beam.Row(user=u, item=i, time=Timestamp(0)) for u, i in people])
        return {"events": events, "queries": queries} | made.with_dead_letters()

    told = {name.partition(":")[2]: number for name, number in run("fn_api", build).counters.items()}
    assert (told["items_before_limit"], told["items_over_limit"]) == (3, 1)
