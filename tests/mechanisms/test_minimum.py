"""The minimum and the root of a function, beside scipy's, whose bits calibrations depend on."""

import math
from functools import partial

import numpy as np
import pytest
from privstream.mechanisms.minimum import MOST_CALLS, minimum, root
from scipy.optimize import brentq, minimize_scalar

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


CROSSINGS = {
    "cubic": lambda x, a, b: (x - a) ** 3 + b * (x - a),
    "bounded": lambda x, a, b: math.tanh(b * (x - a)),
    "exponential": lambda x, a, b: math.exp(min(600.0, b * x)) - 2,
    "waves": lambda x, a, b: math.sin(b * x + a),
    "jump": lambda x, a, b: math.copysign(1.0, x - a),
    "steps": lambda x, a, b: round(3 * (x - a)),
}


@pytest.mark.parametrize("shape", CROSSINGS)
def test_every_number_on_the_way_to_a_root_is_that_of_scipy(shape: str) -> None:
    rng = np.random.default_rng(2)
    compared = 0
    while compared < 200:
        value = partial(CROSSINGS[shape], a=rng.normal(), b=rng.normal())
        low = 5 * rng.normal()
        high, tolerance = low + 10 ** rng.uniform(-2, 2), 10 ** rng.uniform(-12, -2)
        ours, theirs = [], []
        if value(low) * value(high) > 0:
            with pytest.raises(ValueError, match="different signs"):
                root(value, low, high, tolerance)
            continue
        found = root(lambda x, value=value, ours=ours: ours.append(x) or value(x), low, high, tolerance)
        known = brentq(lambda x, value=value, theirs=theirs: theirs.append(x) or value(x), low, high, xtol=tolerance)
        assert found == known
        assert ours == theirs
        compared += 1
