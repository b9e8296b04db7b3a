"""What every command that watches events does: read, run one transform, write rows, and say what is promised."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.guarantee_records import guarantee_record
from privstream.pipelines.accounts.account import Account, Charge
from privstream.pipelines.accounts.run_identity import RunIdentity, identify, noise_source, public_name
from privstream.pipelines.command import NothingUsableError, UsageError
from privstream.pipelines.console import clock
from privstream.pipelines.plot.promise import Promise, in_words, shown_in_words
from privstream.pipelines.questions.input_output import (
    RUN_ID_NEEDED,
    check_same_promise,
    destination,
    end_path,
    files_option,
    guarantee_path,
    is_unbounded,
    prepare,
    reader,
    send,
    sent,
    with_files,
    writers,
)
from privstream.pipelines.questions.options import UNIT
from privstream.pipelines.questions.public_lists import of_columns
from privstream.pipelines.questions.readings import arguments_of
from privstream.pipelines.questions.run_report import RunReport
from privstream.pipelines.questions.spec import METHOD, QuestionSpec, loaded
from privstream.pipelines.runners import launch
from privstream.pipelines.runners.flink import name_job
from privstream.pipelines.sinks.destination import Destination
from privstream.pipelines.sinks.row_files import (
    check_destination,
    check_new,
    fingerprint,
    output_format,
    with_item_columns,
    write_json,
)
from privstream.pipelines.sinks.window_files import WriteDeadLetterFiles, WriteWindowFiles, check_folder
from privstream.pipelines.sinks.writers import COMPLETE, TERMINAL, WriteRows, file_or_terminal
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.terminal import NOTE, say
from privstream.transforms import DeadLetter
from privstream.transforms.events.private_transform import PrivateTransform

PLACES = (
    "command",
    "about",
    "traceback",
    "input",
    "output",
    "copy",
    "dead_letter",
    "noise_key_file",
    "noise_key_variable",
    "kafka_setting",
    "overwrite",
    "dry_run",
    "ledger",
    "budget_limit",
)
"""Options that say where things are and how to get there, not what is promised."""

DRY = (
    "dry run: nothing was published, recorded or spent. These numbers are exact: guard them like the input. The same "
    "command without --dry_run promises:"
)

NO_COUNTERS = (
    "the runner has reported no counters, as for a job with checkpoints, which is cancelled at its end: it is not "
    "known here how many records could not be used"
)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A run whose options have been checked: what is read, done and promised, and what writes it into the ledger."""

    arguments: argparse.Namespace
    unbounded: bool
    read: Any
    more: Mapping[str, Any]
    transform: PrivateTransform
    promised: dict[str, Any]
    guarantee_file: str
    destination: Destination | None
    charge: Callable[[], Charge]


