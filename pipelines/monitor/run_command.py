"""`privstream run FILE.yaml`: all questions of a monitor, by one pipeline that reads once, under one guarantee."""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.guarantee_records import guarantee_record
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.account import Account, Charge
from privstream.pipelines.accounts.limit_options import DEFAULT_DATASET
from privstream.pipelines.accounts.run_identity import (
    RunIdentity,
    identify,
    noise_source,
    public_name,
    reading,
)
from privstream.pipelines.command import Command, NothingUsableError, UsageError
from privstream.pipelines.console import clock
from privstream.pipelines.locations import GUARANTEE
from privstream.pipelines.monitor.calibration import Calibrated, Paid
from privstream.pipelines.monitor.monitor_file import FIELDS, VIEWS, MonitorFile, Output, Question, read_monitor
from privstream.pipelines.monitor.plan_command import shared_out
from privstream.pipelines.monitor.views import Table, View, answer_views, tables_of
from privstream.pipelines.monitor.views_file import read_views
from privstream.pipelines.monitor.views_stream import Followed, FollowView, followed
from privstream.pipelines.promise import Promise
from privstream.pipelines.questions.arguments import given_to, input_fields, settled, transform_of
from privstream.pipelines.questions.asked import (
    Asked,
    check_apart,
    check_usable,
    guarantee_path,
    promise,
    row_type_of,
    shared_evenly,
    write_guarantee,
)
from privstream.pipelines.questions.input_end import is_unbounded
from privstream.pipelines.questions.input_output import (
    INPUT,
    check_same_promise,
    check_workers,
    destination,
    reader,
    send,
)
from privstream.pipelines.questions.options import WORKERS, add_key, add_option
from privstream.pipelines.questions.run import PublishedView, Run, workers_of
from privstream.pipelines.questions.run_command import release_of_stream, run_label
from privstream.pipelines.questions.spec import loaded
from privstream.pipelines.runners import launch
from privstream.pipelines.runners.flink import name_job
from privstream.pipelines.show.words import LABEL, summary
from privstream.pipelines.sinks.destination import Destination
from privstream.pipelines.sinks.row_files import (
    PARTIAL,
    check_destination,
    check_new,
    fingerprint,
    move_file,
    read_row_file,
    write_row_file,
)
from privstream.pipelines.sinks.terminal_table import print_rows, read_table, until_closed
from privstream.pipelines.sinks.window_files import WriteWindowFiles, check_folder
from privstream.pipelines.sources.fields import FieldMapping, SharedFields
from privstream.pipelines.terminal import gap, is_quiet, say
from privstream.transforms.counters import Counters

COMMAND_NAME = "run"
NOISE = "question"
"""The noise of a question is derived from that of the run by this word and its name."""

WITHOUT_ACCOUNT = (
    "ledger must be given, or noise_key_file, beside which there is one; or none, to go without an account"
)
HEAD = 5
"""Rows of each question that a run prints."""

GIVEN = ("noise_key_file", "noise_key_variable", "run_id", "ledger", "dataset")
"""Options that hold for a run as a whole."""

OPTION = re.compile(r"--([a-z][a-z-]*)")
OF_COMMAND = (*GIVEN, "key", "overwrite", "dead_letter", "dry_run", "workers")
"""Options of this command; what is said of a question names others, which are keys of the file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "file", metavar="FILE.yaml", help="the monitor: data, total budget, questions with their shares, output"
    )
    add_key(parser)
    parser.set_defaults(dataset=None)
    files = parser.add_argument_group("output")
    files.add_argument("--overwrite", action="store_true", help="replace files of rows and guarantees that exist")
    text = "read all input and say how much of it can be used; nothing is published, recorded or spent"
    letters = "file for records that cannot be used, in place of that of the monitor; guard it like the input"
    files.add_argument("--dead_letter", metavar="PATH", help=letters)
    files.add_argument(
        "--dry_run", action="store_true", help=f"{text}. The numbers are exact: guard them like the input"
    )
    add_option(files, WORKERS)


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Check everything that can be checked, run the pipeline, and write rows and what is promised of all."""
    options = launch.parse_beam_options(others)
    name_job(options, f"{COMMAND_NAME} {os.path.basename(arguments.file)}")
    with tempfile.TemporaryDirectory(prefix="privstream-") as folder:
        try:
            with clock("sharing out the budget, checking input"):
                monitor = read_monitor(arguments.file, folder)
                check_workers(monitor.questions[0].options, options)
                made = MonitorRun.of(monitor, arguments, options, folder)
        except (ValueError, TypeError, OSError, OverflowError) as error:
            raise UsageError(str(error)) from error
        if made.run.arguments.dry_run:
            return made.report(*made.try_out(options))
        made.report(*made.publish(options))


