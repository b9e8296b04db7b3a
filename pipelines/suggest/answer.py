"""What `privstream suggest` does, and what it says of its rows: tables, options, a command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from privstream.mechanisms.limits.suggested_limits import ENOUGH_ERROR, ENOUGH_FOUND, LARGEST_EPSILON
from privstream.pipelines.command import UsageError
from privstream.pipelines.plot.promise import Promise
from privstream.pipelines.questions.command_lines import OF_VALUES, forms, promised, windows
from privstream.pipelines.questions.plan_command import rounded_up
from privstream.pipelines.questions.run_command import RunCommand
from privstream.pipelines.questions.spec import loaded
from privstream.pipelines.sinks.row_files import read_rows
from privstream.pipelines.suggest.command import QUANTILES, SPEC, TERMINAL
from privstream.pipelines.terminal import printable
from privstream.transforms.row_types import LimitShare
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

WORDS = {
    "contributions": "items in windows, of a person in all",
    "items_per_window": "items in one window, the most of a person",
    "windows": "windows of a person",
    "windows_per_item": "windows with one item, the most of a person",
    "streams": "streams of a person",
    "values": "a value of a person",
}
"""What is measured of a person, by its name in rows."""

LARGEST_OF = ("items_per_window", "windows_per_item", "streams")
"""What is the largest number of a person, or no sum: a share of it says little of what a limit keeps."""

NOBODY = (
    "Nothing can be suggested: too few people to be seen with this epsilon. It takes some {least:,.0f} people with "
    "alike numbers; with --epsilon {epsilon:g} it would take 100. Rows say how many people there may be."
)

MOST = "--max_value"

SIDE_BY_SIDE = 8
"""So many scales of the noise are plain to see."""

FEW = 100


ENOUGH = "four fifths of the {items} largest items would be found, with errors of at most a half"


def answer(arguments: argparse.Namespace, beam_arguments: list[str]) -> None:
    """Publish the rows, say what they suggest, and draw them."""
    given = dict(vars(arguments))
    picture = given.pop("picture")
    if picture is not None and arguments.output == TERMINAL:
        raise UsageError("output must be a file where picture is given: it is drawn from the rows")
    if picture is not None:
        try:
            loaded("plot.picture_spec.check_picture")(picture, "--picture")
        except ValueError as error:
            raise UsageError(str(error)) from error
    spec = replace(SPEC, item="", whole_values=False) if arguments.question == QUANTILES else SPEC
    RunCommand(spec).run(argparse.Namespace(**given), beam_arguments)
    if arguments.dry_run or arguments.output == TERMINAL:
        return
    found = read_rows("--output", arguments.output, spec.row_type)
    promise = Promise.read(f"{arguments.output}.guarantee.json")
    assert promise is not None  # it has just been written
    for line in suggestions(found, promise):
        Console().print(line, soft_wrap=True)
    if picture is not None:
        loaded("plot.picture_spec.write_picture")(picture, partial(loaded("suggest.picture.prepare"), found, promise))


def below(rows: Sequence[LimitShare], promise: Promise) -> Iterator[Any]:
    """Yield what a terminal shows: a table for each measure, and the options."""
    for measure in dict.fromkeys(row.measure for row in rows):
        if not any(row.measure == measure and row.within is not None for row in rows):
            yield Text(f"{measure} ({WORDS[measure]}): hidden by noise; there may be {_beyond(rows, measure)}")
            continue
        table = Table(title=Text(f"{measure}: {WORDS[measure]}"), title_justify="left", box=SIMPLE_HEAD)
        shown = [row for row in rows if row.measure == measure]
        predicts = any(row.error is not None for row in shown)
        for name in ("more than", "at most", "people", "kept by this limit", "within it", *["off, found"] * predicts):
            table.add_column(name, justify="right")
        for row in shown:
            people = f"{row.people:,} ({row.people_lower:,} to {row.people_upper:,})"
            kept = _share(row.kept, row.kept_lower, row.kept_upper)
            within = _share(row.within, row.within_lower, row.within_upper)
            off = "" if row.error is None else f"{row.error:.0%}" + ("" if row.found is None else f", {row.found:.0%}")
            table.add_row(_edge(row.above), _edge(row.limit), people, kept, within, *[off] * predicts)
        yield table
    yield from suggestions(rows, promise)


def suggestions(rows: Sequence[LimitShare], promise: Promise) -> Iterator[Text]:
    """Yield what the rows suggest: each option on a line that begins with it, what it keeps, and the command."""
    parameters = promise.number("parameters")
    question, epsilon, delta = (parameters[name] for name in ("question", "for_epsilon", "delta"))
    found = [row for row in rows if row.suggested]
    if not found:
        scale, spent = max(promise.number("accuracy", "noise_scales").values()), promise.number("parameters", "epsilon")
        least = SIDE_BY_SIDE * scale
        yield Text(NOBODY.format(least=least, epsilon=rounded_up(spent * least / FEW)))
        return
    yield Text(f"Options that suit {question} with epsilon {epsilon:g} and delta {delta:g}:")
    for row in found:
        yield Text(row.suggested)
        if row.kept is not None and row.within is not None and (row.measure != "values" or MOST in row.suggested):
            most = _most(rows, row.measure)
            what = "within" if row.measure in LARGEST_OF else "kept"
            share = _between(_before(rows, row), row, what, float(row.suggested.split()[-1]))
            kept = f"keeps {share} of what people with at most {most:g} have"
            if row.measure == "values":
                kept = f"keeps {share} of the sum of values up to {most:g}; sums and means are too small by the rest"
            elif row.measure in LARGEST_OF:
                kept = f"cuts nothing of {share} of people with at most {most:g}"
            yield Text(f"  {kept} ({WORDS[row.measure]}); {_beyond(rows, row.measure)} have more")
    yield from (Text(line) for line in predicted(rows, found, parameters))
    yield Text(f"Then: {printable(command_line(rows, parameters))}")


def predicted(rows: Sequence[LimitShare], found: Sequence[LimitShare], parameters: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the run is predicted to show with suggested limits, and what would show more where that is little."""
    told = next((row for row in found if row.error is not None), None)
    if told is None or told.error is None:
        return
    items = parameters["items"]
    if told.found is None:
        yield f"Predicted: ranks are off by {told.error:.0%} of the values in a window, on average."
    else:
        sums = "".join(f", their sums by {row.error:.0%}" for row in found if row.measure == "values" and row.error)
        yield (
            f"Predicted: some {told.found * items:.0f} of the {items} largest items are found, if they last all "
            f"windows; their smoothed counts are off by {told.error:.0%}{sums}, by noise and by what limits leave out. "
            f"That is of people with at most {_most(rows, told.measure):g} ({WORDS[told.measure]}); where a few with "
            "far more have much of everything, numbers are further off, and a larger limit is better."
        )
    most = max(round(row.error, 2) for row in found if row.error is not None)
    if most <= ENOUGH_ERROR and (told.found is None or round(told.found * items) >= ENOUGH_FOUND * items):
        return  # as far as the figures above show
    if told.enough_epsilon is not None:
        enough = "errors would be at most a half" if told.found is None else ENOUGH.format(items=items)
        yield f"With --for_epsilon {told.enough_epsilon:g} {enough}. Windows with more people help as well."
    else:
        yield f"No epsilon up to {LARGEST_EPSILON:g} would show much more: it takes windows with more people."


