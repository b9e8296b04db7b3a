"""Writes the tables of the documentation that the code knows: `make tables`."""

import argparse
import csv
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from itertools import groupby
from math import exp, sqrt
from pathlib import Path
from statistics import median
from typing import Any, get_args

import numpy as np
from privstream.mechanisms import BufferedToeplitzCounter, KeyedCounts, NumericQuantiles
from privstream.mechanisms.privacy.accounting import largest_shift
from privstream.pipelines import cli
from privstream.pipelines.questions.catalogue import WORDS, question
from privstream.pipelines.questions.commands import run_command
from privstream.pipelines.questions.signature import described
from privstream.pipelines.suggest.command import SPEC as SUGGEST
from privstream.pipelines.yaml.transforms import TRANSFORMS
from privstream.transforms import AlertState, KeySum, RatioEstimate, TotalEstimate
from privstream.transforms.row_types import Time, types_of

ROOT = Path(__file__).parents[1]
SPECS = [question(word) for word in WORDS]
COMMON = ("stream", "window_start", "window_end")
VIEWS = {"totals": TotalEstimate, "ratios": RatioEstimate, "alerts": AlertState}
"""Rows of views of a monitor; those of others are rows of their question."""
TYPES = {str: "text", int: "whole number", float: "number", bool: "true or false", Time: "time"}
"""What the values of a column are, in words."""


def table(*rows: Sequence[str]) -> str:
    """Return a table; the first row is its head."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def code(names: Iterable[str]) -> str:
    """Return names as code."""
    return ", ".join(f"`{name}`" for name in names)


def columns(row: type[Any], names: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each column, what its values are, and what the docstring of its row says of it."""
    hints, texts = types_of(row), described(row.__doc__ or "", "Attributes")
    commands = {spec.row_type.__name__: spec.word for spec in SPECS}
    for text, alike in groupby(names, texts.__getitem__):
        several = list(alike)
        hint = hints[several[0]]
        linked = re.sub(r"`(\w+)`", lambda found: _linked(found[1], commands), text.replace("|", "\\|"))
        meaning = re.sub(r"\bNone\b", "empty", re.sub(r"(^|[.:] )None\b", r"\1Empty", linked))
        values = " or empty".join(TYPES.get(each, "") for each in get_args(hint) or (hint,))
        yield code(several), values, meaning


def _linked(name: str, commands: dict[str, str]) -> str:
    """Return a name as code; that of a row as a link to the command that publishes such rows."""
    return f"[`{commands[name]}`](#{commands[name]})" if name in commands else f"`{name}`"


def row_tables() -> str:
    """Return a section for each command, with the columns of its rows."""
    head = ("column", "values", "meaning")
    sections = []
    for spec in (*SPECS, SUGGEST):
        names = [name for name in spec.row_type._fields if name not in COMMON]
        sections.append(f"## {spec.word}\n\n{table(head, *columns(spec.row_type, names))}")
        if spec.row_type._fields == KeySum._fields[: len(spec.row_type._fields)]:
            more = table(head, *columns(KeySum, KeySum._fields[len(spec.row_type._fields) :]))
            sections.append(f"With `--max_value` rows have these columns, too:\n\n{more}")
    for what, row in VIEWS.items():
        names = [name for name in row._fields if name not in COMMON]
        sections.append(f"## Views of a monitor: {what}\n\n{table(head, *columns(row, names))}")
    return "\n\n".join(sections)


def option_tables() -> str:
    """Return a section for each heading of the help pages, with the commands that have its options, and defaults."""
    found: dict[str, dict[str, dict[str, argparse.Action]]] = defaultdict(lambda: defaultdict(dict))
    for spec in SPECS:
        parser = argparse.ArgumentParser(add_help=False)
        run_command(spec).add_arguments(parser)
        for either in parser._mutually_exclusive_groups:
            for action in either._group_actions:
                action.required = either.required
        for group in parser._action_groups:
            for action in group._group_actions:
                title = (group.title or "").partition(" (")[0]
                if title.endswith((" without an end", "unbounded queries")):
                    title = "unbounded input"
                found[title][action.option_strings[0]][spec.word] = action
    sections = []
    for title, options in found.items():
        rows = ((f"`{name}`", _users(actions), _defaults(actions)) for name, actions in sorted(options.items()))
        sections.append(f"## {title[0].upper()}{title[1:]}\n\n{table(('option', 'commands', 'default'), *rows)}")
    return "\n\n".join(sections)


