"""The `privstream budget` commands: what runs on a data set have cost together, its limit, its name, and its ledger."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

from privstream.mechanisms.guarantee_records import guarantee_of, read_guarantee_file
from privstream.mechanisms.privacy.accounting import GaussianCurve, largest_shift
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON
from privstream.pipelines.accounts.entries import Contents, Entry, Limit
from privstream.pipelines.accounts.ledger import ENDING, Ledger
from privstream.pipelines.accounts.spending import MOST_RUNS, Standing, distinct, standings, standings_of
from privstream.pipelines.command import Command, RunError, UsageError
from privstream.pipelines.locations import DEFAULT_DATASET, GUARANTEE
from privstream.pipelines.model.question import loaded
from privstream.pipelines.terminal import NOTE, printable, say


def limit(text: str) -> Limit:
    """Return the largest epsilon and the largest delta that are allowed."""
    try:
        epsilon, delta = (float(part) for part in text.split(","))
    except ValueError:
        epsilon = delta = math.nan
    if not (0 < epsilon < math.inf and 0 <= delta < 1):
        rule = "must be EPSILON,DELTA with a finite epsilon > 0 and a delta in [0, 1), such as 4,1e-5"
        raise argparse.ArgumentTypeError(f"{rule}, got {text!r}")
    return Limit(epsilon, delta)


RUN = ("time", "command", "name", "neighbouring", "epsilon", "delta", "mu", "slack")
"""What JSON says of each run."""

LEDGER: dict[str, dict[str, Any]] = {
    "--ledger": {"metavar": "PATH", "help": "file, or table of PostgreSQL, in which runs are recorded"},
    "--key": {"metavar": "PATH", "help": f"the noise key of the runs; their ledger is PATH{ENDING}"},
}


def _command(
    description: str,
    explained: str,
    run: Callable[[argparse.Namespace], None],
    options: dict[str, dict[str, Any]],
    failed: type[Exception] = UsageError,
) -> Command:
    """Return a command about a ledger, whose errors are all of one kind."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.epilog = explained
        for name, how in {**LEDGER, **options}.items():
            parser.add_argument(name, **how)

    def run_worded(arguments: argparse.Namespace, others: list[str]) -> None:
        try:
            run(arguments)
        except BrokenPipeError:  # of what is printed
            raise
        except (ValueError, TypeError, OSError) as error:
            raise failed(str(error)) from error

    return Command(description=description, add_arguments=add_arguments, run=run_worded)


def _ledger(arguments: argparse.Namespace) -> Ledger:
    """Return the ledger that is named."""
    if (arguments.ledger is None) == (arguments.key is None):
        raise UsageError("ledger must be given, or key, the noise key whose ledger lies beside it, and not both")
    try:
        return Ledger(arguments.ledger if arguments.key is None else f"{arguments.key}{ENDING}")
    except ValueError as error:
        raise UsageError(str(error)) from error


def _contents(ledger: Ledger) -> Contents:
    """Return what a ledger says, which is there."""
    contents = ledger.contents()
    if not contents.lines:
        raise ValueError(f"no run is recorded yet: there is no line in {ledger.path}")
    return contents


def _check_name(option: str, name: str) -> None:
    """Refuse what is no name of a data set."""
    if not name or not name.isprintable():
        raise ValueError(f"{option} must be a name of printable letters, got {name!r}")


def _show(arguments: argparse.Namespace) -> None:
    """Add up, and print."""
    ledger = _ledger(arguments)
    contents = _contents(ledger)
    names = contents.datasets
    if arguments.dataset is not None and arguments.dataset not in names:
        raise ValueError(f"dataset must be one of {', '.join(map(repr, names))}, got {arguments.dataset!r}")
    wanted = names if arguments.dataset is None else [arguments.dataset]
    if arguments.json:
        print(json.dumps({"ledger": ledger.path, "datasets": [_plain(name, contents) for name in wanted]}, indent=2))
        return
    for name in wanted:
        print("\n".join(map(printable, _lines(name, contents))))


