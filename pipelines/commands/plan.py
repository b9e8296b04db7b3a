"""`privstream plan QUESTION` and `FILE.yaml`: how accurate answers will be, before any data is touched."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from privstream.mechanisms import checks
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee, guarantee_record
from privstream.pipelines.command import Command
from privstream.pipelines.model.base import WrongKeyError, check_epsilon
from privstream.pipelines.model.given import Given, Named
from privstream.pipelines.model.question import METHOD, Question, QuestionInfo
from privstream.pipelines.options import OptionOf, options_of
from privstream.pipelines.run.plan import Plan, arguments_of, planned
from privstream.pipelines.run.views import answer_views, tables_of, views_of
from privstream.pipelines.show.words import number
from privstream.pipelines.terminal import clock, json_text, show
from rich.table import Table

EPSILONS = [one for scale in range(-5, 1) for digits in range(100, 1000) if (one := float(f"{digits}e{scale}")) <= 500]
"""Budgets of three digits, of which the least is found that is enough."""

JSON: dict[str, dict[str, Any]] = {"--json": {"action": "store_true", "help": "print one JSON object"}}
PLANNED = ("window", "start", "end", "renew_every", "delta", "people", "time_zone", "watch")
"""Options of all questions that say something about accuracy."""

WITHOUT_DATA: Mapping[str, Any] = {"data": {"input": "none"}, "privacy": {"epsilon": 1.0}}
"""What stands for the keys of a monitor that a plan does not need."""


def _least(at: Callable[[float], Any], error: float) -> float:
    wanted = checks.positive("error", error)

    def enough(epsilon: float) -> bool:
        try:
            return bool(at(epsilon).accuracy.error <= wanted)
        except (ValueError, OverflowError):  # no noise is large enough
            return False

    found = bisect_left(EPSILONS, True, key=enough)
    if found == len(EPSILONS):
        at(EPSILONS[-1])  # says what is wrong with an option
        raise WrongKeyError(("plan", "error"), f"must be larger for an epsilon <= {EPSILONS[-1]:g}, got {wanted:g}")
    return EPSILONS[found]


def _budget(transform: Any) -> dict[str, Any]:
    accuracy = transform.accuracy
    return {
        "epsilon": transform.guarantee.epsilon,
        "method": getattr(transform, METHOD, None),
        "error": None if accuracy.error == math.inf else accuracy.error,
        "accuracy": accuracy.to_dict(),
        "guarantee": _record(transform.guarantee),
    }


def _record(guarantee: PrivacyGuarantee) -> dict[str, Any]:
    return {name: one for name, one in guarantee_record(guarantee).items() if one is not None}


def _epsilons(texts: str) -> list[float]:
    try:
        return [check_epsilon(float(text)) for text in texts.split(",")]
    except ValueError as error:
        rule = str(error) if "must" in str(error) else f"must be numbers with commas between them, got {texts}"
        raise WrongKeyError(("plan", "epsilon"), rule) from None


def _table(*headings: str) -> Table:
    table = Table()
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("name", "question") else "right")
    return table


MORE = {"stddev": "noise", "sum_stddev": "noise of sums"}
"""Standard deviations that stand beside the error of a plan."""


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


def planned_options(kind: type[Question]) -> tuple[OptionOf, ...]:
    """Return the options of a run that a plan has, too."""
    parts = options_of(kind, ("windows", "privacy", "data"))
    return tuple(option for option in parts if option.place[0] == "questions" or option.name in PLANNED)


def plan_command(kind: type[Question]) -> Command:
    """Return the command that says how accurate answers will be."""
    info, keys = kind.info, planned_options(kind)
    own: dict[str, dict[str, Any]] = {
        "--epsilon": {"metavar": "X[,X..]", "help": "epsilon, or several values to compare"},
        "--error": {"type": float, "metavar": "X", "help": "find the smallest epsilon with this error instead"},
        **JSON,
    }

    def run(given: Given, epsilon: str | None, error: float | None, json: bool) -> None:
        names = {("plan", name.removeprefix("--")): name for name in own} | {each.place: each.word for each in keys}
        given = Given([Named(WITHOUT_DATA, {}), *given.layers], Named(given.main.content, names), kind)
        with given.errors(), clock("planning"):
            monitor = given.monitor()
            known = arguments_of(monitor, info.name, monitor.data.fields(monitor.questions[info.name]))
            delta, unbounded = monitor.privacy.spent_delta, monitor.data.unbounded
            at = partial(planned, monitor.questions[info.name], known, delta=delta, unbounded=unbounded)
            if (epsilon is None) == (error is None):
                raise ValueError("one of --epsilon and --error must be given")
            epsilons = [_least(at, error)] if error is not None else _epsilons(epsilon or "")
            budgets = [{**_budget(at(one)), "epsilon": one} for one in epsilons]
        if json:
            print(json_text({"question": info.word, "budgets": budgets}, 2))
        else:
            _print(info, budgets)

    return Command(
        description="Predicts, before any data is read, how accurate the answers will be with one epsilon "
        "or several, or finds the epsilon that gives a wanted error. It costs no privacy budget.",
        options=own,
        keys=keys,
        kind=kind,
        run=run,
    )


def _run_monitor(given: Given, file: str, json: bool) -> None:
    with clock("sharing out the budget"), given.errors():
        monitor = given.monitor()
        plan, views = Plan.of(monitor), views_of(monitor)
        answer_views(views, tables_of(monitor, plan.transforms))
        guarantee = _record(plan.guarantee)
        questions = {
            paid.name: {
                "question": monitor.questions[paid.name].info.word,
                "share": paid.share,
                **_budget(paid.transform),
                "epsilon": paid.epsilon,
                "delta": paid.delta,
            }
            for paid in plan.questions
        }
    if json:
        named = [view.name for view in views]
        print(json_text({"monitor": file, "questions": questions, "guarantee": guarantee, "views": named}, 2))
        return
    table = _table("name", "question", "share", "epsilon", "delta", "error")
    whole = sum(each["share"] for each in questions.values())
    for name, each in questions.items():
        cells = [f"{100 * each['share'] / whole:.0f}%", f"{each['epsilon']:.12g}", f"{each['delta']:.12g}"]
        unit = monitor.questions[name].info.error_unit
        cells.append("-" if each["error"] is None else f"{number(each['error'])} {unit}")
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
