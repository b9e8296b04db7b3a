"""A monitor: questions about one stream of events, under one privacy budget. A single command has one question."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from privstream.pipelines.locations import (
    DATABASE,
    DEFAULT_DATASET,
    DEFAULT_FORMAT,
    DUCKDB,
    POSTGRESQL,
    SCHEME,
)
from privstream.pipelines.model.base import (
    Columns,
    Count,
    Epsilon,
    Flag,
    Length,
    Model,
    Name,
    Number,
    OneOrMore,
    PathText,
    Positive,
    WrongKeyError,
    option,
)
from privstream.pipelines.model.catalogue import MODELS
from privstream.pipelines.model.question import EVENT, POINT, Question, Windows
from privstream.pipelines.terminal import did_you_mean
from pydantic import AfterValidator, Field, PrivateAttr, model_validator

if TYPE_CHECKING:
    from privstream.mechanisms.views.rules import Condition
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
        advanced=True,
    )
    user: Name = option("user", "field with the person")
    item: Columns = option(
        "item", "field with the item, or several: country,page (a name with a comma in quotes, as in CSV)"
    )
    time: Name = option("time", "field with the time")
    value: Name | None = option(None, "field with the number of an event (default: value)")
    time_format: Name | None = option(
        None, "form of times that are text, by Python's strptime, such as '%d.%m.%Y %H:%M' (default: ISO 8601)"
    )
    time_zone: Name | None = option(
        None, "zone of times without an offset from UTC, also of --start and --end, such as Europe/Berlin"
    )
    time_unit: Literal["s", "ms", "us", "ns"] | None = option(
        None, "unit of times that are plain numbers", advanced=True
    )
    where: Name | None = option(
        None, "condition that an event must meet to count, such as 'status >= 500'; public", metavar="CONDITION"
    )
    delimiter: Name | None = option(
        None, "separator of CSV: one character, or the word tab (default: as in the first line)", advanced=True
    )
    decimal: Literal[".", ","] | None = option(
        None, "decimal separator of numbers that are text; the other one may separate thousands", advanced=True
    )
    quote: Literal["double", "none"] | None = option(
        None, "what quotes in CSV are: around a field, or text", advanced=True
    )
    encoding: Name | None = option(
        None, "encoding of CSV and JSON lines, such as windows-1252 or utf-16 (default: utf-8)", advanced=True
    )
    value_unit: Number | None = option(
        None, "values are rounded to whole numbers of this unit: 0.01 makes cents of euros (default: 1)", advanced=True
    )
    null: Annotated[OneOrMore, Field(max_length=1000)] = option(
        (), "text that stands for no value, such as NA; may be given several times", metavar="TEXT", advanced=True
    )
    trim: Flag = option(False, "strip white space around text", advanced=True)
    normalize: Flag = option(False, "compose letters and their accents (Unicode NFC)", advanced=True)
    fold_case: Flag = option(False, "ignore case in items", advanced=True)
    input_format: Literal["avro", "parquet", "jsonl", "csv", "xlsx"] | None = option(
        None, "format of the input (default: by the ending of the name)", advanced=True
    )
    watch: Positive | None = option(
        None, "poll the input folder for new files every SECONDS; --output and --dead-letter are folders then",
        metavar="SECONDS", advanced=True,
    )  # fmt: skip
    watermark: Literal["arrival", "marks"] | None = option(
        None, "up to which time watched files are complete: the time of arrival, or that in the name of a file such as "
        "_UNTIL_20300101T120000Z",
        advanced=True,
    )  # fmt: skip
    kafka_setting: OneOrMore = option(
        (), "setting of librdkafka; write @FILE for a secret value; may be given several times",
        metavar="NAME=VALUE", advanced=True,
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
        of_files = ("watermark", "input_format", *OF_TEXT)
        for names, what in (
            ((*of_files, "watch") if database else (), "a query, whose rows are read once"),
            (of_files if self.from_kafka else (), "Kafka, whose records are JSON in UTF-8, in order of arrival"),
        ):
            for name in names:
                if getattr(self, name) is not None:
                    raise WrongKeyError(("data", name), f"must not be given with {what}")
        if self.watermark is not None and not self.unbounded:
            raise WrongKeyError(("data", "watermark"), "must be given with watch only")

    def fields(self, question: Question) -> FieldMapping:
        """Return what a question reads of an event."""
        from privstream.pipelines.sources.fields import FieldMapping, PointMapping  # noqa: PLC0415 - late: takes a second

        info = question.info
        reads_item = info.item and (not info.items_with or question.gives(*info.items_with))
        forms: dict[str, Any] = {name: getattr(self, name) for name in FORMS}
        forms |= {"quote": self.quote or "double", "encoding": self.encoding or "utf-8"}
        forms["delimiter"] = "\t" if self.delimiter == "tab" else self.delimiter
        unit = question.value_unit if question.value_unit is not None else self.value_unit
        conditions = [one for one in (self.where, question.where) if one is not None]
        return (PointMapping if info.user == POINT else FieldMapping)(
            user="" if not info.user or getattr(question, "unit", "") == EVENT else question.user or self.user,
            item=(question.item or self.item) if reads_item else "",
            time=self.time if info.has_windows or "time" in self.model_fields_set else "",
            value=self._value(question),
            whole=info.whole_values,
            value_unit=1.0 if unit is None else unit,
            where=" and ".join(f"({one})" for one in conditions) if len(conditions) > 1 else (*conditions, None)[0],
            **forms,
        )

    def _value(self, question: Question) -> str:
        with_one = question.info.values_with
        if question.info.value and (not with_one or question.gives(with_one)):
            return question.value or self.value or "value"
        if question.value is not None or (self.value is not None and with_one):
            raise WrongKeyError((with_one or "value",), "must be given with --value")
        if question.value_unit is not None:
            raise WrongKeyError((with_one or "value",), "must be given with value_unit")
        return ""


LEFT_TO_CHANCE = 100  # the deltas of all people add up to one in this number
LEAST_DELTA = 1e-30
"""Smaller probabilities, unless 0, are lost among the roundings of what is reckoned with them."""

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
TERMINAL = "-"
WEB = ("https://", "http://")
ADDRESS = re.compile(r"postgresql://([^/@:?#]+@)?[^/@?#]+/[^/?#]+(/[^/?#]+)?|kafka://[^/@?#]+(/[^/?#]+)?")


def _delta(value: float) -> float:
    if 0 < value < LEAST_DELTA:
        raise ValueError(f"must be 0, or at least {LEAST_DELTA:g}")
    return value


class Privacy(Model):
    """The budget of all questions together."""

    epsilon: Epsilon = option(..., "limit on what all rows together show about one person; smaller protects better")
    delta: Annotated[Number, Field(ge=0, lt=1), AfterValidator(_delta)] | None = option(
        None, "probability that the rows show more; choose it far below 1 / (number of people) (default: 0)"
    )
    people: Count | None = option(
        None, f"in place of --delta: a public upper bound on the number of people; delta is 1 / ({LEFT_TO_CHANCE} N)"
    )

    @property
    def spent_delta(self) -> float:
        """Delta, or what follows from the number of people: over all of them it adds up to 1 in a hundred."""
        return self.delta or 0.0 if self.people is None else 1 / (LEFT_TO_CHANCE * self.people)


class Output(Model):
    """Where rows go."""

    path: PathText = option(
        TERMINAL,
        "file for rows, .avro .parquet .jsonl .csv .xlsx, or - for a table on the terminal; for streaming input, and "
        "for several questions, a folder",
        name="output",
        metavar="PATH",
    )
    format: Literal["avro", "parquet", "jsonl", "csv"] | None = option(
        None, f"format of files in a folder (default: {DEFAULT_FORMAT})", name="output_format", advanced=True
    )
    send: OneOrMore = option(
        (), "also send the rows to kafka://host:port/topic or postgresql://user@host:port/database/table; "
        "may be given several times",
        metavar="ADDRESS", advanced=True,
    )  # fmt: skip
    notify: str | None = option(
        None, "post each alert when it begins, as JSON, to https://example.com/path", metavar="URL", advanced=True
    )
    wide: Flag = option(
        False, "write one row for each item and one column for each window, into .csv, .xlsx or .parquet", advanced=True
    )
    overwrite: Flag = option(False, "replace existing rows and guarantees")
    dead_letter: PathText | None = option(
        None, "file (.jsonl .csv .parquet .avro) for unusable records; guard it like the input", advanced=True
    )

    def check(self) -> None:
        """Refuse addresses of another form."""
        for address in self.send:
            if not ADDRESS.fullmatch(address):
                rule = f"must be of the form {KAFKA}host:port/topic or {POSTGRESQL}user@host:port/database/table, "
                raise WrongKeyError(("output", "send"), f"{rule}without a password")
        if self.notify and (self.path == TERMINAL or not self.notify.startswith(WEB)):
            raise WrongKeyError(("output", "notify"), "must be a web address and be given with an output of files")
        if self.send and self.path == TERMINAL:
            raise WrongKeyError(("output", "send"), "must be given with an output of files, which are sent from there")
        if self.path.startswith((KAFKA, POSTGRESQL)):
            raise WrongKeyError(("output", "path"), "must be a file or a folder; send names topics and tables")


class Account(Model):
    """The noise key, and the ledger in which runs are written down."""

    key: PathText | None = option(None, "file with the noise key, readable by every worker (default: a new random one)")
    ledger: PathText | None = option(
        None,
        "file in which each run is written down (default: beside the key file), or none",
        metavar="PATH",
        advanced=True,
    )
    dataset: Name = option(DEFAULT_DATASET, "public name of the data whose budget this run spends", advanced=True)
    run_id: Name | None = option(None, "public name of the run; needed where the input has no end", advanced=True)


KINDS: dict[str, tuple[str, ...]] = {
    "ratio": ("ratio", "largest"),
    "over": ("of", "over", "largest"),
    "against": ("of", "against", "largest"),
    "above": ("of", "item", "quantile", "above", "clear_below", "for"),
    "below": ("of", "item", "quantile", "below", "clear_above", "for"),
    "largest": ("of", "largest"),
}
"""What a view has that makes it one of a kind, and all keys of these: the first that it has decides."""


class ViewModel(Model):
    """What is made of published rows: one of ratio, over, against, above, below and largest decides what it is."""

    of: Name | None = option(None, "name of a question or of another view")
    ratio: tuple[str, str] | None = option(None, "counts of the first divided by those of the second")
    over: Length | None = option(None, "counts over so long, such as 7d")
    against: Length | None = option(None, "items that surely rose against so long before, such as 7d")
    item: Annotated[OneOrMore, Field(min_length=1)] | None = option(None, "what an alert is about")
    quantile: Annotated[Number, Field(gt=0, lt=1)] | None = option(None, "the quantile that an alert is about")
    above: Number | None = option(None, "an alert begins where the number is above this")
    below: Number | None = option(None, "an alert begins where the number is below this")
    clear_below: Number | None = option(None, "an alert ends at this number, or below")
    clear_above: Number | None = option(None, "an alert ends at this number, or above")
    for_: Count = Field(1, alias="for", description="windows in a row that an alert needs")
    largest: Count | None = option(None, "rows of a window at most, those with the largest numbers")

    @property
    def kind(self) -> str:
        """What it is."""
        return next(key for key in KINDS if getattr(self, key) is not None)

    @property
    def condition(self) -> Condition | None:
        """When an alert begins and ends; None of another view."""
        from privstream.mechanisms.views.rules import Condition  # noqa: PLC0415 - late: help pages need none of it

        return Condition.of(self.above, self.below, self.clear_below, self.clear_above, windows=self.for_)

    @property
    def given(self) -> dict[str, Any]:
        """The keys as the file has them."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)

    @model_validator(mode="after")
    def check(self) -> Self:
        """Refuse keys that do not belong together."""
        given = self.given
        if not KINDS.keys() & given.keys():
            raise ValueError(f"must have one of {', '.join(KINDS)}")
        kind = self.kind
        if wrong := [key for key in given if key not in KINDS[kind]]:
            raise WrongKeyError((wrong[0],), f"must not be given with {kind}")
        if kind != "ratio" and self.of is None:
            raise WrongKeyError(("of",), "must be given, the name of a question or of another view")
        if self.item is not None and self.quantile is not None:
            raise WrongKeyError(("quantile",), "must not be given with item")
        condition = self.condition
        if condition is not None and condition.ends_early:
            key, sign = ("clear_below", "<=") if condition.sign > 0 else ("clear_above", ">=")
            rule = f"must be {sign} {condition.threshold:g}, where an alert begins, got {condition.ends_at:g}"
            raise WrongKeyError((key,), rule)
        return self


