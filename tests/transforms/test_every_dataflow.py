"""What the dataflows of questions with windows have in common: rows of the slow reference, whatever happens on the way.

A question has one entry in `DATAFLOWS`. What it alone does is tested in a file of its own.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import cardinality_workloads as sets
import counts_workloads as counts
import histogram_workloads as histograms
import pytest
import slow_histogram
import test_cardinality_transform as sets_tests
import test_continual_histogram as histograms_tests
import test_keyed_counts_transform as counts_tests
import test_numeric_quantiles_transform as quantiles
from apache_beam.testing import test_stream
from event_forms import SECOND, as_arrow, crowd_at, disordered, late_of, of_elements, run_bounded, stamped
from every_runner import of_stream, one_job
from grids import some_quick
from privstream.mechanisms.counters.trees import TreeCounter
from privstream.mechanisms.counters.unknown_horizon import UnknownHorizonCounter
from tiny_runner import dofns_of, drive


@dataclass(frozen=True)
class Dataflow:
    """A question with workloads.

    Attributes:
        transform: the transform of a configuration, with changes.
        events: random events for a configuration.
        expected: the rows that a transform must give of events, in `order`.
        start: where the run starts, in seconds.
        items: items that count; in sets, with which people enter and leave.
        order: by what rows are sorted, where not by all that they have.
    """

    transform: Callable[..., Any]
    events: Callable[..., list]
    expected: Callable[..., list]
    start: int
    items: tuple[str, str]
    order: Callable[[Any], Any] | None = None

    def check(self, results, made, events):
        """Check that the rows of a run are those of the reference, and return them."""
        rows = sorted(results.elements("rows"), key=self.order)
        assert rows == self.expected(made, events)
        return rows


def of_histogram(made, events):
    return (slow_histogram.histogram if hasattr(made, "questions") else slow_histogram.flags)(made, events)


DATAFLOWS = {
    "sets": Dataflow(sets.transform, sets.random_events, sets.expected, sets.START, ("in", "out")),
    "histograms": Dataflow(
        histograms.transform, histograms.random_events, of_histogram, histograms.START, ("dog", "eel")
    ),
    "counts": Dataflow(counts.transform, counts.random_events, counts.expected, counts.START, ("a", "b")),
}


def cases(**names):
    """Return pairs of a question and one of its configurations."""
    return [(question.replace("_", " "), name) for question, some in names.items() for name in some]


SILENT = cases(
    sets=["doors", "sessions"],
    histograms=["plain", "people", "flags"],
    counts=["found", "start", "start, public"],
)


@one_job(
    "sets",
    SILENT,
    *SILENT,
    elsewhere=cases(
        sets=["sessions"],
        histograms=["people", "flags"],
        counts=["found", "start, public"],
    ),
)
def test_windows_without_events(case):
    flow, made = DATAFLOWS[case[0]], DATAFLOWS[case[0]].transform(case[1])
    results = yield of_elements([], made)
    rows = flow.check(results, made, [])
    assert bool(rows) == (case not in [("counts", "found"), ("counts", "start")])


@some_quick(
    "case",
    cases(
        sets=["doors with time-out, limited"],
        histograms=["people, limited"],
        counts=[
            "found, more",
            "found, several windows",
            "start, few",
            "start, public",
        ],
    ),
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
        assert sorted(results.elements("rows"), key=flow.order) == wanted


@some_quick("seed", range(2), 0)
@pytest.mark.parametrize(
    "case", cases(sets=sets.CONFIGURATIONS, histograms=[*histograms.CONFIGURATIONS, *histograms.FLAGS]), ids=", ".join
)
def test_failed_bundles_and_moved_keys_change_nothing(case, seed):
    flow, chance = DATAFLOWS[case[0]], random.Random(seed)
    events = flow.events(case[1], chance, 200)
    made = flow.transform(case[1])
    chain = drive(made, events, chance, crashes=0.2, workers=2)
    assert sorted(chain.rows) == flow.expected(made, events)
    stages = chain.stages
    assert [stage.dead for stage in stages if stage.dead] == []
    left = {place for stage in stages for (_, place), values in stage.cells.states.items() if values}
    assert left <= {
        *("publish_cardinality_progress", "track_members_progress", "track_members_log"),
        *("publish_histogram_progress", "raise_flags_progress", "limit_rows_progress", "limit_rows_log"),
    }
    assert not any(stage.cells.timers for stage in stages)


@one_job(
    "late events",
    cases(
        sets=["doors"],
        histograms=["several categories", "people", "flags"],
        counts=["found, people", "start, public"],
    ),
    runners=["prism"],
)
def test_disorder_changes_nothing_and_late_events_are_dropped(case):
    question, name = case
    flow, chance = DATAFLOWS[question], random.Random(3)
    changes = {"delta": 1e-6} if question == "histograms" else {}
    made = flow.transform(name, allowed_lateness=5, **changes, **({"epsilon": 2.9} if "flags" in name else {}))
    start = flow.start
    events = [event for event in flow.events(name, chance, 150) if event[2] >= start * SECOND]
    one, other = flow.items
    late = [(f"late {i}", one, (start + 10) * SECOND + i) for i in range(30)]
    late += [(f"late {i}", other, (start + (75 if question != "counts" else 11)) * SECOND + i) for i in range(12)]
    results = yield of_stream(disordered(events, late, start, chance), made)
    assert flow.check(results, made, events)
    assert results.elements("dead") == []
    assert late_of(results) == len(late)


@one_job(
    "late events",
    itertools.product(
        cases(sets=["doors"], histograms=["people", "approximate"], counts=["found", "start"]),
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


@one_job(
    "sets without an end",
    cases(
        sets=["doors"],
        histograms=["plain", "anchored", "flags"],
    ),
    runners=["prism"],
)
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
        counter = made.mechanism.counter
        assert isinstance(counter, UnknownHorizonCounter)
        assert all(isinstance(counter.epoch(number), TreeCounter) for number in range(3))
    ends.steps = replace(ends.steps, end=ends.steps.first + windows)
    ends._noise = made._noise
    assert sorted(rows, key=flow.order) == flow.expected(ends, events)


@pytest.mark.parametrize(
    "tests",
    [
        (module.transform, module.test_rows_are_those_of_the_reference)
        for module in (sets_tests, histograms_tests, counts_tests, quantiles)
    ],
    ids=["sets", "histograms", "counts", "quantiles"],
)
def test_runners_in_other_processes_get_every_chain_of_stages(tests):
    """Those of a question's workloads that only FnApiRunner gets have no stages of their own."""
    transform, test = tests
    chains = {name: frozenset(dofns_of(transform(name))) for name in test.cases}
    assert {chains[name] for name in test.elsewhere} == {*chains.values()}