@dataclass(frozen=True, kw_only=True)
class MonitorRun:
    """A run of a monitor, whose file and options have been checked.

    Attributes:
        run: its questions, and what reads for all of them.
        output: where answers go.
        monitor: the file.
        views: what is made of the rows of its questions.
        described: what the guarantee file of the whole says of them, by name.
        sent: where their rows are sent, by name; None for nowhere.
        guarantee: what is promised of all together.
        promised: what the guarantee file of the whole says.
    """

    run: Run
    output: Output
    monitor: MonitorFile
    views: tuple[View, ...]
    described: Mapping[str, Mapping[str, Any]]
    sent: Mapping[str, Destination | None]
    guarantee: PrivacyGuarantee
    promised: Mapping[str, Any]

    @classmethod
    def of(
        cls, monitor: MonitorFile, arguments: argparse.Namespace, options: PipelineOptions, folder: str
    ) -> MonitorRun:
        """Check a monitor and the options of its run, with a folder for temporary files.

        Raises:
            UsageError, ValueError, TypeError, OSError: naming the key with its line, the option or the file.
        """
        output = monitor.output
        if output is None:
            raise monitor.document.error((), "output must be given, with a folder")
        views = read_views(monitor)
        common = _options_of_run(monitor, arguments)
        unbounded = is_unbounded(monitor.questions[0].options)
        if views and FileSystems.get_scheme(output.folder) is not None:
            raise monitor.document.error((VIEWS,), "must not be given without an output on this machine")
        given = {each.name: _options(each, common, output, unbounded=unbounded) for each in monitor.questions}
        fields = {each.name: input_fields(each.spec, given[each.name]) for each in monitor.questions}
        read = _reader(monitor, given, fields, folder)
        workers = workers_of(common, options, read)
        account = Account.prepare(common.ledger, common.noise_key_file, common.dataset)
        if account.path is None and common.ledger is None:
            raise ValueError(WITHOUT_ACCOUNT)
        _check_places(monitor, given, views, common, output, [file.path for file in read.files], account.path)
        planned = shared_out(monitor)
        tables = tables_of(monitor, {each.name: each.transform for each in planned.questions}, {})
        answers = answer_views(views, tables)
        streamed = followed(views, tables, answers) if unbounded else []
        for paid in planned.questions:  # what could be refused without knowing them has been
            vars(given[paid.name]).update(epsilon=paid.epsilon)
            if "delta" in given[paid.name]:
                given[paid.name].delta = paid.delta
        parted = () if unbounded else read.files
        made = {
            each.name: shared_evenly(
                each.spec, _given_to(monitor, each, given[each.name], fields[each.name]), workers, parted
            )
            for each in monitor.questions
        }
        identity = identity_of(monitor, given, made, fields, read.files, output.folder, unbounded=unbounded)
        label = run_label(common, identity, unbounded=unbounded)
        noise = noise_source(common.noise_key_file, common.noise_key_variable, label)
        common.run_id = common.run_id or public_name(noise)
        if unbounded and common.dry_run:
            raise ValueError("dry_run must not be given when the input has no end")
        if not unbounded:
            check_usable(
                argparse.Namespace(**{**vars(given[monitor.questions[0].name]), **vars(common)}),
                read.files,
                read.fields,
            )
        if not common.dry_run:
            _make_folders(output, given, views, unbounded=unbounded)
        asked = tuple(
            _asked(each, paid, given[each.name], made[each.name], fields[each.name], identity, noise, common, output)
            for each, paid in zip(monitor.questions, planned.questions, strict=True)
        )
        described = described_views(monitor, views, answers, output, unbounded=unbounded)
        sent = destinations_of_views(views, answers, common, next(iter(given.values())), output)
        if unbounded:
            _check_same_views(monitor, described, output)
        return cls(
            run=Run(
                arguments=common,
                unbounded=unbounded,
                read=read,
                fields=read.fields,
                questions=asked,
                charge=partial(
                    account.charge,
                    identity,
                    label,
                    COMMAND_NAME,
                    output.folder,
                    noise,
                    planned.guarantee,
                    name=common.run_id,
                    dry=common.dry_run,
                ),
                letters=Run.letters_to(common.dead_letter, unbounded=unbounded),
                workers=workers,
                views=tuple(_published(each, asked, sent[each.name], output) for each in streamed),
            ),
            output=output,
            monitor=monitor,
            views=views,
            described=described,
            sent=sent,
            guarantee=planned.guarantee,
            promised=_promised(monitor, planned, common, asked),
        )

    def try_out(self, options: PipelineOptions) -> tuple[Counters, Charge]:
        """Run the pipeline for its counters alone, and say what it would cost."""
        with _errors_with_keys(self.monitor):
            return self.run.try_out(options)

    def publish(self, options: PipelineOptions) -> tuple[Counters, Charge]:
        """Run the pipeline, and write rows and guarantees: no file of rows is there before all are complete."""
        asked, unbounded = self.run.questions, self.run.unbounded
        with _hidden_folder(self.output.folder, wanted=not unbounded) as folder:
            files = {each.name: os.path.basename(each.arguments.output) for each in asked}
            hidden = {name: str(FileSystems.join(folder, file)) for name, file in files.items()}
            with _errors_with_keys(self.monitor):
                writes = [self.run.write_to(each, hidden[each.name], unbounded=unbounded) for each in asked]
                counted, charge = self.run.publish(options, writes, self._write_guarantees)
            if not unbounded:
                for each in asked:
                    counted = each.explain(hidden[each.name], counted)
                self._write_views(hidden, folder, counted)
                for each in asked:
                    move_file(hidden[each.name], each.arguments.output)
                self._write_guarantees(charge, counted)
        sent = [(each.destination, each.arguments.output) for each in asked]
        sent += [(self.sent[view.name], view_path(self.output, view.name, unbounded=False)) for view in self.views]
        for to, path in sent if not unbounded else ():
            if to is not None:
                say(send(to, path))
        return counted, charge

    def _write_views(self, files: Mapping[str, str], folder: str, counted: Counters) -> None:
        """Write the views of rows that are in files: first all of them into a folder, and then into the output."""
        if not self.views:
            return
        transforms = {each.name: each.transform for each in self.run.questions}
        rows = {each.name: read_row_file(files[each.name], each.row_type) for each in self.run.questions}
        limits = {each.name: each.limits(counted).get("limits") for each in self.run.questions}
        dropped = {name: found["dropped"] for name, found in limits.items() if found is not None}
        tables = tables_of(self.monitor, transforms, rows, dropped=dropped)
        found = answer_views(self.views, tables)
        hidden = replace(self.output, folder=folder)
        for name, table in found.items():
            write_row_file(view_path(hidden, name, unbounded=False), table.written_type, table.rows)
        for view in self.views:
            said = view.nothing if not found[view.name].rows else view.note(tables | found)
            if said:
                say(f"{view.name}: {said}")
        for name in found:
            move_file(view_path(hidden, name, unbounded=False), view_path(self.output, name, unbounded=False))

    def _write_guarantees(self, charge: Any, counted: Counters | None = None) -> None:
        """Write what each question promises, and last what is promised of all of them together."""
        rows: dict[str, dict[str, Any]] = {}
        for each in self.run.questions:
            more: dict[str, Any] = {}
            if counted is not None:
                more = {"rows": {"sha256": fingerprint(each.arguments.output)}, **each.limits(counted)}
            write_guarantee(guarantee_path(each.arguments), {**each.promised, **more}, charge)
            rows[each.name] = more
        questions = {name: each | rows[name] for name, each in self.promised["questions"].items()}
        views = with_digests(self.described, self.output.folder, unbounded=self.run.unbounded)
        more = {"questions": questions} | ({"views": views} if views else {})
        write_guarantee(whole_path(self.output.folder), {**self.promised, **more}, charge)

    def report(self, counted: Counters, charge: Charge) -> None:
        """Tell what was read and published, what is promised of all questions together, and their newest rows.

        Raises:
            NothingUsableError: a question could use nothing that was read.
        """
        arguments = self.run.arguments
        told = summary(
            [each.facts(counted) for each in self.run.questions],
            self.promised["guarantee"],
            budget=charge.budget,
            path=self.output.folder,
            dead_letter=arguments.dead_letter,
            dry_run=bool(arguments.dry_run),
            views=[view.name for view in self.views],
        )
        say(_in_words_of_file("\n".join(told.before)))
        if not (arguments.dry_run or self.run.unbounded or is_quiet()):
            self._show_heads(counted)
        say(_in_words_of_file("\n".join(told.after)), LABEL)
        for each in self.run.questions if self.run.unbounded else ():
            if each.destination is not None:
                say(each.destination.sent_from(each.arguments.output, each.counters(counted)))
        if told.nothing is not None:
            raise NothingUsableError(_in_words_of_file(told.nothing))

    def _show_heads(self, counted: Counters) -> None:
        """Print the largest rows of the newest window of each question."""
        with until_closed():
            for each in self.run.questions:
                gap()
                sys.stderr.flush()
                table = read_table(each.arguments.output, each.row_type)
                nothing = each.spec.why_nothing or "nothing is published"
                given: dict[str, Any] = {"name": each.name, "path": each.arguments.output, "nothing": nothing}
                print_rows(table, each.facts(counted).record, limit=HEAD, **given)
                sys.stdout.flush()
        gap()


