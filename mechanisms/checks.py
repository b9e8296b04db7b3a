"""Argument checks with one wording (name, rule, value), and errors of their own for what a caller may want to catch."""

import sys
from collections.abc import Callable
from numbers import Integral, Real
from typing import cast


class BudgetSpent(RuntimeError):  # noqa: N818 (a state that the design foresees)
    """The mechanism has given all the answers that its privacy budget pays for; it must not be asked again."""


class HorizonExceeded(RuntimeError):  # noqa: N818
    """The stream is longer than the public horizon that the guarantee was stated for."""


class SnapshotError(ValueError):
    """The bytes are no snapshot of this mechanism: wrong magic, kind, version or parameters, or damaged."""


LEAST_EPSILON, LARGEST_EPSILON = 1e-9, 1e9
MOST = sys.float_info.max  # whole numbers can be larger


def _number(name: str, value: object, rule: str, accepted: Callable[[float], bool]) -> float:
    """Return `value` as a float if it is a number that is accepted."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not accepted(cast(float, value)):
        raise ValueError(f"{name} must be {rule}, got {value}")
    return float(value)


def real(name: str, value: object) -> float:
    """Return `value` as a finite float."""
    return _number(name, value, "finite", lambda number: abs(number) <= MOST)


def positive(name: str, value: object) -> float:
    """Return `value` as a finite float above zero."""
    return _number(name, value, "finite and > 0", lambda number: 0 < number <= MOST)


def non_negative(name: str, value: object) -> float:
    """Return `value` as a finite float of at least zero."""
    return _number(name, value, "finite and >= 0", lambda number: 0 <= number <= MOST)


def probability(name: str, value: object, *, zero: bool = False) -> float:
    """Return `value` as a float in (0, 1), or in [0, 1) with `zero`."""
    if zero:
        return _number(name, value, "in [0, 1)", lambda number: 0 <= number < 1)
    return _number(name, value, "in (0, 1)", lambda number: 0 < number < 1)


def epsilon(value: object, *, largest: float = LARGEST_EPSILON) -> float:
    """Return an epsilon that can be reckoned with: far below nothing is found, far above there is no noise left."""
    if not LEAST_EPSILON <= (number := positive("epsilon", value)) <= largest:
        raise ValueError(f"epsilon must be in [{LEAST_EPSILON:g}, {largest:g}], got {value}")
    return number


def integer(name: str, value: object, *, minimum: int, maximum: int | None = None) -> int:
    """Return `value` as an int of at least `minimum`, and at most `maximum` if there is one."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    if value < minimum:
        raise ValueError(f"{name} must be >= {minimum}, got {value}")
    if maximum is not None and int(value) > maximum:
        raise ValueError(f"{name} must be <= {maximum}, got {value}")
    return int(value)


def step(value: object, horizon: int) -> int:
    """Return `value` as the number of a step 1, 2, .., `horizon`, else raise HorizonExceeded."""
    if (number := integer("step", value, minimum=1)) > horizon:
        raise HorizonExceeded(f"step must be <= horizon {horizon}, got {number}")
    return number


def boolean(name: str, value: object) -> bool:
    """Return `value` if it is True or False; numbers are neither."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {type(value).__name__}")
    return value


def one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value
