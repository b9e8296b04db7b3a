"""What questions share that publish something after every window: the last stage, and how others lead to it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import Keyed, KeyedBatch
from privstream.transforms.people.bounding import BoundEvents
from privstream.transforms.stages import ApplyDoFn, PeopleTransform, Segment
from privstream.transforms.timing.clock import CloseWindows, ToClock, WithClock
from privstream.transforms.timing.step_fn import StepFn
from typing_extensions import override


class RunningAnswers(StepFn):
    """On a public clock: run a mechanism through every window, and make rows of what it releases."""

    row_type: ClassVar[type[Any]]

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Any) -> tuple[Any, list[Any]]:
        state, found = self.mechanism.step(state, self.given(step, batches), self.noise_of(step))
        rows = [self.row_type(*self.steps.bounds(step), *fields) for fields in self.rows(state, found)]
        self.published.inc(len(rows))
        return state, rows

    @abstractmethod
    def given(self, step: int, batches: list[bytes]) -> Any:
        """Return what the mechanism is given."""

    @abstractmethod
    def rows(self, state: Any, found: Any) -> Iterable[tuple[Any, ...]]:
        """Return the fields of each row behind those of the window."""


class RunningTransform(PeopleTransform):
    """Events in; what a mechanism makes of all of them so far, after every window, out.

    Where `_packer` is a stage, an event is protected, and events are packed at once; else people are bounded.
    """

    last_stage: type[RunningAnswers]
    mechanism: Any
    noise: NoiseSource

    _asked: Mapping[str, Any] = MappingProxyType({})
    """What the last stage is given beside mechanism and noise."""

    _labels: tuple[str, ...] = ()
    """All that rows depend on beside events, windows and the mechanism, as parts of noise labels."""

    @property
    @override
    def segments(self) -> tuple[Segment, ...]:
        if self._packer() is None:
            return super().segments
        return Segment(self._packed, KeyedBatch), Segment(self._publish_packed)

    @property
    def _people(self) -> NoiseSource:
        """What tells people apart, and orders what they have."""
        return self.noise.derive("people")

    def _noise(self) -> NoiseSource:
        return self.noise.derive(type(self).__name__, self.steps.label, *self._labels)

    def _packer(self) -> beam.DoFn | None:
        """Return the stage from checked batches to what a mechanism is given, where no person is bounded."""
        return None

    def _limits(self) -> tuple[BoundEvents, StepFn]:
        """Return what bounds a person in a window, and in the run."""
        raise NotImplementedError

    def _packed(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        packer = self._packer()
        assert packer is not None
        return apply_dofn(self._gather(events, apply_dofn), packer, KeyedBatch)

    def _publish_packed(self, packed: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        closed = packed | "CloseWindows" >> CloseWindows(self.steps)
        return self._publish(apply_dofn(closed, ToClock(), Keyed), apply_dofn)

    @override
    def _splitter(self) -> beam.DoFn:
        raise NotImplementedError

    @override
    def _bound(self, closed: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        in_window, in_run = self._limits()
        held = apply_dofn(closed, in_window, Keyed)
        return apply_dofn(held | "PeopleClocks" >> WithClock(self.steps, self.people), in_run, Keyed)

    @override
    def _publish(self, counts: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        clocked = counts | "WithClock" >> WithClock(self.steps)
        given = {"mechanism": self.mechanism, "noise": self._noise(), **self._asked}
        return apply_dofn(clocked, self.last_stage(steps=self.steps, timer_offset=2, **given), self.last_stage.row_type)
