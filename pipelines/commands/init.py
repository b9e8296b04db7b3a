"""`privstream init INPUT`: writes a commented monitor from the names of the fields of a file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.locations import READ
from privstream.pipelines.model.monitor import FILL_IN
from privstream.pipelines.sinks.row_files import check_destination, check_new
from privstream.pipelines.sources.event_files import UTF_8, Damage, InputFileError
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.sources.found_files import FORMATS, match_files
from privstream.pipelines.sources.text_lines import parse_line, read_lines
from privstream.pipelines.terminal import printable, say
from privstream.pipelines.yaml_file import CORE

DEFAULT = "monitor.yaml"
MOST_FIELDS, LONGEST_NAME = 200, 64
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
NO_NAME = re.compile(r"[-+.\d\s]*\d[-+.:TZe\d\s]*|.*@.*|.*\d{4,}.*|")
"""Texts that are no names of fields, but numbers, times, addresses or nothing: a file without a header begins so."""


OPTIONS: dict[str, dict[str, Any]] = {
    "input": {"metavar": "INPUT", "help": "events: a path, a folder or a glob, .avro .parquet .jsonl .csv .xlsx"},
    "--output": {"metavar": "PATH", "default": DEFAULT, "help": f"a new file (default: {DEFAULT}), or -"},
    "--input-format": {"choices": READ, "help": "default: by the ending of the name"},
    "--encoding": {"metavar": "NAME", "help": "of CSV and JSON lines, such as windows-1252"},
    "--delimiter": {"metavar": "NAME", "help": "of CSV, where the first line does not show it"},
}


def run(output: str, **given: str | None) -> None:
    """Read the names, and write the file."""
    try:
        if output != "-":
            check_destination(output)
            check_new(output)
        fields = _fields(**given)  # type: ignore[arg-type]
    except (InputFileError, ValueError, OSError) as error:
        raise UsageError(str(error).replace("; --overwrite replaces it", "").replace("--input ", "INPUT ")) from error
    data = "\n".join(f"  {name}: {_yaml(value)}" for name, value in given.items() if value is not None)
    text = TEMPLATE.format(fields=", ".join(map(_yaml, fields)), data=data, fill_in=FILL_IN)
    if output == "-":
        print(printable(text), end="")
        return
    Path(output).write_text(text, encoding="utf-8")
    say(f"{output}: fill in what says {FILL_IN}, then: privstream plan {output}")


def _fields(input: str, input_format: str | None, encoding: str | None, delimiter: str | None) -> list[str]:
    """Return the fields of the first file, by its header or schema; of JSON lines, by the keys of the first line.

    Raises:
        InputFileError, ValueError: the file has none, or its first line has what is no name, and is not quoted.
    """
    delimiter = "\t" if delimiter == "tab" else delimiter
    form = FieldMapping(encoding=encoding or UTF_8, delimiter=delimiter).text._replace(names=())
    file = match_files(input, input_format)[0]
    schema = FORMATS[file.format].schema(file.path, form)
    names = [field.name for field in schema] if schema is not None else []
    if file.format == "jsonl":
        lines = next(iter(read_lines(file.path, form.encoding)), None)
        names = list((None if lines is None or isinstance(lines, Damage) else parse_line(lines[0][1])) or ())
    if not names:
        raise InputFileError(f"INPUT must have fields: {file.path} has none")
    usual = all(len(name) <= LONGEST_NAME and not NO_NAME.fullmatch(name) and name.isprintable() for name in names)
    if len(names) > MOST_FIELDS or not usual:
        raise InputFileError(
            f"INPUT must begin with the names of its fields, at most {MOST_FIELDS}, each at most {LONGEST_NAME} "
            f"characters and neither a number, a time nor an address: {file.path} begins with something else, "
            "which may be data"
        )
    return names


TEMPLATE = """\
# A monitor: questions about one stream of events, with one privacy budget. The fields of the file are:
#   {fields}
data:
{data}
  user: {fill_in}  # the field with who is protected: what one of them does stays hidden
  time: {fill_in}  # the field with when it happened
  item: {fill_in}  # the field with what is counted; several: [country, page]
  # where texts need them: time_zone: Europe/Berlin, time_format: "%d.%m.%Y %H:%M", decimal: ",", null: "NULL"
windows:
  window: 1d
  start: {fill_in}  # of the first window, such as 2026-01-01
  end: {fill_in}  # of the last window, such as 2026-02-01
privacy: {{epsilon: 1, delta: 1.0e-6}}  # delta must be far below 1 / (number of people)
questions:  # `share` divides the budget
  items:
    question: counts
    share: 2
    max_contributions: {fill_in}  # per person in all windows, such as 30; privstream suggest finds one
  # prices: {{question: quantiles, value: price, quantiles: [0.5, 0.99], low: 1, high: 1000}}
views:  # cost nothing
  largest: {{of: items, largest: 10}}
# account: {{key: key}}  # openssl rand -out key 32 && chmod 600 key
output: {{path: out}}
"""


def _yaml(text: str) -> str:
    other = any(re.fullmatch(form, text) for _, form, _ in CORE)
    return text if PLAIN.fullmatch(text) and not other else json.dumps(text, ensure_ascii=False)


COMMAND = Command(
    description="Writes a commented monitor, a file of questions with one privacy budget, from the names of the fields "
    "of a file of events: the header of CSV, the schema of Parquet or Avro, the keys of the first line of JSON. Names "
    "may tell something, too: look at the file before you share it.",
    options=OPTIONS,
    run=run,
)
