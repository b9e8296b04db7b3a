"""Live histograms and flags: the rows of the slow reference on every runner, whatever happens on the way."""

import functools
import itertools
import random
import re
import time
from dataclasses import replace

import apache_beam as beam
import histogram_workloads as workloads
import numpy as np
import pyarrow as pa
import pytest
import runner_harness
import slow_histogram
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from event_forms import as_arrow, as_rows, checked, crowd_at, disordered, run_bounded, stamped
from every_runner import of_elements, of_stream, one_job
from grids import some_quick
from histogram_workloads import CONFIGURATIONS, FLAGS, KEY, NAMES, SECOND, START, random_events, transform
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.counters.trees import BinaryTreeCounter
from privstream.mechanisms.counters.unknown_horizon import UnknownHorizonCounter
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.privacy.units import EVENT, PERSON
from privstream.transforms.batches import StepKey
from privstream.transforms.histograms.categories import Categories, first_rows
from privstream.transforms.timing.clocked import ClockedSteps, StartClocks, by_clock, clock_of
from tiny_runner import Stage, call_all, dofns_of

ALL = [*CONFIGURATIONS, *FLAGS]


def expected(name, made, events):
    return (slow_histogram.flags if name in FLAGS else slow_histogram.histogram)(made, events)


@one_job("histograms", ALL, "extremes", "people, streams", "flags of people")
def test_rows_are_those_of_the_reference(name):
    events = random_events(name, random.Random(6))
    made = transform(name)
    results = yield of_elements(as_arrow(events) if name in ("plain", "people, streams") else as_rows(events), made)
    rows = expected(name, made, events)
    assert len(rows) == len(made.categories.streams) * 40 * (len(rows) // 40 // len(made.categories.streams)) > 0
    assert (results.elements("dead"), results.counters.get("privstream:events_late", 0)) == ([], 0)
    assert results.counters["privstream:events"] == len(events)
    assert sorted(results.elements("rows")) == rows
    assert all(stamp == row.window_end.micros - 1 for row, stamp in results.outputs["rows"])


@pytest.mark.prism
def test_slow_bundles_lose_no_batch(monkeypatch):
    """Prism would split such a bundle after a tenth of a second, and forget what one part wrote."""
    keep = ClockedSteps.keep

    def slow(self, *arguments):
        time.sleep(0.15)
        yield from keep(self, *arguments)

    monkeypatch.setattr(ClockedSteps, "keep", slow)
    events, made = random_events("plain", random.Random(6), 100), transform("plain")
    assert sorted(run_bounded("prism", as_arrow(events, 1), made).elements("rows")) == expected("plain", made, events)


@one_job("histograms", ["plain", "people", "flags"], "plain", "people", "flags")
def test_windows_without_events_are_published(name):
    made = transform(name)
    results = yield of_elements([], made)
    assert sorted(results.elements("rows")) == expected(name, made, [])


@pytest.mark.slow
def test_interesting_configurations_are_interesting():
    """Intervals end in the modes that have them, flags go up, limits bind: else the tests above would say little."""
    for name in ALL:
        events = random_events(name, random.Random(6))
        made = transform(name)
        rows = expected(name, made, events)
        if name in FLAGS:
            raised = [row.raised for row in rows]
            assert 0.1 < np.mean(raised) < 0.9
            assert made.method == FLAGS[name].get("method", "direct_counters")
        else:
            assert made.method == CONFIGURATIONS[name].get("method", "direct_counters")
            estimates = {row.estimate for row in rows if row.query == made.questions[0].name}
            assert len(estimates) > 3
        if made.unit == "person":
            free = transform(name, max_contributions=60_000, **({"max_per_window": None} if name not in FLAGS else {}))
            assert len(slow_histogram.counted(made, events)) < len(slow_histogram.counted(free, events))


def drive(made, events, chance, *, crashes, workers=2):
    """Run all stages by hand, with bundles that fail, in random order along a random watermark."""
    fns = dofns_of(made)
    names = [name for name in ("BoundRows", "LimitRows", "PublishHistogram", "RaiseFlags") if name in fns]
    stages = [Stage(fns[name], chance, crashes=crashes, workers=workers) for name in names]
    stages[-1].feed(call_all(StartClocks(tuple(by_clock(made.categories.streams))), [b""]))
    steps, markers = made.steps, {}
    waiting, watermark = list(events), START * SECOND

    def arrive(some):
        batches = as_arrow(some, chance.choice([1, 7, 1000]))
        if len(names) == 1:
            stages[0].feed(call_all(fns["CountEvents"], checked(made, batches)))
            return
        keyed_batches = call_all(fns["SplitRows"], checked(made, batches))
        for key, (digest, _) in keyed_batches:
            markers.setdefault(key, []).append(digest)
        stages[0].feed(keyed_batches)

    while watermark < steps.end * steps.size + 5 * SECOND:
        due = [e for e in waiting if e[2] <= watermark]
        waiting = [e for e in waiting if e not in due]
        arrive(due)
        watermark += chance.choice([1, 5, 10, 80]) * SECOND
        late = [e for e in waiting if e[2] // steps.size * steps.size + steps.size <= watermark]
        waiting = [e for e in waiting if e not in late]
        arrive(late)
        if len(names) > 1:
            ready = [k for k in markers if steps.decision_time(StepKey.from_bytes(k).step).micros <= watermark]
            stages[0].feed([(key, (b"".join(markers.pop(key)), b"")) for key in ready])
        for stage, following in itertools.pairwise(stages):
            stage.advance(watermark)
            following.feed(stage.take())
        stages[-1].advance(watermark)
    return stages


@some_quick("seed", range(2), 0)
@pytest.mark.parametrize("name", ALL)
def test_failed_bundles_and_moved_keys_change_nothing(name, seed):
    chance = random.Random(seed)
    events = random_events(name, chance, 200)
    made = transform(name)
    stages = drive(made, events, chance, crashes=0.2)
    assert sorted(stages[-1].outputs) == expected(name, made, events)
    assert [stage.dead for stage in stages if stage.dead] == []
    left = {place for stage in stages for (_, place), values in stage.cells.states.items() if values}
    assert left <= {"publish_histogram_progress", "raise_flags_progress", "limit_rows_progress", "limit_rows_log"}
    assert not any(stage.cells.timers for stage in stages)


@pytest.mark.slow
def test_shards_and_batches_change_nothing():
    events = random_events("people, streams", random.Random(1))
    wanted = expected("people, streams", transform("people, streams"), events)
    for shards in (1, 7):
        random.Random(shards).shuffle(events)
        made = transform("people, streams", shards=shards)
        assert sorted(run_bounded("fn_api", as_arrow(events, 600), made).elements("rows")) == wanted


def test_a_state_is_small_however_many_events_there_were():
    made = transform("plain")
    sizes = []
    for n in (10, 3000):
        fns = dofns_of(made)
        stage = Stage(fns["PublishHistogram"], random.Random(1))
        stage.feed(call_all(StartClocks((clock_of(""),)), [b""]))
        stage.feed(call_all(fns["CountEvents"], checked(made, as_arrow(random_events("plain", random.Random(2), n)))))
        stage.advance(made.steps.decision_time(made.steps.end - 2, 1).micros)
        sizes.append(sum(len(v) for (_, p), values in stage.cells.states.items() for v in values if "log" in p))
    assert sizes[0] == sizes[1] < 1500


@one_job("late sets", ["several categories", "people", "flags", "published flags"], runners=["prism"])
def test_disorder_changes_nothing_and_late_events_are_set_aside(name):
    made = transform(name, delta=1e-6, allowed_lateness=5, **({"epsilon": 2.9} if name in FLAGS else {}))
    chance = random.Random(3)
    waiting = [e for e in random_events(name, chance, 300) if e[2] >= START * SECOND]
    stream = made.categories.streams[0]
    late = [(f"late {i}", "dog", (START + 10) * SECOND + i, stream) for i in range(30)]
    late += [(f"late {i}", "eel", (START + 75) * SECOND + i, stream) for i in range(12)]
    used = list(waiting)
    used.append((f"user {0}", "dog", 0, ""))  # outside of the run
    results = yield of_stream(disordered(waiting, late, START, chance), made)
    assert sorted(results.elements("rows")) == expected(name, made, used)
    letters = {letter.record.partition(" ")[0] for letter in results.elements("dead")}
    assert letters == {"dog", "eel"}
    assert results.counters["privstream:events_late"] == len(late)


@one_job("late sets", itertools.product(["people", "approximate"], ["alone", "beside one"]), runners=["prism"])
def test_one_persons_event_does_not_decide_whether_late_ones_count(case):
    name, beside = case
    made = transform(name, delta=1e-6)
    crowd = [(f"user {i}", "dog", START * SECOND + i, "") for i in range(60)]
    others = [] if beside == "alone" else [("somebody", "cat", START * SECOND, "")]
    results = yield of_stream(crowd_at(START + 11, crowd, others), made)
    assert sorted(results.elements("rows")) == expected(name, made, others)


@pytest.mark.parametrize("name", ["plain", "people"])
def test_company_in_a_bundle_does_not_decide_whether_an_event_is_late(name):
    """An event that arrived after its window was decided, by its timestamp, is late with and without an early one."""
    made = transform(name)
    early, late = ("somebody", "cat", START * SECOND, START + 1), ("other", "dog", START * SECOND, START + 50)

    def build(pipeline, arrivals):
        return pipeline | beam.Create(arrivals, reshuffle=False) | beam.MapTuple(arrived) | made.with_dead_letters()

    for arrivals in ([late], [early, late]):
        results = runner_harness.run("fn_api", functools.partial(build, arrivals=arrivals))
        counted = [(user, item, time, "") for user, item, time, at in arrivals if at < START + 10]
        assert sorted(results.elements("rows")) == expected(name, made, counted)
        assert results.counters["privstream:events_late"] == 1


def arrived(user, item, time, at) -> TimestampedValue:
    return TimestampedValue(beam.Row(user=user, item=item, time=Timestamp(micros=time)), at)


@one_job("sets without an end", ["approximate", "plain", "anchored", "flags", "people, streams"], runners=["prism"])
def test_a_histogram_without_an_end(name):
    made = transform(name, end=None)
    events = random_events(name, random.Random(8), 100)
    source = test_stream.TestStream()
    for now, group in itertools.groupby(sorted(events, key=lambda e: e[2]), key=lambda e: e[2] // SECOND):
        source = source.add_elements([stamped(event) for event in group]).advance_watermark_to(now)
    source = source.advance_watermark_to_infinity()
    results = yield of_stream(source, made)
    rows = sorted(results.elements("rows"))
    windows = max((row.window_end.micros // SECOND - START) // 10 for row in rows)
    assert 42 <= windows <= 42 + 2 * 256
    if name in ("plain", "anchored"):
        counter = made.mechanism.counter
        assert isinstance(counter, UnknownHorizonCounter)
        assert all(isinstance(counter.epoch(number), BinaryTreeCounter) for number in range(3))
    ends = transform(name, end=None)
    ends.steps = replace(ends.steps, end=ends.steps.first + windows)
    ends._noise = made._noise
    assert rows == expected(name, ends, events)


def test_rows_of_lists_and_arrow_lists_are_as_texts_with_separators():
    events = random_events("several categories", random.Random(2), 100)
    made = transform("several categories")
    wanted = expected("several categories", made, events)
    lists = [beam.Row(user=u, item=i.split("|"), time=Timestamp(micros=t), stream=s) for u, i, t, s in events]
    _, items, times, streams = zip(*events, strict=True)
    columns = {"item": pa.array([i.split("|") for i in items]), "time": pa.array(times, pa.timestamp("us"))}
    columns |= {"stream": pa.array(streams)}
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))  # without a user
    assert sorted(run_bounded("fn_api", [batch], made).elements("rows")) == wanted
    assert sorted(run_bounded("fn_api", lists, made).elements("rows")) == wanted


@given(st.lists(st.lists(st.sampled_from([*NAMES, "x", ""]), max_size=6), max_size=8), st.integers(1, 4))
def test_categories_of_an_event_are_its_first_ones_each_once(rows, limit):
    found = Categories(domain=workloads.COMMON["domain"], streams=("",), limit=limit, separator="|")
    row, position, _ = found.of_lists(pa.array(rows, pa.list_(pa.string())))
    wanted = [[c for c in dict.fromkeys(names) if c in NAMES][:limit] for names in rows]
    assert list(zip(row.tolist(), [found.domain[p] for p in position.tolist()], strict=True)) == [
        (i, name) for i, names in enumerate(wanted) for name in names
    ]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 5)), max_size=40),
    st.integers(1, 4),
    st.randoms(),
)
def test_what_is_left_of_a_person_depends_on_that_person_alone(rows, limit, chance):
    def kept(some):
        columns = np.array(some, np.int64).reshape(-1, 3)
        chosen, places = first_rows(
            columns[:, 0].astype(np.uint64), columns[:, 1].astype(np.uint64), columns[:, 2], limit
        )
        return sorted((*some[row], place) for row, place in zip(chosen.tolist(), places.tolist(), strict=True))

    together = kept(rows)
    shuffled = list(rows)
    chance.shuffle(shuffled)
    assert kept(shuffled) == together
    assert together == sorted(row for user in range(4) for row in kept([r for r in rows if r[0] == user]))


