"""Many sources as one: each row of a table draws what its own source draws for its own key."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.keyed_counts.key_table import KeyedStep
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.noise import routed
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace, WideGaussian
from privstream.mechanisms.noise.routed import RoutedNoise, SourcesByName
from privstream.mechanisms.noise.sources import KeyedNoise

NOISE = KeyedNoise(b"a key for tests only")
NAMES = ("", "0", "ä", "a" * 200)
TABLE = st.lists(st.tuples(st.integers(0, len(NAMES) - 1), st.integers(0, 5)), max_size=12, unique=True)


def sources() -> SourcesByName:
    return SourcesByName(lambda name: NOISE.derive("stream", name))


def table(pairs) -> RoutedNoise:
    codes, keys = np.array(pairs, np.int64).reshape(-1, 2).T
    return RoutedNoise(sources(), NAMES, codes, keys.astype(np.uint64))


def labels(keys, low) -> np.ndarray:
    return np.stack([np.asarray(keys, np.uint64), np.full(len(keys), low, np.uint64)], axis=1)


@given(TABLE, st.data())
def test_each_row_has_the_noise_of_its_own_source(pairs, data):
    rows = data.draw(st.lists(st.integers(0, len(pairs) - 1), max_size=15)) if pairs else []
    values, low = np.arange(len(rows)), data.draw(st.integers(0, 2**64 - 1))
    noise = table(pairs).derive("x", 3)
    laws = DiscreteGaussian(5.0), DiscreteGaussian(5000.0), DiscreteLaplace(30000.0), WideGaussian(1e6)
    bound = noise.bind(noise.bind(labels(rows, low), values), -values)
    found = [noise.words(labels(rows, low), 2), noise.words(bound), *(law.draw(noise, bound) for law in laws)]
    for i, row in enumerate(rows):
        code, key = pairs[row]
        alone = NOISE.derive("stream", NAMES[code]).derive("x", 3)
        own = alone.bind(alone.bind(labels([key], low), values[i : i + 1]), -values[i : i + 1])
        expected = [alone.words(labels([key], low), 2), alone.words(own), *(law.draw(alone, own) for law in laws)]
        for all_rows, one in zip(found, expected, strict=True):
            assert np.array_equal(all_rows[i], one[0])


@pytest.mark.parametrize(
    "options",
    [
        {"epsilon": 20.0, "delta": 1e-2},
        {"over": 3, "horizon": 6, "epsilon": 2.0, "delta": 1e-2, "min_people": 2, "max_value": 9},
        {"over": "start", "horizon": 6, "epsilon": 9.0, "delta": 1e-2, "contributions_per_key": 1},
        {"over": "start", "horizon": 6, "epsilon": 4.0, "public_keys": True, "contributions": 3},
    ],
)
def test_a_mechanism_answers_for_many_streams_as_for_each_alone(options):
    made, chance = KeyedCounts(**options), np.random.default_rng(5)
    pairs = [(code, key) for code in range(len(NAMES)) for key in range(4)]
    order = chance.permutation(len(pairs))
    pairs = [pairs[i] for i in order]
    codes, keys = np.array(pairs, np.int64).T
    public = made.public_keys
    together = made.initial_state(np.arange(len(pairs), dtype=np.uint64)) if public else made.initial_state()
    alone = [made.initial_state(np.arange(4, dtype=np.uint64)) if public else made.initial_state() for _ in NAMES]
    published = 0

    def given_step(step, numbers, counts, numbered):
        people = counts // 2 if made.needs_people else None
        sums = None if made.max_value is None else counts * 2
        return KeyedStep(step=step, keys=numbered[numbers].astype(np.uint64), counts=counts, people=people, sums=sums)

    for step in range(1, 7):
        some = np.sort(chance.choice(len(pairs), 6, replace=False))
        counts = chance.integers(1, 12, size=6)
        together, found = made.step(together, given_step(step, some, counts, np.arange(len(pairs))), table(pairs))
        rows = set(zip(codes[found.keys].tolist(), keys[found.keys].tolist(), found.counts.tolist(), strict=True))
        expected = set()
        for code, name in enumerate(NAMES):
            own = codes[some] == code
            given_alone = given_step(step, some[own], counts[own], keys)
            alone[code], each = made.step(alone[code], given_alone, NOISE.derive("stream", name))
            expected |= {(code, *row) for row in zip(each.keys.tolist(), each.counts.tolist(), strict=True)}
        assert rows == expected
        published += len(rows)
    assert published


def test_so_many_sources_are_kept_at_hand_and_none_with_a_long_name(monkeypatch):
    monkeypatch.setattr(routed, "AT_HAND", 3)
    held = sources()
    below = held.derive("x")
    assert below is held.derive("x")
    assert below["a"] is below["a"]
    for name in ("a", "b", "c", "d", "x" * 65):
        assert below[name].words(2).tolist() == NOISE.derive("stream", name, "x").words(2).tolist()
    assert max(len(held._at_hand), len(below._at_hand)) <= 3
    assert below["x" * 65] is not below["x" * 65]


def test_a_pickle_holds_no_source_that_is_at_hand():
    held = SourcesByName(NOISE.derive)
    before = pickle.dumps(held)
    _ = held["a"].words(1), held.derive("x")["a"]
    assert pickle.dumps(held) == before
    assert pickle.loads(before)["a"].words(1).tolist() == NOISE.derive("a").words(1).tolist()


def test_what_has_no_row_is_refused():
    noise = table([(0, 1)])
    for labels_ in (3, np.zeros(3, np.uint64)):
        with pytest.raises(TypeError, match="labels must be an array of rows and their low halves"):
            noise.words(labels_)
    with pytest.raises(TypeError, match="strings must be hashed by one source"):
        noise.hash_bytes(np.zeros(1, np.uint8), np.array([0, 1]))
