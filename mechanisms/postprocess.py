"""What published numbers are good for, such as free gaps: better estimates, p-values. Costs no privacy."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats
from scipy import special


class Estimates(NamedTuple):
    """Estimates, and the variance of each of them: a number or an array."""

    values: Floats
    variance: float | Floats


def blue_from_gaps(
    measures: ArrayLike, gaps: ArrayLike, *, measure_variance: float, noise_variance: float
) -> Estimates:
    """Improve measurements of the selected queries by the gaps between them: the best linear unbiased estimates.

    Privacy: none is spent; both inputs are published numbers.

    Accuracy: measure i is q_i plus independent noise of variance v, gap i is q_i + e_i - q_(i+1) - e_(i+1) with
    independent e of equal means and variance w. Then each estimate has variance v (v + k w) / (k v + k w). Where the
    noise decides what is selected, gaps are biased upwards. Measures are in order of selection, shape (k,); gaps, shape
    (k - 1,), are all but the last of a `TopSelection`; w is the variance of `NoisyTopK.law`.

    Source: Ding et al., Free gap estimates (2022), Theorem 4 and Corollary 1.
    """
    measured, between = _numbers("measures", measures), _numbers("gaps", gaps)
    count = measured.size
    if count == 0 or between.shape != (count - 1,):
        raise ValueError(f"gaps must be one fewer than measures, got {between.size} for {count}")
    ratio = checks.non_negative("noise_variance", noise_variance) / checks.positive(
        "measure_variance", measure_variance
    )
    behind = np.concatenate([[0.0], np.cumsum(between)])
    # The mean of measures + behind estimates the first query; the gaps lead from there to the others.
    chained = (measured + behind).mean() - behind
    values = (chained + ratio * measured) / (1 + ratio)
    return Estimates(values, measure_variance * (1 + ratio * count) / (count * (1 + ratio)))


def gap_p_value(gaps: ArrayLike) -> Floats:
    """Return p-values of the hypothesis that some candidate is better than the one that was selected.

    Privacy: none is spent; gaps are published numbers.

    Accuracy: if the hypothesis is true the p-value is <= alpha with probability at most alpha, for each alpha, even
    given which candidate was selected. Gaps are those of `ExponentialMechanismWithGap`.

    Source: Ding et al., Free gap estimates (2022), Theorem 7.
    """
    return np.asarray(2 * special.expit(-_numbers("gaps", gaps, 0.0)))


def _numbers(name: str, values: ArrayLike, least: float = -np.inf) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if not np.all(np.isfinite(array) & (array >= least)):
        raise ValueError(f"{name} must be finite and >= {least:g}")
    return array
