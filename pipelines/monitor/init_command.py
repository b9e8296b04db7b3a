"""`privstream init INPUT`: writes a commented monitor from the names of the fields of a file."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.locations import READ
from privstream.pipelines.monitor.monitor_file import FILL_IN, NAME
from privstream.pipelines.questions.arguments import as_delimiter
from privstream.pipelines.sinks.row_files import check_destination, check_new
from privstream.pipelines.sources.event_files import UTF_8, Damage, InputFileError, TextForm
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.sources.found_files import FORMATS, EventFile, match_files
from privstream.pipelines.sources.json_events import parse_line
from privstream.pipelines.sources.text_lines import read_lines
from privstream.pipelines.terminal import printable, say
from privstream.pipelines.yaml_file import CORE
from privstream.transforms.events.event_columns import is_text

DEFAULT = "monitor.yaml"
MOST_FIELDS, LONGEST_NAME = 200, 64
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
NO_NAME = re.compile(r"[-+.\d\s]*\d[-+.:TZe\d\s]*|.*@.*|.*\d{4,}.*|")
"""Texts that are no names of fields, but numbers, times, addresses or nothing: a file without a header begins so."""

WORDS: Mapping[str, tuple[str, ...]] = {
    "user": (
        *("user", "customer", "person", "member", "visitor", "client", "account", "patient", "device", "uid"),
        *("kunde", "kunden", "kundennummer", "kundennr", "nutzer", "benutzer", "besucher", "mitglied", "konto"),
    ),
    "time": (
        *("time", "timestamp", "ts", "datetime", "date", "moment", "created", "at", "day"),
        *("zeit", "zeitpunkt", "zeitstempel", "datum", "kaufdatum", "kaufzeit", "bestelldatum", "gekauft", "tag"),
    ),
    "item": (
        *("item", "page", "url", "path", "product", "category", "query", "search", "event", "action", "country"),
        *("artikel", "produkt", "ware", "seite", "kategorie", "suche", "land"),
    ),
    "value": (
        *("ms", "latency", "duration", "amount", "price", "value", "cents", "cost", "bytes", "size", "age"),
        *("betrag", "preis", "umsatz", "wert", "kosten", "dauer", "menge"),
    ),
}
"""Words in names of fields, in English and German, the surest ones first."""

MEANS = {
    "user": "who is protected: what one of them does stays hidden",
    "time": "when it happened",
    "item": "what is counted; several columns: [country, page]",
}
GUESS = "GUESS"


MOST_VALUES = 1_000
MONTH = "(jan|feb|m[aä]r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])(r?uary?|ch|z|il|[eiy]|ust|t?ember|ober)?"
DATE = re.compile(
    rf"\D*\d{{1,4}}([-./])\d{{1,2}}\1\d{{1,4}}(?!\d).*|(?=.*\d\d).*\b{MONTH}\b.*"
    r"|(19|20)\d\d[01]\d[0-3]\d(\D?\d{4,6})?\D*",
    re.IGNORECASE,
)
SINCE_1970 = [(631_152_000 * unit, 4_102_444_800 * unit) for unit in (1, 1e3, 1e6, 1e9)]
"""The years from 1990 to 2100 as numbers since 1970: in seconds, milliseconds, microseconds and nanoseconds."""


class Field(NamedTuple):
    """A field of a file.

    Attributes:
        name: as it is there.
        type: that the file states; None if it states none.
        dated: whether most of its first values are dates.
        timed: whether they are dates or numbers since 1970, or there are none.
    """

    name: str
    type: pa.DataType | None
    dated: bool = False
    timed: bool = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("input", metavar="INPUT", help="events: a path, a folder or a glob, .avro .parquet .jsonl .csv")
    parser.add_argument("--output", metavar="PATH", default=DEFAULT, help=f"a new file (default: {DEFAULT}), or -")
    parser.add_argument("--input_format", choices=READ, help="default: by the ending of the name")
    parser.add_argument("--encoding", metavar="NAME", help="of CSV and JSON lines, such as windows-1252")
    parser.add_argument("--delimiter", metavar="NAME", help="of CSV, where the first line does not show it")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Read the names, and write the file."""
    to_terminal = arguments.output == "-"
    try:
        if not to_terminal:
            check_destination(arguments.output)
            check_new(arguments.output)
        fields = _fields(match_files(arguments.input, arguments.input_format)[0], _form(arguments))
    except (InputFileError, ValueError, OSError) as error:
        raise UsageError(str(error).replace("; --overwrite replaces it", "").replace("--input ", "INPUT ")) from error
    text = "\n".join(_lines(arguments, fields)) + "\n"
    if to_terminal:
        print(printable(text), end="")
        return
    Path(arguments.output).write_text(text, encoding="utf-8")
    next_step = f"privstream plan {arguments.output}"
    say(f"{arguments.output}: look at what says {GUESS}, fill in what says {FILL_IN}, then: {next_step}")


