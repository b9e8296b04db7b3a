"""Everything starts afresh at public moments: what a period publishes depends on nothing that came before it."""

import random

import apache_beam as beam
import pytest
from apache_beam.utils.timestamp import Timestamp
from event_forms import run_bounded
from every_runner import of_elements, one_job
from grids import some_quick
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.privacy.units import EVENT, PERSON, PrivacyUnit
from privstream.transforms import (
    ContinualHistogram,
    Domain,
    KeyedCounts,
    NumericQuantiles,
    SetCardinality,
    ShiftingHeavyHitters,
    SparseVectorAlerts,
    ThresholdFlags,
    TopKWithGap,
)
from privstream.transforms.alerts.rules import AlertRule

SECOND, WINDOW, WINDOWS, PERIODS = 1_000_000, 10, 4, 3
START = 1_700_000_003  # windows are counted from here, and so are periods
PERIOD = WINDOW * WINDOWS
ITEMS = ("a", "b", "c")
NOISE = KeyedNoise(b"a key for tests of what starts afresh")
COMMON = {"epsilon": 4.0, "window": WINDOW, "start": START, "renew_every": PERIOD, "noise": NOISE, "shards": 2}
END = {"end": START + PERIODS * PERIOD}
HITTERS = COMMON | END | {"delta": 1e-3, "max_hits": 3, "items_per_step": 2, "count_share": 0.5}
LISTED = COMMON | END | {"domain": Domain(ITEMS)}
RULES = (AlertRule(name="a", at_least=40, items=("a",)), AlertRule(name="few", at_most=100))
MADE = {
    "counts": lambda: KeyedCounts(**COMMON, **END, delta=1e-3, max_contributions=5),
    "counts since the start": lambda: KeyedCounts(**COMMON, **END, delta=1e-3, max_contributions=5, over="start"),
    "counts of the last windows": lambda: KeyedCounts(**COMMON, **END, delta=1e-3, max_contributions=5, over=20),
    "counts of a list": lambda: KeyedCounts(**LISTED, max_contributions=5, over="start"),
    "hitters by status": lambda: ShiftingHeavyHitters(**HITTERS, method="status"),
    "hitters of a list": lambda: ShiftingHeavyHitters(**HITTERS, method="status", domain=Domain(ITEMS)),
    "hitters by clock": lambda: ShiftingHeavyHitters(**HITTERS, method="clock"),
    "hitters by clock of a list": lambda: ShiftingHeavyHitters(**HITTERS, method="clock", domain=Domain(ITEMS)),
    "hitters by counts": lambda: ShiftingHeavyHitters(**HITTERS, method="counts"),
    "hitters in sliding windows": lambda: ShiftingHeavyHitters(**HITTERS | {"window": 20}, period=10, method="status"),
    "hitters with a cap": lambda: ShiftingHeavyHitters(**HITTERS, participation_cap=2, method="clock"),
    "histogram of events": lambda: ContinualHistogram(**LISTED, queries=("histogram",)),
    "histogram of people": lambda: ContinualHistogram(
        **LISTED, queries=("histogram", "max"), unit="user", max_contributions=4, delta=1e-3
    ),
    "flags": lambda: ThresholdFlags(**LISTED, thresholds=60),
    "quantiles": lambda: NumericQuantiles(
        **COMMON, **END, delta=1e-3, low=0, high=100, resolution=20, quantiles=(0.5, 0.9), max_contributions=3
    ),
    "people": lambda: SetCardinality(**COMMON, **END, timeout=25.0, max_updates=2000),
    "alerts": lambda: SparseVectorAlerts(**COMMON, **END, rules=RULES, min_alerts=2, method="sparse_vector"),
    "alerts by counts": lambda: SparseVectorAlerts(**COMMON, **END, rules=RULES, delta=1e-3, method="counts"),
    "alerts by status": lambda: SparseVectorAlerts(**COMMON, **END, rules=RULES, delta=1e-3, method="status"),
    "top-k": lambda: TopKWithGap(**LISTED, top=1, items_per_step=2),
}


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
    """Return what a transform publishes."""
    return run_bounded("fn_api", given, made).elements("rows")


