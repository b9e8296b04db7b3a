"""Bad parameters are refused when the transform is made; bad events have a defined outcome, told without values."""

import logging
import resource

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
import runner_harness
import slow_reference
from apache_beam.utils.timestamp import Timestamp
from examples import ONE_OF_EACH, example
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import ShiftingHeavyHitters
from privstream.transforms.reading import elements
from workloads import COMMON, KEY, SECOND, START, transform

BASE = {**COMMON, "noise": KeyedNoise(KEY)}
USER, ITEM = "zaphod-beeblebrox", "pan-galactic-gargle-blaster"


def run(made, events, runner="fn_api") -> runner_harness.Results:
    def build(pipeline):
        return pipeline | "Events" >> beam.Create(events, reshuffle=False) | made.with_dead_letters()

    return runner_harness.run(runner, build)


def at(user, item, micros):
    return beam.Row(user=user, item=item, time=Timestamp(micros=micros))


def test_times_before_the_run_are_counted_and_impossible_ones_are_set_aside():
    made = ShiftingHeavyHitters(**BASE)
    good = [at(f"u{i}", "x", START * SECOND) for i in range(60)]
    before = [0, 1, START * SECOND - 1]
    impossible = [-1, -10 * SECOND, -(2**63), 2**63 - 1, 2**62, 9_000_000_000_000_000_000]
    results = run(made, [*good, *(at("u", "x", time) for time in [*before, *impossible])])
    assert results.elements("rows") == run(made, good).elements("rows") != []
    assert results.counters["privstream:events_outside_run"] == len(before)
    (reason,) = {letter.reason for letter in results.elements("dead")}
    assert reason == "time must be between 1970-01-01 and 2200-01-01"
    assert len(results.elements("dead")) == len(impossible)


@pytest.mark.slow
def test_two_million_events_of_one_person_in_one_window():
    made, noise = transform("plain"), np.random.default_rng(0)
    crowd = [(f"u{i}", "x", START * SECOND + 9_999_999) for i in range(60)]

    def batch(_):
        times = START * SECOND + noise.integers(0, 9_000_000, 50_000)
        items = pa.array([f"i{i}" for i in range(100)]).take(pa.array(noise.integers(0, 100, 50_000)))
        times = pa.array(times, pa.timestamp("us"))
        return pa.record_batch({"user": pa.repeat("glutton", 50_000), "item": items, "time": times})

    def build(pipeline):
        others = pipeline | "Crowd" >> beam.Create([at(*event) for event in crowd])
        return (pipeline | beam.Create(range(40)) | beam.Map(batch), others) | beam.Flatten() | made

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    results = runner_harness.run("fn_api", build)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    (found,) = results.elements()
    assert found.item == slow_reference.heavy_hitters(made, crowd)[0].item
    assert results.counters["privstream:events"] == 2_000_060 and grown < 2**30


PRIVATE = [
    pa.record_batch({"user": [USER], "item": [ITEM], "time": [ITEM]}),
    pa.record_batch({"user": [USER], "item": [ITEM.encode()], "time": [START * SECOND]}),
    pa.record_batch({"user": [USER], "item": [ITEM]}),
]


@pytest.mark.parametrize("batch", PRIVATE)
def test_reasons_and_logs_quote_nothing_private(batch, caplog):
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, elements.__name__)  # runs that failed in this process have silenced it
    (letter,) = run(transform("plain"), [batch]).elements("dead")
    said = caplog.text + letter.reason
    assert caplog.text.count(letter.reason) == 1
    assert USER not in said
    assert ITEM not in said
    assert KEY.decode() not in said


def test_logs_and_metrics_of_a_good_run_quote_nothing_private(caplog, capfd):
    caplog.set_level(logging.DEBUG)
    events = [at(f"{USER} {i}", ITEM, START * SECOND) for i in range(60)]
    results = run(transform("plain"), [(USER, None), *events, at(USER, ITEM, -5)])
    assert results.elements("rows")
    captured = capfd.readouterr()
    said = caplog.text + captured.out + captured.err + str(list(results.counters))
    assert USER not in said
    assert ITEM not in said
    assert KEY.decode() not in said


SECRET = "zaphod"
LOGGER = elements.__name__


@pytest.fixture(autouse=True)
def heard(caplog):
    """Hear what a command that ran before in this process has silenced."""
    caplog.set_level(logging.WARNING, LOGGER)
    elements._tell.cache_clear()


def lines_of(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_transform_tells_and_counts(name, caplog):
    made = example(name)

    def build(pipeline):
        hostile = pipeline | "Hostile" >> beam.Create([SECRET, (SECRET, None), 5, [None, ["?"]]], reshuffle=False)
        hostile |= beam.Map(lambda value: value).with_output_types(beam.typehints.Any)
        return hostile | made.with_dead_letters()

    results = runner_harness.run("fn_api", build)
    letters = results.elements("dead")
    assert len(letters) in (4, 8)
    assert len(lines_of(caplog)) == len({letter.reason for letter in letters})
    assert not any(SECRET in line for line in lines_of(caplog))
    counted = {n: c for n, c in results.counters.items() if n.startswith("privstream:events_malformed")}
    assert counted.pop("privstream:events_malformed") == sum(counted.values()) == 4