def _in_words_of_file(text: str) -> str:
    """Return what is said of options with keys of the file in their place."""
    return OPTION.sub(lambda found: found[0] if (key := found[1].replace("-", "_")) in OF_COMMAND else key, text)


def view_path(output: Output, name: str, *, unbounded: bool) -> str:
    """Return where the rows of a view are: a file, or a folder where input has no end."""
    return str(FileSystems.join(output.folder, output.name(name, unbounded=unbounded)))


def described_views(
    monitor: MonitorFile, views: Sequence[View], answers: Mapping[str, Table], output: Output, *, unbounded: bool
) -> dict[str, dict[str, Any]]:
    """Return what the guarantee file of the whole says of views: what they are made of, and what their rows are."""
    return {
        view.name: {
            "output": output.name(view.name, unbounded=unbounded),
            "view": monitor.document.mapping((VIEWS, view.name)),
            "questions": sorted(answers[view.name].questions),
            "rows": answers[view.name].row_type.__name__,
            "order": list(answers[view.name].order),
            "columns": list(answers[view.name].columns),
        }
        for view in views
    }


def with_digests(
    described: Mapping[str, Mapping[str, Any]], folder: str, *, unbounded: bool
) -> dict[str, dict[str, Any]]:
    """Return what is said of views, with digests of their files where these are complete."""
    if unbounded:
        return {name: dict(each) for name, each in described.items()}
    return {
        name: {**each, "sha256": fingerprint(str(FileSystems.join(folder, each["output"])))}
        for name, each in described.items()
    }


