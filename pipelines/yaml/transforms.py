"""Questions in Beam YAML: rows with a schema in and out, everything configured by plain values.

The listing `providers.yaml` names the transforms of this module. Beam reads the keys of a configuration, and their
documentation, from the signature and the docstring of a `YamlTransform`; both are made from the description of the
question. Nothing here imports what only Beam's `yaml` extra installs.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Mapping
from typing import Any, get_type_hints

import apache_beam as beam
from apache_beam.pvalue import PCollection, Row
from apache_beam.transforms.window import GlobalWindows
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.schemas import named_fields_from_element_type
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines.accounts.run_identity import noise_source
from privstream.pipelines.questions.catalogue import WORDS, question
from privstream.pipelines.questions.option_types import OPTION_TYPES
from privstream.pipelines.questions.options import options_of
from privstream.pipelines.questions.public_lists import of_columns
from privstream.pipelines.questions.readings import arguments_of
from privstream.pipelines.questions.signature import REQUIRED
from privstream.pipelines.questions.spec import Option, QuestionSpec
from privstream.pipelines.sinks.row_files import column_types, column_values, with_item_columns
from privstream.transforms.events.item_columns import column_names
from privstream.transforms.events.private_transform import PrivateTransform
from privstream.transforms.row_types import Time
from typing_extensions import override

GOOD = "good"  # Beam YAML's name for the output beside the one of `error_handling`


ADDED: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option(
            "noise_key_file", "str", "file with the noise key, readable by every worker. Default: a new random key."
        ),
        Option("noise_key_variable", "str", "environment variable with the noise key, set on every worker."),
        Option("run_id", "str", "public name of the run. A run on other data needs another name.", ""),
        Option(
            "user_field",
            "str",
            "field with the person, text or an integer. Where the unit is an event, it is not read.",
            "user",
        ),
        Option(
            "item_field",
            "str",
            "field with the item, text or an integer; or several, as in a line of CSV: country,page.",
            "item",
        ),
        Option(
            "time_field", "str", "field with the time: ISO 8601 text, a timestamp, or a number in time_unit.", "time"
        ),
        Option(
            "value_field",
            "str",
            "field with the number that an event has beside its item. It is read where an option is about numbers.",
            "value",
        ),
        Option("time_unit", "str", "unit of times that are plain numbers: s, ms, us or ns."),
        Option("time_zone", "str", "where the clocks are that wrote times without an offset from UTC."),
        Option("where", "str", "public condition on fields of a row that it must meet to count: status >= 500."),
        Option(
            "error_handling",
            "dict[str, str]",
            "a mapping with the key output: the name of the output for rows that cannot be used. Without it they are "
            "only counted.",
        ),
    )
}
"""What a configuration says beside the arguments of the transform."""


def error_output(error_handling: Any) -> str | None:
    """Return the name of the output for dead letters."""
    if error_handling is None:
        return None
    if not isinstance(error_handling, Mapping) or list(error_handling) != ["output"]:
        raise ValueError("error_handling must be a mapping with the one key output")
    output = error_handling["output"]
    if not isinstance(output, str) or output in ("", GOOD):
        raise ValueError(f"error_handling.output must be a name other than {GOOD}, got {output!r}")
    return output


AS_IN_PYTHON = ("user_field", "time_field", "value_field", "time_unit", "time_zone", "where")
"""Keys that are arguments of `with_fields`."""

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
        self.error_output = error_output(added["error_handling"])
        places = (added["noise_key_file"], added["noise_key_variable"])
        where = added["where"]  # with another one rows are other data, which must not get the same noise
        secret = noise_source(*places, added["run_id"] if where is None else json.dumps([added["run_id"], where]))
        if places == (None, None):
            _LOGGER.warning("noise key: a new random one, for this run only; noise_key_file makes runs repeatable")
        items = column_names(added["item_field"])
        arguments = arguments_of(spec, given)
        arguments = of_columns(arguments, len(items)) if len(items) > 1 else arguments
        made: PrivateTransform = spec.transform_class(**arguments, noise=secret)
        self.row_type = with_item_columns(spec.row_type_of(made), items)
        self.made = made.with_fields(**{name: added[name] for name in AS_IN_PYTHON}, item_field=items)

    @override
    def expand(self, rows: PCollection[Any]) -> Any:
        _check_schema(rows)
        _LOGGER.info("%s", self.made.guarantee.paragraph())
        published = (
            rows | "InOneWindow" >> beam.WindowInto(GlobalWindows()) | self.label >> self.made.with_dead_letters()
        )
        hints = get_type_hints(self.row_type)
        plain = {
            name: str if kind is Time else hints.get(name, kind) for name, kind in column_types(self.row_type).items()
        }
        found = published.rows | "TimesAsText" >> beam.Map(_with_times_as_text, self.row_type).with_output_types(
            RowTypeConstraint.from_fields(list(plain.items()))
        )
        if self.error_output is None:
            return found
        return {GOOD: found, self.error_output: published.dead_letters}


def _with_times_as_text(row: Any, row_type: type) -> Row:
    """Write the times of a row as text, and an item of several columns as these."""
    values = zip(column_types(row_type), column_values(row_type, row), strict=True)
    return Row(**{name: value.to_rfc3339() if isinstance(value, Timestamp) else value for name, value in values})


def _check_schema(rows: PCollection[Any]) -> None:
    """Refuse what are no rows with a schema."""
    element: Any = rows.element_type
    try:
        named_fields_from_element_type(element)
    except TypeError:
        raise TypeError(f"input must be rows with a schema, got {element}") from None


DESCRIPTION = """{summary}

