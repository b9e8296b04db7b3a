"""`privstream plan FILE.yaml`: how one budget is shared out over questions, and how accurate each will be."""

from __future__ import annotations

import argparse
import json
from functools import cache
from operator import attrgetter
from typing import Any

from privstream.mechanisms.guarantee_records import guarantee_record
from privstream.pipelines.command import Command
from privstream.pipelines.console import clock, show
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.options import add_layers, given_to
from privstream.pipelines.run.plan import Plan
from privstream.pipelines.run.views import answer_views, tables_of, views_of
from privstream.pipelines.show.words import number
from privstream.pipelines.yaml_file import read_document
from privstream.transforms.row_types import Time
from rich.table import Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "file", metavar="FILE.yaml", help="the monitor: data, total budget, questions with their shares"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_layers(parser)


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Read the file, share out the budget, and print what it gives."""
    given = given_to(None, arguments, (), document=read_document(arguments.file))
    with clock("sharing out the budget"), given.errors():
        monitor = given.monitor()
        planned = Plan.of(monitor)
        views = views_of(monitor)
        answer_views(views, tables_of(monitor, planned.transforms, {}, Time))
        answer = _answer(arguments.file, monitor, planned) | {"views": [view.name for view in views]}
    if arguments.json:
        print(json.dumps(answer, indent=2, allow_nan=False))
    else:
        _print(answer)


def _answer(path: str, monitor: Monitor, planned: Plan) -> dict[str, Any]:
    """Return what each question gets, and what is promised of all together."""
    accuracy_of = cache(attrgetter("accuracy"))  # questions that differ in their fields alone have one transform
    questions = {}
    for paid in planned.questions:
        question = monitor.questions[paid.name]
        accuracy = accuracy_of(paid.transform)
        questions[paid.name] = {
            "question": question.info.word,
            "share": question.share,
            "epsilon": paid.epsilon,
            "delta": paid.delta,
            "error": accuracy.error,
            "error_unit": question.info.error_unit,
            "sentence": accuracy.sentence,
        }
    guarantee = {name: value for name, value in guarantee_record(planned.guarantee).items() if value is not None}
    return {"monitor": path, "questions": questions, "guarantee": guarantee}


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
        cells.append(f"{number(each['error'])} {each['error_unit']}")
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