@dataclass(frozen=True)
class RunCommand:
    """The command that answers a question: from events to private rows.

    Attributes:
        spec: the question.
        shown: what the guarantee file says in place of options, by name.
    """

    spec: QuestionSpec
    shown: Mapping[str, str] = field(default_factory=dict)

    def run(self, arguments: argparse.Namespace, beam_arguments: list[str]) -> None:
        """Check everything that can be checked, run the pipeline, and write what it promises beside its output."""
        options = launch.parse_beam_options(beam_arguments)
        name_job(options, _job_name(arguments))
        try:
            with clock("checking options and input"):
                run = self._check(arguments)
        except (ValueError, TypeError, OSError) as error:
            raise UsageError(str(error)) from error
        if run.arguments.dry_run:
            return self._try(run, options)
        arguments, row_type = run.arguments, self._row_type(run.transform, run.read.fields, run.arguments)
        shown = partial(in_words, parameters=vars(arguments))
        promise = Promise(run.guarantee_file, run.promised)
        note = partial(shown_in_words, row_type, promise)
        below = None if self.spec.below is None else partial(loaded(self.spec.below), promise=promise)
        with file_or_terminal(
            arguments.output, row_type, self.spec.title, shown, note, below, table=self.spec.table
        ) as path:
            try:
                write, letters = self._writers(run, path)
            except (ValueError, TypeError, OSError) as error:
                raise UsageError(str(error)) from error
            if run.unbounded:
                prepare(options)
            recorded: list[Charge] = []

            def build(pipeline: beam.Pipeline) -> None:
                """Build all of it; the last thing before it may start is that the ledger takes it."""
                try:
                    _build(run, pipeline, write, letters)
                    recorded.append(run.charge())
                except (ValueError, TypeError) as error:
                    raise UsageError(str(error)) from error

            if arguments.noise_key_file is None and arguments.noise_key_variable is None:
                say("noise key: a new random one, for this run only; a run with --noise_key_file can be repeated")
            # Without an end rows are to come when the runner has taken the pipeline.
            accepted = partial(_write_guarantee, run, recorded, {}) if run.unbounded else None
            counters = launch.run(options, build, end_path(arguments), accepted)
            for line in recorded:
                say(line.told)
        if arguments.output != TERMINAL and not run.unbounded:
            _write_guarantee(run, recorded, {"rows": {"sha256": fingerprint(arguments.output)}})
        if run.destination is not None and not run.unbounded:
            say(send(run.destination, arguments.output))
        self._report(run, counters)

    def _try(self, run: _Run, options: PipelineOptions) -> None:
        """Run the pipeline for its counters alone, and tell what they say of the input; rows are let go unseen.

        What the ledger or the limit would refuse is refused.
        """

        def build(pipeline: beam.Pipeline) -> None:
            try:
                foreseen.append(run.charge())
                _build(run, pipeline, beam.FlatMap(_let_go), _letters(run.arguments.dead_letter))
            except (ValueError, TypeError) as error:
                raise UsageError(str(error)) from error

        foreseen: list[Charge] = []
        counters = launch.run(options, build, end_path(run.arguments), None)
        for line in foreseen:
            say(line.told)
        self._report(run, {COMPLETE: 1, **counters} if counters else counters)

    def _check(self, arguments: argparse.Namespace) -> _Run:
        """Check the options and the input."""
        output, arguments = arguments.output, with_files(arguments)
        if self.spec.settle is not None:
            settled = loaded(self.spec.settle)(vars(arguments))
            arguments = argparse.Namespace(**(vars(arguments) | settled))
        unbounded = is_unbounded(arguments)
        read = reader(self.spec, arguments)
        more = {} if self.spec.inputs is None else loaded(self.spec.inputs)(arguments)
        account = Account.of(arguments)
        self._check_apart(arguments, account.path, [file.path for file in read.files])
        guarantee_file = guarantee_path(arguments)
        _check_output(arguments, guarantee_file, unbounded)
        given = arguments_of(self.spec, vars(arguments), streams=bool(read.fields.stream))
        if read.fields.several:
            given = of_columns(given, len(read.fields.several))
        shaping = self._shaping(arguments, given, unbounded)
        identity = identify(shaping, read.files, self.spec.files, self.spec.watched if unbounded else None)
        label = _run_id(arguments, identity, unbounded)
        noise = noise_source(arguments.noise_key_file, arguments.noise_key_variable, label)
        arguments = argparse.Namespace(**(vars(arguments) | {"run_id": arguments.run_id or public_name(noise)}))
        transform = self.spec.transform_class(**given, noise=noise)
        transform = transform if unbounded else transform.to_finish()
        promised = self.promise(transform, arguments)
        if unbounded and arguments.dry_run:
            raise ValueError("dry_run must not be given when the input has no end")
        if unbounded:
            check_same_promise(guarantee_file, promised, files_option(arguments))
        given_output = argparse.Namespace(**(vars(arguments) | {"output": output}))
        row_type = self._row_type(transform, read.fields, arguments)
        sent = destination(self.spec, given_output, arguments.run_id, row_type)
        if sent is not None and not arguments.dry_run:  # the check makes a table that is missing
            sent.check(first=not FileSystems.exists(guarantee_file))
        return _Run(
            arguments=arguments,
            unbounded=unbounded,
            read=read,
            more=more,
            transform=transform,
            promised=promised,
            guarantee_file=guarantee_file,
            destination=sent,
            charge=partial(account.charge, identity, label, given_output, noise, transform.guarantee),
        )

    def _row_type(self, transform: PrivateTransform, fields: FieldMapping, arguments: argparse.Namespace) -> type:
        """Return the type of rows as they are written; a table on the terminal shows an item of columns as one.

        Raises:
            ValueError: naming the option.
        """
        row_type: type = self.spec.row_type_of(transform)
        written = with_item_columns(row_type, fields.several)
        if arguments.output == TERMINAL:
            return row_type
        avro = "avro" in (arguments.output_format, str(arguments.output).rpartition(".")[2].lower())
        wrong = [name for name in fields.several if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)]
        if avro and wrong and written is not row_type:
            raise ValueError(f"output must not be Avro, which has no columns such as `{wrong[0]}`: write Parquet")
        return written

    def _shaping(self, arguments: argparse.Namespace, given: Mapping[str, Any], unbounded: bool) -> argparse.Namespace:
        """Return options without those that the method taken does not use: they do not make it another run.

        Nor do views, unless a run has no end, which is bound to them, nor other words for the same unit. Which options
        these are depends on public ones alone, and on no noise.
        """
        options = dict(vars(arguments))
        if self.spec.former_units:
            options[UNIT] = self.spec.former_units.get(options[UNIT], options[UNIT])
        if self.spec.methods or self.spec.settle is not None:
            made = self.spec.transform_class(**given, noise=KeyedNoise.random("options"))
            options |= dict.fromkeys(made.unused) | ({} if unbounded else dict(made.views))
        return argparse.Namespace(**options)

    def _writers(
        self, run: _Run, path: str
    ) -> tuple[WriteRows | WriteWindowFiles, WriteRows | WriteDeadLetterFiles | None]:
        """Return what writes rows and dead letters."""
        row_type = self._row_type(run.transform, run.read.fields, run.arguments)
        if run.unbounded:
            return writers(self.spec, run.arguments, row_type, run.destination)
        write = WriteRows(
            path,
            row_type,
            order=self.spec.order,
            option=files_option(run.arguments),
            finish=run.transform.finish,
            unfinished=run.transform.unfinished,
        )
        return write, _letters(run.arguments.dead_letter)

    def promise(self, transform: PrivateTransform, arguments: argparse.Namespace) -> dict[str, Any]:
        """Return the guarantee, the accuracy and their public parameters, for machines and people.

        What was not given, and has no default, is left out; so is the horizon of a guarantee that has none.
        """
        given = {name: value for name, value in vars(arguments).items() if name not in PLACES and value is not None}
        guarantee = {name: value for name, value in guarantee_record(transform.guarantee).items() if value is not None}
        return {
            "made_by": {"command": f"privstream {arguments.command}", "version": version("privstream")},
            "parameters": {**given, **self.shown},
            **({"public": dict(transform.public)} if transform.public else {}),
            "guarantee": guarantee,
            "accuracy": ({METHOD: getattr(transform, METHOD)} if self.spec.methods else {})
            | transform.accuracy.to_dict(),
        }

    def _check_apart(self, arguments: argparse.Namespace, ledger: str | None, inputs: list[str]) -> None:
        """Refuse to write over a file that this run reads or writes."""
        taken = {os.path.realpath(path): "--input" for path in inputs}
        for option in ("noise_key_file", *self.spec.files):
            if isinstance(path := getattr(arguments, option), str):
                taken[os.path.realpath(path)] = f"--{option}"
        if (
            ledger is not None
            and "://" not in ledger
            and (other := taken.setdefault(os.path.realpath(ledger), "--ledger")) != "--ledger"
        ):
            raise ValueError(f"--ledger must not be written over {other}, got {ledger}")
        written = {"--dead_letter": arguments.dead_letter}
        if arguments.output != TERMINAL:
            written = {files_option(arguments): arguments.output, "the guarantee": guarantee_path(arguments), **written}
        for option, path in written.items():
            if not path:
                continue
            other = taken.setdefault(os.path.realpath(path), option)
            if other != option:
                raise ValueError(f"{option} must not be written over {other}, got {path}")

    def _report(self, run: _Run, counters: dict[str, int]) -> None:
        """Tell what was read, what was published, and what that promises.

        Raises:
            NothingUsableError: nothing that was read could be used, so that accuracy is beside the point.
        """
        spec, arguments, promised = self.spec, run.arguments, run.promised
        report = RunReport(counters, spec, run.transform.accuracy.coverage, promised["parameters"])
        published = counters.get(spec.published, 0)
        nothing = report.nothing_usable(published) if report.known else None
        lines = []
        if report.known:
            told = "" if arguments.dry_run else f", {published:,} {spec.title} published"
            lines.append(f"{report.usable:,} of {report.records:,} events usable{told}")
            lines += report.left_out(arguments.dead_letter)
            if spec.why_nothing and not published and nothing is None and not arguments.dry_run:
                lines.append(spec.why_nothing)
        else:
            lines.append(NO_COUNTERS)
        if run.destination is not None and run.unbounded and report.known:
            lines.append(sent(run.destination, counters, arguments.output))
        if arguments.dry_run:
            lines.append(DRY)
        lines.append(promised["guarantee"]["paragraph"])
        if nothing is None:
            lines.append(promised["accuracy"]["sentence"])
        if arguments.output != TERMINAL and not arguments.dry_run:
            lines.append(f"rows: {arguments.output}, guarantee: {guarantee_path(arguments)}")
        if nothing is None:
            advice = [f"{NOTE}{run.transform.advice}"] if run.transform.advice else []
            lines += [*advice, *report.notes(), *report.warnings()]  # last, where they are seen
        say("\n".join(lines))
        if nothing is not None:
            raise NothingUsableError(nothing)


