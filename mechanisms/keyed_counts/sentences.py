"""What the guarantee and the accuracy of counts per key say in words."""

from __future__ import annotations

from privstream.mechanisms.keyed_counts.calibration import Bounds


def limits(bounds: Bounds, unit: str) -> tuple[str, ...]:
    """Return sentences that say what a unit is limited to, and which keys are considered."""
    if unit == "event":
        found = ["An event contributes to one key in one step."]
    else:
        times = f"{bounds.contributions:,} contribution{'s' * (bounds.contributions > 1)}"
        found = [f"A person makes at most {times} in the whole run, and at most one to a key in a step."]
        if bounds.span != 1 and bounds.per_key < bounds.contributions:
            found.append(f"At most {bounds.per_key:,} of them {'are' if bounds.per_key > 1 else 'is'} to the same key.")
    if bounds.largest is not None:
        low = -bounds.largest if bounds.signed else 0
        found.append(f"The value of a contribution is an integer from {low:,} to {bounds.largest:,}.")
    if bounds.min_people is not None:
        who = {"event": "event"}.get(unit, "person" if bounds.min_people == 1 else "people")
        plural = "s" * (unit == "event" and bounds.min_people > 1)
        where = "in the window" if bounds.span == 1 else "since the start"
        found.append(f"Keys with fewer than {bounds.min_people:,} {who}{plural} {where} are never published.")
    return tuple(found)


def accuracy(stddev: float, largest: float, bound: int, found: int | None, beta: float, tests: int) -> str:
    """Return what holds at the last step, as a sentence; `largest` is the largest standard deviation of all steps."""
    together = f"with probability {1 - beta:g} for {tests:,} keys at once"
    text = f"Counts have a standard deviation of {stddev:.3g}, and {together} an error of at most {bound:,}"
    if largest > stddev:
        text = f"At the last step c{text[1:]} (the standard deviation is up to {largest:.3g} before)"
    if found is None:
        return f"{text}."
    return f"{text}; keys are published, {together}, if at least {found:,} people have them."