def _plain(name: str, contents: Contents) -> dict[str, Any]:
    """Return all that there is to say of a data set as plain values."""
    limit, own = contents.limits.get(name), contents.about(name)
    return {
        "dataset": name,
        "runs": [
            {field: getattr(first, field) for field in RUN} | {"unit": str(first.unit), "repeats": len(repeats)}
            for first, *repeats in distinct(own)
        ],
        "totals": [_of_standing(found, own[-1]) for found in standings_of(contents, name)],
        "limit": None if limit is None else limit._asdict(),
    }


def _of_standing(found: Standing, last: Entry) -> dict[str, Any]:
    """Return a total as plain values."""
    cost = last.about(found.unit, found.neighbouring)
    return {
        "unit": str(found.unit),
        "neighbouring": found.neighbouring,
        "epsilon": found.epsilon,
        "delta": found.delta,
        "plain_epsilon": sum(each.epsilon for each in found.costs),
        "releases": len(found.costs),
        "silent": found.silent,
        "left": found.left,
        "more": None if cost is None else found.more(cost),
    }


def _lines(name: str, contents: Contents) -> Iterator[str]:
    """Yield the account of a data set in a few lines."""
    limit, own = contents.limits.get(name), contents.about(name)
    yield f"data set {name!r}: {'no limit is set' if limit is None else f'limit {limit.in_words()}'}"
    for found in standings_of(contents, name):
        releases = f"{len(found.costs):,} release{'s' * (len(found.costs) > 1)}"
        unit = str(found.unit).removesuffix(" over the whole run")
        yield f"  {unit}, {'replaced' if found.neighbouring == 'replace_one' else 'added or removed'}"
        yield f"    spent  epsilon {found.epsilon:.4g} at delta {found.delta:.3g}, by {releases}"
        if found.silent:
            yield f"    not in this total: {found.silent:,} releases that promise nothing to this unit"
        cost = own[-1].about(found.unit, found.neighbouring)
        if found.left is not None and cost is not None:
            more = found.more(cost) or 0
            many = f"{more:,}{' or' * (more == MOST_RUNS)} more run{'s' * (more != 1)}"
            last = own[-1].command.removeprefix("privstream ")
            like = f"{many} like the last ({last}: epsilon {cost.epsilon:.4g}, delta {cost.delta:.3g})"
            yield f"    left   epsilon {found.left:.4g} if added up, or {like}"


SHOW = _command(
    "Adds up the privacy budget that all runs on a data set have spent, from the ledger in which each run is recorded.",
    """\
A run counts once for each label and noise key: a repetition costs nothing. For each unit that a run protects (a person,
an event ..) the total is what all runs promise together to this unit: the plain sum, or less by composition. A run that
protects a larger unit enters with what that means for this one: epsilon 1 for adding or removing a person is epsilon 2
for an event (docs/proofs/units.md). What is spent of a limit also holds where runs were chosen after results; without
a limit it holds for runs that were chosen before (docs/proofs/budget.md).
""",
    _show,
    {
        "--dataset": {"metavar": "NAME", "help": "only this data set (default: all, each alone)"},
        "--json": {"action": "store_true", "help": "print JSON, with every run"},
    },
)


def _set(arguments: argparse.Namespace) -> None:
    """Write the limit into the ledger."""
    ledger, name = _ledger(arguments), arguments.dataset
    _check_name("dataset", name)
    receipt = ledger.set_limit(name, arguments.limit, change=arguments.change)
    how = "had this limit already" if receipt.repeats else "has a limit from now on"
    say(f"data set {name!r} {how}: {arguments.limit.in_words()}")
    for found in standings_of(receipt.contents, name):
        if not found.left:
            spent = f"epsilon {found.epsilon:.4g} by {len(found.costs):,} releases"
            say(f"{NOTE}already spent, for {found.unit}: {spent}; new runs about it are refused")