def _form(arguments: argparse.Namespace) -> TextForm:
    """Return how files of text are written.

    Raises:
        ValueError: naming the option.
    """
    fields = FieldMapping(encoding=arguments.encoding or UTF_8, delimiter=as_delimiter(arguments.delimiter))
    return replace(fields.text, names=())


def _fields(file: EventFile, form: TextForm) -> list[Field]:
    """Return the fields of a file, by its header or schema; of JSON lines, by the keys of the first line.

    Raises:
        InputFileError: the file has none, or its first line has what is no name, and is not quoted.
    """
    schema = FORMATS[file.format].schema(file.path, form)
    if schema is not None:
        found = [Field(field.name, None if file.format == "csv" else field.type) for field in schema]
    else:
        found = [Field(name, None) for name in _first_keys(file, form.encoding)] if file.format == "jsonl" else []
    if not found:
        raise InputFileError(f"INPUT must have fields: {file.path} has none")
    names = [field.name for field in found]
    usual = all(len(name) <= LONGEST_NAME and not NO_NAME.fullmatch(name) and name.isprintable() for name in names)
    if len(names) > MOST_FIELDS or not usual:
        raise InputFileError(
            f"INPUT must begin with the names of its fields, at most {MOST_FIELDS}, each at most {LONGEST_NAME} "
            f"characters and neither a number, a time nor an address: {file.path} begins with something else, "
            "which may be data"
        )
    values = _first_values(file, form, [field.name for field in found if _may_show_times(field.type)])
    return [
        _told(field, [value for value in values.get(field.name, ()) if value not in (None, "", b"")]) for field in found
    ]


def _may_show_times(type: pa.DataType | None) -> bool:
    """Tell whether values of this type, and not it alone, show whether they are times: texts and numbers do."""
    return type is None or is_text(type) or _is_number(type)


def _first_values(file: EventFile, form: TextForm, names: Sequence[str]) -> Mapping[str, list[Any]]:
    """Return the first values of some fields."""
    read = FORMATS[file.format].read
    for part in FORMATS[file.format].parts(file.path, file.size) if names else ():
        for events in read(file.path, part, names, form):
            if not isinstance(events, Damage):
                return {name: _listed(values) for name, values in events.slice(0, MOST_VALUES).columns.items()}
    return {}


def _listed(values: pa.Array | list[Any]) -> list[Any]:
    """Return values as Python has them; texts of Arrow as bytes, for they need not be valid."""
    if isinstance(values, list):
        return values
    plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    found: list[Any] = (plain.cast(pa.large_binary()) if is_text(plain.type) else plain).to_pylist()
    return found


def _first_keys(file: EventFile, encoding: str) -> list[str]:
    """Return the keys of the first line of JSON."""
    for lines in read_lines(file.path, encoding):
        row = None if isinstance(lines, Damage) or not len(lines.texts) else parse_line(lines.texts[0])
        return [] if row is None else list(row)
    return []


def _told(field: Field, values: Sequence[Any]) -> Field:
    """Return a field with what its values, without gaps, say of times."""
    if field.type is not None and pa.types.is_temporal(field.type):
        return field._replace(dated=True)
    given = [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in values]
    dates = sum(DATE.fullmatch(text.strip()) is not None for text in given)
    moments = sum(DATE.fullmatch(text.strip()) is None and _since_1970(text) for text in given)
    return field._replace(dated=2 * dates > len(given), timed=2 * (dates + moments) >= len(given))


def _since_1970(text: str) -> bool:
    """Tell whether a text is a number that may be a time."""
    try:
        number = float(text)
    except ValueError:
        return False
    return any(first <= number < last for first, last in SINCE_1970)


