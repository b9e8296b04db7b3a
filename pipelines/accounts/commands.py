"""The `privstream budget` commands: what runs on a data set have cost together, its limit, its name, and its ledger."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from privstream.mechanisms.privacy.accounting import GaussianCurve, largest_shift
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee, guarantee_of
from privstream.mechanisms.privacy.units import PERSON
from privstream.pipelines.accounts.entries import MOST_RUNS, BudgetLimit, Contents, Entry, distinct, standings
from privstream.pipelines.accounts.ledger import ENDING, Ledger
from privstream.pipelines.command import Command, RunError, UsageError
from privstream.pipelines.locations import BESIDE, DEFAULT_DATASET, GUARANTEE
from privstream.pipelines.promise import Promise
from privstream.pipelines.show.words import unit_in_words
from privstream.pipelines.stores import fingerprint
from privstream.pipelines.terminal import NOTE, json_text, printable, say


def limit(text: str) -> BudgetLimit:
    """Return the largest epsilon and the largest delta that are allowed."""
    with suppress(ValueError):
        epsilon, delta = map(float, text.split(","))
        if 0 < epsilon < math.inf and 0 <= delta < 1:
            return BudgetLimit(epsilon, delta)
    rule = "must be EPSILON,DELTA with a finite epsilon > 0 and a delta in [0, 1), such as 4,1e-5"
    raise argparse.ArgumentTypeError(f"{rule}, got {text!r}")


RUN = ("time", "command", "name", "epsilon", "delta", "mu", "slack")
"""What JSON says of each run."""

Options = dict[str, dict[str, Any]]
LEDGER = f"file, or table of PostgreSQL, in which runs are recorded; beside a noise key it is KEY{ENDING}"
LIMIT: dict[str, Any] = {"type": limit, "metavar": "EPSILON,DELTA"}


def _dataset(text: str, **how: Any) -> Options:
    return {"--dataset": {"metavar": "NAME", "help": text, **how}}


def _command(
    run: Callable[..., None],
    description: str,
    options: Options,
    *,
    failed: type[Exception] = UsageError,
    needed: bool = True,
) -> Command:
    """Return a command that gets a ledger, or None where none is `needed`; all its errors are of one kind."""

    def about_ledger(ledger: str | None, **given: Any) -> None:
        try:
            run(None if ledger is None else Ledger(ledger), **given)
        except (ValueError, TypeError) as error:
            raise failed(str(error)) from error

    of_all: Options = {"--ledger": {"metavar": "PATH", "required": needed, "help": LEDGER}}
    return Command(description=description, options={**of_all, **options}, run=about_ledger)


def _contents(ledger: Ledger) -> Contents:
    contents = ledger.contents()
    if not contents.lines:
        raise ValueError(f"no run is recorded yet: there is no line in {ledger.path}")
    return contents


def _show(ledger: Ledger, json: bool) -> None:
    contents = _contents(ledger)
    accounts = [_account(name, contents) for name in contents.datasets]
    if json:
        print(json_text({"ledger": ledger.path, "datasets": accounts}, 2))
    else:
        print("\n".join(printable(line) for account in accounts for line in _lines(account)))


def _account(name: str, contents: Contents) -> dict[str, Any]:
    limit, own = contents.limits.get(name), contents.about(name)
    runs = [
        {field: getattr(first, field) for field in RUN} | {"unit": unit_in_words(first.unit), "repeats": len(repeats)}
        for first, *repeats in distinct(own)
    ]
    found = contents.standings(name)
    totals = [
        {
            "unit": unit_in_words(each.unit),
            "epsilon": each.epsilon if math.isfinite(each.epsilon) else None,  # null: delta is spent
            "delta": each.delta,
            "releases": len(each.costs),
            "silent": each.silent,
            # epsilon of the largest run for this unit, without delta, that no unit's limit refuses
            "left": limit and min(every.room / n for every in found if (n := each.unit.changes(every.unit))),
        }
        for each in found
    ]
    last = (each.more(cost) for each in found if (cost := own[-1].about(each.unit)) is not None)
    more = None if limit is None else min(last, default=None)
    about = {"dataset": name, "other_people": name in contents.of_other_people, "runs": runs, "totals": totals}
    return {**about, "more": more, "limit": None if limit is None else limit._asdict()}


def _spent(found: Mapping[str, Any]) -> str:
    spent = "more than the limit" if found["epsilon"] is None else f"epsilon {found['epsilon']:.4g}"
    return f"{spent} at delta {found['delta']:.3g}, by {found['releases']:,} release{'s' * (found['releases'] != 1)}"


def _lines(account: Mapping[str, Any]) -> Iterator[str]:
    limit = account["limit"]
    others = ", of other people in files that data sets share" * account["other_people"]
    limited = f"limit {BudgetLimit(**limit).in_words()}" if limit else "no limit is set"
    yield f"data set {account['dataset']!r}{others}: {limited}"
    for found in account["totals"]:
        yield f"  added or removed: {found['unit']}"
        yield f"    spent  {_spent(found)}"
        if found["silent"]:
            yield f"    not in this total, since they promise nothing to this unit: releases, {found['silent']:,}"
        if found["left"] is not None:
            yield f"    left   one run of epsilon {found['left']:g} without delta"
    if (more := account["more"]) is not None:
        yield f"  or {more:,}{' or' * (more == MOST_RUNS)} more run{'s' * (more != 1)} like the last one"


SHOW = _command(
    _show,
    "Adds up the privacy budget that all runs on a data set have spent, for each unit that they protect; a repetition "
    "costs nothing.",
    {"--json": {"action": "store_true", "help": "print JSON"}},
)


def _set(ledger: Ledger, dataset: str, limit: BudgetLimit, change: bool, other_people: bool) -> None:
    receipt = ledger.set_limit(dataset, limit, change=change, other_people=other_people)
    how = "had this limit already" if receipt.repeats else "has a limit from now on"
    say(f"data set {dataset!r} {how}: {limit.in_words()}")
    for found in _account(dataset, receipt.contents)["totals"]:
        if not found["left"]:
            say(f"{NOTE}already spent, for {found['unit']}: {_spent(found)}; new runs about it are refused")


SET = _command(
    _set,
    "Sets the privacy budget of a data set, once, before its first run. From then on, runs that would exceed it are "
    "refused, and so are runs on a data set that the ledger does not know. It is for each unit that runs protect: a "
    "person, an event, or with --renew-every a person in one budget period (n periods cost n times that).",
    {
        **_dataset("the data set, as runs name it", required=True),
        "--limit": {**LIMIT, "required": True, "help": "what all runs together may spend"},
        "--change": {"action": "store_true", "help": "replace the limit that the data set has"},
        "--other-people": {"action": "store_true", "help": "it is about other people in the files of another data set"},
    },
)


def _rename(ledger: Ledger, dataset: str, to: str) -> None:
    ledger.rename(dataset, to)
    say(f"data set {dataset!r} is called {to!r} from now on")


RENAME = _command(
    _rename,
    "Gives a data set another name in the ledger, which later runs give as --dataset: its runs and its limit stay.",
    {
        **_dataset(f"the name until now (default: {DEFAULT_DATASET})", default=DEFAULT_DATASET),
        "--to": {"required": True, "metavar": "NAME", "help": "the new name"},
    },
)


def _fit(
    ledger: Ledger | None, limit: BudgetLimit | None, dataset: str, epsilon: float, delta: float, gaussian: bool
) -> None:
    """Count equal runs after those of the ledger: the fewest, of all units that they promise something to."""
    contents = Contents() if ledger is None else ledger.contents()
    wanted = limit or contents.limits.get(dataset)
    if wanted is None:
        raise ValueError(f"limit must be given, since no ledger has one for data set {dataset!r}")
    curve = GaussianCurve(shift=largest_shift(epsilon, delta)) if gaussian else None
    promised = PrivacyGuarantee(unit=PERSON, epsilon=epsilon, delta=delta, curve=curve)
    nothing = dict.fromkeys(("label", "digest", "name", "dataset", "command", "data", "key", "output"), "")
    entry, fewest = Entry.of(promised, **nothing), MOST_RUNS
    for found in standings([*contents.about(dataset), entry], wanted):
        if (cost := entry.about(found.unit)) is not None:
            fewest = min(fewest, (found.filter.more(found.costs[:-1], cost) if found.filter else 0))
    more = "or more " if fewest == MOST_RUNS else ""
    print(f"{fewest:,} {more}runs fit into what is left of {wanted.in_words()}")


FIT = _command(
    _fit,
    f"Counts equal runs that fit into a budget on top of what is spent, before any is made, {MOST_RUNS:,} at most. "
    "--epsilon and --delta alone stand for any mechanism; of Gaussian noise more runs fit.",
    {
        "--limit": {**LIMIT, "help": "the limit (default: the ledger's)"},
        "--epsilon": {"type": float, "metavar": "X", "required": True, "help": "of each run"},
        "--delta": {"type": float, "metavar": "X", "default": 0.0, "help": "of each run (default: 0)"},
        "--gaussian": {"action": "store_true", "help": "the noise of each run is Gaussian"},
        **_dataset(f"data set whose earlier runs count (default: {DEFAULT_DATASET})", default=DEFAULT_DATASET),
    },
    needed=False,
)


def _verify(ledger: Ledger, guarantee: Sequence[str]) -> None:
    contents = _contents(ledger)
    for path in guarantee:
        _check(contents, path)
    lines, runs = len(contents.lines), len(contents.entries)
    print(f"{ledger.path}: {lines:,} lines, {runs:,} of them runs, all as they were written")
    if guarantee:
        print(f"guarantee files that agree: {len(guarantee):,}")
    print("not found: limits and names changed or deleted at its end, and runs without --guarantee PATH; note the head")
    print(f"head (digest of the last line, which the next one names): {contents.heads[-1]}")


def _check(contents: Contents, path: str) -> None:
    """Refuse a guarantee file whose run the ledger does not have as it was."""
    path = os.path.join(path, GUARANTEE) if os.path.isdir(path) else path
    path = path if path.endswith(".json") else f"{path}{BESIDE}"
    promise = Promise.read(path)
    if promise is None:
        raise ValueError(f"guarantee must be files that can be read, got {path}")
    if "ledger" not in promise.content:
        raise ValueError(f"{path} must be of a run in a ledger: this one kept no account")
    try:
        head, guarantee = promise.at("ledger", "head"), guarantee_of(promise.content)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f"{path} must name a line of a ledger and promise something: it was changed") from None
    if head not in contents.heads[1:]:
        raise ValueError(f"the ledger must have the line that {path} names: lines were changed or deleted")
    line = contents.heads.index(head)
    entry = contents.lines[line - 1]
    if not isinstance(entry, Entry) or not entry.promises(guarantee):
        whose = "the guarantee file was changed, or is of a question of a monitor, whose folder is to be given"
        raise ValueError(f"{path} must promise what line {line} of the ledger does: {whose}")
    rows, written = path.removesuffix(BESIDE), promise.maybe("rows", "sha256")
    if written is not None and os.path.exists(rows) and fingerprint(rows) != written:
        raise ValueError(f"{rows} must be as its run wrote it: rows were changed")


VERIFY = _command(
    _verify,
    "Checks that no line of a ledger was changed or deleted, and that it has the runs of guarantee files, which you "
    "must trust; their rows are checked, too. Exit status 1: something is missing or does not agree.",
    {
        "--guarantee": {
            "nargs": "+",
            "default": [],
            "metavar": "PATH",
            "help": "guarantee files of runs that the ledger must have; or their rows, or folders of rows",
        },
    },
    failed=RunError,
)