SET = _command(
    "Sets the privacy budget of a data set, once, in the ledger in which its runs are recorded.",
    """\
From then on each run about the data set is refused that would bring its total above the limit, and each run about a
data set that the ledger does not know: a mistyped name opens no account. A limit holds also for runs that were chosen
after earlier results (docs/proofs/budget.md); set it before the first run. Another limit needs --change, and the
earlier one stays in the ledger.
""",
    _set,
    {
        "--dataset": {"required": True, "metavar": "NAME", "help": "the data set, as runs name it"},
        "--limit": {
            "required": True,
            "type": limit,
            "metavar": "EPSILON,DELTA",
            "help": "all runs together must be (EPSILON, DELTA)-differentially private",
        },
        "--change": {"action": "store_true", "help": "change the limit that the data set has"},
    },
)


def _rename(arguments: argparse.Namespace) -> None:
    """Write the name into the ledger."""
    _check_name("to", arguments.to)
    _ledger(arguments).rename(arguments.dataset, arguments.to)
    say(f"data set {arguments.dataset!r} is called {arguments.to!r} from now on")


RENAME = _command(
    "Gives a data set another name in the ledger: its runs and its limit stay.",
    "All earlier runs of the data set, and its limit, are those of the new name, which later runs give as --dataset. "
    "Where there are runs of that name already, and no limit, the total has all of them.",
    _rename,
    {
        "--dataset": {
            "default": DEFAULT_DATASET,
            "metavar": "NAME",
            "help": f"the name until now (default: {DEFAULT_DATASET})",
        },
        "--to": {"required": True, "metavar": "NAME", "help": "the new name"},
    },
)


def _fit(arguments: argparse.Namespace) -> None:
    """Count equal runs after those of the ledger: the fewest, of all units that they promise something to."""
    contents = Contents() if arguments.ledger is None and arguments.key is None else _ledger(arguments).contents()
    wanted = arguments.limit or contents.limits.get(arguments.dataset)
    if wanted is None:
        raise ValueError(f"limit must be given, since no ledger has one for data set {arguments.dataset!r}")
    nothing = dict.fromkeys(("label", "digest", "name", "dataset", "command", "version", "data", "key", "output"), "")
    entry, fewest = Entry.of(_guarantee(arguments), **nothing), MOST_RUNS
    for found in standings([*contents.about(arguments.dataset), entry], wanted):
        if (cost := entry.about(found.unit, found.neighbouring)) is not None:
            fewest = min(fewest, found.without_last().more(cost) or 0)
    if arguments.json:
        print(json.dumps({"runs": fewest, "limit": wanted._asdict()}))
        return
    more = "or more " if fewest == MOST_RUNS else ""
    print(f"{fewest:,} {more}runs fit into what is left of {wanted.in_words()}")


def _guarantee(arguments: argparse.Namespace) -> PrivacyGuarantee:
    """Return what each run promises."""
    epsilon, delta, like = arguments.epsilon, arguments.delta, arguments.like
    if (like is None) == (epsilon is None):
        raise ValueError("epsilon must be given, or like, the guarantee file of a run, and not both")
    if like is None:
        curve = GaussianCurve(shift=largest_shift(epsilon, delta)) if arguments.gaussian else None
        return PrivacyGuarantee(unit=PERSON, neighbouring="add_remove", epsilon=epsilon, delta=delta, curve=curve)
    if arguments.gaussian or delta:
        raise ValueError("like must not be given with gaussian or delta")
    if os.path.isdir(like):
        raise ValueError(f"like must be the guarantee file of a run, got the folder {like}")
    return read_guarantee_file(like)


