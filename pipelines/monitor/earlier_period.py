"""The limit of a question from what an earlier period has published of it: no budget, and no look at events."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from privstream.mechanisms.limits.next_limit import PeriodTold, next_limit
from privstream.mechanisms.limits.suggested_limits import LaterRun
from privstream.pipelines.local_time import moment
from privstream.pipelines.locations import WRITTEN
from privstream.pipelines.questions.readings import by_clocks
from privstream.pipelines.report.result import files_of, read_file, read_promise
from privstream.transforms.methods import USUAL_CONTRIBUTIONS
from privstream.transforms.timing.steps import Steps

LARGEST = 10
"""So many of the largest items of a window it is to be right about, as in `privstream suggest`."""

NOT_TOLD = "must have been published with full_share, which tells what its limit has left out"


def limit_from(folder: str, question: str) -> int:
    """Return the limit that suits the next period of a question of a monitor.

    Privacy: post-processing of published rows, of which the digest is checked (docs/proofs/units.md, Theorems
    3a and 3b).

    Args:
        folder: the output of a run of an earlier period.
        question: its name there; it must count items, and say what limits have left out.

    Raises:
        ValueError: there is no such result, or it does not tell enough; the message begins with the rule.
    """
    if not os.path.isdir(folder):
        raise ValueError(f"must be the folder of the output of an earlier run, got {folder}")
    file = next((name for name in sorted(os.listdir(folder)) if name in _names(question)), question)
    result = read_promise(os.path.join(folder, file))
    if result.spec.word != "counts":
        raise ValueError(f"must have a question {question} that is counts, got {result.spec.word}")
    rows = [row for each in files_of(result.path) for row in read_file(each, result)]
    if not any(row.used_up is not None for row in rows):
        raise ValueError(f"{question} {NOT_TOLD}, and must have rows: there is none that tells it")
    given = result.parameters
    try:
        steps = _steps(given)
        told = _told(rows, steps, given.get("max_contributions", USUAL_CONTRIBUTIONS))
        run = LaterRun(
            epsilon=given["epsilon"],
            delta=given["delta"],
            windows=steps.count or 1,
            items=LARGEST,
            question="sums" if given.get("max_value") else "counts",
        )
        return next_limit(told, run)
    except (KeyError, TypeError) as error:
        rule = "must have the guarantee file that its run wrote"
        raise ValueError(f"{question} {rule}: its parameters do not say enough ({type(error).__name__})") from None


def _names(question: str) -> tuple[str, ...]:
    """Return what the rows of a question may be called."""
    return question, *(f"{question}.{format}" for format in WRITTEN)


def _steps(given: Mapping[str, Any]) -> Steps:
    """Return the windows of the earlier run."""
    zone = given.get("time_zone")
    start, end = (
        None if (at := given.get(name)) is None else moment(name, at, zone or "UTC") for name in ("start", "end")
    )
    renewed = given.get("renew_every")
    return Steps.of(
        window=by_clocks(given["window"], zone),
        start=start,
        end=end,
        windows=given.get("windows"),
        renew_every=None if renewed is None else by_clocks(renewed, zone),
    )


def _told(rows: Sequence[Any], steps: Steps, limit: int) -> PeriodTold:
    """Return what was published of the last period of which the last window has rows; else of the last one."""
    windows: defaultdict[int, list[Any]] = defaultdict(list)
    starts = steps.starting(np.array([row.window_start.micros for row in rows], np.int64))
    for step, row in zip(starts.tolist(), rows, strict=True):
        windows[step].append(row)
    ended = [step for step in windows if steps.last_of_period(step) == step]
    last = max(ended or windows)
    some = [windows[step] for step in sorted(windows) if steps.first_of_period(last) <= step <= last]
    told = [{row.stream: row for row in each}.values() for each in some]  # rows of one window tell the same
    return PeriodTold(
        limit=limit,
        kept=float(sum(row.kept or 0 for each in told for row in each)),
        left_out=float(sum(row.left_out or 0 for each in told for row in each)),
        used_up=float(sum(row.used_up or 0 for row in told[-1])),
        row=float(np.mean([_largest(each) for each in some])),
    )


def _largest(rows: Sequence[Any]) -> float:
    """Return the mean number of people of the largest items of a window, by their full numbers."""
    numbers = [float(row.count if row.full is None else row.full) for row in rows]
    return float(np.mean(sorted(numbers, reverse=True)[:LARGEST]))
