"""What every mechanism must do. A mechanism is an exported class that promises something; each needs an example below.

Those that step have an input for each of some steps too.
"""

import copy
import dataclasses
import functools
import inspect
import json
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import privstream.mechanisms
import pytest
from privstream.mechanisms import (
    BinnedStep,
    DynamicPredecessor,
    ExponentialMechanismWithGap,
    FoundKeys,
    HistogramQueries,
    Holdings,
    IncrementalPredecessor,
    KeyedCounts,
    KeyedStep,
    LinearQueries,
    MeasuredTopK,
    NoisyTopK,
    NumericQuantiles,
    OnlineMultiplicativeWeights,
    PredecessorStep,
    PrivacyGuarantee,
    RangeCounter,
    SeededNoise,
    SetCardinality,
    SparseVector,
    ThresholdMonitor,
    Updates,
)
from privstream.mechanisms.checks import HorizonExceeded, SnapshotError
from privstream.mechanisms.mechanism import pack, unpack
from privstream.mechanisms.privacy.guarantee import (
    GIVEN_NUMBERS,
    KEYED_NOISE,
    PUBLISHED_FLOATS,
    guarantee_record,
    read_guarantee,
)

METHODS = ("initial_state", "step", "snapshot", "restore")


@dataclass(frozen=True)
class Example:
    """A mechanism, and the inputs of at least four steps, with hits, misses and cases that noise decides."""

    mechanism: Any
    inputs: Callable[[], list[Any]]


def queries():
    """Misses, one sure hit, and values so near to the threshold 1000 that noise decides: at most 16 hits."""
    steps = [np.full(20, -1000), np.arange(5), np.full(8, 1000), np.full(7, 990)]
    steps[1][2] = 10**6
    return steps


def holdings():
    people = np.arange(1, 3001, dtype=np.uint64)
    return [Holdings(step=i, users=people.copy(), items=people % np.uint64(2 + 700 * (i % 2))) for i in range(4)]


def growing_sums():
    """Sums that pass thresholds by small steps, near which noise decides, and by a large one."""
    return [np.array([50, 1, 25]) for _ in range(24)] + [np.array([5000, 5000, 5000])] + [np.zeros(3, np.int64)] * 2


COLUMNS = {"epsilon": 1.0, "columns": 3}


def linear_queries():
    rng = np.random.default_rng(1)
    counts = np.array([5000, 200, 100, 50, 10, 0])
    return [LinearQueries(counts.copy(), rng.integers(0, 2, (3, 6))) for _ in range(5)]


def updates(first, deletions, number=40_000):
    """Many new points, some of them twice, and some deletions."""
    points = np.arange(first, first + number)
    return Updates(np.append(points, points[:10]), np.append(points % 7 != 0, np.zeros(10, bool)) | (not deletions))


def predecessor_steps(deletions):
    queries = np.array([1, 160, 280, 1 << 10])
    return [PredecessorStep(updates(1 + 160 * i, deletions, 160), queries.copy()) for i in range(6)]


def changes():
    """A set that grows and shrinks, by steps near which noise decides."""
    return [0, 0, *[30] * 20, 10**6, -(10**6), 0, *[-30] * 20]


def keyed_steps():
    """Keys that many, few and hardly enough people have, and a step without any."""
    keys = np.arange(1, 61, dtype=np.uint64)
    steps = [np.arange(60), np.full(60, 20), np.zeros(60, np.int64), np.full(60, 100)]
    return [
        KeyedStep(step=i + 1, keys=keys.copy(), counts=counts.copy(), sums=2 * counts) for i, counts in enumerate(steps)
    ]


def found_steps():
    """The same with as many different people on the list as have a key."""
    return [dataclasses.replace(given, listed=given.counts.copy()) for given in keyed_steps()]


def binned_steps():
    """Bins with few, many and no values."""
    return [BinnedStep(step=i + 1, counts=np.full(20, count)) for i, count in enumerate((3, 0, 40, 1))]


EXAMPLES = {
    SparseVector: Example(
        SparseVector(epsilon=1.0, max_hits=20, threshold=1000, publish="gaps", branches=2, monotone=True), queries
    ),
    OnlineMultiplicativeWeights: Example(
        OnlineMultiplicativeWeights(epsilon=1.0, domain_size=6, records=5360, alpha=0.2), linear_queries
    ),
    ThresholdMonitor: Example(
        ThresholdMonitor(epsilon=1.0, delta=1e-6, max_hits=4, horizon=100, first_step=0, calibration="status"), holdings
    ),
    HistogramQueries: Example(HistogramQueries(**COLUMNS, delta=1e-6, mode="anchored"), growing_sums),
    SetCardinality: Example(SetCardinality(epsilon=1.0, horizon=100, max_updates=1000, mode="sparse"), changes),
    NumericQuantiles: Example(
        NumericQuantiles(epsilon=1.0, delta=1e-3, low=0, high=5, resolution=20, horizon=5), binned_steps
    ),
    RangeCounter: Example(
        RangeCounter(epsilon=1.0, delta=1e-6, universe=1 << 20, ranges=((1, 1 << 20), (500, 30_000), (7, 7))),
        lambda: [updates(1 + 20_000 * i, deletions=True) for i in range(6)],
    ),
    DynamicPredecessor: Example(
        DynamicPredecessor(epsilon=1.0, universe=1 << 10, horizon=6), lambda: predecessor_steps(deletions=True)
    ),
    KeyedCounts: Example(
        KeyedCounts(epsilon=1.0, delta=1e-3, over="start", horizon=5, min_people=5, max_value=4), keyed_steps
    ),
    FoundKeys: Example(
        FoundKeys(epsilon=1.0, delta=1e-3, contributions=2, horizon=5, min_people=2, max_value=4), found_steps
    ),
    IncrementalPredecessor: Example(
        IncrementalPredecessor(epsilon=1.0, universe=1 << 10), lambda: predecessor_steps(deletions=False)
    ),
}

