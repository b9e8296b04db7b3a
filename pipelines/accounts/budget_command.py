"""`privstream budget show`: what all runs on a data set have cost together."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.entries import MINUTES, Contents, Entry
from privstream.pipelines.accounts.ledger import ENDING, Ledger, limit_of
from privstream.pipelines.accounts.spending import Limit, Total, distinct, left_of, spent, total, totals, units
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.console import clock
from privstream.pipelines.terminal import printable
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

EXPLAINED = """\
Runs count once for each run id and noise key: the same again costs nothing. For each unit that a release protects
(a person, an event ..), the total is what all releases promise together to this unit, by composition of their privacy
loss distributions, at the sum of their deltas; it is never above the plain sum of the epsilons. A release that protects
a larger unit enters with what that means for this one: a guarantee of epsilon 1 for adding or removing a person is one
of epsilon 2 for an event, since the person may have others (docs/proofs/units.md). A release that promises nothing to
this unit is counted below the table: the total does not cover what that release reveals about it.
"""

OF_RUN = ("time", "command", "name")
PROMISED = ("neighbouring", "epsilon", "delta")
OF_TOTAL = (*PROMISED, "plain_epsilon", "releases", "silent")
RUN_ID_LETTERS = 20
OF_QUESTION = ("question", "unit", "epsilon", "delta", "releases")
COLUMNS = ("time (UTC)", "command", "run id", "epsilon", "delta", "again")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = EXPLAINED
    add_place(parser)
    parser.add_argument("--dataset", metavar="NAME", help="only this data set (default: all, each by itself)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which ledger it is."""
    parser.add_argument("--ledger", metavar="PATH", help="file, or table of PostgreSQL, in which runs are recorded")
    parser.add_argument(
        "--noise_key_file", metavar="PATH", help=f"the noise key of the runs; their ledger is PATH{ENDING}"
    )


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Add up, and print."""
    path = ledger_path(arguments)
    try:
        contents = Ledger(path).contents()
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not contents.records:
        raise UsageError(f"ledger must have at least one run, and {path} has none")
    names = list(dict.fromkeys(record.dataset for record in contents.named))
    if arguments.dataset is not None and arguments.dataset not in names:
        raise UsageError(f"dataset must be one of {', '.join(map(repr, names))}, got {arguments.dataset!r}")
    wanted = names if arguments.dataset is None else [arguments.dataset]
    with clock("composing what was spent"):
        accounts = [_Account.of(name, contents) for name in wanted]
    if arguments.json:
        print(json.dumps({"ledger": path, "datasets": [account.to_dict() for account in accounts]}, indent=2))
        return
    console = Console()
    for account in accounts:
        _show(console, account)


def ledger_path(arguments: argparse.Namespace) -> str:
    """Return which ledger it is."""
    if arguments.ledger is not None and arguments.noise_key_file is not None:
        raise UsageError("ledger must not be given with noise_key_file")
    if arguments.ledger is not None:
        return str(arguments.ledger)
    if arguments.noise_key_file is None:
        raise UsageError("ledger must be given, or noise_key_file, the key whose ledger lies beside it")
    return f"{arguments.noise_key_file}{ENDING}"


@dataclass(frozen=True, kw_only=True)
class _Account:
    """What there is to say of one data set."""

    name: str
    entries: Sequence[Entry]
    totals: Sequence[Total]
    questions: Sequence[tuple[str, Total]]
    limit: Limit | None
    kept: Sequence[dict[str, Any]]

    @classmethod
    def of(cls, name: str, contents: Contents) -> _Account:
        """Compose all runs about a data set."""
        entries = [entry for entry in contents.entries if entry.dataset == name]
        record = contents.limits.get(name)
        limit = None if record is None else limit_of(record)
        return cls(
            name=name,
            entries=entries,
            totals=totals(entries),
            questions=list(_by_question(entries)),
            limit=limit,
            kept=[] if limit is None else list(_kept(limit, entries)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it for machines."""
        limit = None if self.limit is None else self.limit._asdict()
        return {
            "dataset": self.name,
            "runs": [_of_release(release) for release in distinct(self.entries)],
            "totals": [_of_total(total) for total in self.totals],
            "questions": [{"question": name} | _of_total(total) for name, total in self.questions],
            "limit": limit,
            "of_limit": list(self.kept),
        }


