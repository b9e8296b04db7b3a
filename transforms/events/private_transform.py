"""What all transforms from events to private rows are: stages, each of which may set records aside, and a promise."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import fields, is_dataclass, replace
from numbers import Real
from types import MappingProxyType
from typing import Any, NamedTuple, Self, cast

import apache_beam as beam
import pyarrow as pa
from apache_beam.options.pipeline_options import DebugOptions
from apache_beam.pvalue import PCollection
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import Accuracy, Coverage
from privstream.mechanisms.noise.sources import NoiseSource, check_noise
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.transforms.events.dead_letters import DEAD_LETTERS, DeadLetter, LogSetAside
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.element_types import check_names, check_windows
from privstream.transforms.events.event_fields import UNREAD, EventFields
from privstream.transforms.events.filters import Filter
from privstream.transforms.events.item_columns import MOST_COLUMNS
from privstream.transforms.events.local_times import zone_clock
from privstream.transforms.events.named_fields import Event, ReadRows
from privstream.transforms.events.split import check_texts
from privstream.transforms.events.times import PER_SECOND
from privstream.transforms.timing.keyed_state import KeyedState, check_runner
from privstream.transforms.timing.steps import Steps, WindowOptions, of_period
from typing_extensions import override

ROWS = "rows"
DOMAIN = "domain"

KEEP_BUNDLES_WHOLE = "prism_disable_sdf_split"
"""Prism (Beam 2.77) splits slow bundles in the middle of a key, runs both parts at once, and keeps the state of one
alone: batches would be lost, and what is remembered of people. Other runners ignore the name."""

ApplyDoFn = Callable[[PCollection[Any], beam.DoFn, Any], PCollection[Any]]
"""Adds a stage after a collection: given its function and the type of what it emits, returns that."""


class Published(NamedTuple):
    """Both outputs of a pipeline: what is published, and what could not be used (which is not for publication)."""

    rows: PCollection[Any]
    dead_letters: PCollection[Any]


class PrivateTransform(beam.PTransform[Any, Any]):
    """Events in, rows that are private out, and dead letters where they are asked for.

    Args:
        noise: what all noise is drawn from.
    """

    _dead_letters = False
    _read_rows: ReadRows | None = None
    _given: Mapping[str, Any] = MappingProxyType({})

    def __init_subclass__(cls) -> None:
        """Let signatures have the options of windows, too, that a transform hands on."""
        super().__init_subclass__()
        made = inspect.signature(cls.__init__)
        own = list(made.parameters.values())[1:]
        if own and own[-1].kind is own[-1].VAR_KEYWORD and WindowOptions.__name__ in str(own[-1].annotation):
            options = inspect.signature(Steps.of).parameters
            shared = [options[name] for name in WindowOptions.__annotations__ if name not in made.parameters]
            own[-1:] = shared
        cls.__signature__ = made.replace(  # type: ignore[attr-defined]
            parameters=own, return_annotation=inspect.Signature.empty
        )

    def __new__(cls, *others: Any, **given: Any) -> Self:
        """Keep the parameters, which are public, for `repr`; what noise is drawn from is none.

        What is missing or unknown is named here, as an argument of this transform, not of what it is handed on to.
        """
        if given:  # nothing is given where a copy or a pickle is read
            try:
                inspect.signature(cls).bind(*others, **given)
            except TypeError as error:
                raise TypeError(f"{cls.__name__}: {error}") from None
        made = super().__new__(cls)
        if given.get(DOMAIN) is not None:
            given[DOMAIN] = Domain.of(given[DOMAIN])  # a list is the same as the domain that is made of it
        made._given = {name: value for name, value in given.items() if name != "noise"}
        return made

    def __init__(self, noise: NoiseSource) -> None:
        super().__init__()
        check_noise(noise)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={_shown(value)}' for name, value in self._given.items())})"

    @property
    def finish(self) -> Callable[[Sequence[Any]], list[Any]] | None:
        """What may be done to all rows of a run that has ended, before they are written; post-processing."""
        return None

    @property
    def unfinished(self) -> type | None:
        """What the rows are that `finish` gets, if they are others than those that it returns."""
        return None

    def to_finish(self) -> Self:
        """Return this transform for a run whose rows `finish` gets: in another form, with all that it may leave out."""
        return self

    @property
    def unused(self) -> frozenset[str]:
        """Names of arguments that shape neither what counts nor noise, for the method taken does not use them."""
        return frozenset()

    @property
    def views(self) -> Mapping[str, Any]:
        """Arguments that, in this run, only say what is shown of published numbers, as these are published."""
        return {}

    @property
    @abstractmethod
    def promise(self) -> PrivacyGuarantee:
        """What is promised by a run in which nothing starts afresh."""

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """What is promised: over the whole run and all streams, or to what a person does until all starts afresh."""
        steps: Steps | None = getattr(self, "steps", None)  # queries about one data set have no windows
        return self.promise if steps is None else of_period(replace(self.promise, step="window"), steps)

    @property
    @abstractmethod
    def prediction(self) -> Accuracy:
        """How accurate the rows are about what counts, by public parameters alone."""

    @property
    @abstractmethod
    def coverage(self) -> Coverage:
        """What counts, and so what the intervals of rows hold, in a run in which nothing starts afresh."""

    @property
    def accuracy(self) -> Accuracy:
        """How accurate the rows are, and what limits may keep out of them, by public parameters alone."""
        steps: Steps | None = getattr(self, "steps", None)
        renewed = steps is not None and steps.renewal is not None
        return replace(self.prediction, coverage=self.coverage.of_period if renewed else self.coverage)

    @property
    def advice(self) -> str:
        """What other arguments would show more for the same budget, by public parameters alone; or nothing."""
        return ""

    @property
    def public(self) -> Mapping[str, Any]:
        """Public parameters that options only name, such as the rules in a file; plain values, for guarantee files."""
        return {}

    @property
    def fingerprint(self) -> bytes:
        """Eight bytes that stand for the public parameters that differ from their defaults: state is bound to them."""
        defaults = {name: _plain(one.default) for name, one in inspect.signature(type(self)).parameters.items()}
        given = {name: _plain(value) for name, value in self._given.items()}
        given = {name: value for name, value in given.items() if name not in defaults or value != defaults[name]}
        return hashlib.blake2b(json.dumps(given, sort_keys=True).encode(), digest_size=8).digest()

    @property
    def event_fields(self) -> EventFields:
        """What is read of an event."""
        return EventFields()

    @abstractmethod
    def build(self, events: Any, apply_dofn: ApplyDoFn) -> PCollection[Any]:
        """Build the stages; return the rows."""

    def with_dead_letters(self) -> Self:
        """Return the same transform with `Published` as its output."""
        other = copy.copy(self)
        other._dead_letters = True
        return other

    def with_fields(
        self,
        *,
        user_field: str = "user",
        item_field: str | Sequence[str] = "item",
        time_field: str | None = "time",
        stream_field: str | None = None,
        value_field: str = "value",
        time_unit: str | None = None,
        time_zone: str | None = None,
        where: str | None = None,
    ) -> Self:
        """Return the same transform for elements whose fields have these names, as on the command line.

        These are rows of Beam, named tuples or dataclasses; mappings, such as Beam's sources of JSON or tables give;
        and Arrow batches, tables, and frames of pandas or Polars, each with many events. Fields that the transform does
        not read need not be there.

        Args:
            user_field, value_field: the fields with the person and the number.
            item_field: the field with the item, or a list of fields that are an item together. The items of rows, and
                of public lists, are then texts such as `de, /error`: a part with a comma or a quote stands in quotes,
                within which each quote is doubled.
            time_field: the field with the time: a timestamp, ISO 8601 text, or a number in `time_unit`; None: the
                timestamp of each row is its time. Frames need one.
            stream_field: the field with the stream; None: `stream`, if the transform needs streams, or else none.
            time_unit: unit of times that are plain numbers: s, ms, us or ns.
            time_zone: where the clocks are that wrote times without an offset from UTC, such as Europe/Berlin or UTC;
                without it such times are refused.
            where: condition on fields of a row that it must meet to count, such as `status >= 500`; see
                docs/input.md. It is public, and rows that pass another one are other data: noise needs another run id.
        """
        read = self.event_fields
        other = copy.copy(self)
        other._read_rows = ReadRows(
            user_field=None if read.user == UNREAD else user_field,
            item_field=_item_fields(item_field) if read.item else None,
            time_field=time_field if read.timed else None,
            stream_field="stream" if stream_field is None and read.streams else stream_field or None,
            value_field=None if read.value == UNREAD else value_field,
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
            if isinstance(keys := getattr(fn, "keys", None), KeyedState):
                keys.options = options
            typed = beam.ParDo(fn).with_output_types(output, **{DEAD_LETTERS: DeadLetter})
            outputs = source | type(fn).__name__ >> typed.with_outputs(DEAD_LETTERS, main=ROWS)
            dead.append(outputs[DEAD_LETTERS])
            _ = outputs[DEAD_LETTERS] | f"{type(fn).__name__}Log" >> beam.ParDo(LogSetAside())
            return cast(PCollection[Any], outputs[ROWS])

        if self._read_rows is not None:
            given = events["events"] if isinstance(events, Mapping) else events
            check_names(given, self._read_rows.names, stamped=self._read_rows.needs_stamps)
            read = apply_dofn(given, self._read_rows, Event | pa.RecordBatch)
            events = {**events, "events": read} if isinstance(events, Mapping) else read
        rows = self.build(events, apply_dofn)
        rows.pipeline.options.view_as(DebugOptions).add_experiment(KEEP_BUNDLES_WHOLE)
        return Published(rows, dead | "DeadLetters" >> beam.Flatten()) if self._dead_letters else rows


def _zone(name: str | None) -> str | None:
    """Return a time zone that there is."""
    if name is not None:
        zone_clock(name)
    return name


def _item_fields(given: str | Sequence[str]) -> str | tuple[str, ...]:
    """Return the field with the item, or those that are one together."""
    if isinstance(given, str):
        return given
    names = tuple(given)
    texts = all(isinstance(name, str) and name for name in names)
    if not 1 <= len(names) <= MOST_COLUMNS or len(set(names)) < len(names) or not texts:
        raise ValueError(f"item_field must be a field, or a list of 1 to {MOST_COLUMNS} different ones")
    return names if len(names) != 1 else names[0]


def privacy_unit(given: str, units: tuple[str, ...]) -> str:
    """Return the unit of privacy, one of these; "user", an older word for "person", is understood with a warning."""
    if given == "user" and "person" in units:
        warnings.warn('unit "user" is called "person" now', FutureWarning, stacklevel=3)
        return "person"
    return checks.one_of("unit", given, units)


def check_streams(streams: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return public names of streams; without them there is one, without a name."""
    if streams is None:
        return ("",)
    check_texts("streams", streams, "names")
    return tuple(streams)


def _plain(value: Any) -> Any:
    """Return a parameter as a plain value for JSON, the same in all versions: defaults are left out."""
    if isinstance(value, Domain):
        return value.digest
    if hasattr(value, "describe"):
        return value.describe()
    if is_dataclass(value):
        value = {each.name: own for each in fields(value) if (own := getattr(value, each.name)) != each.default}
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(each) for each in value]
    if isinstance(value, Real | Timestamp):
        value = float(value)
    return value if isinstance(value, str | float | None) else type(value).__name__


def _shown(value: Any) -> str:
    """Return a parameter as logs may have it: of lists, which may name items and streams, only how long they are."""
    if isinstance(value, str | int | float | None | Domain):
        return repr(value)
    return f"<{len(value):,} of them>" if isinstance(value, Sized) else f"<{type(value).__name__}>"
