"""`privstream explain RESULT`: what a result promises and how it was made, from its guarantee file alone."""

from __future__ import annotations

import math
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from privstream.mechanisms.guarantee_records import guarantee_of
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import in_words
from privstream.mechanisms.views.corrected import AS_IS, CORRECTED
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.docstrings import described
from privstream.pipelines.locations import GUARANTEE
from privstream.pipelines.model.catalogue import QUESTIONS
from privstream.pipelines.model.question import loaded
from privstream.pipelines.show import words
from privstream.pipelines.terminal import printable

COUNTERS = (
    "The first line of a run counts rows: used, malformed (--dead-letter keeps them), late, and outside of what was "
    "asked. These numbers are exact and no part of the result: guard them like the input."
)
NEGLIGIBLE = "2^64"
"""What the guarantee rests on with such a probability stands in the guarantee file alone."""

NOT_COVERED = (
    "The published rows alone are private. Logs, metrics, dead letters and checkpoints of the run are exact.",
    "The noise key removes the noise: keep it secret.",
    "A person with several ids counts as several people, and is protected less.",
    "Other publications about the same people are not covered; runs in one ledger are added up (privstream budget).",
)
REACTIONS = "It holds even if people react to what was published."
EVENTS_ALONE = "One event is protected, not a person: who sends many events is protected far less."

LARGEST_FACTOR = 1000.0
WIDTH = 100
WINDOWS = {"window_start": "first moment of the window.", "window_end": "first moment after the window."}
DURATIONS = ("window", "renew_every", "allowed_lateness", "timeout")
"""Options that are lengths of time."""


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
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
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
    word, given = words.word_of(record), record.get("parameters", {})
    spec, numbers = QUESTIONS.get(word), record.get("accuracy") or {}
    made, digest = record.get("made_by", {}), (record.get("rows") or {}).get("sha256")
    by = f"{made.get('command', 'privstream')}, version {made.get('version', 'unknown')}"
    rows = f"; rows with SHA-256 {digest}" if digest else ""
    options = ", ".join(_option(name, value) for name, value in given.items() if name != "run_id") or "no options"
    yield "made by", [f"{by}; run id {given.get('run_id', 'unknown')}{rows}", options]
    yield "privacy", _promise(guarantee, "window" if given.get("window") is not None else "step")
    not_covered = [EVENTS_ALONE] if guarantee.unit.what == "event" else []
    not_covered += [*(text for text in guarantee.caveats if NEGLIGIBLE not in text), *NOT_COVERED]
    if spec is None or row_type is None:
        questions = (record.get("questions") or {}).items()
        yield (
            "questions",
            [
                f"{name}: {each['question']}, epsilon {each['epsilon']:g}, delta {each['delta']:g}: {each['output']}"
                for name, each in questions
                if "question" in each
            ],
        )
        yield "not covered", not_covered
        return
    if rules := (record.get("public") or {}).get("rules"):
        yield "rules", [", ".join(_option(*each) for each in rule.items()) for rule in rules if isinstance(rule, dict)]
    method = f"Method: {numbers['method']}." if "method" in numbers else ""
    found = _discovery(numbers, words.unit_of(record))
    accuracy = f"Accuracy: {words.accuracy_in_words(record)}." if found else str(numbers["sentence"])
    note = (numbers.get("intervals") or {}).get("note", "")
    yield "numbers", [*filter(None, (spec.description, method, accuracy, note))]
    if found:
        yield "discovery", found
    share = [regime_in_words(record["limits"]["dropped"])] if record.get("limits") else []
    yield "limits", [*guarantee.limits, *share]
    if guarantee.public:
        yield "public", [f"Published beside the rows, or known: {'; '.join(guarantee.public)}."]
    yield "counters", [COUNTERS]
    yield "columns", [f"{name}: {text}" for name, text in _columns(row_type, spec.row_type, words.value_unit(record))]
    yield "not covered", not_covered
    if guarantee.proof:
        yield "proof", [guarantee.proof]


