"""The JSON schema of a monitor, from the tables by which it is read: editors complete and check its file with it."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from privstream.pipelines.command import Command, Parser, UsageError
from privstream.pipelines.locations import WRITTEN
from privstream.pipelines.monitor.monitor_file import (
    DATA,
    FIELDS,
    KINDS,
    NAME,
    OF_RUN,
    OTHER_NAMES,
    OUTPUTS,
    PEOPLE,
    PRESENT,
    SHARED,
    VERSION,
    VIEWS,
    keys_of,
)
from privstream.pipelines.questions.catalogue import QUESTIONS
from privstream.pipelines.questions.commands import run_command
from privstream.pipelines.questions.option_types import OPTION_TYPES
from privstream.pipelines.questions.options import BARE, MOST_PEOPLE, WHERE, options_of
from privstream.pipelines.questions.spec import Option, QuestionSpec
from privstream.pipelines.sinks.row_files import write_json

COUNTS = "counts"
"""A question whose command has all options about files."""

DRAFT = "https://json-schema.org/draft/2020-12/schema"
TEXT: Mapping[str, Any] = {"type": "string"}
NUMBER: Mapping[str, Any] = {"type": ["number", "string"]}
TEXTS: Mapping[str, Any] = {"type": ["string", "array"], "items": {"type": ["string", "number"]}}
ANY: Mapping[str, Any] = {"type": ["string", "number", "boolean", "array"]}
LISTS: Mapping[str, Any] = {"type": ["string", "number", "array", "object"]}
OF_TYPE: Mapping[str, Mapping[str, Any]] = {
    "bool": {"type": "boolean"},
    "int": {"type": ["integer", "string"]},
    "float": NUMBER,
    **dict.fromkeys(("Seconds", "Length", "Span", "Moment"), NUMBER),
    **dict.fromkeys(("str", "Path"), NUMBER),
}
"""What stands for values of a type; of others it may be a list as well. Texts may look like numbers."""

NAMED: Mapping[str, Any] = {**TEXT, "description": "name of a question or of another view"}
SPAN: Mapping[str, Any] = {**NUMBER, "description": "a duration, such as 7d"}
WHOLE: Mapping[str, Any] = {"type": "integer", "minimum": 1}
SHARE: Mapping[str, Any] = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
THRESHOLD: Mapping[str, Any] = {"type": "number"}
OF_VIEWS: Mapping[str, Mapping[str, Any]] = {
    **{"of": NAMED, "whole": NAMED, "over": SPAN, "against": SPAN, "item": TEXTS, "by": TEXTS},
    **{"largest": WHOLE, "for": WHOLE, "rank": SHARE},
    **{"above": THRESHOLD, "below": THRESHOLD, "clear_below": THRESHOLD, "clear_above": THRESHOLD},
    "ratio": {**TEXTS, "type": "array", "minItems": 2, "maxItems": 2},
}
"""Values of the keys of views."""


def schema() -> dict[str, Any]:
    """Return the schema: a file that a monitor is read from is valid, and no other keys are."""
    shared = {key: _shared(key) for key in SHARED}
    data = {key: _of_file(key) for key in DATA}
    budget = {"epsilon": {"type": "number", "exclusiveMinimum": 0}, "delta": {"type": "number", "minimum": 0}}
    people = {"type": "integer", "minimum": 1, "maximum": MOST_PEOPLE, "description": "in place of delta"}
    output = dict.fromkeys(OUTPUTS, TEXT) | {"format": {"enum": list(WRITTEN)}}
    top = {
        VERSION: {"const": PRESENT, "description": "of such files"},
        "data": _object(data, ["input"]),
        "privacy": _object(budget | {PEOPLE: people}, ["epsilon"]) | {"not": {"required": ["delta", PEOPLE]}},
        "questions": _named({"allOf": [_question(), *map(_if_question, QUESTIONS.values())]}) | {"minProperties": 1},
        VIEWS: _named({"anyOf": [_view(kind) for kind in KINDS]}),
        "output": _object(output, ["folder"]),
        **dict.fromkeys(OF_RUN, TEXT),
        **shared,
    }
    return {"$schema": DRAFT, "title": "a monitor of privstream", **_object(top, ["data", "privacy", "questions"])}


def _object(properties: Mapping[str, Any], required: Iterable[str]) -> dict[str, Any]:
    """Return the schema of a mapping with these keys and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _named(each: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a mapping of names."""
    return {
        "type": "object",
        "propertyNames": {"pattern": f"^{NAME.pattern}$"},
        "additionalProperties": dict(each),
    }


def _question() -> dict[str, Any]:
    """Return the schema of what decides which question it is."""
    words = [{"const": spec.word, "description": spec.summary} for spec in QUESTIONS.values()]
    return {"type": "object", "properties": {"question": {"oneOf": words}}, "required": ["question"]}


def _if_question(spec: QuestionSpec) -> dict[str, Any]:
    """Return the schema of a question, if it is this one."""
    chosen = {"properties": {"question": {"const": spec.word}}, "required": ["question"]}
    options = {option.name: option for option in options_of(spec)}
    properties: dict[str, Any] = {"question": True, "share": {"type": "number", "exclusiveMinimum": 0}}
    for key in keys_of(spec):
        if key not in properties:
            option = options.get(OTHER_NAMES.get(key, key))
            properties[key] = _of_file(key) if option is None else _of_option(option)
    return {"if": chosen, "then": _object(properties, ["question"])}


def _view(kind: str) -> dict[str, Any]:
    """Return the schema of a kind of views."""
    of = ["of"] if "of" in KINDS[kind] else []
    return _object({key: OF_VIEWS[key] for key in KINDS[kind]}, dict.fromkeys([*of, kind]))


def _of_option(option: Option) -> dict[str, Any]:
    """Return the schema of an option of a question."""
    found = dict(OF_TYPE.get(option.type, LISTS))
    if option.choices:
        found = {"enum": list(option.choices)}
    if option.name in BARE:
        found["type"] = [*found["type"], "boolean"]
    return found | {"description": option.text.replace(*OPTION_TYPES[option.type][4:6])}


def _shared(key: str) -> dict[str, Any]:
    """Return the schema of a key that holds for all questions: that of the first one that has such an option."""
    found = (option for spec in QUESTIONS.values() for option in options_of(spec) if option.name == key)
    option = next(found)
    same = [option, *found]
    choices = dict.fromkeys(choice for each in same for choice in each.choices)
    made = _of_option(option._replace(choices=tuple(choices)))
    return made


def _of_file(key: str) -> dict[str, Any]:
    """Return the schema of a key about how events are found and written."""
    if key == "item":
        return {**TEXTS, "description": "field with the item, or a list of several that are an item together"}
    if key in FIELDS:
        return {**TEXT, "description": f"field with the {key}"}
    if key in ("input", WHERE.name):
        return dict(TEXT)
    action = _actions()[key]
    if action.choices is not None:
        found: dict[str, Any] = {"enum": list(action.choices)}
    elif action.nargs == 0:
        found = {"type": "boolean"}
    else:
        found = dict(ANY)
    return found | {"description": re.sub(r"--([a-z])", r"\1", action.help or "").replace("%%", "%")}


@cache
def _actions() -> Mapping[str, argparse.Action]:
    """Return the options of a command that has all those about files, by name."""
    parser = Parser(prog=COUNTS, add_help=False)
    run_command(QUESTIONS[COUNTS]).add_arguments(parser)
    return {action.dest: action for action in parser._actions}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--output", metavar="PATH", default="-", help="file to write, or - for the terminal (default)")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Print the schema, or write it into a file."""
    if arguments.output == "-":
        print(json.dumps(schema(), indent=2))
        return
    try:
        write_json(arguments.output, schema())
    except OSError as error:
        raise UsageError(f"--output must be a file that can be written ({error.strerror})") from error


COMMAND = Command(
    description="Prints the JSON schema of monitors. An editor with it completes the keys of a monitor, says what each "
    "is, and marks mistakes while you write. A first line of the file names it: "
    "`# yaml-language-server: $schema=monitor.schema.json`.",
    add_arguments=add_arguments,
    run=run,
)
