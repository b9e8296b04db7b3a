"""Which contributions of a person count, paced or sampled: against plain Python, through the stages, in any parts."""

import itertools
import math
from collections import Counter, defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
from privstream.mechanisms.keyed_counts.dropped import DroppedShare
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.transforms.batches import NO_NAMES, CountBatch, HolderBatch, encode
from privstream.transforms.counts import contributions
from privstream.transforms.counts.contributions import CLOCK, CountContributions, ReleaseDropped, SampleContributions
from privstream.transforms.parameters import Bound
from privstream.transforms.people import bounding
from privstream.transforms.people.bounding import PARTS, parts_of_people
from privstream.transforms.timing.step_fn import STEP
from privstream.transforms.timing.steps import Steps

WINDOWS, LIMIT = 12, 5
STEPS = Steps.of(window=10.0, start=0.0, end=10.0 * WINDOWS)


def stage(sampled, seed=1, *, in_run=LIMIT, per_window=None, steps=STEPS, **given):
    given = {"bound": Bound(in_run, per_window, sampled)} | given
    made = SampleContributions if given["bound"].sampled else CountContributions
    return made(steps=steps, noise=SeededNoise(seed), timer_offset=2, key_shards=1, **given)


def held(pairs):
    """Return what people have in a step, from pairs of a person and an item."""
    users, items = (np.array(column, np.uint64) for column in zip(*sorted(pairs), strict=True))
    return HolderBatch(users, items, np.zeros(len(users), np.uint16), NO_NAMES)


def people(seed=5, number=24, items=9, kind="spread"):
    """Return what many people have, pairs by step: over all windows, each in one of them, or in a few."""
    rng, found = np.random.default_rng(seed), defaultdict(set)
    for person in range(number):
        windows = {"one": rng.integers(0, WINDOWS, 1), "few": rng.integers(0, WINDOWS, 3)}.get(kind, np.arange(WINDOWS))
        for window in windows.tolist():
            for item in rng.permutation(items)[: rng.integers(0, 6 if kind == "spread" else items)].tolist():
                found[window].add((person << 57, item))
    return dict(sorted(found.items()))


def _run(fn, steps, batches, log):
    """Handle some steps as a run that begins again finds its state."""
    renewed = 0 < steps[0] == fn.steps.first_of_period(steps[0])
    yield from fn.run(b"", steps, batches, fn.initial(b"") if renewed else fn.decode(log))


def sent(fn, given, parts=False):
    """Return what is sent on of steps, as a run sends it: counts by step and item, and the sums of all steps."""
    batches = {}
    for step, pairs in given.items():
        each, sampled = held(pairs), fn.bound.sampled
        some = [*parts_of_people(each)] if parts else [bytes([PARTS]) + encode(each)]
        batches[step] = some if sampled else [encode(each)]
    counts, new, sums, log = Counter(), Counter(), np.zeros(4, np.int64), []
    steps = range(fn.steps.first, fn.steps.end)
    groups = [steps] if fn.bound.sampled else [range(step, step + 1) for step in steps]
    for step, result in itertools.chain.from_iterable(_run(fn, group, batches, log) for group in groups):
        log = [*log, *filter(None, [result.change()])] if result.change else fn.encode(result.state)
        for element in result.outputs:
            if element[0] == CLOCK:
                sums += np.frombuffer(element[1][STEP.size :], "<i8")
                continue
            batch = CountBatch.read([element[1][STEP.size :]])
            for place, item in enumerate(batch.items.tolist()):
                counts[step, item] += int(batch.counts[place])
                new[step, item] += 0 if batch.new is None else int(batch.new[place])
    return counts, new, sums.tolist()


def by_person(fn, given):
    """Return how many contributions of each person count in each step: each person alone, who counts as among all."""
    found, total = {}, Counter()
    for person in sorted({person for pairs in given.values() for person, _ in pairs}):
        own = {step: some for step, pairs in given.items() if (some := {pair for pair in pairs if pair[0] == person})}
        counts, _, _ = sent(fn, own)
        total += counts
        found[person] = Counter()
        for (step, _), number in counts.items():
            found[person][step] += number
    assert total == sent(fn, given)[0]
    return found


