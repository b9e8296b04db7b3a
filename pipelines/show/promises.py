"""What a guarantee file promises, and how its numbers came about, in sentences: for `explain` and reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.views.corrected import AS_IS, CORRECTED
from privstream.pipelines.show import words

NEGLIGIBLE = "2^64"
"""What the guarantee rests on with such a probability stands in the guarantee file alone."""

NOT_COVERED = (
    "The published rows alone are private. Logs, metrics, dead letters and checkpoints of the run are exact.",
    "The noise key removes the noise: keep it secret.",
    "A person with several ids counts as several people, and is protected less.",
    "Other publications about the same people are not covered; runs in one ledger are added up (privstream budget).",
)
REACTIONS = "It holds even if people react to what was published."
EVENTS_ALONE = "One event is protected, not a person: who sends many events is protected far less."

LARGEST_FACTOR = 1000.0


def promise_in_words(guarantee: PrivacyGuarantee, step: str = "step") -> list[str]:
    """Return sentences on what is protected, against what comparison, and how far conclusions can go."""
    odds = math.exp(guarantee.epsilon)
    factor = f"{odds:,.3g}" if odds <= LARGEST_FACTOR else f"e^{guarantee.epsilon:g}"
    plus = f", plus delta = {guarantee.delta:g}" if guarantee.delta else ""
    right = min(100.0, math.ceil(1000 * (1 - (1 - guarantee.delta) / (1 + odds))) / 10)
    return [
        f"Protected is {guarantee.unit}.",
        "Compare what is published with what would have been published from neighbouring data, which differ by "
        f"adding or removing that unit ({guarantee.unit}).",
        f"The probability of any conclusion is at most {factor} times that in the other case (e to the power of "
        f"epsilon = {guarantee.epsilon:g}){plus}.",
        "For example: an observer who finds both cases equally likely, and guesses from all that is published, is "
        f"right with a probability of at most {right:g}%; 50% is a mere guess.",
        *guarantee.lasting(step),
        REACTIONS if "published before it" in guarantee.adaptivity else guarantee.adaptivity.replace("step", step),
    ]


def discovery_in_words(numbers: Mapping[str, Any], unit: str = "people") -> list[str]:
    """Return sentences on how items are discovered, from the accuracy of a guarantee file; none with a public list."""
    if (threshold := numbers.get("threshold")) is None or "needed_in_1" not in numbers:
        return []
    lasting = sorted(int(name.rpartition("_")[2]) for name in numbers if name.startswith("needed_in_"))
    each = "; ".join(
        f"in {windows:,} window{'s' * (windows > 1)}: {numbers[f'needed_in_{windows}']:,} for an even chance, "
        f"{numbers[f'likely_in_{windows}']:,} for 95%"
        for windows in lasting
    )
    sentences = [
        f"An item is discovered when its noisy count in one window reaches {threshold:,}, or that of several windows "
        "together a threshold of its own. A discovered item is published in every window of the run, the earlier "
        "ones included.",
        f"{unit.capitalize()} that an item needs in each window, by the number of windows: {each}.",
    ]
    if (others := numbers.get(f"likely_by_others_in_{lasting[-1]}")) is not None:
        sentences.append(
            f"Different {unit} in each of {lasting[-1]:,} windows also discover an item, by a list of different "
            f"people: {others:,} in each for 95%."
        )
    return sentences


def regime_in_words(dropped: Mapping[str, float | None] | None) -> str:
    """Say how published numbers allow for what limits drop."""
    if dropped is None:
        return "What limits drop is not known: numbers and intervals are of what is retained."
    if words.is_lower_bound(dropped):
        return (
            f"Limits drop {words.dropped_in_words(dropped)} of all contributions, more than "
            f"{words.percent(CORRECTED)}: numbers are of what is retained, and each has a lower bound alone."
        )
    if dropped["upper"] == 0:
        return "Limits drop nothing."
    share = dropped["share"] or 0.0
    how = (
        "numbers are as they are, and intervals allow for it"
        if share <= AS_IS
        else "numbers are divided by the share that is retained, and intervals have its uncertainty"
    )
    return f"Limits drop {words.dropped_in_words(dropped)} of all contributions: {how}."


def not_covered(guarantee: PrivacyGuarantee) -> list[str]:
    """Return what the guarantee rests on, and what it says nothing about."""
    alone = [EVENTS_ALONE] if guarantee.unit.what == "event" else []
    return [*alone, *(text for text in guarantee.caveats if NEGLIGIBLE not in text), *NOT_COVERED]
