"""What counts of the data: which limits are named, and what the counters say that they leave out."""

import inspect
import random
from collections import Counter

import apache_beam as beam
import pytest
from apache_beam.utils.timestamp import Timestamp
from event_forms import as_rows, run_bounded
from examples import EXAMPLES, START, example
from privstream.transforms import Domain, LinearQuery, PrivateQueries
from runner_harness import run

SECOND = 1_000_000
LIST = Domain(["a", "b", "c"])


def options_named(made: beam.PTransform) -> list[str]:
    """Return the options of the limits that a transform names."""
    return [limit.option for limit in made.coverage.limits]


@pytest.mark.parametrize("name", EXAMPLES)
def test_accuracy_says_what_intervals_hold(name):
    made = example(name)
    found = made.accuracy.to_dict()
    assert set(found["intervals"]) == {"hold", "scope", "leave_out", "note"}
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
        ("heavy hitters by clock", {"start": None, "end": None, "horizon": 1}, ["items_per_step", "horizon"]),
        ("heavy hitters", {"max_hits": 1}, ["items_per_step", "max_hits"]),
        ("heavy hitters by counts", {"max_hits": 1}, ["items_per_step"]),
        ("heavy hitters in streams, by counts", {}, ["items_per_step", "streams_per_person"]),
        ("heavy hitters in streams, by counts", {"streams_per_person": 3}, ["items_per_step"]),
        ("heavy hitters of a list, by counts", {"items_per_step": 4}, []),
        ("top-k", {}, ["items_per_step"]),
        ("top-k", {"items_per_step": 4}, []),
        ("top-k", {"participation_cap": 1, "items_per_step": 4}, ["participation_cap"]),
        ("top-k in streams", {}, ["items_per_step", "streams_per_person"]),
        ("alerts", {}, []),
        ("alerts in streams", {}, ["streams_per_person"]),
        ("alerts by status", {}, ["max_hits"]),
        ("histogram", {}, []),
        ("histogram", {"categories_per_row": 2}, ["categories_per_row"]),
        ("histogram", {"categories_per_row": 4}, []),
        ("histogram of people", {"max_per_window": 1}, ["max_contributions", "max_per_window"]),
        ("flags of people", {}, ["max_contributions"]),
        ("cardinality", {}, []),
        ("cardinality", {"visits_per_person": 3}, ["visits_per_person"]),
        ("cardinality", {"streams": ("s", "t")}, ["streams_per_person"]),
        ("ranges", {}, []),
        ("predecessors", {}, []),
        ("queries", {}, [""]),
    ],
)
def test_limits_are_named_that_can_bind_and_no_others(name, changes, options):
    made = example(name, **changes)
    assert options_named(made) == options
    assert ("true" in made.coverage.holds or "measurements" in made.coverage.holds) == (not options)


def test_with_renewal_limits_are_those_of_a_period():
    made = example("counts", renew_every=10)
    assert "at most 2 contributions in one period count" in made.accuracy.coverage.leaves_out


@pytest.mark.parametrize(
    ("name", "changes", "scope"),
    [
        ("counts", {}, "all of up to 10,000 items together"),
        ("counts", {"end": None}, "all of a window together"),
        ("counts of a list", {}, "all of them together"),
        ("quantiles", {"end": None}, "all of a window together"),
        ("heavy hitters", {}, "each by itself"),
        ("top-k", {}, "each by itself"),
    ],
)
def test_which_intervals_hold_together(name, changes, scope):
    assert example(name, **changes).coverage.scope == scope


@pytest.mark.parametrize("name", ["heavy hitters by counts", "alerts", "alerts by counts", "measurements"])
def test_numbers_that_are_published_for_their_noise_say_so(name):
    assert "near the threshold" in example(name).coverage.note


def counted(made: beam.PTransform, events: list[tuple[str, str, int, str]]) -> Counter[str]:
    """Return the counters of a run."""
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


def test_what_counted_before_is_not_left_out_of_counts_since_the_start():
    events = shopping()
    told = counted(example("counts since the start", max_contributions=100), events)
    assert told["contributions_before_limit"] == triples(events).total()
    assert told["contributions_over_limit"] == told["items_over_limit"] == 0


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
    told = counted(example("histogram", categories_per_row=2), events)
    assert (told["categories_before_limit"], told["categories_over_limit"]) == (36, 12)
    singles = [("p", "1", (START + i) * SECOND, "") for i in range(20)]
    told = counted(example("histogram of people", max_per_window=4, max_contributions=5), singles)
    assert (told["items_before_limit"], told["items_over_limit"]) == (20, 12)
    assert (told["contributions_before_limit"], told["contributions_over_limit"]) == (8, 3)


def test_quantiles_say_how_much_was_left_out():
    rows = [beam.Row(user="p", value=1.0 + i % 5, time=Timestamp(START + i), stream="") for i in range(20)]
    results = run_bounded("fn_api", rows, example("quantiles", max_contributions=1))
    told = {name.partition(":")[2]: number for name, number in results.counters.items()}
    assert (told["values_before_limit"], told["values_over_limit"]) == (20, 18)
    assert (told["contributions_before_limit"], told["contributions_over_limit"]) == (2, 1)


def test_sets_say_how_much_was_left_out():
    events = [("p", "12"[i % 2], (START + 10 * i) * SECOND, "") for i in range(6)]
    made = example("cardinality", timeout=None, enter_values=("1",), visits_per_person=2, end=START + 60)
    told = counted(made, events)
    assert (told["entries_before_limit"], told["entries_over_limit"]) == (3, 1)


def test_queries_say_how_much_was_left_out():
    made = PrivateQueries(epsilon=500.0, domain=LIST, noise=example("queries").noise)
    people = [("p", "a"), ("p", "a"), ("p", "b"), ("q", "c")]

    def build(pipeline):
        queries = pipeline | "Queries" >> beam.Create([LinearQuery("one", Timestamp(1), ("a",))])
        events = pipeline | "Events" >> beam.Create([beam.Row(user=u, item=i, time=Timestamp(0)) for u, i in people])
        return {"events": events, "queries": queries} | made.with_dead_letters()

    told = {name.partition(":")[2]: number for name, number in run("fn_api", build).counters.items()}
    assert (told["items_before_limit"], told["items_over_limit"]) == (3, 1)
