"""The audit toolkit: it never claims more than is true, finds most of what there is, and takes enough samples."""

import math

import numpy as np
import pytest
from attacks import falls, lower_delta, lower_epsilon, stands
from privstream.mechanisms.privacy.accounting import PureDp


def responses(epsilon, size, seed=1):
    """Codes of randomised response in two worlds, whose order says nothing: what they show is exactly epsilon."""
    lies = np.random.default_rng(seed).random((2, size)) < 1 / (1 + math.exp(epsilon))
    return np.where(lies, [[7], [3]], [[3], [7]])


@pytest.mark.parametrize("epsilon", [0.25, 1.0, 4.0])
def test_randomised_response(epsilon):
    one, other = responses(epsilon, 60_000)
    assert 0.6 * epsilon < lower_epsilon(one, other) <= epsilon
    half = epsilon / 2
    true_delta = (math.exp(epsilon) - math.exp(half)) / (1 + math.exp(epsilon))
    assert 0.3 * true_delta < lower_delta(one, other, half) <= true_delta
    assert lower_delta(one, other, epsilon) == 0


def test_what_stands_does_not_fall():
    worlds = responses(1.0, 5_000)
    stands(worlds, 1.0, visible=0.7)
    stands([list(zip(world, world, strict=True)) for world in worlds.tolist()], 1.0, visible=0.7)
    stands(worlds, 1.0, curve=PureDp(1.0))
    falls(worlds, 0.5)
    falls(worlds, 0.5, delta=0.1)
    for wrong in (
        lambda: stands(worlds, 0.5),
        lambda: stands(worlds, 1.0, visible=1.0),
        lambda: stands(worlds, 0.5, curve=PureDp(0.5)),
        lambda: falls(worlds, 1.0),
        lambda: falls(worlds, 0.5, delta=0.5),
    ):
        with pytest.raises(AssertionError):
            wrong()
