"""The options of commands, from what the description of a question says and those that all have. Imports no Beam."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from typing import Any

from privstream.pipelines.accounts.limit_options import DEFAULT_DATASET
from privstream.pipelines.command import parsed
from privstream.pipelines.locations import ARRIVAL, CLOCKS, DEFAULT_FORMAT, QUOTES, READ, TIME_UNITS, WINDOW_FORMATS
from privstream.pipelines.questions.option_types import OPTION_TYPES
from privstream.pipelines.questions.signature import REQUIRED, Argument
from privstream.pipelines.questions.spec import Option, QuestionSpec
from privstream.pipelines.terminal import NOTE, say

WIDEST = 66
"""So long may a list of choices be to fit a help page of 80 columns; where it is longer, the text has to name them."""

LEFT_TO_CHANCE, MOST_PEOPLE = 100, 10**11
"""The deltas of all people add up to 1 in so many; and there are no more people than that."""

NOISE, UNIT = "noise", "unit"
WINDOWS, PRIVACY, LIMITS = "windows", "privacy", "limits for each person"
PUBLIC, RUNNING, ANSWERS = "public knowledge", "running", "answers"
GROUPS = (WINDOWS, ANSWERS, PRIVACY, LIMITS, PUBLIC, RUNNING)
GROUP_OF: Mapping[str, str] = {
    **dict.fromkeys(("window", "over", "start", "end", "renew_every", "allowed_lateness"), WINDOWS),
    **dict.fromkeys(("epsilon", "delta", "beta", "unit"), PRIVACY),
    **dict.fromkeys(("min_alerts",), PRIVACY),
    **dict.fromkeys(("max_hits",), LIMITS),
    **dict.fromkeys(("max_contributions", "max_per_window", "categories_per_row", "separator"), LIMITS),
    **dict.fromkeys(("domain", "public_items", "max_updates"), PUBLIC),
}
"""Under which heading of a help page an option stands; all others are about the answers."""


BARE: Mapping[str, Any] = {"rising": 1}
"""What options stand for that are given without a value."""


def options_of(spec: QuestionSpec) -> list[Option]:
    """Return the options that are a question's own, in the order of its signature."""
    hidden = {NOISE, "windows", "horizon", "period", "shards", *spec.hidden, *(option.name for option in spec.extras)}
    return [
        *(_option(spec, argument) for name, argument in spec.signature.arguments.items() if name not in hidden),
        *spec.extras,
    ]


