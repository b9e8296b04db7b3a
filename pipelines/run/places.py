"""Where rows and guarantees of a run go, and are sent; and that nothing is written over."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from privstream.pipelines.accounts.entries import Contents, Entry
from privstream.pipelines.command import RunError
from privstream.pipelines.locations import BESIDE, DEFAULT_FORMAT, GUARANTEE, POSTGRESQL
from privstream.pipelines.model.base import WrongKeyError
from privstream.pipelines.model.monitor import TERMINAL, Monitor
from privstream.pipelines.model.question import loaded
from privstream.pipelines.promise import Promise
from privstream.pipelines.sinks.row_files import output_format, read_table
from privstream.pipelines.sinks.writers import Destination, UnreachableError, Webhook, check_folder, has_alerts
from privstream.pipelines.sources.readers import split_pattern
from privstream.pipelines.stores import check_destination, check_new, exists, filesystems, join, reason, scheme_of
from privstream.pipelines.terminal import say

Named = tuple[str, str]
"""The option or the words that name a path, and the path."""


OF_RUN = (("made_by", "command"), ("parameters", "run_id"), ("release",))
"""What guarantee files of a run have in common each time that it starts."""


class Places:
    """Where rows and guarantees go; of streaming input, rows come while the run goes on, into folders."""

    def __init__(self, monitor: Monitor) -> None:
        single, self.monitor, self.unbounded = monitor.single, monitor, monitor.data.unbounded
        self.folder = folder = monitor.output.path  # what identifies the place: the file of a single question, too
        self.terminal = folder == TERMINAL  # rows are printed, and nothing is written
        if self.terminal and (self.unbounded or not single):
            why = "when the input has no end" if single else "for the rows of all questions"
            raise WrongKeyError(("output", "path"), f"must be given: a folder {why}")
        above = folder.rpartition("/")[0] if scheme_of(folder) else os.path.dirname(folder) or "."
        self.parent = above if single else folder  # the folder with the files of rows
        self.format = monitor.output.format or (DEFAULT_FORMAT if single else "csv")  # of files in folders
        in_file = single and not self.unbounded
        self.row_format = None if self.terminal else folder.rpartition(".")[2].lower() if in_file else self.format
        self.whole = "" if single else join(folder, GUARANTEE)  # the guarantee of all questions of a monitor

    def rows(self, name: str) -> str:
        """Return the file of a question or a view; of streaming input, the folder."""
        if self.monitor.single:
            return self.folder
        return join(self.folder, name if self.unbounded else f"{name}.{self.format}")

    def guarantee(self, name: str) -> str:
        """Return where the promise goes; in a folder its name begins with `_`, so that watchers skip it."""
        return join(self.rows(name), GUARANTEE) if self.unbounded else f"{self.rows(name)}{BESIDE}"

    def hidden(self, name: str, folder: str) -> str:
        """Return where rows over files are written before they are complete, in a hidden folder."""
        apart = self.terminal or self.monitor.output.wide
        return join(folder, "rows.parquet" if apart else os.path.basename(self.rows(name)))

    def check(self, inputs: Iterable[str], ledger: str | None, *, dry: bool = False) -> None:
        """Refuse to write over what is read, and, unless that is wanted or nothing is written, over results."""
        monitor, output = self.monitor, self.monitor.output
        if self.unbounded and output.overwrite:
            rule = "must not be given when the input has no end: use a new folder"
            raise WrongKeyError(("output", "overwrite"), rule)
        if monitor.views and scheme_of(self.folder) is not None:
            rule = "must not be given without an output on this machine"
            raise WrongKeyError(("views", next(iter(monitor.views))), rule)
        rows = [] if self.terminal else self._written()
        if monitor.single and rows:
            for check in (check_folder,) if self.unbounded else (output_format, check_destination):
                check(self.folder, "output")
        for what, path in rows if not (self.unbounded or output.overwrite or dry) else ():
            if monitor.single:
                check_new(path, what)
            elif exists(path):
                rule = (
                    f"must not have {what} yet, but {path} exists; overwrite: true replaces it, and so does the option"
                )
                raise WrongKeyError(("output", "path"), rule)
        letters = [("dead_letter", output.dead_letter)] if output.dead_letter else []
        if self.unbounded:
            watched = [] if monitor.data.from_kafka else [("input", split_pattern(monitor.data.input)[0])]
            _check_apart([("output", self.folder)], [*watched, *letters], "must be another folder than")
        else:
            for option, path in letters:
                output_format(path, option)
                check_destination(path, option)
        read = [*(("input", path) for path in inputs), ("key", monitor.account.key)]
        read += [(name, getattr(each, name, None)) for each in monitor.questions.values() for name in each.lists]
        ledgers = [] if ledger is None or "://" in ledger else [("--ledger", ledger)]
        files = [(option, path) for option, path in read if isinstance(path, str)]
        _check_apart(files, [*ledgers, *letters, *rows], "must not be written over")

    def _written(self) -> list[Named]:
        monitor = self.monitor
        if monitor.single:
            return [("output", self.folder), ("the guarantee", self.guarantee(""))]
        rows = [(f"the rows of {name}", self.rows(name)) for name in (*monitor.questions, *monitor.views)]
        guarantees = [(f"the guarantee of {name}", self.guarantee(name)) for name in monitor.questions]
        return [*rows, *guarantees, ("the guarantee", self.whole)]

    def make(self) -> None:
        """Make the folders of rows that are missing; a single command is given one that is there."""
        monitor, letters = self.monitor, self.monitor.output.dead_letter
        if monitor.single and not self.unbounded:
            return
        each = [*(self.rows(name) for name in (*monitor.questions, *monitor.views)), *([letters] if letters else [])]
        for folder in dict.fromkeys([self.folder, *(each if self.unbounded else ())]):
            try:
                if not monitor.single and not exists(folder):
                    filesystems().mkdirs(folder)
            except Exception as error:
                rule = f"must be one that can be made, got {folder}: {reason(error)}"
                raise WrongKeyError(("output", "path"), rule) from None
            if self.unbounded:
                check_folder(folder)
        if not monitor.single:
            check_destination(self.whole, "output")

    def check_begun(self, contents: Contents, entry: Entry) -> None:
        """Refuse a streaming run that the ledger has, in a folder that has not what it published until now.

        Privacy: nothing else tells its data apart. Other events with the same noise would show whose they are.
        """
        name = next(iter(self.monitor.questions))
        found = Promise.read(self.whole or self.guarantee(name))
        head = found and found.maybe("ledger", "head")
        line = contents.named[contents.heads.index(head) - 1] if head in contents.heads[1:] else None
        if not isinstance(line, Entry) or line.release != entry.release:
            raise ValueError(
                f"output must be the folder in which this run was begun, with its guarantee, and {self.folder} is not: "
                "bring it back, or give another run_id, which is a further release"
            )

    def check_same_views(self, described: Mapping[str, Mapping[str, Any]]) -> None:
        """Refuse views whose files were published as other ones; a run that starts again has the same."""
        found = Promise.read(self.whole) or Promise("", {})
        for name, each in described.items():
            if found.maybe("views", name, "view") not in (None, json.loads(json.dumps(each["view"]))):
                rule = f"must be as it was when {self.rows(name)} was begun: take another name"
                raise WrongKeyError(("views", name), rule)

    def check_same_promise(self, name: str, promised: Mapping[str, Any]) -> None:
        """Refuse a folder whose files were published under another promise: a run that starts again has the same."""
        found, own = Promise.read(self.guarantee(name)), Promise("", json.loads(json.dumps(promised)))
        if found is None or all(found.maybe(*keys) == own.maybe(*keys) for keys in OF_RUN):
            return
        keys = {key for each in (own, found) if isinstance(named := each.maybe("parameters"), Mapping) for key in named}
        differing = sorted(key for key in keys if own.maybe("parameters", key) != found.maybe("parameters", key))
        raise ValueError(
            f"output must be a folder of this run, but {found.path} is of another one, which differs in "
            f"{', '.join(differing) or 'what is read or drawn'}: undo that change, or give another run_id and a new "
            "folder"
        )


def _check_apart(taken: Iterable[Named], paths: Sequence[Named], rule: str) -> None:
    """Refuse a path that another one is, or that is taken."""
    known = {os.path.realpath(path): option for option, path in taken}
    for option, path in paths:
        other = known.setdefault(os.path.realpath(path), option)
        if other != option:
            named = other if " " in other or other.startswith("--") else f"--{other}"
            raise ValueError(f"{option} {rule} {named}, got {path}")


def destinations(
    places: Places, name: str, row_type: type, key: Sequence[str], *, run_id: str, dry_run: bool
) -> Sequence[Destination]:
    """Return where the rows of a question or a view are sent, which has been checked."""
    monitor, found = places.monitor, list[Destination]()
    output, single = monitor.output, monitor.single
    try:
        for address in output.send:
            url = address if single else f"{address}/{name}"
            if url.startswith(POSTGRESQL):
                found.append(loaded("postgresql.PostgresTable")(url, run_id, row_type, key, replace=output.overwrite))
            else:
                found.append(loaded("kafka.KafkaTopic")(url, run_id, row_type, key, monitor.data.kafka_settings()))
        if output.notify is not None and has_alerts(row_type):
            folder = places.folder if places.unbounded else places.parent
            found.append(Webhook(output.notify, run_id, row_type, key, folder, name))
        for each in () if dry_run else found:  # the check makes a table that is missing
            each.check(first=not exists(places.guarantee(name) if name in monitor.questions else places.whole))
    except ImportError:
        rule = "send needs an extra for this address: pip install 'privstream[postgresql]' or 'privstream[kafka]'"
        raise ValueError(rule) from None
    except (ValueError, OSError) as error:
        raise ValueError(f"{error}{'' if single else f' (for {name})'}") from None
    return found


def send(to: Sequence[Destination], path: str) -> None:
    """Send the rows of a file when a run has written it, and say so."""
    if not to:
        return
    rows = read_table(path, to[0].row_type)
    try:
        for each in to:
            each.send(rows)
    except UnreachableError as error:
        raise RunError(f"{error}; all rows are in {path}, and the same run with --overwrite sends them again") from None
    say(f"{rows.num_rows:,} rows sent to {' and '.join(each.name() for each in to)}")