@pytest.mark.parametrize("in_run", [1, 5, 212, 1_000])
@pytest.mark.parametrize("windows", [1, 2, 53, 365])
def test_the_pace_is_exact_and_leaves_something_for_the_last_window(in_run, windows):
    paced = Bound(in_run)
    allowed = [paced.allowed(number, windows) for number in range(1, windows + 1)]
    exact = [math.ceil(in_run * (windows + 3 * number) / (4 * windows) - 1e-9) for number in range(1, windows + 1)]
    assert allowed == exact
    assert allowed == sorted(allowed) and allowed[-1] == in_run


@pytest.mark.parametrize("kind", ["spread", "few"])
@pytest.mark.parametrize(("in_run", "per_window"), [(1, None), (5, 1), (7, 2), (1_000, 3)])
def test_paced_contributions_are_those_of_a_plain_reference(kind, in_run, per_window):
    given, bound = people(kind=kind), Bound(in_run, per_window)
    for person, counted in by_person(stage(False, bound=bound), given).items():
        used, expected = 0, Counter()
        for step, pairs in given.items():
            came = sum(1 for one, _ in pairs if one == person)
            left = math.ceil(in_run * (0.25 + 0.75 * (step + 1) / WINDOWS) - 1e-9) - used
            expected[step] = max(0, min(came, left, per_window or came))
            used += expected[step]
        assert counted == +expected
        assert counted.total() <= in_run


@pytest.mark.parametrize("kind", ["spread", "few"])
@pytest.mark.parametrize(("in_run", "per_window"), [(1, None), (5, 1), (7, 2), (1_000, 3)])
def test_sampled_contributions_are_as_many_as_there_may_be(kind, in_run, per_window):
    given = people(kind=kind)
    for person, counted in by_person(stage(True, in_run=in_run, per_window=per_window), given).items():
        came = [sum(1 for one, _ in pairs if one == person) for pairs in given.values()]
        assert counted.total() == min(in_run, sum(min(number, per_window or number) for number in came))
        assert max(counted.values(), default=0) <= (per_window or in_run)


def test_a_sample_is_taken_of_everybody_who_has_more_than_a_limit():
    in_run = {step: {(one << 57, step) for one in range(1, 10) if one > step} for step in range(9)}
    at_once = {0: {(one << 57, item) for one in range(1, 10) for item in range(one)}}
    for given, limit in ((in_run, {"in_run": 5}), (at_once, {"in_run": 5}), (at_once, {"in_run": 9, "per_window": 5})):
        counted = by_person(stage(True, **limit), given)
        assert [each.total() for each in counted.values()] == [min(one, 5) for one in range(1, 10)]


def test_each_window_keeps_the_same_part_of_a_sample_and_any_two_are_kept_together_as_often():
    """With a false alarm below 1e-9 for each window."""
    number, fn = 3_000, stage(True)
    given = {step: held([(person, 7) for person in range(number)]) for step in range(12)}
    kept = fn.choose(given, fn.initial(b"")).counts.reshape(12, number)
    assert (kept.sum(axis=0) == LIMIT).all()
    part, pair = LIMIT / WINDOWS, LIMIT * (LIMIT - 1) / WINDOWS / (WINDOWS - 1)
    assert np.abs(kept.mean(axis=1) - part).max() < 6.5 * math.sqrt(part * (1 - part) / number)
    together = [(kept[one] & kept[other]).mean() for one, other in itertools.combinations(range(WINDOWS), 2)]
    assert np.abs(np.array(together) - pair).max() < 7.5 * math.sqrt(pair / number)