def test_an_older_word_for_a_person_has_the_same_noise():
    with pytest.warns(FutureWarning, match='unit "user" is called "person" now'):
        older = transform("people", unit="user")
    assert older.unit == "person"
    assert older._noise().words(1).tolist() == transform("people")._noise().words(1).tolist()
    assert older.guarantee == transform("people").guarantee


def test_the_key_and_everything_public_decide_the_noise():
    events = random_events("plain", random.Random(1), 100)
    rows = [r.estimate for r in expected("plain", transform("plain"), events)]
    other = transform("plain", noise=KeyedNoise(KEY + b"!"))
    assert [r.estimate for r in expected("plain", other, events)] != rows
    for change in ({"allowed_lateness": 1}, {"separator": "+"}, {"beta": 0.06}):
        changed = transform("plain", **change)
        assert [r.estimate for r in expected("plain", changed, events)] != rows


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"domain": ["a"]}, "domain must be a Domain, got list"),
        ({"streams": "north"}, "streams must be distinct names, at least one, got 'north'"),
        ({"categories_per_row": 7}, "categories_per_row must be <= 6, got 7"),
        ({"separator": ""}, "separator must be a text, at least one character, got ''"),
        ({"unit": "people"}, "unit must be one of event, person, got 'people'"),
        ({"unit": "person"}, "max_contributions must be given when the unit is a person"),
        ({"max_contributions": 3}, "max_contributions must not be given when the unit is an event"),
        ({"max_per_window": 3}, "max_per_window must not be given when the unit is an event"),
        ({"unit": "person", "max_contributions": 65_536}, "max_contributions must be <= 65535, got 65536"),
        (
            {"end": START},
            "end must leave room for one window after start, got 1970-01-01T00:16:40Z to 1970-01-01T00:16:40Z",
        ),
        ({"queries": "max"}, "queries must be a tuple of at least one query"),
        ({"queries": ()}, "queries must be a tuple of at least one query"),
        ({"queries": ("max", "max")}, "queries must be distinct, got max, max"),
        ({"queries": ("mode",)}, "queries must be among histogram, max, min, median, quantile:Q, top:K, got 'mode'"),
        ({"queries": ("top:x",)}, "queries must be among histogram, max, min, median, quantile:Q, top:K, got 'top:x'"),
        ({"queries": ("top:7",)}, "top:K must have K from 1 to 6, the number of categories, got top:7"),
        ({"queries": ("quantile:2",)}, "quantile:Q must have Q in (0, 1], got quantile:2"),
        ({"neighbouring": "any"}, "neighbouring must be one of add_remove, replace_one, got 'any'"),
        ({"restartable": 1}, "restartable must be true, false or None, got int"),
        (
            {"method": "best"},
            "method must be one of auto, direct_counters, anchored_counters, henzinger_sricharan_steiner, got 'best'",
        ),
    ],
)  # fmt: skip
def test_arguments_are_checked(changes, message):
    with pytest.raises((ValueError, TypeError), match=f"^{re.escape(message)}$"):
        transform("plain", **changes)


