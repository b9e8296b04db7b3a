"""The whole dataflow gives what plain dictionaries and the mechanism give, whatever happens to bundles and timers."""

import random

import pytest
import slow_reference
import tiny_runner
from grids import some_quick
from privstream.transforms.rows import STATUSES
from privstream.transforms.timing import keyed_state
from workloads import CONFIGURATIONS, SECOND, START, random_events, transform

SEEDS = range(2)
QUICK = (
    "plain",
    "public streams",
    "known domain, streams",
    "paper",
    "status",
    "status, known domain, streams",
    "counts",
)


def late_pairs(made, events) -> int:
    """Count the windows of the run that the events would have counted in."""
    steps = made.steps
    return sum(
        1
        for _, _, time, _ in events
        for step in range(time // steps.period, (time - steps.size) // steps.period, -1)
        if (steps.first is None or step >= steps.first) and (steps.end is None or step < steps.end)
    )


def domain_of(made) -> list[str]:
    return [made.domain[place] for place in range(len(made.domain))]


@some_quick("name", CONFIGURATIONS, *QUICK)
def test_rows_are_those_of_the_reference_whatever_fails_and_in_whatever_order_timers_come(name, monkeypatch):
    published = 0
    for seed in SEEDS:
        events = random_events(name, random.Random(seed))
        expected = slow_reference.heavy_hitters(transform(name), events)
        quiet = tiny_runner.run_chain(transform(name), events, random.Random(seed))
        with monkeypatch.context() as patched:
            patched.setattr(keyed_state, "LEAST_COMPACTION", 64)
            patched.setattr(keyed_state, "CACHED_KEYS", 2)
            noisy = tiny_runner.run_chain(transform(name), events, random.Random(seed), crashes=0.3, workers=3)
        assert sorted(quiet.rows) == sorted(noisy.rows) == expected
        assert noisy.counters() == quiet.counters()
        assert not quiet.dead_letters()
        assert not noisy.dead_letters()
        published += len(expected)
    assert published


@some_quick("name", CONFIGURATIONS, *QUICK)
def test_late_events_are_counted_and_set_aside_and_change_nothing(name):
    made = transform(name)
    for seed in SEEDS:
        chance = random.Random(seed)
        events = random_events(name, chance)
        watermark = START * SECOND + chance.randint(1, 3) * made.steps.size
        late = [
            (f"late {user}", item, watermark - chance.randint(made.steps.size, 2 * made.steps.size), stream)
            for user, item, _, stream in random_events(name, chance)
            if (made.streams is None or stream in made.streams) and (made.domain is None or item in domain_of(made))
        ]
        first = [event for event in events if event[2] < watermark]
        chain = tiny_runner.Chain(made, chance, crashes=0.1, workers=2)
        chain.arrive(first)
        chain.advance(watermark)
        chain.arrive(late)
        chain.arrive([event for event in events if event not in first])
        chain.advance(tiny_runner.END)
        assert sorted(chain.rows) == slow_reference.heavy_hitters(made, events)
        assert len(chain.dead_letters()) == late_pairs(made, late)
        assert chain.counters().get("BoundPerWindow.late", 0) == late_pairs(made, late)
        assert not any("user" in field for letter in chain.dead_letters() for field in letter)


@pytest.mark.parametrize(("name", "statuses"), [("status", STATUSES), ("counts", STATUSES[:2])])
def test_the_reference_has_rows_of_every_status(name, statuses):
    """An item that is reported has one row a window since it started; the row of an end is the last."""
    made = transform(name)
    rows = [
        row for seed in SEEDS for row in slow_reference.heavy_hitters(made, random_events(name, random.Random(seed)))
    ]
    assert {row.status for row in rows} == {*statuses}
    assert all((row.since == row.window_start) == (row.status == "started") for row in rows)
    assert all(bool(row.count_stddev) == (name != "status" or row.status != "continues") for row in rows)


@pytest.mark.parametrize("name", ["plain", "counts, forgetting", "counts"])
def test_a_report_that_was_there_in_the_window_before_goes_on(name):
    """Where nothing says how long an item lasts, what is published does, until there is a gap."""
    made = transform(name)
    size = made.steps.size // SECOND
    crowd = [
        (f"user {person} {window // 2}", "a", (START + window * size) * SECOND, "")
        for window in (0, 1, 3)
        for person in range(60)
    ]
    chain = tiny_runner.run_chain(made, crowd, random.Random(1))
    since = [(row.status, (row.since.micros // SECOND - START) // size) for row in sorted(chain.rows)]
    assert since == [("started", 0), ("continues", 0), ("started", 3)]


def test_every_window_is_decided_while_anything_is_up():
    """An item that nobody or hardly anybody has any more ends, though nobody sends anything; then all is still."""
    made = transform("status, no start")
    crowd = [(f"user {i}", item, START * SECOND + i, "") for i in range(60) for item in "ab"]
    few = [(f"user {i}", "b", (START + 12) * SECOND + i, "") for i in range(3)]
    for events in (crowd[::2], [*crowd[1::2], *few]):
        chain = tiny_runner.run_chain(made, events, random.Random(1))
        assert sorted(chain.rows) == slow_reference.heavy_hitters(made, events)
        ended = [row for row in chain.rows if row.status == "ended"]
        assert len(ended) == 1
        assert ended[0].window_start > max(row.window_start for row in chain.rows if row.status != "ended")
        assert not any(stage.cells.timers for stage in chain.stages[:-1]), "the last one has a clock"


def test_late_events_are_never_used_whoever_else_has_events():
    """One person's event must not decide whether the events of others count."""
    made = transform("plain")
    crowd = [(f"user {i}", "a", START * SECOND + 1000 + i, "") for i in range(60)]
    for others in ([], [("somebody", "b", START * SECOND, "")]):
        chain = tiny_runner.Chain(made, random.Random(0))
        chain.arrive(others)
        chain.advance((START + 10) * SECOND)
        chain.arrive(crowd)
        for _ in range(3):
            chain.advance(chain.watermark + 30 * 24 * 3600 * SECOND)
            chain.arrive(crowd)
        chain.advance(tiny_runner.END)
        assert chain.rows == []
        assert len(chain.dead_letters()) == 4 * len(crowd)
    on_time = tiny_runner.run_chain(made, crowd, random.Random(0))
    assert len(on_time.rows) == 1