def _check_same_views(monitor: MonitorFile, described: Mapping[str, Mapping[str, Any]], output: Output) -> None:
    """Refuse views of which files were published as other ones; a run that starts again has the same."""
    promise = Promise.read(whole_path(output.folder))
    before = {} if promise is None else promise.maybe(VIEWS) or {}
    for name, each in described.items():
        if name in before and before[name].get("view") != json.loads(json.dumps(each["view"])):
            folder = view_path(output, name, unbounded=True)
            raise monitor.document.error((VIEWS, name), f"must be as it was when {folder} was begun: take another name")


def destinations_of_views(
    views: Sequence[View],
    answers: Mapping[str, Table],
    common: argparse.Namespace,
    options: argparse.Namespace,
    output: Output,
) -> dict[str, Destination | None]:
    """Return where the rows of views are sent, which has been checked."""
    found = {}
    given = argparse.Namespace(**(vars(options) | vars(common)))
    for view in views:
        table = answers[view.name]
        with _errors_of_output(view.name):
            sent = destination(output.urls(view.name), given, common.run_id, table.written_type, table.key)
            if sent is not None and not common.dry_run:
                sent.check(first=not FileSystems.exists(whole_path(output.folder)))
        found[view.name] = sent
    return found


@contextmanager
def _errors_of_output(name: str) -> Iterator[None]:
    """Let an error about a destination name the question or the view whose rows it gets."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise ValueError(str(error).replace("--output", f"output of {name}", 1)) from None


def _published(
    followed: Followed, asked: Sequence[Asked], destination: Destination | None, output: Output
) -> PublishedView:
    """Return a view with what writes its rows while the run goes on."""
    row_types = {each.name: each.row_type for each in asked if each.name in followed.tables}
    table = followed.table
    write = WriteWindowFiles(
        view_path(output, followed.name, unbounded=True),
        table.written_type,
        output.format,
        table.order,
        destination=destination,
        option="output.folder",
    )
    return PublishedView(
        name=followed.name, questions=tuple(row_types), follow=FollowView(followed, row_types), write=write
    )


def whole_path(folder: str) -> str:
    """Return where the guarantee of all questions is."""
    return str(FileSystems.join(folder, GUARANTEE))


def _options_of_run(monitor: MonitorFile, arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the options that hold for the run as a whole: those of the command, else those of the file."""
    assert monitor.output is not None
    found = {name: value for name in GIVEN if (value := getattr(arguments, name)) is not None}
    found = dict.fromkeys(GIVEN) | dict(monitor.of_run) | found
    found["dataset"] = found["dataset"] or DEFAULT_DATASET
    found |= {"overwrite": arguments.overwrite, "dry_run": arguments.dry_run, "copy": None}
    found["workers"] = getattr(arguments, "workers", 1)  # in Python there is one process
    return argparse.Namespace(**found, dead_letter=arguments.dead_letter or monitor.output.dead_letter)


