"""What every mechanism must do. A mechanism is an exported class that promises something; each needs an example below.

Those that step have an input for each of some steps too.
"""

import copy
import dataclasses
import functools
import inspect
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import privstream.mechanisms
import pytest
from privstream.mechanisms import (
    AboveThreshold,
    AdaptiveSparseVector,
    BinaryTreeCounter,
    BinnedStep,
    BottomUpTreeCounter,
    BufferedToeplitzCounter,
    ColumnFlags,
    CountedFlags,
    DynamicPredecessor,
    ExponentialMechanismWithGap,
    HistogramQueries,
    Holdings,
    HybridNoisyTopK,
    HybridSparseVector,
    IncrementalPredecessor,
    KaryTreeCounter,
    KeyedCounts,
    KeyedNoise,
    KeyedStep,
    LinearQueries,
    MeasuredTopK,
    NoisyTopK,
    NumericQuantiles,
    NumericSparse,
    OnlineMultiplicativeWeights,
    PredecessorStep,
    PrivacyGuarantee,
    RangeCounter,
    RangeStep,
    RuleMonitor,
    SeededNoise,
    SetCardinality,
    Sparse,
    SparseVectorWithGap,
    SquareRootToeplitzCounter,
    StatusMonitor,
    ThresholdMonitor,
    UnknownHorizonCounter,
    Updates,
)
from privstream.mechanisms.errors import SnapshotError
from privstream.mechanisms.keyed_counts.counted_top_k import CountedTopK
from privstream.mechanisms.keyed_counts.counted_queries import CountedQueries

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


def queries_with_one_hit():
    return [np.full(20, -1000), np.arange(5), np.full(3, -1000), np.full(90, 1000)]


def holdings():
    people = np.arange(1, 3001, dtype=np.uint64)
    return [Holdings(step=i, users=people.copy(), items=people % np.uint64(2 + 700 * (i % 2))) for i in range(4)]


def rules_met():
    """Numbers of people that pass and miss the thresholds of two rules, and come so near that noise decides."""
    numbers = [(1000, 1000), (400, 1000), (1000, 300), (0, 0)]
    return [
        Holdings(
            step=i,
            users=np.concatenate([np.arange(many), np.arange(few)]).astype(np.uint64),
            items=np.repeat([0, 1], [many, few]).astype(np.uint64),
            ranks=np.repeat([0, 1], [many, few]).astype(np.uint16),
        )
        for i, (many, few) in enumerate(numbers)
    ]


def column_sums():
    return [np.array([i, 0, 3 * i]) for i in range(14)]


def growing_sums():
    """Sums that pass thresholds by small steps, near which noise decides, and by a large one."""
    return [np.array([50, 1, 25]) for _ in range(24)] + [np.array([5000, 5000, 5000])] + [np.zeros(3, np.int64)] * 2


COLUMNS = {"epsilon": 1.0, "columns": 3}


def linear_queries():
    rng = np.random.default_rng(1)
    counts = np.array([5000, 200, 100, 50, 10, 0])
    return [LinearQueries(counts.copy(), rng.random((3, 6))) for _ in range(5)]


def updates(first, deletions, number=40_000):
    """Many new points, some of them twice, and some deletions."""
    points = np.arange(first, first + number)
    return Updates(np.append(points, points[:10]), np.append(points % 7 != 0, np.zeros(10, bool)) | (not deletions))


def range_steps():
    low, high = np.array([1, 500, 7]), np.array([1 << 20, 30_000, 7])
    return [RangeStep(updates(1 + 20_000 * i, deletions=True), low.copy(), high.copy()) for i in range(6)]


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


def binned_steps():
    """Bins with few, many and no values."""
    return [BinnedStep(step=i + 1, counts=np.full(20, count)) for i, count in enumerate((3, 0, 40, 1))]


