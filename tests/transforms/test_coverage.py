"""What counts of the data: which limits are named, and what the counters say that they leave out."""

from collections import Counter

import apache_beam as beam
import pytest
from apache_beam.utils.timestamp import Timestamp
from event_forms import as_rows, run_bounded
from examples import START, example

SECOND = 1_000_000


def counted(made: beam.PTransform, rows: list[beam.Row]) -> Counter[str]:
    results = run_bounded("fn_api", rows, made)
    return Counter({name.partition(":")[2]: number for name, number in results.counters.items()})


def test_histograms_say_how_much_was_left_out():
    events = [(f"p{i}", "19"[i % 2], (START + i) * SECOND) for i in range(12)]
    told = counted(example("histogram"), as_rows([*events, ("p", "1", 5)]))
    assert (told["events_usable"], told["events_outside_domain"], told["events_outside_run"]) == (6, 6, 1)


@pytest.mark.slow
def test_sums_say_how_much_of_them_was_left_out():
    """A person's 400 counts as 100; of two who have 80 twice for an item, 160 counts as 100: 420 of 820 are lost."""
    paid = [("p", 400, 0), ("q", 80, 1), ("q", 80, 2), ("r", 80, 3), ("r", 80, 4), ("s", 100, 5), ("p", 900, -9)]
    rows = [beam.Row(user=u, item="1", value=v, time=Timestamp(START + t)) for u, v, t in paid]
    for name, lost in (("counts", 300 + 2 * 60), ("counts of events", 300)):
        told = counted(example(name, max_value=100), rows)
        assert (told["sums_before_limit"], told["sums_over_limit"]) == (8_200, 10 * lost)
        assert told["values_clipped"] == 1


def test_quantiles_say_how_much_was_left_out():
    rows = [beam.Row(user="p", value=1.0 + i % 5, time=Timestamp(START + i)) for i in range(20)]
    rows += [beam.Row(user="p", value=99.0, time=Timestamp(time)) for time in (START + 15, 5)]
    told = counted(example("quantiles", max_contributions=1), rows)
    assert (told["values_before_limit"], told["values_over_limit"]) == (21, 19)
    assert told["values_clipped"] == 1, "what is outside of the run is not clipped"
    assert (told["contributions_before_limit"], told["contributions_over_limit"]) == (2, 1)


def test_sets_say_how_much_was_left_out():
    events = [("p", "12"[i % 2], (START + 10 * i) * SECOND) for i in range(6)]
    made = example("cardinality", timeout=None, enter_values=("1",), max_contributions=2, end=START + 60)
    told = counted(made, as_rows(events))
    assert (told["entries_before_limit"], told["entries_over_limit"]) == (3, 3)


def test_queries_say_how_much_was_left_out():
    told = counted(example("queries"), as_rows([("p", "1", 0), ("p", "1", 0), ("p", "2", 0), ("q", "3", 0)]))
    assert (told["records_before_limit"], told["records_over_limit"]) == (3, 1)