def _options(question: Question, common: argparse.Namespace, output: Output, *, unbounded: bool) -> argparse.Namespace:
    """Return the options of a question's command in a run, but for the budget."""
    own = {
        "output": str(FileSystems.join(output.folder, output.name(question.name, unbounded=unbounded))),
        "output_format": output.format if unbounded else None,
    }
    return settled(question.spec, argparse.Namespace(**(vars(question.options) | vars(common) | own)))


def _reader(
    monitor: MonitorFile, given: Mapping[str, argparse.Namespace], fields: Mapping[str, FieldMapping], folder: str
) -> Any:
    """Return what reads for all questions, with a folder for temporary files."""
    first = monitor.questions[0]
    unbounded = is_unbounded(given[first.name])
    for each in monitor.questions:
        if each.spec.watched != INPUT and unbounded:
            raise _error(monitor, each, f"{each.spec.word} must have an input with an end")
    distinct = set(fields.values())
    with _errors_with_keys(monitor):
        shared = fields[first.name] if len(distinct) == 1 else SharedFields(tuple(fields.items()))
        return reader(first.spec, given[first.name], shared, folder=folder)


@contextmanager
def _errors_with_keys(monitor: MonitorFile) -> Iterator[None]:
    """Let an error that begins with the name of a question name its place in the file."""
    try:
        yield
    except (ValueError, TypeError, UsageError) as error:
        name, colon, message = str(error).partition(": ")
        question = next((each for each in monitor.questions if colon and each.name == name), None)
        if question is None:
            raise UsageError(str(error)) from error
        raise _error(monitor, question, message) from None


