"""Where events come from, how they are written, and which of them count."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from privstream.pipelines.locations import ARRIVAL, DATABASE, DUCKDB, POSTGRESQL, SCHEME
from privstream.pipelines.model.base import (
    Columns,
    Flag,
    Model,
    Name,
    Number,
    OneOrMore,
    PathText,
    Positive,
    WrongKeyError,
    option,
)
from privstream.pipelines.model.question import EVENT, Question
from pydantic import Field

if TYPE_CHECKING:
    from privstream.pipelines.sources.fields import FieldMapping

KAFKA = f"{SCHEME}://"
OF_TEXT = ("delimiter", "encoding", "quote")
"""Keys about files of text, which neither the rows of a query nor messages are."""

OF_FILES = ("input", "query", "input_format", *OF_TEXT, "watch", "watermark")
"""Keys about files and databases that are read: a frame is none of these."""

FORMS = ("time_unit", "time_format", "time_zone", "decimal", "null", "trim", "normalize", "fold_case", *OF_TEXT)
"""Keys that say how records are written, by the names that `FieldMapping` has for them."""


class Data(Model):
    """Events: where they are, which fields say who, what and when, and which events count."""

    input: PathText = option(
        ...,
        "events: a path, a folder or a glob, .avro .parquet .jsonl .csv .xlsx; or kafka://host:port/topic",
        metavar="PATH",
    )
    query: Name | None = option(
        None,
        "the SELECT whose rows are the events, where --input is a database: postgresql://user@host:port/database, or a "
        "file of DuckDB (.duckdb, .db)",
        seldom=True,
    )
    user: Name = option("user", "field with the person")
    item: Columns = option(
        "item", "field with the item, or several: country,page (as in CSV, a name with a comma stands in quotes)"
    )
    time: Name = option("time", "field with the time")
    value: Name | None = option(None, "field with the number that an event has beside its item (default: value)")
    time_format: Name | None = option(
        None,
        "form of times that are text, as Python's strptime reads it, such as '%d.%m.%Y %H:%M' (default: ISO 8601)",
    )
    time_zone: Name | None = option(
        None,
        "time zone of times without an offset from UTC, such as Europe/Berlin; --start and --end "
        "without one are by them, too",
    )
    time_unit: Literal["s", "ms", "us", "ns"] | None = option(None, "unit of times that are plain numbers", seldom=True)
    where: Name | None = option(
        None, "condition that an event must meet to count, such as 'status >= 500'; public", metavar="CONDITION"
    )
    delimiter: Name | None = option(
        None, "what separates the fields of CSV, one character or the word tab (default: as in the first line)",
        seldom=True,
    )  # fmt: skip
    decimal: Literal[".", ","] | None = option(
        None, "what stands before decimals in numbers that are text; the other sign may stand between thousands",
        seldom=True,
    )  # fmt: skip
    quote: Literal["double", "none"] | None = option(
        None, "what quotes in CSV are: around a field, or text", seldom=True
    )
    encoding: Name | None = option(
        None, "encoding of CSV and JSON lines, such as windows-1252 or utf-16 (default: utf-8)", seldom=True
    )
    value_unit: Number | None = option(
        None, "values are rounded to whole numbers of this unit: 0.01 makes cents of euros (default: 1)", seldom=True
    )
    null: Annotated[OneOrMore, Field(max_length=1000)] = option(
        (), "text that stands for no value, such as NA; may be given several times", metavar="TEXT", seldom=True
    )
    trim: Flag = option(False, "leave out white space around texts", seldom=True)
    normalize: Flag = option(False, "compose letters and their accents (Unicode NFC)", seldom=True)
    fold_case: Flag = option(False, "ignore case in items", seldom=True)
    input_format: Literal["avro", "parquet", "jsonl", "csv", "xlsx"] | None = option(
        None, "format of the input (default: by the ending of the name)", seldom=True
    )
    watch: Positive | None = option(
        None,
        "poll the input folder for new files at this interval, in seconds, until stopped: --output and --dead-letter "
        "are folders then",
        metavar="SECONDS",
        seldom=True,
    )
    watermark: Literal["arrival", "marks"] | None = option(
        None, "up to which time watched files are complete: the time of arrival, or that in the name of a file such as "
        "_UNTIL_20300101T120000Z",
        seldom=True,
    )  # fmt: skip
    kafka_setting: OneOrMore = option(
        (), "setting of librdkafka; write @FILE for a secret value; may be given several times",
        metavar="NAME=VALUE", seldom=True,
    )  # fmt: skip

    @property
    def from_kafka(self) -> bool:
        """Whether events are messages of a topic."""
        return self.input.startswith(KAFKA)

    @property
    def unbounded(self) -> bool:
        """Whether what is read has no end."""
        return self.query is None and (self.from_kafka or self.watch is not None)

    def kafka_settings(self) -> Mapping[str, str]:
        """Return the settings of librdkafka."""
        settings = {}
        for setting in self.kafka_setting:
            name, equals, value = setting.partition("=")
            if not equals:
                raise ValueError(f"kafka_setting must be NAME=VALUE or NAME=@FILE, got {name}")
            settings[name] = Path(value[1:]).read_text().strip() if value.startswith("@") else value
        return settings

    def check(self) -> None:
        """Refuse keys that do not belong together."""
        database = self.input.startswith(POSTGRESQL) or self.input.endswith(DUCKDB)
        if database and self.query is None:
            raise WrongKeyError(("data", "query"), "must be given where the input is a database")
        if self.query is not None and not database:
            rule = f"must be given with an input of {DATABASE} or a file of DuckDB ({', '.join(DUCKDB)})"
            raise WrongKeyError(("data", "query"), rule)
        of_query, of_kafka = "a query, whose rows are read once", "Kafka, whose records are JSON in UTF-8"
        for what, applies, names in (
            (of_query, database, ("watch", "watermark", "input_format", *OF_TEXT)),
            (of_kafka, self.from_kafka, OF_TEXT),
        ):
            for name in names:
                if applies and getattr(self, name) is not None:
                    raise WrongKeyError(("data", name), f"must not be given with {what}")
        if self.from_kafka and (self.watermark not in (None, ARRIVAL) or self.input_format not in (None, "jsonl")):
            raise WrongKeyError(("data", "input"), "of Kafka has JSON objects in order of arrival: leave out watermark "
                                "and input_format")  # fmt: skip
        if self.watermark is not None and not self.unbounded:
            raise WrongKeyError(("data", "watermark"), "must be given with watch only")

    def fields(self, question: Question) -> FieldMapping:
        """Return what a question reads of an event."""
        from privstream.pipelines.sources.fields import FieldMapping  # noqa: PLC0415 - late: it takes a second

        info = question.info
        reads_item = info.item and (not info.items_with or question.gives(*info.items_with))
        item = (question.item or self.item) if reads_item else ""
        forms: dict[str, Any] = {name: getattr(self, name) for name in FORMS}
        forms |= {"quote": self.quote or "double", "encoding": self.encoding or "utf-8"}
        if self.delimiter == "tab":
            forms["delimiter"] = "\t"
        unit = question.value_unit if question.value_unit is not None else self.value_unit
        return FieldMapping(
            user="" if not info.user or getattr(question, "unit", "") == EVENT else question.user or self.user,
            item=item,
            time=self.time,
            value=self._value(question),
            whole=info.whole_values,
            value_unit=1.0 if unit is None else unit,
            where=joined(self.where, question.where),
            **forms,
        )

    def _value(self, question: Question) -> str:
        """Return the field with the number, if one is read."""
        with_one = question.info.values_with
        if question.info.value and (not with_one or question.gives(with_one)):
            return question.value or self.value or "value"
        if question.value is not None or (self.value is not None and with_one):
            raise WrongKeyError((with_one or "value",), "must be given with --value")
        if question.value_unit is not None:
            raise WrongKeyError((with_one or "value",), "must be given with value_unit")
        return ""


def joined(*conditions: str | None) -> str | None:
    """Return the condition of all data and that of a question as one."""
    given = [one for one in conditions if one is not None]
    return " and ".join(f"({one})" for one in given) if len(given) > 1 else given[0] if given else None
