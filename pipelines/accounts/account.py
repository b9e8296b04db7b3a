"""The account of a run: where it is written down before it publishes anything."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from glob import escape, glob
from typing import Any, NamedTuple

from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.entries import BOUNDS, NOISE, Entry
from privstream.pipelines.accounts.ledger import ENDING, Ledger, is_database
from privstream.pipelines.accounts.limit_options import DEFAULT_DATASET
from privstream.pipelines.accounts.run_identity import RunIdentity
from privstream.pipelines.accounts.spending import Limit, check_limit
from privstream.pipelines.locations import TABLE
from privstream.pipelines.terminal import NOTE
from privstream.transforms.events.times import TimeForm, read_micros

NONE = "none"
"""The value of `--ledger` that goes without."""

CHAINED = "the {:,} lines before were written without a chain: from now on a change of them is found"
KNOWN = "another ledger has runs about these data, which a total must have, too: --ledger"
NEW = "this ledger is new: what was published earlier is not in its totals (--ledger PATH continues another one)"


class Charge(NamedTuple):
    """What was written down: a line that says so, and line and head of the ledger for the guarantee file."""

    told: str
    mark: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Account:
    """Where a run is written down before it publishes anything.

    Attributes:
        path: of the ledger, or None to go without.
        why: why there is none.
        dataset: whose budget is spent.
        limit: what the total of the data set must not pass, if there is a limit.
    """

    path: str | None
    why: str
    dataset: str
    limit: Limit | None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Account:
        """Return the account that options name.

        Raises:
            ValueError: naming the option.
        """
        given = arguments.ledger
        path, why = given, ""
        if given == NONE:
            path, why = None, "--ledger none"
        elif given is None and arguments.noise_key_file is not None:
            path = f"{arguments.noise_key_file}{ENDING}"
        elif given is None:
            why = "the noise key is in no file; --ledger PATH keeps one"
        if path is not None and (not path or ("://" in path and not is_database(path))):
            raise ValueError(f"ledger must be a file of this machine, {TABLE}, or {NONE}, got {path!r}")
        if path is not None:
            Ledger(path)  # refuses an address of another form
        if not arguments.dataset or not arguments.dataset.isprintable():
            raise ValueError(f"dataset must be a name of printable letters, got {arguments.dataset!r}")
        if arguments.budget_limit is not None and path is None:
            raise ValueError(f"budget_limit must be given with a ledger, and there is none: {why}")
        return cls(
            path=path,
            why=why,
            dataset=arguments.dataset,
            limit=None if arguments.budget_limit is None else Limit(*arguments.budget_limit),
        )

    def charge(
        self,
        identity: RunIdentity,
        run_id: str,
        arguments: argparse.Namespace,
        noise: KeyedNoise,
        guarantee: PrivacyGuarantee,
        parts: Mapping[str, PrivacyGuarantee] | None = None,
    ) -> Charge:
        """Write a run into the ledger, unless it is a dry run.

        Args:
            identity: what shapes its answers.
            run_id: what its noise depends on.
            arguments: its options.
            noise: its noise, for the fingerprint of the key.
            guarantee: what all of its questions promise together.
            parts: what each question promises by itself, by name, if there are several.

        Raises:
            ValueError: the ledger, or a limit, refuses it.
        """
        if self.path is None:
            why = f"ledger: none ({self.why}): no account is kept of what this run costs"
            return Charge(f"run id: {arguments.run_id}; {why}", None)
        begin, end = span_of(arguments)
        labels = {NOISE: identity.labels} if identity.labels else {}
        entry = Entry(
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            run_id=run_id,
            name=arguments.run_id,
            dataset=self.dataset,
            command=identity.command,
            version=identity.version,
            parameters={**identity.parameters, BOUNDS: arguments.beta} | labels,
            data=identity.data,
            key=noise.fingerprint,
            guarantee=guarantee,
            output=arguments.output,
            begin=begin,
            end=end,
            parts=dict(parts or {}),
        )
        ledger = Ledger(self.path)
        write = ledger.foresee if arguments.dry_run else ledger.append
        named: set[str] = set()
        receipt = write(entry, partial(self._accept, entry, named))
        how = (
            "a repetition, which costs nothing more"
            if receipt.repeats
            else f"a release about data set {self.dataset!r}"
        )
        lines = [f"run id: {arguments.run_id}; ledger: {self.path}: {how}"]
        if arguments.dry_run:
            lines[0] += " (foreseen, not recorded)"
        if receipt.line == 1:
            lines += [NEW, *_others(self.path, arguments, entry)]
        if named:
            others = ", ".join(map(repr, sorted(named)))
            lines.append(
                f"{NOTE}these data are in this ledger as data set {others}, too, whose total is without this run"
            )
        limited = ledger.contents().limits if self.dataset == DEFAULT_DATASET and ledger.exists() else {}
        if limited and DEFAULT_DATASET not in limited and self.limit is None:
            others = ", ".join(map(repr, limited))
            lines.append(
                f"{NOTE}the data set is '{DEFAULT_DATASET}', which has no limit in this ledger; --dataset names "
                f"another one, and limits are set for {others}"
            )
        if receipt.unchained:
            lines.append(CHAINED.format(receipt.unchained))
        mark = None if arguments.dry_run else {"line": receipt.line, "head": receipt.head}
        return Charge("\n".join(lines), mark)

    def _accept(self, entry: Entry, named: set[str], earlier: Sequence[Entry]) -> None:
        """Refuse what the limit of this run does not allow, and add other names that its data have to `named`."""
        same = {one.dataset for one in earlier if one.data == entry.data}
        named |= same if entry.dataset not in same else set()
        if self.limit is not None:
            check_limit(self.limit, entry, earlier)


def span_of(arguments: argparse.Namespace) -> tuple[int | None, int | None]:
    """Return the time of the data that a run over windows is about: what is outside of it is left out.

    Without `start` it is not known, and without `end` it has none; a run that knows neither is about any time.
    """
    form = TimeForm(unit="s", zone=getattr(arguments, "time_zone", None) or "UTC")
    begin, end = (
        None if (given := getattr(arguments, name, None)) is None else read_micros(name, given, form)
        for name in ("start", "end")
    )
    return begin, None if begin is None else end


def _others(path: str, arguments: argparse.Namespace, entry: Entry) -> list[str]:
    """Say which ledgers nearby know the data, or the data set, of a run that begins a new one."""
    near = [arguments.noise_key_file, None if is_database(path) else path, arguments.output]
    folders = {os.path.realpath(os.path.dirname(each) or ".") for each in near if each and "://" not in each}
    found = []
    for other in sorted({each for folder in folders for each in glob(f"{escape(folder)}/*{ENDING}")}):
        if is_database(path) or not os.path.exists(path) or not os.path.samefile(other, path):
            with suppress(ValueError):
                known = Ledger(other).read()
                if any(_same_data(one, entry) for one in known):
                    found.append(f"{KNOWN} {os.path.relpath(other)}")
    return found


def _same_data(one: Entry, other: Entry) -> bool:
    """Tell whether two runs are about the same files or source, or about one data set that has a name."""
    return one.data == other.data or (one.dataset == other.dataset != DEFAULT_DATASET)
