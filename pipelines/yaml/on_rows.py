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
from privstream.pipelines.noise_key import noise_source
from privstream.pipelines.questions.options import STREAMS
from privstream.pipelines.questions.readings import arguments_of
from privstream.pipelines.questions.spec import STREAMS_PER_PERSON, QuestionSpec
from privstream.pipelines.yaml.configuration import GOOD, error_output
from privstream.transforms.events.private_transform import PrivateTransform

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
        made: PrivateTransform = spec.transform_class(**arguments, noise=secret)
        self.row_type = spec.row_type_of(made)
        names = {name: added[name] for name in ("user_field", "item_field", "time_field", "value_field", "time_unit")}
        self.made = made.with_fields(**names, stream_field=self.stream_field or "")

    def expand(self, rows: PCollection[Any]) -> Any:
        """Build the stages around the transform."""
        _check_schema(rows)
        _LOGGER.info("%s", self.made.guarantee.paragraph())
        published = (
            rows | "InOneWindow" >> beam.WindowInto(GlobalWindows()) | self.label >> self.made.with_dead_letters()
        )
        plain = {name: str if hint is Timestamp else hint for name, hint in get_type_hints(self.row_type).items()}
        found = published.rows | "TimesAsText" >> beam.Map(_with_times_as_text).with_output_types(
            RowTypeConstraint.from_fields(list(plain.items()))
        )
        if self.error_output is None:
            return found
        return {GOOD: found, self.error_output: published.dead_letters}


def _with_times_as_text(row: Any) -> Row:
    """Write the times of a row as text."""
    return Row(
        **{name: value.to_rfc3339() if isinstance(value, Timestamp) else value for name, value in row._asdict().items()}
    )


def _check_schema(rows: PCollection[Any]) -> None:
    """Refuse what are no rows with a schema."""
    element: Any = rows.element_type
    try:
        named_fields_from_element_type(element)
    except TypeError:
        raise TypeError(f"input must be rows with a schema, got {element}") from None
