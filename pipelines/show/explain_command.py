"""`privstream explain RESULT`: what a result promises and how it was made, from its guarantee file alone."""

from __future__ import annotations

import inspect
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee, guarantee_of
from privstream.mechanisms.views.counts import AS_IS
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.locations import GUARANTEE
from privstream.pipelines.model.catalogue import QUESTIONS
from privstream.pipelines.model.question import loaded
from privstream.pipelines.show import words
from privstream.pipelines.terminal import printable

NEGLIGIBLE = "2^64"
"""What the guarantee rests on with such a probability stands in the guarantee file alone."""

NOT_COVERED = (
    "The published rows alone are private. Logs, metrics, dead letters and checkpoints of the run are exact.",
    "The noise key removes the noise: keep it secret.",
    "A person with several ids counts as several people, and is protected less.",
    "Other publications about the same people are not covered; runs in one ledger are added up (privstream budget).",
)
EVENTS_ALONE = "One event is protected, not a person: who sends many events is protected far less."
WIDTH = 100
WINDOWS = {"window_start": "first moment of the window.", "window_end": "first moment after the window."}


def run(result: str) -> None:
    """Print all that a guarantee file says, in sentences."""
    known = loaded("report.result")
    path = result.removesuffix(known.BESIDE)
    if os.path.basename(result) == GUARANTEE:
        path = os.path.dirname(result) or "."
    try:
        if (promise := known.monitor_promise(path)) is not None:
            sections = dict(explanation(promise.content, guarantee_of(promise.content)))
        else:
            found = known.read_promise(path)
            promise = found.promise
            sections = dict(explanation(promise.content, found.guarantee, found.row_type))
    except known.UNREADABLE as error:
        if isinstance(error, ValueError):  # it names the file
            raise UsageError(str(error)) from None
        raise UsageError(f"RESULT must be one that privstream wrote ({type(error).__name__})") from None
    width = max(40, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDTH
    for title, sentences in sections.items():
        print(printable(title))
        for sentence in sentences:
            print(textwrap.fill(printable(sentence), width, initial_indent="  ", subsequent_indent="    "))
    print(f"All of it, as JSON: {printable(promise.path)}")


def explanation(
    record: Mapping[str, Any], guarantee: PrivacyGuarantee, row_type: Any = None
) -> Iterator[tuple[str, list[str]]]:
    """Yield headings with their sentences; `row_type` is that of the rows, None of a whole monitor."""
    given, made, accuracy = record.get("parameters", {}), record.get("made_by", {}), record.get("accuracy") or {}
    info = QUESTIONS.get(words.word_of(record))
    by = f"{made.get('command', 'privstream')}, version {made.get('version', 'unknown')}"
    options = ", ".join(_option(name, value) for name, value in given.items() if name != "run_id") or "no options"
    yield "made by", [f"{by}; run id {given.get('run_id', 'unknown')}", options]
    step = "window" if given.get("window") is not None else "step"
    delta = f", plus delta = {guarantee.delta:g}" if guarantee.delta else ""
    yield (
        "privacy",
        [
            f"Protected is {guarantee.unit}.",
            "Whatever one concludes from what is published, its probability is at most e^epsilon "
            f"({math.exp(min(guarantee.epsilon, 500)):.3g}, with epsilon = {guarantee.epsilon:g}) times what it would "
            f"be if that unit had been added or removed{delta}.",
            *guarantee.lasting(step),
            guarantee.adaptivity.replace("step", step),
        ],
    )
    if info is None or row_type is None:
        questions = {name: each for name, each in (record.get("questions") or {}).items() if "question" in each}
        yield "questions", [f"{name}: {', '.join(_items(each))}" for name, each in questions.items()]
    else:
        if rules := (record.get("public") or {}).get("rules"):
            yield "rules", [", ".join(_items(rule)) for rule in rules]
        numbers = {name: value for name, value in accuracy.items() if isinstance(value, int | float)}
        note = (accuracy.get("intervals") or {}).get("note", "")
        yield (
            "numbers",
            list(filter(None, (info.description, accuracy.get("sentence"), ", ".join(_items(numbers)), note))),
        )
        share = [regime_in_words(record["limits"]["dropped"])] if record.get("limits") else []
        yield "limits", [*guarantee.limits, *share]
        yield "columns", list(_columns(row_type, info.row_type, words.value_unit(record)))
    if guarantee.public:
        yield "public", [f"Published beside the rows, or known: {'; '.join(guarantee.public)}."]
    caveats = [EVENTS_ALONE] if guarantee.unit.what == "event" else []
    yield "not covered", [*caveats, *(each for each in guarantee.caveats if NEGLIGIBLE not in each), *NOT_COVERED]
    if guarantee.proof:
        yield "proof", [guarantee.proof]


def _columns(row_type: Any, base: Any, unit: str) -> Iterator[str]:
    """Yield the columns of rows with what they mean; `base` says it of those that other rows have, too."""
    texts = described(row_type.__doc__ or "") | described(base.__doc__ or "") | WINDOWS
    for name in row_type._fields:
        if text := texts.get(name):
            yield f"{name}: {text}" + f" In {unit}." * bool(unit and name in ("value", "mean"))


def _items(values: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {f'{value:,.4g}' if isinstance(value, float) else value}" for name, value in values.items()]


def _option(name: str, value: Any) -> str:
    """Write an option of a run; of a path the name of its file, for folders are nobody's business."""
    hidden = isinstance(value, str) and name not in ("time_zone", "where")
    return f"{name} = {os.path.basename(value) if hidden else value}"


def regime_in_words(dropped: Mapping[str, float | None] | None) -> str:
    """Say how published numbers allow for what limits drop."""
    if dropped is None:
        return "What limits drop is not known: numbers and intervals are of what is retained."
    if dropped["upper"] == 0:
        return "Limits drop nothing."
    how = "numbers are divided by the share that is retained, and intervals have its uncertainty"
    if words.is_lower_bound(dropped):
        how = "numbers are of what is retained, and are lower bounds"
    elif (dropped["share"] or 0.0) <= AS_IS:
        how = "numbers are as they are, and intervals allow for it"
    return f"Limits drop {words.dropped_in_words(dropped)} of all contributions: {how}."


def described(docstring: str, title: str = "Attributes") -> dict[str, str]:
    """Return what a section of a docstring says of each name that it lists, for readers of files.

    Several may share a line.
    """
    section = inspect.cleandoc(docstring).partition(f"\n{title}:\n")[2].partition("\n\n")[0]
    found: dict[str, str] = {}
    for names, text in re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n {5}.*)*)", section, re.M):
        said = re.sub(r"(^|[.:] )None\b", r"\1Empty", " ".join(text.split()))
        found |= dict.fromkeys(names.split(", "), re.sub(r"\bNone\b", "empty", said))
    return found


COMMAND = Command(
    description="Explains a result from its guarantee file: what is protected, how the numbers were made and how "
    "accurate they are, what limits drop, how items are discovered, and what each column means.",
    options={"result": {"metavar": "RESULT", "help": "output of a command, or its guarantee file"}},
    run=run,
)
