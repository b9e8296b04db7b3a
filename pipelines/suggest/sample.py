"""`privstream plan counts --like SAMPLE`: what limits would leave out of public data, and what would be found."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from privstream.mechanisms import FoundKeys, SeededNoise
from privstream.mechanisms.limits.person_histograms import WHOLE_NUMBERS
from privstream.mechanisms.limits.sample import TOP, Kept, Sample, Shown
from privstream.pipelines.command import UsageError
from privstream.pipelines.console import show
from privstream.pipelines.local_time import moment
from privstream.pipelines.questions.arguments import input_fields
from privstream.pipelines.questions.readings import by_clocks
from privstream.pipelines.sources.found_files import files_with
from privstream.pipelines.sources.normalise import read_files
from privstream.pipelines.terminal import say
from privstream.transforms.counters import counted
from privstream.transforms.limits.measuring import sample_of
from privstream.transforms.timing.steps import Steps
from rich.table import Table

if TYPE_CHECKING:
    from privstream.pipelines.questions.plan_command import PlanCommand

NOT_PRIVATE = (
    "{path} is read as data that anyone may see: these numbers are exact, protect nobody in it, and cost nothing. For "
    "private data there is privstream suggest, which has a cost."
)
MEANS = (
    "Kept: contributions (a person with an item in a window) that count, of all and of the first and the last quarter "
    "of the windows. Found: of the {top} items of most people in each window, those with a row. Off: mean error of the "
    "count of these rows, and of the smoothed one over files, against all people, those left out too. Means of {keys} "
    "draws of noise."
)
NO_FILES = ("watch", "watermark", "output_format", "streams", "stream_field", "value_field")
"""Options of runs that have no use here."""

SIMULATED = 3
"""Draws of noise."""

LIMITS = 8
"""Number of limits that are compared, about."""


class Predicted(NamedTuple):
    """What is predicted of one limit; without `shown` no run with it is possible."""

    limit: int
    kept: Kept
    shown: Shown

    @property
    def worth(self) -> float:
        """Share of the largest items that are found, each as exp(-error) of its smoothed count."""
        error = self.shown.smoothed_error
        return 0.0 if math.isnan(error) else self.shown.found * math.exp(-error)


def predict(plan: PlanCommand, arguments: argparse.Namespace) -> None:
    """Print what runs with several limits would show of a sample.

    Raises:
        UsageError: an option is missing or has no use here, or the sample cannot be used.
    """
    try:
        sample = _read(plan, arguments)
        answers = [_compare(plan, arguments, sample, epsilon) for epsilon in arguments.epsilon]
    except (ValueError, TypeError, OSError) as error:
        raise UsageError(str(error)) from error
    if arguments.json:
        print(json.dumps({"question": plan.spec.word, "budgets": answers}, indent=2, allow_nan=False))
        return
    for answer in answers:
        _print(arguments, sample, answer)


def _read(plan: PlanCommand, arguments: argparse.Namespace) -> Sample:
    """Read the sample."""
    for name in ("epsilon", "window", "start"):
        if getattr(arguments, name) is None:
            raise ValueError(f"{name} must be given with like")
    for name in ("error", "items", "max_value", "full_share", "max_contributions_per_window"):
        if getattr(arguments, name):
            raise ValueError(f"{name} must not be given with like")
    if str(arguments.like).startswith("kafka://"):
        raise ValueError("like must be files, which have an end")
    if arguments.over != "window":
        raise ValueError(f"over must be window with like, got {arguments.over}")
    start, end = (
        None if (given := getattr(arguments, name)) is None else moment(name, given, arguments.time_zone or "UTC")
        for name in ("start", "end")
    )
    if end is None and arguments.windows is None:
        raise ValueError("end or windows must be given with like")
    window = by_clocks(arguments.window, arguments.time_zone)
    steps = Steps.of(window=window, start=start, end=end, windows=arguments.windows)
    arguments.windows = steps.count
    given = argparse.Namespace(**(vars(arguments) | dict.fromkeys(NO_FILES)))
    fields = input_fields(plan.spec, given)
    files = files_with(fields, arguments.like, arguments.input_format)
    with counted() as counters:
        sample = sample_of(read_files(files, fields), steps)
    if sample is None:
        raise ValueError("like must have events that can be used, between start and end: it has none")
    used, outside, malformed = (counters.get(f"events{what}", 0) for what in ("_usable", "_outside_run", "_malformed"))
    say(
        f"{used:,} events of the sample were used; {outside:,} outside of the windows and {malformed:,} others were not"
    )
    return sample


def _compare(plan: PlanCommand, arguments: argparse.Namespace, sample: Sample, epsilon: float) -> dict[str, Any]:
    """Return what is predicted of several limits, with one epsilon."""
    found = [_predict(plan, arguments, sample, epsilon, limit) for limit in _limits(sample, arguments)]
    best = max(found, key=lambda each: each.worth)
    return {
        "epsilon": epsilon,
        "delta": arguments.delta,
        "people": sample.people,
        "contributions": len(sample.users),
        "windows": sample.count,
        "suggested": best.limit if best.worth > 0 else None,
        "limits": [{"limit": each.limit, "kept": _plain(each.kept), "shown": _plain(each.shown)} for each in found],
    }


def _plain(numbers: Kept | Shown) -> dict[str, float | None]:
    """Return numbers by name, rounded; None for what is not known."""
    return {name: None if math.isnan(value) else round(value, 4) for name, value in numbers._asdict().items()}


def _limits(sample: Sample, arguments: argparse.Namespace) -> Sequence[int]:
    """Return the limits to compare: some of the grid up to the largest that binds, and the one that is given."""
    most = int(np.quantile(sample.contributions, 1 - 1e-3))
    grid = [edge for edge in WHOLE_NUMBERS if edge < 1.5 * most]
    chosen = {grid[round(place)] for place in np.linspace(0, len(grid) - 1, min(len(grid), LIMITS)).tolist()}
    given = arguments.max_contributions
    return sorted(chosen | ({given} if given is not None else set()))


def _predict(plan: PlanCommand, arguments: argparse.Namespace, sample: Sample, epsilon: float, limit: int) -> Predicted:
    """Return what a run with one limit would show."""
    options = vars(arguments) | {"max_contributions": limit, "start": None, "end": None}
    transform = plan.transform(argparse.Namespace(**options), epsilon, None)
    made = transform.mechanism
    if not isinstance(made, FoundKeys):
        raise ValueError("like needs items that stay found: unit must be person, and forget must not be given")
    counted = sample.counted(limit, "spread" if arguments.spread else arguments.selection or "random")
    shown = [sample.shown(made, counted, SeededNoise(key)) for key in range(SIMULATED)]
    return Predicted(limit, sample.kept(counted), Shown(*map(_mean, zip(*shown, strict=True))))


def _mean(numbers: Sequence[float]) -> float:
    """Return the mean of those that are known."""
    known = [number for number in numbers if not math.isnan(number)]
    return math.fsum(known) / len(known) if known else math.nan


def _print(arguments: argparse.Namespace, sample: Sample, answer: dict[str, Any]) -> None:
    """Print one table."""
    table = Table()
    table.add_column("--max_contributions", justify="right", no_wrap=True)
    for heading in ("kept", "first quarter", "last quarter", "found", "count off", "smoothed off"):
        table.add_column(heading, justify="right")
    for each in answer["limits"]:
        marks = [("given", arguments.max_contributions), ("shows most", answer["suggested"])]
        mark = "".join(f" ({text})" for text, limit in marks if limit == each["limit"])
        kept, shown = each["kept"], each["shown"]
        numbers = (*kept.values(), shown["found"], shown["count_error"], shown["smoothed_error"])
        table.add_row(f"{each['limit']:,}{mark}", *map(_percent, numbers))
    title = (
        f"epsilon {answer['epsilon']:g}, delta {answer['delta']:g}, {sample.count:,} windows; in the sample "
        f"{sample.people:,} people with {len(sample.users):,} contributions"
    )
    show(title, table, list(_sentences(arguments, answer)))


def _sentences(arguments: argparse.Namespace, answer: dict[str, Any]) -> Iterator[str]:
    """Yield what stands below the table."""
    yield MEANS.format(top=TOP, keys=SIMULATED)
    if answer["suggested"] is None:
        yield "With none of these limits anything is found: it takes a larger --epsilon, or longer windows."
    else:
        yield f"Most of this sample is shown with --max_contributions {answer['suggested']}."
    yield NOT_PRIVATE.format(path=arguments.like)


def _percent(share: float | None) -> str:
    """Write a share."""
    return "-" if share is None else f"{share:.0%}"
