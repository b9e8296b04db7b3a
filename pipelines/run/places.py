"""Where rows and guarantees of a run go; and that nothing is written over."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privstream.pipelines.locations import DEFAULT_FORMAT, GUARANTEE
from privstream.pipelines.model.base import WrongKeyError
from privstream.pipelines.model.monitor import TERMINAL, Monitor
from privstream.pipelines.model.question import loaded
from privstream.pipelines.promise import Promise
from privstream.pipelines.run.asked import check_apart
from privstream.pipelines.sinks.row_files import check_destination, check_new, output_format
from privstream.pipelines.stores import exists, filesystems, join, scheme_of


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where rows and guarantees go.

    Attributes:
        monitor: whose rows they are.
        unbounded: whether rows come while the run goes on, into folders.
    """

    monitor: Monitor
    unbounded: bool

    @classmethod
    def of(cls, monitor: Monitor, *, unbounded: bool) -> Places:
        """Return the places of a monitor.

        Raises:
            WrongKeyError: rows without an end cannot go there.
        """
        if (unbounded or not monitor.single) and monitor.output.path == TERMINAL:
            why = "when the input has no end" if monitor.single else "for the rows of all questions"
            raise WrongKeyError(("output", "path"), f"must be a folder {why}")
        return cls(monitor=monitor, unbounded=unbounded)

    @property
    def terminal(self) -> bool:
        """Whether rows are printed, and nothing is written."""
        return self.monitor.output.path == TERMINAL

    @property
    def folder(self) -> str:
        """What identifies the place: the folder, or the file of a single question."""
        return self.monitor.output.path

    @property
    def parent(self) -> str:
        """The folder with the files of rows."""
        path = self.monitor.output.path
        if not self.monitor.single:
            return path
        return path.rpartition("/")[0] if scheme_of(path) is not None else os.path.dirname(path) or "."

    @property
    def format(self) -> str:
        """The format of files in folders."""
        return self.monitor.output.format or (DEFAULT_FORMAT if self.monitor.single else "csv")

    def format_of(self, name: str) -> str | None:
        """Return the format of the rows of a question; None on a terminal."""
        if self.terminal:
            return None
        return self.format if self.unbounded or not self.monitor.single else self.folder.rpartition(".")[2].lower()

    def rows(self, name: str) -> str:
        """Return the file of a question or a view; of input without an end, the folder."""
        if self.monitor.single:
            return self.folder
        return join(self.folder, name if self.unbounded else f"{name}.{self.format}")

    def guarantee(self, name: str) -> str:
        """Return where the promise goes; in a folder under a name that who watches it passes over."""
        return join(self.rows(name), GUARANTEE) if self.unbounded else f"{self.rows(name)}.guarantee.json"

    @property
    def whole(self) -> str:
        """Where the guarantee of all questions of a monitor is."""
        return join(self.folder, GUARANTEE)

    def hidden(self, name: str, folder: str) -> str:
        """Return where rows are written before they are complete, in a hidden folder."""
        if self.unbounded:
            return self.rows(name)
        apart = self.terminal or self.monitor.output.wide
        return join(folder, "rows.parquet" if apart else os.path.basename(self.rows(name)))

    def check(self, inputs: Sequence[str], ledger: str | None, dry_run: bool) -> None:
        """Refuse to write over what is read, and, unless that is wanted, over results that are there.

        Raises:
            ValueError, WrongKeyError: naming the key.
        """
        monitor = self.monitor
        read = [("input", path) for path in inputs]
        read += [("key", monitor.account.key)] * (monitor.account.key is not None)  # type: ignore[list-item]
        for question in monitor.questions.values():
            files = [(name, getattr(question, name, None)) for name in question.info.files]
            read += [(name, path) for name, path in files if isinstance(path, str)]
        written: list[tuple[str, str | None]] = [("dead_letter", monitor.output.dead_letter)]
        overwrite = monitor.output.overwrite
        if self.unbounded and overwrite:
            raise WrongKeyError(
                ("output", "overwrite"), "must not be given when the input has no end: use a new folder"
            )
        if monitor.views and scheme_of(self.folder) is not None:
            raise WrongKeyError(
                ("views", next(iter(monitor.views))), "must not be given without an output on this machine"
            )
        if not self.terminal:
            pairs = [(name, f" of {name}" * (not monitor.single)) for name in (*monitor.questions, *monitor.views)]
            rows = [(f"the rows{of}" if of else "output", self.rows(name)) for name, of in pairs]
            rows += [(f"the guarantee{of}", self.guarantee(name)) for name, of in pairs if name in monitor.questions]
            if not monitor.single:
                rows.append(("the guarantee", self.whole))
            written += rows
            if monitor.single and not self.unbounded:
                output_format(self.folder, "output")
            if not self.unbounded and not overwrite:
                for what, path in rows:
                    check_new(path, what)
            if monitor.single:
                check = loaded("sinks.window_files.check_folder") if self.unbounded else check_destination
                _checked(check, self.folder)
        self._check_streams(written)
        check_apart(read, ledger, written)

    def _check_streams(self, written: list[tuple[str, str | None]]) -> None:
        """Refuse folders of input without an end that are those of others."""
        if not self.unbounded:
            return
        folders = {"output": self.folder}
        split = loaded("sources.found_files.split_pattern")
        watched = next(iter(self.monitor.questions.values())).info.watched
        if not self.monitor.data.from_kafka:
            question = next(iter(self.monitor.questions.values()))
            folders[watched] = split(self.monitor.data.input if watched == "input" else getattr(question, watched))[0]
        if self.monitor.output.dead_letter:
            folders["dead_letter"] = self.monitor.output.dead_letter
        taken: dict[str, str] = {}
        for option, folder in folders.items():
            other = taken.setdefault(os.path.realpath(folder), option)
            if other != option:
                raise ValueError(f"{option} must be another folder than --{other}, got {folder}")

    def make(self) -> None:
        """Make the folders of rows that are missing; a single command is given one that is there.

        Raises:
            ValueError: one cannot be made, or cannot be written.
        """
        monitor = self.monitor
        if monitor.single and not self.unbounded:
            return
        each = [self.rows(name) for name in (*monitor.questions, *monitor.views)] if self.unbounded else []
        each += [monitor.output.dead_letter] if self.unbounded and monitor.output.dead_letter else []
        for folder in dict.fromkeys([self.folder, *each]):
            try:
                if not monitor.single and not exists(folder):
                    filesystems().mkdirs(folder)
            except Exception as error:
                reason = getattr(error, "strerror", None) or type(error).__name__
                raise WrongKeyError(
                    ("output", "path"), f"must be one that can be made, got {folder}: {reason}"
                ) from None
            if self.unbounded:
                _checked(loaded("sinks.window_files.check_folder"), folder)
        if not monitor.single:
            _checked(check_destination, self.whole)

    def check_same_views(self, described: Mapping[str, Mapping[str, Any]]) -> None:
        """Refuse views of which files were published as other ones; a run that starts again has the same."""
        found = Promise.read(self.whole) if described else None
        before = {} if found is None else found.maybe("views") or {}
        for name, each in described.items():
            if name in before and before[name].get("view") != json.loads(json.dumps(each["view"])):
                rule = f"must be as it was when {self.rows(name)} was begun: take another name"
                raise WrongKeyError(("views", name), rule)


def _checked(check: Callable[[str, str], None], path: str) -> None:
    """Check a place by a function that names the option."""
    try:
        check(path, "output")
    except ValueError as error:
        raise WrongKeyError(("output", "path"), str(error).removeprefix("output ")) from None
