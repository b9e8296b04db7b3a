"""A private transform on rows: fields with any names in, fields with plain values out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, get_type_hints

import apache_beam as beam
from apache_beam.pvalue import PCollection, Row
from apache_beam.transforms.window import GlobalWindows
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.schemas import named_fields_from_element_type
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import checks
from privstream.pipelines.noise_key import noise_source
from privstream.pipelines.questions.options import STREAMS, STREAMS_PER_PERSON
from privstream.pipelines.questions.readings import arguments_of
from privstream.pipelines.questions.spec import QuestionSpec
from privstream.pipelines.yaml.configuration import GOOD, error_output
from privstream.transforms.events.dead_letters import DEAD_LETTERS, DeadLetter
from privstream.transforms.events.event_fields import UNREAD
from privstream.transforms.events.event_rows import EVENTS, Event, ReadRows
from privstream.transforms.events.private_transform import PrivateTransform
from privstream.transforms.events.times import PER_SECOND

STREAM = "stream"

_LOGGER = logging.getLogger(__name__)


class OnRows(beam.PTransform[Any, Any]):
    """Read events from rows, publish what a private transform makes of them, and give out rows that cannot be used.

    Times are published as ISO 8601 text, since the sinks of Beam YAML cannot write Beam's timestamps.

    Args:
        spec: the question.
        given: plain values of its options, by name; see `readings`.
        added: what a configuration says beside them; see `configuration.ADDED`.
    """

    def __init__(self, spec: QuestionSpec, *, given: Mapping[str, Any], added: Mapping[str, Any]) -> None:
        super().__init__(spec.transform.rpartition(".")[2])
        unit = added["time_unit"]
        self.time_unit = None if unit is None else checks.one_of("time_unit", unit, tuple(PER_SECOND))
        asked = any(given.get(name) is not None for name in (STREAMS, STREAMS_PER_PERSON))
        self.stream_field = (
            (STREAM if asked else None) if added["stream_field"] is None else added["stream_field"] or None
        )
        self.error_output = error_output(added["error_handling"])
        places = (added["noise_key_file"], added["noise_key_variable"])
        secret = noise_source(*places, added["run_id"])
        if places == (None, None):
            _LOGGER.warning("noise key: a new random one, for this run only; noise_key_file makes runs repeatable")
        arguments = arguments_of(spec, given, streams=self.stream_field is not None)
        self.made: PrivateTransform = spec.transform_class(**arguments, noise=secret)
        self.row_type = spec.row_type_of(self.made)
        names = {name: added[name] for name in ("user_field", "item_field", "time_field", "value_field")}
        read = self.made.event_fields
        unread = {
            "user_field": read.user == UNREAD,
            "item_field": not read.item,
            "value_field": read.value == UNREAD,
        }
        self.fields: dict[str, Any] = {key: None if unread.get(key) else name for key, name in names.items()}

    def expand(self, rows: PCollection[Any]) -> Any:
        """Build the stages around the transform."""
        self._check_fields(_field_names(rows))
        _LOGGER.info("%s", self.made.guarantee.paragraph())
        read = beam.ParDo(ReadRows(**self.fields, stream_field=self.stream_field, time_unit=self.time_unit))
        events = (
            rows
            | "InOneWindow" >> beam.WindowInto(GlobalWindows())
            | "ReadRows"
            >> read.with_output_types(Event, **{DEAD_LETTERS: DeadLetter}).with_outputs(DEAD_LETTERS, main=EVENTS)
        )
        published = events[EVENTS] | self.label >> self.made.with_dead_letters()
        plain = {name: str if hint is Timestamp else hint for name, hint in get_type_hints(self.row_type).items()}
        found = published.rows | "TimesAsText" >> beam.Map(_with_times_as_text).with_output_types(
            RowTypeConstraint.from_fields(list(plain.items()))
        )
        if self.error_output is None:
            return found
        dead = (events[DEAD_LETTERS], published.dead_letters) | "AllDeadLetters" >> beam.Flatten()
        return {GOOD: found, self.error_output: dead}

    def _check_fields(self, names: list[str]) -> None:
        """Check that all fields that are read are there."""
        for key, name in (self.fields | {"stream_field": self.stream_field}).items():
            if name is not None and name not in names:
                raise ValueError(f"{key} must be a field of the input, got {name!r}; its fields are {', '.join(names)}")


def _with_times_as_text(row: Any) -> Row:
    """Write the times of a row as text."""
    return Row(
        **{name: value.to_rfc3339() if isinstance(value, Timestamp) else value for name, value in row._asdict().items()}
    )


def _field_names(rows: PCollection[Any]) -> list[str]:
    """Return the fields of rows."""
    element: Any = rows.element_type
    try:
        return [name for name, _ in named_fields_from_element_type(element)]
    except TypeError:
        raise TypeError(f"input must be rows with a schema, got {element}") from None