Input are rows with a person, an item and a time, output rows with {fields}. The windows are those of this
configuration; `windowing` has no influence. The guarantee is logged when the pipeline is built.

Privacy: as of `privstream.transforms.{name}`. The whole configuration is public: Beam writes it into the pipeline. So
the noise key is named by its file or environment variable.

Args:
{arguments}

Raises:
    ValueError, TypeError: a value breaks its rule, or a field is missing, when the pipeline is built.
"""


class YamlTransform:
    """What Beam YAML calls to make a transform from a configuration.

    Args:
        spec: the question.
    """

    def __init__(self, spec: QuestionSpec) -> None:
        self.spec = spec
        self.keys = {option.name: option for option in options_of(spec)} | dict(ADDED)
        self.fields = spec.row_type._fields
        self.__signature__ = inspect.Signature([_parameter(key) for key in self.keys.values()])
        self.__doc__ = DESCRIPTION.format(
            summary=spec.signature.summary,
            fields=", ".join(self.fields),
            name=spec.transform.rpartition(".")[2],
            arguments="\n".join(f"    {name}: {key.text}" for name, key in self.keys.items()),
        )

    def __call__(self, **config: Any) -> OnRows:
        """Make the transform from a configuration."""
        self.__signature__.bind(**config)
        for name, value in config.items():
            if value is None and self.keys[name].default is REQUIRED:
                raise ValueError(f"{name} must be given, got null")
        return OnRows(
            self.spec,
            given={name: value for name, value in config.items() if name not in ADDED},
            added={name: config.get(name, key.default) for name, key in ADDED.items()},
        )


def _parameter(key: Option) -> inspect.Parameter:
    """Return a key as Beam reads it."""
    default = inspect.Parameter.empty if key.default is REQUIRED else key.default
    plain = OPTION_TYPES[key.type].plain
    hint = plain if default is not None else plain | None
    return inspect.Parameter(key.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _transforms() -> dict[str, YamlTransform]:
    """Return what Beam YAML calls for each transform that has events as its only input, by the name of its class."""
    specs = [spec for spec in map(question, WORDS) if not spec.extras]
    return {spec.transform.rpartition(".")[2]: YamlTransform(spec) for spec in specs}


TRANSFORMS = _transforms()
globals().update(TRANSFORMS)
