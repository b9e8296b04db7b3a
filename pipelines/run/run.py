"""The only assembly of a run: what is read, drawn, promised, charged, published and told of its questions."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from types import TracebackType
from typing import Any, NamedTuple, Self

from apache_beam.options.pipeline_options import PipelineOptions
from privstream.mechanisms import KeyedNoise
from privstream.pipelines.accounts.account import Account, Charge
from privstream.pipelines.accounts.entries import Entry
from privstream.pipelines.accounts.run_identity import RunIdentity, identify, noise_source, public_name
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
    write_guarantee,
)
from privstream.pipelines.run.calibration import Paid
from privstream.pipelines.run.local import LocalPipeline, check_local
from privstream.pipelines.run.pipeline import EventPipeline, reader, workers_of
from privstream.pipelines.run.places import Places
from privstream.pipelines.run.plan import Plan, about
from privstream.pipelines.run.sending import destination, send
from privstream.pipelines.run.views import Table, View, answer_views, tables_of, views_of
from privstream.pipelines.run.views_stream import followed
from privstream.pipelines.runners.flink import name_job
from privstream.pipelines.runners.launch import parse_beam_options
from privstream.pipelines.show.words import Budget
from privstream.pipelines.sinks.row_files import PARTIAL, fingerprint, move_file, read_row_file, write_row_file
from privstream.pipelines.sinks.wide_table import check_wide, write_wide
from privstream.pipelines.sources.fields import FieldMapping, SharedFields
from privstream.pipelines.stores import filesystems, join
from privstream.pipelines.terminal import is_quiet, say
from privstream.transforms.counters import Counters
from privstream.transforms.release import plain

NOISE = "question"
"""The noise of a question of a monitor is derived from that of the run by this word and its name."""

WITHOUT_ACCOUNT = "must be given, or key, beside which there is one; or none, to go without an account"
RUN_ID_NEEDED = "must be given when the input has no end: only a name can distinguish such runs"
NEEDS_ALERTS = "must be given with alerts, or with a view above or below a number"


class Drawn(NamedTuple):
    """What a run draws: its identity, the label of its noise, the noise, and its public name."""

    identity: RunIdentity
    label: str
    noise: KeyedNoise
    run_id: str

    @classmethod
    def of(cls, monitor: Monitor, identity: RunIdentity) -> Self:
        """Return what a run with this identity draws."""
        account = monitor.account
        if monitor.data.unbounded and not account.run_id:
            raise WrongKeyError(("account", "run_id"), RUN_ID_NEEDED)
        label = identity.label(account.run_id)
        noise = noise_source(account.key, account.key_variable, label)
        return cls(identity, label, noise, account.run_id or public_name(noise))


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that has been checked, and not been charged yet.

    Attributes:
        described: what the guarantee file of a monitor says of views, by name.
        sent: where rows of views are sent, by name.
        kept: temporary files.
    """

    monitor: Monitor
    execution: Execution
    places: Places
    plan: Plan
    drawn: Drawn
    account: Account
    pipeline: EventPipeline | LocalPipeline
    questions: tuple[Asked, ...]
    views: tuple[View, ...]
    described: Mapping[str, Mapping[str, Any]]
    sent: Mapping[str, Any]
    options: PipelineOptions
    kept: ExitStack
    charged: list[Charge] = field(default_factory=list)

    @classmethod
    def prepare(cls, monitor: Monitor, execution: Execution | None = None) -> Self:
        """Check everything that can be checked before anything is charged; use it as a context, for temporary files."""
        with ExitStack() as kept:
            folder = ""
            if monitor.data.query is not None:
                folder = kept.enter_context(tempfile.TemporaryDirectory(prefix="privstream-"))
            return cls._prepared(monitor.check(), execution or Execution(workers=1), folder, kept)
        raise AssertionError  # a `with` may swallow errors as far as mypy knows

    @classmethod
    def _prepared(cls, monitor: Monitor, execution: Execution, folder: str, kept: ExitStack) -> Self:
        data, local = monitor.data, any(each.info.local for each in monitor.questions.values())
        _check_input(monitor, execution)
        options = _options(monitor, execution)
        places, views = Places(monitor), views_of(monitor)
        account = Account.prepare(monitor.account.ledger, monitor.account.key, monitor.account.dataset)
        if account.path is None and monitor.account.ledger is None and not monitor.single:
            raise WrongKeyError(("account", "ledger"), WITHOUT_ACCOUNT)
        plan = Plan.of(monitor)
        tables = tables_of(monitor, plan.transforms, {})
        answers = answer_views(views, tables)
        read = reader(data, shared_fields(plan.fields), options, folder)
        workers = 1 if local else workers_of(execution.workers, options, read)
        files = () if data.unbounded else read.files
        places.check([file.path for file in files], account.path, dry=execution.dry_run)
        given = {paid.name: plan.arguments(paid) for paid in plan.questions}
        size = sum(file.size for file in files)
        given = {name: shared_evenly(each, monitor.questions[name].info, workers, size) for name, each in given.items()}
        more = {name: each.inputs(Reading.of(data)) for name, each in monitor.questions.items()}
        records = {name: {"fields": plan.fields[name], **each} for name, each in more.items()}
        drawn = Drawn.of(monitor, identify(monitor, given, records, files))
        if not execution.dry_run:
            if not data.unbounded:
                check_usable(data, files, read.fields)
            places.make()
        dry = execution.dry_run
        asked = tuple(
            _asked(plan, paid, given[paid.name], more[paid.name], drawn, places, dry) for paid in plan.questions
        )
        sent = {
            name: destination(places, name, drawn.run_id, table.written_type, table.key, dry_run=dry)
            for name, table in answers.items()
        }
        if monitor.output.notify and not any([*(each.destination for each in asked), *sent.values()]):
            raise WrongKeyError(("output", "notify"), NEEDS_ALERTS)
        described = _described(monitor, answers, places)
        if data.unbounded:
            places.check_same_views(described)
        pipeline: EventPipeline | LocalPipeline
        if local:
            pipeline = LocalPipeline(read, asked[0], monitor.output.dead_letter)
        else:
            streamed = followed(views, tables, answers) if data.unbounded else ()
            pipeline = EventPipeline(
                places=places, read=read, questions=asked, workers=workers, views=streamed, sent=sent
            )
        return cls(
            monitor=monitor,
            execution=execution,
            places=places,
            plan=plan,
            drawn=drawn,
            account=account,
            pipeline=pipeline,
            questions=asked,
            views=views,
            described=described,
            sent=sent,
            options=options,
            kept=kept.pop_all(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kept.close()

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
            **head_of("privstream run", self.plan.guarantee, self.drawn.run_id),
            "parameters": {"run_id": self.drawn.run_id, "dataset": self.account.dataset},
            "questions": questions,
        }

    def execute(self) -> Counters:
        """Charge, run, publish, and tell.

        Raises:
            UsageError: the ledger refuses the run.
            RunError: it failed.
            NothingUsableError: nothing that was read could be used.
        """
        if self.execution.dry_run:
            counted = self.pipeline.try_out(self.options, self._pay)
            return self._tell(counted, {})
        tables: dict[str, Any] = {}
        with self._hidden_folder() as folder:
            hidden = {name: self.places.hidden(name, folder) for name in self.monitor.questions}
            paths = list(hidden.values())
            counted = self.pipeline.run(self.options, paths, self._pay, self._write_guarantees)
            if not self.places.unbounded:
                for each, path in zip(self.questions, paths, strict=True):
                    counted = each.explain(path, counted)
                tables = {} if is_quiet() else report.tables_of(self, hidden)
                self._write_views(hidden, folder, counted)
                if not self.places.terminal:
                    for each, path in zip(self.questions, paths, strict=True):
                        self._complete(each, path)
                    self._write_guarantees(counted)
        if not self.places.unbounded:
            for each in self.questions:
                send(each.destination, each.path)
            for name, to in self.sent.items():
                send(to, self.places.rows(name))
        return self._tell(counted, tables)

    def _complete(self, asked: Asked, hidden: str) -> None:
        """Give the rows of a question, which are complete, the name by which they are looked for."""
        if self.monitor.output.wide:
            write_wide(asked.path, asked.row_type, read_row_file(hidden, asked.row_type))
        else:
            move_file(hidden, asked.path)

    def _pay(self) -> None:
        """Write the run into the ledger, if there is one; the last thing before it may start."""
        if self.account.path is None:
            self.charged.append(Charge(Budget(), None))
            return
        identity, label, noise, run_id = self.drawn
        entry = Entry.of(
            self.plan.guarantee,
            label=label,
            digest=identity.digest,
            name=run_id,
            dataset=self.account.dataset,
            command=next(iter(self.monitor.questions.values())).info.word if self.monitor.single else "run",
            version=version("privstream"),
            data=identity.data,
            key=noise.fingerprint,
            output=self.places.folder,
        )
        try:
            self.charged.append(self.account.charge(entry, dry=self.execution.dry_run))
        except (ValueError, TypeError) as error:
            raise UsageError(str(error)) from error

    def _tell(self, counted: Counters, tables: Mapping[str, Any]) -> Counters:
        """Tell what was read, what was published, and what that promises and costs."""
        nothing = report.tell(self, counted, tables)
        if nothing is not None:
            raise NothingUsableError(nothing)
        return counted

    @contextmanager
    def _hidden_folder(self) -> Iterator[str]:
        """Give a folder for files that are not complete, beside those that are, and remove it in the end."""
        if self.places.unbounded:
            yield self.places.folder
            return
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
                filesystems().delete([hidden])

    def _write_views(self, files: Mapping[str, str], folder: str, counted: Counters) -> None:
        """Write the views of rows that are in files: first all of them into a folder, and then into the output."""
        if not self.views:
            return
        by_name = dict(zip(self.monitor.questions, self.questions, strict=True))
        rows = {name: read_row_file(files[name], each.row_type) for name, each in by_name.items()}
        limits = {name: each.limits(counted).get("limits") for name, each in by_name.items()}
        dropped = {name: found["dropped"] for name, found in limits.items() if found is not None}
        transforms = {name: each.transform for name, each in by_name.items()}
        tables = tables_of(self.monitor, transforms, rows, dropped=dropped)
        found = answer_views(self.views, tables)
        for name, table in found.items():
            write_row_file(self.places.hidden(name, folder), table.written_type, table.rows)
        for view in self.views:
            said = view.nothing if not found[view.name].rows else view.note(tables | found)
            if said:
                say(f"{view.name}: {said}")
        for name in found:
            move_file(self.places.hidden(name, folder), self.places.rows(name))

    def _write_guarantees(self, counted: Counters | None = None) -> None:
        """Write what each question promises, and last what is promised of all of them together."""
        charge = self.charged[-1] if self.charged else Charge(None, None)
        rows: dict[str, dict[str, Any]] = {}
        for name, each in zip(self.monitor.questions, self.questions, strict=True):
            rows[name] = {}
            if counted is not None:
                rows[name] = {"rows": {"sha256": fingerprint(each.path)}, **each.limits(counted)}
            write_guarantee(self.places.guarantee(name), {**each.promised, **rows[name]}, charge)
        if self.monitor.single:
            return
        promised, views = self.promised, {name: dict(each) for name, each in self.described.items()}
        promised["questions"] = {name: each | rows[name] for name, each in promised["questions"].items()}
        if counted is not None:  # all files are complete
            views = {name: {**each, "sha256": fingerprint(self.places.rows(name))} for name, each in views.items()}
        write_guarantee(self.places.whole, promised | ({"views": views} if views else {}), charge)


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
    """Return Beam's options."""
    options = parse_beam_options(list(execution.beam))
    word = next(iter(monitor.questions.values())).info.word if monitor.single else "run"
    to = "" if monitor.output.path == "-" else f" to {os.path.basename(os.path.normpath(monitor.output.path))}"
    name_job(options, f"{word}{to}")
    return options


def _asked(
    plan: Plan,
    paid: Paid,
    given: Mapping[str, Any],
    more: Mapping[str, Any],
    drawn: Drawn,
    places: Places,
    dry_run: bool,
) -> Asked:
    """Return a question with its transform, whose noise is its own, and where its rows go."""
    monitor, name, fields = plan.monitor, paid.name, plan.fields[paid.name]
    question = monitor.questions[name]
    with about(monitor, name):
        own = drawn.noise if monitor.single else drawn.noise.derive(NOISE, name)
        transform = question.transform({**given, "noise": own}, unbounded=places.unbounded)
        if transform.guarantee != paid.guarantee:
            raise ValueError("question must promise in a run what it promises in its plan")
        parameters = parameters_of(monitor, question, fields)
        promised = promise(question, transform, parameters, drawn.run_id, paid.guarantee, monitor.account.dataset)
        if not monitor.single:
            promised["monitor"] = {"question": name, "guarantee": os.path.basename(places.whole)}
        if places.unbounded:  # the digest has no data in it, only public parameters and places
            views = {view: plain(transform._given[view]) for view in transform.views if view in transform._given}
            promised["release"] = {"digest": drawn.identity.digest, "views": views}
            places.check_same_promise(name, promised)
        row_type = row_type_of(question.info, transform, fields, places.row_format)
        if monitor.output.wide:
            check_wide(places.rows(name), row_type, unbounded=places.unbounded)
        return Asked(
            name="" if monitor.single else name,
            question=question,
            path=places.rows(name),
            transform=transform,
            promised=promised,
            row_type=row_type,
            more=more,
            destination=destination(places, name, drawn.run_id, row_type, question.info.key, dry_run=dry_run),
        )


def shared_fields(fields: Mapping[str, FieldMapping]) -> FieldMapping | SharedFields:
    """Return what is read for all questions."""
    distinct = set(fields.values())
    return next(iter(distinct)) if len(distinct) == 1 else SharedFields(tuple(fields.items()))


def _described(monitor: Monitor, answers: Mapping[str, Table], places: Places) -> dict[str, dict[str, Any]]:
    """Return what the guarantee file of the whole says of views: what they are made of, and what their rows are."""
    return {
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
