"""The minimum of a function, beside scipy's, whose bits calibrations depend on."""

import math
from functools import partial

import numpy as np
import pytest
from privstream.mechanisms.minimum import MOST_CALLS, minimum
from scipy.optimize import minimize_scalar

SHAPES = {
    "parabola": lambda x, a, b: (x - a) ** 2 + b * x,
    "corner": lambda x, a, b: abs(x - a - 0.3 * b),
    "waves": lambda x, a, b: math.sin(b * x),
    "steps": lambda x, a, b: round(3 * x),
    "constant": lambda x, a, b: 1.0,
    "at a bound": lambda x, a, b: x,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_number_is_that_of_scipy(shape: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        low, slope = 10 * rng.normal(), rng.normal()
        high, tolerance = low + 10 ** rng.uniform(-4, 3), 10 ** rng.uniform(-10, -2)
        ours, theirs = [], []
        value = partial(SHAPES[shape], a=low, b=slope)

        found = minimum(lambda x, value=value, ours=ours: ours.append(x) or value(x), low, high, tolerance)
        known = minimize_scalar(
            lambda x, value=value, theirs=theirs: theirs.append(x) or value(x),
            bounds=(low, high),
            method="bounded",
            options={"xatol": tolerance},
        )
        assert found == (known.x, known.fun)
        assert ours == theirs


def test_a_search_without_an_end_is_given_up() -> None:
    calls = []

    def noted(x: float) -> float:
        calls.append(x)
        return x

    minimum(noted, 0.0, 1.0, 0.0)
    assert len(calls) == MOST_CALLS