def _job_name(arguments: argparse.Namespace) -> str:
    """Return what a cluster calls the job: the question and the last part of the output's path."""
    to = "" if arguments.output == TERMINAL else f" to {os.path.basename(os.path.normpath(arguments.output))}"
    return f"{arguments.command}{to}"


def _build(run: _Run, pipeline: beam.Pipeline, write: Any, letters: Any) -> None:
    """Read, run the transform, and write."""
    inputs = {"events": pipeline | "Read" >> run.read}
    inputs |= {name: pipeline | f"Read {name}" >> reader for name, reader in run.more.items()}
    read_rows = {name: each.events for name, each in inputs.items()}
    named = type(run.transform).__name__ >> run.transform.with_dead_letters()
    published = (read_rows if run.more else read_rows["events"]) | named
    published.rows | "Write" >> write
    if letters:
        dead = [each.dead_letters for each in inputs.values()] + [published.dead_letters]
        dead | "AllDeadLetters" >> beam.Flatten() | "WriteDeadLetters" >> letters


def _write_guarantee(run: _Run, recorded: Sequence[Charge], more: Mapping[str, Any]) -> None:
    """Write what a run promises, and where the ledger says so."""
    promised = run.promised | dict(more)
    for charge in recorded:
        promised |= {} if charge.mark is None else {"ledger": dict(charge.mark)}
    write_json(run.guarantee_file, promised)


