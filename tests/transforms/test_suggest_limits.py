"""SuggestLimits, against plain Python: what is measured of each person, and what is refused."""

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.transforms.batches import EventBatch, Names, StepKey, encode
from privstream.transforms.counters import counted
from privstream.transforms.events.event_fields import DeadLetter
from privstream.transforms.limits import measuring
from privstream.transforms.limits.measuring import MeasurePeople
from privstream.transforms.limits.suggest_limits import MEASURES, SuggestLimits

RUN = {"window": 60, "start": 0, "windows": 10}
STREAM = ("a", "b")


def made(**given):
    return SuggestLimits(**RUN | {"noise": SeededNoise(1)} | given)


def events(seed=1, number=400):
    """Random events of few people: user, item, stream, step, value."""
    rng = np.random.default_rng(seed)
    columns = (rng.integers(0, 12, number), rng.integers(0, 5, number), rng.integers(0, 2, number))
    return list(zip(*columns, rng.integers(0, 10, number), rng.integers(-3, 9, number), strict=True))


def measured(transform, found, *, shuffle=0, added_up=True):
    """Return the people in each cell by measure, through the stage, in an order by chance."""
    rng = np.random.default_rng(shuffle)
    groups = defaultdict(list)
    for place in rng.permutation(len(found)).tolist():
        user, item, stream, step, value = found[place]
        groups[STREAM[stream], step, int(rng.integers(0, 2))].append((user, item, value))
    records = []
    for (stream, step, _), rows in groups.items():
        users, items, values = (np.array(column) for column in zip(*rows, strict=True))
        times = np.full(len(rows), step, np.int64)
        batch = EventBatch(
            users.astype(np.uint64), items.astype(np.uint64), times, Names.none(), values.astype(np.float64)
        )
        records.append((StepKey(stream, step, 0).to_bytes(), encode(batch)))
    grids = transform.mechanism.grids
    counts = MeasurePeople(grids, SeededNoise(2), added_up=added_up).count(records)
    parts = np.split(counts, np.cumsum([grid.cells for grid in grids])[:-1])
    return {grid.name: part for grid, part in zip(grids, parts, strict=True)}


def reference(transform, found):
    """The same but for values, in plain Python."""
    numbers = defaultdict(list)
    for user in {row[0] for row in found}:
        own = {row[1:4] for row in found if row[0] == user}  # item, stream, step
        numbers["contributions"].append(len(own))
        numbers["windows"].append(len({row[1:] for row in own}))
        numbers["streams"].append(len({row[1] for row in own}))
        numbers["items_per_window"].append(max(len({o[0] for o in own if o[1:] == row[1:]}) for row in own))
        numbers["windows_per_item"].append(max(len({o[2] for o in own if o[:2] == row[:2]}) for row in own))
    return {
        grid.name: grid.tally(np.array(numbers[grid.name]))
        for grid in transform.mechanism.grids
        if grid.name in numbers
    }


@pytest.mark.parametrize("question", ["counts", "top-k"])
def test_people_are_measured_as_in_plain_python(question):
    transform = made(question=question, streams=STREAM, values=True)
    found = measured(transform, events())
    expected = reference(transform, events())
    assert set(found) == set(expected) | {"values"}
    for name, cells in expected.items():
        assert found[name].tolist() == cells.tolist(), name
    assert found["values"].sum() == 12


@pytest.mark.parametrize("added_up", [True, False])
def test_the_order_of_events_decides_nothing(added_up):
    transform = made(streams=STREAM, values=True)
    one, other = (measured(transform, events(), shuffle=seed, added_up=added_up) for seed in (1, 2))
    assert {name: cells.tolist() for name, cells in one.items()} == {n: c.tolist() for n, c in other.items()}


@pytest.mark.parametrize("added_up", [True, False])
def test_a_person_changes_one_cell_of_each_distribution(added_up):
    transform = made(streams=STREAM, values=True)
    found = events()
    million = [(99, place % 5, place % 2, place % 10, 10**9) for place in range(5_000)]
    without, more = (measured(transform, rows, added_up=added_up) for rows in (found, found + million))
    for name, cells in without.items():
        assert np.abs(more[name] - cells).sum() == 1, name


@pytest.mark.parametrize("added_up", [True, False])
def test_memory_is_bounded_and_decides_nothing(added_up, monkeypatch):
    transform = made(streams=STREAM, values=True)
    at_once = measured(transform, events(), added_up=added_up)
    monkeypatch.setattr(measuring, "AT_ONCE", 7)
    largest = []
    joined = measuring.Contributions.join
    monkeypatch.setattr(
        measuring.Contributions, "join", lambda parts: largest.append(len(joined(parts).steps)) or joined(parts)
    )
    bounded = measured(transform, events() * 20, added_up=added_up)
    in_parts = measured(transform, events(), added_up=added_up)
    assert max(largest) < 3 * len({row[:4] for row in events()})  # of 8,000 events
    names = set(at_once) - ({"values"} if added_up else set())
    assert {name: bounded[name].tolist() for name in names} == {name: at_once[name].tolist() for name in names}
    assert {n: c.tolist() for n, c in in_parts.items()} == {n: c.tolist() for n, c in at_once.items()}


