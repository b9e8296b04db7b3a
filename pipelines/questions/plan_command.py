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
from privstream.pipelines.command import UsageError, with_dashes
from privstream.pipelines.console import clock, show
from privstream.pipelines.questions.option_types import OPTION_TYPES
from privstream.pipelines.questions.options import options_of
from privstream.pipelines.questions.readings import arguments_of, by_clocks
from privstream.pipelines.questions.spec import METHOD, QuestionSpec, loaded
from privstream.pipelines.terminal import NOTE
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


@dataclass(frozen=True)
class PlanCommand:
    """The command that says what a budget gives.

    Attributes:
        spec: the question.
    """

    spec: QuestionSpec

    def run(self, arguments: argparse.Namespace) -> None:
        """Print the answer."""
        try:
            if (arguments.epsilon is None) == (arguments.error is None):
                raise ValueError("one of --epsilon and --error must be given")
            self._count_windows(arguments)
            with clock("comparing methods"):
                answer = self._budgets(arguments) if arguments.epsilon is None else self._errors(arguments)
        except (ValueError, TypeError) as error:
            raise UsageError(self._of_plan(str(error))) from error
        if arguments.json:
            print(json.dumps(answer, indent=2, allow_nan=False))
        elif arguments.epsilon is None:
            self._print_budgets(answer)
        else:
            self._print_errors(answer)

    def _count_windows(self, arguments: argparse.Namespace) -> None:
        """Take the number of windows from the start and the end of the run, where these are given as to a run."""
        if not self.spec.has_windows or arguments.end is None:
            return
        zone = getattr(arguments, "time_zone", None)
        for name in ("window", "start"):
            if getattr(arguments, name, None) is None:
                raise ValueError(f"{name} must be given with end")
        moment = loaded("local_time.moment")  # loads Beam, which a plan of numbers of windows does not need
        start, end = (moment(name, getattr(arguments, name), zone or "UTC") for name in ("start", "end"))
        window = by_clocks(arguments.window, zone)
        arguments.windows = Steps.of(window=window, start=start, end=end, windows=arguments.windows).count

    def transform(self, arguments: argparse.Namespace, epsilon: float, method: str | None) -> Any:
        """Return the transform of a run with these options."""
        spec, given = self.spec, dict(vars(arguments))
        known = dict(spec.assumed)
        types = {option.name: option.type for option in options_of(spec)}
        for name, size in spec.sizes.items():
            number = given.pop(size.name)
            if isinstance(number, str):
                given[name] = number
            elif number is not None:
                stand_in = loaded(OPTION_TYPES[types[name]].stand_in)
                known[name] = stand_in(checks.integer(size.name, number, minimum=1))
        made = arguments_of(spec, {**given, "epsilon": epsilon, "windows": None}, known)
        if spec.has_windows:
            end = None if arguments.windows is None else checks.integer("windows", arguments.windows, minimum=1)
            length = made.get("window", 1)
            if isinstance(length, str):  # of the calendar: errors are the same in each zone
                length = length.partition(" ")[0]
            made |= {"window": length, "start": 0, "end": None if end is None else end_of(end, length)}
        made = {name: value for name, value in made.items() if self._has(name, method)}
        if method is not None:
            made[METHOD] = method
        planned = spec.planned_class(**made, noise=KeyedNoise.random("plan"))
        return planned if getattr(arguments, "unbounded", False) else planned.to_finish()

    def _has(self, name: str, method: str | None) -> bool:
        """Tell whether a method, or that of runs in which none is asked for, has an argument."""
        taken = method or getattr(self.spec.signature.arguments.get(METHOD), "default", None)
        return taken in getattr(self.spec.planned_class, "of_methods", {}).get(name, (taken,))

    def _attempt(self, arguments: argparse.Namespace, epsilon: float, method: str | None) -> Accuracy | str:
        """Return what a method gives, or why it gives nothing."""
        try:
            found: Accuracy = self.transform(arguments, epsilon, method).accuracy
            return found
        except (ValueError, OverflowError) as error:
            return with_dashes(self._of_plan(str(error)), vars(arguments))

    def _of_plan(self, message: str) -> str:
        """Return a message of a transform that asks for the end, which is a number of windows here."""
        return re.sub(r"\bend\b(?=[^;:]* must be given)", "windows", message) if self.spec.has_windows else message

    def _errors(self, arguments: argparse.Namespace) -> dict[str, Any]:
        """Return what every method gives with every epsilon."""
        budgets = []
        for epsilon in arguments.epsilon:
            taken = self.transform(arguments, epsilon, None)  # checks what all methods have in common
            found = {method or ONLY: self._attempt(arguments, epsilon, method) for method in self._methods}
            budgets.append(
                {
                    "epsilon": epsilon,
                    "taken": taken.method if self.spec.methods else ONLY,
                    "methods": {
                        name: {"reason": one} if isinstance(one, str) else one.to_dict() for name, one in found.items()
                    },
                    "error_without_delta": self._without_delta(arguments, epsilon),
                    "advice": taken.advice,
                    "guarantee": taken.guarantee.to_dict(),
                }
            )
        return {"question": self.spec.word, "budgets": budgets}

    def _without_delta(self, arguments: argparse.Namespace, epsilon: float) -> float | None:
        """Return the error of such a run with a delta of 0, if that is smaller; a run takes the delta it is given."""
        if not arguments.delta:
            return None
        given = self._attempt(arguments, epsilon, None)
        pure = self._attempt(argparse.Namespace(**{**vars(arguments), "delta": 0.0}), epsilon, None)
        if isinstance(given, str) or isinstance(pure, str) or pure.error >= given.error:
            return None
        return pure.error

    def _budgets(self, arguments: argparse.Namespace) -> dict[str, Any]:
        """Return the least epsilon with which every method has the error that is asked for."""
        wanted = checks.positive("error", arguments.error)
        self.transform(arguments, MOST_EPSILON, None)  # checks what all methods have in common

        found: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        for method in self._methods:
            at_most = self._attempt(arguments, MOST_EPSILON, method)
            if isinstance(at_most, str) or at_most.error > wanted:
                found[method or ONLY] = None
                least = at_most if isinstance(at_most, str) else f"the error with epsilon {MOST_EPSILON:g} is larger"
                reasons[method or ONLY] = least
            else:
                found[method or ONLY] = self._least(arguments, wanted, method)
        taken = self._first_taken(arguments, found)
        return {"question": self.spec.word, "error": wanted, "epsilons": found, "reasons": reasons, "taken": taken}

    def _first_taken(self, arguments: argparse.Namespace, epsilons: Mapping[str, float | None]) -> str | None:
        """Return the method with the least epsilon of those that a run with that epsilon takes."""
        able = sorted((epsilon, name) for name, epsilon in epsilons.items() if epsilon is not None)
        for epsilon, name in able:
            if name == ONLY or self.transform(arguments, rounded_up(epsilon), None).method == name:
                return name
        return able[0][1] if able else None

    def _least(self, arguments: argparse.Namespace, wanted: float, method: str | None) -> float:
        """Return the least epsilon with an error that the largest one has; below `LEAST_EPSILON` none is tried.

        Errors fall about as 1 / epsilon, so steps follow the ratio of errors. Where these halve the interval too
        rarely, it is halved.
        """

        def excess(log_epsilon: float) -> float:
            found = self._attempt(arguments, math.exp(log_epsilon), method)
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
        return self.spec.methods or (None,)

    def _print_errors(self, answer: Mapping[str, Any]) -> None:
        """Print a table of methods for each epsilon, and what it says."""
        answers = [found for budget in answer["budgets"] for found in budget["methods"].values()]
        known = {number for found in answers for number, value in found.items() if value is not None}
        columns = {number: heading for number, heading in self.spec.columns.items() if number in known}
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
            pure, unit = budget["error_without_delta"], self.spec.error_unit
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
        about = [f"The error is {self.spec.error_means}."] if self.spec.error_means else []
        show(f"for an error of {answer['error']:g} {self.spec.error_unit}", table, [*reasons, text, *about])


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
