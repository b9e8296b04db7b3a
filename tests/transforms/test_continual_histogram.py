"""Live histograms and flags: the rows of the slow reference on every runner, whatever happens on the way."""

import random
import time

import apache_beam as beam
import numpy as np
import pytest
import slow_histogram
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from event_forms import as_arrow, as_rows, checked, late_of, of_elements, run_bounded
from every_runner import one_job
from histogram_workloads import CONFIGURATIONS, FLAGS, random_events, transform
from privstream.transforms.timing.step_fn import StepFn
from tiny_runner import OpenWindows, call_all, dofns_of, started

ALL = [*CONFIGURATIONS, *FLAGS]


def expected(name, made, events):
    return (slow_histogram.flags if name in FLAGS else slow_histogram.histogram)(made, events)


@one_job("histograms", ALL, "extremes", "flags, each", elsewhere=["plain", "approximate", "flags", "flags, each"])
def test_rows_are_those_of_the_reference(name):
    events = random_events(name, random.Random(6))
    made = transform(name)
    results = yield of_elements(as_arrow(events) if name in ("plain", "approximate") else as_rows(events), made)
    rows = expected(name, made, events)
    assert len(rows) == 40 * (len(rows) // 40) > 0
    assert (results.elements("dead"), late_of(results)) == ([], 0)
    assert results.counters["privstream:events"] == len(events)
    assert sorted(results.elements("rows")) == rows
    assert all(stamp == row.window_end.micros - 1 for row, stamp in results.outputs["rows"])


@pytest.mark.prism
def test_slow_bundles_lose_no_batch(monkeypatch):
    """Prism would split such a bundle after a tenth of a second, and forget what one part wrote."""
    keep = StepFn.keep

    def slow(self, *arguments):
        time.sleep(0.15)
        keep(self, *arguments)

    monkeypatch.setattr(StepFn, "keep", slow)
    events, made = random_events("plain", random.Random(6), 40), transform("plain")
    assert sorted(run_bounded("prism", as_arrow(events, 1), made).elements("rows")) == expected("plain", made, events)


@pytest.mark.slow
def test_interesting_configurations_are_interesting():
    """Intervals end in the modes that have them, flags go up: else the tests above would say little."""
    for name in ALL:
        events = random_events(name, random.Random(6))
        made = transform(name)
        rows = expected(name, made, events)
        if name in FLAGS:
            raised = [row.raised for row in rows]
            assert 0.1 < np.mean(raised) < 0.9
        else:
            estimates = {row.estimate for row in rows if row.query == next(iter(made.queries))}
            assert len(estimates) > 3


def test_a_state_is_small_however_many_events_there_were():
    made = transform("plain")
    sizes = []
    for n in (10, 3000):
        fns = dofns_of(made)
        stage, closing = started(fns["RunningAnswers"], random.Random(1)), OpenWindows(fns["ToClock"], made.steps)
        closing.send(
            call_all(fns["CountPerStep"], checked(made, as_arrow(random_events("plain", random.Random(2), n))))
        )
        now = made.steps.decision_time(made.steps.end - 2, 2)
        stage.feed(closing.close(now))
        stage.advance(now)
        sizes.append(sum(len(v) for (_, p), values in stage.cells.states.items() for v in values if "log" in p))
    assert max(sizes) < 1500


def test_input_that_cannot_be_published_safely_is_refused():
    bounded = beam.Pipeline() | beam.Create([("u", "cat")])
    with pytest.raises(ValueError, match=r"^end must be given when the input is bounded"):
        _ = bounded | transform("approximate", end=None)
    unbounded = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) | test_stream.TestStream()
    _ = unbounded | transform("plain")
    _ = unbounded | "Endless" >> transform("plain", end=None)


@one_job("histograms", ["all"])
def test_several_on_one_input_do_not_disturb_each_other(_):
    names = ("plain", "flags", "approximate")
    events = random_events("plain", random.Random(3), 300)

    def build(pipeline):
        source = pipeline | beam.Create(as_rows(events))
        return {name: source | name.title() >> transform(name) for name in names} | {
            "again": source | "Again" >> transform("plain")
        }

    results = yield build
    for name in names:
        slow = slow_histogram.flags if name == "flags" else slow_histogram.histogram
        assert sorted(results.elements(name)) == slow(transform(name), events)
    assert sorted(results.elements("again")) == slow_histogram.histogram(transform("plain"), events)
