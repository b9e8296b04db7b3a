"""`privstream plan QUESTION` and `FILE.yaml`: how accurate answers will be, before any data is touched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee, guarantee_record
from privstream.pipelines.command import Command
from privstream.pipelines.model.given import Given, Named
from privstream.pipelines.model.question import METHOD, Question, QuestionInfo
from privstream.pipelines.options import options_of
from privstream.pipelines.run.plan import Paid, Plan
from privstream.pipelines.run.views import answer_views, tables_of, views_of
from privstream.pipelines.show.words import number
from privstream.pipelines.terminal import json_text, show, spinner
from rich.table import Table

JSON: dict[str, dict[str, Any]] = {"--json": {"action": "store_true", "help": "print one JSON object"}}
PLANNED = ("window", "start", "end", "renew_every", "delta", "people", "time_zone", "watch")
"""Options of all questions that say something about accuracy."""

WITHOUT_DATA = Named({"data": {"input": "none"}}, {})
"""What stands for the data, which a plan does not read."""


def _budget(paid: Paid) -> dict[str, Any]:
    made = paid.transform
    return {
        "epsilon": paid.epsilon,
        "delta": paid.delta,
        "method": getattr(made, METHOD, None),
        "error": None if made.accuracy.error == math.inf else made.accuracy.error,
        "accuracy": made.accuracy.to_dict(),
        "guarantee": _record(made.guarantee),
    }


def _record(guarantee: PrivacyGuarantee) -> dict[str, Any]:
    return {name: one for name, one in guarantee_record(guarantee).items() if one is not None}


def _table(*headings: str) -> Table:
    table = Table()
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("name", "question") else "right")
    return table


MORE = {"stddev": "noise", "sum_stddev": "noise of sums"}
"""Standard deviations that are shown next to the error of a plan."""


def _print(info: QuestionInfo, budgets: Sequence[Mapping[str, Any]]) -> None:
    last = budgets[-1]
    known = last["accuracy"]
    error = "found from" if known.get("detection_threshold") == last["error"] else "error"
    more = [name for name in MORE if known.get(name) not in (None, last["error"])]
    table = _table("epsilon", f"{error} ({info.error_unit})", *(MORE[name] for name in more))
    for budget in budgets:
        numbers = [budget["error"], *(budget["accuracy"][name] for name in more)]
        table.add_row(f"{budget['epsilon']:g}", *("-" if one is None else number(one) for one in numbers))
    method = f", method {last['method']}" if info.methods else ""
    title = f"delta {last['guarantee']['delta']:g}{method}, for {last['guarantee']['unit']}"
    show(title, table, [known["sentence"]])


def plan_command(kind: type[Question]) -> Command:
    """Return the command that says how accurate answers will be."""
    parts = options_of(kind, ("windows", "privacy", "data"))

    def run(given: Given, epsilon: str, json: bool) -> None:
        budgets: list[dict[str, Any]] = []
        with spinner("planning"):
            for each in epsilon.split(","):
                chosen = Named({"privacy": {"epsilon": each}}, {("privacy", "epsilon"): "--epsilon"})
                one = Given([WITHOUT_DATA, *given.layers, chosen], given.main, kind)
                with one.errors():
                    budgets += map(_budget, Plan.of(one.monitor()).questions)
        if json:
            print(json_text({"question": kind.info.word, "budgets": budgets}, 2))
        else:
            _print(kind.info, budgets)

    return Command(
        description="Predicts, before any data is read, how accurate the answers will be with one epsilon or several. "
        "It costs no privacy budget.",
        options={"--epsilon": {"required": True, "metavar": "X[,X..]", "help": "one, or several to compare"}, **JSON},
        keys=tuple(option for option in parts if option.place[0] == "questions" or option.name in PLANNED),
        kind=kind,
        run=run,
    )


def _run_monitor(given: Given, file: str, json: bool) -> None:
    with spinner("sharing out the budget"), given.errors():
        monitor = given.monitor()
        plan, views = Plan.of(monitor), views_of(monitor)
        answer_views(views, tables_of(monitor, plan.transforms))
        guarantee = _record(plan.guarantee)
        questions = {
            paid.name: {
                "question": monitor.questions[paid.name].info.word,
                "share": paid.share,
                **_budget(paid),
            }
            for paid in plan.questions
        }
    if json:
        named = [view.name for view in views]
        print(json_text({"monitor": file, "questions": questions, "guarantee": guarantee, "views": named}, 2))
        return
    table = _table("name", "question", "share", "epsilon", "delta", "95% error")
    whole = sum(each["share"] for each in questions.values())
    for name, each in questions.items():
        cells = [f"{100 * each['share'] / whole:.0f}%", f"{each['epsilon']:.12g}", f"{each['delta']:.12g}"]
        unit = monitor.questions[name].info.error_unit
        error = each["accuracy"].get("margin", each["error"])  # the error of counts may be where items are found
        cells.append("-" if error is None else f"{number(error)} {unit}")
        table.add_row(name, each["question"], *cells)
    together = (
        f"All together are (epsilon = {guarantee['epsilon']:g}, delta = {guarantee['delta']:g})-differentially private "
        f"for {guarantee['unit']}. privstream run answers them. A command alone takes the --epsilon and the --delta of "
        "its row, with as many digits."
    )
    sentences = [f"{name}: {each['accuracy']['sentence']}" for name, each in questions.items()]
    show(f"{file}: one budget, {len(questions)} questions", table, [*sentences, together])


COMMAND = Command(
    description="Shares out one total budget over the questions of a file, before any data is read, and predicts how "
    "accurate each of them will be with its share. All of them together cost no more than the total: what is Gaussian "
    "adds up by squares, so that five questions cost noise times 2.3, and not 5. It costs no privacy budget.",
    options={"file": {"metavar": "FILE.yaml", "help": "the monitor: data, budget, questions, shares"}, **JSON},
    keys=(),
    run=_run_monitor,
)