# Mechanisms without steps, and those that only transforms use.
ONCE = [ExponentialMechanismWithGap(epsilon=1.0), MeasuredTopK(epsilon=1.0), NoisyTopK(epsilon=1.0)]
ALL = {type(one): one for one in [*(example.mechanism for example in EXAMPLES.values()), *ONCE]}


def discovered():
    """Return the exported classes that can be made and promise something, and of them those that step."""
    exported = [getattr(privstream.mechanisms, name) for name in privstream.mechanisms.__all__]
    classes = [one for one in exported if isinstance(one, type) and not inspect.isabstract(one)]
    promising = {one for one in classes if hasattr(one, "guarantee")}
    return promising, {one for one in classes if all(callable(getattr(one, method, None)) for method in METHODS)}


@pytest.fixture(params=EXAMPLES, ids=lambda mechanism: mechanism.__name__)
def example(request):
    return EXAMPLES[request.param]


@pytest.fixture(params=ALL, ids=lambda mechanism: mechanism.__name__)
def mechanism(request):
    return ALL[request.param]


def test_whatever_is_exported_has_an_example():
    promising, stepping = discovered()
    assert {SparseVector, ThresholdMonitor} <= stepping <= promising
    assert set(EXAMPLES) == stepping
    assert set(ALL) == promising


def plain(value):
    """Return any output or state as nested lists that compare by value."""
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.shape, value.tobytes()]
    if dataclasses.is_dataclass(value):
        return [type(value).__name__, *(plain(getattr(value, field.name)) for field in dataclasses.fields(value))]
    if isinstance(value, dict):
        return [[plain(key), plain(item)] for key, item in value.items()]
    if isinstance(value, tuple | list):
        return [type(value).__name__, *map(plain, value)]
    assert value is None or isinstance(value, bool | int | float | str | bytes | np.generic), type(value)
    return repr(value)


def arrays(value):
    """Return all arrays within an input, an output or a state."""
    if isinstance(value, np.ndarray):
        return [value]
    if dataclasses.is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, dict):
        value = list(value.values())
    return [array for item in value for array in arrays(item)] if isinstance(value, tuple | list) else []


def run(mechanism, inputs, noise, state=None):
    """Return the states after the steps, and their outputs."""
    states, outputs = [mechanism.initial_state() if state is None else state], []
    for given in inputs:
        state, output = mechanism.step(states[-1], given, noise)
        states.append(state)
        outputs.append(output)
    return states, outputs


@functools.cache
def run_once(mechanism):
    """Return the same for the example of a mechanism and one noise; nobody changes what it returns."""
    return run(mechanism, EXAMPLES[type(mechanism)].inputs(), SeededNoise(1))


CAVEATS = dict.fromkeys((ThresholdMonitor, KeyedCounts, FoundKeys), (GIVEN_NUMBERS,))
CAVEATS |= {ExponentialMechanismWithGap: (PUBLISHED_FLOATS,)}

UNCHECKED = {"starts", "ends", "label", "repeatable"}
"""Not one field each, but lists of rules; a name; and a switch that is used as it is."""


class TestWhateverPromises:
    def test_guarantee(self, mechanism, check_proof):
        guarantee = mechanism.guarantee
        check_proof(guarantee.proof)
        assert guarantee.caveats == (KEYED_NOISE, *CAVEATS.get(type(mechanism), ()))
        assert isinstance(guarantee, PrivacyGuarantee)
        assert guarantee.epsilon == mechanism.epsilon
        assert guarantee.delta == getattr(mechanism, "delta", 0.0)
        assert "epsilon = 1," in guarantee.paragraph()
        assert guarantee.curve is not None
        assert guarantee.curve.delta(1.0) <= guarantee.delta * (1 + 1e-6) + 1e-12
        assert guarantee == dataclasses.replace(mechanism).guarantee
        found = read_guarantee(json.loads(json.dumps(guarantee_record(guarantee), allow_nan=False)))
        assert (found, found.curve) == (guarantee, guarantee.curve)

    def test_errors_name_the_field(self, mechanism):
        more = {"epsilon": (0,), "delta": (-0.1, 1), "horizon": (0, True), "contributions": (0, 1.5)}
        for field in {field.name for field in dataclasses.fields(mechanism)} - UNCHECKED:
            for wrong in (math.nan, math.inf, "x", *more.get(field, ())):
                with pytest.raises((TypeError, ValueError), match=f"^{field} must be "):
                    dataclasses.replace(mechanism, **{field: wrong})


