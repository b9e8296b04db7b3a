"""The only assembly of a run: what is read, drawn, promised, charged, published and told of its questions."""

from __future__ import annotations

import os
import re
import secrets
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Self

from apache_beam.options.pipeline_options import GoogleCloudOptions, StandardOptions
from privstream.pipelines.accounts.entries import Entry
from privstream.pipelines.accounts.ledger import check_name, named_ledger
from privstream.pipelines.accounts.run_identity import identify, noise_source, public_name
from privstream.pipelines.command import NothingUsableError, UsageError
from privstream.pipelines.model.base import WrongKeyError
from privstream.pipelines.model.monitor import TERMINAL, Monitor
from privstream.pipelines.model.question import loaded
from privstream.pipelines.options import options_of
from privstream.pipelines.run.asked import Asked, check_usable, head_of, promise, shards_for, written_type
from privstream.pipelines.run.pipeline import EventPipeline, reader
from privstream.pipelines.run.places import Places, destinations, send
from privstream.pipelines.run.plan import Paid, Plan, about
from privstream.pipelines.run.views import Table, answer_views, tables_of, views_of
from privstream.pipelines.run.views_stream import followed
from privstream.pipelines.runners.launch import LOCAL_RUNNER, parse_beam_options
from privstream.pipelines.runners.processes import workers_for
from privstream.pipelines.show.words import LABEL, Budget, summary, view_parameters
from privstream.pipelines.sinks.row_files import (
    check_wide,
    key_of,
    read_table,
    write_row_file,
    write_wide,
)
from privstream.pipelines.sinks.terminal_table import MOST_ROWS, print_rows, until_closed
from privstream.pipelines.sinks.writers import SENT
from privstream.pipelines.sources.fields import Readings
from privstream.pipelines.stores import PARTIAL, filesystems, fingerprint, has_folders, join, move_file, write_json
from privstream.pipelines.terminal import NOTE, gap, is_quiet, say
from privstream.transforms.counters import Counters
from privstream.transforms.parameters import plain
from rich.console import Console

NOISE = "question"
"""The noise of a question of a monitor is derived from that of the run by this word and its name."""

HEAD = 5
"""Rows of each question that a run of several prints."""

OPTION = re.compile(r"--([a-z][a-z-]*)")
OF_COMMAND = frozenset({option.name for option in options_of(None, ("output", "account"))} | {"workers", "dry_run"})
"""Options of `privstream run`; what is said of a question names others, which are keys of the file."""


def _in_words_of_file(text: str) -> str:
    return OPTION.sub(lambda found: found[0] if (key := found[1].replace("-", "_")) in OF_COMMAND else key, text)


