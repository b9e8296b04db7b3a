"""Where rows and guarantees of a run go; and that nothing is written over, or published beside what it is not of."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privstream.pipelines.locations import DEFAULT_FORMAT, GUARANTEE
from privstream.pipelines.model.base import WrongKeyError
from privstream.pipelines.model.monitor import TERMINAL, Monitor
from privstream.pipelines.promise import Promise
from privstream.pipelines.sinks.row_files import check_destination, check_new, output_format
from privstream.pipelines.sinks.window_files import check_folder
from privstream.pipelines.sources.found_files import split_pattern
from privstream.pipelines.stores import exists, filesystems, join, scheme_of

Named = tuple[str, str]
"""The option or the words that name a path, and the path."""


@dataclass(frozen=True)
class Places:
    """Where rows and guarantees go; of streaming input, rows come while the run goes on, into folders."""

    monitor: Monitor

    def __post_init__(self) -> None:
        if self.terminal and (self.unbounded or not self.monitor.single):
            why = "when the input has no end" if self.monitor.single else "for the rows of all questions"
            raise WrongKeyError(("output", "path"), f"must be a folder {why}")

    @property
    def unbounded(self) -> bool:
        """Whether the input has no end."""
        return self.monitor.data.unbounded

    @property
    def terminal(self) -> bool:
        """Whether rows are printed, and nothing is written."""
        return self.folder == TERMINAL

    @property
    def folder(self) -> str:
        """What identifies the place: the folder, or the file of a single question."""
        return self.monitor.output.path

    @property
    def parent(self) -> str:
        """The folder with the files of rows."""
        if not self.monitor.single:
            return self.folder
        return self.folder.rpartition("/")[0] if scheme_of(self.folder) else os.path.dirname(self.folder) or "."

    @property
    def format(self) -> str:
        """The format of files in folders."""
        return self.monitor.output.format or (DEFAULT_FORMAT if self.monitor.single else "csv")

    @property
    def row_format(self) -> str | None:
        """The format of rows; None on a terminal."""
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

    def check(self, inputs: Iterable[str], ledger: str | None, *, dry: bool = False) -> None:
        """Refuse to write over what is read, and, unless that is wanted or nothing is written, over results."""
        output = self.monitor.output
        if self.unbounded and output.overwrite:
            rule = "must not be given when the input has no end: use a new folder"
            raise WrongKeyError(("output", "overwrite"), rule)
        if self.monitor.views and scheme_of(self.folder) is not None:
            view = next(iter(self.monitor.views))
            raise WrongKeyError(("views", view), "must not be given without an output on this machine")
        rows = [] if self.terminal else self._written()
        if rows and self.monitor.single:
            if self.unbounded:
                _checked(check_folder, self.folder)
            else:
                output_format(self.folder, "output")
        if not (self.unbounded or output.overwrite or dry):
            for what, path in rows:
                check_new(path, what)
        if rows and self.monitor.single and not self.unbounded:
            _checked(check_destination, self.folder)
        letters = [("dead_letter", output.dead_letter)] if output.dead_letter else []
        for option, path in letters if not self.unbounded else ():
            output_format(path, option)
            check_destination(path, option)
        if self.unbounded:
            read = [] if self.monitor.data.from_kafka else [("input", split_pattern(self.monitor.data.input)[0])]
            _check_apart([("output", self.folder)], [*read, *letters], "must be another folder than")
        ledgers = [] if ledger is None or "://" in ledger else [("--ledger", ledger)]
        _check_apart(self._read(inputs), [*ledgers, *letters, *rows], "must not be written over")

    def _read(self, inputs: Iterable[str]) -> Iterable[Named]:
        """Yield the files that are read."""
        yield from (("input", path) for path in inputs)
        if self.monitor.account.key is not None:
            yield "key", self.monitor.account.key
        for question in self.monitor.questions.values():
            files = [(name, getattr(question, name, None)) for name in question.info.files]
            yield from ((name, path) for name, path in files if isinstance(path, str))

    def _written(self) -> list[Named]:
        """Return the files that are written, but for dead letters."""
        monitor = self.monitor
        if monitor.single:
            (name,) = monitor.questions
            return [("output", self.rows(name)), ("the guarantee", self.guarantee(name))]
        rows = [(f"the rows of {name}", self.rows(name)) for name in (*monitor.questions, *monitor.views)]
        guarantees = [(f"the guarantee of {name}", self.guarantee(name)) for name in monitor.questions]
        return [*rows, *guarantees, ("the guarantee", self.whole)]

    def make(self) -> None:
        """Make the folders of rows that are missing; a single command is given one that is there."""
        monitor, letters = self.monitor, self.monitor.output.dead_letter
        if monitor.single and not self.unbounded:
            return
        each = [self.rows(name) for name in (*monitor.questions, *monitor.views)] if self.unbounded else []
        each += [letters] if self.unbounded and letters else []
        for folder in dict.fromkeys([self.folder, *each]):
            try:
                if not monitor.single and not exists(folder):
                    filesystems().mkdirs(folder)
            except Exception as error:
                reason = getattr(error, "strerror", None) or type(error).__name__
                rule = f"must be one that can be made, got {folder}: {reason}"
                raise WrongKeyError(("output", "path"), rule) from None
            if self.unbounded:
                _checked(check_folder, folder)
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

    def check_same_promise(self, name: str, promised: Mapping[str, Any]) -> None:
        """Refuse a folder whose files were published under another promise: a run that starts again has the same."""
        path, own = self.guarantee(name), json.loads(json.dumps(promised))
        wrong = f"output must be a folder of this run, but {path}"
        try:
            found = Promise.read(path)
            if found is None or _of_run(own) == _of_run(found.content):
                return
            before, given = found.content["parameters"], own["parameters"]
            differing = [name for name in {**given, **before} if given.get(name) != before.get(name)]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ValueError(f"{wrong} cannot be read: use a new folder") from None
        raise ValueError(
            f"{wrong} is of another one, which differs in {', '.join(differing) or 'what is read or drawn'}: undo that "
            "change, or give another run_id and a new folder"
        )


def _of_run(promised: Mapping[str, Any]) -> list[Any]:
    """Return what the guarantee files of a run have in common each time that it starts."""
    return [promised["made_by"]["command"], promised["parameters"]["run_id"], promised["release"]]


def _check_apart(taken: Iterable[Named], paths: Sequence[Named], rule: str) -> None:
    """Refuse a path that another one is, or that is taken."""
    known = {os.path.realpath(path): option for option, path in taken}
    for option, path in paths:
        other = known.setdefault(os.path.realpath(path), option)
        if other != option:
            named = other if " " in other or other.startswith("--") else f"--{other}"
            raise ValueError(f"{option} {rule} {named}, got {path}")


def _checked(check: Callable[[str, str], None], path: str) -> None:
    """Check a place by a function that names the option."""
    try:
        check(path, "output")
    except ValueError as error:
        raise WrongKeyError(("output", "path"), str(error).removeprefix("output ")) from None