def of_periods(found: list, periods: set[int]) -> list:
    """Return the rows of windows that end in some periods."""
    ends = [(row.window_end.micros - START * SECOND - 1) // (PERIOD * SECOND) for row in found]
    return sorted(row for row, period in zip(found, ends, strict=True) if period in periods)


@some_quick("name", MADE, "hitters by status", "counts since the start", "people")
def test_what_a_period_publishes_depends_on_its_own_events_alone(name):
    whole = rows(MADE[name](), events({0, 1, 2}))
    assert of_periods(whole, {0}) and of_periods(whole, {1}) and of_periods(whole, {2})
    assert of_periods(rows(MADE[name](), events({1, 2})), {1, 2}) == of_periods(whole, {1, 2})
    assert of_periods(rows(MADE[name](), events({0, 2})), {0, 2}) == of_periods(whole, {0, 2})


@some_quick("name", MADE, "hitters by status", "counts since the start")
def test_each_period_has_noise_of_its_own(name):
    """The same people do the same in each: without noise the rows would be the same, but for their times."""
    first = events({0})
    given = [
        beam.Row(**row._asdict() | {"time": row.time + period * PERIOD}) for period in range(PERIODS) for row in first
    ]
    whole = rows(MADE[name](), given)
    published = []
    for period in range(PERIODS):
        moved = [
            row._replace(
                **{
                    field: getattr(row, field) - period * PERIOD
                    for field in ("window_start", "window_end", "since")
                    if hasattr(row, field)
                }
            )
            for row in of_periods(whole, {period})
        ]
        published.append(sorted(moved))
    assert all(published)
    if name != "flags":
        assert published[0] != published[1] != published[2] != published[0]


@one_job("rules", ["counts since the start", "hitters by status", "people"], runners=["prism", "flink"])
def test_runners_agree(name):
    given = events({0, 1, 2})
    results = yield of_elements(given, MADE[name]())
    assert sorted(results.elements("rows")) == sorted(rows(MADE[name](), given))


@pytest.mark.parametrize("name", MADE)
def test_the_guarantee_is_about_one_period(name):
    found = MADE[name]().guarantee
    if found.unit != EVENT:
        assert found.unit == PrivacyUnit(
            what="person", window=PERIOD * SECOND, origin=START * SECOND % (PERIOD * SECOND)
        )
        assert "m periods" in found.limits[-1]
    assert not any("whole run" in limit for limit in found.limits)
    assert "start afresh every 40 seconds, counted from 2023-11-14T22:13:23Z" in found.paragraph()
    lasting = MADE[name]()
    lasting.steps = lasting.steps.__class__(**vars(lasting.steps) | {"renewal": None})
    assert lasting.guarantee.unit in (PERSON, EVENT)


def test_a_person_counts_anew_in_each_period():
    made = KeyedCounts(**COMMON | {"epsilon": 100.0}, **END, delta=1e-3, max_contributions=1)
    given = [
        beam.Row(user=f"user {person}", item="a", time=Timestamp(START + period * PERIOD + 1))
        for period in range(PERIODS)
        for person in range(100)
    ]
    assert [row.window_start.micros // SECOND - START for row in sorted(rows(made, given))] == [0, PERIOD, 2 * PERIOD]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"renew_every": 15}, "renew_every must be a multiple of 10 seconds, by which windows follow each other"),
        ({"renew_every": 0}, "renew_every must be > 0 and a whole number of milliseconds"),
        ({"start": None}, "start must be given with renew_every, which counts from it"),
    ],
)
def test_bad_periods_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        KeyedCounts(**COMMON | {"renew_every": 20} | changes, delta=1e-3, max_contributions=1)
