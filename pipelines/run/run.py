"""The only assembly of a run: what is read, drawn, promised, charged, published and told of its questions."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.account import Account, Charge
from privstream.pipelines.accounts.run_identity import RunIdentity, noise_source, public_name
from privstream.pipelines.command import NothingUsableError, UsageError
from privstream.pipelines.model.base import WrongKeyError
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.model.public_lists import Reading
from privstream.pipelines.model.question import loaded
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
from privstream.pipelines.run.identity import identify
from privstream.pipelines.run.places import Places
from privstream.pipelines.run.plan import about, arguments_of, fields_of, shared_out, with_budget
from privstream.pipelines.run.views import View, answer_views, tables_of, views_of
from privstream.pipelines.sinks.row_files import PARTIAL, fingerprint, move_file, read_row_file, write_row_file
from privstream.pipelines.sinks.wide_table import check_wide, write_wide
from privstream.pipelines.sources.fields import FieldMapping, SharedFields
from privstream.pipelines.stores import exists, filesystems, join
from privstream.pipelines.terminal import NOTE, is_quiet, say
from privstream.transforms.counters import Counters
from privstream.transforms.release import plain

NOISE = "question"
"""The noise of a question of a monitor is derived from that of the run by this word and its name."""

WITHOUT_ACCOUNT = "must be given, or key, beside which there is one; or none, to go without an account"
RUN_ID_NEEDED = "must be given when the input has no end: only a name can distinguish such runs"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that has been checked, and not been charged yet.

    Attributes:
        monitor: what is asked.
        execution: how it is done.
        places: where rows and guarantees go.
        pipeline: what reads, answers and writes.
        questions: with their transforms.
        views: what is made of their rows.
        described: what the guarantee file of a monitor says of views, by name.
        sent: where rows of views are sent, by name.
        guarantee: what is promised of all questions together.
        promised: what the guarantee file of a monitor says.
        charge: writes the run into the ledger.
        options: of Beam.
        kept: temporary files.
    """

    monitor: Monitor
    execution: Execution
    places: Places
    pipeline: Any
    questions: tuple[Asked, ...]
    views: tuple[View, ...]
    described: Mapping[str, Mapping[str, Any]]
    sent: Mapping[str, Any]
    guarantee: PrivacyGuarantee
    promised: Mapping[str, Any]
    charge: Any
    options: Any
    kept: ExitStack
    charged: list[Charge] = field(default_factory=list)

    @classmethod
    def prepare(cls, monitor: Monitor, execution: Execution | None = None) -> Self:
        """Check everything that can be checked before anything is charged; use it as a context, for temporary files.

        Raises:
            WrongKeyError, ValueError, TypeError, OSError: naming the key, the file, or of several questions the one.
        """
        with ExitStack() as kept:
            folder = ""
            if monitor.data.query is not None:
                folder = kept.enter_context(tempfile.TemporaryDirectory(prefix="privstream-"))
            return cls._prepared(monitor.check(), execution or Execution(workers=1), folder, kept)
        raise AssertionError  # a `with` may swallow errors as far as mypy knows

    @classmethod
    def _prepared(cls, monitor: Monitor, execution: Execution, folder: str, kept: ExitStack) -> Self:
        unbounded = monitor.data.unbounded
        local = any(each.info.local for each in monitor.questions.values())
        runs = loaded("run.local" if local else "run.on_beam")
        options = runs.options_of(monitor, execution)
        fields = fields_of(monitor)
        read, workers = runs.reader_of(monitor, fields, options, execution, folder)
        given_account = monitor.account
        account = Account.prepare(given_account.ledger, given_account.key, given_account.dataset)
        if account.path is None and monitor.account.ledger is None and not monitor.single:
            raise WrongKeyError(("account", "ledger"), WITHOUT_ACCOUNT)
        views = views_of(monitor)
        files = () if unbounded and not _watches_more(monitor) else read.files
        places = Places.of(monitor, unbounded=unbounded)
        places.check([file.path for file in files], account.path, execution.dry_run)
        given = {name: arguments_of(monitor, name, fields[name]) for name in monitor.questions}
        planned = shared_out(monitor, given, unbounded=unbounded)
        tables = tables_of(monitor, {each.name: each.transform for each in planned.questions}, {})
        answers = answer_views(views, tables)
        size = 0 if unbounded else sum(file.size for file in files)
        for paid in planned.questions:
            question = monitor.questions[paid.name]
            whole = with_budget(question, given[paid.name], paid.epsilon, paid.delta)
            given[paid.name] = shared_evenly(whole, question.info, workers, size)
        identity = identify(monitor, given, fields, files, places.folder, unbounded=unbounded)
        label = run_label(monitor, identity, unbounded=unbounded)
        noise = noise_source(monitor.account.key, monitor.account.key_variable, label)
        run_id = monitor.account.run_id or public_name(noise)
        if (people := monitor.privacy.people) is not None:
            say(f"{NOTE}delta is {monitor.privacy.spent_delta:g}, 1 / (100 x {people:,}), from the number of people")
        if unbounded and execution.dry_run:
            raise ValueError("dry_run must not be given when the input has no end")
        if not execution.dry_run:
            parameters = monitor.data.model_dump(exclude_none=True)
            if not unbounded or _watches_more(monitor):
                check_usable(parameters, files, read.fields)
            places.make()
        asked = [
            _asked(monitor, paid, given[paid.name], fields[paid.name], identity, noise, run_id, places, execution)
            for paid in planned.questions
        ]
        described = described_views(monitor, views, answers, places)
        sent = {
            view.name: _destination(
                monitor, places, view.name, run_id, answers[view.name].written_type, answers[view.name].key, execution
            )
            for view in views
        }
        destinations = [*(each.destination for each in asked), *sent.values()]
        if monitor.output.notify and not monitor.output.send and not any(destinations):
            raise WrongKeyError(
                ("output", "notify"), "must be given with alerts, or with a view above or below a number"
            )
        if unbounded:
            places.check_same_views(described)
        word = next(iter(monitor.questions.values())).info.word if monitor.single else "run"
        streamed = loaded("run.views_stream.followed")(views, tables, answers) if unbounded and views else []
        return cls(
            monitor=monitor,
            execution=execution,
            places=places,
            pipeline=runs.pipeline_of(monitor, read, tuple(asked), workers, streamed, sent, places),
            questions=tuple(asked),
            views=views,
            described=described,
            sent=sent,
            guarantee=planned.guarantee,
            promised={} if monitor.single else _promised(monitor, planned.questions, planned.guarantee, run_id, places),
            charge=partial(
                account.charge,
                identity,
                label,
                word,
                places.folder,
                noise,
                planned.guarantee,
                name=run_id,
                dry=execution.dry_run,
            ),
            options=options,
            kept=kept.pop_all(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kept.close()

    def execute(self) -> Counters:
        """Charge, run, publish, and tell.

        Raises:
            UsageError: the ledger refuses the run.
            RunError: it failed.
            NothingUsableError: nothing that was read could be used.
        """
        if self.execution.dry_run:
            counted: Counters = self.pipeline.try_out(self.options, self._pay)
            self._tell(counted, {})
            return counted
        tables: dict[str, Any] = {}
        with self._hidden_folder() as folder:
            hidden = {name: self.places.hidden(name, folder) for name in self.monitor.questions}
            counted = self.pipeline.run(
                self.options, list(hidden.values()), self._pay, self._write_guarantees, self.places.format
            )
            if not self.places.unbounded:
                for each, path in zip(self.questions, hidden.values(), strict=True):
                    counted = each.explain(path, counted)
                tables = {} if is_quiet() else report.tables_of(self, hidden)
                self._write_views(hidden, folder, counted)
                if not self.places.terminal:
                    for each, name in zip(self.questions, hidden, strict=True):
                        self._complete(each, hidden[name], self.places.rows(name))
                    self._write_guarantees(counted)
        if not self.places.unbounded:
            sent = [(each.destination, each.path) for each in self.questions]
            sent += [(self.sent[view.name], self.places.rows(view.name)) for view in self.views]
            for to, path in sent:
                if to is not None:
                    say(loaded("run.reading.send")(to, path))
        self._tell(counted, tables)
        return counted

    def _complete(self, asked: Asked, hidden: str, path: str) -> None:
        """Give the rows of a question, which are complete, the name by which they are looked for."""
        if self.monitor.output.wide:
            write_wide(path, asked.row_type, read_row_file(hidden, asked.row_type))
        else:
            move_file(hidden, path)

    def _pay(self) -> None:
        """Write the run into the ledger; the last thing before it may start."""
        try:
            charge = self.charge()
        except (ValueError, TypeError) as error:
            raise UsageError(str(error)) from error
        self.charged.append(charge)

    def _tell(self, counted: Counters, tables: Mapping[str, Any]) -> None:
        """Tell what was read, what was published, and what that promises and costs."""
        nothing = report.tell(self, counted, tables)
        if nothing is not None:
            raise NothingUsableError(nothing)

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
            write_guarantee(each.guarantee_path, {**each.promised, **rows[name]}, charge)
        if self.monitor.single:
            return
        questions = {name: each | rows[name] for name, each in self.promised["questions"].items()}
        views = with_digests(self.described, self.places)
        more = {"questions": questions} | ({"views": views} if views else {})
        write_guarantee(self.places.whole, {**self.promised, **more}, charge)


def _asked(
    monitor: Monitor,
    paid: Paid,
    given: Mapping[str, Any],
    fields: FieldMapping,
    identity: RunIdentity,
    noise: KeyedNoise,
    run_id: str,
    places: Places,
    execution: Execution,
) -> Asked:
    """Return a question with its transform, whose noise is its own, and where its rows go."""
    name, question = paid.name, monitor.questions[paid.name]
    info = question.info
    with about(monitor, name):
        own = noise if monitor.single else noise.derive(NOISE, name)
        transform = question.transform({**given, "noise": own}, unbounded=places.unbounded)
        if transform.guarantee != paid.transform.guarantee:
            raise ValueError("question must promise in a run what it promises in its plan")
        parameters = parameters_of(monitor, question, fields)
        promised = promise(question, transform, parameters, run_id, paid.guarantee, monitor.account.dataset)
        if not monitor.single:
            promised["monitor"] = {"question": name, "guarantee": os.path.basename(places.whole)}
        if places.unbounded:
            promised |= release_of_stream(identity, transform)
            loaded("run.reading.check_same_promise")(places.guarantee(name), promised, "output")
        row_type = row_type_of(info, transform, fields, places.format_of(name))
        if monitor.output.wide:
            check_wide(places.rows(name), row_type, unbounded=places.unbounded)
        more = {}
        if info.watched != "input":
            further = loaded("run.queries_file.readers")
            more = further(getattr(question, info.watched), monitor.data, Reading.of(monitor.data))
        return Asked(
            name="" if monitor.single else name,
            question=question,
            path=places.rows(name),
            guarantee_path=places.guarantee(name),
            dry_run=execution.dry_run,
            fields=fields,
            transform=transform,
            promised=promised,
            row_type=row_type,
            more=more,
            destination=_destination(monitor, places, name, run_id, row_type, info.key, execution),
        )


def run_label(monitor: Monitor, identity: RunIdentity, *, unbounded: bool) -> str:
    """Return what noise depends on, beside its key: the run id, if one was given, and what the run draws of what."""
    if unbounded and not monitor.account.run_id:
        raise WrongKeyError(("account", "run_id"), RUN_ID_NEEDED)
    return identity.label(monitor.account.run_id)


def release_of_stream(identity: RunIdentity, transform: Any) -> dict[str, Any]:
    """Return what the guarantee file of a run without an end says so that only the same run goes on in its folder.

    Its digest has no data in it, only public parameters and places.
    """
    given = transform._given
    views = {name: plain(given[name]) for name in transform.views if name in given}
    return {"release": {"digest": identity.digest, "views": views}}


def shared_fields(fields: Mapping[str, FieldMapping]) -> FieldMapping | SharedFields:
    """Return what is read for all questions."""
    distinct = set(fields.values())
    return next(iter(distinct)) if len(distinct) == 1 else SharedFields(tuple(fields.items()))


def described_views(
    monitor: Monitor, views: Sequence[View], answers: Mapping[str, Any], places: Places
) -> dict[str, dict[str, Any]]:
    """Return what the guarantee file of the whole says of views: what they are made of, and what their rows are."""
    return {
        view.name: {
            "output": os.path.basename(places.rows(view.name)),
            "view": monitor.views[view.name].given,
            "questions": sorted(answers[view.name].questions),
            "rows": answers[view.name].row_type.__name__,
            "order": list(answers[view.name].order),
            "columns": list(answers[view.name].columns),
        }
        for view in views
    }


def with_digests(described: Mapping[str, Mapping[str, Any]], places: Places) -> dict[str, dict[str, Any]]:
    """Return what is said of views, with digests of their files where these are complete."""
    if places.unbounded:
        return {name: dict(each) for name, each in described.items()}
    return {name: {**each, "sha256": fingerprint(places.rows(name))} for name, each in described.items()}


def _watches_more(monitor: Monitor) -> bool:
    """Tell whether what comes without an end is something else than events."""
    return any(each.info.watched != "input" for each in monitor.questions.values())


def _destination(
    monitor: Monitor, places: Places, name: str, run_id: str, row_type: type, key: Sequence[str], execution: Execution
) -> Any:
    """Return where rows of a question or a view are sent, which has been checked; None for nowhere."""
    if not monitor.output.send and monitor.output.notify is None:
        return None
    urls = [address if monitor.single else f"{address}/{name}" for address in monitor.output.send]
    folder = places.folder if places.unbounded else places.parent
    try:
        sent = loaded("run.reading.destination")(urls, monitor, run_id, row_type, key, folder, name)
        if sent is not None and not execution.dry_run:  # the check makes a table that is missing
            sent.check(first=not exists(places.guarantee(name) if name in monitor.questions else places.whole))
    except (ValueError, OSError) as error:
        text = str(error).replace("--output", "send", 1)
        raise ValueError(text if monitor.single else f"{text} (for {name})") from None
    return sent


def _promised(
    monitor: Monitor, paid: Sequence[Any], guarantee: PrivacyGuarantee, run_id: str, places: Places
) -> dict[str, Any]:
    """Return what the guarantee file of the whole says."""
    questions = {
        each.name: {
            "question": monitor.questions[each.name].info.word,
            "share": each.share,
            "epsilon": each.epsilon,
            "delta": each.delta,
            "output": os.path.basename(places.rows(each.name)),
        }
        for each in paid
    }
    return {
        **head_of("privstream run", guarantee, run_id),
        "parameters": {"run_id": run_id, "dataset": monitor.account.dataset},
        "questions": questions,
    }