def _by_question(entries: Sequence[Entry]) -> Iterator[tuple[str, Total]]:
    """Give each question, and what its releases promise together; a run of several counts with each of them."""
    asked: dict[str, list[PrivacyGuarantee]] = {}
    for first, *_ in distinct(entries):
        for name, guarantee in (first.parts or {first.command: first.guarantee}).items():
            asked.setdefault(name, []).append(guarantee)
    for name, guarantees in asked.items():
        for unit in units(guarantees):
            yield name, total(guarantees, *unit)


def _kept(limit: Limit, entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    """Give what is left of a limit as plain values."""
    for period, unit, neighbouring, left in left_of(limit, entries):
        named = {"period": period, "unit": str(unit), "neighbouring": neighbouring}
        yield named | {"epsilon": limit.epsilon, "delta": limit.delta, "left": left}


def _of_release(release: Sequence[Entry]) -> dict[str, Any]:
    """Return what there is to say of one release, and how often it was repeated."""
    first, guarantee = release[0], release[0].guarantee
    promised = {"unit": str(guarantee.unit)} | {name: getattr(guarantee, name) for name in PROMISED}
    return {name: getattr(first, name) for name in OF_RUN} | promised | {"repeats": len(release) - 1}


def _of_total(total: Total) -> dict[str, Any]:
    """Return a total as plain values."""
    return {"unit": str(total.unit)} | {name: getattr(total, name) for name in OF_TOTAL}


def _show(console: Console, account: _Account) -> None:
    """Print the account of a data set: a table for each unit, of the releases that promise something to it."""
    releases = [_of_release(release) for release in distinct(account.entries)]
    for found in account.totals:
        title = f"data set {account.name}: {found.unit}, neighbours by {found.neighbouring}"
        console.print(Text(printable(title), style="bold"))
        console.print(_table(releases, found, account.limit))
        if found.silent:
            console.print(f"not in this total: {_many(found.silent)} promising nothing to this unit")
        console.print()
    if len({name for name, _ in account.questions}) > 1:
        console.print(Text(printable(f"data set {account.name}: by question"), style="bold"))
        console.print(_questions(account.questions))
        console.print()
    if account.limit is not None:
        console.print(Text(printable(f"data set {account.name}: limit {account.limit.in_words()}"), style="bold"))
        for one in account.kept:
            about = one["unit"] if one["period"] is None else f"{one['unit']}, {one['period']}"
            console.print(Text(f"left: epsilon {one['left']:g} for {about}, neighbours by {one['neighbouring']}"))
        console.print()


def _questions(questions: Sequence[tuple[str, Total]]) -> Table:
    """Return a line for each question and unit."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column in OF_QUESTION:
        table.add_column(column, justify="left" if column in OF_QUESTION[:2] else "right")
    for name, found in questions:
        numbers = f"{found.epsilon:g}", f"{found.delta:g}", f"{found.releases:,}"
        table.add_row(Text(printable(name)), Text(str(found.unit)), *numbers)
    return table


def _table(releases: Sequence[Mapping[str, Any]], total: Total, limit: Limit | None) -> Table:
    """Return a line for each release, and what they come to: of a limit with a delta at this one, too."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column in COLUMNS:
        justify: Any = "left" if column in COLUMNS[:3] else "right"
        table.add_column(column, justify=justify, no_wrap=column != "run id", overflow="ellipsis")
    for one, charge in zip(releases, total.charges, strict=True):
        if charge is None:
            continue
        texts = one["time"][:MINUTES], one["command"], _short(printable(one["name"]))
        table.add_row(*map(Text, texts), f"{charge.epsilon:g}", f"{charge.delta:g}", f"{one['repeats']:,}")
    table.add_section()
    number = _many(total.releases)
    table.add_row("all, composed", number, "", f"{total.epsilon:g}", f"{total.delta:g}", "")
    table.add_row("all, plain sum", number, "", f"{total.plain_epsilon:g}", f"{total.delta:g}", "")
    if limit is not None and limit.delta is not None and limit.period is None:
        own = spent([charge for charge in total.charges if charge is not None], limit.delta)
        table.add_row("all, as limited", number, "", f"{own:g}", f"{limit.delta:g}", "")
    return table


def _many(releases: int) -> str:
    """Return a number of releases in words."""
    return f"{releases:,} release{'s' * (releases > 1)}"


def _short(run_id: str) -> str:
    """Return as much of a run id as a terminal has room for; JSON has all of it."""
    return run_id if len(run_id) <= RUN_ID_LETTERS else f"{run_id[: RUN_ID_LETTERS - 1]}…"


COMMAND = Command(
    description="Adds up the privacy budget that all runs on a data set have spent, from the ledger in which "
    "each run is recorded.",
    add_arguments=add_arguments,
    run=run,
)
