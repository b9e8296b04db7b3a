"""Everything starts afresh at public moments: what a period publishes depends on nothing that came before it."""

import functools
import random
from dataclasses import replace

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.utils.timestamp import Timestamp
from event_forms import of_elements, run_bounded
from every_runner import one_job
from examples import example
from grids import some_quick
from privstream.mechanisms.privacy.units import EVENT, PERSON, PrivacyUnit
from privstream.transforms.questions.by_counts import AlertRule

SECOND, WINDOW, WINDOWS, PERIODS = 1_000_000, 10, 4, 3
START = 1_700_000_003  # windows are counted from here, and so are periods
PERIOD = WINDOW * WINDOWS
ITEMS = ("1", "2", "3")
END = START + PERIODS * PERIOD
COMMON = {"epsilon": 4.0, "start": START, "end": END, "renew_every": PERIOD, "shards": 2}
HITTERS = {"max_hits": 3, "max_per_window": 2}
COUNTS = {"max_contributions": 5}
RULES = {"rules": (AlertRule(name="one", at_least=40, items=("1",)), AlertRule(name="any", at_least=70))}
RENEWED = {
    "counts since the start": COUNTS,
    "heavy hitters": COUNTS,
    "heavy hitters by status": HITTERS,
    "heavy hitters by clock": HITTERS,
    "histogram": {"queries": ("histogram", "max"), "delta": 1e-3},
    "flags": {"thresholds": 60},
    "quantiles": {"delta": 1e-3, "high": 100, "resolution": 20, "quantiles": (0.5, 0.9), "max_contributions": 3},
    "cardinality": {"timeout": 25.0, "leave_values": None},
    "alerts by status": RULES,
    "top-k by gaps": {"max_per_window": 1},
}
"""Examples with budget periods, of different stages, and what they have of their own. Items of hitters stay found."""
QUICK = ("heavy hitters by status", "counts since the start", "cardinality")
MADE = {name: functools.partial(example, name, **COMMON | own) for name, own in RENEWED.items()}


def events(periods: set[int], seed: int = 1) -> list[beam.Row]:
    """Return events of 120 people in some periods; those of a period are the same whatever the others are."""
    found = []
    for period in sorted(periods):
        chance = random.Random(f"{seed} {period}")
        for _ in range(700):
            time = Timestamp(micros=(START + period * PERIOD) * SECOND + chance.randrange(PERIOD * SECOND))
            user, item = f"user {chance.randrange(120)}", chance.choices(ITEMS, [8, 3, 1])[0]
            found.append(beam.Row(user=user, item=item, value=chance.random() * 100, time=time))
    return found


def rows(made: beam.PTransform, given: list[beam.Row]) -> list:
    """Return the rows of events, which come as batches."""
    columns = {name: [getattr(row, name) for row in given] for name in given[0]._asdict()}
    columns["time"] = pa.array([time.micros for time in columns["time"]], pa.timestamp("us", "UTC"))
    batches = pa.table(columns).to_batches(max_chunksize=200)
    return run_bounded("fn_api", batches, made).elements("rows")


def of_periods(found: list, periods: set[int]) -> list:
    """Return the rows of windows that end in some periods."""
    ends = [(row.window_end.micros - START * SECOND - 1) // (PERIOD * SECOND) for row in found]
    return sorted(row for row, period in zip(found, ends, strict=True) if period in periods)


@pytest.mark.slow
@some_quick("name", [name for name in MADE if name != "heavy hitters"], *QUICK)
def test_what_a_period_publishes_depends_on_its_own_events_alone(name):
    whole = rows(MADE[name](), events({0, 1, 2}))
    assert of_periods(whole, {0}) and of_periods(whole, {1}) and of_periods(whole, {2})
    assert of_periods(rows(MADE[name](), events({0, 2})), {0, 2}) == of_periods(whole, {0, 2})
    if name in QUICK:
        assert of_periods(rows(MADE[name](), events({1, 2})), {1, 2}) == of_periods(whole, {1, 2})


@pytest.mark.slow
def test_items_that_were_found_stay_found_and_nothing_else_is_carried_over():
    """Others come in the first period, so that the same items are found: later counts are the same, and at once."""
    made, rest = functools.partial(example, "counts", **COMMON | COUNTS), events({1, 2})
    first, other = (sorted(rows(made(), events({0}, seed) + rest)) for seed in (1, 2))
    assert of_periods(first, {0}) != of_periods(other, {0})
    items = {row.item for row in of_periods(first, {0})}
    assert items and items == {row.item for row in of_periods(other, {0})}
    later, others = (
        [row._replace(people=0.0, lower=0.0, upper=0.0) for row in of_periods(found, {1, 2})]
        for found in (first, other)
    )
    assert later == others
    at_once = [row for row in later if row.window_start.micros == (START + PERIOD) * SECOND and row.item in items]
    assert {row.item for row in at_once} == items
    alone = {row.item for row in of_periods(rows(made(), events({1, 2})), {1})}
    assert alone <= {row.item for row in of_periods(first, {1})}


@pytest.mark.slow
@some_quick("name", MADE, "heavy hitters", "counts since the start")
def test_each_period_has_noise_of_its_own(name):
    """The same people do the same in each: without noise the rows would be the same, but for their times."""
    first = events({0})
    given = [
        beam.Row(**row._asdict() | {"time": row.time + period * PERIOD}) for period in range(PERIODS) for row in first
    ]
    whole = rows(MADE[name](), given)
    times = dict.fromkeys({"window_start", "window_end", "since"} & {*whole[0]._fields}, 0)
    published = [
        sorted((row._replace(**times) for row in of_periods(whole, {period})), key=repr) for period in range(PERIODS)
    ]
    assert all(published)
    if name != "flags":
        assert published[0] != published[1] != published[2] != published[0]


@one_job("rules", ["counts since the start", "heavy hitters", "cardinality"], runners=["prism", "flink"])
def test_runners_agree(name):
    given = events({0, 1, 2})
    results = yield of_elements(given, MADE[name]())
    assert sorted(results.elements("rows")) == sorted(rows(MADE[name](), given))


@pytest.mark.parametrize("name", MADE)
def test_the_guarantee_is_about_one_period(name):
    found = MADE[name]().guarantee
    if found.unit != EVENT:
        period = PERIOD * SECOND
        assert found.unit == PrivacyUnit(what="person", window=period, origin=START * SECOND % period)
        assert "m periods" in found.limits[-1] and ("A period has" in found.paragraph()) == (found.horizon is not None)
    assert not any("whole run" in limit for limit in found.limits)
    assert "begin again every 40 seconds." in found.paragraph()
    lasting = MADE[name]()
    lasting.steps = replace(lasting.steps, renewal=None)
    assert lasting.guarantee.unit in (PERSON, EVENT)
