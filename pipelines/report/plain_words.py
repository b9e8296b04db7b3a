"""What a guarantee means, for people who have never seen one."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from privstream.mechanisms.privacy.guarantee import NEIGHBOURING, PrivacyGuarantee
from privstream.pipelines.questions.run_report import OUTSIDE
from privstream.pipelines.questions.spec import QuestionSpec

LARGEST_FACTOR = 1000.0
NOT_COVERED = (
    "Only the published rows are private. Logs, metrics, dead letters and checkpoints of the run are exact.",
    "Whoever has the noise key can remove the noise.",
    "A person with several ids in the data counts as several people, and is protected less.",
    "What others publish about the same people is not covered; what this ledger records is added up below.",
)
EVENTS_ALONE = "One event is protected, not a person: somebody who sends many events is protected far less."


def promise_in_words(guarantee: PrivacyGuarantee, step: str = "step") -> list[str]:
    """Return sentences on what is protected, against what comparison, and how far conclusions can go.

    Args:
        guarantee: what is promised.
        step: what its steps are called.
    """
    odds = math.exp(guarantee.epsilon)
    factor = f"{odds:,.3g}" if odds <= LARGEST_FACTOR else f"e^{guarantee.epsilon:g} (more than {LARGEST_FACTOR:,.0f})"
    plus = f", plus delta = {guarantee.delta:g}" if guarantee.delta else ""
    right = 100 * (1 - (1 - guarantee.delta) / (1 + odds))
    return [
        f"Protected is {guarantee.unit}.",
        "Compare what is published here with what would have been published from neighbouring data, which differ by "
        f"{NEIGHBOURING[guarantee.neighbouring].replace('the unit', f'that unit ({guarantee.unit})', 1)}.",
        "Whatever anybody sees or concludes is nearly as probable in one case as in the other: its probability is at "
        f"most {factor} times that in the other case (e to the power of epsilon = {guarantee.epsilon:g}){plus}.",
        "For example: who thinks that both cases are equally likely, and guesses from all that is published which of "
        f"them it is, guesses right with a probability of at most {_rounded_up(right)}%; 50% would be a mere guess.",
        *([] if guarantee.horizon is None else [f"It holds for at most {guarantee.horizon:,} {step}s."]),
        guarantee.adaptivity.replace("step", step),
    ]


def left_out(
    guarantee: PrivacyGuarantee,
    spec: QuestionSpec,
    parameters: Mapping[str, Any],
    binding: Collection[str] | None,
    method: str = "",
) -> list[str]:
    """Return what the numbers leave out by rule; how much it was is exact, and not published.

    Of limits only those are named that can leave something out, of which `binding` has the options, if they are known,
    and of what happens only by one method, if it ran.
    """
    limits = [
        limit.text
        for limit in (*spec.limits, *spec.clipped)
        if binding is None or not limit.options or any(option in binding for option in limit.options)
    ]
    beyond = [text for counter, text in spec.beyond.items() if spec.only_by.get(counter, method) == method]
    texts = [*(OUTSIDE | dict(spec.unusable)).values(), *spec.unanswered.values(), *limits, *beyond]
    happened = "; ".join(text.removeprefix("times ") for text in texts if _applies(text, parameters))
    return [
        *guarantee.limits,
        "Records that cannot be read, or that come too late, count in no answer.",
        f"Whether these happened, and how often, is not published: {happened}.",
    ]


def not_covered(guarantee: PrivacyGuarantee) -> list[str]:
    """Return what the guarantee rests on, and what it says nothing about."""
    alone = [EVENTS_ALONE] if guarantee.unit.what in ("event", "row") else []
    return [*alone, *guarantee.caveats, *NOT_COVERED]


def _applies(text: str, parameters: Mapping[str, Any]) -> bool:
    """Return whether the options that a text names were given."""
    return all(name in parameters for name in _options(text))


def _options(text: str) -> Iterable[str]:
    """Return the options that a text names."""
    return (word.strip("-,.") for word in text.split() if word.startswith("--"))


def _rounded_up(percent: float) -> str:
    """Return a percentage with one digit, never less than it is."""
    return f"{min(100.0, math.ceil(10 * percent) / 10):g}"
