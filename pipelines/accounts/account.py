"""The account that a run enters: which ledger, which data set, which limit."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.ledger import BOUNDS, ENDING, Entry, Ledger
from privstream.pipelines.accounts.run_identity import RunIdentity
from privstream.pipelines.accounts.spending import Limit, check_limit

NONE = "none"
"""The value of `--ledger` that goes without."""

NEW = "this ledger is new: what was published earlier is not in its totals (--ledger PATH continues another one)"


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
        if path is not None and (not path or "://" in path):
            raise ValueError(f"ledger must be a file of this machine, or {NONE}, got {path!r}")
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
    ) -> str:
        """Write a run into the ledger, unless it is a dry run; return a line that says so, with the run's public name.

        Raises:
            ValueError: the ledger, or the limit, refuses it.
        """
        if self.path is None:
            return f"run id: {arguments.run_id}; ledger: none ({self.why}): no account is kept of what this run costs"
        entry = Entry(
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            run_id=run_id,
            name=arguments.run_id,
            dataset=self.dataset,
            command=identity.command,
            version=identity.version,
            parameters={**identity.parameters, BOUNDS: arguments.beta},
            data=identity.data,
            key=noise.fingerprint,
            guarantee=guarantee,
            output=arguments.output,
        )
        new, ledger = not os.path.exists(self.path), Ledger(self.path)
        write = ledger.foresee if arguments.dry_run else ledger.append
        repeats = write(entry, partial(self._accept, entry))
        how = "a repetition, which costs nothing more" if repeats else f"a release about data set {self.dataset!r}"
        line = f"run id: {arguments.run_id}; ledger: {self.path}: {how}"
        if arguments.dry_run:
            line += " (foreseen, not recorded)"
        return f"{line}\n{NEW}" if new else line

    def _accept(self, entry: Entry, earlier: Sequence[Entry]) -> None:
        """Refuse what the limit does not allow."""
        if self.limit is not None:
            check_limit(self.limit, entry, earlier)