EXAMPLES = {
    AboveThreshold: Example(AboveThreshold(epsilon=1.0, threshold=1000, integer=True), queries_with_one_hit),
    Sparse: Example(Sparse(epsilon=1.0, max_hits=20, threshold=1000), queries),
    NumericSparse: Example(NumericSparse(epsilon=1.0, delta=1e-6, max_hits=20, threshold=1000, integer=True), queries),
    SparseVectorWithGap: Example(
        SparseVectorWithGap(epsilon=1.0, max_hits=20, threshold=1000, integer=True, monotone=True), queries
    ),
    AdaptiveSparseVector: Example(
        AdaptiveSparseVector(epsilon=1.0, min_hits=20, branches=3, threshold=1000, noise_law="laplace"), queries
    ),
    OnlineMultiplicativeWeights: Example(
        OnlineMultiplicativeWeights(epsilon=1.0, domain_size=6, records=5360, alpha=0.2), linear_queries
    ),
    ThresholdMonitor: Example(
        ThresholdMonitor(epsilon=1.0, delta=1e-6, max_hits=4, horizon=100, first_step=0), holdings
    ),
    StatusMonitor: Example(StatusMonitor(epsilon=1.0, delta=1e-6, max_hits=4, horizon=100, first_step=0), holdings),
    RuleMonitor: Example(
        RuleMonitor(epsilon=1.0, delta=1e-6, max_hits=4, starts=(400, 300), ends=(400, 310), many=(True, False)),
        rules_met,
    ),
    BinaryTreeCounter: Example(BinaryTreeCounter(**COLUMNS, horizon=20), column_sums),
    BottomUpTreeCounter: Example(BottomUpTreeCounter(**COLUMNS, delta=1e-6, horizon=20), column_sums),
    KaryTreeCounter: Example(KaryTreeCounter(**COLUMNS, horizon=20), column_sums),
    SquareRootToeplitzCounter: Example(SquareRootToeplitzCounter(**COLUMNS, delta=1e-6, horizon=20), column_sums),
    BufferedToeplitzCounter: Example(BufferedToeplitzCounter(**COLUMNS, delta=1e-6, horizon=20), column_sums),
    UnknownHorizonCounter: Example(UnknownHorizonCounter(**COLUMNS), column_sums),
    HistogramQueries: Example(HistogramQueries(**COLUMNS, delta=1e-6, mode="anchored"), growing_sums),
    SetCardinality: Example(SetCardinality(epsilon=1.0, horizon=100, max_updates=1000, mode="sparse"), changes),
    ColumnFlags: Example(ColumnFlags(**COLUMNS, thresholds=(400, 10**6, 1000)), growing_sums),
    CountedFlags: Example(CountedFlags(**COLUMNS, thresholds=(400, 10**6, 1000)), growing_sums),
    NumericQuantiles: Example(
        NumericQuantiles(epsilon=1.0, delta=1e-3, low=0, high=5, resolution=20, over="start", horizon=5), binned_steps
    ),
    RangeCounter: Example(RangeCounter(epsilon=1.0, delta=1e-6, universe=1 << 20), range_steps),
    DynamicPredecessor: Example(
        DynamicPredecessor(epsilon=1.0, universe=1 << 10, horizon=6), lambda: predecessor_steps(deletions=True)
    ),
    KeyedCounts: Example(
        KeyedCounts(epsilon=1.0, delta=1e-3, over="start", horizon=5, min_people=5, max_value=4), keyed_steps
    ),
    IncrementalPredecessor: Example(
        IncrementalPredecessor(epsilon=1.0, universe=1 << 10, group=3), lambda: predecessor_steps(deletions=False)
    ),
}

# Tests that a mechanism is excused from, each with the reason.
EXEMPTIONS: dict[tuple[type, str], str] = {}


def discovered():
    """Return the exported classes that have all methods of a mechanism and can be made."""
    exported = [getattr(privstream.mechanisms, name) for name in privstream.mechanisms.__all__]
    classes = [one for one in exported if isinstance(one, type) and not inspect.isabstract(one)]
    return [one for one in classes if all(callable(getattr(one, method, None)) for method in METHODS)]


@pytest.fixture(params=discovered(), ids=lambda mechanism: mechanism.__name__)
def example(request):
    name = request.function.__name__
    if (request.param, name) in EXEMPTIONS:
        pytest.skip(EXEMPTIONS[request.param, name])
    assert request.param in EXAMPLES, f"{request.param.__name__} needs an example in this file"
    return EXAMPLES[request.param]


def test_discovery_finds_what_is_exported():
    assert {AboveThreshold, Sparse, NumericSparse, SparseVectorWithGap, ThresholdMonitor} <= set(discovered())
    assert set(EXAMPLES) <= set(discovered())
    assert all(mechanism in EXAMPLES and hasattr(TestEveryMechanism, name) for mechanism, name in EXEMPTIONS)


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


