"""`privstream plan QUESTION` and `FILE.yaml`: how accurate answers will be, before any data is touched."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from privstream.mechanisms import checks
from privstream.mechanisms.guarantee_records import guarantee_record
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.command import Command
from privstream.pipelines.console import clock, show
from privstream.pipelines.model.base import Place, WrongKeyError, check_epsilon
from privstream.pipelines.model.given import Given, Named
from privstream.pipelines.model.monitor import Privacy
from privstream.pipelines.model.question import METHOD, Question, QuestionInfo, Windows
from privstream.pipelines.options import OptionOf, options_of
from privstream.pipelines.run.plan import Plan, planned
from privstream.pipelines.run.views import answer_views, tables_of, views_of
from privstream.pipelines.show.words import number
from privstream.pipelines.terminal import json_text
from privstream.transforms.timing.steps import MICROS, Steps
from rich.table import Table

LEAST_EPSILON, MOST_EPSILON = 1e-3, 500.0
TRIES = 16
"""So often the interval of budgets is halved: to three digits."""

FAR = 2**40
"""A threshold that noise does not meet."""

MOST_NAMES = 1_000_000
"""In a list of a plan."""

JSON: dict[str, dict[str, Any]] = {"--json": {"action": "store_true", "help": "print one JSON object"}}
PLANNED = ("window", "start", "end", "renew_every", "delta", "people", "time_zone")
"""Options of all questions that say something about accuracy."""


def _at(
    kind: type[Question], given: Given, windows: int | None, lists: Mapping[str, Any], *, unbounded: bool
) -> Callable[[float], Any]:
    """Return what a question promises for an epsilon, of which nothing else is open."""
    info, parts = kind.info, given.content
    own: dict[str, Any] = {"question": info.word, **info.assumed}
    for name, stand in info.stands.items():
        if (listed := lists[stand.name.replace("-", "_")]) is not None:
            own[name] = _list_of(name, stand.name, listed)
    question = kind.read(own | parts["questions"][info.name], at=("questions", info.word))
    privacy = Privacy.read({"epsilon": 1.0, **parts.get("privacy", {})}, at=("privacy",))
    privacy.check()
    spans = Windows.read(parts.get("windows", {}), at=("windows",))
    zone = parts.get("data", {}).get("time_zone")
    known = question.arguments(_counted(spans, windows) if info.has_windows else spans, zone=zone)
    return lambda epsilon: planned(question, known, epsilon, privacy.spent_delta, unbounded=unbounded)


def _least(at: Callable[[float], Any], error: float) -> float:
    """Return the least epsilon with an error, rounded up to three digits."""
    wanted = checks.positive("error", error)
    if at(MOST_EPSILON).accuracy.error > wanted:
        raise WrongKeyError(("plan", "error"), f"must be larger for an epsilon <= {MOST_EPSILON:g}, got {wanted:g}")
    low, high = math.log(LEAST_EPSILON), math.log(MOST_EPSILON)
    for _ in range(TRIES):
        middle = (low + high) / 2
        try:
            enough = at(math.exp(middle)).accuracy.error <= wanted
        except (ValueError, OverflowError):  # no noise is large enough
            enough = False
        low, high = (low, middle) if enough else (middle, high)
    return rounded_up(math.exp(high))


def _budget(epsilon: float, transform: Any) -> dict[str, Any]:
    """Return what a run with an epsilon promises."""
    accuracy = transform.accuracy
    return {
        "epsilon": epsilon,
        "method": getattr(transform, METHOD, None),
        "error": _finite(accuracy.error),
        "accuracy": accuracy.to_dict(),
        "guarantee": _record(transform.guarantee),
    }


def _finite(error: float) -> float | None:
    return None if error == math.inf else error


def _record(guarantee: PrivacyGuarantee) -> dict[str, Any]:
    return {name: one for name, one in guarantee_record(guarantee).items() if one is not None}


def _list_of(name: str, option: str, number: str) -> Any:
    """Return a list of this number of different items, or rules; or the file that is named."""
    if not re.fullmatch(r"-?\d+", number):
        if name == "rules":
            return number
        raise ValueError(f"{option} must be a whole number, got {number}")
    if checks.integer(option, int(number), minimum=1) > MOST_NAMES:
        raise ValueError(f"{option} must be <= {MOST_NAMES}, got {number}")
    texts = map(str, range(int(number)))
    return [{"name": text, "at_least": FAR} for text in texts] if name == "rules" else list(texts)


def _counted(windows: Windows, number: int | None) -> Windows:
    """Return the windows of a plan, of which a number may stand in place of start and end."""
    length = windows.window or 1.0
    if number is None:
        start = windows.start if windows.start is not None or windows.end is not None else 0.0
        return windows.model_copy(update={"start": start} | ({} if windows.end is not None else {"window": length}))
    if windows.end is not None:
        raise ValueError("windows must not be given with end: both name the last window")
    if isinstance(length, str):
        length = length.partition(" ")[0]
    steps = Steps.of(window=length, start=0.0)
    last = checks.integer("windows", number, minimum=1, maximum=steps.last + 1) - 1
    end = steps.bounds_micros(last)[1] / MICROS
    return windows.model_copy(update={"window": length, "start": 0.0, "end": end})


def _epsilons(texts: str) -> list[float]:
    try:
        return [check_epsilon(float(text)) for text in texts.split(",")]
    except ValueError as error:
        rule = str(error) if "must" in str(error) else f"must be numbers with commas between them, got {texts}"
        raise WrongKeyError(("plan", "epsilon"), rule) from None


def rounded_up(value: float) -> float:
    """Return a number > 0 with three digits that is not smaller."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.3g}")


