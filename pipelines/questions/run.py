"""A run: one reading, one or several questions about it, their rows, and what is said of them."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.guarantee_records import guarantee_record
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.account import Charge
from privstream.pipelines.command import UsageError
from privstream.pipelines.questions.arguments import transform_of
from privstream.pipelines.questions.input_output import end_paths, files_option, prepare, sent, window_writer
from privstream.pipelines.questions.options import UNIT
from privstream.pipelines.questions.run_report import RunReport
from privstream.pipelines.questions.shares import (
    LETTERS,
    READ,
    Receive,
    Share,
    events_for,
    perform,
    share_out,
    stage_label,
)
from privstream.pipelines.questions.spec import METHOD, QuestionSpec
from privstream.pipelines.questions.usual_limit import usual_limit_in_words
from privstream.pipelines.runners import launch
from privstream.pipelines.runners.local_runner import LOCAL_RUNNER
from privstream.pipelines.runners.processes import Crew, workers_for
from privstream.pipelines.sinks.destination import Destination
from privstream.pipelines.sinks.row_files import COMPLETE, with_item_columns, write_json
from privstream.pipelines.sinks.window_files import WriteDeadLetterFiles, WriteWindowFiles
from privstream.pipelines.sinks.writers import TERMINAL, WriteRows
from privstream.pipelines.sources.fields import FieldMapping, SharedFields
from privstream.pipelines.sources.found_files import EventFile
from privstream.pipelines.sources.normalise import OF_READING
from privstream.pipelines.sources.readers import ReadEvents
from privstream.pipelines.terminal import NOTE, say
from privstream.transforms import DeadLetter
from privstream.transforms.events.parameters import MOST_SHARDS
from privstream.transforms.events.private_transform import PrivateTransform

PLACES = (
    "command",
    "about",
    "traceback",
    "input",
    "query",
    "output",
    "copy",
    "dead_letter",
    "noise_key_file",
    "noise_key_variable",
    "kafka_setting",
    "overwrite",
    "dry_run",
    "workers",
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
class Asked:
    """A question whose options have been checked: what is done, what is promised, and where its rows go.

    Attributes:
        name: of the question among several; empty if it is the only one.
        spec: which question it is.
        arguments: its options; `output` is where its rows are written as files.
        fields: what it reads of events.
        transform: what answers it.
        promised: what its guarantee file says.
        row_type: of its rows as they are written.
        more: further readers, by name.
        destination: where its rows are sent, too.
    """

    name: str = ""
    spec: QuestionSpec
    arguments: argparse.Namespace
    fields: FieldMapping
    transform: PrivateTransform
    promised: Mapping[str, Any]
    row_type: type
    more: Mapping[str, Any] = field(default_factory=dict)
    destination: Destination | None = None

    def label(self, stage: str) -> str:
        """Return what one of its stages is called, beside those of other questions."""
        return stage_label(self.name, stage)

    def counters(self, counted: launch.Counters) -> dict[str, int]:
        """Return what a run has counted that is about this question: its own stages, and of reading what is about all.

        Of records that were read for several questions each has counted which it can use.
        """
        if not self.name:
            return launch.summed((name, number) for (_, name), number in counted.items())
        found, own = [], re.compile(rf"{self.name}(?:{OF_READING}|-)")  # some runners write a hyphen
        for (stage, name), number in counted.items():
            whose, colon, what = name.rpartition(OF_READING)
            if own.match(stage) or (colon and self.name in whose.split(",")):
                found.append((what, number))
            elif stage.startswith(READ) and not colon:
                found.append((name, number))
        return launch.summed(found)

    def write_to(self, path: str, *, unbounded: bool) -> Any:
        """Return what writes its rows.

        Raises:
            ValueError, TypeError, OSError: naming the option.
        """
        if unbounded:
            return window_writer(self.spec, self.arguments, self.row_type, self.destination)
        return WriteRows(
            path,
            self.row_type,
            order=self.spec.order,
            option=files_option(self.arguments),
            finish=self.transform.finish,
            unfinished=self.transform.unfinished,
            finish_table=self.transform.finish_table,
        )

    def told(self, counted: launch.Counters, *, unbounded: bool) -> Told:
        """Say what was read, what was published, and how accurate that is."""
        spec, arguments = self.spec, self.arguments
        counters = self.counters(counted)
        if arguments.dry_run and counters:
            counters = {COMPLETE: 1, **counters}
        report = RunReport(counters, spec, self.transform.accuracy.coverage, self.promised["parameters"])
        published = counters.get(spec.published, 0)
        nothing = report.nothing_usable(published) if report.known else None
        lines = []
        if report.known:
            what = spec.title.removesuffix("s") if published == 1 else spec.title
            told = "" if arguments.dry_run else f", {published:,} {what} published"
            lines.append(f"{report.usable:,} of {report.records:,} events usable{told}")
            lines += report.left_out(arguments.dead_letter)
            if spec.why_nothing and not published and nothing is None and not arguments.dry_run:
                lines.append(spec.why_nothing)
        else:
            lines.append(NO_COUNTERS)
        if self.destination is not None and unbounded and report.known:
            lines.append(sent(self.destination, counters, arguments.output))
        advice = [self.transform.advice, self._of_usual_limit(report)]
        advice = [f"{NOTE}{text}" for text in advice if text]
        if nothing is not None:
            return Told(lines, (), (), nothing)
        return Told(
            lines, (self.promised["accuracy"]["sentence"],), (*advice, *report.notes(), *report.warnings()), None
        )

    def _of_usual_limit(self, report: RunReport) -> str:
        """Say what it costs that nobody has given a limit of people; empty where that is as it should be."""
        accuracy = self.promised["accuracy"]
        if accuracy.get("stddev") is None:
            return ""
        return usual_limit_in_words(self.promised["parameters"], accuracy, report.used_up, vars(self.arguments))


@dataclass(frozen=True)
class Told:
    """What is said of a question after its run.

    Attributes:
        counted: lines on what was read and published.
        accurate: lines on how accurate that is.
        warnings: lines that stand last, where they are seen.
        nothing: why nothing that was read could be used; None if something could.
    """

    counted: Sequence[str]
    accurate: Sequence[str]
    warnings: Sequence[str]
    nothing: str | None


@dataclass(frozen=True, kw_only=True)
class PublishedView:
    """What is made of the rows of questions while a run goes on, and where it goes.

    Attributes:
        name: of the view.
        questions: names of those whose rows it is made of.
        follow: makes its rows of the paths of their files, by these names.
        write: writes them.
    """

    name: str
    questions: tuple[str, ...]
    follow: Any
    write: WriteWindowFiles


@dataclass(frozen=True, kw_only=True)
class Run:
    """Questions about one input, and what writes all of them into the ledger.

    Attributes:
        arguments: options of the run.
        unbounded: whether the input has no end.
        read: the reader of events.
        fields: what it reads.
        questions: at least one; the names of several differ.
        views: what is made of published rows while the run goes on.
        charge: writes the run into the ledger.
        letters: what writes dead letters; None if they are not wanted.
        workers: processes that share the work, where all questions let them.
    """

    arguments: argparse.Namespace
    unbounded: bool
    read: Any
    fields: FieldMapping | SharedFields
    questions: tuple[Asked, ...]
    charge: Callable[[], Charge]
    letters: Any
    workers: int = 1
    views: tuple[PublishedView, ...] = ()

    def publish(
        self, options: PipelineOptions, writes: Sequence[Any], write_guarantees: Callable[[Charge], None]
    ) -> tuple[launch.Counters, Charge]:
        """Run the pipeline.

        Args:
            options: of Beam.
            writes: what writes the rows of each question.
            write_guarantees: writes what is promised; it is called as soon as the runner has taken the pipeline if the
                input has no end, since rows are then to come, and not at all otherwise.

        Returns:
            The counters, and what was written into the ledger.
        """
        if self.unbounded:
            prepare(options)
        recorded: list[Charge] = []

        def build(pipeline: beam.Pipeline) -> None:
            """Build all of it; the last thing before it may start is that the ledger takes it."""
            try:
                self._build(pipeline, options, writes)
                recorded.append(self.charge())
            except (ValueError, TypeError) as error:
                raise UsageError(str(error)) from error

        given = self.arguments
        if given.noise_key_file is None and given.noise_key_variable is None:
            say("noise key: a new random one, for this run only; a run with --noise_key_file can be repeated")

        def accepted() -> None:
            write_guarantees(recorded[0])

        ends = end_paths(each.arguments for each in self.questions)
        ends += [view.write.end for view in self.views]
        counters = self._run(options, build, ends, accepted if self.unbounded else None)
        for line in recorded:
            say(line.told)
        return counters, recorded[0] if recorded else Charge("", None)

    def try_out(self, options: PipelineOptions) -> launch.Counters:
        """Run the pipeline for its counters alone, and return them; rows are let go unseen.

        What the ledger or the limit would refuse is refused.
        """
        foreseen: list[Charge] = []

        def build(pipeline: beam.Pipeline) -> None:
            try:
                foreseen.append(self.charge())
                self._build(pipeline, options, [beam.FlatMap(_let_go) for _ in self.questions])
            except (ValueError, TypeError) as error:
                raise UsageError(str(error)) from error

        counters = self._run(options, build)
        for line in foreseen:
            say(line.told)
        return counters

    @property
    def processes(self) -> int:
        """How many processes share the work."""
        return self.workers if all(len(each.transform.segments) > 1 for each in self.questions) else 1

    def _run(
        self,
        options: PipelineOptions,
        build: Callable[[beam.Pipeline], None],
        ends: Sequence[str] = (),
        accepted: Callable[[], None] | None = None,
    ) -> launch.Counters:
        """Run a pipeline; what processes share of it they do first."""
        if self.processes == 1:
            return launch.run(options, build, ends, accepted)
        share = Share(
            transforms={each.name: each.transform for each in self.questions},
            fields=self.fields,
            processes=self.processes,
            letters=bool(self.letters),
        )
        with Crew(self.processes, perform).working() as crew:
            first = partial(share_out, crew, share, self.read, options)
            return launch.run(options, build, ends, accepted, first)

    def _build(self, pipeline: beam.Pipeline, options: PipelineOptions, writes: Sequence[Any]) -> None:
        """Read once, run the transforms, and write; or do of that what processes do not share."""
        if self.processes > 1:
            launch.check(options, partial(self._build_all, writes=[beam.FlatMap(_let_go) for _ in writes]))
            self._build_last(pipeline, writes)
        else:
            self._build_all(pipeline, writes)

    def _build_all(self, pipeline: beam.Pipeline, writes: Sequence[Any]) -> None:
        """Read once, run the transforms, and write."""
        read = pipeline | READ >> self.read
        dead, written = [read.dead_letters], {}
        for asked, write in zip(self.questions, writes, strict=True):
            try:
                letters, written[asked.name] = self._branch(pipeline, read.events, asked, write)
            except (ValueError, TypeError) as error:
                raise type(error)(asked.label(str(error))) from None
            dead += letters
        for view in self.views:
            rows = {name: written[name] for name in view.questions} | f"{view.name}{OF_READING}Follow" >> view.follow
            rows | f"{view.name}{OF_READING}Write" >> view.write
        self._write_letters(dead)

    def _build_last(self, pipeline: beam.Pipeline, writes: Sequence[Any]) -> None:
        """Receive what processes have made of the input, run the segments that they do not share, and write."""
        dead = [pipeline | "Receive letters" >> Receive(LETTERS, DeadLetter)]
        for asked, write in zip(self.questions, writes, strict=True):
            transform = asked.transform
            shared = transform.shared_segments
            rows = pipeline | asked.label("Receive") >> Receive(asked.name, transform.segments[shared - 1].gives)
            if shared < len(transform.segments):
                published = rows | asked.label(type(transform).__name__) >> transform.segment(shared)
                dead.append(published.dead_letters)
                rows = published.rows
            rows | asked.label("Write") >> write
        self._write_letters(dead)

    def _write_letters(self, dead: Sequence[Any]) -> None:
        """Write dead letters, if they are wanted."""
        if self.letters:
            dead | "AllDeadLetters" >> beam.Flatten() | "WriteDeadLetters" >> self.letters

    def _branch(self, pipeline: beam.Pipeline, events: Any, asked: Asked, write: Any) -> tuple[list[Any], Any]:
        """Answer one question about the events that were read; return its dead letters, and what was written."""
        inputs = {name: pipeline | asked.label(f"Read {name}") >> each for name, each in asked.more.items()}
        events = events_for(asked.name, events, self.fields)
        named = asked.label(type(asked.transform).__name__) >> asked.transform.with_dead_letters()
        rows = {"events": events} | {name: each.events for name, each in inputs.items()}
        published = (rows if inputs else events) | named
        written = published.rows | asked.label("Write") >> write
        return [*(each.dead_letters for each in inputs.values()), published.dead_letters], written


def letters_to(path: str | None, *, unbounded: bool) -> WriteRows | WriteDeadLetterFiles | None:
    """Return what writes dead letters, a file or a folder of files, if they are wanted."""
    if not path:
        return None
    if unbounded:
        return WriteDeadLetterFiles(path)
    return WriteRows(path, DeadLetter, option="--dead_letter", private=True)


def shaping(
    spec: QuestionSpec, arguments: argparse.Namespace, given: Mapping[str, Any], *, unbounded: bool
) -> argparse.Namespace:
    """Return options as they are in a run, without those that the method taken does not use: these make no other run.

    Nor do views, unless a run has no end, which is bound to them, nor other words for the same unit. Which options
    these are depends on public ones alone, and on no noise.
    """
    options = dict(vars(arguments))
    if spec.former_units:
        options[UNIT] = spec.former_units.get(options[UNIT], options[UNIT])
    if spec.methods or spec.settle is not None:
        made = transform_of(spec, given, KeyedNoise.random("options"), unbounded=unbounded)
        options |= {**made.settled, **made.of_files} | dict.fromkeys(made.unused)
        options |= {} if unbounded else dict(made.views)
    return argparse.Namespace(**options)


SHARDS = "shards"
BYTES_OF_SHARD = 1 << 30
"""Of input, at most, whose people one shard has: one window of it is in memory at a time."""


def workers_of(arguments: argparse.Namespace, options: PipelineOptions, read: Any) -> int:
    """Return how many processes may share the work of a run.

    Only those of commands may: in a program of somebody's own they could begin by running all of it again.

    Raises:
        ValueError: several were asked for, and the runner or the input cannot have them.
    """
    given: int | None = getattr(arguments, "workers", 1)
    if options.view_as(StandardOptions).runner == LOCAL_RUNNER and isinstance(read, ReadEvents):
        return workers_for(given, sum(file.size for file in read.files))
    if given is not None and workers_for(given, 0) > 1:
        raise ValueError(f"workers must be 1 but for files on {LOCAL_RUNNER}, got {given}")
    return 1


def shared_evenly(given: Mapping[str, Any], workers: int, files: Iterable[EventFile] = ()) -> dict[str, Any]:
    """Return the arguments of a transform with as many shards of people for each process; they change no answer.

    Args:
        given: the arguments.
        workers: number of processes.
        files: that are read to their end: there is a shard for each `BYTES_OF_SHARD` of them at least.
    """
    if SHARDS not in given:
        return dict(given)
    least = max(given[SHARDS], sum(file.size for file in files) // BYTES_OF_SHARD)
    return dict(given) | {SHARDS: min(-(-least // workers) * workers, MOST_SHARDS)}


def promise(
    spec: QuestionSpec,
    transform: PrivateTransform,
    arguments: argparse.Namespace,
    shown: Mapping[str, str],
    guarantee: PrivacyGuarantee | None = None,
) -> dict[str, Any]:
    """Return the guarantee, the accuracy and their public parameters, for machines and people.

    What was not given, and has no default, is left out; so is the horizon of a guarantee that has none.

    Args:
        spec: the question.
        transform: what answers it.
        arguments: its options.
        shown: what the guarantee file says in place of options, by name.
        guarantee: what is promised, if it is less than what the transform promises.
    """
    given = {name: value for name, value in vars(arguments).items() if name not in PLACES and value is not None}
    record = guarantee_record(transform.guarantee if guarantee is None else guarantee)
    return {
        "made_by": {"command": f"privstream {arguments.command}", "version": version("privstream")},
        "parameters": {**given, **transform.of_files, **shown},
        **({"public": dict(transform.public)} if transform.public else {}),
        "guarantee": {name: value for name, value in record.items() if value is not None},
        "accuracy": ({METHOD: getattr(transform, METHOD)} if spec.methods else {}) | transform.accuracy.to_dict(),
    }


def row_type_of(
    spec: QuestionSpec, transform: PrivateTransform, fields: FieldMapping, arguments: argparse.Namespace
) -> type:
    """Return the type of rows as they are written; a table on the terminal shows an item of columns as one.

    Raises:
        ValueError: naming the option.
    """
    row_type: type = spec.row_type_of(transform)
    written = with_item_columns(row_type, fields.several)
    if arguments.output == TERMINAL:
        return row_type
    avro = "avro" in (arguments.output_format, str(arguments.output).rpartition(".")[2].lower())
    wrong = [name for name in fields.several if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)]
    if avro and wrong and written is not row_type:
        raise ValueError(f"output must not be Avro, which has no columns such as `{wrong[0]}`: write Parquet")
    return written


def check_apart(read: Iterable[tuple[str, str]], ledger: str | None, written: Iterable[tuple[str, str | None]]) -> None:
    """Refuse to write over a file that a run reads or writes.

    Args:
        read: what is read: the option that names it, and its path.
        ledger: where runs are written down, if it is a file.
        written: what is written, likewise.

    Raises:
        ValueError: naming both options.
    """
    taken = {os.path.realpath(path): option for option, path in read}
    ledgers = [] if ledger is None or "://" in ledger else [("--ledger", ledger)]
    for option, path in (*ledgers, *written):
        if path and (other := taken.setdefault(os.path.realpath(path), option)) != option:
            raise ValueError(f"{option} must not be written over {other}, got {path}")


def write_guarantee(path: str, promised: Mapping[str, Any], charge: Charge) -> None:
    """Write what a run promises, and where the ledger says so."""
    write_json(path, dict(promised) | ({} if charge.mark is None else {"ledger": dict(charge.mark)}))


def _let_go(row: Any) -> Iterator[Any]:
    """Keep nothing."""
    return iter(())
