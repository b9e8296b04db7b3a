"""The whole dataflow gives what plain dictionaries and the mechanism give, whatever happens to bundles and timers."""

import random

import slow_reference
import tiny_runner
from grids import some_quick
from privstream.transforms.timing import keyed_state
from workloads import CONFIGURATIONS, SECOND, START, random_events, transform

SEEDS = range(3)
QUICK = ("plain", "public streams", "known domain, streams", "paper", "counts", "counts, known domain")


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
def test_rows_are_those_of_the_reference(name):
    published = 0
    for seed in SEEDS:
        events = random_events(name, random.Random(seed))
        expected = slow_reference.heavy_hitters(transform(name), events)
        chain = tiny_runner.run_chain(transform(name), events, random.Random(seed))
        assert sorted(chain.rows) == expected
        assert not chain.dead_letters()
        published += len(expected)
    assert published


@some_quick("name", CONFIGURATIONS, *QUICK)
def test_failures_replays_and_odd_timers_change_nothing(name, monkeypatch):
    monkeypatch.setattr(keyed_state, "LEAST_COMPACTION", 64)
    monkeypatch.setattr(keyed_state, "CACHED_KEYS", 2)
    events = random_events(name, random.Random(77))
    quiet = tiny_runner.run_chain(transform(name), events, random.Random(1))
    for seed in SEEDS:
        noisy = tiny_runner.run_chain(transform(name), events, random.Random(seed), crashes=0.3, workers=3)
        assert sorted(noisy.rows) == sorted(quiet.rows)
        assert noisy.counters() == quiet.counters()
        assert not noisy.dead_letters()


@some_quick("name", CONFIGURATIONS, *QUICK)
def test_late_events_are_counted_and_set_aside_and_change_nothing(name):
    made = transform(name)
    for seed in SEEDS:
        chance = random.Random(seed)
        events = random_events(name, chance)
        watermark = START * SECOND + chance.randint(1, 3) * made.steps.size
        late = [("late " + u, i, watermark - chance.randint(made.steps.size, 2 * made.steps.size), s)
                for u, i, _, s in random_events(name, chance)]  # fmt: skip
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