def _error(monitor: MonitorFile, question: Question, message: str) -> UsageError:
    """Return an error about a question, in the words of the file: its key, if the message is about one."""
    words = message.replace("--", "")
    option = words.split()[0].rstrip(",:")
    key = option.removesuffix("_field") if option.removesuffix("_field") in FIELDS else option
    keys: tuple[str, ...] = ("questions", question.name)
    if (*keys, key) in monitor.document.lines:
        return monitor.document.error((*keys, key), words.partition(" ")[2])
    if ("data", key) in monitor.document.lines:
        return monitor.document.error(("data", key), f"{words.partition(' ')[2]} (for {question.name})")
    return monitor.document.error(keys, words)


def _given_to(
    monitor: MonitorFile, question: Question, options: argparse.Namespace, fields: FieldMapping
) -> dict[str, Any]:
    """Return the arguments of a question's transform."""
    try:
        return given_to(question.spec, options, fields)
    except (ValueError, TypeError) as error:
        raise _error(monitor, question, str(error)) from None


def _check_places(
    monitor: MonitorFile,
    given: Mapping[str, argparse.Namespace],
    views: Sequence[View],
    common: argparse.Namespace,
    output: Output,
    inputs: Sequence[str],
    ledger: str | None,
) -> None:
    """Refuse to write over what is read, and, unless that is wanted, over results that are there."""
    read = [("data.input", path) for path in inputs]
    if common.noise_key_file is not None:
        read.append(("noise_key_file", common.noise_key_file))
    for each in monitor.questions:
        options = given[each.name]
        read += [(name, path) for name in each.spec.files if isinstance(path := getattr(options, name), str)]
    written: list[tuple[str, str | None]] = [("output.dead_letter", common.dead_letter)]
    for name, options in given.items():
        written += [(f"the rows of {name}", options.output), (f"the guarantee of {name}", guarantee_path(options))]
        if not is_unbounded(options) and not common.overwrite:
            check_new(options.output, f"the rows of {name}")
            check_new(guarantee_path(options), f"the guarantee of {name}")
    unbounded = is_unbounded(next(iter(given.values())))
    for view in views:
        path = view_path(output, view.name, unbounded=unbounded)
        written.append((f"the rows of {view.name}", path))
        if not unbounded and not common.overwrite:
            check_new(path, f"the rows of {view.name}")
    if not unbounded and not common.overwrite:
        check_new(whole_path(output.folder), "the guarantee")
    elif unbounded and common.overwrite:
        raise ValueError("overwrite must not be given when the input has no end: use a new folder")
    check_apart(read, ledger, [*written, ("the guarantee", whole_path(output.folder))])


