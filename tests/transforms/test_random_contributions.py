"""Random contributions of the whole run: any of a person's as likely as another, by that person's events alone."""

from unittest.mock import Mock

import numpy as np
import pytest
from event_forms import as_rows, run_bounded
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.transforms import Domain, KeyedCounts
from privstream.transforms.batches import HolderBatch, InStreams, Names, StepKey, seal_encoded, sealed_key
from privstream.transforms.counts import random_contributions
from privstream.transforms.counts.contributions import CountContributions, PeopleLists, unsealed_counts
from privstream.transforms.counts.random_contributions import CountRandomContributions
from privstream.transforms.events import bounding
from privstream.transforms.events.bounding import PartOfPeople, parts_of_people
from privstream.transforms.timing.keyed_state import Decoded, Progress
from privstream.transforms.timing.steps import Steps

WINDOWS, LIMIT = 20, 5


def stage(seed=1, **given):
    return CountRandomContributions(
        steps=Steps.of(window=10.0, start=0.0, windows=WINDOWS),
        noise=SeededNoise(seed),
        timer_offset=2,
        groups=1,
        key_shards=1,
        **{"contributions": LIMIT} | given,
    )


def kept_by(fn, given):
    """Return which rows of each step count, bool."""
    return [np.isin(np.arange(len(each.users)), each_of[1].rows) for each, each_of in
            zip(list(given.values()), fn.choose(dict(given)), strict=True)]  # fmt: skip


def held(pairs, streams=("",)):
    """Return what people have in a step, from pairs of a person and an item, in the first stream."""
    users, items = (np.array(column, np.uint64) for column in zip(*pairs, strict=True))
    batch = HolderBatch(users, items, np.zeros(len(users), np.uint16), Names.none())
    return InStreams(streams, np.array([0, *[len(users)] * len(streams)]), batch)


def test_each_window_keeps_the_same_part():
    """With a false alarm below 1e-9 for each window; those of first come keep all of the first five and no others."""
    people = 3_000
    chosen = kept_by(stage(), {step: held([(person, 7) for person in range(people)]) for step in range(WINDOWS)})
    kept = np.array(chosen)
    assert (kept.sum(axis=0) == LIMIT).all()
    part = LIMIT / WINDOWS
    assert np.abs(kept.sum(axis=1) / people - part).max() < 6.5 * np.sqrt(part * (1 - part) / people)


def test_two_windows_of_a_person_are_kept_together_as_often_as_any_two():
    kept = np.array(kept_by(stage(), {step: held([(person, 7) for person in range(3_000)]) for step in range(WINDOWS)}))
    together = (kept[0] & kept[1]).mean()
    expected = LIMIT / WINDOWS * (LIMIT - 1) / (WINDOWS - 1)
    assert abs(together - expected) < 6.5 * np.sqrt(expected / 3_000)


@pytest.mark.parametrize("limits", [{}, {"per_window": 2}, {"distinct": True}])
def test_what_counts_of_a_person_depends_on_nobody_else(limits):
    rng = np.random.default_rng(3)
    alone = {step: [(1, item) for item in rng.permutation(30)[: rng.integers(1, 6)].tolist()] for step in range(9)}
    others = {step: [(int(rng.integers(2, 9)), item) for item in range(30)] for step in range(9)}
    fn = stage(**limits)
    only = kept_by(fn, {step: held(some) for step, some in alone.items()})
    among = kept_by(fn, {step: held(others[step] + some) for step, some in alone.items()})
    for step in range(9):
        assert among[step][len(others[step]) :].tolist() == only[step].tolist()
    count = sum(rows.sum() for rows in only)
    assert count == LIMIT
    if "per_window" in limits:
        assert max(rows.sum() for rows in only) <= 2


