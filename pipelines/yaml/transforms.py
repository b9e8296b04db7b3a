"""Questions in Beam YAML: rows with a schema in and out, everything configured by plain values.

The listing `providers.yaml` names the transforms of this module; the keys of a configuration are those of the model of
the question. Nothing here imports what only Beam's `yaml` extra installs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, get_type_hints

import apache_beam as beam
import privstream.transforms.rows  # noqa: F401 - Beam knows the types of rows then
from apache_beam.pvalue import PCollection, Row
from apache_beam.transforms.window import GlobalWindows
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.schemas import named_fields_from_element_type
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines.accounts.run_identity import noise_source
from privstream.pipelines.beam import FIELDS, Private
from privstream.pipelines.model.catalogue import MODELS
from privstream.pipelines.model.question import Question
from privstream.pipelines.options import OptionOf, in_python, options_of
from privstream.pipelines.sinks.row_files import shape_of, with_item_columns
from privstream.transforms.row_types import Time
from typing_extensions import override

GOOD = "good"  # Beam YAML's name for the output that is not that of `error_handling`
ACCOUNT = ("key", "run_id")
_LOGGER = logging.getLogger(__name__)


def keys_of(kind: type[Question]) -> Iterator[OptionOf]:
    """Yield the keys of a configuration."""
    known = {"data": FIELDS, "account": ACCOUNT, "privacy": ("epsilon", "delta", "people")}
    for option in options_of(kind, ("windows", "privacy", "data", "account")):
        if option.place[-1] in known.get(option.place[0], (option.place[-1],)):
            yield option


class OnRows(beam.PTransform[Any, Any]):
    """Read events from rows, publish what a private transform makes of them, and give out rows that cannot be used.

    Times are published as ISO 8601 text, since the sinks of Beam YAML cannot write Beam's timestamps. The windows are
    those of the configuration; `windowing` has no influence. The guarantee is logged when the pipeline is built.

    *Privacy*: as of `privstream.pipelines.Private`. The whole configuration is public: Beam writes it into the
    pipeline. So the noise key is named by its file.
    """

    def __init__(self, kind: type[Question], error_handling: Any = None, **config: Any) -> None:
        super().__init__(kind.info.transform.rpartition(".")[2])
        one = isinstance(error_handling, Mapping) and list(error_handling) == ["output"]
        self.error_output = error_handling["output"] if one else None  # for dead letters
        if error_handling is not None and (not isinstance(self.error_output, str) or self.error_output in ("", GOOD)):
            raise ValueError(f"error_handling must be a mapping with the one key output, a name other than {GOOD}")
        given = in_python(kind, config, {"data": {"input": "rows"}}, list(keys_of(kind)))
        with given.errors():
            monitor = given.monitor()
            account, where = monitor.account, monitor.data.where
            run_id = account.run_id or ""  # with another condition rows are other data, with other noise
            label = run_id if where is None else json.dumps([run_id, where])
            if account.key is None:
                _LOGGER.warning("noise key: a new random one, for this run only; key makes runs repeatable")
            self.made = Private.of(monitor, noise_source(account.key, label))
        self.row_type = with_item_columns(self.made.row_type, self.made.fields.form.item)

    @override
    def expand(self, rows: PCollection[Any]) -> Any:
        element: Any = rows.element_type
        try:
            named_fields_from_element_type(element)
        except TypeError:
            raise TypeError(f"input must be rows with a schema, got {element}") from None
        _LOGGER.info("%s", self.made.guarantee.paragraph())
        in_one = rows | "InOneWindow" >> beam.WindowInto(GlobalWindows())
        published = in_one | self.label >> self.made.with_dead_letters()
        hints = get_type_hints(self.row_type)
        columns = shape_of(self.row_type).columns
        plain = {name: str if kind is Time else hints.get(name, kind) for name, kind in columns.items()}
        found = published.rows | "TimesAsText" >> beam.Map(_with_times_as_text, self.row_type).with_output_types(
            RowTypeConstraint.from_fields(list(plain.items()))
        )
        return found if self.error_output is None else {GOOD: found, self.error_output: published.dead_letters}


def _with_times_as_text(row: Any, row_type: type) -> Row:
    """Write the times of a row as text, and an item of several columns as these."""
    values = zip(shape_of(row_type).columns, shape_of(row_type).values(row), strict=True)
    return Row(**{name: value.to_rfc3339() if isinstance(value, Timestamp) else value for name, value in values})


KINDS = {kind.info.transform.rpartition(".")[2]: kind for kind in MODELS.values()}
"""The questions by the names of their transforms."""

globals().update({name: partial(OnRows, kind) for name, kind in KINDS.items()})