def _make_folders(
    output: Output, given: Mapping[str, argparse.Namespace], views: Sequence[View], *, unbounded: bool
) -> None:
    """Make the folders of rows that are missing."""
    letters = next(iter(given.values())).dead_letter
    each = [options.output for options in given.values()] + [letters] * (letters is not None)
    each += [view_path(output, view.name, unbounded=True) for view in views]
    for folder in (output.folder, *(each if unbounded else [])):
        try:
            if not FileSystems.exists(folder):
                FileSystems.mkdirs(folder)
        except (OSError, BeamIOError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise ValueError(f"output.folder must be one that can be made, got {folder}: {reason}") from None
        if unbounded:
            check_folder(folder, "output.folder")
    check_destination(whole_path(output.folder), "output.folder")


def identity_of(
    monitor: MonitorFile,
    given: Mapping[str, argparse.Namespace],
    made: Mapping[str, Mapping[str, Any]],
    fields: Mapping[str, FieldMapping],
    files: Any,
    output: str,
    *,
    unbounded: bool,
) -> RunIdentity:
    """Return what all questions draw, and of what.

    Args:
        monitor: the file.
        given: options of its questions, by name.
        made: arguments of their transforms, by name.
        fields: what they read, by name.
        files: of events.
        output: where rows go.
        unbounded: whether the input has no end.
    """
    releases, readings, watched = {}, {}, INPUT if unbounded else None
    for each in monitor.questions:
        transform = transform_of(each.spec, made[each.name], KeyedNoise.random(), unbounded=unbounded)
        further = each.spec.files if each.spec.inputs is not None else ()
        releases[each.name] = transform.release
        readings[each.name] = reading(given[each.name], fields[each.name], further, watched)
    first = next(iter(given.values()))
    place = argparse.Namespace(**(vars(first) | {"output": output}))
    return identify(releases, readings, place, files if watched is None else (), watched)


def _asked(
    question: Question,
    paid: Paid,
    options: argparse.Namespace,
    made: Mapping[str, Any],
    fields: FieldMapping,
    identity: RunIdentity,
    noise: KeyedNoise,
    common: argparse.Namespace,
    output: Output,
) -> Asked:
    """Return a question with its transform, whose noise is its own, and where its rows go."""
    unbounded = is_unbounded(options)
    options = argparse.Namespace(**(vars(options) | {"run_id": common.run_id}))
    transform = transform_of(question.spec, made, noise.derive(NOISE, question.name), unbounded=unbounded)
    if transform.guarantee != paid.transform.guarantee:
        raise ValueError(f"questions.{question.name} must promise in a run what it promises in its plan")
    whole = {"monitor": {"question": question.name, "guarantee": GUARANTEE}}
    promised = promise(question.spec, transform, options, question.shown, paid.guarantee) | whole
    if unbounded:
        promised |= release_of_stream(identity, transform)
    row_type = row_type_of(question.spec, transform, fields, options)
    if unbounded:
        check_same_promise(guarantee_path(options), promised, "output.folder")
    with _errors_of_output(question.name):
        sent = destination(output.urls(question.name), options, common.run_id, row_type, question.spec.key)
        if sent is not None and not common.dry_run:
            sent.check(first=not FileSystems.exists(guarantee_path(options)))
    return Asked(
        name=question.name,
        spec=question.spec,
        arguments=options,
        fields=fields,
        transform=transform,
        promised=promised,
        row_type=row_type,
        more={} if question.spec.inputs is None else loaded(question.spec.inputs)(options),
        destination=sent,
    )


def _promised(
    monitor: MonitorFile, planned: Calibrated, common: argparse.Namespace, asked: Sequence[Asked]
) -> dict[str, Any]:
    """Return what the guarantee file of the whole says."""
    record = guarantee_record(planned.guarantee)
    questions = {}
    for paid, each in zip(planned.questions, asked, strict=True):
        questions[each.name] = {
            "question": each.spec.word,
            "share": paid.share,
            "epsilon": paid.epsilon,
            "delta": paid.delta,
            "output": os.path.basename(each.arguments.output),
        }
    return {
        "made_by": {"command": f"privstream {COMMAND_NAME}", "version": version("privstream")},
        "parameters": {"run_id": common.run_id, "dataset": common.dataset, "monitor": os.path.basename(monitor.path)},
        "guarantee": {name: value for name, value in record.items() if value is not None},
        "questions": questions,
    }


@contextmanager
def _hidden_folder(folder: str, *, wanted: bool) -> Iterator[str]:
    """Give a folder in another one for files that are not complete, and remove it in the end."""
    if not wanted:
        yield folder
        return
    hidden = str(FileSystems.join(folder, f".{secrets.token_hex(8)}{PARTIAL}"))
    FileSystems.mkdirs(hidden)
    try:
        yield hidden
    finally:
        with suppress(OSError, BeamIOError):
            FileSystems.delete([hidden])


COMMAND = Command(
    description="Answers all questions of a file by one pipeline: events are read and checked once, and questions "
    "branch after that. Each is answered as by its own command with the epsilon and the delta that privstream plan "
    "prints. All of them together cost the total of the file, which is one entry of the ledger. Any option of Apache "
    "Beam may be added, such as --runner.",
    add_arguments=add_arguments,
    run=run,
    takes_beam_options=True,
)
