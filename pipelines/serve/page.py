"""What the page shows, piece by piece: results, their pictures, what has been spent, the health of jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from privstream.mechanisms.privacy.guarantee import NEIGHBOURING
from privstream.pipelines.accounts.spending import Limit
from privstream.pipelines.report.cost import Accounts
from privstream.pipelines.report.page import templates
from privstream.pipelines.report.section import picture, words_of
from privstream.pipelines.serve.folder import Found, WatchedFolder, stamp_of
from privstream.pipelines.serve.health import Health
from privstream.pipelines.serve.newest import newest, newest_first
from privstream.pipelines.terminal import printable

ROOM = "privstream.pipelines.serve"
MOST_PICTURES = 6
PATIENCE_SECONDS = 0.2
NOT_IN_LEDGER = "The ledger of this page has no run that promises what this result does."
NOT_DRAWN = "This result has rows that cannot be drawn."


class BusyError(Exception):
    """A piece cannot be made now, since another one is; whoever needs it asks again."""


class Page:
    """Makes the pieces of the page, each anew only when what it shows has changed.

    Args:
        folder: whose results are shown.
        accounts: the ledger of their runs, or None.
        limit: of the budget of each data set, or None.
        health: where the health of jobs is found, or None.
        version: of privstream.
    """

    def __init__(
        self,
        folder: WatchedFolder,
        *,
        accounts: Accounts | None,
        limit: Limit | None,
        health: Health | None,
        version: str,
    ) -> None:
        self._folder, self._accounts, self._limit, self._health = folder, accounts, limit, health
        self._version = version
        self._templates = templates(ROOM)
        self._made: dict[tuple[str, ...], tuple[str, str]] = {}
        self._drawing, self._adding = threading.Lock(), threading.Lock()

    @property
    def has_health(self) -> bool:
        """Whether there is something for operators."""
        return self._health is not None

    def frame(self, *, operator: bool) -> str:
        """Return the page without results, which its script asks for."""
        return self._render("live.html", operator=operator, version=self._version)

    def state(self) -> dict[str, Any]:
        """Return which pieces there are, and their versions."""
        found, notes = self._folder.look()
        ledger = self._ledger_version()
        results = [
            {
                "id": one.id,
                "version": one.version + ledger,
                "pictures": _pictures(one),
                "running": one.running,
                "title": printable(one.name if one.result is None else f"{one.result.spec.word}: {one.name}"),
            }
            for one in found
        ]
        return {"results": results, "notes": list(notes), "cost": self._cost_version(found, ledger)}

    def result(self, id: str) -> str | None:
        """Return the piece about a result, without its pictures; None if there is no such result."""
        found = self._find(id)
        if found is None:
            return None
        return self._kept(("result", id), found.version + self._ledger_version(), lambda: self._result(found))

    def picture(self, id: str, number: int) -> str | None:
        """Return a picture of a result; None if there is none.

        Raises:
            BusyError: another one is being drawn.
        """
        found = self._find(id)
        if found is None or not 0 <= number < _pictures(found):
            return None
        with _alone(self._drawing):
            return self._kept(("picture", id, str(number)), found.version, lambda: self._picture(found, number))

    def cost(self) -> str:
        """Return what has been spent, and what is left.

        Raises:
            BusyError: something else is being made.
        """
        found, _ = self._folder.look()
        with _alone(self._adding):
            return self._kept(("cost",), self._cost_version(found, self._ledger_version()), lambda: self._cost(found))

    def health(self) -> str:
        """Return the health of jobs, which is exact: for operators alone."""
        return "" if self._health is None else self._render("health.html", **self._health.look())

    def _find(self, id: str) -> Found | None:
        """Return a result by its id."""
        return next((one for one in self._folder.look()[0] if one.id == id), None)

    def _kept(self, key: tuple[str, ...], version: str, make: Callable[[], str]) -> str:
        """Return a piece; it is made anew if it is of another version, and those of results that have gone go."""
        known = self._made.get(key)
        if known is None or known[0] != version:
            ids = {one.id for one in self._folder.look()[0]}
            self._made = {other: made for other, made in self._made.items() if len(other) == 1 or other[1] in ids}
            known = self._made[key] = version, make()
        return known[1]

    def _result(self, found: Found) -> str:
        """Make the piece about a result."""
        notes = list(found.notes)
        if found.result is None:
            return self._render("live_section.html", found=found, notes=notes, one=None, newest=None)
        shown = replace(found.result, rows=newest_first(found.result))
        try:
            try:
                one = words_of(shown, self._accounts)
            except ValueError:
                one = words_of(shown, None)
                notes.append(NOT_IN_LEDGER)
            return self._render("live_section.html", found=found, notes=notes, one=one, newest=newest(found.result))
        except Exception:  # whatever is wrong with one result must not hide the others
            notes.append("This result cannot be shown: it is not as this version of privstream writes it.")
            return self._render("live_section.html", found=found, notes=notes, one=None, newest=None)

    def _picture(self, found: Found, number: int) -> str:
        """Make a picture."""
        assert found.result is not None  # _pictures is 0 then
        try:
            drawn = picture(found.result, list(found.result.given())[number])
        except Exception:  # one that cannot be drawn must not hide the others
            return self._render("no_picture.html", text=NOT_DRAWN)
        return self._render("picture.html", picture=drawn)

    def _cost(self, found: Sequence[Found]) -> str:
        """Make the piece about the budget."""
        costs = None
        if self._accounts is not None:
            try:
                costs = self._accounts.costs(self._datasets(found), self._limit)
            except ValueError:
                return self._render("no_picture.html", text="The ledger cannot be read now.")
        return self._render("cost.html", costs=costs, neighbouring=NEIGHBOURING)

    def _datasets(self, found: Sequence[Found]) -> list[str]:
        """Return the data sets that results are about, as far as the ledger knows."""
        names = []
        for one in found:
            try:
                if one.result is not None and self._accounts is not None:
                    names.append(self._accounts.entry(one.result).dataset)
            except ValueError:
                continue
        return sorted(set(names))

    def _ledger_version(self) -> str:
        """Return what changes when the ledger does."""
        return "" if self._accounts is None else "".join(f"-{part}" for part in stamp_of(self._accounts.path))

    def _cost_version(self, found: Sequence[Found], ledger: str) -> str:
        """Return what changes when what has been spent may."""
        ids = ",".join(sorted(one.id for one in found if one.result is not None))
        return blake2b(f"{ids}{ledger}".encode(), digest_size=8).hexdigest()

    def _render(self, name: str, **values: Any) -> str:
        """Fill a template."""
        return self._templates.get_template(name).render(**values)


@contextmanager
def _alone(lock: threading.Lock) -> Iterator[None]:
    """Do one slow thing at a time, and let nobody wait for it: threads that wait would be missing for numbers.

    Raises:
        BusyError: another one is being done.
    """
    if not lock.acquire(timeout=PATIENCE_SECONDS):
        raise BusyError
    try:
        yield
    finally:
        lock.release()


def _pictures(found: Found) -> int:
    """Return how many pictures a result has, up to a limit."""
    return 0 if found.result is None else min(MOST_PICTURES, sum(1 for _ in found.result.given()))
