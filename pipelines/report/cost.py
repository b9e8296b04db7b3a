"""What runs have cost, from the ledger: the run of each result, and the totals of its data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from privstream.mechanisms import KeyedNoise
from privstream.pipelines.accounts.entries import WATCHED, Entry
from privstream.pipelines.accounts.ledger import ENDING, Ledger
from privstream.pipelines.accounts.spending import Standing, distinct, standings_of
from privstream.pipelines.report.result import Result

FINGERPRINT = "fingerprint of input, for reports"
NOT_SHOWN = (
    "not shown: a digest of the data would let anybody test guesses of all of it. A report with --key shows "
    "a fingerprint that only who has the key can check"
)


@dataclass(frozen=True, kw_only=True)
class DataSetCost:
    """What all releases about one data set have cost.

    Attributes:
        dataset: its name.
        releases: how many there are.
        totals: for each unit, what they promise together, and what a limit leaves.
        limit: the limit in words; empty without one.
    """

    dataset: str
    releases: int
    totals: Sequence[Standing]
    limit: str = ""


@dataclass(frozen=True)
class Accounts:
    """A ledger, and perhaps the key beside it.

    Attributes:
        path: of the ledger.
        key_file: of the noise key, or None.
    """

    path: str
    key_file: str | None

    @classmethod
    def of(cls, ledger: str | None, key_file: str | None) -> Accounts | None:
        """Return the accounts that options name, or None if they name none."""
        path = ledger or (None if key_file is None else f"{key_file}{ENDING}")
        return None if path is None else cls(path, key_file)

    def entry(self, result: Result) -> Entry:
        """Return the first entry of the run of a result.

        Raises:
            ValueError: there is none; the message names ledger and result.
        """
        contents = Ledger(self.path).contents()
        head = result.promise.maybe("ledger", "head")
        if head in contents.heads[1:]:
            found = contents.named[contents.heads.index(head) - 1]
            if isinstance(found, Entry):
                return found
        raise ValueError(
            f"ledger must have recorded the run of each result, and {self.path} has not the line that "
            f"{result.promise.path} names: name the ledger of that run, or leave it out"
        )

    def head(self) -> str:
        """Return what changes with each line of the ledger; empty while it cannot be read."""
        try:
            return Ledger(self.path).contents().heads[-1]
        except ValueError:
            return ""

    def input_fingerprint(self, entry: Entry) -> str:
        """Return a text that differs between inputs; a pseudo-random function of their digest, under the noise key.

        Privacy: the digest itself is a function of exact data, and stays in the ledger.
        """
        if entry.data.startswith(WATCHED):
            return "an input without an end has none; its run id names it"
        if self.key_file is None:
            return NOT_SHOWN
        key = KeyedNoise.from_file(self.key_file)
        if key.fingerprint != entry.key:
            raise ValueError(f"key must be the key of the run {entry.name}, got another one")
        return f"{int(key.derive(FINGERPRINT, entry.data).words(1)[0, 0, 0]):016x} (under the noise key)"

    def costs(self, datasets: Sequence[str]) -> list[DataSetCost]:
        """Return what data sets have cost in all, and what the limit of the ledger leaves of each."""
        contents = Ledger(self.path).contents()
        return [
            DataSetCost(
                dataset=name,
                releases=len(distinct(contents.about(name))),
                totals=standings_of(contents, name),
                limit=contents.limits[name].in_words() if name in contents.limits else "",
            )
            for name in dict.fromkeys(datasets)
        ]
