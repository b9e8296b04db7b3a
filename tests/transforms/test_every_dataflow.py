"""What the dataflows of questions with windows have in common: rows of the slow reference, whatever happens on the way.

A question has one entry in `DATAFLOWS`. What it alone does is tested in a file of its own.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cardinality_workloads as sets
import counts_workloads as counts
import histogram_workloads as histograms
import pytest
import runner_harness
import slow_histogram
import slow_reference
import test_cardinality_transform as sets_tests
import test_continual_histogram as histograms_tests
import test_heavy_hitters as hitters_tests
import test_keyed_counts_transform as counts_tests
import test_numeric_quantiles_transform as quantiles
import test_range_transforms as points
import workloads as hitters
from apache_beam.testing import test_stream
from event_forms import SECOND, as_arrow, as_rows, crowd_at, disordered, late_of, of_elements, run_bounded, stamped
from every_runner import of_stream, one_job
from grids import some_quick
from privstream.mechanisms.noise.running import CompleteTreeNoise
from privstream.transforms.counts import transform as counts_stages
from privstream.transforms.timing import step_fn
from tiny_runner import END, Chain, dofns_of, drive, drive_at_once


@dataclass(frozen=True)
class Dataflow:
    """A question with workloads.

    Attributes:
        transform: the transform of a configuration, with changes.
        events: random events for a configuration.
        expected: the rows that a transform must give of events, sorted.
        start: where the run starts, in seconds.
        items: items that count; in sets, with which people enter and leave.
        user: names of people; of points, their numbers.
        few: how many events are enough, where these are less than usual.
    """

    transform: Callable[..., Any]
    events: Callable[..., list]
    expected: Callable[..., list]
    start: int
    items: tuple[str, str]
    user: Callable[[int], str] = "user {}".format
    few: tuple[int, ...] = ()

    def check(self, results, made, events):
        """Check that the rows of a run are those of the reference, and return them."""
        rows = sorted(results.elements("rows"))
        assert rows == self.expected(made, events)
        return rows


def of_histogram(made, events):
    return (slow_histogram.histogram if hasattr(made, "queries") else slow_histogram.flags)(made, events)


DATAFLOWS = {
    "sets": Dataflow(sets.transform, sets.random_events, sets.expected, sets.START, ("in", "out"), few=(250,)),
    "histograms": Dataflow(
        histograms.transform, histograms.random_events, of_histogram, histograms.START, ("dog", "eel"), few=(250,)
    ),
    "counts": Dataflow(counts.transform, counts.random_events, counts.expected, counts.START, ("a", "b")),
    "hitters": Dataflow(
        hitters.transform, hitters.random_events, slow_reference.heavy_hitters, hitters.START, ("a", "b")
    ),
    "points": Dataflow(
        points.transform, points.random_events, points.expected, points.START, ("in", "out"), "{}".format, (250,)
    ),
}


def cases(**names):
    """Return pairs of a question and one of its configurations."""
    return [(question.replace("_", " "), name) for question, some in names.items() for name in some]


SILENT = cases(
    sets=["doors", "sessions"],
    histograms=["plain", "approximate", "flags"],
    counts=["found", "start", "start, public"],
    points=["ranges", "predecessors"],
)


@one_job(
    "sets",
    SILENT,
    *SILENT,
    elsewhere=cases(
        sets=["sessions"], histograms=["approximate", "flags"], counts=["found", "start, public"], points=["ranges"]
    ),
)
def test_windows_without_events(case):
    flow, made = DATAFLOWS[case[0]], DATAFLOWS[case[0]].transform(case[1])
    results = yield of_elements([], made)
    rows = flow.check(results, made, [])
    assert bool(rows) == (case not in [("counts", "found"), ("counts", "start")])


@some_quick(
    "case",
    cases(sets=["doors with time-out, limited"], histograms=["approximate"], counts=["found, more", "start, public"]),
    ("counts", "found, more"),
)
def test_order_batches_and_shards_change_nothing(case):
    question, name = case
    flow = DATAFLOWS[question]
    events = flow.events(name, random.Random(5))
    wanted = flow.expected(flow.transform(name), events)
    for shards in (1, 7):
        random.Random(shards).shuffle(events)
        results = run_bounded("fn_api", as_arrow(events, 400), flow.transform(name, shards=shards))
        assert sorted(results.elements("rows")) == wanted


DRIVEN = cases(
    sets=["doors, used up", "sessions, limited", "sessions with ends", "doors with time-out, limited"],
    histograms=["plain", "approximate", "flags", "flags, each"],
    counts=[*counts.ONE_OF_EACH_CHAIN, "found, several windows", "start, few"],
    hitters=["plain", "many items", "known domain", "status", "status, known domain"],
    points=["ranges, two", "ranges gaussian", "predecessors, two", "predecessors dynamic"],
)
QUICK = cases(
    sets=["doors with time-out, limited"],
    histograms=["flags, each"],
    counts=["found, more", "start, public"],
    hitters=["plain", "status, known domain"],
    points=["ranges, two"],
)
LASTING = {"track_members_log", "limit_windows_log", "count_contributions_log"}
"""What remembers people until the end of a run."""


@some_quick("case", DRIVEN, *QUICK)
def test_failed_bundles_and_moved_keys_change_nothing(case, monkeypatch):
    """State is restored again and again, from what was written whole and from what was appended."""
    monkeypatch.setattr(step_fn, "LEAST_COMPACTION", 2000)
    monkeypatch.setattr(step_fn, "CACHED_KEYS", 2)
    monkeypatch.setattr(counts_stages, "REWRITTEN", 4)
    flow, chance = DATAFLOWS[case[0]], random.Random(0)
    made, events = flow.transform(case[1]), flow.events(case[1], chance, *flow.few)
    chain = drive(made, events, chance, crashes=0.2, workers=3)
    quiet = drive_at_once(made, events, random.Random(1))
    wanted = flow.expected(made, events)
    assert wanted
    assert sorted(counts.rows_in(made, chain.rows)) == sorted(counts.rows_in(made, quiet.rows)) == wanted
    assert [stage.counters for stage in chain.stages] == [stage.counters for stage in quiet.stages]
    assert [stage.dead for stage in chain.stages if stage.dead] == []
    left = {place for stage in chain.stages for (_, place), values in stage.cells.states.items() if values}
    assert {place for place in left if not place.endswith("_progress")} <= LASTING
    assert not any(stage.cells.timers for stage in chain.stages)


@some_quick("case", DRIVEN, *QUICK)
def test_late_events_are_dropped_and_change_nothing(case):
    flow, chance = DATAFLOWS[case[0]], random.Random(6)
    made, start = flow.transform(case[1], allowed_lateness=5), flow.start
    events = flow.events(case[1], chance, *flow.few)
    first = [event for event in events if event[2] < (start + 20) * SECOND]
    rest = [event for event in events if event[2] >= (start + 30) * SECOND]
    late = [(flow.user(20 + i), flow.items[0], (start + i % 20) * SECOND + i) for i in range(60)]
    chain = Chain(made, chance, crashes=0.1, workers=2)
    for some, now in ((first, 25), (late, 28)):
        chain.arrive(some)
        chain.advance((start + now) * SECOND)
    chain.arrive(rest)
    chain.advance(END)
    assert sorted(counts.rows_in(made, chain.rows)) == flow.expected(made, first + rest)
    assert chain.open.late == len(late)


@one_job(
    "late events",
    cases(
        sets=["doors"],
        histograms=["plain", "approximate", "flags"],
        counts=["found, people", "start, public"],
        hitters=["plain", "known domain", "status"],
        points=["ranges gaussian", "predecessors"],
    ),
    runners=["prism"],
)
def test_disorder_changes_nothing_and_late_events_are_dropped(case):
    question, name = case
    flow, chance = DATAFLOWS[question], random.Random(3)
    changes = {"delta": 1e-6} if question == "histograms" else {}
    made = flow.transform(name, allowed_lateness=5, **changes, **({"epsilon": 2.9} if "flags" in name else {}))
    start = flow.start
    events = [
        event
        for event in flow.events(name, chance, *(() if question == "hitters" else (150,)))
        if event[2] >= start * SECOND
    ]
    one, other = flow.items
    after = 11 if question in ("counts", "hitters") else 75
    late = [(flow.user(20 + i), one, (start + 10) * SECOND + i) for i in range(30)]
    late += [(flow.user(20 + i), other, (start + after) * SECOND + i) for i in range(12)]
    results = yield of_stream(disordered(events, late, start, chance), made)
    assert flow.check(results, made, events)
    assert results.elements("dead") == []
    assert late_of(results) == len(late)


@one_job(
    "late events",
    itertools.product(
        cases(sets=["doors"], histograms=["plain", "approximate"], counts=["found"], hitters=["plain"]),
        ["alone", "beside one"],
    ),
    runners=["prism"],
)
def test_one_persons_event_does_not_decide_whether_late_ones_count(case):
    (question, name), beside = case
    flow = DATAFLOWS[question]
    made = flow.transform(name, **({"delta": 1e-6} if question == "histograms" else {}))
    crowd = [(f"user {i}", flow.items[0], flow.start * SECOND + i) for i in range(60)]
    others = [] if beside == "alone" else [("somebody", flow.items[0], flow.start * SECOND)]
    results = yield of_stream(crowd_at(flow.start + 11, crowd, others), made)
    flow.check(results, made, others)
    assert late_of(results) == len(crowd)


@one_job("sets without an end", cases(sets=["doors"], histograms=["plain", "anchored", "flags"]), runners=["prism"])
def test_a_run_without_an_end(case):
    flow, name = DATAFLOWS[case[0]], case[1]
    made, ends = flow.transform(name, end=None), flow.transform(name, end=None)
    events = flow.events(name, random.Random(8), 100)
    source = test_stream.TestStream()
    for now, group in itertools.groupby(sorted(events, key=lambda e: e[2]), key=lambda e: e[2] // SECOND // 8 * 8):
        source = source.add_elements([stamped(event) for event in group]).advance_watermark_to(now)
    results = yield of_stream(source.advance_watermark_to_infinity(), made)
    windows = 42  # through the last event; how many more pass before the job ends differs by shard and runner
    rows = [row for row in results.elements("rows") if row.window_end <= flow.start + 10 * windows]
    if name in ("plain", "anchored"):
        assert all(isinstance(epoch, CompleteTreeNoise) for epoch in made.mechanism.partition.noise.epochs)
    ends.steps = replace(ends.steps, end=ends.steps.first + windows)
    ends.__class__ = type("WithNoise", (type(ends),), {"publishing_noise": made.publishing_noise})
    assert sorted(rows) == flow.expected(ends, events)


@pytest.mark.parametrize(
    "tests",
    [
        (module.transform, module.test_rows_are_those_of_the_reference)
        for module in (sets_tests, histograms_tests, counts_tests, hitters_tests, points, quantiles)
    ],
    ids=["sets", "histograms", "counts", "hitters", "points", "quantiles"],
)
def test_runners_in_other_processes_get_every_chain_of_stages(tests):
    """Those of a question's workloads that only FnApiRunner gets have no stages of their own."""
    transform, test = tests
    chains = {name: frozenset(dofns_of(transform(name))) for name in test.cases}
    assert {chains[name] for name in test.elsewhere} == {*chains.values()}


@pytest.mark.slow
def test_rows_are_the_same_with_two_processes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(runner_harness.__file__).parent))  # for the workers
    made = hitters.transform("known domain", shards=4)  # it has all stages that monitors have
    events = hitters.random_events("known domain", random.Random(5))
    two = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
    results = run_bounded("fn_api", as_rows(events), made, *two)
    assert sorted(results.elements("rows")) == slow_reference.heavy_hitters(made, events)