def _lines(arguments: argparse.Namespace, fields: Sequence[Field]) -> Iterator[str]:
    """Yield the lines of the monitor."""
    guessed: dict[str, str] = {}
    for kind in WORDS:
        name = _guess(kind, [field for field in fields if field.name not in guessed.values()])
        if name is not None:
            guessed[kind] = name
    yield "# A monitor: questions about one stream of events, with one privacy budget. Its fields are:"
    yield f"#   {', '.join(_yaml(field.name) for field in fields)}"
    yield f"# {GUESS} was guessed from these names and types, the time also from values. {FILL_IN} must be replaced."
    yield "data:"
    yield f"  input: {_yaml(arguments.input)}"
    for name in ("input_format", "encoding", "delimiter"):
        if (given := getattr(arguments, name)) is not None:
            yield f"  {name}: {_yaml(given)}"
    for kind, means in MEANS.items():
        mark = GUESS if kind in guessed else "the field"
        yield f"  {kind}: {_yaml(guessed.get(kind, FILL_IN))}  # {mark}: {means}"
    forms = 'time_zone: Europe/Berlin, time_format: "%d.%m.%Y %H:%M", decimal: ",", null: "NULL", trim: true'
    yield f"  # where texts need them: {forms}"
    yield f"window: 1d  # {GUESS}: answers are about windows of this length"
    yield f"start: {FILL_IN}  # of the first window, such as 2026-01-01"
    yield f"end: {FILL_IN}  # of the last window, such as 2026-02-01"
    yield f"max_contributions: {FILL_IN}  # of a person in all windows, such as 30. This chooses it, privately:"
    yield f"#   {_suggest_line(arguments, guessed)}"
    yield f"privacy: {{epsilon: 1, delta: 1.0e-6}}  # {GUESS}: delta must be far below 1 / (number of people)"
    yield "questions:  # `share` divides the budget"
    yield "  items: {question: counts, share: 2}"
    value = guessed.get("value")
    if value is not None:
        name = re.sub(r"\W", "_", value.lower())
        name = name if NAME.fullmatch(name) and name != "items" else "values"
        asked = f"question: quantiles, value: {_yaml(value)}, quantiles: [0.5, 0.99]"
        yield f"  # {GUESS}: numbers to know the median of, from low to high"
        yield f"  {name}: {{{asked}, low: {FILL_IN}, high: {FILL_IN}}}"
    yield "views:  # cost nothing"
    yield "  largest: {of: items, largest: 10}"
    yield "# noise_key_file: key  # openssl rand -out key 32 && chmod 600 key"
    yield "output: {folder: out}"


def _suggest_line(arguments: argparse.Namespace, guessed: Mapping[str, str]) -> str:
    """Return the command that suggests the limit, with words where the file has something to fill in."""
    form = {name: getattr(arguments, name) for name in ("input_format", "encoding", "delimiter")}
    fields = {f"{kind}_field": guessed.get(kind, FILL_IN) for kind in MEANS}
    options = {"input": arguments.input} | form | fields
    given = " ".join(f"--{name} {shlex.quote(value)}" for name, value in options.items() if value is not None)
    run = f"--window 1d --start {FILL_IN} --end {FILL_IN} --for_epsilon 1 --delta 1e-6 --noise_key_file key"
    return f"privstream suggest {given} {run}"


def _guess(kind: str, fields: Sequence[Field]) -> str | None:
    """Return the field that is most likely of a kind; None if none is likely."""
    able = [field for field in fields if _may_be(kind, field.type)]
    if kind == "time":
        able = [field for field in able if field.timed]
        dated = [field.name for field in able if field.dated]
        if len(dated) == 1:
            return dated[0]
    for word in WORDS[kind]:
        for field in able:
            if word in re.split(r"[^a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", field.name).lower()):
                return field.name
    return None


def _may_be(kind: str, type: pa.DataType | None) -> bool:
    """Tell whether a field of this type can be of a kind."""
    if type is None:
        return True
    if kind == "value":
        return _is_number(type)
    if kind == "time":
        return _may_show_times(type) or bool(pa.types.is_temporal(type) or pa.types.is_null(type))
    return not bool(pa.types.is_temporal(type) or pa.types.is_floating(type))


def _is_number(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type))


def _yaml(text: str) -> str:
    """Return a text as YAML reads it."""
    other = any(re.fullmatch(form, text) for _, form, _ in CORE)
    return text if PLAIN.fullmatch(text) and not other else json.dumps(text, ensure_ascii=False)


COMMAND = Command(
    description="Writes a commented monitor, a file of questions with one privacy budget, from the names of the fields "
    "of a file of events: the header of CSV, the schema of Parquet or Avro, the keys of the first line of JSON. Which "
    "field is what is guessed from names and types, and marked; only to find the time are the first values read, and "
    "none is written. Names of "
    "fields may tell something, too: look at the file before you share it.",
    add_arguments=add_arguments,
    run=run,
)
