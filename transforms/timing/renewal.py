"""What a guarantee says where everything starts afresh at public moments."""

from __future__ import annotations

from dataclasses import replace

from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON, PrivacyUnit, in_words
from privstream.transforms.timing.steps import Steps


def of_period(guarantee: PrivacyGuarantee, steps: Steps) -> PrivacyGuarantee:
    """Return what one person is promised in one period, given what a run of one period promises: the same if it lasts.

    Nothing that is remembered outlives a period, and a window has events of its own period alone. So what one person
    does in one period moves what is published in it, and nothing else. An event lies in one period anyway.
    """
    if steps.renewal is None:
        return guarantee
    length = steps.renewal * steps.period
    start = steps.bounds(steps.first or 0)[0]
    limits = [limit.replace("the whole run", "one period") for limit in guarantee.limits]
    limits.append(f"All limits and budgets start afresh every {in_words(length)}, counted from {start.to_rfc3339()}.")
    unit = guarantee.unit
    if unit == PERSON:
        unit = PrivacyUnit(what="person", window=length, origin=start.micros % length)
        limits.append("A person who takes part in m periods is promised m times this epsilon and this delta.")
    return replace(guarantee, unit=unit, limits=tuple(limits))