def test_another_key_samples_others_and_the_same_key_the_same():
    found = [sent(stage(True, seed), people())[0] for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


OPTIONS = [{}, {"per_window": 1}, {"distinct": True}, {"lists": SimpleNamespace(listed=2, last_listed=9)}]


@pytest.mark.parametrize("limits", OPTIONS)
def test_people_in_parts_have_the_counts_that_they_have_together(limits, monkeypatch):
    fn = stage(True, dropped=DroppedShare(LIMIT, 0.1), **limits)
    whole = sent(fn, people())
    monkeypatch.setattr(contributions, "AT_ONCE", 1_500)
    monkeypatch.setattr(bounding, "PART_ROWS", 20)
    assert sent(fn, people()) == sent(fn, people(), parts=True) == whole


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("limits", [{}, {"per_window": 2}, {"distinct": True}])
@pytest.mark.parametrize("kind", ["spread", "few"])
@pytest.mark.parametrize("in_run", [1, 8])
def test_what_is_dropped_is_clipped_for_the_run_and_not_for_windows(sampled, limits, kind, in_run):
    made = DroppedShare(in_run, 0.1)
    given, fn = people(kind=kind, items=30), stage(sampled, in_run=in_run, dropped=made, **limits)
    counts, _, sums = sent(fn, given)
    expected = np.zeros(4, np.int64)
    for person, counted in by_person(fn, given).items():
        own = [(step, item) for step, pairs in given.items() for one, item in pairs if one == person]
        came = len({item for _, item in own} if "distinct" in limits and sampled else own)
        if "distinct" in limits and not sampled:
            continue  # an item that does not count comes again
        expected += made.of_people(np.array([came]), np.array([counted.total()]), np.zeros(1, np.int64))[0]
    assert sums[0] == counts.total()
    assert sums == expected.tolist() or ("distinct" in limits and not sampled)
    if kind != "spread" and in_run == 1:
        assert sums[3] > 0  # there are people who drop much


@pytest.mark.parametrize("sampled", [False, True])
def test_lists_have_so_many_different_keys_of_a_person_the_first_ones(sampled):
    for keys in (1, 2, 4):
        fn = stage(sampled, in_run=20, lists=SimpleNamespace(listed=keys, last_listed=9))
        for person in sorted({person for pairs in people().values() for person, _ in pairs}):
            own = {step: some for step, pairs in people().items() if (some := {p for p in pairs if p[0] == person})}
            counts, new, _ = sent(fn, own)
            early = {item for (step, item), number in counts.items() if number and step < 9}
            assert sum(new.values()) == min(keys, len(early))
            assert max(Counter(item for (_, item), number in new.items() if number).values(), default=1) == 1
            assert all(step < 9 for (step, _), number in new.items() if number)


@pytest.mark.parametrize("given", [{"lists": SimpleNamespace(listed=100, last_listed=9)}, {"distinct": True}])
def test_where_nobody_has_too_much_a_sample_is_as_if_counted_step_by_step(given):
    options = {"in_run": 1_000, "dropped": DroppedShare(1_000, 0.1)} | given
    for items in (9, 1_000):  # many of a person are the same, or hardly any
        one, other = (sent(stage(sampled, **options), people(items=items)) for sampled in (False, True))
        assert one[:2] == other[:2] and one[0]


def test_limits_start_afresh_with_a_period():
    steps = Steps.of(window=10.0, start=0.0, end=120.0, renew_every=60.0)
    for sampled in (False, True):
        fn, given = stage(sampled, steps=steps, in_run=3), people()
        found = by_person(fn, {step: pairs for step, pairs in given.items() if step >= 6})
        assert max(counted.total() for counted in found.values()) == 3
    of_both = by_person(fn, given).values()
    assert max(sum(number for step, number in counted.items() if step < 6) for counted in of_both) == 3
    assert max(counted.total() for counted in of_both) == 6


def test_the_share_is_released_at_its_readings_alone_each_time_what_came_until_then(monkeypatch):
    counted, made = Counter(), DroppedShare(3, 0.1, readings=2)
    monkeypatch.setattr(
        contributions, "counter", lambda name: SimpleNamespace(inc=lambda number: counted.update({name: number}))
    )
    fn = ReleaseDropped(steps=STEPS, timer_offset=3, mechanism=made, noise=SeededNoise(1), readings=(4, 12))
    state, seen = fn.initial(b""), []
    for step in range(WINDOWS):
        sums = np.array([step, 10, 0, 0], "<i8").tobytes()
        state = fn.restore(fn.snapshot(state))
        state, rows = fn.step(b"", step, [sums, sums], state)
        assert list(rows) == []
        seen.append(dict(counted))
    assert [one.get(contributions.READINGS, 0) for one in seen] == [0] * 3 + [1] * 8 + [2]
    first = made.release(1, np.array([12, 80, 0, 0]), SeededNoise(1))
    second = made.release(2, np.array([132, 240, 0, 0]), SeededNoise(1))
    assert [seen[3][name] for name in contributions.NUMBERS] == first.tolist()
    assert [counted[name] for name in contributions.NUMBERS] == second.tolist()