class TestEveryMechanism:
    def test_parameters_cannot_change(self, example):
        mechanism = example.mechanism
        for field in dataclasses.fields(mechanism):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(mechanism, field.name, getattr(mechanism, field.name))
        with pytest.raises(TypeError, match="positional"):
            type(mechanism)(1.0)

    def test_parameters_have_values(self, example):
        mechanism = example.mechanism
        twin = dataclasses.replace(mechanism)
        assert twin == mechanism
        assert hash(twin) == hash(mechanism)
        assert pickle.loads(pickle.dumps(mechanism)) == mechanism
        assert "epsilon=1.0" in repr(mechanism)
        assert dataclasses.replace(mechanism, epsilon=0.5) != mechanism

    def test_states_cannot_change(self, example):
        mechanism = example.mechanism
        states, _ = run(mechanism, example.inputs(), SeededNoise(1))
        for state in states:
            for field in dataclasses.fields(state):
                with pytest.raises(dataclasses.FrozenInstanceError):
                    setattr(state, field.name, None)

    def test_step_leaves_the_old_state_as_it_was(self, example):
        mechanism, state = example.mechanism, example.mechanism.initial_state()
        for given in example.inputs():
            before = mechanism.snapshot(state)
            following, _ = mechanism.step(state, given, SeededNoise(1))
            assert mechanism.snapshot(state) == before
            state = following

    def test_the_example_has_hits_and_misses(self, example):
        _, outputs = run(example.mechanism, example.inputs(), SeededNoise(1))
        assert len(outputs) >= 4
        assert len({str(plain(output)) for output in outputs}) > 1

    def test_same_state_same_output(self, example):
        mechanism, key = example.mechanism, b"a key for tests only"
        once = run(mechanism, example.inputs(), KeyedNoise(key, "contract"))
        twice = run(dataclasses.replace(mechanism), example.inputs(), KeyedNoise(key, "contract"))
        assert plain(once) == plain(twice)

    def test_a_step_can_be_repeated_later(self, example):
        mechanism, inputs, noise = example.mechanism, example.inputs(), SeededNoise(2)
        states, outputs = run(mechanism, inputs, noise)
        for i in reversed(range(len(inputs))):
            assert plain(mechanism.step(states[i], inputs[i], noise)) == plain((states[i + 1], outputs[i]))

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
        data = mechanism.snapshot(run(mechanism, example.inputs(), SeededNoise(1))[0][-1])
        with pytest.raises(pickle.UnpicklingError):
            pickle.loads(data)
        for bad in (b"", data[:-1], data + b"x", b"x" + data[1:], pickle.dumps(mechanism.initial_state())):
            with pytest.raises(SnapshotError, match="snapshot must"):
                mechanism.restore(bad)

    def test_snapshots_of_other_mechanisms_are_refused(self, example):
        for other in EXAMPLES.values():
            if other is not example:
                with pytest.raises(SnapshotError, match="snapshot kind must be"):
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
        outputs = (str(plain(run(example.mechanism, example.inputs(), SeededNoise(seed))[1])) for seed in range(20))
        first = next(outputs)
        assert any(other != first for other in outputs)

    def test_guarantee(self, example):
        guarantee = example.mechanism.guarantee
        assert isinstance(guarantee, PrivacyGuarantee)
        assert guarantee.epsilon == example.mechanism.epsilon
        assert guarantee.delta == getattr(example.mechanism, "delta", 0.0)
        assert guarantee.neighbouring == example.mechanism.neighbouring
        assert guarantee.limits
        assert guarantee.public
        assert "epsilon = 1," in guarantee.paragraph()
        assert guarantee.curve is not None
        assert guarantee.curve.delta(1.0) <= guarantee.delta * (1 + 1e-6) + 1e-12
        assert guarantee == dataclasses.replace(example.mechanism).guarantee

    @pytest.mark.parametrize(
        ("value", "error", "message"),
        [
            (math.nan, ValueError, "epsilon must be finite and > 0, got nan"),
            (math.inf, ValueError, "epsilon must be finite and > 0, got inf"),
            (0, ValueError, "epsilon must be finite and > 0, got 0"),
            (-1.5, ValueError, "epsilon must be finite and > 0, got -1.5"),
            (True, TypeError, "epsilon must be a number, got bool"),
            ("1", TypeError, "epsilon must be a number, got str"),
            (None, TypeError, "epsilon must be a number, got NoneType"),
        ],
    )
    def test_errors_are_worded(self, example, value, error, message):
        with pytest.raises(error) as caught:
            dataclasses.replace(example.mechanism, epsilon=value)
        assert str(caught.value) == message

    @pytest.mark.parametrize("field", ["delta", "max_hits", "neighbouring"])
    def test_errors_name_the_field(self, example, field):
        if not hasattr(example.mechanism, field):
            pytest.skip(f"no {field}")
        for value in (-1, math.nan, "x", True, None):
            with pytest.raises((TypeError, ValueError), match=f"^{field} must be "):
                dataclasses.replace(example.mechanism, **{field: value})

    def test_documentation(self, example):
        text = type(example.mechanism).__doc__
        for section in ("Privacy:", "Accuracy:", "Example:", "Source:"):
            assert section in text
