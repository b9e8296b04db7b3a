"""What is done with a budget before any data is read: what each question gets, and what is promised of all."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple, Self

from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.privacy.accounting import (
    GaussianCurve,
    PointCurve,
    PrivacyCurve,
    PureDp,
    joint_curve,
    largest_shift,
)
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.model.base import WrongKeyError
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.model.public_lists import Reading, of_columns
from privstream.pipelines.model.question import Question
from privstream.pipelines.sources.fields import FieldMapping

OF_DELTA = 0.9
"""The part of delta that the questions get themselves; composing them needs the rest."""

CLOSE = 0.998
"""A total that is at least this part of what is allowed is near enough."""

TRIES = 30
DIGITS = 6
FINEST_GRID, GRID_POINTS = 1e-4, 200_000

TOO_SMALL = "epsilon or delta of privacy must be larger for this number of questions: no budget is small enough"
PROOF = "docs/proofs/monitor.md, Theorem 1"


Make = Callable[[float, float], Any]
"""What makes the transform of a question for an epsilon and a delta."""


class Paid(NamedTuple):
    """What a question gets of the budget: its share, its epsilon and delta, and the transform that has them."""

    name: str
    share: float
    epsilon: float
    delta: float
    transform: Any


Shared = tuple[tuple[Paid, ...], PrivacyGuarantee]
"""All questions with their budgets, and what is promised of all of them together."""


def calibrate(asked: Mapping[str, tuple[float, Make]], epsilon: float, delta: float) -> Shared:
    """Share out a budget over questions, each with its share and what makes it.

    The largest scale is sought at which what all questions cost together is within the budget.

    Privacy: all questions together are (epsilon, delta)-differentially private (docs/proofs/monitor.md).
    """
    if len(asked) == 1:
        return _made(asked, [epsilon], [delta], delta)
    whole = math.fsum(share for share, _ in asked.values())
    weights = [share / whole for share, _ in asked.values()]
    deltas = [rounded_down(OF_DELTA * delta * weight) if delta else 0.0 for weight in weights]
    asked = {name: (share, cache(make)) for name, (share, make) in asked.items()}  # steps go back to what was tried

    def at(scale: float) -> Shared:
        shifts = [GaussianCurve(shift=scale * math.sqrt(weight)) for weight in weights]
        gaussian = (curve.epsilon(own) for curve, own in zip(shifts, deltas, strict=True))
        parts = gaussian if delta else (scale * weight for weight in weights)
        return _made(asked, [*map(rounded_down, parts)], deltas, delta)

    low, high, scale = 0.0, math.inf, largest_shift(epsilon, delta) if delta else epsilon
    best: Shared | None = None
    for _ in range(TRIES):
        found = at(scale)
        cost = found[1].epsilon
        if cost <= epsilon:
            low, best = scale, found
        else:
            high = scale
        if best is not None and (CLOSE * epsilon <= cost <= epsilon or high - low <= (1 - CLOSE) * low):
            break
        near = scale * 0.9995 * epsilon / cost if 0 < cost < math.inf else scale / 2
        scale = near if low < near < high else (low + high) / 2 if high < math.inf else 2 * scale
    if best is None:
        raise ValueError(TOO_SMALL)
    return best[0], replace(best[1], epsilon=epsilon) if delta else best[1]


def _made(
    asked: Mapping[str, tuple[float, Make]], epsilons: Sequence[float], deltas: Sequence[float], delta: float
) -> Shared:
    """Return questions with these budgets; the epsilon of the whole is what they cost at the total delta."""
    paid = []
    for (name, (share, make)), budget, part in zip(asked.items(), epsilons, deltas, strict=True):
        try:
            paid.append(Paid(name, share, budget, part, make(budget, part)))
        except ValueError as error:
            if len(asked) == 1 or not re.search(r"\b(epsilon|delta)\b", str(error)):
                raise
            of_share = f"its share of the budget: epsilon {budget:g}, delta {part:g}"
            raise ValueError(f"{error} ({of_share})") from None
    own: dict[str, PrivacyGuarantee] = {each.name: each.transform.guarantee for each in paid}
    if len({each.unit for each in own.values()}) > 1:
        protected = "; ".join(f"{name} protects {each.unit}" for name, each in own.items())
        raise ValueError(f"questions must protect the same unit: {protected}")
    first, *others = own.values()
    if not others:
        return tuple(paid), first
    cost, curve = _composed([*own.values()], delta)
    lasts = {each.horizon for each in own.values()}
    shared = next(iter(lasts)) if len(lasts) == 1 else None  # else each question says for how many windows it holds
    said: dict[str, list[str]] = {}
    for name, each in own.items():
        for limit in (*each.limits, *(each.lasting("window") if shared is None else ())):
            said.setdefault(limit, []).append(name)
    whose = {limit: "Each question" if len(names) == len(own) else ", ".join(names) for limit, names in said.items()}
    whole = replace(
        first,
        epsilon=cost,
        delta=delta,
        limits=tuple(f"{names}: {limit}" for limit, names in whose.items()),
        public=tuple(dict.fromkeys(public for each in own.values() for public in each.public)),
        caveats=tuple(dict.fromkeys(caveat for each in own.values() for caveat in each.caveats)),
        proof="; ".join(dict.fromkeys([PROOF, *(each.proof for each in own.values() if each.proof)])),
        horizon=shared,
        curve=curve,
    )
    return tuple(paid), whole


def _composed(own: Sequence[PrivacyGuarantee], delta: float) -> tuple[float, PrivacyCurve]:
    plain = math.fsum(each.epsilon for each in own)
    cost = plain if math.fsum(each.delta for each in own) <= delta else math.inf
    if not delta:
        return cost, PureDp(plain)
    joint = joint_curve([each.known_curve for each in own], max(FINEST_GRID, plain / GRID_POINTS))
    composed = joint.epsilon(delta)  # more than the sum by slack of a large epsilon, or what a grid rounds up
    return min(cost, composed), PointCurve(at_epsilon=cost, at_delta=delta) if cost < composed else joint


def rounded_down(value: float) -> float:
    """Return a number > 0 with six digits that is not larger, which a command line can repeat."""
    if value <= 0:
        raise ValueError("delta of privacy must be smaller for so small an epsilon: a question would have none")
    found = float(f"{value:.{DIGITS}g}")
    unit = 10.0 ** (math.floor(math.log10(value)) - DIGITS + 1)
    return found if found <= value else float(f"{found - unit:.{DIGITS}g}")


@contextmanager
def about(monitor: Monitor, name: str) -> Iterator[None]:
    """Let errors about a question of several begin with its name."""
    try:
        yield
    except (ValueError, TypeError, OverflowError) as error:
        if monitor.single or (isinstance(error, WrongKeyError) and len(error.place) > 1):
            raise
        text = f"{error.place[0]} {error.rule}" if isinstance(error, WrongKeyError) else str(error)
        raise (TypeError if isinstance(error, TypeError) else ValueError)(f"{name}: {text}") from error


class Plan(NamedTuple):
    """The budget of a monitor, shared out."""

    fields: Mapping[str, FieldMapping]
    given: Mapping[str, dict[str, Any]]  # arguments of their transforms, but for the noise, by name
    questions: tuple[Paid, ...]  # what each gets, with what its transform promises
    guarantee: PrivacyGuarantee  # what is promised of all together

    @classmethod
    def of(cls, monitor: Monitor, *, unbounded: bool | None = None) -> Self:
        """Share out the budget of a monitor, whose rows are perhaps seen while the run goes on."""
        goes_on = monitor.data.unbounded if unbounded is None else unbounded
        epsilon, delta = monitor.privacy.epsilon, monitor.privacy.spent_delta
        fields, given = {}, {}
        for name, question in monitor.questions.items():
            with about(monitor, name):
                fields[name] = monitor.data.fields(question)
                given[name] = arguments_of(monitor, name, fields[name])

        def make(name: str, epsilon: float, delta: float) -> Any:
            with about(monitor, name):
                return planned(monitor.questions[name], given[name], epsilon, delta, unbounded=goes_on)

        asked = {name: (each.share, partial(make, name)) for name, each in monitor.questions.items()}
        questions, guarantee = calibrate(asked, epsilon, delta)
        (first, same), *others = [(name, each.user or monitor.data.user) for name, each in monitor.questions.items()]
        for name, user in others if guarantee.unit.what == "person" else ():
            if user != same:  # they mean different things by the person whom all protect together
                rule = f"must be {same}, as in {first}, for all questions together protect {guarantee.unit}"
                raise WrongKeyError(("questions", name, "user"), f"{rule}; got {user}")
        for paid in questions:
            given[paid.name] = with_budget(monitor.questions[paid.name], given[paid.name], paid.epsilon, paid.delta)
        return cls(fields, given, questions, guarantee)

    @property
    def transforms(self) -> dict[str, Any]:
        """What the questions promise in a plan, by name."""
        return {paid.name: paid.transform for paid in self.questions}


def with_budget(question: Question, given: Mapping[str, Any], epsilon: float, delta: float) -> dict[str, Any]:
    """Return arguments of a transform with a budget."""
    return {**given, "epsilon": epsilon, **({"delta": delta} if "delta" in question.info.arguments else {})}


def planned(question: Question, given: Mapping[str, Any], epsilon: float, delta: float, *, unbounded: bool) -> Any:
    """Return what a transform promises for a budget, whatever noise it has."""
    own = with_budget(question, given, epsilon, delta)
    made = question.info.planned_class(**own, noise=KeyedNoise.random("plan"))
    return made if unbounded else made.over_files()


def arguments_of(monitor: Monitor, name: str, fields: FieldMapping) -> dict[str, Any]:
    """Return the arguments of the transform of a question, but for the budget and the noise."""
    reading = Reading.of(monitor.data)
    given = monitor.questions[name].arguments(monitor.windows, reading, monitor.data.time_zone)
    return of_columns(given, len(fields.several)) if fields.several else given