def command_line(rows: Sequence[LimitShare], parameters: Mapping[str, Any]) -> str:
    """Return the command that uses what is suggested."""
    limits = " ".join(row.suggested for row in rows if row.suggested)
    ranks = parameters["question"] == QUANTILES
    unused = ("item_field",) if ranks else () if MOST in limits else OF_VALUES
    files = " ".join(["--input FILE --output ROWS --noise_key_file KEY", *forms(parameters, unused)])
    budget = f"--epsilon {parameters['for_epsilon']:g} --delta {parameters['delta']:g}"
    return f"privstream {parameters['question']} {files} {windows(parameters)} {budget}{promised(parameters)} {limits}"


def _most(rows: Sequence[LimitShare], measure: str) -> float:
    """Return the largest limit that people can be seen to have."""
    return max(row.limit for row in rows if row.measure == measure and row.limit is not None)


def _before(rows: Sequence[LimitShare], row: LimitShare) -> LimitShare | None:
    """Return the row of the same measure whose limit is the lower edge of a row."""
    return next((one for one in rows if one.measure == row.measure and one.limit == row.above), None)


def _between(before: LimitShare | None, row: LimitShare, what: str, limit: float) -> str:
    """Write the share of a limit: between its row and the row before where it is between two edges."""
    share, lower, upper = (getattr(row, f"{what}{end}") for end in ("", "_lower", "_upper"))
    if limit == row.limit:
        return _share(share, lower, upper)
    least = 0.0 if before is None else getattr(before, f"{what}_lower") or 0.0
    return f"{least:.0%} to {upper:.0%}"


def _beyond(rows: Sequence[LimitShare], measure: str) -> str:
    """Say how many people may have more than the largest limit."""
    rest = [row for row in rows if row.measure == measure and row.limit is None]
    return f"{rest[0].people_lower:,} to {rest[0].people_upper:,} people" if rest else "no people"


def _edge(edge: float | None) -> str:
    """Write an edge of a cell."""
    return "" if edge is None else f"{edge:,.15g}"


def _share(share: float | None, lower: float | None, upper: float | None) -> str:
    """Write a share with its interval."""
    return "" if share is None or lower is None or upper is None else f"{share:.0%} ({lower:.0%} to {upper:.0%})"
