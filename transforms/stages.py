"""What all transforms from events to private rows are: stages, each of which may set records aside, and a promise."""

from __future__ import annotations

import copy
import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self, cast

import apache_beam as beam
import pyarrow as pa
from apache_beam.options.pipeline_options import DebugOptions
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows
from privstream.mechanisms import checks
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import Keyed, KeyedBatch, shard_key
from privstream.transforms.parameters import Parameters, plain
from privstream.transforms.people.bounding import CloseWindows, SplitByRules, SplitEvents, ToClock
from privstream.transforms.reading.domain import MOST_COLUMNS
from privstream.transforms.reading.elements import GatherRows
from privstream.transforms.reading.fields import DEAD_LETTERS, UNREAD, DeadLetter
from privstream.transforms.reading.filters import Filter
from privstream.transforms.reading.frames import AS_NAMED, FieldNames
from privstream.transforms.reading.times import PER_SECOND, TimeForm, zone_clock
from privstream.transforms.timing.step_fn import StepFn, WithClock, check_runner
from privstream.transforms.timing.steps import Steps
from typing_extensions import override

KEEP_BUNDLES_WHOLE = "prism_disable_sdf_split"
"""Prism (Beam 2.77) splits slow bundles in the middle of a key, runs both parts at once, and keeps the state of one
alone: batches would be lost, and what is remembered of people. Other runners ignore the name."""

ApplyDoFn = Callable[[PCollection[Any], beam.DoFn, Any], PCollection[Any]]
"""Adds a stage after a collection: given its function and the type of what it emits, returns that."""


class Segment(NamedTuple):
    """Some stages that follow each other; `stages` adds them to what is before them.

    They give what has the type `gives`: pairs of which the first is an encoded `StepKey`; None for rows, of which one
    process must have all.
    """

    stages: Callable[[PCollection[Any], ApplyDoFn], PCollection[Any]]
    gives: Any = None


class Shared(NamedTuple):
    """Which of the processes that share out shards this is, from 0 on, and how many there are."""

    number: int
    processes: int

    def of(self, shards: int) -> range:
        """Return which of a number of shards are this one's."""
        return range(self.number, shards, self.processes)


ALL = Shared(0, 1)


class Published(NamedTuple):
    """Both outputs of a pipeline: what is published, and what could not be used (which is not for publication)."""

    rows: PCollection[Any]
    dead_letters: PCollection[Any]


