"""What all transforms from events to private rows are: stages, each of which may set records aside, and a promise."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self, cast

import apache_beam as beam
import pyarrow as pa
from apache_beam.options.pipeline_options import DebugOptions
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows
from privstream.mechanisms import checks
from privstream.transforms.events.dead_letters import LogSetAside
from privstream.transforms.events.event_fields import DEAD_LETTERS, UNREAD, DeadLetter
from privstream.transforms.events.filters import Filter
from privstream.transforms.events.item_columns import MOST_COLUMNS
from privstream.transforms.events.local_times import zone_clock
from privstream.transforms.events.named_fields import Event, ReadRows
from privstream.transforms.events.parameters import Parameters
from privstream.transforms.events.times import PER_SECOND
from privstream.transforms.timing.runner_rule import check_runner
from privstream.transforms.timing.step_fn import StepFn
from typing_extensions import override

ROWS = "rows"

KEEP_BUNDLES_WHOLE = "prism_disable_sdf_split"
"""Prism (Beam 2.77) splits slow bundles in the middle of a key, runs both parts at once, and keeps the state of one
alone: batches would be lost, and what is remembered of people. Other runners ignore the name."""

ApplyDoFn = Callable[[PCollection[Any], beam.DoFn, Any], PCollection[Any]]
"""Adds a stage after a collection: given its function and the type of what it emits, returns that."""


class Segment(NamedTuple):
    """Some stages that follow each other.

    Attributes:
        stages: adds them, as `PrivateTransform.build` does.
        gives: the type of what they give: pairs of which the first is an encoded `StepKey`; None for rows, of which
            one process must have all.
    """

    stages: Callable[[PCollection[Any], ApplyDoFn], PCollection[Any]]
    gives: Any = None


class Shared(NamedTuple):
    """Which of the processes that share out shards this is.

    Attributes:
        number: of the process, from 0 on.
        processes: how many there are.
    """

    number: int
    processes: int

    def of(self, shards: int) -> range:
        """Return those of so many shards that are this one's."""
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
    _read_rows: ReadRows | None = None

    @abstractmethod
    def build(self, events: Any, apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages; return the rows."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The stages in order, cut where processes may share them out: all segments but one that gives rows.

        Each process has a part of the input in the first segment, and the keys of some shards in those that follow.
        What a segment gives under a key must not depend on other keys, or on how its input was shared out. A segment
        alone means that one process must have it all.
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

        These are rows of Beam, named tuples or dataclasses; mappings, such as Beam's sources of JSON or tables give;
        and Arrow batches, tables, and frames of pandas or Polars, each with many events. Fields that the transform does
        not read need not be there.

        Args:
            user, value: the fields with the person and the number.
            item: the field with the item, or a list of fields that are an item together. The items of rows, and
                of public lists, are then texts such as `de, /error`: a part with a comma or a quote stands in quotes,
                within which each quote is doubled.
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
        read = self.event_fields
        if read.value == UNREAD and value != "value":
            raise ValueError(f"value must not be given where {type(self).__name__} reads no numbers of events")
        other = copy.copy(self)
        other._read_rows = ReadRows(
            user_field=None if read.user == UNREAD else _field("user", user),
            item_field=_item_fields(item) if read.item else None,
            time_field=None if time is None or not read.timed else _field("time", time),
            value_field=None if read.value == UNREAD else _field("value", value),
            timed=read.timed,
            time_unit=None if time_unit is None else checks.one_of("time_unit", time_unit, tuple(PER_SECOND)),
            time_zone=_zone(time_zone),
            where=None if where is None else Filter(where),
        )
        return other

    @override
    def expand(self, events: Any) -> PCollection[Any] | Published:
        for each in events.values() if isinstance(events, Mapping) else (events,):
            check_runner(each.pipeline)
            check_windows(each)
        dead: list[PCollection[Any]] = []
        options = self.fingerprint

        def apply_dofn(source: PCollection[Any], fn: beam.DoFn, output: Any) -> PCollection[Any]:
            if isinstance(fn, StepFn):
                fn.options = options
            typed = beam.ParDo(fn).with_output_types(output, **{DEAD_LETTERS: DeadLetter})
            outputs = source | type(fn).__name__ >> typed.with_outputs(DEAD_LETTERS, main=ROWS)
            dead.append(outputs[DEAD_LETTERS])
            _ = outputs[DEAD_LETTERS] | f"{type(fn).__name__}Log" >> beam.ParDo(LogSetAside())
            return cast(PCollection[Any], outputs[ROWS])

        if self._read_rows is not None:
            given = events["events"] if isinstance(events, Mapping) else events
            read = apply_dofn(given, self._read_rows, Event | pa.RecordBatch)
            events = {**events, "events": read} if isinstance(events, Mapping) else read
        rows = self._stages(events, apply_dofn)
        rows.pipeline.options.view_as(DebugOptions).add_experiment(KEEP_BUNDLES_WHOLE)
        return Published(rows, dead | "DeadLetters" >> beam.Flatten()) if self._dead_letters else rows

    def _stages(self, events: Any, apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages that are asked for."""
        build = self.build if self._segment is None else self.segments[self._segment].stages
        return build(events, apply_dofn)


class SharedTransform(PrivateTransform):
    """A transform of several segments, which it builds one after the other."""

    @property
    @abstractmethod
    @override
    def segments(self) -> tuple[Segment, ...]: ...

    @override
    def build(self, events: Any, apply_dofn: ApplyDoFn) -> PCollection[Any]:
        for segment in self.segments:
            events = segment.stages(events, apply_dofn)
        return cast(PCollection[Any], events)


def _zone(name: object) -> str | None:
    """Return a time zone that there is."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"time_zone must be the name of a time zone, got {type(name).__name__}")
    if name is not None:
        zone_clock(name)
    return name


def _field(argument: str, name: object) -> str:
    """Return the name of a field."""
    if not isinstance(name, str):
        raise TypeError(f"{argument} must be the name of a field, got {type(name).__name__}")
    if not name:
        raise ValueError(f"{argument} must be the name of a field, got ''")
    return name


def _item_fields(given: str | Sequence[str]) -> str | tuple[str, ...]:
    """Return the field with the item, or those that are one together."""
    if not isinstance(given, list | tuple):
        return _field("item", given)
    names = tuple(_field("item", name) for name in given)
    if not 1 <= len(names) <= MOST_COLUMNS or len(set(names)) < len(names):
        raise ValueError(f"item must be a field, or a list of 1 to {MOST_COLUMNS} different ones")
    return names if len(names) != 1 else names[0]


def check_windows(given: PCollection[Any]) -> None:
    """Refuse a collection in windows of Beam: questions have windows of their own, and would pass over these.

    Raises:
        ValueError: the collection is not in the global window.
    """
    windows = given.windowing.windowfn
    if not isinstance(windows, GlobalWindows):
        raise ValueError(
            f"input must be in the global window, got {type(windows).__name__}: the argument window makes windows of "
            "the times of events; leave WindowInto out, or put beam.WindowInto(GlobalWindows()) behind it"
        )
