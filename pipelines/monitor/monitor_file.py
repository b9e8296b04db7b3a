"""A monitor as its file describes it: the data, the total budget, and questions with their shares."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from privstream.mechanisms import KeyedNoise
from privstream.pipelines.command import UsageError
from privstream.pipelines.frames import OF_FILES, in_python, options
from privstream.pipelines.locations import WRITTEN
from privstream.pipelines.option_checks import check_numbers, check_texts
from privstream.pipelines.questions.arguments import given_to, input_fields, plan_of, settled
from privstream.pipelines.questions.catalogue import COUNTS, QUESTIONS
from privstream.pipelines.questions.input_end import is_unbounded
from privstream.pipelines.questions.options import UNIT, delta_of_people, options_of
from privstream.pipelines.questions.signature import REQUIRED
from privstream.pipelines.questions.spec import QuestionSpec
from privstream.pipelines.yaml_file import Document, Path, meant, read_document
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.filters import Filter
from privstream.transforms.events.item_columns import column_names

FIELDS = ("user", "item", "time", "value")
"""Keys that name fields: `user` stands for `user_field`."""

FORMS: tuple[str, ...] = ("time_unit", "time_format", "time_zone", "decimal", "null", "trim", "delimiter", "encoding")
FORMS += ("quote", "normalize", "fold_case")
SOURCE = ("query", "input_format", "watch", "watermark", "kafka_setting")
"""Keys of the data that say how they are found, which are options of commands."""

WHERE = "where"
END = "end"

SHARED = (
    *("window", "start", END, "renew_every", "allowed_lateness"),
    *("max_contributions", "max_per_window", "unit"),
)
"""Keys of the file that hold for each question that has such an option, unless it says otherwise."""

OF_A_PERSON = ("max_contributions", "max_per_window")
"""Those of them that are limits of a person, which a question that protects events has not."""

OF_RUN = ("noise_key_file", "run_id", "ledger", "dataset")
"""Keys of the file that stand for options of a run, which may be given in their place."""

VIEWS = "views"
VERSION, PRESENT = "version", 1
"""The key that names the version of such files, and the one that is read; without the key it is this one."""

TOP = (VERSION, "data", "privacy", "questions", VIEWS, "output", *OF_RUN, *SHARED)
DATA = ("input", *FIELDS, *FORMS, *SOURCE, WHERE)
OUTPUTS = ("folder", "format", "postgres", "kafka", "dead_letter")
DEFAULT_OUTPUT = "csv"
FORM_OF = {"postgres": "postgresql://user@host:port/database", "kafka": "kafka://host:port"}
ADDRESSES = {
    "postgres": re.compile(r"postgresql://([^/@:?#]+@)?[^/@?#]+/[^/?#]+"),
    "kafka": re.compile(r"kafka://[^/@?#]+"),
}
"""Addresses of what rows are sent to; each question has a table or a topic of its name there."""

OWN = ("question", "share")
FILL_IN = "FILL_IN"
"""What `privstream init` writes where it cannot guess."""
WITHHELD = ("epsilon", "delta")
PEOPLE = "people"
"""What may stand in place of delta: a public upper bound on the number of people, or of protected events."""

KINDS: Mapping[str, tuple[str, ...]] = {
    "ratio": ("ratio", "largest"),
    "over": ("of", "over", "largest"),
    "against": ("of", "against", "largest"),
    "above": ("of", "item", "quantile", "above", "clear_below", "for"),
    "below": ("of", "item", "quantile", "below", "clear_above", "for"),
    "largest": ("of", "largest"),
}
"""What a view has that makes it one of a kind, and all keys of these: the first that it has decides."""

LIMIT = "max_contributions"
"""The limit of counts."""

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question of a monitor.

    Attributes:
        name: what its answers are called.
        spec: which question it is.
        share: of the budget, beside the shares of the other ones.
        options: of its command, as if they had been given there, but for the budget.
        shown: what guarantee files say in place of options that are lists, by name.
        line: where it stands.
    """

    name: str
    spec: QuestionSpec
    share: float
    options: argparse.Namespace
    shown: Mapping[str, str]
    line: int

    def with_budget(self, epsilon: float, delta: float) -> argparse.Namespace:
        """Return its options with a budget, and those that follow from them."""
        budget = {"epsilon": epsilon, "delta": delta}
        return settled(self.spec, argparse.Namespace(**(vars(self.options) | budget)))

    def transform(self, epsilon: float, delta: float, *, ends: bool = True) -> Any:
        """Return what the transform promises that its command makes for such a budget, without its stages.

        `ends`: whether rows are seen when the run is over, and not before; what is read without an end has none.

        Raises:
            ValueError, TypeError: an option breaks a rule.
        """
        given = self.with_budget(epsilon, delta)
        made = given_to(self.spec, given, input_fields(self.spec, given))
        unbounded = not ends or is_unbounded(given)
        try:
            return _transform(self.spec.word, tuple(made.items()), unbounded)
        except TypeError:  # a list, by which nothing is looked up
            return _made(self.spec, made, unbounded)


