"""What is set aside is told in the log, without values, and not too often."""

import logging
from collections import Counter

import apache_beam as beam
import pytest
import runner_harness
from apache_beam.transforms.window import TimestampedValue
from examples import ONE_OF_EACH, example, with_inputs
from privstream.transforms.events import dead_letters
from privstream.transforms.events.dead_letters import SetAsideLog

SECRET = "zaphod"
LOGGER = dead_letters.__name__


@pytest.fixture(autouse=True)
def heard(caplog):
    """Hear what a command that ran before in this process has silenced."""
    caplog.set_level(logging.WARNING, LOGGER)


def lines_of(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def test_the_first_line_comes_at_once_and_others_once_a_minute(caplog):
    now = [0.0]
    log = SetAsideLog(clock=lambda: now[0])
    log.read(10)
    log.add(Counter({"item must not be null": 2}))
    for _ in range(3):
        now[0] += 10
        log.read(1_000)
        log.add(Counter({"item must not be null": 500, "user must not be empty": 1}))
    assert len(lines_of(caplog)) == 1
    now[0] += 31
    log.add(Counter({"late": 1}))
    now[0] += 1
    log.add(Counter({"late": 7}))
    log.flush()
    log.flush()
    end = "; with_dead_letters() gives them"
    assert lines_of(caplog) == [
        f"privstream: 2 of 10 records could not be used: 2 because item must not be null{end}",
        "privstream: 1,504 of 3,000 records could not be used: 1,500 because item must not be null, "
        f"3 because user must not be empty, 1 because late{end}",
        f"privstream: 7 records could not be used: 7 because late{end}",
    ]
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def test_what_one_pipeline_has_read_is_not_counted_for_the_next(caplog):
    log = SetAsideLog()
    log.read(1_000)
    log.flush()
    log.read(10)
    log.add(Counter({"user must not be empty": 3}))
    assert "privstream: 3 of 10 records could not be used" in lines_of(caplog)[0]


def test_few_reasons_are_named(caplog):
    log = SetAsideLog()
    log.add(Counter({f"reason {i}": 100 - i for i in range(20)}))
    (line,) = lines_of(caplog)
    assert "96 because reason 4, 1,320 for other reasons" in line


@pytest.fixture
def fresh(monkeypatch):
    """Start with a log that has written nothing."""
    log = dead_letters.LOG
    log.flush()
    monkeypatch.setattr(log, "_last", None)
    monkeypatch.setattr(log, "_read", 0)


@pytest.mark.parametrize("runner", ["fn_api", pytest.param("prism", marks=pytest.mark.prism)])
def test_a_pipeline_that_nothing_comes_of_says_why(runner, fresh, caplog):
    made = example("heavy hitters by clock")
    start = made.steps.first * made.steps.size / 1e6
    good = TimestampedValue((SECRET, SECRET), start)

    def build(pipeline):
        bad = pipeline | "Bad" >> beam.Create([(f"{SECRET}{i}", SECRET) for i in range(1500)], reshuffle=False)
        one = pipeline | "Good" >> beam.Create([good], reshuffle=False) | beam.Map(stamped)
        return (bad, one) | beam.Flatten() | made

    results = runner_harness.run(runner, build)
    assert results.elements() == []
    assert (
        results.counters["privstream:events_malformed"] == results.counters["privstream:events_malformed_time_missing"]
    )
    told = lines_of(caplog)
    assert 1 <= len(told) <= 3
    assert sum(int(line.split()[1].replace(",", "")) for line in told) == 1500
    assert "because event must have a timestamp" in told[0]
    assert not any(SECRET in line for line in told)


def stamped(value):
    return value


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_transform_tells_and_counts(name, fresh, caplog):
    made = example(name)

    def build(pipeline):
        _, given = with_inputs(made)
        hostile = pipeline | "Hostile" >> beam.Create([SECRET, (SECRET, None), 5, [None, ["?"]]], reshuffle=False)
        hostile |= beam.Map(stamped).with_output_types(beam.typehints.Any)
        return (dict.fromkeys(given, hostile) if isinstance(given, dict) else hostile) | made.with_dead_letters()

    results = runner_harness.run("fn_api", build)
    letters = results.elements("dead")
    assert len(letters) in (4, 8)
    assert sum(int(line.split()[1]) for line in lines_of(caplog)) == len(letters)
    assert not any(SECRET in line for line in lines_of(caplog))
    for kind in ("events", "queries"):
        counted = {n: c for n, c in results.counters.items() if n.startswith(f"privstream:{kind}_malformed")}
        whole = counted.pop(f"privstream:{kind}_malformed", 0)
        assert whole == sum(counted.values())
        assert whole == (4 if kind == "events" or len(letters) == 8 else 0)
