"""The account of a run: where it is written down before it publishes anything, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.entries import Contents, Entry
from privstream.pipelines.accounts.ledger import ENDING, Ledger, is_database
from privstream.pipelines.accounts.spending import Standing, standings_of
from privstream.pipelines.locations import DEFAULT_DATASET, TABLE
from privstream.pipelines.show.words import Budget

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
    """

    path: str | None
    dataset: str = DEFAULT_DATASET

    @classmethod
    def prepare(cls, ledger: str | None, key_file: str | None, dataset: str = DEFAULT_DATASET) -> Account:
        """Return the account that is named: the ledger, or the one beside the key."""
        path = ledger
        if ledger == NONE:
            path = None
        elif ledger is None and key_file is not None:
            path = f"{key_file}{ENDING}"
        if path is not None and (not path or ("://" in path and not is_database(path))):
            raise ValueError(f"ledger must be a file of this machine, {TABLE}, or {NONE}, got {path!r}")
        if path is not None:
            Ledger(path)  # refuses an address of another form
        if not dataset or not dataset.isprintable():
            raise ValueError(f"dataset must be a name of printable letters, got {dataset!r}")
        return cls(path=path, dataset=dataset)

    def charge(self, entry: Entry, *, dry: bool = False) -> Charge:
        """Write a run into the ledger, which may refuse it; a `dry` one is refused alike, and not written."""
        assert self.path is not None  # else there is nobody to charge
        receipt = Ledger(self.path).append(entry, dry=dry)
        standing = _standing(receipt.contents, self.dataset, entry)
        assert standing is not None  # of the unit of this run
        budget = Budget(
            dataset=self.dataset,
            runs=len(standing.costs),
            spent=standing.epsilon,
            delta=standing.delta,
            limit=None if standing.limit is None else standing.limit.epsilon,
            repeats=receipt.repeats,
        )
        return Charge(budget, None if dry else {"line": receipt.line, "head": receipt.head})

    def spent(self, guarantee: PrivacyGuarantee) -> Standing | None:
        """Return what all runs on the data set have cost the unit of a guarantee; None if there is nothing to tell.

        `Standing.left` is the epsilon that is left, and `Standing.more` counts the runs that fit.
        """
        return None if self.path is None else _standing(Ledger(self.path).contents(), self.dataset, guarantee)


def _standing(contents: Contents, dataset: str, guarantee: PrivacyGuarantee | Entry) -> Standing | None:
    """Return the standing of the unit of a guarantee."""
    wanted = guarantee.unit, guarantee.neighbouring
    found = standings_of(contents, dataset)
    return next((each for each in found if (each.unit, each.neighbouring) == wanted), None)
