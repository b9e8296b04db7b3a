"""The only assembly of a run: what is read, drawn, promised, charged, published and told of its questions."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Self

from apache_beam.options.pipeline_options import PipelineOptions
from privstream.pipelines.accounts.entries import Entry
from privstream.pipelines.accounts.ledger import check_name, named_ledger
from privstream.pipelines.accounts.run_identity import identify, noise_source, public_name
from privstream.pipelines.accounts.spending import standing_of
from privstream.pipelines.command import NothingUsableError, UsageError
from privstream.pipelines.model.base import WrongKeyError
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.model.public_lists import Reading
from privstream.pipelines.options import Execution
from privstream.pipelines.run import report
from privstream.pipelines.run.asked import (
    Asked,
    check_usable,
    head_of,
    parameters_of,
    promise,
    row_type_of,
    shared_evenly,
)
from privstream.pipelines.run.local import LocalPipeline, check_local
from privstream.pipelines.run.pipeline import EventPipeline, reader, workers_of
from privstream.pipelines.run.places import Places, destination, send
from privstream.pipelines.run.plan import Paid, Plan, about
from privstream.pipelines.run.views import answer_views, tables_of, views_of
from privstream.pipelines.run.views_stream import followed
from privstream.pipelines.runners.flink import name_job
from privstream.pipelines.runners.launch import parse_beam_options
from privstream.pipelines.show.words import Budget
from privstream.pipelines.sinks.row_files import (
    PARTIAL,
    fingerprint,
    move_file,
    read_row_file,
    write_json,
    write_row_file,
)
from privstream.pipelines.sinks.wide_table import check_wide, write_wide
from privstream.pipelines.sources.fields import FieldMapping, SharedFields
from privstream.pipelines.stores import filesystems, join
from privstream.pipelines.terminal import is_quiet, say
from privstream.transforms.counters import Counters
from privstream.transforms.parameters import plain

NOISE = "question"
"""The noise of a question of a monitor is derived from that of the run by this word and its name."""

WITHOUT_ACCOUNT = "must be given, or key, beside which there is one; or none, to go without an account"
RUN_ID_NEEDED = "must be given when the input has no end: only a name can distinguish such runs"
NEEDS_ALERTS = "must be given with alerts, or with a view above or below a number"


class Run:
    """A run that has been checked, and not been charged yet; use it as a context, for temporary files."""

    def __init__(self, monitor: Monitor, execution: Execution, folder: str) -> None:
        """Check everything that can be checked before anything is charged; `folder` is for temporary files."""
        self.kept, self.monitor, self.dry_run = ExitStack(), monitor, execution.dry_run
        self.budget: Budget | None = None  # once it has been charged
        self.mark: Mapping[str, Any] | None = None  # line and head of the ledger
        data, account = monitor.data, monitor.account
        local = any(each.info.local for each in monitor.questions.values())
        _check_input(monitor, execution)
        self.options = _options(monitor, execution)
        self.places, self.views = Places(monitor), views_of(monitor)
        check_name("dataset", account.dataset)
        self.ledger = named_ledger(account.ledger, account.key)
        if self.ledger is None and account.ledger is None and not monitor.single:
            raise WrongKeyError(("account", "ledger"), WITHOUT_ACCOUNT)
        self.plan = plan = Plan.of(monitor)
        tables = tables_of(monitor, plan.transforms)
        answers = answer_views(self.views, tables)
        read = reader(data, shared_fields(plan.fields), self.options, folder)
        workers = 1 if local else workers_of(execution.workers, self.options, read)
        files = () if data.unbounded else read.files
        self.places.check(
            [file.path for file in files], None if self.ledger is None else self.ledger.path, dry=self.dry_run
        )
        size = sum(file.size for file in files)
        given = {
            paid.name: shared_evenly(plan.arguments(paid), monitor.questions[paid.name].info, workers, size)
            for paid in plan.questions
        }
        more = {name: each.inputs(Reading.of(data)) for name, each in monitor.questions.items()}
        self._draw(given, {name: {"fields": plan.fields[name], **each} for name, each in more.items()}, files)
        if not self.dry_run:
            if not data.unbounded:
                check_usable(data, files, read.fields)
            self.places.make()
        self.questions = tuple(self._asked(paid, given[paid.name], more[paid.name]) for paid in plan.questions)
        self.sent = {
            name: destination(self.places, name, self.run_id, table.written_type, table.key, dry_run=self.dry_run)
            for name, table in answers.items()
        }
        if monitor.output.notify and not any([*(each.destination for each in self.questions), *self.sent.values()]):
            raise WrongKeyError(("output", "notify"), NEEDS_ALERTS)
        self.described = {
            name: {
                "output": os.path.basename(self.places.rows(name)),
                "view": monitor.views[name].given,
                "questions": sorted(table.questions),
                "rows": table.row_type.__name__,
                "order": list(table.order),
                "columns": list(table.columns),
            }
            for name, table in answers.items()
        }
        if data.unbounded:
            self.places.check_same_views(self.described)
        self.pipeline: EventPipeline | LocalPipeline
        if local:
            self.pipeline = LocalPipeline(read, self.questions[0], monitor.output.dead_letter)
        else:
            streamed = followed(self.views, tables, answers) if data.unbounded else ()
            self.pipeline = EventPipeline(self.places, read, self.questions, workers, streamed, self.sent)

    @classmethod
    def prepare(cls, monitor: Monitor, execution: Execution | None = None) -> Self:
        """Check everything that can be checked before anything is charged."""
        with ExitStack() as kept:
            folder = ""
            if monitor.data.query is not None:
                folder = kept.enter_context(tempfile.TemporaryDirectory(prefix="privstream-"))
            run = cls(monitor.check(), execution or Execution(workers=1), folder)
            run.kept = kept.pop_all()
            return run
        raise AssertionError  # a `with` may swallow errors as far as mypy knows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kept.close()

    def _draw(self, given: Mapping[str, Any], records: Mapping[str, Any], files: Any) -> None:
        """Set what is drawn: the identity, the label of the noise, the noise, and the public name."""
        account = self.monitor.account
        if self.monitor.data.unbounded and not account.run_id:
            raise WrongKeyError(("account", "run_id"), RUN_ID_NEEDED)
        self.identity = identify(self.monitor, given, records, files)
        self.label = self.identity.label(account.run_id)
        self.noise = noise_source(account.key, account.key_variable, self.label)
        self.run_id = account.run_id or public_name(self.noise)

    def _asked(self, paid: Paid, given: Mapping[str, Any], more: Mapping[str, Any]) -> Asked:
        """Return a question with its transform, whose noise is its own, and where its rows go."""
        monitor, places, name = self.monitor, self.places, paid.name
        question, fields = monitor.questions[name], self.plan.fields[name]
        with about(monitor, name):
            own = self.noise if monitor.single else self.noise.derive(NOISE, name)
            transform = question.transform({**given, "noise": own}, unbounded=places.unbounded)
            if transform.guarantee != paid.guarantee:
                raise ValueError("question must promise in a run what it promises in its plan")
            parameters = parameters_of(monitor, question, fields)
            promised = promise(question, transform, parameters, self.run_id, paid.guarantee, monitor.account.dataset)
            if not monitor.single:
                promised["monitor"] = {"question": name, "guarantee": os.path.basename(places.whole)}
            if places.unbounded:  # the digest has no data in it, only public parameters and places
                views = {view: plain(transform._given[view]) for view in transform.views if view in transform._given}
                promised["release"] = {"digest": self.identity.digest, "views": views}
                places.check_same_promise(name, promised)
            row_type = row_type_of(question.info, transform, fields, places.row_format)
            if monitor.output.wide:
                check_wide(places.rows(name), row_type, unbounded=places.unbounded)
            to = destination(places, name, self.run_id, row_type, question.info.key, dry_run=self.dry_run)
            return Asked(
                name="" if monitor.single else name,
                question=question,
                path=places.rows(name),
                transform=transform,
                promised=promised,
                row_type=row_type,
                more=more,
                destination=to,
            )

    @property
    def promised(self) -> dict[str, Any]:
        """What the guarantee file of all questions says, but for their rows."""
        questions = {
            each.name: {
                "question": self.monitor.questions[each.name].info.word,
                "share": each.share,
                "epsilon": each.epsilon,
                "delta": each.delta,
                "output": os.path.basename(self.places.rows(each.name)),
            }
            for each in self.plan.questions
        }
        return {
            **head_of("privstream run", self.plan.guarantee, self.run_id),
            "parameters": {"run_id": self.run_id, "dataset": self.monitor.account.dataset},
            "questions": questions,
        }

    def execute(self) -> Counters:
        """Charge, run, publish, and tell; a `CommandError` says why not."""
        tables: dict[str, Any] = {}
        if self.dry_run:
            counted = self.pipeline.run(self.options, self._pay)
        elif self.places.unbounded:
            paths = [self.places.rows(name) for name in self.monitor.questions]
            counted = self.pipeline.run(self.options, self._pay, paths, self._write_guarantees)
        else:
            with self._hidden_folder() as folder:
                hidden = {name: self.places.hidden(name, folder) for name in self.monitor.questions}
                counted = self.pipeline.run(self.options, self._pay, list(hidden.values()))
                answers = {}
                for each, (name, path) in zip(self.questions, hidden.items(), strict=True):
                    answer, counted = each.show(path, counted)
                    if self.views:
                        answers[name] = answer or each.answer(path)
                tables = {} if is_quiet() else report.tables_of(self, hidden)
                self._write_views(answers, folder)
                if not self.places.terminal:
                    self._complete(hidden, counted)
            for each in self.questions:
                send(each.destination, each.path)
            for name, to in self.sent.items():
                send(to, self.places.rows(name))
        nothing = report.tell(self, counted, tables)
        if nothing is not None:
            raise NothingUsableError(nothing)
        return counted

    def _complete(self, hidden: Mapping[str, str], counted: Counters) -> None:
        """Give rows, which are complete, the names by which they are looked for, and write what they promise."""
        for each, path in zip(self.questions, hidden.values(), strict=True):
            if self.monitor.output.wide:
                write_wide(each.path, each.row_type, read_row_file(path, each.row_type))
            else:
                move_file(path, each.path)
        self._write_guarantees(counted)

    def _pay(self) -> None:
        """Write the run into the ledger, if there is one; the last thing before it may start."""
        if self.ledger is None:
            self.budget = Budget()
            return
        guarantee, dataset = self.plan.guarantee, self.monitor.account.dataset
        entry = Entry.of(
            guarantee,
            label=self.label,
            digest=self.identity.digest,
            name=self.run_id,
            dataset=dataset,
            command=next(iter(self.monitor.questions.values())).info.word if self.monitor.single else "run",
            data=self.identity.data,
            key=self.noise.fingerprint,
            output=self.places.folder,
        )
        try:
            if self.places.unbounded and self.ledger.append(entry, dry=True).repeats:
                self.places.check_begun(self.ledger.contents(), entry)
            receipt = self.ledger.append(entry, dry=self.dry_run)
            standing = standing_of(receipt.contents, dataset, entry)
        except (ValueError, TypeError) as error:
            raise UsageError(str(error)) from error
        assert standing is not None  # of the unit of this run
        limit = None if standing.limit is None else standing.limit.epsilon
        self.budget = Budget(dataset, len(standing.costs), standing.epsilon, standing.delta, limit, receipt.repeats)
        self.mark = {"line": receipt.line, "head": receipt.head}

    @contextmanager
    def _hidden_folder(self) -> Iterator[str]:
        """Give a folder for files that are not complete, beside those that are, and remove it in the end."""
        if self.places.terminal:
            with tempfile.TemporaryDirectory(prefix="privstream-") as folder:
                yield folder
            return
        hidden = join(self.places.parent, f".{secrets.token_hex(8)}{PARTIAL}")
        filesystems().mkdirs(hidden)
        try:
            yield hidden
        finally:
            with suppress(Exception):  # what remains there is not complete, and hidden
                filesystems().delete([f"{hidden}/"])  # stores without folders delete all below a name that ends so

    def _write_views(self, answers: Mapping[str, Any], folder: str) -> None:
        """Write the views of rows: first all of them into a folder, and then into the output."""
        if not self.views:
            return
        transforms = {name: each.transform for name, each in zip(self.monitor.questions, self.questions, strict=True)}
        tables = tables_of(self.monitor, transforms, answers)
        found = answer_views(self.views, tables)
        for name, table in found.items():
            write_row_file(self.places.hidden(name, folder), table.written_type, table.rows)
        for view in self.views:
            if said := view.note(tables | found):
                say(f"{view.name}: {said}")
        for name in found:
            move_file(self.places.hidden(name, folder), self.places.rows(name))

    def _write_guarantees(self, counted: Counters | None = None) -> None:
        """Write what each question promises, and last what is promised of all of them together."""
        mark, rows = {} if self.mark is None else {"ledger": self.mark}, dict[str, dict[str, Any]]()
        for name, each in zip(self.monitor.questions, self.questions, strict=True):
            rows[name] = {}
            if counted is not None:
                rows[name] = {"rows": {"sha256": fingerprint(each.path)}, **each.limits(counted)}
            write_json(self.places.guarantee(name), {**each.promised, **rows[name], **mark})
        if self.monitor.single:
            return
        promised, views = self.promised, {name: dict(each) for name, each in self.described.items()}
        promised["questions"] = {name: each | rows[name] for name, each in promised["questions"].items()}
        if counted is not None:  # all files are complete
            views = {name: {**each, "sha256": fingerprint(self.places.rows(name))} for name, each in views.items()}
        write_json(self.places.whole, promised | ({"views": views} if views else {}) | mark)


def _check_input(monitor: Monitor, execution: Execution) -> None:
    """Refuse input that questions cannot be about, or that cannot be read so."""
    for question in monitor.questions.values():
        if question.info.local:
            check_local(monitor, execution)
        elif monitor.data.unbounded and not question.info.has_windows:
            raise WrongKeyError(("data", "input"), f"must have an end: {question.info.word} is about one data set")
    if monitor.data.unbounded and execution.dry_run:
        raise ValueError("dry_run must not be given when the input has no end")


def _options(monitor: Monitor, execution: Execution) -> PipelineOptions:
    options = parse_beam_options(list(execution.beam))
    word = next(iter(monitor.questions.values())).info.word if monitor.single else "run"
    to = "" if monitor.output.path == "-" else f" to {os.path.basename(os.path.normpath(monitor.output.path))}"
    name_job(options, f"{word}{to}")
    return options


def shared_fields(fields: Mapping[str, FieldMapping]) -> FieldMapping | SharedFields:
    """Return what is read for all questions."""
    distinct = set(fields.values())
    return next(iter(distinct)) if len(distinct) == 1 else SharedFields(tuple(fields.items()))