def _users(actions: dict[str, argparse.Action]) -> str:
    """Return the commands that have an option; those that have it not, where these are few."""
    others = [word for word in WORDS if word not in actions]
    if len(others) > len(WORDS) // 4:
        return code(actions)
    return f"all but {code(others)}" if others else "all"


def _defaults(actions: dict[str, argparse.Action]) -> str:
    """Return the default of an option, and by command where commands differ."""
    by_default: dict[str, list[str]] = defaultdict(list)
    for word, action in actions.items():
        default = f"{action.default:g}" if isinstance(action.default, float) else action.default
        shown = "required" if action.required else "none"
        if default is argparse.SUPPRESS:  # an option that stands for another one
            shown = "none"
        elif default is not None and default is not False:
            shown = f"`{default}`"
        by_default[shown].append(word)
    if len(by_default) == 1:
        return next(iter(by_default))
    most = max(by_default, key=lambda default: len(by_default[default]))
    others = (f"{default} for {code(words)}" for default, words in by_default.items() if default != most)
    return f"{most}; {'; '.join(others)}"


def plan(words: str) -> dict[str, dict[str, Any]]:
    """Return what a plan with one epsilon predicts of each method."""
    printed = StringIO()
    with redirect_stdout(printed):
        if cli.main(["plan", *words.split(), "--epsilon", "1", "--delta", "1e-6", "--json"]) != 0:
            raise ValueError(f"privstream plan {words} must end well")
    methods: dict[str, dict[str, Any]] = json.loads(printed.getvalue())["budgets"][0]["methods"]
    return methods


def shown(number: float) -> str:
    """Return a number of a plan; large ones in millions, small ones with a digit behind the point."""
    if number >= 1e6:
        return f"{float(f'{number / 1e6:.2g}'):g} million"
    return f"{number:.1f}" if number < 100 and number % 1 else f"{number:,.0f}"


def contributions_table() -> str:
    """Return what `counts` needs by the limit on the contributions of a person."""
    limits = (7, 30, 100, 365, 1000)
    plans = [plan(f"counts --max_contributions {limit} --windows 30")["the only method"] for limit in limits]
    lines = {
        "standard deviation": "stddev",
        "threshold of one window": "threshold",
        "people needed for certain": "detection_threshold",
        "in each of 4 windows, even chance": "needed_in_4",
        "in each of 16 windows, even chance": "needed_in_16",
    }
    return table(
        ("a person counts at most", *(f"{limit:,} times" for limit in limits)),
        *((title, *(shown(each[number]) for each in plans)) for title, number in lines.items()),
    )


def question_table() -> str:
    """Return what each command is for."""
    return table(
        ("command", "use it to", "you may know it as", "the guarantee protects"),
        *((f"`{spec.word}`", spec.summary, spec.known_as, spec.protected) for spec in SPECS),
    )


def method_table() -> str:
    """Return the methods of each command, the one that a run takes first."""
    return table(("command", "methods"), *((f"`{spec.word}`", code(spec.methods)) for spec in SPECS if spec.methods))


def yaml_table() -> str:
    """Return the transforms of Beam YAML."""
    return table(
        ("transform", "its keys are the options of", "its rows have"),
        *(
            (
                f"`{name}`",
                f"[`privstream {to.spec.word}`](commands.md#{to.spec.word})",
                f"[these columns](rows.md#{to.spec.word})",
            )
            for name, to in TRANSFORMS.items()
        ),
    )


EPSILON, DELTA = 1.0, 1e-6
RUNS = (1, 24, 365, 10_000)
BIN_NUMBERS = (100, 1_000, 4_096)


def sums_bound(number: int) -> float:
    """Return what no factor of all running sums of so many numbers is below: docs/best_possible.md."""
    angles = (2 * np.arange(1, number + 1) - 1) * (np.pi / (2 * (2 * number + 1)))
    return float(np.sum(1 / (2 * np.sin(angles))) / number)