def _letters(path: str | None) -> WriteRows | None:
    """Return what writes dead letters, if they are wanted."""
    return WriteRows(path, DeadLetter, option="--dead_letter", private=True) if path else None


def _let_go(row: Any) -> Iterator[Any]:
    """Keep nothing."""
    return iter(())


def _run_id(arguments: argparse.Namespace, identity: RunIdentity, unbounded: bool) -> str:
    """Return the run id that noise depends on: what was given, or what identifies the run by itself."""
    if unbounded and not arguments.run_id:
        raise ValueError(RUN_ID_NEEDED)
    return str(arguments.run_id or identity.run_id)


def _check_output(arguments: argparse.Namespace, guarantee_file: str, unbounded: bool) -> None:
    """Check that rows and guarantee can be written, and that they replace no results, unless that is wanted."""
    option = files_option(arguments)
    if unbounded:
        check_folder(arguments.output, option)
        if arguments.overwrite:
            raise ValueError("overwrite must not be given when the input has no end: use a new folder")
    if arguments.output == TERMINAL:
        return
    check_destination(guarantee_file, option)
    if not unbounded:
        output_format(arguments.output, option)
    if not unbounded and not arguments.overwrite:
        check_new(arguments.output, option)
        check_new(guarantee_file, "the guarantee")
