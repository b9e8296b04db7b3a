"""State is written in proportion to the people charged, freed when a step is decided, stops growing with periods."""

import random

import numpy as np
import pytest
import tiny_runner
from privstream.mechanisms.monitor.monitor import ThresholdMonitor
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import HeavyHitter, KeyedCounts, ShiftingHeavyHitters
from privstream.transforms.batches import HolderBatch, Names, encode
from privstream.transforms.counts.transform import ShowCounts
from privstream.transforms.questions.monitor_stages import DecideSteps
from privstream.transforms.timing import step_fn
from privstream.transforms.timing.step_fn import SEED, stepped
from privstream.transforms.timing.steps import Steps
from workloads import KEY

BYTES_PER_CHARGE = 10  # hash and amount
OVERHEAD = 1_500  # headers of one step: head, segment
STEPS = Steps(size=1000, first=0, end=1000)


def held(people: np.ndarray, item: int = 3) -> HolderBatch:
    items = np.full(len(people), item, np.uint64)
    names = Names(np.array([item], np.uint64), np.array([0, 1], np.int64), np.frombuffer(b"x", np.uint8))
    return HolderBatch(people.astype(np.uint64), items, np.zeros(len(people), np.uint16), names)


def monitor_stage(max_hits: int = 200) -> tiny_runner.Stage:
    """Return a monitor that reports every item held by fifty people, with `max_hits` charges to give for each."""
    monitor = ThresholdMonitor(epsilon=3000.0, delta=0.01, max_hits=max_hits, horizon=1000)
    assert monitor.detection_threshold <= 50
    fn = DecideSteps(monitor=monitor, steps=STEPS, noise=KeyedNoise(KEY), timer_offset=4, row_type=HeavyHitter)
    stage = tiny_runner.Stage(fn, random.Random(0))
    stage.feed([(b"", SEED)])
    return stage


def feed(stage, step: int, people: np.ndarray) -> int:
    """Send holdings of a step, decide it, and return the bytes that this wrote to state."""
    before = stage.cells.added
    stage.feed([(b"", stepped(step, encode(held(people))))])
    stage.advance(STEPS.decision_time(step, 4))
    return stage.cells.added - before


def size_of(stage) -> int:
    return sum(len(value) for values in stage.cells.states.values() for value in values)


def test_a_step_writes_what_it_charges_and_not_the_history():
    stage = monitor_stage()
    batch = {n: len(stepped(0, encode(held(np.arange(n))))) for n in (100, 50_000)}
    feed(stage, 0, np.arange(50_000))
    written = [feed(stage, step, np.arange(100)) for step in range(1, 30)]
    assert max(written) <= batch[100] + 100 * BYTES_PER_CHARGE + OVERHEAD
    assert len(stage.take()) == 30
    assert size_of(stage) <= 50_000 * BYTES_PER_CHARGE + 30 * (100 * BYTES_PER_CHARGE + OVERHEAD)


def test_the_log_is_compacted_at_amortised_cost(monkeypatch):
    monkeypatch.setattr(step_fn, "LEAST_COMPACTION", 2_000)
    stage, people, charged = monitor_stage(), np.arange(200), 0
    written, sizes = 0, []
    for step in range(200):
        written += feed(stage, step, people)
        charged += len(people)
        sizes.append(size_of(stage))
    one_log = len(people) * BYTES_PER_CHARGE + OVERHEAD
    assert max(sizes) <= 4 * one_log + 2_000
    batch = len(stepped(0, encode(held(people))))
    assert written <= 200 * (batch + OVERHEAD) + 3 * charged * BYTES_PER_CHARGE


SECOND, WINDOW, START = 1_000_000, 10, 1_700_000_003
PERIODS, PERIOD_WINDOWS, PEOPLE = 20, 2, 150
RENEWED = {"epsilon": 30.0, "delta": 1e-2, "window": WINDOW, "start": START, "shards": 2, "noise": KeyedNoise(KEY)}
CASES = {
    "clock": (ShiftingHeavyHitters, {"method": "clock", "max_hits": 1}),
    "status": (ShiftingHeavyHitters, {"method": "status", "max_hits": 1}),
    "counts": (KeyedCounts, {"max_contributions": 2}),
}


def sizes(name: str, renew_every: int | None) -> list[int]:
    """Return the bytes of state in the middle of each period. Most people are new in it, others are always there."""
    kind, options = CASES[name]
    made = kind(**RENEWED, **options, renew_every=renew_every, end=START + PERIODS * PERIOD_WINDOWS * WINDOW)
    chain, found = tiny_runner.Chain(made, random.Random(1)), []
    for window in range(PERIODS * PERIOD_WINDOWS):
        period, begin = window // PERIOD_WINDOWS, (START + window * WINDOW) * SECOND
        people = [f"user {period} {number}" for number in range(PEOPLE)] + [f"regular {number}" for number in range(30)]
        chain.arrive([(user, f"item {window % 2}", begin + SECOND) for user in people])
        chain.advance(begin + (WINDOW + 1) * SECOND)
        if window % PERIOD_WINDOWS == 0:
            # what is shown looks at 64 windows, whatever periods there are
            states = (stage.cells.states for stage in chain.stages if not isinstance(stage.fn, ShowCounts))
            found.append(sum(len(value) for state in states for values in state.values() for value in values))
    assert len({row.window_start for row in chain.rows}) >= PERIODS
    return found


@pytest.mark.parametrize(
    "name", [name if name == "status" else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_state_stops_growing_over_twenty_periods(name):
    renewed, lasting = (sizes(name, renewal) for renewal in (PERIOD_WINDOWS * WINDOW, None))
    print(renewed, lasting)
    assert abs(renewed[0] - lasting[0]) <= 600  # the pace of a limit depends on the length
    # A shard to which nothing has come in a period still has what it wrote in the one before.
    assert max(renewed[1:]) <= renewed[0] + 600
    assert lasting[-1] > 10 * renewed[-1]