FIT = _command(
    "Counts the runs that fit into a privacy budget, before any of them is made.",
    f"""\
The runs are equal and about the same people, such as one a day; they are counted by the filter that refuses runs.
--epsilon and --delta alone stand for any mechanism; with --gaussian for one whose noise is Gaussian, of which more fit,
and --like takes what a run promised that was made. With --ledger or --key, what is spent already on --dataset counts,
and the limit in the ledger is taken if --limit is not given. More than {MOST_RUNS:,} runs are not counted.
""",
    _fit,
    {
        "--limit": {"type": limit, "metavar": "EPSILON,DELTA", "help": "the limit (default: the ledger's)"},
        "--epsilon": {"type": float, "help": "of each run"},
        "--delta": {"type": float, "default": 0.0, "help": "of each run (default: 0)"},
        "--gaussian": {"action": "store_true", "help": "the noise of each run is Gaussian"},
        "--like": {"metavar": "PATH", "help": "guarantee file of a run: the runs are like that one"},
        "--dataset": {
            "default": DEFAULT_DATASET,
            "metavar": "NAME",
            "help": f"the data set of which some is spent already (default: {DEFAULT_DATASET})",
        },
        "--json": {"action": "store_true", "help": "print JSON"},
    },
)


def _verify(arguments: argparse.Namespace) -> None:
    """Read all lines, and compare them with guarantee files."""
    ledger = _ledger(arguments)
    contents = _contents(ledger)
    for path in arguments.guarantee:
        _check(contents, path)
    lines, runs = len(contents.lines), len(contents.entries)
    print(f"{ledger.path}: {lines:,} lines, {runs:,} of them runs, all as they were written")
    if arguments.guarantee:
        print(f"guarantee files that agree: {len(arguments.guarantee):,}")
    print("not found: limits and names deleted at its end, and runs without --guarantee PATH; note the head elsewhere")
    print(f"head (digest of the last line, which the next one names): {contents.heads[-1]}")


def _check(contents: Contents, path: str) -> None:
    """Refuse a guarantee file whose run the ledger does not have as it was."""
    if os.path.isdir(path):
        path = os.path.join(path, GUARANTEE)
    path = path if path.endswith(".json") else f"{path}.guarantee.json"
    promise = loaded("promise.Promise").read(path)
    if promise is None:
        raise ValueError(f"guarantee must be files that can be read, got {path}")
    try:
        head, guarantee = promise.content["ledger"]["head"], guarantee_of(promise.content)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f"{path} must name a line of a ledger and promise something: it was changed") from None
    if head not in contents.heads[1:]:
        raise ValueError(f"the ledger must have the line that {path} names: lines were changed or deleted")
    line = contents.heads.index(head)
    entry = contents.lines[line - 1]
    if not isinstance(entry, Entry) or not entry.promises(guarantee):
        whose = "the guarantee file was changed, or is of a question of a monitor, whose folder is to be given"
        raise ValueError(f"{path} must promise what line {line} of the ledger does: {whose}")
    rows, written = path.removesuffix(".guarantee.json"), promise.maybe("rows", "sha256")
    if written is not None and os.path.exists(rows) and loaded("sinks.row_files.fingerprint")(rows) != written:
        raise ValueError(f"{rows} must be as its run wrote it: rows were changed")


VERIFY = _command(
    "Checks that no line of a ledger was changed or deleted, and that it has the runs of guarantee files.",
    """\
Each line of a ledger has the digest of the line before it, and each guarantee file that of its run's line. A line that
was changed, added or deleted is found by the lines after it; at the end of the ledger the guarantee file of a run finds
its line, so name those files that you trust, and nothing finds limits and names. A file of rows beside a guarantee file
is checked too. Exit status 1: something is missing or does not agree.
This finds who changed a ledger and not the guarantee files; who can write both can make both anew.
""",
    _verify,
    {
        "--guarantee": {
            "nargs": "+",
            "default": [],
            "metavar": "PATH",
            "help": "guarantee files of runs that the ledger must have; or their rows, or folders of rows",
        }
    },
    RunError,
)
