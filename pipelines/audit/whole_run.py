"""Attacks on all that a run publishes: one person spends all that limits allow, and the adversary sees every number.

They are made for the parameters of any run whose noise is added to counts, such as one that a guarantee file describes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.audit.attacks import (
    EPSILON,
    ONE,
    SUSPECT,
    THREE,
    WINDOWS,
    Adversary,
    Attack,
    Seen,
    Sent,
    Transcript,
)
from privstream.pipelines.audit.fits import CROWDED, with_less_noise
from privstream.pipelines.model.question import QuestionInfo
from privstream.transforms.reading.domain import Domain

MISSING = 1e-8
"""Probability with which a trial lacks a number because too few others have its item."""

MINUTE = 60
SMALL = 1e-6
"""Delta of the runs that an audit of a question attacks."""

MOST_NUMBERS, ENOUGH = 2_400_000, 1600
"""Events and rows of all trials of an attack together; where there were more, there are fewer trials, but so many."""

MOST_AT_ONCE = 800_000
"""Events and rows of one run: they are in memory at once. Where there were more, trials take several runs."""

MANY = 10
"""Where a person sends one contribution more than so many, all but a part in as many of them counts."""

FEWEST = 400
"""Fewer trials catch no control."""

RUNS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "counts": (
        {"epsilon": EPSILON, "domain": ONE, "max_contributions": 1},
        {"epsilon": EPSILON, "delta": SMALL, "domain": Domain(THREE), "max_contributions": 10},
        {"epsilon": EPSILON, "delta": SMALL, "max_contributions": 10},
        {"epsilon": EPSILON, "delta": SMALL, "domain": Domain(THREE), "max_contributions": len(THREE) * WINDOWS},
    ),
}
"""By question: arguments of runs that its audit attacks, beside windows and noise."""

Plan = list[list[str]]
"""The items that a person sends, by window."""


@dataclass(frozen=True, kw_only=True)
class Spending:
    """How one person spends all contributions, and what of it is published.

    Attributes:
        plan: the items that the person sends in each window, more than may count where that leaves no choice.
        counted: how many of these may count.
        others: how many others have the items of the first window (of every window, where they are forgotten).
        always: whether the others are needed in every window.
        fields: of a row: the numbers that are published with noise.
        name: the field of a row that says which item it is about.
        value: beside each item.
        apart: whether noise is independent in each number.
        beside: items that the person does not send, whose numbers are seen all the same: they have noise in common with
            those of the others.
    """

    plan: Plan
    counted: int
    others: int = 0
    always: bool = False
    fields: tuple[str, ...] = ("noisy",)
    name: str = "item"
    value: float = 0.0
    apart: bool = True
    beside: tuple[str, ...] = ()

    @property
    def items(self) -> tuple[str, ...]:
        """The items whose numbers are seen, in each window."""
        return tuple(dict.fromkeys([*(item for sent in self.plan for item in sent), *self.beside]))

    @property
    def numbers(self) -> int:
        """How many numbers a transcript has."""
        return len(self.plan) * len(self.items) * len(self.fields)

    @property
    def size(self) -> int:
        """Events and rows of a trial, beside those of the person."""
        windows = len(self.plan) if self.always else 1
        return self.numbers + self.others * sum(map(len, self.plan[:windows]))


def planned(windows: int, most: int, items: Sequence[str], per_window: int, *, beyond: bool = True) -> Plan:
    """Return the items that a person sends who may count so many times in all, in the first windows.

    With `beyond` the person goes on for half as many windows more, as if there were no limit, with one item in each: so
    it is known which one counts if the limit is off by one.
    """
    used = -(-most // per_window)
    sent = [list(items[:per_window]) for _ in range(min(windows, used))]
    if used <= windows:
        sent[used - 1] = list(items[: most - (used - 1) * per_window])
    sent += [list(items[:1]) for _ in range(min(windows - len(sent), -(-used // 2) * beyond))]
    return sent + [[] for _ in range(windows - len(sent))]


def _of_counts(transform: Any) -> Spending:
    """Spend contributions of `counts`; a person counts in several windows, or once for each of many items."""
    made = transform.mechanism
    windows, most = _windows(transform), made.contributions
    public = transform.domain
    names = public.texts.to_pylist() if public is not None else [f"item {i}" for i in range(most + 1)]
    fields = ("noisy",) if made.max_value is None else ("noisy", "value")
    value = float(made.max_value or 0)
    if made.unit == "event":
        plan = [names[:1], *([] for _ in range(windows - 1))]
    elif made.over == "start":
        plan = [names[:most], *([] for _ in range(windows - 1))]
    else:
        per_window = min(len(names), most, -(-(most + 1) // windows))
        # Of random contributions the adversary does not know which count: one more of many hides hardly anything.
        sent = most + (transform.chooses_randomly and most >= MANY and windows * per_window > most)
        plan = planned(windows, sent, names, per_window, beyond=not transform.chooses_randomly)
    others = 0 if public is not None else made.detection(1, MISSING)
    return Spending(
        plan=plan,
        counted=most,
        others=max(others, (made.min_people or 1) if others else 0),
        always=public is None and not transform.remembers,
        fields=fields,
        value=value,
    )


SPENDINGS: Mapping[str, Callable[[Any], Spending]] = {
    "counts": _of_counts,
}
"""By question: those whose noise is added to the numbers that are published."""


def whole_runs(spec: QuestionInfo, epsilon: float = EPSILON) -> list[Attack]:
    """Return the attacks of the audit of a question on all that runs publish, with so much of a budget."""
    found = []
    for given in RUNS.get(spec.word, ()):
        options = {"window": MINUTE, "start": 0, "end": MINUTE * WINDOWS, **given, "epsilon": epsilon}
        found.append(whole_run(spec, options, spec.transform_class(**options, noise=KeyedNoise.random("audit"))))
    return found


def whole_run(spec: QuestionInfo, options: Mapping[str, Any], transform: Any) -> Attack:
    """Return the attack on all that such a run publishes.

    Args:
        spec: the question.
        options: arguments of the transform, but for the noise.
        transform: made of them.

    Raises:
        ValueError: its noise is not added to the numbers that are published, so that no model is fitted to them.
    """
    if spec.word not in SPENDINGS:
        raise ValueError(f"question must be one of {', '.join(SPENDINGS)}, whose numbers have noise, got {spec.word}")
    steps = transform.steps
    if steps.first is None or steps.end is None:
        raise ValueError("start, and end or windows must be given: an attack is on all windows of a run")
    claim: PrivacyGuarantee = transform.guarantee
    spent = SPENDINGS[spec.word](transform.to_finish())
    windows = len(spent.plan)
    sent = "what shows most" if spent.beside else "all that may count"
    who = "one event" if claim.unit.what == "event" else f"one person who sends {sent} ({spent.counted:,})"
    return Attack(
        name="all that is published",
        text=f"D has {who}, and D' has not. The adversary sees all {spent.numbers:,} numbers of {windows:,} windows, "
        "and takes the likelihood ratio. What is measured is a crowd of such people, divided by their number. Model: "
        "numbers are sums over people with noise that does not depend on the data, normal noise"
        f"{' that is independent in each number' * spent.apart} or independent Laplace noise. The control has 15% less "
        "noise.",
        options=options,
        control={"epsilon": with_less_noise(claim.epsilon, claim.delta)},
        others=_others(spent),
        suspect=_suspect(spent),
        windows=windows,
        transcript=Transcript(
            name=spent.name,
            items=_named(spent, transform),
            fields=spent.fields,
            counted=spent.counted * len(spent.fields),
            size=spent.size,
            sent=sum(map(len, spent.plan)),
            apart=spent.apart,
        ),
        told_by=spent.name,
    )


def _windows(transform: Any) -> int:
    """Return the number of windows, until everything starts afresh."""
    return int(transform.steps.count)


def _named(spent: Spending, transform: Any) -> tuple[str, ...]:
    """Return what rows are about, in each window: rules, or the items that are sent."""
    return spent.items


def _suspect(spent: Spending) -> Adversary:
    def send(seen: Seen) -> list[Sent]:
        return [Sent(SUSPECT, item, spent.value) for item in spent.plan[seen.window]]

    return send


def _others(spent: Spending) -> Adversary:
    """Let everything that the suspect has be found, by people who send it in the same window, and in no other."""

    def send(seen: Seen) -> list[Sent]:
        if seen.window and not spent.always:
            return []
        first = 1 + seen.window * spent.others
        return [Sent(first + i, item) for i in range(spent.others) for item in spent.plan[seen.window]]

    return send


def trials_of(transcript: Transcript, wanted: int, people: int, one_in: int = CROWDED) -> int:
    """Return how many trials an attack has, of which one in so many has the crowd: as many as are wanted, rounded up to
    a multiple of that, unless these were too many events and rows.
    """
    most = one_in * (MOST_NUMBERS // (one_in * transcript.size + people * transcript.counted))
    return -(-min(wanted, max(ENOUGH, most)) // one_in) * one_in


def trials_at_once(transcript: Transcript, people: int, one_in: int = CROWDED) -> int:
    """Return how many trials of an attack one run may have: one in so many has the crowd."""
    return one_in * max(1, MOST_AT_ONCE // (one_in * transcript.size + people * transcript.sent))
