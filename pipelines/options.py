"""Options of commands, from models and from nothing else; and the monitor that they describe. Imports no Beam."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from privstream.pipelines.command import UsageError, without_dashes
from privstream.pipelines.model.base import Metavar, Place
from privstream.pipelines.model.given import Given, Layer, Named, assignments, merge, nested
from privstream.pipelines.model.monitor import SECTIONS
from privstream.pipelines.model.question import Question
from privstream.pipelines.terminal import did_you_mean
from privstream.pipelines.yaml_file import Document, at, read_document
from pydantic.fields import FieldInfo

DEFAULTS = "privstream.yaml"
"""The file of defaults, in the working folder."""

TITLES = {"questions": "question", "windows": "windows", "privacy": "privacy", "data": "input", "output": "output",
          "account": "noise key and budget"}  # fmt: skip


class OptionOf(NamedTuple):
    """A command-line option made from a model field."""

    name: str  # with underscores, as in Python
    place: Place  # of the value in a monitor
    field: FieldInfo  # of the model

    @property
    def word(self) -> str:
        """The option as it is typed."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def extra(self) -> Mapping[str, Any]:
        """What the field says of itself."""
        found = self.field.json_schema_extra
        return found if isinstance(found, dict) else {}


def options_of(kind: type[Question] | None, sections: Sequence[str] = tuple(SECTIONS)) -> Iterator[OptionOf]:
    """Yield the options of a question, and of some parts of a monitor."""
    if kind is not None:
        for key in kind.options():
            yield OptionOf(key, ("questions", kind.info.name, key), kind.model_fields[key])
    taken = set() if kind is None else set(kind.options())
    for section in sections:
        for key, field in SECTIONS[section].model_fields.items():
            option = OptionOf(key, (section, key), field)
            option = option._replace(name=str(option.extra.get("name", key)))
            if option.name not in taken and not (kind is not None and _unread(kind, section, key)):
                yield option


def _unread(kind: type[Question], section: str, key: str) -> bool:
    """Tell whether a question does not have an option of all: what it does not read, or windows."""
    info = kind.info
    read = {"user": info.user, "item": info.item, "value": info.value, "value_unit": info.whole_values}
    read |= dict.fromkeys(("watch", "watermark"), not info.bounded)
    return (section == "data" and not read.get(key, True)) or (section == "windows" and not info.has_windows)


