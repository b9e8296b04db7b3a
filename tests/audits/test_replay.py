"""Record and replay: one person more moves what noise is drawn for by what is claimed at most, and nearly by that."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from privstream.mechanisms.keyed_counts import keyed_counts
from privstream.mechanisms.keyed_counts.calibration import Bounds, calibrate
from privstream.mechanisms.keyed_counts.dropped import DroppedShare
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.noise.discrete import DiscreteNoise
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.pipelines.audit.replay import RUN, RUNS, WORST, Pair, Sent, crowd, everything
from privstream.pipelines.model.catalogue import question
from privstream.transforms import Domain, KeyedCounts, NumericQuantiles
from privstream.transforms.batches import from_stream
from privstream.transforms.timing.steps import Steps

ENOUGH = 0.8
"""Part of a claim that the worst person must use, or the replay has not tried what it is about."""

CASES = [(word, name) for word, runs in RUNS.items() for name in runs]


def made(word, name, *, sampled=False, **changes):
    transform = question(word).transform_class(**RUN | RUNS[word].get(name, {}) | changes, noise=SeededNoise(3))
    return transform.over_files() if sampled else transform


def broken(pair):
    shown, _ = pair.replay()
    print(f"\n{shown.share(pair.transform.guarantee):.4f} of the claim; {shown}")
    return shown.faults(pair.transform.guarantee)


@pytest.mark.parametrize("sampled", [False, True], ids=["paced", "sampled"])
@pytest.mark.parametrize(("word", "name"), CASES)
def test_the_worst_person_uses_nearly_all_of_the_claim(word, name, sampled):
    transform = made(word, name, sampled=sampled)
    shown, _ = WORST[word](transform).replay()
    share = shown.share(transform.guarantee)
    print(f"\n{word}, {name}: measured {share:.4f} of the claim; {shown}")
    assert shown.faults(transform.guarantee) == []
    assert share >= ENOUGH


ITEMS = st.sampled_from("abcd")
CALM = settings(max_examples=6, deadline=None, suppress_health_check=[*HealthCheck])


@st.composite
def counts(draw):
    """Draw a small run of counts with two neighbours; the person comes in one period alone."""
    windows, public = draw(st.integers(1, 4)), draw(st.sampled_from(["all", "some", "none"]))
    periods = draw(st.sampled_from([1, 1, 2]))
    options = {"max_contributions": draw(st.integers(1, 7)), "delta": draw(st.sampled_from([1e-6, 1e-2]))}
    if draw(st.booleans()) and options["max_contributions"] > 1:
        options["max_per_window"] = draw(st.integers(1, options["max_contributions"] - 1))
    if public == "all":
        options |= {"domain": Domain(tuple("abcd")), "over": draw(st.sampled_from(["window", "start"]))}
        if options["over"] == "window":
            options["delta"] = draw(st.sampled_from([0.0, 1e-6, 1e-2]))
    elif public == "some":
        options["public_items"] = Domain(("a", "b"))
    if draw(st.booleans()):
        options["max_value"] = draw(st.integers(1, 4))
    if public != "all":
        options["min_people"] = draw(st.integers(1, 3))
    options |= {"end": 60 * windows * periods, "shards": draw(st.integers(1, 3))}
    if periods > 1:
        options["renew_every"] = 60 * windows
    transform = made("counts", "", sampled=draw(st.booleans()), **options)
    window, period = st.integers(0, windows * periods - 1), draw(st.integers(0, periods - 1))
    value = st.integers(-1, 9).map(float)
    person = st.sampled_from(["ann", "bob", "cem"])
    others = draw(st.lists(st.builds(Sent, person, ITEMS, window, value), max_size=30))
    others += crowd(draw(st.sampled_from([0, 10, 150])), "ab", draw(window))
    within = st.integers(period * windows, (period + 1) * windows - 1)
    own = draw(st.lists(st.builds(Sent, st.just("suspect"), ITEMS, within, value), min_size=1, max_size=20))
    random.Random(draw(st.integers(0, 99))).shuffle(others)
    return Pair(transform, others, own * draw(st.integers(1, 3)))


@CALM
@given(counts())
def test_no_person_moves_counts_by_more_than_is_claimed(pair):
    shown, rows = pair.replay()
    assert shown.faults(pair.transform.guarantee) == []
    public = {"a", "b"} if pair.transform.public_items is not None else set()
    known = public | {sent.item for sent in pair.others}
    if pair.transform.domain is None and pair.transform.mechanism.delta < 1e-4:
        found = [from_stream(row[1])["item"].to_pylist() if pair.transform.ended else [row.item] for row in rows]
        assert {item for items in found for item in items} <= known


@st.composite
def quantiles(draw):
    windows, most = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    options = {"max_contributions": most, "max_per_window": draw(st.integers(1, most)), "end": 60 * windows}
    options |= {"low": 0, "high": 8, "resolution": 4, "delta": draw(st.sampled_from([0.0, 1e-2]))}
    transform = made("quantiles", "", sampled=draw(st.booleans()), **options)
    value, window = st.integers(-1, 9).map(float), st.integers(0, windows - 1)
    others = draw(st.lists(st.builds(Sent, st.sampled_from(["ann", "bob"]), st.just(""), window, value), max_size=15))
    own = draw(st.lists(st.builds(Sent, st.just("suspect"), st.just(""), window, value), min_size=1, max_size=15))
    return Pair(transform, others, own * draw(st.integers(1, 2)))


@st.composite
def sets(draw):
    windows = draw(st.integers(1, 5))
    options = {"max_contributions": draw(st.integers(1, 5)), "delta": draw(st.sampled_from([0.0, 1e-2]))}
    options |= {"end": 60 * windows, "leave_values": ("out",), "timeout": draw(st.sampled_from([None, 60, 90]))}
    transform = made("cardinality", "", sampled=draw(st.booleans()), **options)
    move, window = st.sampled_from(["in", "out", "in"]), st.integers(0, windows - 1)
    others = draw(st.lists(st.builds(Sent, st.sampled_from(["ann", "bob"]), move, window), max_size=15))
    return Pair(
        transform, others, draw(st.lists(st.builds(Sent, st.just("suspect"), move, window), min_size=1, max_size=15))
    )


@CALM
@given(quantiles() | sets())
def test_no_person_moves_quantiles_or_sizes_of_sets_by_more_than_is_claimed(pair):
    assert broken(pair) == []


def bound_with(**more):
    """Return a property that is the bound of counts with larger limits."""
    right = KeyedCounts.bound

    def bound(self):
        found = right.fget(self)
        return replace(found, **{name: getattr(found, name) + extra for name, extra in more.items()})

    return property(bound)


def listed_pair():
    """Few people have some items, enough to be tested and too few to be found; the person has these, and found ones."""
    few, many = [f"few {number}" for number in range(32)], [f"many {number}" for number in range(25)]
    others = [Sent(f"another {number}", item, 0) for number in range(20) for item in few] + crowd(300, many, 0)
    own = [Sent("suspect", item, 0) for item in few]
    own += [Sent("suspect", item, window) for window in range(1, 6) for item in many]
    return Pair(made("counts", "", max_contributions=160, delta=1e-3), others, own)


def read_again(self, listed, found_at, step, names, source, *, right=FoundKeys._found_on_list):
    right(self, listed, found_at, step, names, source.derive("again"))
    return right(self, listed, found_at, step, names, source)


def released_again(self, reading, sums, noise, *, right=DroppedShare.release):
    right(self, reading + 1000, sums, noise)
    return right(self, reading, sums, noise)


def unclipped(self, came, counted, before, *, right=DroppedShare.of_people):
    added, now = right(self, came, counted, np.zeros_like(before))
    return added, now


def one_value_more(self, *, right=NumericQuantiles._limits):
    bound, limit = right(self)
    limit.bound = replace(limit.bound, in_run=limit.bound.in_run + 1)
    return bound, limit


def one_value_more_in_a_window(self, *, right=NumericQuantiles._limits):
    bound, limit = right(self)
    bound.limit += 1
    return bound, limit


def not_bound(self, source, keys, steps, totals):
    return self.draw(source, np.stack([keys, np.broadcast_to(np.uint64(steps), keys.shape)], axis=1))


def without_keys(self, source, keys, steps, totals, *, right=DiscreteNoise.draw_bound):
    return right(self, source, np.zeros_like(keys), steps, totals)


def worst(word, name, **changes):
    return lambda: WORST[word](made(word, name, sampled=True, **changes))


def paced(word, name, **changes):
    return lambda: WORST[word](made(word, name, **changes))


def in_two_periods():
    transform = made("counts", "public items", max_contributions=8, end=720, renew_every=360)
    others = [each for window in range(12) for each in crowd(3 + window, "abc", window)]
    return Pair(transform, others, everything("abc", 6))


class OneSource(tuple):
    """Answers that all draw from the source of the first one."""

    __slots__ = ()

    def __iter__(self):
        return iter([self[0]] * len(self))


BROKEN = {
    "a limit of the run is off by one": (
        *(KeyedCounts, "bound", bound_with(in_run=1)),
        worst("counts", "public items", max_contributions=4),
    ),
    "a limit of a stream is off by one": (
        *(KeyedCounts, "bound", bound_with(in_run=1)),
        paced("counts", "public items", max_contributions=4),
    ),
    "a second value counts": (NumericQuantiles, "_limits", one_value_more, paced("quantiles", "Laplace noise")),
    "a second value counts in a window": (
        *(NumericQuantiles, "_limits", one_value_more_in_a_window),
        paced("quantiles", "Gaussian noise", max_contributions=12),
    ),
    "a reading is repeated and not paid for": (
        *(DroppedShare, "release", released_again),
        worst("counts", "public items"),
    ),
    "a label is used for counts and for sums": (
        *(keyed_counts, "ANSWERS", OneSource(keyed_counts.ANSWERS)),
        worst("counts", "sums of values"),
    ),
    "noise is not bound to totals": (
        *(DiscreteNoise, "draw_bound", not_bound),
        worst("counts", "public items"),
    ),
    "what a person drops is clipped in each window": (
        *(DroppedShare, "of_people", unclipped),
        paced("counts", "since the start", over="window", max_contributions=3, epsilon=0.5, delta=1e-2),
    ),
    "a period does not get noise of its own": (Steps, "renewed", lambda self, noise, step: noise, in_two_periods),
    "the list of people is read once too often": (FoundKeys, "_found_on_list", read_again, listed_pair),
    "the share of dropped contributions is not charged": (
        *(Bounds, "of_counts", property(lambda self: 1.0)),
        worst("counts", "public items"),
    ),
    "the noise of a key forgets the key": (
        *(DiscreteNoise, "draw_bound", without_keys),
        worst("counts", "public items"),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_variant_is_caught(name, monkeypatch):
    where, what, instead, pair = BROKEN[name]
    assert broken(pair()) == []
    monkeypatch.setattr(where, what, instead)
    calibrate.cache_clear()
    try:
        assert broken(pair())
    finally:
        calibrate.cache_clear()
