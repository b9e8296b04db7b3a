"""Counters and their peers for the benchmarks of continual counting."""

import importlib.util
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.counters.toeplitz import BufferedToeplitzCounter
from privstream.mechanisms.counters.trees import BinaryTreeCounter, KaryTreeCounter
from privstream.mechanisms.counters.unknown_horizon import UnknownHorizonCounter
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.papers.bottom_up_tree import BottomUpTreeCounter
from privstream.mechanisms.papers.square_root_toeplitz import SquareRootToeplitzCounter
from privstream.mechanisms.privacy.accounting import largest_shift

EPSILON, DELTA, BETA = 1.0, 1e-6, 0.05
LONGEST_SQUARE_ROOT = 1 << 13  # its time grows with the square of the stream
JAX = "jax-privacy, buffered Toeplitz"


class Kind(NamedTuple):
    """A counter by name, its delta, and how to make it with further options."""

    name: str
    delta: float
    make: Callable[..., Any]


KINDS = (
    Kind("binary tree", 0.0, BinaryTreeCounter),
    Kind("bottom-up tree", 0.0, BottomUpTreeCounter),
    Kind("k-ary tree", 0.0, KaryTreeCounter),
    Kind("unknown horizon", 0.0, UnknownHorizonCounter),
    Kind("unknown horizon, repeatable", 0.0, lambda **options: UnknownHorizonCounter(repeatable=True, **options)),
    Kind("binary tree", DELTA, BinaryTreeCounter),
    Kind("bottom-up tree", DELTA, BottomUpTreeCounter),
    Kind("square root", DELTA, SquareRootToeplitzCounter),
    Kind("buffered, 3", DELTA, lambda **options: BufferedToeplitzCounter(buffers=3, **options)),
    Kind("buffered, 4", DELTA, BufferedToeplitzCounter),
    Kind("unknown horizon", DELTA, UnknownHorizonCounter),
)


def counter(kind: Kind, horizon: int, columns: int = 1) -> Any:
    """Return a counter with so many independent columns, each with the noise of a single one at epsilon 1."""
    options: dict[str, Any] = {"delta": kind.delta, "columns": columns}
    if not kind.name.startswith("unknown horizon"):
        options["horizon"] = horizon
    if kind.delta:
        return kind.make(epsilon=EPSILON, row_columns=1, **options)
    return kind.make(epsilon=EPSILON * columns, **options)


def largest_of_columns(kind: Kind, steps: int, columns: int, runs: int) -> tuple[int, float]:
    """Return what a counter states, and the median over runs of, the largest error, for rows with a single one."""
    options = {} if kind.name.startswith("unknown horizon") else {"horizon": steps}
    made = kind.make(epsilon=EPSILON, delta=kind.delta, columns=columns, row_columns=1, **options)
    rows = np.zeros((steps, columns), np.int64)
    worst = [np.abs(made.run(made.initial_state(), rows, SeededNoise(seed))[1]).max() for seed in range(runs)]
    return made.error(steps, BETA), float(np.median(worst))


def rms(made: Any, steps: int) -> float:
    """Return the root of the mean variance over the steps 1 .. `steps`, from at most 4,000 of them."""
    at = np.unique(np.linspace(1, steps, 4000).astype(np.int64))
    return math.sqrt(np.mean([made.variance(int(step)) for step in at]))


def measured(kind: Kind, steps: int, columns: int, seed: int) -> tuple[float, float]:
    """Return the root mean squared error of a run, and the 95% quantile over columns of the largest one."""
    made = counter(kind, steps, columns)
    state, squares, largest = made.initial_state(), 0.0, np.zeros(columns)
    block = max(1, (1 << 20) // columns)
    for start in range(0, steps, block):
        rows = np.zeros((min(block, steps - start), columns), np.int64)
        state, noise = made.run(state, rows, SeededNoise(seed))
        squares += float(np.square(noise.astype(np.float64)).sum())
        largest = np.maximum(largest, np.abs(noise).max(axis=0))
    return math.sqrt(squares / (steps * columns)), float(np.quantile(largest, 0.95))


def spend(kind: Kind, steps: int, columns: int) -> None:
    """Run a counter over rows of small counts, in blocks, as a pipeline would."""
    made = counter(kind, steps, columns)
    rows = np.random.default_rng(0).integers(0, 5, (10_000, columns))
    state, noise = made.initial_state(), SeededNoise(1)
    for start in range(0, steps, len(rows)):
        state, _ = made.run(state, rows[: steps - start], noise)


def state_bytes(kind: Kind, steps: int, columns: int) -> int:
    """Return the size of a snapshot after a run of so many steps, at most 10,000."""
    made = counter(kind, steps, columns)
    rows = np.ones((min(steps, 10_000), columns), np.int64)
    state, _ = made.run(made.initial_state(), rows, SeededNoise(1))
    return len(made.snapshot(state))


def has_jax() -> bool:
    """Return whether the peer is installed."""
    return importlib.util.find_spec("jax_privacy") is not None


class JaxCounter:
    """jax-privacy's buffered linear Toeplitz mechanism, optimised for the largest error at its horizon.

    Its noise is continuous, in floating point, and comes from JAX's generator.
    """

    def __init__(self, horizon: int) -> None:
        import jax  # noqa: PLC0415
        from jax_privacy.matrix_factorization import buffered_toeplitz  # noqa: PLC0415

        jax.config.update("jax_enable_x64", True)
        self._jax, self._blt, self.horizon = jax, buffered_toeplitz, horizon
        self._factor = buffered_toeplitz.optimize(n=horizon, error="max")
        self._inverse = self._factor.inverse()
        self.buffers = len(self._factor.buf_decay)
        sensitivity = math.sqrt(float(buffered_toeplitz.sensitivity_squared(self._factor, horizon)))
        self.sigma = sensitivity / largest_shift(EPSILON, DELTA)

    def last_rms(self) -> float:
        """Return the standard deviation at the last step, the largest."""
        return self.sigma * math.sqrt(float(self._blt.iteration_error(self._inverse, self.horizon - 1)))

    def noise(self, steps: int, columns: int, seed: int = 0, block: int = 10_000) -> tuple[NDArray[Any], float]:
        """Return the noise on the sums (steps, columns), and the CPU seconds without compilation."""
        jax, jnp = self._jax, self._jax.numpy
        matrix = self._factor.inverse_as_streaming_matrix()

        def step(carry: Any, drawn: Any) -> Any:
            state, total = carry
            moved, state = matrix.multiply_next(drawn, state)
            return (state, total + moved), total + moved

        @jax.jit
        def blocks(carry: Any, key: Any) -> Any:
            return jax.lax.scan(step, carry, self.sigma * jax.random.normal(key, (block, columns), jnp.float64))

        def fresh() -> Any:
            return matrix.init_multiply(jnp.zeros(columns, jnp.float64)), jnp.zeros(columns, jnp.float64)

        blocks(fresh(), jax.random.key(seed))[1].block_until_ready()  # compiles
        start, carry, parts = time.process_time(), fresh(), []
        for number in range(-(-steps // block)):
            carry, part = blocks(carry, jax.random.fold_in(jax.random.key(seed), number))
            parts.append(np.asarray(part))
        return np.concatenate(parts)[:steps], time.process_time() - start