def test_another_key_takes_other_ones_and_the_same_key_the_same():
    given = {step: held([(1, item) for item in range(3)]) for step in range(WINDOWS)}
    found = [np.concatenate(kept_by(stage(seed), given)).tolist() for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


def test_an_item_is_chosen_once_where_people_are_counted_since_the_start():
    kept = kept_by(stage(distinct=True), {step: held([(1, step // 2)]) for step in range(WINDOWS)})
    chosen = np.flatnonzero(np.concatenate(kept))
    assert len(chosen) == LIMIT
    assert (chosen % 2 == 0).all()


@pytest.mark.slow
def test_an_item_that_comes_again_and_again_is_as_likely_as_one_that_comes_once():
    """With a false alarm below 1e-9. Where windows had numbers of their own, one in three had what comes last."""
    people, noise = 300, SeededNoise(2)

    def counted(visits):
        transform = KeyedCounts(
            epsilon=2_000.0, window=10, start=0, windows=4, over="start", max_contributions=1, noise=noise,
            domain=Domain(("a", "b")),
        ).to_finish()  # fmt: skip
        rows = [(f"u{person}", item, window * 10_000_000, "") for person in range(people) for item, window in visits]
        found = run_bounded("fn_api", as_rows(rows), transform).elements("rows")
        return {row.item: row.count for row in found if row.window_start == 30}

    often = counted([("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 3)])
    assert often["a"] + often["b"] == people
    assert abs(often["a"] - people / 2) < 6.5 * np.sqrt(people / 4)
    assert often == counted([("a", 3), ("b", 3)])


def sent(fn, given):
    """Return what is sent on of steps, sealed."""
    decoded = Decoded(Progress(), fn.decode(b"", []))
    for step, each in given.items():
        decoded.add(step, seal_encoded(StepKey("", step, 1), each.to_bytes()))
    found = []
    for step, batches in fn.due(decoded, WINDOWS):
        result = fn.handle(b"", step, batches, decoded.state)
        decoded.state = result.state
        found += result.outputs
    assert decoded.progress.handled == (WINDOWS - 1 if isinstance(fn, CountRandomContributions) else max(given))
    return found


def many(seed=5, people=40, items=9):
    """Return what many people have in each step but some, each item once."""
    rng = np.random.default_rng(seed)
    pairs = {
        step: {(int(rng.integers(people)) << 58, int(rng.integers(items))) for _ in range(90)} for step in range(15)
    }
    return {step: held(sorted(some)) for step, some in pairs.items() if step % 7 != 3}


def without_counters(monkeypatch, fn):
    monkeypatch.setattr(fn, "limited", Mock())
    return fn


@pytest.mark.parametrize(
    "given",
    [
        {"lists": PeopleLists(3, 9)},
        {"newcomers": True},
        {"distinct": True},
        {"lists": PeopleLists(2, 20)},
    ],
)
def test_where_nobody_has_too_much_it_is_as_if_counted_step_by_step(given, monkeypatch):
    options = {"contributions": 1_000} | given
    at_once = without_counters(monkeypatch, stage(**options))
    one_by_one = without_counters(
        monkeypatch,
        CountContributions(
            steps=at_once.steps, noise=SeededNoise(1), timer_offset=2, groups=1, key_shards=1, **options
        ),
    )  # fmt: skip
    for items in (9, 1_000):  # many of a person are the same, or hardly any
        found = sent(at_once, many(items=items))
        assert found == sent(one_by_one, many(items=items))
        assert found


def test_lists_ask_for_hashes_of_those_people_alone_of_whom_first_rows_do_not_tell(monkeypatch):
    fn, asked = stage(contributions=100, lists=PeopleLists(2, 9)), []
    hashes = fn._pairs
    monkeypatch.setattr(fn, "_pairs", lambda held, rows: asked.extend(held.users[rows].tolist()) or hashes(held, rows))
    given = {
        0: held([(1, 7), (2, 7), (3, 7), (4, 7)]),
        1: held([(1, 8), (2, 7), (3, 8), (3, 9)]),  # 2 has one item twice, and 3 two others at once
        2: held([(1, 9), (2, 8)]),
        12: held([(2, 9), (4, 9)]),
    }
    marks = [chosen.new for _, chosen in fn.choose(dict(given))]
    assert set(asked) == {2, 3}
    assert [mark.tolist() for mark in (marks[0], marks[2])] == [[True] * 4, [False, True]]
    assert marks[1][:2].tolist() == [True, False] and marks[1][2:].sum() == 1
    assert marks[3] is None


@pytest.mark.parametrize("limits", [{}, {"per_window": 1}, {"distinct": True}, {"lists": PeopleLists(2, 9)}])
def test_people_in_parts_have_the_counts_that_they_have_together(limits, monkeypatch):
    fn = without_counters(monkeypatch, stage(**limits))
    whole = total(sent(fn, many()))
    monkeypatch.setattr(random_contributions, "AT_ONCE", 1_500)
    monkeypatch.setattr(bounding, "PART_ROWS", 20)
    parts = sent(fn, many())
    assert len(parts) == len(many())
    assert total(parts) == whole
    records = [
        seal_encoded(StepKey("", step, part.code), some.to_bytes())
        for step, each in many().items() for part, some in parts_of_people(each)
    ]  # fmt: skip
    assert len(records) > len(many())
    decoded = Decoded(Progress(), None)
    for record in records:
        decoded.add(sealed_key(record).step, record)
    found = [fn.handle(b"", step, batches, None).outputs for step, batches in fn.due(decoded, WINDOWS)]
    assert total(output for outputs in found for output in outputs) == whole


def total(outputs):
    """Return what was counted by step and item, and how many people are new or on lists."""
    found = {}
    for _, record in outputs:
        batch = unsealed_counts(record).batch
        new = [0] * len(batch.items) if batch.new is None else batch.new.tolist()
        for item, count, fresh in zip(batch.items.tolist(), batch.counts.tolist(), new, strict=True):
            before = found.get((sealed_key(record).step, item), (0, 0))
            found[sealed_key(record).step, item] = before[0] + count, before[1] + fresh
    return found


def test_parts_of_people_meet_where_one_is_in_the_other():
    users = np.array([0, 1 << 62, 2 << 62, 3 << 62, (1 << 64) - 1], np.uint64)
    assert PartOfPeople(0, 0).rows(users).tolist() == [0, 1, 2, 3, 4]
    assert PartOfPeople(2, 3).rows(users).tolist() == [3, 4]
    assert PartOfPeople.of_code(PartOfPeople(2, 3).code) == PartOfPeople(2, 3)
    assert PartOfPeople(2, 3).meets(PartOfPeople(1, 1))
    assert PartOfPeople(0, 0).meets(PartOfPeople(3, 5))
    assert not PartOfPeople(3, 1).meets(PartOfPeople(1, 1))


def test_periods_draw_by_themselves_which_item_counts():
    steps = Steps.of(window=10.0, start=0.0, end=200.0, renew_every=100.0)
    given = {step: held([(person, item) for person in range(200) for item in (1, 2)]) for step in (3, 4, 13)}
    fn = CountRandomContributions(
        steps=steps, noise=SeededNoise(1), timer_offset=2, groups=1, key_shards=1, contributions=1, distinct=True
    )
    draws = {step: fn._drawn(step, one, np.arange(400)) for step, one in given.items()}
    assert (draws[3] == draws[4]).all()
    assert not (draws[3] == draws[13]).any()
