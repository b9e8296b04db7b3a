"""The account of a run: where it is written down before it publishes anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from shlex import quote
from typing import Any, NamedTuple, Protocol

from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.entries import Contents, Entry
from privstream.pipelines.accounts.ledger import ENDING, Ledger, is_database, limit_of
from privstream.pipelines.accounts.limit_options import DEFAULT_DATASET
from privstream.pipelines.accounts.run_identity import RunIdentity
from privstream.pipelines.accounts.spending import Limit, check_limit, distinct, left_of, spent, total
from privstream.pipelines.locations import TABLE
from privstream.pipelines.terminal import NOTE
from privstream.transforms.events.times import TimeForm, read_micros


class Given(Protocol):
    """What a monitor says of the account: see `model.monitor.Account`."""

    key: str | None
    ledger: str | None
    dataset: str
    budget_limit: tuple[float, float | None] | None


NONE = "none"
"""The value of `--ledger` that goes without."""

KEPT = "the limit of data set {!r} is in the ledger from now on, and every later run must keep it: {}"
NEW = "this ledger is new: earlier releases are not in its totals"


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
    def of(cls, given: Given) -> Account:
        """Return the account that a monitor names.

        Raises:
            ValueError: naming the option.
        """
        path, why = given.ledger, ""
        if path == NONE:
            path, why = None, "--ledger none"
        elif path is None and given.key is not None:
            path = f"{given.key}{ENDING}"
        elif path is None:
            why = "the noise key is in no file; --ledger PATH keeps one"
        if path is not None and (not path or ("://" in path and not is_database(path))):
            raise ValueError(f"ledger must be a file of this machine, {TABLE}, or {NONE}, got {path!r}")
        if path is not None:
            Ledger(path)  # refuses an address of another form
        if not given.dataset or not given.dataset.isprintable():
            raise ValueError(f"dataset must be a name of printable letters, got {given.dataset!r}")
        if given.budget_limit is not None and path is None:
            raise ValueError(f"budget_limit must be given with a ledger, and there is none: {why}")
        return cls(
            path=path,
            why=why,
            dataset=given.dataset,
            limit=None if given.budget_limit is None else Limit(*given.budget_limit),
        )

    def charge(
        self,
        identity: RunIdentity,
        run_id: str,
        command: str,
        noise: KeyedNoise,
        guarantee: PrivacyGuarantee,
        parts: Mapping[str, PrivacyGuarantee],
        *,
        name: str,
        output: str,
        span: tuple[Any, Any, str | None],
        dry_run: bool,
    ) -> Charge:
        """Write a run into the ledger, unless it is a dry run.

        Args:
            identity: what it draws, and of what.
            run_id: what its noise depends on.
            command: such as "histogram".
            noise: its noise, for the fingerprint of the key.
            guarantee: what all of its questions promise together.
            parts: what each question promises by itself, by name, if there are several.
            name: the public name of the run.
            output: where rows go.
            span: start and end of the data, and the zone of the clocks.
            dry_run: whether nothing is written down.

        Raises:
            ValueError: the ledger, or a limit, refuses it.
        """
        if self.path is None:
            how = f"run id: {name}; ledger: none ({self.why}): no account is kept of what this run costs"
            return Charge(how, None)
        begin, end = span_of(*span)
        entry = Entry(
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            run_id=run_id,
            digest=identity.digest,
            name=name,
            dataset=self.dataset,
            command=command,
            version=version("privstream"),
            data=identity.data,
            key=noise.fingerprint,
            guarantee=guarantee,
            output=output,
            begin=begin,
            end=end,
            parts=dict(parts or {}),
        )
        return self._written(self.path, entry, dry=dry_run)

    def _written(self, path: str, entry: Entry, *, dry: bool) -> Charge:
        """Write a run into the ledger, unless it is a dry run."""
        ledger = Ledger(path)
        before = ledger.contents() if ledger.exists() else Contents.none()
        accept = partial(self._accept, entry)
        receipt = ledger.foresee(entry, accept) if dry else ledger.append(entry, accept, self.limit)
        how = (
            "a repetition, which costs nothing more"
            if receipt.repeats
            else f"a release about data set {self.dataset!r}"
        )
        lines = [f"run id: {entry.name}; ledger: {path}: {how}"]
        if dry:
            lines[0] += " (foreseen, not recorded)"
        costs = "would cost" if dry else "costs"
        lines.append(f"budget: {self._budget(path, entry, before, receipt.repeats, costs)}")
        if not before.records:
            lines.append(NEW)
        if self.limit is not None and self.dataset not in before.limits and not dry:
            lines.append(KEPT.format(self.dataset, self.limit.in_words()))
        if not receipt.repeats:
            lines += [f"{NOTE}{text}" for text in self._names(entry, before)]
        mark = None if dry else {"line": receipt.line, "head": receipt.head}
        return Charge("\n".join(lines), mark)

    def _accept(self, entry: Entry, earlier: Sequence[Entry]) -> None:
        """Refuse what the limit of this run does not allow."""
        if self.limit is not None:
            check_limit(self.limit, entry, earlier)

    def _budget(self, path: str, entry: Entry, before: Contents, repeats: bool, costs: str) -> str:
        """Say what a run costs, what all runs on its data set have cost, and what a limit leaves."""
        cost = "nothing more" if repeats else f"epsilon {entry.guarantee.epsilon:g}, delta {entry.guarantee.delta:g}"
        earlier = [one for one in before.entries if one.dataset == self.dataset]
        own = [release[0].guarantee for release in distinct([*earlier, entry])]
        releases = f"{len(own):,} releases" if len(own) > 1 else "1 release"
        every = f"this run {costs} {cost}; {releases} on {self.dataset!r} {costs.removesuffix('s')}"
        unit = entry.guarantee.unit, entry.guarantee.neighbouring
        stored = before.limits.get(self.dataset)
        limit = self.limit if stored is None else limit_of(stored)
        if limit is None:
            setting = (
                f"privstream budget set --ledger {quote(path)} --dataset {quote(self.dataset)} --limit EPSILON,DELTA"
            )
            return f"{every} epsilon {total(own, *unit).epsilon:g}; no limit is set ({setting})"
        if limit.period is None:
            charges = [charge for one in own if (charge := one.about(*unit)) is not None]
            return f"{every} epsilon {spent(charges, limit.delta):g} of {limit.epsilon:g}"
        left = min(each.epsilon for each in left_of(limit, [*earlier, entry]) if (each.unit, each.neighbouring) == unit)
        stays = "is left" if costs == "costs" else "would be left"
        return f"this run {costs} {cost}; at least epsilon {left:g} of {limit.in_words()} {stays} in each period"

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
            yield f"data set {own!r} is new in this ledger, which has {others}: it begins a budget of its own"
        same = sorted({one.dataset for one in earlier if one.data == entry.data})
        if same and own not in same:
            others = ", ".join(map(repr, same))
            yield f"these data are in this ledger as data set {others}, too, whose total is without this run"


def span_of(start: Any, end: Any, zone: str | None) -> tuple[int | None, int | None]:
    """Return the time of the data that a run over windows is about: what is outside of it is left out.

    Without `start` it is not known, and without `end` it has none; a run that knows neither is about any time.
    """
    form = TimeForm(unit="s", zone=zone or "UTC")
    first, last = (
        None if given is None else read_micros(name, given, form) for name, given in (("start", start), ("end", end))
    )
    return first, None if first is None else last
