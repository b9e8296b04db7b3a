"""`privstream plan QUESTION`: how accurate the answers will be by every method, before any data is touched."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privstream.mechanisms import KeyedNoise, checks
from privstream.mechanisms.accuracy import Accuracy
from privstream.pipelines.console import clock, show
from privstream.pipelines.model.base import Place, WrongKeyError, check_epsilon
from privstream.pipelines.model.given import Given, Named
from privstream.pipelines.model.monitor import Privacy
from privstream.pipelines.model.question import METHOD, Question, QuestionInfo, Windows
from privstream.pipelines.options import OptionOf, given_to
from privstream.pipelines.terminal import NOTE
from privstream.transforms.alerts.rules import AlertRule
from privstream.transforms.reading.domain import Domain
from privstream.transforms.timing.steps import Steps, end_of
from rich.table import Table

LEAST_EPSILON, MOST_EPSILON = 1e-3, 500.0
CLOSE = 2e-4
"""Relative width of the interval in which a budget is found: enough for three digits."""

BEYOND = 1.1
"""So much farther than the errors say goes a step, so that it mostly ends on the other side."""

TINY = 1e-9
"""Errors are never smaller, that they have a logarithm."""

ONLY = "the only method"

NEEDED, LIKELY = "needed_in_", "likely_in_"
NEEDED_BY_OTHERS, LIKELY_BY_OTHERS = "needed_by_others_in_", "likely_by_others_in_"
HALF = "In at least half of its windows, with an even chance; in brackets, with probability 0.95."
OTHERS = "If others: no person has the item in two windows. Else the same people have it in all of them."


FAR = 2**40
"""A threshold that noise does not meet."""

MOST_NAMES = 10_000_000
"""In a list of a plan."""


def any_names(name: str, number: Any) -> tuple[str, ...]:
    """Return so many distinct names."""
    if not re.fullmatch(r"-?\d+", str(number)):
        raise ValueError(f"{name} must be a whole number, got {number}")
    if checks.integer(name, int(number), minimum=1) > MOST_NAMES:
        raise ValueError(f"{name} must be <= {MOST_NAMES}, got {number}")
    return tuple(map(str, range(int(number))))


@dataclass(frozen=True)
class Plan:
    """What a budget gives.

    Attributes:
        kind: the question.
        known: arguments of its transform, but for the budget, the method and the noise.
        delta: of the run.
        given: what options say.
        unbounded: whether rows are seen while the run goes on.
    """

    kind: type[Question]
    known: Mapping[str, Any]
    delta: float
    given: Given
    unbounded: bool

    @property
    def info(self) -> QuestionInfo:
        """What the question is to a user."""
        return self.kind.info

    @classmethod
    def of(cls, kind: type[Question], arguments: argparse.Namespace, options: Sequence[OptionOf]) -> Plan:
        """Return the plan that options describe.

        Raises:
            UsageError: an option breaks a rule.
        """
        given = given_to(kind, arguments, options)
        words = {option.name: option.word for option in options}
        more = ("epsilon", "windows", "error", "method", *(stand.name for stand in kind.info.stands.values()))
        names: dict[Place, str] = {("plan", name): f"--{name}" for name in more}
        names |= {(name,): word for name, word in words.items()}
        given = Given(given.layers, Named(given.main.content, names), kind)
        with given.errors():
            info, known = kind.info, dict(kind.info.assumed)
            lists: dict[str, Any] = {}
            for name, stand in info.stands.items():
                if (number := getattr(arguments, stand.name)) is None:
                    continue
                if name == "rules" and not re.fullmatch(r"-?\d+", number):
                    lists[name] = number
                else:
                    texts = any_names(stand.name, number)
                    rules = (AlertRule(name=text, at_least=FAR) for text in texts) if name == "rules" else ()
                    known[name] = tuple(rules) if name == "rules" else Domain(texts)
            own = {**next(iter(given.content["questions"].values())), **lists}
            stood = {"rules": [{"name": "r", "at_least": FAR}], "domain": ["a"], "thresholds": 1}
            needed = {name: stood[name] for name in {*known, *info.assumed} & {*stood}}
            assumed = {**needed, **{name: known[name] for name in info.assumed if name not in stood}}
            if "queries" in info.unplanned:
                assumed["queries"] = "none"
            question = kind.read({"question": info.word, **assumed, **own}, at=("questions", kind.info.word))
            privacy = Privacy.read({"epsilon": 1.0, **given.content.get("privacy", {})}, at=("privacy",))
            privacy.check()
            zone = given.content.get("data", {}).get("time_zone")
            windows = Windows.read(given.content.get("windows", {}), at=("windows",))
            if info.has_windows:
                windows = _counted(windows, getattr(arguments, "windows", None), zone)
            found = question.arguments(windows, zone=zone) | known
            if windows.end is None and info.has_windows and "start" in info.arguments:
                found["start"] = found.get("start", 0)
        unbounded = bool(getattr(arguments, "unbounded", False))
        return cls(kind, found, privacy.spent_delta, given, unbounded)

    def run(self, arguments: argparse.Namespace) -> None:
        """Print the answer."""
        with self.given.errors(), clock("comparing methods"):
            if (arguments.epsilon is None) == (arguments.error is None):
                raise ValueError("one of --epsilon and --error must be given")
            answer = self._budgets(arguments.error) if arguments.epsilon is None else self._errors(arguments.epsilon)
        if arguments.json:
            print(json.dumps(answer, indent=2, allow_nan=False))
        elif arguments.epsilon is None:
            self._print_budgets(answer)
        else:
            self._print_errors(answer)

    def transform(self, epsilon: float, method: str | None, delta: float | None = None) -> Any:
        """Return what a run with such a budget promises."""
        info = self.info
        made = {name: value for name, value in self.known.items() if self._has(name, method)} | {"epsilon": epsilon}
        if "delta" in info.arguments:
            made["delta"] = self.delta if delta is None else delta
        if method is not None:
            made[METHOD] = method
        planned = info.planned_class(**made, noise=KeyedNoise.random("plan"))
        return planned if self.unbounded else planned.to_finish()

    def _has(self, name: str, method: str | None) -> bool:
        """Tell whether a method, or that of runs in which none is asked for, has an argument."""
        usual = self.info.arguments.get(METHOD)
        taken = method or (None if usual is None else usual.default)
        return taken in getattr(self.info.planned_class, "of_methods", {}).get(name, (taken,))

    def _attempt(self, epsilon: float, method: str | None, delta: float | None = None) -> Accuracy | str:
        """Return what a method gives, or why it gives nothing."""
        try:
            found: Accuracy = self.transform(epsilon, method, delta).accuracy
            return found
        except (ValueError, OverflowError) as error:
            return self.given.main.words(str(error))

    def _errors(self, epsilons: str) -> dict[str, Any]:
        """Return what every method gives with every epsilon."""
        budgets = []
        for text in epsilons.split(","):
            try:
                epsilon = check_epsilon(float(text))
            except ValueError as error:
                rule = (
                    str(error) if "must" in str(error) else f"must be numbers with commas between them, got {epsilons}"
                )
                raise WrongKeyError(("plan", "epsilon"), rule) from None
            taken = self.transform(epsilon, None)  # checks what all methods have in common
            found = {method or ONLY: self._attempt(epsilon, method) for method in self._methods}
            budgets.append(
                {
                    "epsilon": epsilon,
                    "taken": taken.method if self.info.methods else ONLY,
                    "methods": {
                        name: {"reason": one} if isinstance(one, str) else one.to_dict() for name, one in found.items()
                    },
                    "error_without_delta": self._without_delta(epsilon),
                    "advice": taken.advice,
                    "guarantee": taken.guarantee.to_dict(),
                }
            )
        return {"question": self.info.word, "budgets": budgets}

    def _without_delta(self, epsilon: float) -> float | None:
        """Return the error of such a run with a delta of 0, if that is smaller; a run takes the delta it is given."""
        if not self.delta or "delta" not in self.info.arguments:
            return None
        given, pure = self._attempt(epsilon, None), self._attempt(epsilon, None, 0.0)
        if isinstance(given, str) or isinstance(pure, str) or pure.error >= given.error:
            return None
        return pure.error

    def _budgets(self, error: float) -> dict[str, Any]:
        """Return the least epsilon with which every method has the error that is asked for."""
        wanted = checks.positive("error", error)
        self.transform(MOST_EPSILON, None)  # checks what all methods have in common

        found: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        for method in self._methods:
            at_most = self._attempt(MOST_EPSILON, method)
            if isinstance(at_most, str) or at_most.error > wanted:
                found[method or ONLY] = None
                least = at_most if isinstance(at_most, str) else f"the error with epsilon {MOST_EPSILON:g} is larger"
                reasons[method or ONLY] = least
            else:
                found[method or ONLY] = self._least(wanted, method)
        taken = self._first_taken(found)
        return {"question": self.info.word, "error": wanted, "epsilons": found, "reasons": reasons, "taken": taken}

    def _first_taken(self, epsilons: Mapping[str, float | None]) -> str | None:
        """Return the method with the least epsilon of those that a run with that epsilon takes."""
        able = sorted((epsilon, name) for name, epsilon in epsilons.items() if epsilon is not None)
        for epsilon, name in able:
            if name == ONLY or self.transform(rounded_up(epsilon), None).method == name:
                return name
        return able[0][1] if able else None

    def _least(self, wanted: float, method: str | None) -> float:
        """Return the least epsilon with an error that the largest one has; below `LEAST_EPSILON` none is tried.

        Errors fall about as 1 / epsilon, so steps follow the ratio of errors. Where these halve the interval too
        rarely, it is halved.
        """

        def excess(log_epsilon: float) -> float:
            found = self._attempt(math.exp(log_epsilon), method)
            return math.inf if isinstance(found, str) else math.log(max(found.error, TINY) / wanted)

        least = math.log(LEAST_EPSILON)
        low, high, guess, slow = least - CLOSE / 2, math.log(MOST_EPSILON), 0.0, 0
        while high - low > CLOSE:
            over, width = excess(guess), high - low
            low, high = (low, guess) if over <= 0 else (guess, high)
            slow = slow + 1 if high - low > width / 2 else 0
            guess = max(least, guess + BEYOND * over + (CLOSE / 3 if over > 0 else -CLOSE / 3))
            if slow > 1 or not low < guess < high:
                guess = (low + high) / 2
        return LEAST_EPSILON if high == least else math.exp(high)

    @property
    def _methods(self) -> Sequence[str | None]:
        """The methods; None if there is but one, which has no name."""
        return self.info.methods or (None,)

    def _print_errors(self, answer: Mapping[str, Any]) -> None:
        """Print a table of methods for each epsilon, and what it says."""
        answers = [found for budget in answer["budgets"] for found in budget["methods"].values()]
        known = {number for found in answers for number, value in found.items() if value is not None}
        columns = {number: heading for number, heading in self.info.columns.items() if number in known}
        for budget in answer["budgets"]:
            table = Table()
            table.add_column("method", no_wrap=True)
            for heading in columns.values():
                table.add_column(heading, justify="right")
            methods = budget["methods"]
            asked = {name: found for name, found in methods.items() if not _not_to_be_had(found.get("reason"))}
            for name, found in asked.items():
                mark = " (taken)" if name == budget["taken"] and len(budget["methods"]) > 1 else ""
                table.add_row(f"{name}{mark}", *(shown(found.get(number)) for number in columns))
            reasons = [f"{name}: {found['reason']}" for name, found in asked.items() if "reason" in found]
            taken = budget["methods"][budget["taken"]]
            guarantee = budget["guarantee"]
            title = f"epsilon {budget['epsilon']:g}, delta {guarantee['delta']:g} for {guarantee['unit']}"
            pure, unit = budget["error_without_delta"], self.info.error_unit
            better = [] if pure is None else [f"Without --delta the error is smaller: {shown(pure)} {unit}."]
            advice = [f"{NOTE}{text}" for text in [budget["advice"]] if text]
            show(title, table, [*reasons, taken["sentence"], *better, *advice])
            self._print_needed(asked)

    def _print_needed(self, methods: Mapping[str, Mapping[str, Any]]) -> None:
        """Print how many people an item needs by each method, if that is known, by the windows that it lasts."""
        lasting = [name.removeprefix(NEEDED) for found in methods.values() for name in found if name.startswith(NEEDED)]
        if not lasting:
            return
        table = Table()
        table.add_column("method", no_wrap=True)
        windows = sorted(set(map(int, lasting)))
        for number in windows:
            table.add_column(f"{number} window{'s' * (number > 1)}", justify="right")
        several = False
        for name, found in methods.items():
            for needed, likely, whose in ((NEEDED, LIKELY, ""), (NEEDED_BY_OTHERS, LIKELY_BY_OTHERS, ", if others")):
                if f"{needed}{windows[0]}" not in found:
                    continue
                several = several or bool(whose)
                both = ((found.get(f"{needed}{number}"), found.get(f"{likely}{number}")) for number in windows)
                cells = ["-" if even is None else f"{shown(even)} ({shown(much)})" for even, much in both]
                table.add_row(f"{name}{whose}", *cells)
        show(
            "needed in each window, for an item that lasts so long to be reported",
            table,
            [HALF, *[OTHERS] * several],
        )

    def _print_budgets(self, answer: Mapping[str, Any]) -> None:
        """Print the epsilon that every method needs."""
        table = Table()
        table.add_column("method", no_wrap=True)
        table.add_column("epsilon", justify="right")
        asked = [name for name in answer["epsilons"] if not _not_to_be_had(answer["reasons"].get(name))]
        for name in asked:
            epsilon = answer["epsilons"][name]
            table.add_row(name, "-" if epsilon is None else f"{rounded_up(epsilon):g}")
        able = {name: epsilon for name, epsilon in answer["epsilons"].items() if epsilon is not None}
        best = answer["taken"]
        if best is None:
            text = f"No method reaches this error with an epsilon up to {MOST_EPSILON:g}."
        elif able[best] == LEAST_EPSILON:
            text = f"An epsilon of {LEAST_EPSILON:g} is enough, by {best}. Smaller ones are not tried."
        else:
            text = f"Least epsilon, rounded up: {rounded_up(able[best]):g}, by {best}."
        reasons = [f"{name}: {reason}" for name, reason in answer["reasons"].items() if name in asked]
        show(f"for an error of {answer['error']:g} {self.info.error_unit}", table, [*reasons, text])


def _counted(windows: Windows, number: int | None, zone: str | None) -> Windows:
    """Return windows of a run of so many, or between a start and an end; of the calendar they are the same anywhere.

    Raises:
        ValueError: a window, or a start, is missing.
    """
    if number is None and windows.end is None:
        return windows.model_copy(update={"window": windows.window or 1.0})
    if windows.end is not None:
        for name in ("window", "start"):
            if getattr(windows, name) is None:
                raise WrongKeyError(("windows", name), "must be given with end")
        found = windows.arguments(zone)
        moments = {name: found[name] for name in ("start", "end")}
        number = Steps.of(window=found["window"], windows=number, **moments).count
    length = windows.window or 1.0
    if isinstance(length, str):
        length = length.partition(" ")[0]
    end = end_of(checks.integer("windows", number, minimum=1), length)
    return windows.model_copy(update={"window": length, "start": 0.0, "end": end})


def _not_to_be_had(reason: str | None) -> bool:
    """Tell whether a method is no method of such a question: nobody has asked for it, and nothing can be changed."""
    return reason is not None and reason.removeprefix("--").startswith(f"{METHOD} must be")


def rounded_up(value: float) -> float:
    """Return a number > 0 with three digits that is not smaller."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.3g}")


def shown(value: float | str | Sequence[float] | None) -> str:
    """Write a number for people: three digits where it is small; of a list, the least and the largest."""
    if value is None or isinstance(value, str):
        return value or "-"
    if isinstance(value, Sequence):
        return " to ".join(map(shown, sorted({min(value), max(value)})))
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
