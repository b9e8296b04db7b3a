"""The account of a run: where it is written down before it publishes anything."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.entries import Contents, Entry
from privstream.pipelines.accounts.ledger import ENDING, Ledger, is_database, limit_of
from privstream.pipelines.accounts.limit_options import DEFAULT_DATASET
from privstream.pipelines.accounts.run_identity import RunIdentity
from privstream.pipelines.accounts.spending import Limit, check_limit, distinct, left_of, spent, total
from privstream.pipelines.locations import TABLE
from privstream.pipelines.show.words import Budget
from privstream.transforms.events.times import TimeForm, read_micros

NONE = "none"
"""The value of `--ledger` that goes without."""


class Charge(NamedTuple):
    """What was written down: what it costs, and line and head of the ledger for the guarantee file."""

    budget: Budget | None
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
        command: str,
        arguments: argparse.Namespace,
        noise: KeyedNoise,
        guarantee: PrivacyGuarantee,
        parts: Mapping[str, PrivacyGuarantee] | None = None,
    ) -> Charge:
        """Write a run into the ledger, unless it is a dry run.

        Args:
            identity: what it draws, and of what.
            run_id: what its noise depends on.
            command: such as "histogram".
            arguments: its options.
            noise: its noise, for the fingerprint of the key.
            guarantee: what all of its questions promise together.
            parts: what each question promises by itself, by name, if there are several.

        Raises:
            ValueError: the ledger, or a limit, refuses it.
        """
        if self.path is None:
            return Charge(Budget(), None)
        begin, end = span_of(arguments)
        entry = Entry(
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            run_id=run_id,
            digest=identity.digest,
            name=arguments.run_id,
            dataset=self.dataset,
            command=command,
            version=version("privstream"),
            data=identity.data,
            key=noise.fingerprint,
            guarantee=guarantee,
            output=arguments.output,
            begin=begin,
            end=end,
            parts=dict(parts or {}),
        )
        return self._written(self.path, entry, arguments)

    def _written(self, path: str, entry: Entry, arguments: argparse.Namespace) -> Charge:
        """Write a run into the ledger, unless it is a dry run."""
        ledger = Ledger(path)
        before = ledger.contents() if ledger.exists() else Contents.none()
        accept = partial(self._accept, entry)
        receipt = ledger.foresee(entry, accept) if arguments.dry_run else ledger.append(entry, accept, self.limit)
        mark = None if arguments.dry_run else {"line": receipt.line, "head": receipt.head}
        return Charge(self._budget(entry, before, receipt.repeats), mark)

    def _accept(self, entry: Entry, earlier: Sequence[Entry]) -> None:
        """Refuse what the limit of this run does not allow."""
        if self.limit is not None:
            check_limit(self.limit, entry, earlier)

    def _budget(self, entry: Entry, before: Contents, repeats: bool) -> Budget:
        """Return what a run costs, and what all runs on its data set have cost, of its limit."""
        earlier = [one for one in before.entries if one.dataset == self.dataset]
        own = [release[0].guarantee for release in distinct([*earlier, entry])]
        unit = entry.guarantee.unit, entry.guarantee.neighbouring
        stored = before.limits.get(self.dataset)
        limit = self.limit if stored is None else limit_of(stored)
        if limit is None or limit.period is not None:
            together = total(own, *unit).epsilon
        else:
            charges = [charge for one in own if (charge := one.about(*unit)) is not None]
            together = spent(charges, limit.delta)
        found = Budget(
            dataset=self.dataset,
            epsilon=entry.guarantee.epsilon,
            runs=len(own),
            spent=together,
            limit=None if limit is None else limit.epsilon,
            repeats=repeats,
            note="" if repeats else next(self._names(entry, before), ""),
        )
        if limit is None or limit.period is None:
            return found
        left = [each for each in left_of(limit, [*earlier, entry]) if (each.unit, each.neighbouring) == unit]
        least = min(left, key=lambda each: each.epsilon)
        return found._replace(spent=limit.epsilon - least.epsilon, period=least.period or "")

    def _names(self, entry: Entry, before: Contents) -> Iterator[str]:
        """Say what speaks against the name of the data set."""
        earlier, own = before.entries, self.dataset
        known = dict.fromkeys([*before.limits, *(one.dataset for one in earlier)])
        if before.limits and own == DEFAULT_DATASET and own not in before.limits and self.limit is None:
            yield (
                f"the data set is '{DEFAULT_DATASET}', which has no limit in this ledger; --dataset names another one, "
                f"and limits are set for {', '.join(map(repr, before.limits))}"
            )
        elif known and own not in known:
            others = ", ".join(map(repr, known))
            yield f"data set {own!r} is new in this ledger, which has {others}: --dataset names another one"
        same = sorted({one.dataset for one in earlier if one.data == entry.data})
        if same and own not in same:
            others = ", ".join(map(repr, same))
            yield f"these data are in this ledger as data set {others}, too: --dataset names another one"


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