def test_copies_of_events_change_nothing_but_sums():
    transform = made(streams=STREAM, values=True)
    found = events()
    one, twice = (measured(transform, rows, added_up=False) for rows in (found, found * 2))
    assert {name: cells.tolist() for name, cells in one.items()} == {n: c.tolist() for n, c in twice.items()}


def batch_of(users, windows=10):
    """Return events of so many people, each with 3 items in each of some windows."""
    rows = [
        (f"u{user}", f"i{item}", 60.0 * window) for user in range(users) for window in range(windows) for item in "abc"
    ]
    user, item, time = zip(*rows, strict=True)
    times = pa.array([int(1e6 * each) for each in time], pa.timestamp("us", "UTC"))
    return pa.record_batch({"user": list(user), "item": list(item), "time": times, "value": [2.0] * len(rows)})


def rows_of(transform, batches):
    """Return what is published, of events that can all be used."""
    aside = []
    rows = transform.publish(batches, aside.append)
    assert not aside
    return rows


class TestPublished:
    def test_what_most_people_have_is_suggested(self):
        rows = rows_of(made(epsilon=2.0, for_epsilon=8.0), [batch_of(300)])
        (row,) = [row for row in rows if row.suggested]
        assert row.measure == "contributions"
        assert row.above < 30 <= row.limit
        assert {row.measure for row in rows} == set(MEASURES["counts"])

    def test_of_nobody_there_are_rows_and_no_suggestions(self):
        rows = rows_of(made(), [batch_of(1).slice(0, 0)])
        assert [row.measure for row in rows] == list(MEASURES["counts"])
        assert not any(row.suggested for row in rows)
        assert all(row.kept is None and row.people_lower == 0 for row in rows)

    def test_few_people_cannot_be_seen(self):
        rows = rows_of(made(), [batch_of(20)])
        assert not any(row.suggested for row in rows)

    def test_quantiles_need_no_item(self):
        batch = batch_of(300).drop_columns(["item"])
        rows = rows_of(made(question="quantiles", epsilon=2.0), [batch])
        suggested = " ".join(row.suggested for row in rows if row.suggested).split()
        assert suggested[::2] == ["--max_contributions", "--low", "--high"]
        assert float(suggested[3]) < 2 <= float(suggested[5])

    @pytest.mark.parametrize("question", ["counts", "quantiles"])
    def test_rows_are_the_same_however_events_are_cut_ordered_and_shared_out(self, question):
        batch, rng = batch_of(120), np.random.default_rng(3)
        cut = [
            [batch.take(pa.array(order[at : at + size])) for at in range(0, batch.num_rows, size)]
            for order, size in ((rng.permutation(batch.num_rows), size) for size in (9_999, 500, 37))
        ]
        first, *others = [
            rows_of(made(question=question, epsilon=2.0, shards=shards), batches)
            for shards, batches in zip((1, 8, 3), cut, strict=True)
        ]
        assert all(rows == first for rows in others)

    def test_what_cannot_be_used_is_set_aside_and_changes_nothing(self):
        batch = batch_of(60)
        times = pa.array([0, 0, None], pa.timestamp("us", "UTC"))
        columns = {"user": ["u1", None, "u2"], "item": ["", "i", "i"], "time": times, "value": [2.0] * 3}
        letters: list[DeadLetter] = []
        unread = DeadLetter("a line is damaged", "a file", "line 3", "?")
        with counted() as counters:
            rows = made().publish([unread, pa.record_batch(columns), batch], letters.append)
        assert rows == rows_of(made(), [batch])
        assert letters[0] == unread
        assert [letter.reason.split()[0] for letter in letters[1:]] == ["item", "user", "time"]
        assert (counters["events"], counters["events_usable"]) == (batch.num_rows,) * 2
        assert counters["events_malformed"] == 3
        assert counters["limits_published"] == len(rows)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"windows": None}, "end or windows must be given"),
        ({"end": 600}, "windows must not be given with end"),
        ({"windows": 0}, "windows must be >= 1, got 0"),
        ({"epsilon": 0}, "epsilon must be finite and > 0, got 0"),
        ({"for_epsilon": float("nan")}, "for_epsilon must be finite and > 0, got nan"),
        ({"delta": 0}, r"delta must be in \(0, 1\), got 0"),
        ({"delta": 0.5}, "delta must be <= 0.1"),
        ({"items": 0}, "items must be >= 1, got 0"),
        ({"question": "alerts"}, "question must be one of counts, heavy-hitters, top-k, quantiles, got 'alerts'"),
        ({"shards": 0}, "shards must be >= 1, got 0"),
        ({"streams": ("a", "a")}, "streams must be distinct names"),
    ],
)
def test_mistakes_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        made(**given)


def test_the_guarantee_says_whose_it_is():
    found = made(neighbouring="replace_one").guarantee
    assert (found.epsilon, found.delta, found.neighbouring) == (0.05, 0.0, "replace_one")
    assert str(found.unit) == "one person over the whole run"
    assert "2 n / 2^64" in " ".join(found.caveats).replace("2 2n", "2 n")


@pytest.mark.parametrize("question", MEASURES)
def test_no_grid_has_numbers_that_nobody_can_have(question):
    for grid in made(question=question, streams=STREAM).mechanism.grids:
        most = {"windows": 20, "windows_per_item": 10, "streams": 2}.get(grid.name)
        assert most is None or grid.edges[-1] == most