class PrivateTransform(Parameters, beam.PTransform[Any, Any]):
    """Events in, rows that are private out, and dead letters where they are asked for."""

    _dead_letters = False
    _segment: int | None = None
    _shared = ALL
    _names: FieldNames = AS_NAMED

    build: Callable[[Any, ApplyDoFn], PCollection[Any]]
    """Builds all stages, where these are one segment."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The stages in order, cut where processes may share them out: all segments but one that gives rows.

        Each process has a part of the input in the first segment, and the keys of some shards in those that follow.
        What a segment gives under a key must not depend on other keys, or on how its input was shared out.
        """
        return (Segment(self.build),)

    @property
    def shared_segments(self) -> int:
        """How many segments, the first ones, processes may share out."""
        return sum(segment.gives is not None for segment in self.segments)

    def segment(self, number: int, shared: Shared = ALL) -> Self:
        """Return the same transform with one of its segments only, of some shards, and `Published` as its output."""
        other = self.with_dead_letters()
        other._segment, other._shared = number, shared
        return other

    def with_dead_letters(self) -> Self:
        """Return the same transform with `Published` as its output."""
        other = copy.copy(self)
        other._dead_letters = True
        return other

    def with_fields(
        self,
        *,
        user: str = "user",
        item: str | Sequence[str] = "item",
        time: str | None = "time",
        value: str = "value",
        time_unit: str | None = None,
        time_zone: str | None = None,
        where: str | None = None,
    ) -> Self:
        """Return the same transform for elements whose fields have these names, as on the command line.

        These are rows of Beam, named tuples, dataclasses or mappings; and Arrow batches, tables, and frames of pandas
        or Polars, each with many events. Fields that the transform does not read need not be there.

        Args:
            user, value: the fields with the person and the number.
            item: the field with the item, or a list of fields that are an item together: a text such as `de, /error`
                in rows and public lists, where a part with a comma or a quote stands in quotes, with quotes doubled.
            time: the field with the time: a timestamp, ISO 8601 text, or a number in `time_unit`; None: the
                timestamp of each row is its time. Frames need one.
            time_unit: unit of times that are plain numbers: s, ms, us or ns.
            time_zone: where the clocks are that wrote times without an offset from UTC, such as Europe/Berlin or UTC;
                without it such times are refused.
            where: condition on fields of a row that it must meet to count, such as `status >= 500`; see
                docs/input.md. It is public, and rows that pass another one are other data: noise needs another run id.

        Raises:
            ValueError, TypeError: an argument breaks its rule, or `value` is given and no number is read.
        """
        if self.event_fields.value == UNREAD and value != "value":
            raise ValueError(f"value must not be given where {type(self).__name__} reads no numbers of events")
        other = copy.copy(self)
        if time_zone is not None:
            zone_clock(_text("time_zone", time_zone, "the name of a time zone"))
        unit = None if time_unit is None else checks.one_of("time_unit", time_unit, tuple(PER_SECOND))
        items = tuple(_text("item", name) for name in (item if isinstance(item, list | tuple) else [item]))
        if not 1 <= len(items) <= MOST_COLUMNS or len(set(items)) < len(items):
            raise ValueError(f"item must be a field, or a list of 1 to {MOST_COLUMNS} different ones")
        other._names = FieldNames(
            user=_text("user", user),
            item=items,
            time=None if time is None else _text("time", time),
            value=_text("value", value),
            stamped=False,
            times=TimeForm(unit=unit, zone=time_zone),
            where=None if where is None else Filter(where),
        )
        return other

    def of_checked(self, columns: pa.Schema) -> Self:
        """Return the same transform for batches that `read_rows` has checked, with the columns that it reads."""
        if columns != self.event_fields.schema:
            raise ValueError("batches must have the columns that are read")
        other = copy.copy(self)
        other._names = FieldNames(checked=True)
        return other

    def read(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[pa.RecordBatch]:
        """Add the stage from elements to checked batches of the columns of `EventFields.schema`."""
        everywhere = events | "InOneWindow" >> beam.WindowInto(GlobalWindows())
        if self._names.checked:
            return cast(PCollection[pa.RecordBatch], everywhere)
        return apply_dofn(everywhere, GatherRows(self.event_fields, self._names), pa.RecordBatch)

    @override
    def expand(self, events: Any) -> PCollection[Any] | Published:
        for each in events.values() if isinstance(events, Mapping) else (events,):
            check_runner(each.pipeline)
            if not isinstance(windows := each.windowing.windowfn, GlobalWindows):  # questions would pass over them
                raise ValueError(
                    f"input must be in the global window, got {type(windows).__name__}: the argument window makes "
                    "windows of the times of events; leave WindowInto out, or put beam.WindowInto(GlobalWindows()) "
                    "behind it"
                )
        dead: list[PCollection[Any]] = []
        options = hashlib.blake2b(self.fingerprint + json.dumps(plain(self._names)).encode(), digest_size=8).digest()

        def apply_dofn(source: PCollection[Any], fn: beam.DoFn, output: Any) -> PCollection[Any]:
            if isinstance(fn, StepFn):
                fn.options = options
            typed = beam.ParDo(fn).with_output_types(output, **{DEAD_LETTERS: DeadLetter})
            outputs = source | type(fn).__name__ >> typed.with_outputs(DEAD_LETTERS, main="rows")
            dead.append(outputs[DEAD_LETTERS])
            return cast(PCollection[Any], outputs["rows"])

        rows = events
        for segment in self.segments if self._segment is None else (self.segments[self._segment],):
            rows = segment.stages(rows, apply_dofn)
        rows.pipeline.options.view_as(DebugOptions).add_experiment(KEEP_BUNDLES_WHOLE)
        return Published(rows, dead | "DeadLetters" >> beam.Flatten()) if self._dead_letters else rows


class PeopleTransform(PrivateTransform):
    """Events in; they are split, bounded and published: a segment each.

    Attributes:
        domain: what is counted: how many there are, and the `codes` of events, -1 for none; None for any item.
        rules: what is counted in place of items: people with an event that meets a rule.
    """

    steps: Steps
    noise: NoiseSource
    shards: int
    domain: Any = None
    rules: tuple[Any, ...] = ()

    @property
    @override
    def segments(self) -> tuple[Segment, ...]:
        return Segment(self._split, KeyedBatch), Segment(self._closed, Keyed), Segment(self._publish)

    @property
    def publishing_noise(self) -> NoiseSource:
        """The noise of what is published: a run with other parameters shares none of it."""
        return self.noise.derive("rows", self.steps.label, json.dumps(self.release, sort_keys=True))

    def _split(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        return apply_dofn(self.read(events, apply_dofn), self._splitter(), KeyedBatch)

    def _closed(self, batches: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Close the windows, and bound people in each window and then in the run."""
        in_window, *in_run = self._limits()
        held = apply_dofn(batches | "CloseWindows" >> CloseWindows(self.steps), in_window, Keyed)
        for stage in in_run:
            clocks = WithClock(self.steps, map(shard_key, self._shared.of(self.shards)))
            held = apply_dofn(held | "PeopleClocks" >> clocks, stage, Keyed)
        return held

    def _publish(self, counted: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Add the stages from what counts to rows."""
        last = self._last()
        return apply_dofn(counted | "WithClock" >> WithClock(self.steps), last, last.row_type)

    def _splitter(self, **given: Any) -> beam.DoFn:
        """Return the stage from checked batches to parts of them by window and shard of people."""
        common: dict[str, Any] = {"steps": self.steps, "noise": self.noise, "shards": self.shards}
        if self.rules:
            return SplitByRules(**common, rules=self.rules, **given)
        return SplitEvents(**common, domain=self.domain, positions=self.domain is not None, **given)

    def _limits(self) -> Sequence[beam.DoFn]:
        """Return what bounds a person in a window, and perhaps in the run; or what takes all events."""
        return (ToClock(),)

    @abstractmethod
    def _last(self) -> Any:
        """Return the stage that publishes."""


def _text(argument: str, name: object, what: str = "the name of a field") -> str:
    if not isinstance(name, str):
        raise TypeError(f"{argument} must be {what}, got {type(name).__name__}")
    if not name:
        raise ValueError(f"{argument} must be {what}, got ''")
    return name