def _table(*headings: str) -> Table:
    """Return a table whose columns have numbers, but for those of names."""
    table = Table()
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("name", "question") else "right")
    return table


MORE = {"stddev": "noise", "sum_stddev": "noise of sums"}
"""Standard deviations that stand beside the error of a plan."""


def _print(info: QuestionInfo, budgets: Sequence[Mapping[str, Any]]) -> None:
    """Print a row for each budget, and what the last one says."""
    last = budgets[-1]
    known = last["accuracy"]
    found = known.get("detection_threshold") == last["error"]
    more = [name for name in MORE if known.get(name) not in (None, last["error"])]
    table = _table(
        "epsilon", f"{'found from' if found else 'error'} ({info.error_unit})", *(MORE[name] for name in more)
    )
    for budget in budgets:
        numbers = [budget["error"], *(budget["accuracy"][name] for name in more)]
        table.add_row(f"{budget['epsilon']:g}", *("-" if one is None else number(one) for one in numbers))
    method = f", method {last['method']}" if info.methods else ""
    title = f"delta {last['guarantee']['delta']:g}{method}, for {last['guarantee']['unit']}"
    show(title, table, [last["accuracy"]["sentence"]])


def planned_options(kind: type[Question]) -> tuple[OptionOf, ...]:
    """Return the options of a plan that are those of a run, too."""
    apart = {*kind.info.assumed, *(stand.name for stand in kind.info.stands.values())}
    return tuple(
        option
        for option in options_of(kind, ("windows", "privacy", "data"))
        if option.name not in apart and (option.place[0] == "questions" or option.name in PLANNED)
    )


def plan_command(kind: type[Question]) -> Command:
    """Return the command that says how accurate answers will be."""
    info, keys = kind.info, planned_options(kind)
    own: dict[str, dict[str, Any]] = {
        "--epsilon": {"metavar": "X[,X..]", "help": "epsilon, or several values to compare"},
        "--error": {"type": float, "metavar": "X", "help": "find the smallest epsilon with this error instead"},
    }
    if "window" in {option.name for option in keys}:
        text = "number of windows, in place of --start and --end"
        own["--windows"] = {"type": int, "metavar": "N", "help": text}
        text = "plan for unbounded input, whose rows are seen window by window; without it for files"
        own["--unbounded"] = {"action": "store_true", "help": text}
    for stand in info.stands.values():
        own[f"--{stand.name}"] = {"metavar": "N", "required": stand.needed, "help": stand.text}
    own |= JSON

    def run(
        given: Given, epsilon: str | None, error: float | None, json: bool, unbounded: bool = False,
        windows: int | None = None, **lists: Any,
    ) -> None:  # fmt: skip
        names: dict[Place, str] = {("plan", name.removeprefix("--")): name for name in own}
        names |= {(option.name,): option.word for option in keys}
        given = Given(given.layers, Named(given.main.content, names), kind)
        with given.errors(), clock("planning"):
            at = _at(kind, given, windows, lists, unbounded=unbounded)
            if (epsilon is None) == (error is None):
                raise ValueError("one of --epsilon and --error must be given")
            epsilons = [_least(at, error)] if error is not None else _epsilons(epsilon or "")
            budgets = [_budget(one, at(one)) for one in epsilons]
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
        guarantee, questions = _record(plan.guarantee), {}
        for paid in plan.questions:
            info, accuracy = monitor.questions[paid.name].info, paid.transform.accuracy
            questions[paid.name] = {
                "question": info.word,
                "share": paid.share,
                "epsilon": paid.epsilon,
                "delta": paid.delta,
                "error": _finite(accuracy.error),
                "error_unit": info.error_unit,
                "sentence": accuracy.sentence,
            }
    if json:
        named = [view.name for view in views]
        print(json_text({"monitor": file, "questions": questions, "guarantee": guarantee, "views": named}, 2))
        return
    table = _table("name", "question", "share", "epsilon", "delta", "error")
    whole = sum(each["share"] for each in questions.values())
    for name, each in questions.items():
        cells = [f"{100 * each['share'] / whole:.0f}%", f"{each['epsilon']:g}", f"{each['delta']:g}"]
        cells.append("-" if each["error"] is None else f"{number(each['error'])} {each['error_unit']}")
        table.add_row(name, each["question"], *cells)
    together = (
        f"All together are (epsilon = {guarantee['epsilon']:g}, delta = {guarantee['delta']:g})-differentially private "
        f"for {guarantee['unit']}. privstream run answers them. A command alone takes the --epsilon and the --delta of "
        "its row, with as many digits."
    )
    sentences = [f"{name}: {each['sentence']}" for name, each in questions.items()]
    show(f"{file}: one budget, {len(questions)} questions", table, [*sentences, together])


COMMAND = Command(
    description="Shares out one total budget over the questions of a file, before any data is read, and predicts how "
    "accurate each of them will be with its share. All of them together cost no more than the total: what is Gaussian "
    "adds up by squares, so that five questions cost noise times 2.3, and not 5. It costs no privacy budget.",
    options={"file": {"metavar": "FILE.yaml", "help": "the monitor: data, budget, questions, shares"}, **JSON},
    keys=(),
    run=_run_monitor,
)
