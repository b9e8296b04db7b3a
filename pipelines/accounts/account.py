"""The account of a run: where it is written down before it publishes anything, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol

from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.entries import Contents, Entry
from privstream.pipelines.accounts.ledger import ENDING, Ledger, is_database
from privstream.pipelines.accounts.limit_options import DEFAULT_DATASET
from privstream.pipelines.accounts.spending import Standing, standings_of
from privstream.pipelines.locations import TABLE

NONE = "none"
"""The value of `--ledger` that goes without."""

NO_LIMIT = "no limit is set (privstream budget set)"


class Identity(Protocol):
    """What a run draws, and of which data."""

    @property
    def digest(self) -> str:
        """Of all of it."""

    @property
    def data(self) -> str:
        """Digest of the data alone, or their source."""


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What was written down.

    Attributes:
        account: where.
        cost: epsilon of the run by itself; 0 if it repeats one.
        repeats: whether it does.
        standing: what all runs on the data set have cost, with this one; None without a ledger.
        mark: line and head of the ledger for the guarantee file; None if nothing was written.
    """

    account: Account
    cost: float
    repeats: bool = False
    standing: Standing | None = None
    mark: Mapping[str, Any] | None = None

    def in_words(self) -> str:
        """Return in one line what the run costs, and what is spent."""
        this = "a repetition, which costs nothing more" if self.repeats else f"epsilon {self.cost:.4g}"
        if self.standing is None:
            return f"this run: {this}; no ledger ({self.account.why})"
        runs, limit = len(self.standing.costs), self.standing.limit
        every = f"all {runs:,} runs" if runs > 1 else "the only run"
        spent = f"{every} on {self.account.dataset!r}: epsilon {self.standing.epsilon:.4g}"
        return f"this run: {this}; {spent}{f'; {NO_LIMIT}' if limit is None else f' of {limit.epsilon:.4g}'}"


@dataclass(frozen=True, kw_only=True)
class Account:
    """Where a run is written down before it publishes anything.

    Attributes:
        path: of the ledger, or None to go without.
        why: why there is none.
        dataset: whose budget is spent.
    """

    path: str | None
    why: str = ""
    dataset: str = DEFAULT_DATASET

    @classmethod
    def prepare(cls, ledger: str | None, key_file: str | None, dataset: str = DEFAULT_DATASET) -> Account:
        """Return the account that is named: the ledger, or the one beside the key.

        Raises:
            ValueError: naming the option.
        """
        path, why = ledger, ""
        if ledger == NONE:
            path, why = None, "--ledger none"
        elif ledger is None and key_file is not None:
            path = f"{key_file}{ENDING}"
        elif ledger is None:
            why = "the noise key is in no file; --ledger PATH keeps one"
        if path is not None and (not path or ("://" in path and not is_database(path))):
            raise ValueError(f"ledger must be a file of this machine, {TABLE}, or {NONE}, got {path!r}")
        if path is not None:
            Ledger(path)  # refuses an address of another form
        if not dataset or not dataset.isprintable():
            raise ValueError(f"dataset must be a name of printable letters, got {dataset!r}")
        return cls(path=path, why=why, dataset=dataset)

    def charge(
        self,
        identity: Identity,
        label: str,
        word: str,
        output: str,
        noise: KeyedNoise,
        guarantee: PrivacyGuarantee,
        *,
        name: str = "",
        dry: bool = False,
    ) -> Charge:
        """Write a run into the ledger, unless it is a dry run.

        Args:
            identity: what it draws, and of what.
            label: what its noise depends on.
            word: its command, such as "histogram".
            output: where its rows go.
            noise: its noise, for the fingerprint of the key.
            guarantee: what all of its questions promise together.
            name: what its rows and guarantee file call it.
            dry: refuse what would be refused, and write nothing.

        Raises:
            ValueError: the ledger, or the limit of the data set, refuses it.
        """
        if self.path is None:
            return Charge(account=self, cost=guarantee.epsilon)
        entry = Entry.of(
            guarantee,
            label=label,
            digest=identity.digest,
            name=name or label,
            dataset=self.dataset,
            command=word,
            version=version("privstream"),
            data=identity.data,
            key=noise.fingerprint,
            output=output,
        )
        receipt = Ledger(self.path).append(entry, dry=dry)
        return Charge(
            account=self,
            cost=0.0 if receipt.repeats else guarantee.epsilon,
            repeats=receipt.repeats,
            standing=_standing(receipt.contents, self.dataset, guarantee),
            mark=None if dry else {"line": receipt.line, "head": receipt.head},
        )

    def spent(self, guarantee: PrivacyGuarantee) -> Standing | None:
        """Return what all runs on the data set have cost the unit of a guarantee; None if there is nothing to tell.

        `Standing.left` is the epsilon that is left, and `Standing.more` counts the runs that fit.
        """
        return None if self.path is None else _standing(Ledger(self.path).contents(), self.dataset, guarantee)


def _standing(contents: Contents, dataset: str, guarantee: PrivacyGuarantee) -> Standing | None:
    """Return the standing of the unit of a guarantee."""
    wanted = guarantee.unit, guarantee.neighbouring
    found = standings_of(contents, dataset)
    return next((each for each in found if (each.unit, each.neighbouring) == wanted), None)
