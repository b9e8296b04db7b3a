"""Questions that noisy counts answer: their rows are a view of those of `counts`, at no cost."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.transforms.counters import counter
from privstream.transforms.counts.keyed_counts import CountsParameters
from privstream.transforms.parameters import Parameters
from privstream.transforms.row_types import CONTINUES
from privstream.transforms.timing.steps import Steps
from typing_extensions import override

ABOUT = 2
"""The place of the item, or the rule, in a report."""


class Number(NamedTuple):
    """The number that `counts` shows for an item in a window, and its interval of 95%."""

    value: float
    lower: float
    upper: float


def shown(row: Any) -> Number:
    """Return the number of a row of counts."""
    return Number(row.people, row.lower, row.upper)


def with_streaks(rows: list[Any], before: list[Any]) -> list[Any]:
    """Let reports about items, or rules, go on that were there in the window before.

    Args:
        rows: those of a window, each as if it were the first of its item, which is the field after the window.
        before: those that were published for the window before.
    """
    since = {row[ABOUT]: row.since for row in before}
    return [row._replace(since=since[row[ABOUT]], status=CONTINUES) if row[ABOUT] in since else row for row in rows]


class CountsView(ABC):
    """What is published of the rows of counts, window by window.

    Privacy: post-processing of published rows; a view has no noise, no key, and no state that is not public.
    """

    row_type: ClassVar[Any]
    counter: ClassVar[str]

    @abstractmethod
    def of_row(self, row: Any) -> Iterable[Any]:
        """Return what a row of counts gives by itself."""

    def choose(self, rows: list[Any]) -> list[Any]:
        """Return what is published of all these in a window."""
        return rows

    def follow(self, rows: list[Any], before: list[Any]) -> list[Any]:
        """Return the same, given what was published in the window before."""
        return rows

    def publish(self, rows: list[Any], before: list[Any]) -> list[Any]:
        """Return what is published of a window, and count it."""
        found = self.follow(rows, before)
        counter(self.counter).inc(len(found))
        return found

    def of_run(self, counts: Sequence[Any], steps: Steps) -> Iterator[Any]:
        """Yield the rows of a run that has ended, from all rows of counts."""
        last, before = None, list[Any]()
        ordered = sorted(counts, key=_start)
        for _, window in groupby(ordered, key=_start):
            rows = [*window]
            step = steps.ending(rows[0].window_end)
            if last is None or step != last + 1 or steps.starts_afresh(last, step):
                before = []
            found = self.choose([given for row in rows for given in self.of_row(row)])
            last, before = step, self.publish(found, before)
            yield from before


def _start(row: Any) -> int:
    return int(row.window_start.micros)


class CountedParameters(Parameters):
    """Parameters of a question that counts answer, unless another method is asked for.

    Attributes:
        counts: what answers; None where another method does.
        view: what is published of its rows.
        steps: the windows.
    """

    counts_type: ClassVar[type[CountsParameters]] = CountsParameters
    of_methods: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    """Arguments that only some methods have, and which."""

    method: str = "counts"
    counts: CountsParameters | None = None
    view: CountsView
    steps: Steps
    _ended = False

    def _check_method(self, method: str, *methods: str) -> None:
        """Take a method; refuse arguments that it does not have.

        Raises:
            ValueError: there is no such method, or an argument is given that it does not have.
        """
        self.method = checks.one_of("method", method, methods)
        for name, able in self.of_methods.items():
            if self._given.get(name) is not None and method not in able:
                raise ValueError(f"{name} must not be given with the method {method}: it is for {' and '.join(able)}")

    def _by_counts(self, **changed: Any) -> None:
        """Let counts answer, with the arguments that they share with this question, or with others in their place."""
        shared = inspect.signature(CountsParameters).parameters
        given = {name: value for name, value in self._given.items() if name in shared} | changed
        self.counts = self.counts_type(**{name: value for name, value in given.items() if value is not None})
        self.steps = self.counts.steps

    @override
    def to_finish(self) -> Self:
        if self.counts is None:
            return self
        made = copy.copy(self)
        made.counts, made._ended = self.counts.to_finish(), True
        return made

    @override
    def in_columns(self) -> Self:
        made = copy.copy(self)
        made.counts = self.counts.in_columns() if self.counts is not None and self._ended else self.counts
        return made

    @property
    @override
    def finish_table(self) -> Callable[[Any], Any] | None:
        return None if self.counts is None else self.counts.finish_table

    @property
    @override
    def explained(self) -> Callable[[Sequence[Any]], list[Any]] | None:
        return self._of_counts if self.counts is not None and self._ended else None

    def _of_counts(self, rows: Sequence[Any]) -> list[Any]:
        """Return the rows of a run that has ended, from all rows of counts."""
        return list(self.view.of_run(rows, self.steps))

    @property
    @override
    def release(self) -> Mapping[str, Any]:
        """That of the counts, of which the rows are a view."""
        return super().release if self.counts is None else self.counts.release

    @property
    @override
    def promise(self) -> PrivacyGuarantee:
        return self._other_promise if self.counts is None else self.counts.promise

    @property
    @override
    def accuracy(self) -> Accuracy:
        return self._other_accuracy if self.counts is None else self.counts.accuracy

    @property
    @override
    def advice(self) -> str:
        return "" if self.counts is None else self.counts.advice

    @property
    @abstractmethod
    def _other_promise(self) -> PrivacyGuarantee:
        """What another method promises."""

    @property
    @abstractmethod
    def _other_accuracy(self) -> Accuracy:
        """How accurate another method is."""
