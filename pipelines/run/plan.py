"""What is done with a budget before any data is read: what each question gets, and what is promised of all."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
"""So much of delta the questions get themselves; the composition of them needs the rest."""

CLOSE = 0.998
"""A total that is at least so much of what is allowed is near enough."""

TRIES = 30
DIGITS = 6
FINEST_GRID, GRID_POINTS = 1e-4, 200_000

TOO_SMALL = "epsilon or delta of privacy must be larger for this number of questions: no budget is small enough"
PROOF = "docs/proofs/monitor.md, Theorem 1"


class Sharing(NamedTuple):
    """A question to be paid for: its name, its share, and what makes its transform for an epsilon and a delta."""

    name: str
    share: float
    make: Callable[[float, float], Any]


class Paid(NamedTuple):
    """What a question gets: its own epsilon and delta, the transform that has them, and what it promises alone."""

    name: str
    share: float
    epsilon: float
    delta: float
    transform: Any
    guarantee: PrivacyGuarantee


class Calibrated(NamedTuple):
    """All questions with their budgets, and what is promised of all of them together."""

    questions: tuple[Paid, ...]
    guarantee: PrivacyGuarantee


def calibrate(asked: Sequence[Sharing], epsilon: float, delta: float) -> Calibrated:
    """Share out a budget: the largest scale is sought at which what all questions cost together is within it.

    Privacy: all questions together are (epsilon, delta)-differentially private (docs/proofs/monitor.md).
    """
    if len(asked) == 1:
        return _made(asked, [rounded_down(epsilon)], [rounded_down(delta) if delta else 0.0], delta)
    whole = math.fsum(each.share for each in asked)
    weights = [each.share / whole for each in asked]
    deltas = [rounded_down(OF_DELTA * delta * weight) if delta else 0.0 for weight in weights]
    asked = [each._replace(make=cache(each.make)) for each in asked]  # steps go back to budgets that were tried

    def epsilons(scale: float) -> Iterator[float]:
        for weight, own in zip(weights, deltas, strict=True):
            shift = scale * math.sqrt(weight)
            yield rounded_down(GaussianCurve(shift=shift).epsilon(own) if delta else scale * weight)

    low, high, scale = 0.0, math.inf, largest_shift(epsilon, delta) if delta else epsilon
    best: Calibrated | None = None
    for _ in range(TRIES):
        found = _made(asked, [*epsilons(scale)], deltas, delta)
        cost = found.guarantee.epsilon
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
    return best._replace(guarantee=replace(best.guarantee, epsilon=epsilon)) if delta else best


def _made(asked: Sequence[Sharing], epsilons: Sequence[float], deltas: Sequence[float], delta: float) -> Calibrated:
    """Return questions with these budgets; the epsilon of the whole is what they cost at the total delta."""
    paid = []
    for each, budget, part in zip(asked, epsilons, deltas, strict=True):
        try:
            made = each.make(budget, part)
        except ValueError as error:
            about = re.search(r"\b(epsilon|delta)\b", str(error))
            share = f" (its share of the budget: epsilon {budget:g}, delta {part:g})" if about else ""
            raise ValueError(f"{each.name}: {error}{share}") from None
        paid.append(Paid(each.name, each.share, budget, part, made, made.guarantee))
    units = {each.guarantee.unit for each in paid}
    if len(units) > 1:
        protected = "; ".join(f"{each.name} protects {each.guarantee.unit}" for each in paid)
        raise ValueError(f"questions must protect the same unit: {protected}")
    if len(paid) == 1:
        return Calibrated(tuple(paid), paid[0].guarantee)
    own = [each.guarantee for each in paid]
    plain = math.fsum(each.epsilon for each in own)
    cost = plain if math.fsum(each.delta for each in own) <= delta else math.inf
    curve: PrivacyCurve = PureDp(plain)
    if delta:
        joint = joint_curve([each.known_curve for each in own], max(FINEST_GRID, plain / GRID_POINTS))
        composed = joint.epsilon(delta)  # more than the sum by slack of a large epsilon, or what a grid rounds up
        curve = PointCurve(at_epsilon=cost, at_delta=delta) if cost < composed else joint
        cost = min(cost, composed)
    lasts = {one.horizon for one in own}
    shared = next(iter(lasts)) if len(lasts) == 1 else None  # else each question says for how many windows it holds
    limits = {each.name: [*each.guarantee.limits] for each in paid}
    if shared is None:
        limits = {each.name: [*limits[each.name], *each.guarantee.lasting("window")] for each in paid}
    of_each = [limit for limit in limits[paid[0].name] if all(limit in others for others in limits.values())]
    of_one = [f"{name}: {limit}" for name, listed in limits.items() for limit in listed if limit not in of_each]
    whole = replace(
        own[0],
        epsilon=cost,
        delta=delta,
        limits=tuple(dict.fromkeys([*of_one, *(f"Each question: {limit}" for limit in of_each)])),
        public=tuple(dict.fromkeys(public for one in own for public in one.public)),
        caveats=tuple(dict.fromkeys(caveat for one in own for caveat in one.caveats)),
        proof="; ".join(dict.fromkeys([PROOF, *(one.proof for one in own if one.proof)])),
        horizon=shared,
        curve=curve,
    )
    return Calibrated(tuple(paid), whole)


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


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The budget of a monitor, shared out.

    Attributes:
        given: arguments of their transforms, but for the budget and the noise, by name.
        questions: what each gets, with what its transform promises.
        guarantee: what is promised of all together.
    """

    monitor: Monitor
    fields: Mapping[str, FieldMapping]
    given: Mapping[str, Mapping[str, Any]]
    questions: tuple[Paid, ...]
    guarantee: PrivacyGuarantee

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
            return planned(monitor.questions[name], given[name], epsilon, delta, unbounded=goes_on)

        if monitor.single:
            (name,) = monitor.questions
            made = make(name, epsilon, delta)
            found = Calibrated((Paid(name, 1.0, epsilon, delta, made, made.guarantee),), made.guarantee)
        else:
            asked = [Sharing(name, each.share, partial(make, name)) for name, each in monitor.questions.items()]
            found = calibrate(asked, epsilon, delta)
            _check_same_people(monitor, found.guarantee)
        return cls(monitor=monitor, fields=fields, given=given, **found._asdict())

    @property
    def transforms(self) -> dict[str, Any]:
        """What the questions promise in a plan, by name."""
        return {paid.name: paid.transform for paid in self.questions}

    def arguments(self, paid: Paid) -> dict[str, Any]:
        """Return the arguments of the transform of a question, with its budget."""
        return with_budget(self.monitor.questions[paid.name], self.given[paid.name], paid.epsilon, paid.delta)


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


def _check_same_people(monitor: Monitor, guarantee: PrivacyGuarantee) -> None:
    """Refuse questions that mean different things by the person whom all protect together."""
    if guarantee.unit.what != "person":
        return
    users = {name: question.user or monitor.data.user for name, question in monitor.questions.items()}
    first = next(iter(users))
    for name, user in users.items():
        if user != users[first]:
            rule = f"must be {users[first]}, as in {first}, for all questions together protect {guarantee.unit}"
            raise WrongKeyError(("questions", name, "user"), f"{rule}; got {user}")