def add_options(
    parser: argparse.ArgumentParser, options: Sequence[OptionOf], kind: type[Question] | None = None
) -> None:
    """Add options to a parser, each under the heading of its part."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in options:
        part = option.place[0]
        if part not in groups:
            groups[part] = parser.add_argument_group(TITLES[part])
        action = groups[part].add_argument(option.word, dest=".".join(option.place), **_how(option, kind))
        action.advanced = bool(option.extra.get("advanced"))  # type: ignore[attr-defined]


def _how(option: OptionOf, kind: type[Question] | None) -> dict[str, Any]:
    field, text = option.field, _text(option, kind).replace("%", "%%")
    found: dict[str, Any] = {"default": argparse.SUPPRESS, "help": text}
    if field.annotation is bool:
        return {**found, "action": "store_true"}
    if "may be given several times" in (field.description or ""):
        found["action"] = "append"
    if option.name == "rising":
        found |= {"nargs": "?", "const": "1"}  # without a value, against the window before
    return {**found, "metavar": _metavar(option)}


def _metavar(option: OptionOf) -> str:
    if metavar := option.extra.get("metavar"):
        return str(metavar)
    if choices := choices_of(option.field):
        return "|".join(choices)
    inner = [one for one in get_args(option.field.annotation) if one is not NoneType] or [option.field.annotation]
    shown = [one for one in (*option.field.metadata, *get_args(inner[0])) if isinstance(one, Metavar)]
    return shown[0] if shown else "N" if inner[0] is int else "NAME"


def choices_of(field: FieldInfo) -> tuple[str, ...]:
    """Return the values that a field may have, if these are listed."""
    parts = [field.annotation, *get_args(field.annotation)]
    return next((get_args(one) for one in parts if get_origin(one) is Literal), ())


def _text(option: OptionOf, kind: type[Question] | None) -> str:
    text, default, usual = option.field.description or "", option.field.default, None
    if kind is not None:
        section, key = option.place[0], option.place[-1]
        if section == "data" and key in ("user", "value"):
            text = f"field with the {getattr(kind.info, key)}"
        elif section == "data" and key == "item":
            text = text.replace("the item", f"the {kind.info.item}", 1)
        elif section == "data" and key == "time" and not kind.info.has_windows:
            return "field with the time, if each person's last item is to count"
        elif section == "privacy" and "person" not in kind.info.protected:
            text = text.replace("person", "event").replace("people", "events")
        usual = at(kind.info.usual, option.place)
    if usual is not None:
        text, default = text.partition(" (default: ")[0], usual
    elif option.field.is_required():
        return f"{text} (required)"
    of_folder = kind is None and option.name == "output"  # a run of several questions has no default
    if default not in (None, False, ()) and "default" not in text and not of_folder:
        several = default if isinstance(default, tuple) else (default,)
        text += f" (default: {','.join(f'{one:g}' if isinstance(one, float) else str(one) for one in several)})"
    return text


LAYERS: Mapping[str, Mapping[str, Any]] = {
    "--defaults": {"metavar": "FILE", "help": "YAML with parts of a monitor that hold where nothing else is given "
                   f"(default: {DEFAULTS}, if it is there)"},
    "--set": {"action": "append", "default": [], "metavar": "PATH=VALUE", "help": "any key of `privstream schema`, "
              "such as data.time_zone=Europe/Berlin; may be given several times"},
}  # fmt: skip
"""Where else values come from."""


def given_to(
    kind: type[Question] | None,
    given: Mapping[str, Any],
    options: Sequence[OptionOf],
    document: Document | None = None,
) -> Given:
    """Return what parsed options say, by where they go, above a `document`, and that above a file of defaults.

    Args:
        kind: the question of a single command.
        options: those that the parser has.
    """
    values = {option.place: given[dest] for option in options if (dest := ".".join(option.place)) in given}
    main: Layer = _named(kind, values, {option.place: option.word for option in options})
    layers: list[Layer] = [] if kind is None else [Named(kind.info.usual, {})]
    layers += filter(None, [_defaults(given["defaults"]), document, main])
    if given["set"]:
        layers.append(assignments(given["set"], {option.name: option.place for option in options}))
    return Given(layers, document or main, kind)


def _named(
    kind: type[Question] | None,
    given: Mapping[Place, Any],
    names: Mapping[Place, str],
    error: Callable[[str], Exception] = UsageError,
) -> Named:
    """Return values by their places; a single question is there even where none of its options is given."""
    content: dict[str, Any] = {} if kind is None else {"questions": {kind.info.name: {}}}
    return Named(reduce(merge, (nested(place, value) for place, value in given.items()), content), names, error)


def _defaults(path: str | None) -> Document | None:
    if path is None and not os.path.isfile(DEFAULTS):
        return None
    document = read_document(path or DEFAULTS)
    if wrong := document.content.keys() - SECTIONS:
        raise document.error((min(wrong),), f"must be one of {', '.join(SECTIONS)}")
    return document


def in_python(
    kind: type[Question],
    given: Mapping[str, Any],
    usual: Mapping[str, Any],
    options: Sequence[OptionOf] | None = None,
) -> Given:
    """Return what keywords say, above `usual` values; `options` are the keywords that there are, None for all."""
    options = list(options_of(kind)) if options is None else options
    places = {option.name: option.place for option in options}
    for name in given:
        if name not in places:
            raise TypeError(f"{kind.info.word} has no option `{name}`{did_you_mean(name, places)}")
    values = {places[name]: value for name, value in given.items() if value is not None}
    main = _named(kind, values, {place: name for name, place in places.items()}, _python_error)
    return Given([Named(usual, {}, _python_error), main], main, kind)


def _python_error(message: str) -> ValueError:
    return ValueError(without_dashes(message))
