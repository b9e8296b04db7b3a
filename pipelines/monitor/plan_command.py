"""`privstream plan FILE.yaml`: how one budget is shared out over questions, and how accurate each will be."""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import cache, partial
from operator import attrgetter
from typing import Any

from privstream.mechanisms.guarantee_records import guarantee_record
from privstream.mechanisms.privacy.units import PrivacyUnit
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.console import clock, show
from privstream.pipelines.monitor.calibration import Asked, Calibrated, calibrate
from privstream.pipelines.monitor.monitor_file import MonitorFile, read_monitor, wrong_option
from privstream.pipelines.monitor.views import answer_views, tables_of
from privstream.pipelines.monitor.views_file import read_views
from privstream.pipelines.questions.plan_command import shown
from privstream.transforms.row_types import Time
from rich.table import Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "file", metavar="FILE.yaml", help="the monitor: data, total budget, questions with their shares"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Read the file, share out the budget, and print what it gives."""
    with clock("sharing out the budget"), tempfile.TemporaryDirectory(prefix="privstream-") as folder:
        monitor = read_monitor(arguments.file, folder)
        views = read_views(monitor)
        planned = shared_out(monitor)
        tables = tables_of(monitor, {each.name: each.transform for each in planned.questions}, {}, Time)
        answer_views(views, tables)
        answer = _answer(monitor, planned) | {"views": [view.name for view in views]}
    if arguments.json:
        print(json.dumps(answer, indent=2, allow_nan=False))
    else:
        _print(answer)


def shared_out(monitor: MonitorFile, *, ends: bool = True) -> Calibrated:
    """Share out the budget; `ends`: see `Question.transform`.

    Raises:
        UsageError: a question refuses its options or its part of the budget; the message names the line of the key.
    """
    asked = [Asked(each.name, each.share, partial(each.transform, ends=ends)) for each in monitor.questions]
    try:
        found = calibrate(asked, monitor.epsilon, monitor.delta)
    except (ValueError, TypeError, OverflowError) as error:
        name, colon, message = str(error).partition(": ")
        keys = ("questions", name)
        if colon and keys in monitor.document.lines:
            raise wrong_option(monitor.document, name, monitor.document.mapping(keys), message) from None
        raise monitor.document.error(("privacy",), str(error)) from None
    _check_same_people(monitor, found.guarantee.unit)
    return found


def _check_same_people(monitor: MonitorFile, unit: PrivacyUnit) -> None:
    """Refuse questions that mean different things by the person, or by that person's window, that all protect."""
    fields = [] if unit.what != "person" else ["user"] if unit.window is None else ["user", "time"]
    for field in fields:
        first, *others = ((each, getattr(each.options, f"{field}_field", None)) for each in monitor.questions)
        for each, name in others:
            if name != first[1]:
                raise UsageError(
                    f"{monitor.path}, line {each.line}: questions.{each.name}: {field} must be {first[1]}, as in "
                    f"{first[0].name}, for all questions together protect {unit}; got {name}"
                )


def _answer(monitor: MonitorFile, planned: Calibrated) -> dict[str, Any]:
    """Return what each question gets, and what is promised of all together."""
    accuracy_of = cache(attrgetter("accuracy"))  # questions that differ in their fields alone have one transform
    questions = {}
    for asked, paid in zip(monitor.questions, planned.questions, strict=True):
        accuracy = accuracy_of(paid.transform)
        questions[asked.name] = {
            "question": asked.spec.word,
            "share": asked.share,
            "epsilon": paid.epsilon,
            "delta": paid.delta,
            "error": accuracy.error,
            "error_unit": asked.spec.error_unit,
            "sentence": accuracy.sentence,
        }
    guarantee = {name: value for name, value in guarantee_record(planned.guarantee).items() if value is not None}
    return {"monitor": monitor.path, "questions": questions, "guarantee": guarantee}


def _print(answer: dict[str, Any]) -> None:
    """Print a table of questions, and what it says."""
    table = Table()
    table.add_column("name", no_wrap=True)
    table.add_column("question", no_wrap=True)
    for heading in ("share", "epsilon", "delta", "error"):
        table.add_column(heading, justify="right")
    whole = sum(each["share"] for each in answer["questions"].values())
    for name, each in answer["questions"].items():
        cells = [f"{100 * each['share'] / whole:.0f}%", f"{each['epsilon']:g}", f"{each['delta']:g}"]
        cells.append(f"{shown(each['error'])} {each['error_unit']}")
        table.add_row(name, each["question"], *cells)
    guarantee = answer["guarantee"]
    together = (
        f"All together are (epsilon = {guarantee['epsilon']:g}, delta = {guarantee['delta']:g})-differentially private "
        f"for {guarantee['unit']}. privstream run answers them. A command alone takes the --epsilon and the --delta of "
        "its row, with as many digits."
    )
    sentences = [f"{name}: {each['sentence']}" for name, each in answer["questions"].items()]
    show(f"{answer['monitor']}: one budget, {len(answer['questions'])} questions", table, [*sentences, together])


COMMAND = Command(
    description="Shares out one total budget over the questions of a file, before any data is read, and predicts how "
    "accurate each of them will be with its share. All of them together cost no more than the total: what is Gaussian "
    "adds up by squares, so that five questions cost noise times 2.3, and not 5. It costs no privacy budget.",
    add_arguments=add_arguments,
    run=run,
)
