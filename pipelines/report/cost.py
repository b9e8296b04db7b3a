"""What runs have cost, from the ledger: the run of each result, and the totals of its data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from privstream.mechanisms import KeyedNoise
from privstream.pipelines.accounts.entries import WATCHED, Entry
from privstream.pipelines.accounts.ledger import ENDING, Ledger, limit_of
from privstream.pipelines.accounts.spending import Left, Total, distinct, left_of, totals
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
        totals: for each unit, what they promise together.
        left: for each unit, the epsilon that a limit leaves; empty without a limit.
        limit: the limit in words; empty without one.
        periods: what a limit by period leaves of each period that runs are about, and to whom.
    """

    dataset: str
    releases: int
    totals: Sequence[Total]
    left: Sequence[float] = ()
    limit: str = ""
    periods: Sequence[Left] = ()


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
        run_id = result.parameters.get("run_id")
        for entry in Ledger(self.path).read():
            if entry.name == run_id and _same(entry, result):
                return entry
        raise ValueError(
            f"ledger must have recorded the run of each result, and {self.path} has none that promises what "
            f"{result.promise.path} does: name the ledger of that run, or leave it out"
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
        found = []
        for name in dict.fromkeys(datasets):
            own = [entry for entry in contents.entries if entry.dataset == name]
            spent, stored = totals(own), contents.limits.get(name)
            kept = None if stored is None else limit_of(stored)
            by_period = kept is not None and kept.period is not None
            cost = DataSetCost(
                dataset=name,
                releases=len(distinct(own)),
                totals=spent,
                left=[] if kept is None or by_period else [kept.left(total) for total in spent],
                limit="" if kept is None else kept.in_words(),
                periods=list(left_of(kept, own)) if kept is not None and by_period else [],
            )
            found.append(cost)
        return found


def _same(entry: Entry, result: Result) -> bool:
    """Return whether an entry promises what a result's guarantee file does: by its command, or as one of several."""
    if result.is_view:
        return bool(entry.parts) and result.guarantee == entry.guarantee
    own = entry.parts.values() if entry.parts else [entry.guarantee] if entry.command == result.spec.word else []
    return result.guarantee in own