def test_thresholds_are_checked():
    with pytest.raises(ValueError, match=r"^thresholds must name every category of the domain, and no other$"):
        transform("flags", thresholds={"cat": 3})
    with pytest.raises(ValueError, match=r"^thresholds must be >= 1, got 0$"):
        transform("flags", thresholds=0)
    with pytest.raises(ValueError, match=r"^thresholds must be <= 2\*\*53, got 9007199254740993$"):
        transform("flags", thresholds=dict.fromkeys(NAMES, 2**53 + 1))


def test_input_that_cannot_be_published_safely_is_refused():
    bounded = beam.Pipeline() | beam.Create([("u", "cat")])
    with pytest.raises(ValueError, match=r"^end must be given when the input is bounded"):
        _ = bounded | transform("approximate", end=None)
    unbounded = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) | test_stream.TestStream()
    with pytest.raises(ValueError, match=r"^restartable must be true when the input is unbounded and delta is 0"):
        _ = unbounded | transform("plain")
    for restartable in (None, True):
        _ = unbounded | f"{restartable}" >> transform("plain", end=None, restartable=restartable)
    _ = unbounded | "Ends" >> transform("plain", restartable=True)
    assert isinstance(transform("plain", restartable=True).mechanism.counter, BinaryTreeCounter)


def test_the_guarantee_says_what_is_enforced():
    event, people = transform("several categories").guarantee, transform("people, streams").guarantee
    assert (event.unit, people.unit) == (EVENT, PERSON)
    assert (event.epsilon, event.delta, event.horizon) == (2.0, 0.0, 40)
    assert (people.epsilon, people.delta) == (2.0, 1e-6)
    assert "at most 2 categories of 6" in event.paragraph()
    assert (
        "first 7 categories count in the whole run, in all streams together, of which at most 2" in people.paragraph()
    )
    assert (event.neighbouring, people.neighbouring) == ("add_remove", "add_remove")
    assert transform("people").mechanism.rows_per_unit == 5


@some_quick("name", ALL, "several categories", "people")
def test_who_is_replaced_is_in_two_places(name):
    one, two = transform(name), transform(name, neighbouring="replace_one")
    assert two.guarantee.neighbouring == "replace_one"
    assert two.mechanism.counter.touched == 2 * one.mechanism.counter.touched
    assert two.mechanism.rows_per_unit == (one.mechanism.rows_per_unit or 1)  # an event may move to another window
    assert transform("several categories").mechanism.row_columns == 2