def errors_table() -> str:
    """Return the standard deviations of answers beside the least that is known to be possible."""
    sigma = 1 / largest_shift(EPSILON, DELTA)
    rows = []
    q = exp(-EPSILON)
    geometric = sqrt(2 * q) / (1 - q)
    alone = KeyedCounts(epsilon=EPSILON, public_keys=True, contributions=1).stddev(1)
    rows.append(("counts of one window, delta 0, one contribution", alone, geometric, "any mechanism (1)"))
    for number in (8, 100):
        each = KeyedCounts(epsilon=EPSILON, delta=DELTA, public_keys=True, contributions=number).stddev(1)
        rows.append((f"counts, {number} contributions of a person", each, sigma * sqrt(number), "Gaussian noise (2)"))
    for number in RUNS:
        counter = BufferedToeplitzCounter(epsilon=EPSILON, delta=DELTA, horizon=number)
        worst = sqrt(max(counter.variance(step) for step in (1, number)))
        rows.append(
            (f"running sums of events, {number:,} windows", worst, sigma * sums_bound(number), "Gaussian noise (3)")
        )
    for number in BIN_NUMBERS:
        made = NumericQuantiles(
            epsilon=EPSILON, delta=DELTA, low=0, high=1, resolution=number, quantiles=(0.001, 0.999), contributions=13
        )
        bound = sigma * sqrt(13) * sums_bound(number - 1)
        found = made.accuracy.numbers["rank_stddev"]
        rows.append((f"ranks of quantiles, {number:,} bins, 13 values of a person", found, bound, "Gaussian noise (3)"))
    head = ("answer", "standard deviation", "least possible", "ratio", "for")
    return table(head, *((name, f"{own:.2f}", f"{low:.2f}", f"{own / low:.2f}", of) for name, own, low, of in rows))


def results(name: str) -> list[dict[str, str]]:
    """Return the rows of a result of a benchmark."""
    with open(ROOT / "benchmarks" / "results" / name, newline="") as file:
        return list(csv.DictReader(file))


def bounds_table() -> str:
    """Return what bounds state beside the largest error that was seen, in all settings of benchmarks."""
    sources = (
        ("histogram_queries.csv", "live histograms, {mode}", "mode", "row_bound", "measured_worst",
         ("anchored", "direct")),
        ("predecessor_errors.csv", "predecessors, {method}", "method", "largest_bound", "largest_seen",
         ("dynamic", "incremental", "range counts")),
        ("cardinality_errors.csv", "set sizes, {method}", "method", "promised", "largest_seen", ("sparse", "direct")),
    )  # fmt: skip
    rows = []
    for file, title, key, bound, seen, methods in sources:
        for method in methods:
            parts = sorted(float(row[bound]) / float(row[seen]) for row in results(file) if row[key] == method)
            name = title.format(**{key: method})
            rows.append((name, f"{len(parts)}", f"{parts[0]:.2f}", f"{median(parts):.2f}", f"{parts[-1]:.2f}"))
    return table(("answer", "settings", "least", "median", "largest"), *rows)


def audits_table() -> str:
    """Return what attacks measured of the epsilon that is claimed."""
    rows = []
    for row in results("audits.csv"):
        part = float(row["measured"]) / float(row["claimed"])
        columns = ("attack", "unit", "model", "delta", "claimed", "measured")
        control = "caught" if row["verdict"] == "consistent" else row.get("enough") or "-"
        measured = f"{part:.0%}", row["trials"], control, row["cpu_seconds"] or "-"
        found = (*(row[column] for column in columns), *measured)
        rows.append((f"`{row['question']}`", *found))
    names = ("question", "attack", "unit", "model of the noise", "delta", "claimed", "measured")
    return table((*names, "part", "trials", "control", "CPU s"), *rows)


TABLES: dict[str, tuple[Callable[[], str], ...]] = {
    "README.md": (question_table,),
    "docs/commands.md": (method_table,),
    "docs/beam_yaml.md": (yaml_table,),
    "docs/rows.md": (row_tables,),
    "docs/options.md": (option_tables,),
    "docs/best_possible.md": (audits_table, errors_table, bounds_table),
    "docs/how_to/counts.md": (contributions_table,),
}
"""What makes the tables of a page, in their order."""


def page(name: str) -> str:
    """Return the text of a page with its tables as they should be."""
    text = (ROOT / name).read_text("utf-8")
    between = r"(?<=<!-- written by make tables -->\n\n).*?(?=\n\n<!-- end -->)"
    tables = (make() for make in TABLES[name])
    if (number := len(re.findall(between, text, flags=re.DOTALL))) != len(TABLES[name]):
        raise ValueError(f"{name} must have {len(TABLES[name])} places for tables, got {number}")
    return re.sub(between, lambda _: next(tables), text, flags=re.DOTALL)


if __name__ == "__main__":
    for name in TABLES:
        (ROOT / name).write_text(page(name), "utf-8")
