"""Where everything starts afresh with each period, the whole state of a dataflow stops growing."""

import random

import pytest
import tiny_runner
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import ShiftingHeavyHitters
from workloads import KEY

SECOND, WINDOW, START = 1_000_000, 10, 1_700_000_003
PERIODS, PERIOD_WINDOWS, PEOPLE = 20, 2, 150
COMMON = {"epsilon": 30.0, "delta": 1e-2, "max_hits": 1, "window": WINDOW, "start": START, "shards": 2}
CASES = {
    "clock": {"method": "clock"},
    "status": {"method": "status"},
    "clock with a cap": {"method": "clock", "participation_cap": 1},
    "counts with a cap": {"method": "counts", "participation_cap": 1, "forget": True},
}


def sizes(renew_every: int | None, **options) -> list[int]:
    """Return the bytes of state in the middle of each period. Most people are new in it, others are always there."""
    made = ShiftingHeavyHitters(
        **COMMON, **options, noise=KeyedNoise(KEY), renew_every=renew_every, horizon=PERIODS * PERIOD_WINDOWS
    )
    chain, found = tiny_runner.Chain(made, random.Random(1)), []
    for window in range(PERIODS * PERIOD_WINDOWS):
        period, begin = window // PERIOD_WINDOWS, (START + window * WINDOW) * SECOND
        people = [f"user {period} {number}" for number in range(PEOPLE)] + [f"regular {number}" for number in range(30)]
        chain.arrive([(user, f"item {window % 2}", begin + SECOND, "") for user in people])
        chain.advance(begin + (WINDOW + 1) * SECOND)
        if window % PERIOD_WINDOWS == 0:
            states = (stage.cells.states for stage in chain.stages)
            found.append(sum(len(value) for state in states for values in state.values() for value in values))
    assert len({row.window_start for row in chain.rows}) >= PERIODS
    return found


@pytest.mark.parametrize(
    "name", [name if name == "status" else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_state_stops_growing_over_twenty_periods(name):
    renewed, lasting = (sizes(renewal, **CASES[name]) for renewal in (PERIOD_WINDOWS * WINDOW, None))
    assert renewed[0] == lasting[0]
    # A shard to which nothing has come in a period still has what it wrote in the one before.
    assert max(renewed[1:]) <= renewed[0] + 600
    assert lasting[-1] > 10 * renewed[-1]


def test_state_of_items_that_stay_found_stops_growing_too():
    """Each period has the items that the one before carries, and what came in its own windows."""
    renewed = sizes(PERIOD_WINDOWS * WINDOW, method="counts")
    assert len(set(renewed[1:])) == 1 and renewed[-1] <= renewed[0] + 600