def _columns(row_type: Any, base: Any, unit: str) -> Iterator[tuple[str, str]]:
    """Yield the columns of rows with what they mean; `base` says it of those that other rows have, too."""
    texts = described(row_type.__doc__ or "") | described(base.__doc__ or "") | WINDOWS
    for name in row_type._fields:
        if text := texts.get(name):
            yield name, f"{text} In {unit}." if unit and name in ("value", "mean") else text


def _option(name: str, value: Any) -> str:
    """Write an option of a run; of a path the name of its file, for folders are nobody's business."""
    if name in DURATIONS and isinstance(value, int | float):
        value = in_words(round(value * 1_000_000))
    hidden = isinstance(value, str) and name not in ("time_zone", "where")
    return f"{name} = {os.path.basename(value) if hidden else value}"


def _promise(guarantee: PrivacyGuarantee, step: str) -> list[str]:
    """Return sentences on what is protected, against what comparison, and how far conclusions can go."""
    odds = math.exp(guarantee.epsilon)
    factor = f"{odds:,.3g}" if odds <= LARGEST_FACTOR else f"e^{guarantee.epsilon:g}"
    plus = f", plus delta = {guarantee.delta:g}" if guarantee.delta else ""
    right = min(100.0, math.ceil(1000 * (1 - (1 - guarantee.delta) / (1 + odds))) / 10)
    return [
        f"Protected is {guarantee.unit}.",
        "Compare what is published with what would have been published from neighbouring data, which differ by "
        f"adding or removing that unit ({guarantee.unit}).",
        f"The probability of any conclusion is at most {factor} times that in the other case (e to the power of "
        f"epsilon = {guarantee.epsilon:g}){plus}.",
        "For example: an observer who finds both cases equally likely, and guesses from all that is published, is "
        f"right with a probability of at most {right:g}%; 50% is a mere guess.",
        *guarantee.lasting(step),
        REACTIONS if "published before it" in guarantee.adaptivity else guarantee.adaptivity.replace("step", step),
    ]


def _discovery(numbers: Mapping[str, Any], unit: str) -> list[str]:
    """Return sentences on how items are discovered, from the accuracy of a guarantee file; none with a public list."""
    if (threshold := numbers.get("threshold")) is None or "needed_in_1" not in numbers:
        return []
    lasting = sorted(int(name.rpartition("_")[2]) for name in numbers if name.startswith("needed_in_"))
    each = "; ".join(
        f"in {windows:,} window{'s' * (windows > 1)}: {numbers[f'needed_in_{windows}']:,} for an even chance, "
        f"{numbers[f'likely_in_{windows}']:,} for 95%"
        for windows in lasting
    )
    sentences = [
        f"An item is discovered when its noisy count in one window reaches {threshold:,}, or that of several windows "
        "together a threshold of its own. A discovered item is counted in every window of the run, the earlier ones "
        "included.",
        f"{unit.capitalize()} that an item needs in each window, by the number of windows: {each}.",
    ]
    if (others := numbers.get(f"likely_by_others_in_{lasting[-1]}")) is not None:
        sentences.append(
            f"Different {unit} in each of {lasting[-1]:,} windows also discover an item, by a list of different "
            f"people: {others:,} in each for 95%."
        )
    return sentences


def regime_in_words(dropped: Mapping[str, float | None] | None) -> str:
    """Say how published numbers allow for what limits drop."""
    if dropped is None:
        return "What limits drop is not known: numbers and intervals are of what is retained."
    if dropped["upper"] == 0:
        return "Limits drop nothing."
    if words.is_lower_bound(dropped):
        many, how = f", more than {words.percent(CORRECTED)}", "numbers are of what is retained, and are lower bounds"
    elif (dropped["share"] or 0.0) <= AS_IS:
        many, how = "", "numbers are as they are, and intervals allow for it"
    else:
        many, how = "", "numbers are divided by the share that is retained, and intervals have its uncertainty"
    return f"Limits drop {words.dropped_in_words(dropped)} of all contributions{many}: {how}."


COMMAND = Command(
    description="Explains a result from its guarantee file: what is protected, how the numbers were made and how "
    "accurate they are, what limits drop, how items are discovered, and what each column means.",
    options={"result": {"metavar": "RESULT", "help": "output of a command, or its guarantee file"}},
    run=run,
)