class Run:
    """A run that has been checked, and not been charged yet: see `prepare`."""

    def __init__(self, monitor: Monitor, folder: str, beam: Sequence[str], workers: int | None, dry_run: bool) -> None:
        self.monitor, self.dry_run = monitor, dry_run
        self.budget: Budget | None = None  # once it has been charged
        self.mark: dict[str, Any] = {}  # line and head of the ledger, then
        data, account, unbounded = monitor.data, monitor.account, monitor.data.unbounded
        _check(monitor, dry=dry_run)
        self.options = parse_beam_options(list(beam))
        named, path = self.options.view_as(GoogleCloudOptions), monitor.output.path
        to = "" if path == TERMINAL else f" to {os.path.basename(os.path.normpath(path))}"
        named.job_name = named.job_name or f"{_word(monitor)}{to}"  # by which people know a job on Flink's page
        self.ledger = named_ledger(account.ledger, account.key)
        self.places, self.views = Places(monitor), views_of(monitor)
        # what is promised
        self.plan = Plan.of(monitor)
        tables = tables_of(monitor, self.plan.transforms)
        answers = answer_views(self.views, tables)
        # what is read
        read = reader(data, Readings.of(self.plan.fields), self.options, folder)
        files = () if unbounded else read.files
        size = sum(file.size for file in files)
        local = self.options.view_as(StandardOptions).runner == LOCAL_RUNNER
        workers = workers_for(workers, size if local and not unbounded else None)
        ledger = None if self.ledger is None else self.ledger.path
        self.places.check([file.path for file in files], ledger, dry=dry_run)
        # what is drawn
        for name, question in monitor.questions.items():
            if "shards" in question.info.arguments:  # which change no answer
                self.plan.given[name]["shards"] = shards_for(workers, size)
        self.identity = identify(monitor, self.plan.given, self.plan.fields, files)
        self.noise = noise_source(account.key, self.identity.label(account.run_id))
        self.run_id = account.run_id or public_name(self.noise)
        # where it goes
        if not dry_run:
            if not unbounded:
                check_usable(data, files, read.fields)
            self.places.make()
        self.questions = {paid.name: self._asked(paid) for paid in self.plan.questions}
        kinds = {name: (each.row_type, each.question.info.order) for name, each in self.questions.items()}
        kinds |= {name: (table.written_type, table.order) for name, table in answers.items()}
        sent = partial(destinations, self.places, run_id=self.run_id, dry_run=dry_run)
        self.sent = {name: sent(name, kind, key_of(order)) for name, (kind, order) in kinds.items()}
        if monitor.output.notify and not any(self.sent.values()):
            raise WrongKeyError(("output", "notify"), "must be given with alerts, or a view above or below a number")
        self.promised = self._promised(answers)
        streamed = followed(self.views, tables, answers) if unbounded else ()
        self.pipeline = EventPipeline(self.options, self.places, read, self.questions, workers, streamed, self.sent)

    @classmethod
    @contextmanager
    def prepare(
        cls, monitor: Monitor, *, beam: Sequence[str] = (), workers: int | None = 1, dry_run: bool = False
    ) -> Iterator[Self]:
        """Give a run, checked as far as possible before it is charged; its temporary files are removed in the end.

        Without a number of `workers` the size of the input says how many processes share the work.
        """
        query = monitor.data.query is not None
        with tempfile.TemporaryDirectory(prefix="privstream-") if query else nullcontext("") as folder:
            yield cls(monitor.check(), folder, beam, workers, dry_run)

    def _asked(self, paid: Paid) -> Asked:
        monitor, places, name = self.monitor, self.places, paid.name
        question, fields = monitor.questions[name], self.plan.fields[name]
        with about(monitor, name):
            own = self.noise if monitor.single else self.noise.derive(NOISE, name)
            transform = question.transform({**self.plan.given[name], "noise": own}, unbounded=places.unbounded)
            if transform.guarantee != paid.transform.guarantee:
                raise ValueError("question must promise in a run what it promises in its plan")
            transform = transform.of_checked(fields.reads.schema)
            promised = promise(monitor, question, fields, transform, self.run_id)
            if not monitor.single:
                promised["monitor"] = {"question": name, "guarantee": os.path.basename(places.whole)}
            if places.unbounded:  # the digest has no data in it, only public parameters and places
                views = {view: plain(transform._given[view]) for view in transform.views if view in transform._given}
                drawn = {"digest": self.identity.digest, "key": self.noise.fingerprint}
                promised["release"] = {**drawn, "views": views}
                places.check_same_promise(name, promised)
            row_type = written_type(question.info, transform, fields, places.row_format)
            if monitor.output.wide:
                check_wide(places.rows(name), row_type, unbounded=places.unbounded)
            short = "" if monitor.single else name
            return Asked(name=short, question=question, transform=transform, promised=promised, row_type=row_type)

    def _promised(self, answers: Mapping[str, Table]) -> dict[str, Any]:
        """Return what the guarantee file of all questions says, but for their rows."""
        monitor, places = self.monitor, self.places
        questions = {
            name: {"question": each.info.word, "output": os.path.basename(places.rows(name))}
            for name, each in monitor.questions.items()
        }
        views = {
            name: {
                "output": os.path.basename(places.rows(name)),
                "view": monitor.views[name].given,
                "questions": sorted(table.questions),
                "rows": table.row_type.__name__,
                "order": list(table.order),
                "columns": list(table.columns),
            }
            for name, table in answers.items()
        }
        if places.unbounded:
            places.check_same_views(views)
        return {
            **head_of("privstream run", self.plan.guarantee, self.run_id),
            "parameters": {"run_id": self.run_id, "dataset": monitor.account.dataset},
            "questions": questions,
            **({"views": views} if views else {}),
        }

    def execute(self) -> Counters:
        """Charge, run, publish, and tell; a `CommandError` says why not."""
        tables: Mapping[str, Any] = {}
        try:
            if self.dry_run:
                counted = self.pipeline.run(self._pay)
            elif self.places.unbounded:
                paths = [self.places.rows(name) for name in self.monitor.questions]
                counted = self.pipeline.run(self._begin, paths)
            else:
                counted, tables = self._publish_files()
        except BaseException:  # Ctrl-C, too
            if self.mark and not self.dry_run:
                again = "; the same command over the same input costs nothing more" * bool(self.monitor.account.key)
                say(f"{NOTE}this run is in the ledger, and is charged{again}")
            raise
        self._tell(counted, tables)
        return counted

    def _publish_files(self) -> tuple[Counters, Mapping[str, Any]]:
        """Run over files, and give rows their names once all are complete; return counters, and rows to be shown."""
        answers, places = {}, self.places
        with tempfile.TemporaryDirectory() if places.terminal else self._hidden_folder() as folder:
            hidden = {name: places.hidden(name, folder) for name in self.sent}
            counted = self.pipeline.run(self._pay, [hidden[name] for name in self.questions])
            for name, each in self.questions.items():
                answers[name], counted = each.answer(hidden[name], counted)
            types = {name: each.row_type for name, each in self.questions.items()}
            transforms = {name: each.transform for name, each in self.questions.items()}
            for name, table in answer_views(self.views, tables_of(self.monitor, transforms, answers)).items():
                types[name] = table.written_type
                write_row_file(hidden[name], types[name], table.rows)
            tables = {name: read_table(hidden[name], kind) for name, kind in types.items()}
            for name, table in () if places.terminal else tables.items():
                if self.monitor.output.wide:
                    write_wide(places.rows(name), types[name], table)
                else:
                    move_file(hidden[name], places.rows(name))
            if not places.terminal:
                self._write_guarantees(counted)
        for name, to in self.sent.items():
            send(to, places.rows(name))
        return counted, {} if is_quiet() else tables

    def _begin(self) -> None:
        """Charge the run, and write what an unbounded one promises: it can be resumed from here."""
        self._pay()
        if self.places.unbounded and not self.dry_run:
            self._write_guarantees()

    def _pay(self) -> None:
        """Write the run into the ledger, if there is one."""
        if self.ledger is None:
            self.budget = Budget()
            return
        dataset = self.monitor.account.dataset
        drawn = {"label": self.noise.run_id, "key": self.noise.fingerprint, "digest": self.identity.digest}
        about = {"command": _word(self.monitor), "data": self.identity.data, "output": self.places.folder}
        entry = Entry.of(self.plan.guarantee, name=self.run_id, dataset=dataset, **drawn, **about)
        try:
            if self.places.unbounded and self.ledger.append(entry, dry=True).repeats:
                self.places.check_begun(self.ledger.contents(), entry)
            receipt = self.ledger.append(entry, dry=self.dry_run)
            standing = next(each for each in receipt.contents.standings(dataset) if each.unit == entry.unit)
        except (ValueError, TypeError) as error:
            raise UsageError(str(error)) from error
        limit = None if standing.limit is None else standing.limit.epsilon
        spent = len(standing.costs), standing.epsilon, standing.delta
        equal = (each for each in receipt.contents.entries if each.digest == entry.digest)
        twin = next((each.name for each in equal if each.release != entry.release), "")
        whose = entry.unit, standing.silent, twin
        self.budget = Budget(dataset, *spent, limit, receipt.repeats, self.dry_run, *whose)
        self.mark = {"ledger": {"line": receipt.line, "head": receipt.head}}

    def _tell(self, counted: Counters, tables: Mapping[str, Any]) -> None:
        """Say what was read and published, with the newest rows by question, what that promises and costs."""
        monitor, asked, places = self.monitor, [*self.questions.values()], self.places
        told = summary(
            [each.facts(counted, dry_run=self.dry_run) for each in asked],
            (asked[0].promised if monitor.single else self.promised)["guarantee"],
            budget=self.budget,
            path=None if places.terminal else places.folder,
            dead_letter=monitor.output.dead_letter,
            dry_run=self.dry_run,
            views=[view.name for view in self.views],
        )
        words = str if monitor.single else _in_words_of_file
        say(words("\n".join(told.before)))
        with until_closed() if tables else nullcontext():
            for name, table in tables.items():
                gap()
                sys.stderr.flush()
                self._show_rows(name, table, counted)
                sys.stdout.flush()
            gap()
        say(words("\n".join(told.after)), LABEL)
        for name, each in self.questions.items():
            if places.unbounded and (to := self.sent[name]):
                sent = each.counters(counted).get(SENT, 0)
                say(f"{sent:,} rows sent to {' and '.join(one.name() for one in to)}")
        if told.nothing is not None:
            raise NothingUsableError(words(told.nothing))

    def _show_rows(self, name: str, table: Any, counted: Counters) -> None:
        views = self.promised.get("views", {})
        asked = self.questions[views[name]["questions"][0] if name in views else name]
        info, record = asked.question.info, asked.facts(counted).record
        if info.below is not None:
            rows = [asked.row_type(**row) for row in table.to_pylist()]
            for shown in loaded(info.below)(rows, self.monitor):
                Console().print(shown, soft_wrap=True)
            return
        path = None if self.places.terminal else self.places.rows(name)
        nothing, limit, heading = info.why_nothing or "nothing is published", HEAD, name
        if name in views:
            record = {**record, "parameters": record["parameters"] | view_parameters(views, name)}
            nothing = "no item surely rose" if "against" in views[name]["view"] else "nothing is published"
        elif self.monitor.single:
            limit, heading = MOST_ROWS, ""
        print_rows(table, record, name=heading, path=path, limit=limit, nothing=nothing)

    @contextmanager
    def _hidden_folder(self) -> Iterator[str]:
        """Give a folder for files that are not complete, beside those that are, and remove it in the end."""
        hidden = join(self.places.parent, f".{secrets.token_hex(8)}{PARTIAL}")
        filesystems().mkdirs(hidden)
        try:
            yield hidden
        finally:
            with suppress(Exception):  # what remains there is not complete, and hidden
                filesystems().delete([hidden if has_folders(hidden) else f"{hidden}/"])  # others delete by a prefix

    def _write_guarantees(self, counted: Counters | None = None) -> None:
        """Write what each question promises, and last what is promised of all of them together.

        Files of rows have been counted, and are complete, of input that has ended.
        """
        for name, each in self.questions.items():
            rows: dict[str, Any] = {}
            if counted is not None:
                rows = {"rows": {"sha256": fingerprint(self.places.rows(name))}, **each.limits(counted)}
            write_json(self.places.guarantee(name), {**each.promised, **rows, **self.mark})
            self.promised["questions"][name] |= rows
        if self.monitor.single:
            return
        if counted is not None:
            for name, view in self.promised.get("views", {}).items():
                view["sha256"] = fingerprint(self.places.rows(name))
        write_json(self.places.whole, self.promised | self.mark)


def _check(monitor: Monitor, *, dry: bool) -> None:
    """Refuse what streaming input does not allow, and a monitor without an account, unless that is intended."""
    account = monitor.account
    check_name("dataset", account.dataset)
    if account.ledger is None and account.key is None and not monitor.single:
        rule = "must be given, or a key, whose ledger lies beside it; none keeps no account"
        raise WrongKeyError(("account", "ledger"), rule)
    if not monitor.data.unbounded:
        return
    for question in monitor.questions.values():
        if question.info.bounded:
            raise WrongKeyError(("data", "input"), f"must have an end: {question.info.word} is about one data set")
    if dry:
        raise ValueError("dry_run must not be given when the input has no end")
    if not monitor.account.run_id:
        rule = "must be given when the input has no end: only a name can distinguish such runs"
        raise WrongKeyError(("account", "run_id"), rule)


def _word(monitor: Monitor) -> str:
    return next(iter(monitor.questions.values())).info.word if monitor.single else "run"
