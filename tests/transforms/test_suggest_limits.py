"""SuggestLimits, against plain Python: what is measured of each person, and what is refused."""

from collections import defaultdict

import apache_beam as beam
import numpy as np
import pyarrow as pa
import runner_harness
from privstream.mechanisms.limits.contributions import ContributionHistogram
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.transforms.batches import NO_NAMES, EventBatch, StepKey, encode
from privstream.transforms.questions.data_set_stages import SuggestLimits

RUN = {"window": 60, "start": 0, "end": 600}
MADE = ContributionHistogram(1.0)


def made(**given):
    return SuggestLimits(**RUN | {"noise": SeededNoise(1)} | given)


def events(seed=1, number=400):
    """Random events of few people: user, item, step."""
    rng = np.random.default_rng(seed)
    columns = (rng.integers(0, 12, number), rng.integers(0, 10, number))
    return list(zip(*columns, rng.integers(0, 10, number), strict=True))


def measured(found, *, shuffle=0):
    """Return the people in each cell, in an order by chance."""
    rng = np.random.default_rng(shuffle)
    groups = defaultdict(list)
    for place in rng.permutation(len(found)).tolist():
        user, item, step = found[place]
        groups[step, int(rng.integers(0, 2))].append((user, item))
    records = []
    for (step, _), rows in groups.items():
        users, items = (np.array(column, np.uint64) for column in zip(*rows, strict=True))
        batch = EventBatch(users, items, np.full(len(rows), step, np.int64), NO_NAMES, None)
        records.append((StepKey(step, 0).to_bytes(), encode(batch)))
    return made(epsilon=1.0).tally(records).tolist()


def reference(found):
    """The same, in plain Python."""
    numbers = [len({row[1:] for row in found if row[0] == user}) for user in {row[0] for row in found}]
    return MADE.tally(np.array(numbers)).tolist()


def test_people_are_measured_as_in_plain_python_in_any_order_and_with_copies():
    for seed in range(3):
        assert measured(events(), shuffle=seed) == reference(events())
    assert measured(events() * 20) == reference(events())


def test_a_person_changes_one_cell_by_one():
    million = [(99, place % 5, place % 10) for place in range(5_000)]
    assert np.abs(np.subtract(measured(events() + million), measured(events()))).sum() == 1


def batch_of(users, windows=10):
    """Return events of so many people, each with 3 items in each of some windows."""
    rows = [
        (f"u{user}", f"i{item}", 60.0 * window) for user in range(users) for window in range(windows) for item in "abc"
    ]
    user, item, time = zip(*rows, strict=True)
    times = pa.array([int(1e6 * each) for each in time], pa.timestamp("us", "UTC"))
    return pa.record_batch({"user": list(user), "item": list(item), "time": times})


def published(transform, batches):
    """Return rows, dead letters and counters."""
    found = runner_harness.run(
        "fn_api", lambda pipeline: pipeline | beam.Create(batches) | transform.with_dead_letters()
    )
    return sorted(found.elements("rows")), found.elements("dead"), found.counters


def test_rows_are_the_same_however_events_are_cut_ordered_and_shared_out():
    batch, rng = batch_of(120), np.random.default_rng(3)
    cut = [
        [batch.take(pa.array(order[at : at + size])) for at in range(0, batch.num_rows, size)]
        for order, size in ((rng.permutation(batch.num_rows), size) for size in (9_999, 500, 37))
    ]
    first, *others = [
        published(made(epsilon=2.0, shards=shards), batches)[0] for shards, batches in zip((1, 8, 3), cut, strict=True)
    ]
    assert all(rows == first for rows in others)


def test_what_could_not_be_used_is_set_aside_and_changes_nothing():
    batch = batch_of(60)
    times = pa.array([0, 0, None], pa.timestamp("us", "UTC"))
    columns = {"user": ["u1", None, "u2"], "item": ["", "i", "i"], "time": times}
    rows, letters, counters = published(made(), [pa.record_batch(columns), batch])
    assert rows == published(made(), [batch])[0]
    assert sorted(letter.reason.split()[0] for letter in letters) == ["item", "time", "user"]
    assert counters["privstream:events_usable"] == batch.num_rows
    assert counters["privstream:limits_published"] == len(rows)


def test_no_events_at_all_are_published_as_noise():
    assert published(made(), [])[0]