if TYPE_CHECKING:
    AnyQuestion = Question
else:
    AnyQuestion = Annotated[reduce(or_, MODELS.values()), Field(discriminator="question")]


class Monitor(Model):
    """Questions about one stream of events, with their windows, budget, views and output."""

    data: Data
    windows: Windows = option(Windows(), "windows of all questions that do not say otherwise")
    privacy: Privacy
    questions: Annotated[dict[str, AnyQuestion], Field(min_length=1)] = option(..., "by the names of their rows")
    views: dict[str, ViewModel] = option({}, "made of the rows of questions, at no cost")
    output: Output = option(Output(), "where rows go")
    account: Account = option(Account(), "the noise key, and the ledger")

    _single: bool = PrivateAttr(default=False)

    @classmethod
    def of(cls, question: Question, **rest: Any) -> Self:
        """Return the monitor of a single question."""
        models = {key: part.model_dump(exclude_unset=True) for key, part in rest.items() if isinstance(part, Model)}
        # The question takes its place afterwards: a subclass alone knows which of its options were given.
        made = cls.read({"questions": {"it": {"question": "counts"}}, **rest, **models})
        made = made.model_copy(update={"questions": {question.info.name: question}})
        made._single = True
        return made.check()

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Return the monitor of a file; a ValueError names file, line and key of what breaks a rule."""
        from privstream.pipelines.command import UsageError  # noqa: PLC0415 - late: the command line is above models
        from privstream.pipelines.model.given import Given  # noqa: PLC0415
        from privstream.pipelines.yaml_file import read_document  # noqa: PLC0415

        try:
            document = read_document(os.fspath(path))
            return cls.model_validate(Given([document], document).monitor())
        except UsageError as error:
            raise ValueError(str(error)) from None

    @property
    def single(self) -> bool:
        """Whether it is a single command, whose rows are one file or one folder."""
        return self._single

    def check(self) -> Self:
        """Check what models cannot check by themselves: keys that must or must not be given together."""
        self.data.check()
        if self.privacy.people is not None and self.privacy.delta is not None:
            raise WrongKeyError(("privacy", "people"), "must not be given with --delta, which follows from it")
        self.output.check()
        kafka = any(address.startswith(KAFKA) for address in (self.data.input, *self.output.send))
        if self.data.kafka_setting and not kafka:
            rule = f"must be given with an input of {KAFKA}, or to send rows there"
            raise WrongKeyError(("data", "kafka_setting"), rule)
        if self.single:
            return self
        if self.output.wide:
            raise WrongKeyError(("output", "wide"), "must not be given for several questions")
        for part, names in (("questions", self.questions), ("views", self.views)):
            for name in names:
                if not NAME.fullmatch(name):
                    rule = "names must be small letters, digits and _, at most 63 of them, and begin with a letter"
                    raise WrongKeyError((part, name), rule)
        for name in self.views.keys() & self.questions.keys():
            raise WrongKeyError(("views", name), "must not have the name of a question")
        known = [*self.questions, *self.views]
        for name, view in self.views.items():
            for key, source in [("ratio", one) for one in view.ratio or ()] or [("of", view.of or "")]:
                if source not in known:
                    rule = f"must be a question or another view, got `{source}`{did_you_mean(source, known)}"
                    raise WrongKeyError(("views", name, key), rule)
        return self


SECTIONS: Mapping[str, type[Model]] = {
    "windows": Windows, "privacy": Privacy, "data": Data, "output": Output, "account": Account,
}  # fmt: skip
"""The parts of a monitor that every question has, in the order of help pages."""
