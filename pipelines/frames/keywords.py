"""From keywords of Python to the options of a command, as its command line reads them. Imports no Beam."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any, NoReturn

from privstream.pipelines.help_page import Parser
from privstream.pipelines.questions.commands import run_command
from privstream.pipelines.questions.options import options_of
from privstream.pipelines.questions.spec import QuestionSpec, resolve

ENDLESS = ("input", "input_format", "watch", "watermark", "output_format")
"""Options about files that are read, or come without an end: a frame is neither."""

DASHES = re.compile(r"(?<![\w-])--(?=[a-z])")


class _Parser(Parser):
    """Raises an error where a command would end."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def in_python(message: str) -> str:
    """Return a message about options as one about keywords: `--epsilon must be ..` becomes `epsilon must be ..`."""
    return DASHES.sub("", message)


def options(
    spec: QuestionSpec, given: Mapping[str, Any], *, input: str, output: str, folder: str
) -> tuple[argparse.Namespace, dict[str, str]]:
    """Return the options of a question's command, and what to show of those that were lists.

    Args:
        spec: the question.
        given: keywords; None is as if one was not given.
        input, output: values of these options.
        folder: where lists may be written that the command line takes as files.

    Raises:
        TypeError: there is no such option, or its value is of a type that stands for nothing.
        ValueError: as the command line words it.
    """
    parser = _Parser(prog=spec.word, add_help=False)
    run_command(spec).add_arguments(parser)
    actions = {action.dest: action for action in parser._actions}
    known = [name for name in actions if name not in (*ENDLESS, "output")]
    words = [f"--input={input}", f"--output={output}"]
    kinds = {option.name: option.type for option in options_of(spec)}
    shown: dict[str, str] = {}
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            guess = f"; did you mean `{near[0]}`?" if near else ""
            raise TypeError(f"{spec.word} has no option `{name}` for frames{guess}")
        if value is None:
            continue
        if actions[name].nargs == 0:
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be True or False, got {type(value).__name__}")
            words += [f"--{name}"] * value
        elif actions[name].nargs == "?" and isinstance(value, bool):
            words += [f"--{name}"] * value  # with what it stands for without a value
        elif isinstance(actions[name], argparse._AppendAction):
            words += [f"--{name}={_text(name, one)}" for one in ([value] if isinstance(value, str) else value)]
        else:
            path = os.path.join(folder, name)
            number = _write_list(kinds.get(name, ""), name, value, path)
            if number is not None:
                shown[name] = f"a list of {number:,}"
            words.append(f"--{name}={_text(name, value if number is None else path)}")
    return parser.parse_args(words, argparse.Namespace(command=spec.word)), shown


def _write_list(kind: str, name: str, value: Any, path: str) -> int | None:
    """Write a public list as the file that the command line has in its place; return its length.

    Raises:
        ValueError, TypeError: the list breaks a rule.
    """
    if isinstance(value, str | os.PathLike | int):
        return None
    if kind == "Domain":
        texts = resolve("privstream.pipelines.questions.readings.texts")(name, list(value))
        if any("\n" in text or text.endswith("\r") for text in texts):
            raise ValueError(f"{name} must be texts without line breaks")
        with open(path, "x", encoding="utf-8", newline="") as file:
            file.writelines(f"{text}\n" for text in texts)
        return len(texts)
    if kind == "tuple[AlertRule, ...]":
        rules = resolve("privstream.pipelines.questions.readings.rules")(name, list(value))
        resolve("privstream.pipelines.questions.alert_rules_file.write_rules")(path, rules)
        return len(rules)
    if kind == "Thresholds" and isinstance(value, Mapping):
        with open(path, "x", encoding="utf-8") as file:
            json.dump({str(category): number for category, number in value.items()}, file)
        return len(value)
    return None


def _text(name: str, value: Any) -> str:
    """Return a value as it stands on a command line.

    Raises:
        TypeError, ValueError: it cannot.
    """
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if isinstance(value, timedelta):
        return str(value.total_seconds())
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | tuple):
        texts = [_text(name, one) for one in value]
        if any("," in text for text in texts):
            raise ValueError(f"{name} must be texts without commas")
        return ",".join(texts)
    if isinstance(value, Mapping | set | frozenset | bytes):
        raise TypeError(f"{name} must be text, a number, or a list of them, got {type(value).__name__}")
    return str(value)