def _option(spec: QuestionSpec, argument: Argument) -> Option:
    """Return the option for an argument of a transform."""
    (kind,) = [kind for kind in argument.types if kind != "None"]
    return Option(argument.name, kind, argument.text, argument.default, argument.choices)


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Add options to a parser, each under its heading."""
    groups = {title: parser.add_argument_group(title) for title in GROUPS}
    for option in options:
        group = groups[GROUP_OF.get(option.name, ANSWERS)]
        if option.name == "delta":
            _add_delta(group, option)
        else:
            add_option(group, option)


def _add_delta(group: argparse._ArgumentGroup, option: Option) -> None:
    """Add delta, or the number of people in its place."""
    either = group.add_mutually_exclusive_group(required=option.default is REQUIRED)
    add_option(either, option._replace(default=None if option.default is REQUIRED else option.default))
    either.add_argument(
        "--people",
        dest=option.name,
        type=parsed(delta_of_people),
        default=argparse.SUPPRESS,
        metavar="N",
        help="in place of --delta: a public upper bound on the number of people, or of events where these are "
        f"protected; delta is 1 / ({LEFT_TO_CHANCE} N)",
    )


def delta_of_people(text: str) -> float:
    """Return the delta that is promised to each of so many people: over all of them it adds up to 1 in a hundred."""
    people = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= people <= MOST_PEOPLE:
        raise ValueError(f"must be a whole number from 1 to {MOST_PEOPLE:,}")
    delta = 1 / (LEFT_TO_CHANCE * people)
    say(f"{NOTE}delta is {delta:g}, 1 / ({LEFT_TO_CHANCE} x {people:,}), from the number of people")
    return delta


def add_option(group: argparse._ActionsContainer, option: Option) -> None:
    """Add an option under a heading."""
    kind, text = OPTION_TYPES[option.type], re.sub(r"`([a-z]\w*)`", r"--\1", option.text.removesuffix("."))
    default = ",".join(map(str, option.default)) if isinstance(option.default, tuple) else option.default
    if not any(default is without for without in (REQUIRED, None, False)):
        text += f" (default: {default:{'g' if isinstance(default, float) else ''}})"
    if option.name in BARE:
        text += f" (without a number: {BARE[option.name]})"
    if kind.metavar is None:
        group.add_argument(f"--{option.name}", action="store_true", default=default or None, help=text)
        return
    group.add_argument(
        f"--{option.name}",
        type=parsed(kind.parse),
        choices=option.choices or None,
        metavar=None if 0 < len(",".join(option.choices)) <= WIDEST else kind.metavar,
        nargs="?" if option.name in BARE else None,
        const=BARE.get(option.name),
        required=default is REQUIRED,
        default=None if default is REQUIRED else default,
        help=text.replace(kind.python, kind.shell).replace("%", "%%"),
    )


WORKERS = Option(
    "workers",
    "int",
    "processes that share the work, for files on the FnApiRunner; the rows are the same for any number (default: one "
    "for each 64 MiB of input, and at most one for each processor)",
)

LEDGER_ENDING = ".ledger.jsonl"


WHERE = Option(
    "where",
    "str",
    """condition that an event must meet to count, such as 'status >= 500 and country == "de"'; public. """
    "It may read any fields of the event, and nothing else",
)


def add_files(
    parser: argparse.ArgumentParser,
    *,
    user: str = "person",
    item: str = "item",
    value: str = "",
    whole: bool = False,
    watched: str = "input",
) -> None:
    """Add: where events come from, and where rows go.

    `user`, `item` and `value` say what these fields are, the last two if they are read; `whole` whether values are
    rounded to whole numbers; `watched` which option it is whose files may come without an end.
    """
    events = watched == "input"
    kafka = ", or kafka://host:port/topic" if events else ""
    fields = [Option("user_field", "str", f"field with the {user}", "user")]
    if item:
        text = f"field with the {item}, or several: country,page (as in CSV, a name with a comma stands in quotes)"
        fields.append(Option("item_field", "str", text, "item"))
    fields.append(Option("time_field", "str", "field with the time", "time"))
    if value:
        fields.append(Option("value_field", "str", f"field with the {value}"))
    files = parser.add_argument_group("input and output")
    _add_all(
        files,
        Option("input", "Path", f"events: a path, a folder or a glob, .avro .parquet .jsonl .csv{kafka}", REQUIRED),
        Option(
            "query",
            "str",
            "the SELECT whose rows are the events, where --input is a database: "
            "postgresql://user@host:port/database, or a file of DuckDB (.duckdb, .db)",
        ),
        Option(
            "output",
            "Path",
            "rows: .avro .parquet .jsonl .csv .xlsx, or - for a table on the terminal; or kafka://host:port/topic, or "
            "postgresql://user@host:port/database/table",
            "-",
        ),
        Option(
            "copy",
            "Path",
            "the same rows as files, with the guarantee, where --output is a topic or a database: what --output is "
            "otherwise. They are written first, and sent from there",
        ),
        Option("overwrite", "bool", "replace the file of rows and its guarantee if they exist"),
        Option(
            "wide",
            "bool",
            "write one row for each item and one column for each window, into .csv, .xlsx or .parquet",
        ),
        Option(
            "dry_run",
            "bool",
            "read all input and say how much of it can be used, and why the rest cannot; nothing is published, "
            "recorded or spent. The numbers are exact: guard them like the input",
        ),
        WORKERS,
        Option("dead_letter", "Path", "file for records that cannot be used, as JSON lines; guard it like the input"),
        Option("input_format", "str", "default: by the ending of the name", choices=READ),
        *fields,
        WHERE,
    )
    files.add_argument(
        "--kafka_setting",
        action="append",
        metavar="NAME=VALUE",
        help="setting of librdkafka, for kafka://host:port/topic; write @FILE for a secret VALUE; may be given several "
        "times",
    )
    _add_forms(parser.add_argument_group(WRITTEN_HOW, NOT_GUESSED), whole=whole)
    complete, covered = "are", "a query needs no time"
    if events:
        complete = "is"
        covered = "--allowed_lateness must cover the time from an event to its complete file"
    _add_all(
        parser.add_argument_group(
            f"{watched} without an end",
            "--output and --dead_letter are folders then: "
            + ("each window becomes one file" if events else "answers go into files by time"),
        ),
        Option(
            "watch",
            "float",
            f"poll the folder --{watched}, or a glob for its files, for new files every so many seconds",
        ),
        Option(
            "watermark",
            "str",
            f"up to which time the {watched} {complete} complete: the time of arrival (default: {ARRIVAL}; {covered}), "
            "or the time in the name of files such as _UNTIL_20300101T120000Z in the folder",
            choices=CLOCKS,
        ),
        Option("output_format", "str", f"format of these files (default: {DEFAULT_FORMAT})", choices=WINDOW_FORMATS),
    )


def _add_all(group: argparse._ActionsContainer, *options: Option) -> None:
    for option in options:
        add_option(group, option)


WRITTEN_HOW = "how the input is written"
NOT_GUESSED = (
    "Nothing of this is guessed from records: a record of another form is set aside (--dead_letter), and the run says "
    "how many there are."
)


def _add_forms(forms: argparse._ActionsContainer, *, whole: bool) -> None:
    """Add: how files are written, and the times and numbers in them."""
    _add_all(
        forms,
        Option(
            "delimiter",
            "str",
            "what separates the fields of CSV, one character or the word tab (default: what separates their names in "
            "the first line: a comma, a semicolon, a tab or a vertical bar)",
        ),
        Option("quote", "str", "what quotes in CSV are: around a field, or text (default: double)", choices=QUOTES),
        Option("encoding", "str", "encoding of CSV and JSON lines, such as windows-1252 or utf-16 (default: utf-8)"),
        Option("time_unit", "str", "unit of times that are plain numbers", choices=TIME_UNITS),
        Option(
            "time_format",
            "str",
            "form of times that are text, as Python's strptime reads it, such as '%d.%m.%Y %H:%M', or several with | "
            "between (default: ISO 8601, such as 2030-01-31T12:00:00Z)",
        ),
        Option(
            "time_zone",
            "str",
            "where the clocks are that wrote times without an offset from UTC, such as Europe/Berlin; --start and "
            "--end without an offset are by them, too. Such times are refused without it",
        ),
    )
    text = (
        "what stands before decimals in numbers that are text, values and those that --where reads; the other one, a "
    )
    text += "space or an apostrophe may stand between thousands (default: a point, and nothing between thousands)"
    forms.add_argument("--decimal", choices=(".", ","), metavar="SIGN", help=text)
    if whole:
        text = "values are rounded to whole numbers of this unit, and limits and sums are in it: 0.01 makes cents of "
        add_option(forms, Option("value_unit", "float", f"{text}euros (default: 1)"))
    forms.add_argument(
        "--null",
        action="append",
        metavar="TEXT",
        help="text that stands for no value, such as NA, beside the empty one; may be given several times",
    )
    add_option(forms, Option("trim", "bool", "leave out white space around texts"))
    add_option(forms, Option("normalize", "bool", "compose letters and their accents (Unicode NFC)"))
    add_option(forms, Option("fold_case", "bool", "take items that differ in large and small letters for one"))


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add the noise key."""
    _add_all(
        parser.add_argument_group("noise key (a secret; the same key gives the same rows for the same events)"),
        Option("noise_key_file", "Path", "file with the key, readable by every worker"),
        Option("noise_key_variable", "str", "environment variable with the key"),
        Option(
            "run_id",
            "str",
            "public name of the run (default: a fingerprint of input and options); it must be given if the input has "
            "no end",
        ),
    )
    account = parser.add_argument_group("privacy budget (what all runs on the same people cost; see privstream budget)")
    _add_all(
        account,
        Option(
            "ledger",
            "Path",
            f"file in which each run is written down (default: the key file's name and {LEDGER_ENDING}), or none",
        ),
        Option("dataset", "str", "public name of the data whose budget this run spends", DEFAULT_DATASET),
    )
