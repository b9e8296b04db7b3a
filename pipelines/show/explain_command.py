"""`privstream explain RESULT`: what a result promises and how it was made, from its guarantee file alone."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from privstream.mechanisms.guarantee_records import guarantee_of
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import in_words
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.docstrings import described
from privstream.pipelines.locations import GUARANTEE
from privstream.pipelines.model.catalogue import QUESTIONS
from privstream.pipelines.model.question import loaded
from privstream.pipelines.promise import Promise
from privstream.pipelines.show import words
from privstream.pipelines.show.promises import discovery_in_words, not_covered, promise_in_words, regime_in_words
from privstream.pipelines.terminal import printable
from privstream.transforms.row_types import KeyRise, KeySum

COUNTERS = (
    "The first line of a run counts rows: used, malformed (--dead-letter keeps them), late, and outside of what was "
    "asked. These numbers are exact and no part of the result: guard them like the input.",
)
WIDTH = 100
ROWS_WITH = {"max_value": KeySum, "rising": KeyRise}
"""Rows of counts, by the option that gives them further columns."""

WINDOWS = {"window_start": "first moment of the window.", "window_end": "first moment after the window."}
DURATIONS = ("window", "renew_every", "allowed_lateness", "timeout")
"""Options that are lengths of time."""


def run(result: str) -> None:
    """Print all that a guarantee file says, in sentences."""
    try:
        row_type = None
        if is_view(result):
            view = loaded("report.result.read_promise")(result)
            promise, guarantee, row_type = view.promise, view.guarantee, view.row_type
        else:
            promise = read(result)
            guarantee = guarantee_of(promise.content)
        sections = dict(explanation(promise.content, guarantee, row_type))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        if isinstance(error, ValueError):  # it names the file
            raise UsageError(str(error)) from None
        raise UsageError(f"RESULT must be one that privstream wrote ({type(error).__name__})") from None
    width = max(40, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDTH
    for title, sentences in sections.items():
        print(printable(title))
        for sentence in sentences:
            print(textwrap.fill(printable(sentence), width, initial_indent="  ", subsequent_indent="    "))
    print(f"All of it, as JSON: {printable(promise.path)}")


def is_view(path: str) -> bool:
    """Tell whether a path is that of a view, of which the guarantee file of its monitor says what it is."""
    own = os.path.isdir(path) or path.endswith(".guarantee.json") or os.path.exists(f"{path}.guarantee.json")
    return not own and os.path.exists(os.path.join(os.path.dirname(path), GUARANTEE))


def read(path: str) -> Promise:
    """Return the guarantee file of a result, which may be a file, a folder, or that file itself."""
    own = os.path.join(path, GUARANTEE) if os.path.isdir(path) else f"{path}.guarantee.json"
    for candidate in (path,) if path.endswith((".guarantee.json", GUARANTEE)) else (own,):
        if (found := Promise.read(candidate)) is not None:
            return found
    raise ValueError(f"RESULT must have a guarantee file beside it, and there is no file {own}")


def explanation(
    record: Mapping[str, Any], guarantee: PrivacyGuarantee, row_type: Any = None
) -> Iterator[tuple[str, list[str]]]:
    """Yield headings with their sentences; `row_type` is that of the rows, if not that of the question."""
    word, given = words.word_of(record), record.get("parameters", {})
    spec, numbers = QUESTIONS.get(word), record.get("accuracy") or {}
    made = record.get("made_by", {})
    names = [f"{made.get('command', 'privstream')}, version {made.get('version', 'unknown')}"]
    digest = (record.get("rows") or {}).get("sha256")
    yield (
        "made by",
        [
            f"{names[0]}; run id {given.get('run_id', 'unknown')}{f'; rows with SHA-256 {digest}' if digest else ''}",
            ", ".join(_option(name, value) for name, value in given.items() if name != "run_id") or "no options",
        ],
    )
    yield "privacy", promise_in_words(guarantee, "window" if given.get("window") is not None else "step")
    if record.get("questions"):
        yield (
            "questions",
            [
                f"{name}: {each['question']}, epsilon {each['epsilon']:g}, delta {each['delta']:g}: {each['output']}"
                for name, each in record["questions"].items()
                if "question" in each
            ],
        )
    if spec is None:
        yield "not covered", not_covered(guarantee)
        return
    if rules := (record.get("public") or {}).get("rules"):
        yield "rules", [", ".join(_option(*each) for each in rule.items()) for rule in rules if isinstance(rule, dict)]
    unit = words.unit_of(record)
    intervals = numbers.get("intervals") or {}
    method = f"Method: {numbers['method']}." if "method" in numbers else ""
    found = discovery_in_words(numbers, unit)
    accuracy = f"Accuracy: {words.accuracy_in_words(record)}." if found else str(numbers["sentence"])
    yield "numbers", [*filter(None, (spec.description, method, accuracy, intervals.get("note", "")))]
    if found:
        yield "discovery", found
    share = [regime_in_words(record["limits"]["dropped"])] if record.get("limits") else []
    yield "limits", [*guarantee.limits, *share]
    if guarantee.public:
        yield "public", [f"Published beside the rows, or known: {'; '.join(guarantee.public)}."]
    yield "counters", [*COUNTERS]
    more = next((row for name, row in ROWS_WITH.items() if given.get(name)), spec.row_type)
    yield "columns", [f"{name}: {text}" for name, text in _columns(row_type or more, spec.row_type, record)]
    yield "not covered", not_covered(guarantee)
    if guarantee.proof:
        yield "proof", [guarantee.proof]


def _columns(row_type: Any, base: Any, record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the columns of rows with what they mean; `base` says it of those that other rows have, too."""
    texts = described(row_type.__doc__ or "") | described(base.__doc__ or "") | WINDOWS
    unit = words.value_unit(record)
    for name in row_type._fields:
        if text := texts.get(name):
            yield name, f"{text} In {unit}." if unit and name in ("value", "mean") else text


def _option(name: str, value: Any) -> str:
    """Write an option of a run; of a path the name of its file, for folders are nobody's business."""
    if name in DURATIONS and isinstance(value, int | float):
        value = in_words(round(value * 1_000_000))
    hidden = isinstance(value, str) and name not in ("time_zone", "where")
    return f"{name} = {os.path.basename(value) if hidden else value}"


COMMAND = Command(
    description="Explains a result from its guarantee file: what is protected, how the numbers were made and how "
    "accurate they are, what limits drop, how items are discovered, and what each column means.",
    options={"result": {"metavar": "RESULT", "help": "output of a command, or its guarantee file"}},
    run=run,
)