@lru_cache(maxsize=128)
def _transform(word: str, arguments: tuple[tuple[str, Any], ...], unbounded: bool) -> Any:
    """Return what `_made` does, once for questions that differ in their fields and conditions alone."""
    return _made(QUESTIONS[word], dict(arguments), unbounded)


def _made(spec: QuestionSpec, arguments: Mapping[str, Any], unbounded: bool) -> Any:
    """Return what a transform promises, whatever noise it has."""
    return plan_of(spec, arguments, KeyedNoise.random("plan"), unbounded=unbounded)


@dataclass(frozen=True, kw_only=True)
class MonitorFile:
    """What the file says.

    Attributes:
        path: of the file.
        document: its contents, with their lines.
        epsilon, delta: the total budget of all questions together.
        questions: in the order of the file.
        output: where answers go; None if it does not say.
        of_run: options of a run that are keys of the file, by name.
    """

    path: str
    document: Document
    epsilon: float
    delta: float
    questions: tuple[Question, ...]
    output: Output | None
    of_run: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where answers go.

    Attributes:
        folder: of files, one for each question and named after it; of input without an end, a folder for each.
        format: of the files.
        sent_to: the database and the broker that get them, too, as far as there are any. Tables and topics have the
            names of questions and views.
        dead_letter: a file for records that cannot be used; without an end, a folder.
    """

    folder: str
    format: str
    sent_to: tuple[str, ...]
    dead_letter: str | None

    def name(self, name: str, *, unbounded: bool) -> str:
        """Return the name of the file of a question or a view; of its folder, where input has no end."""
        return name if unbounded else f"{name}.{self.format}"

    def urls(self, name: str) -> list[str]:
        """Return the tables and topics of a question or a view."""
        return [f"{address}/{name}" for address in self.sent_to]


def read_monitor(path: str, folder: str, input: str | None = None) -> MonitorFile:
    """Read a monitor.

    Args:
        path: of the file.
        folder: where lists of the file may be written as files, which commands take.
        input: events to read in place of those of the file.

    Raises:
        UsageError: a key is unknown or missing, or its value breaks a rule; the message names line and key.
    """
    document = read_document(path)
    if (version := document.number((VERSION,), PRESENT)) != PRESENT:
        rule = f"must be {PRESENT}, the version of such files that this release of privstream reads"
        raise document.error((VERSION,), f"{rule}, got {version:g}")
    document.check_keys((), TOP)
    if blank := [keys for keys in document.lines if document.at(keys) == FILL_IN]:
        others = f"; so must {', '.join('.'.join(keys) for keys in blank[1:])}" if blank[1:] else ""
        raise document.error(blank[0], f"must be filled in: {FILL_IN} stands for what only you know{others}")
    data = document.mapping(("data",))
    document.check_keys(("data",), DATA)
    if not isinstance(data.get("input"), str):
        raise document.error(("data",), "input must be given, a path of events")
    if input is not None:
        data = {key: value for key, value in data.items() if key not in OF_FILES} | {"input": input}
    epsilon, delta = _budget(document)
    asked = document.mapping(("questions",))
    questions = tuple(_question(document, name, data, folder) for name in asked)
    if not questions:
        raise document.error(("questions",), "must have at least one question")
    for key in SHARED:
        able = any(key in each.spec.signature.arguments for each in questions)
        if key in document.content and not able:
            raise document.error((key,), "is an option of none of the questions")
    return MonitorFile(
        path=path,
        document=document,
        epsilon=epsilon,
        delta=delta,
        questions=questions,
        output=_output(document),
        of_run={key: text for key in OF_RUN if (text := _text(document, (key,))) is not None},
    )


def _output(document: Document) -> Output | None:
    """Return where answers go, if the file says it."""
    if "output" not in document.content:
        return None
    document.check_keys(("output",), OUTPUTS)
    folder, *rest = (_text(document, ("output", key)) for key in OUTPUTS)
    format, postgres, kafka, dead_letter = rest
    if folder is None:
        raise document.error(("output",), "folder must be given")
    if format is not None and format not in WRITTEN:
        raise document.error(("output", "format"), f"must be one of {', '.join(WRITTEN)}, got {format}")
    for key, address in (("postgres", postgres), ("kafka", kafka)):
        if address is not None and not ADDRESSES[key].fullmatch(address):
            raise document.error(("output", key), f"must be of the form {FORM_OF[key]}, without a password")
    sent_to = tuple(address for address in (postgres, kafka) if address is not None)
    return Output(folder=folder, format=format or DEFAULT_OUTPUT, sent_to=sent_to, dead_letter=dead_letter)


def _text(document: Document, keys: Path) -> str | None:
    """Return a text; None if it is not given."""
    if (value := document.at(keys)) is None:
        return None
    if not isinstance(value, str) or not value:
        raise document.error(keys, f"must be a text, got {type(value).__name__}")
    return value


def _budget(document: Document) -> tuple[float, float]:
    """Return the total epsilon and delta."""
    document.check_keys(("privacy",), ("epsilon", "delta", PEOPLE))
    epsilon, delta = document.number(("privacy", "epsilon"), None), document.number(("privacy", "delta"), 0.0)
    if (people := document.at(("privacy", PEOPLE))) is not None:
        if document.at(("privacy", "delta")) is not None:
            raise document.error(("privacy", PEOPLE), "must not be given with delta, which follows from it")
        try:
            delta = delta_of_people(str(people) if isinstance(people, int) else "")
        except ValueError as error:
            raise document.error(("privacy", PEOPLE), str(error)) from None
    try:
        check_numbers(argparse.Namespace(epsilon=epsilon, delta=delta))
    except UsageError as error:
        raise document.error(("privacy",), str(error)) from None
    if not 0 <= delta < 1:
        raise document.error(("privacy", "delta"), f"must be in [0, 1), got {delta:g}")
    return epsilon, delta


def _question(document: Document, name: str, data: Mapping[str, Any], folder: str) -> Question:
    """Read one question."""
    keys = ("questions", name)
    if not NAME.fullmatch(name):
        raise document.error(
            keys, "names must be small letters, digits and _, at most 63 of them, and begin with a letter"
        )
    given = document.mapping(keys)
    word = given.get("question")
    if not isinstance(word, str) or word not in QUESTIONS:
        raise document.error((*keys, "question"), f"must be one of {', '.join(QUESTIONS)}{meant(word, QUESTIONS)}")
    spec = QUESTIONS[word]
    share = document.number((*keys, "share"), 1.0)
    if not 0 < share < math.inf:
        raise document.error((*keys, "share"), f"must be finite and > 0, got {share:g}")
    known = keys_of(spec)
    document.check_keys(keys, known)
    own = [option.name for option in options_of(spec)]
    arguments = spec.signature.arguments
    unit = given.get(UNIT, document.content.get(UNIT, arguments[UNIT].default if UNIT in arguments else None))
    without = OF_A_PERSON if unit == "event" else ()
    shared = [key for key in SHARED if key in own and key not in without]
    options = {key: document.content[key] for key in shared if key in document.content}
    options |= {key: data[key] for key in (*FORMS, *SOURCE) if key in data}
    options |= _conditions(document, keys)
    for field in FIELDS:
        if field != "item" and field in known:
            _ = _text(document, (*keys, field)), _text(document, ("data", field))
    for key in known:
        if key in (*OWN, WHERE):
            continue
        value = given.get(key, data.get(key) if key in FIELDS else None)
        if value is not None:
            options[f"{key}_field" if key in FIELDS else key] = value
    if named := _named_in_alerts(document, name, spec, options):
        options["public_items"] = named
    try:
        read, shown = _read_options(spec, options, data["input"], f"{folder}/{name}")
    except (ValueError, TypeError, UsageError) as error:
        raise wrong_option(document, name, given, in_python(str(error))) from None
    line = document.lines[keys]
    return Question(name=name, spec=spec, share=share, options=read, shown=shown, line=line)


def wrong_option(document: Document, name: str, given: Mapping[str, Any], message: str) -> UsageError:
    """Return an error about an option of a question, at its key there or, if it has none, at that of the file."""
    keys = ("questions", name)
    option, _, rest = message.removeprefix("argument ").partition(": ")
    if not message.startswith("argument "):
        option, rest = message.partition(" ")[0], message
    if option in given:
        return document.error((*keys, option), rest)
    if option in SHARED and option in document.content:
        return document.error((option,), f"{rest} (for {name})")
    return document.error(keys, f"{option}: {rest}" if rest != message else message)


def _named_in_alerts(
    document: Document, question: str, spec: QuestionSpec, options: Mapping[str, Any]
) -> list[str] | None:
    """Return the public items of a question that counts items which stay found, with those that views of alerts name.

    The file is public, and so are these items: they are published in every window. None where no view names any that
    is not on the list, or where no item can be public beside those that are found. What is wrong with a view is told
    when views are read, and with a list when options are.
    """
    if spec is not COUNTS or options.get("domain") is not None or options.get("over") == "start":
        return None
    columns, given = options.get("item_field") or "item", options.get("public_items")
    try:
        number = len(columns if isinstance(columns, list) else column_names(str(columns)))
        encoding = str(options.get("encoding") or "utf-8")
        listed = [*map(str, given or ())]
        if isinstance(given, str):
            listed = Domain.from_file(given, encoding=encoding).texts.to_pylist()
    except (ValueError, TypeError, LookupError):
        return None
    named = [_listed(view.get("item"), number) for view in _alerts_of(document.content.get(VIEWS), question)]
    more = [text for text in dict.fromkeys(named) if text is not None and text not in listed]
    return [*listed, *more] if more else None


def _alerts_of(views: Any, question: str) -> list[Mapping[str, Any]]:
    """Return the views of alerts about items of a question: of its counts, or of sums or ratios that are made of them.

    An item of other views, such as a total, is no item of the question.
    """
    given = views if isinstance(views, Mapping) else {}
    known = {name: view for name, view in given.items() if isinstance(view, Mapping)}

    def about(view: Mapping[str, Any], seen: frozenset[str]) -> bool:
        pair = view.get("ratio")
        names = [view.get("of"), *(pair if isinstance(pair, list) else ())]
        sources = {name for name in names if isinstance(name, str)} - seen
        return question in sources or any(
            about(known[name], seen | {name}) for name in sources if {"over", "ratio"} & {*known.get(name, ())}
        )

    return [view for view in known.values() if {"above", "below"} & {*view} and about(view, frozenset())]


def _listed(item: Any, columns: int) -> str | None:
    """Return the item that a view names as it stands on a list; None if it cannot be one of so many columns."""
    parts = [str(part) for part in (item if isinstance(item, list) else [item]) if isinstance(part, str | int)]
    if len(parts) != columns or not all(parts) or any(set(part) & {"\n", "\r"} for part in parts):
        return None
    return parts[0] if columns == 1 else ",".join('"{}"'.format(part.replace('"', '""')) for part in parts)


def keys_of(spec: QuestionSpec) -> tuple[str, ...]:
    """Return the keys that a question may have."""
    own = [option.name for option in options_of(spec) if option.name not in WITHHELD]
    fields = [field for field in FIELDS if _has_field(spec, field)]
    return (*OWN, *fields, *own, *(("value_unit",) if spec.whole_values else ()), WHERE)


def _conditions(document: Document, keys: Path) -> dict[str, str]:
    """Return the condition that events must meet for a question: that of all of them, and its own."""
    found = []
    for place in (("data", WHERE), (*keys, WHERE)):
        text = _text(document, place)
        if text is not None:
            try:
                Filter(text)
            except ValueError as error:
                raise document.error(place, str(error).removeprefix(f"{WHERE}, ").removeprefix(f"{WHERE} ")) from None
            found.append(text)
    return {WHERE: found[0] if len(found) == 1 else " and ".join(f"({text})" for text in found)} if found else {}


def _read_options(
    spec: QuestionSpec, given: Mapping[str, Any], input: str, folder: str
) -> tuple[argparse.Namespace, dict[str, str]]:
    """Return the options of a question's command, and what to show of those that are lists."""
    os.makedirs(folder, exist_ok=True)
    needed = {option.name for option in options_of(spec) if option.default is REQUIRED}
    budget = (
        {"epsilon": 1.0, "delta": 1e-9} if "delta" in needed else {"epsilon": 1.0}
    )  # of a command; the share says which
    read, shown = options(spec, {**given, **budget}, input=input, output="rows.jsonl", folder=folder, of_files=True)
    check_texts(read, [])
    check_numbers(read)
    return read, shown


def _has_field(spec: QuestionSpec, field: str) -> bool:
    """Tell whether a question reads such a field."""
    read = {"item": bool(spec.item), "value": bool(spec.value)}
    return read.get(field, True)
