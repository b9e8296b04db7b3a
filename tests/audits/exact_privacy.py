"""Exact privacy of mechanisms on integers: all noise vectors of a grid are tried, so nothing is left to chance.

The noise beyond the grid has probability below 1e-7, and outputs less likely than 1e-4 are not judged.
"""

import itertools

import numpy as np
from privstream.mechanisms.noise.discrete import Geometric

JUDGED = 1e-4
TOLERANCE = 2e-3


def reach(law):
    """Return the largest noise of the grid."""
    return law.tail_quantile(1e-8)


def noise_grid(*laws):
    """Return all noise vectors of the grid, shape (m, laws), and their probabilities."""
    axes = [np.arange(0 if isinstance(law, Geometric) else -reach(law), reach(law) + 1) for law in laws]
    columns = np.meshgrid(*axes, indexing="ij")
    weights = np.prod(np.meshgrid(*(law.pmf(axis) for law, axis in zip(laws, axes, strict=True)), indexing="ij"), 0)
    return np.stack([column.ravel() for column in columns], axis=1), weights.ravel()


def distribution(outputs, weights):
    """Return output -> probability."""
    law = {}
    for output, weight in zip(outputs, weights.tolist(), strict=True):
        law[output] = law.get(output, 0.0) + weight
    return law


def neighbours(values, *, monotone):
    """Return all worlds that one change of the data makes of `values`: every query moves by at most 1."""
    steps = (0, 1), (0, -1)
    moves = [steps[0], steps[1]] if monotone else [(-1, 0, 1)]
    worlds = {tuple(np.add(values, move)) for step in moves for move in itertools.product(step, repeat=len(values))}
    return sorted(tuple(int(v) for v in world) for world in worlds)


def worst_excess(laws_of_outputs, pairs, allowed):
    """Return the largest ln(P[output] / P'[output]) - allowed(output) over pairs of worlds, and where it is."""
    worst = (-np.inf, None)
    for one, other in pairs:
        for output, probability in laws_of_outputs[one].items():
            if probability > JUDGED:
                unlikely = laws_of_outputs[other].get(output, 0.0)
                loss = np.log(probability / unlikely) if unlikely else np.inf
                worst = max(worst, (loss - allowed(output), (one, other, output)), key=lambda found: found[0])
    return worst
