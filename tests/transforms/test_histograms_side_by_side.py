"""Several histograms in one pipeline do not disturb each other, and processes do not either."""

import random
from pathlib import Path

import apache_beam as beam
import pytest
import runner_harness
import slow_histogram
from event_forms import as_rows
from every_runner import one_job
from histogram_workloads import random_events, transform


@one_job("histograms", ["all"])
def test_several_on_one_input_do_not_disturb_each_other(_):
    names = ("plain", "people", "flags", "approximate")
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "people, streams"])
def test_rows_are_the_same_with_two_processes(name, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(runner_harness.__file__).parent))  # for the workers
    events = random_events(name, random.Random(4), 300)
    made = transform(name)

    def build(pipeline):
        source = pipeline | beam.Create(as_rows(events))
        return source | made

    two = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
    assert sorted(runner_harness.run("fn_api", build, *two).elements()) == slow_histogram.histogram(made, events)