class TestEveryMechanism:
    """Of those that step."""

    def test_step_leaves_the_old_state_as_it_was(self, example):
        mechanism, state = example.mechanism, example.mechanism.initial_state()
        for given in example.inputs():
            before = mechanism.snapshot(state)
            following, _ = mechanism.step(state, given, SeededNoise(1))
            assert mechanism.snapshot(state) == before
            state = following

    def test_a_step_can_be_repeated_later(self, example):
        mechanism, inputs, noise = example.mechanism, example.inputs(), SeededNoise(2)
        states, outputs = run(mechanism, inputs, noise)
        for i in reversed(range(len(inputs))):
            assert plain(mechanism.step(states[i], inputs[i], noise)) == plain((states[i + 1], outputs[i]))

    def test_the_run_is_over_at_the_horizon(self, example):
        inputs = example.inputs()
        if hasattr(example.mechanism, "horizon"):
            ended = dataclasses.replace(example.mechanism, horizon=len(inputs) - 1)
            state = run(ended, inputs[:-1], SeededNoise(1))[0][-1]
            with pytest.raises(HorizonExceeded, match="step must be "):
                ended.step(state, inputs[-1], SeededNoise(1))

    def test_snapshot_round_trip_in_mid_stream(self, example):
        mechanism, inputs, noise = example.mechanism, example.inputs(), SeededNoise(3)
        states, outputs = run(mechanism, inputs, noise)
        twin = dataclasses.replace(mechanism)
        for i, state in enumerate(states):
            data = mechanism.snapshot(state)
            assert isinstance(data, bytes)
            restored = twin.restore(data)
            assert mechanism.snapshot(restored) == data
            following, answered = run(mechanism, inputs[i : i + 1], noise, restored)
            assert plain(answered) == plain(outputs[i : i + 1])
            assert mechanism.snapshot(following[-1]) == mechanism.snapshot(states[min(i + 1, len(inputs))])

    def test_snapshot_is_not_pickle_and_is_checked(self, example):
        mechanism = example.mechanism
        data = mechanism.snapshot(run_once(mechanism)[0][-1])
        with pytest.raises(pickle.UnpicklingError):
            pickle.loads(data)
        for bad in (b"", data[:-1], data + b"x", b"x" + data[1:], pickle.dumps(mechanism.initial_state())):
            with pytest.raises(SnapshotError, match="snapshot must"):
                mechanism.restore(bad)

    def test_a_state_with_other_fields_is_refused(self, example):
        """Without a field it could be that of nobody charged: the state of another version must not be taken for it."""
        mechanism = example.mechanism
        kind = f"{type(mechanism).__name__} state"
        found = unpack(kind, 1, mechanism.snapshot(run_once(mechanism)[0][-1]))
        for other in (found | {"charges": 1}, {"parameters": found["parameters"]}):
            with pytest.raises(SnapshotError, match="snapshot must have the fields of this state"):
                mechanism.restore(pack(kind, 1, other))

    def test_snapshots_of_other_mechanisms_are_refused(self, example):
        for other in EXAMPLES.values():
            if other is not example:
                with pytest.raises(SnapshotError, match="snapshot must be of"):
                    example.mechanism.restore(other.mechanism.snapshot(other.mechanism.initial_state()))

    def test_inputs_are_left_alone_and_not_aliased(self, example):
        mechanism, state, noise = example.mechanism, example.mechanism.initial_state(), SeededNoise(4)
        for given in example.inputs():
            before = plain(given)
            state, output = mechanism.step(state, given, noise)
            assert plain(given) == before
            kept = mechanism.snapshot(state), plain(output)
            for array in arrays(given):
                array[...] = 1
            for shared in arrays(state) + arrays(output):
                assert not any(np.shares_memory(shared, array) for array in arrays(given))
            assert (mechanism.snapshot(state), plain(output)) == kept

    def test_outputs_are_not_part_of_the_state(self, example):
        mechanism, state, noise = example.mechanism, example.mechanism.initial_state(), SeededNoise(4)
        for given in example.inputs():
            state, output = mechanism.step(state, given, noise)
            before = mechanism.snapshot(state)
            for array in arrays(output):
                if array.flags.writeable:
                    array[...] = 1
            assert mechanism.snapshot(state) == before

    def test_random_generators_of_the_process_are_not_used(self, example):
        before = copy.deepcopy(np.random.get_state())
        run(example.mechanism, example.inputs(), SeededNoise(1))
        assert plain(np.random.get_state()) == plain(before)

    def test_noise_is_used(self, example):
        first = str(plain(run_once(example.mechanism)[1]))
        others = (run(example.mechanism, example.inputs(), SeededNoise(seed))[1] for seed in range(2, 20))
        assert any(str(plain(other)) != first for other in others)
