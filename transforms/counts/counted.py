"""Questions that noisy counts answer: their rows are a view of those of `counts`, at no cost."""

from __future__ import annotations

import copy
import inspect
from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.transforms.counts.keyed_counts import CountsParameters
from privstream.transforms.parameters import View, WindowedParameters
from privstream.transforms.timing.steps import Steps
from typing_extensions import override

if TYPE_CHECKING:
    import pyarrow as pa
    from privstream.mechanisms.views.corrected import Dropped
    from privstream.transforms.counts.shown import Follow


class CountedParameters(WindowedParameters):
    """Parameters of a question that counts answer, unless another method is asked for.

    Attributes:
        counts: what answers; None where another method does.
        follow: what is made of its rows.
        steps: the windows.
    """

    counts_type: ClassVar[type[CountsParameters]] = CountsParameters
    row_type: ClassVar[type]
    counter: ClassVar[str]
    of_methods: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    """Arguments that only some methods have, and which."""

    method: str = "counts"
    counts: CountsParameters | None = None
    follow: Follow
    steps: Steps

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
    def over_files(self) -> Self:
        made = copy.copy(self)
        made.counts = self.counts and self.counts.over_files()
        return made

    @property
    @override
    def view(self) -> View | None:
        return None if self.counts is None else self._viewed

    def _viewed(self, released: pa.Table, dropped: Dropped | None) -> pa.Table:
        assert self.counts is not None
        return self.follow(self.counts.view(released, dropped), None)

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
    @abstractmethod
    def _other_promise(self) -> PrivacyGuarantee:
        """What another method promises."""

    @property
    @abstractmethod
    def _other_accuracy(self) -> Accuracy:
        """How accurate another method is."""
