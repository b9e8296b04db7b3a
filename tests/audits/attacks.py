"""Attacks with samples: what is seen in two neighbouring worlds must not refute the claim; of a broken variant it must.

All lower bounds come from `pipelines/audit/evidence.py`; each is wrong with probability `FALSE_ALARM` at most.
"""

import numpy as np
from laws import FALSE_ALARM
from privstream.pipelines.audit.evidence import Samples


def lower_epsilon(one, other, delta=0.0):
    """Return a lower bound of epsilon at delta from outcomes in two neighbouring worlds: numbers, or tuples of them."""
    return _samples(one, other).epsilon(delta)


def lower_delta(one, other, epsilon):
    """Return a lower bound of delta at epsilon."""
    return _samples(one, other).delta(epsilon)


def stands(worlds, epsilon, *, visible=0.0, curve=None, at=None):
    """Check that two worlds show no more than is claimed, and that of it they show at least the share `visible`.

    Args:
        worlds: outcomes in either world.
        epsilon: what is claimed, at delta 0 where there is no curve.
        visible: of epsilon, or of the delta that the curve allows at epsilon, so that the attack is one.
        curve: the privacy curve that is claimed.
        at: where on the curve.
    """
    samples = _samples(*worlds)
    if curve is None:
        _report(samples.epsilon(), epsilon, visible)
        return
    for point in sorted({epsilon, *(at if at is not None else (0.0, epsilon / 3, 2 * epsilon / 3))}):
        _report(samples.delta(point), curve.delta(point), visible if point == epsilon else 0.0)
    allowed = curve.delta(epsilon)
    assert samples.epsilon(allowed) <= epsilon


def falls(worlds, epsilon, *, delta=0.0, beyond=1.0):
    """Check that two worlds of a broken variant show more than `beyond` times the claim: of delta if there is one."""
    samples = _samples(*worlds)
    found, claimed = (samples.delta(epsilon), delta) if delta else (samples.epsilon(), epsilon)
    print(f"\nbroken: {found:.4g} against {claimed:.4g} claimed")
    assert found > beyond * claimed


def _report(found, claimed, visible):
    print(f"\nfound {found:.4g} of {claimed:.4g}")
    assert visible * claimed <= found <= claimed


def _samples(one, other):
    if np.ndim(one[0]):
        together = np.concatenate([one, other])
        _, codes = np.unique(together, axis=0, return_inverse=True)
        one, other = codes[: len(one)], codes[len(one) :]
    return Samples(one, other, FALSE_ALARM / 2, scored=False)
