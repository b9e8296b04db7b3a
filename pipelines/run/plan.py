"""What is done with a budget before any data is read: what each question gets, and what is promised of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Self

from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.model.base import WrongKeyError
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.model.public_lists import Reading, domain, of_columns
from privstream.pipelines.model.question import Question
from privstream.pipelines.run.calibration import Calibrated, Paid, Sharing, calibrate
from privstream.pipelines.sources.fields import FieldMapping
from privstream.transforms.reading.domain import column_names


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
        """Share out the budget of a monitor.

        Args:
            unbounded: whether rows are seen while the run goes on; None where the input says it.
        """
        goes_on = monitor.data.unbounded if unbounded is None else unbounded
        epsilon, delta = monitor.privacy.epsilon, monitor.privacy.spent_delta
        fields, given = {}, {}
        for name, question in monitor.questions.items():
            with about(monitor, name):
                fields[name] = monitor.data.fields(question)
                given[name] = arguments_of(monitor, name, fields[name])

        def made(name: str, epsilon: float, delta: float) -> Any:
            question = monitor.questions[name]
            own = with_budget(question, given[name], epsilon, delta)
            try:
                return _planned(question.info.planned_class, tuple(own.items()), goes_on)
            except TypeError:  # a list, by which nothing is looked up
                return _made(question.info.planned_class, own, goes_on)

        if monitor.single:
            (name,) = monitor.questions
            transform = made(name, epsilon, delta)
            found = Calibrated((Paid(name, 1.0, epsilon, delta, transform),), transform.guarantee)
        else:
            asked = [Sharing(name, each.share, partial(made, name)) for name, each in monitor.questions.items()]
            found = calibrate(asked, epsilon, delta)
            _check_same_people(monitor, found.guarantee)
        return cls(monitor=monitor, fields=fields, given=given, questions=found.questions, guarantee=found.guarantee)

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


def arguments_of(monitor: Monitor, name: str, fields: FieldMapping) -> dict[str, Any]:
    """Return the arguments of the transform of a question, but for the budget and the noise."""
    question, reading = monitor.questions[name], Reading.of(monitor.data)
    if named := _named_in_alerts(monitor, name, reading):
        question = question.model_copy(update={"public_items": named})
    given = question.arguments(monitor.windows, reading, monitor.data.time_zone)
    return of_columns(given, len(fields.several)) if fields.several else given


@lru_cache(maxsize=128)
def _planned(kind: Any, arguments: tuple[tuple[str, Any], ...], unbounded: bool) -> Any:
    """Return what `_made` does, once for questions that differ in their fields and conditions alone."""
    return _made(kind, dict(arguments), unbounded)


def _made(kind: Any, arguments: Mapping[str, Any], unbounded: bool) -> Any:
    """Return what a transform promises, whatever noise it has."""
    made = kind(**arguments, noise=KeyedNoise.random("plan"))
    return made if unbounded else made.to_finish()


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


def _named_in_alerts(monitor: Monitor, name: str, reading: Reading) -> tuple[str, ...]:
    """Return the public items of counts that stay found, with those that views of alerts name; none without any more.

    The file is public, and so are these items: they are published in every window.
    """
    question = monitor.questions[name]
    lasting = question.info.word == "counts" and getattr(question, "over", "window") != "start"
    if not lasting or getattr(question, "domain", None) is not None:
        return ()
    columns, given = len(column_names(question.item or monitor.data.item)), getattr(question, "public_items", None)
    listed = [] if given is None else domain("public_items", given, reading).texts.to_pylist()
    named = [
        view.item[0] if columns == 1 else ",".join('"{}"'.format(part.replace('"', '""')) for part in view.item)
        for view in monitor.views.values()
        if view.item is not None and len(view.item) == columns and _is_about(monitor, view.of, name)
    ]
    more = [item for item in dict.fromkeys(named) if item not in listed]
    return (*listed, *more) if more else ()


def _is_about(monitor: Monitor, source: str | None, name: str, depth: int = 0) -> bool:
    """Tell whether a source is a question, or sums or ratios that are made of it."""
    if source == name:
        return True
    view = monitor.views.get(source or "")
    if view is None or depth > len(monitor.views) or (view.over is None and view.ratio is None):
        return False
    return any(_is_about(monitor, one, name, depth + 1) for one in (view.of, *(view.ratio or ())))
