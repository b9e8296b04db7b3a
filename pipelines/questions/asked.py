"""A question whose options have been checked, what is promised of it, and what is said of its run; without Beam."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from privstream.mechanisms.guarantee_records import guarantee_record
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.account import Charge
from privstream.pipelines.command import UsageError
from privstream.pipelines.locations import GUARANTEE, POSTGRESQL
from privstream.pipelines.questions.input_end import KAFKA, is_unbounded, reads_query
from privstream.pipelines.questions.spec import METHOD, QuestionSpec
from privstream.pipelines.show import words
from privstream.pipelines.show.records import fault, listed
from privstream.pipelines.sinks.row_files import (
    ALIKE,
    COMPLETE,
    read_row_file,
    sort_rows,
    with_item_columns,
    write_json,
    write_row_file,
)
from privstream.pipelines.sinks.row_formats import Layout
from privstream.pipelines.sinks.wide_table import write_wide
from privstream.pipelines.sources.fields import AnyFields, FieldMapping, SharedFields
from privstream.pipelines.sources.first_records import unusable
from privstream.pipelines.sources.found_files import EventFile
from privstream.pipelines.sources.frame_files import save_rows
from privstream.pipelines.sources.normalise import OF_READING
from privstream.pipelines.stores import filesystems, join
from privstream.transforms.counters import Counters, summed
from privstream.transforms.counts.finished import corrected_rows
from privstream.transforms.events.parameters import MOST_SHARDS, Parameters

if TYPE_CHECKING:
    from privstream.pipelines.sinks.destination import Destination

READ = "Read"
"""What stages are called that read for all questions."""

ROWS_OF_QUERY = "rows of the query.parquet"
SHARDS, LEAST_SHARDS = "shards", 4
BYTES_OF_SHARD = 1 << 30
"""Of input, at most, whose people one shard has: one window of it is in memory at a time."""

PLACES = (
    "command",
    "about",
    "traceback",
    "quiet",
    "input",
    "query",
    "output",
    "copy",
    "dead_letter",
    "noise_key_file",
    "noise_key_variable",
    "kafka_setting",
    "overwrite",
    "wide",
    "dry_run",
    "workers",
    "ledger",
)
"""Options that say where things are and how to get there, not what is promised."""


def stage_label(name: str, stage: str) -> str:
    """Return what a stage of a question is called, beside those of other questions."""
    return f"{name}{OF_READING}{stage}" if name else stage


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
    transform: Any
    promised: Mapping[str, Any]
    row_type: type
    more: Mapping[str, Any] = field(default_factory=dict)
    destination: Destination | None = None

    def label(self, stage: str) -> str:
        """Return what one of its stages is called, beside those of other questions."""
        return stage_label(self.name, stage)

    def counters(self, counted: Counters) -> dict[str, int]:
        """Return what a run has counted that is about this question: its own stages, and of reading what is about all.

        Of records that were read for several questions each has counted which it can use.
        """
        if not self.name:
            return summed((name, number) for (_, name), number in counted.items())
        found, own = [], re.compile(rf"{self.name}(?:{OF_READING}|-)")  # some runners write a hyphen
        for (stage, name), number in counted.items():
            whose, colon, what = name.rpartition(OF_READING)
            if own.match(stage) or (colon and self.name in whose.split(",")):
                found.append((what, number))
            elif stage.startswith(READ) and not colon:
                found.append((name, number))
        return summed(found)

    def limits(self, counted: Counters) -> dict[str, Any]:
        """Return what the guarantee file says of the limits of a person, once a run has released it; else nothing."""
        counts = getattr(self.transform, "counts", None) or self.transform
        found = counts.limits(self.counters(counted)) if hasattr(counts, "limits") else None
        return {} if found is None else {"limits": found}

    @property
    def wide(self) -> bool:
        """Whether rows of windows stand side by side."""
        return bool(getattr(self.arguments, "wide", False))

    def raw(self, path: str) -> tuple[str, type]:
        """Return the file and the type of the rows of a finished run before `explain` writes those that are shown."""
        if self.transform.explained is None and not self.wide:
            return path, self.row_type
        folder, slash, name = path.rpartition("/")
        return f"{folder}{slash}.{name}.all.parquet", self.transform.unfinished or self.transform.row_type

    def explain(self, path: str, counted: Counters) -> Counters:
        """Write the rows of a finished run as they are shown, corrected where limits drop much of them.

        Returns:
            What the run has counted, with the number of rows that are shown.
        """
        limits, (raw, row_type) = self.limits(counted).get("limits"), self.raw(path)
        dropped = None if limits is None else limits["dropped"]
        if raw == path and dropped is None:
            return counted
        rows = corrected_rows(read_row_file(raw, row_type), dropped)
        if self.transform.explained is not None:
            rows = self.transform.explained(rows)
        rows = sort_rows(rows, self.spec.order) if self.spec.order else rows
        (write_wide if self.wide else write_row_file)(path, self.row_type, rows)
        if raw != path:
            filesystems().delete([raw])
        own, published = self.label("Explain"), self.counters(counted).get(self.spec.published, 0)
        return {**counted, (own, self.spec.published): len(rows) - published}

    def facts(self, counted: Counters) -> words.Asked:
        """Return what the summary of a run says of the question."""
        counters = self.counters(counted)
        known = COMPLETE in counters or (self.arguments.dry_run and counters)
        return words.Asked(
            name=self.name,
            counters=counters if known else {},
            record={**self.promised, **({} if self.arguments.dry_run else self.limits(counted))},
            published=counters.get(self.spec.published, 0),
            advice=self.transform.advice,
            alike=counters.get(ALIKE, 0),
        )


def bounded_input(
    arguments: argparse.Namespace, fields: AnyFields, folder: str | None
) -> tuple[str, AnyFields, str | None]:
    """Return the files to be read, what is read of them, and their format; rows of a query are saved in a folder.

    Raises:
        ValueError, TypeError, OSError: naming the option.
    """
    if folder is None or not reads_query(arguments):
        return arguments.input, fields, arguments.input_format
    path = os.path.join(folder, ROWS_OF_QUERY)
    save_rows(arguments.input, arguments.query, fields, path)
    return path, fields, None


class InputRead(NamedTuple):
    """What is read: `files`, if it has an end, and its `fields`; and how many processes may share the work."""

    read: Any
    workers: int


@dataclass(frozen=True, kw_only=True)
class Asking:
    """Questions about one input, and what writes all of them into the ledger.

    Attributes:
        arguments: options of the run.
        unbounded: whether the input has no end.
        read: what is read: `files`, if it has an end, and its `fields`.
        fields: what it reads.
        questions: at least one; the names of several differ.
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

    def charged(self) -> Charge:
        """Write the run into the ledger.

        Raises:
            UsageError: it may not be paid for.
        """
        try:
            return self.charge()
        except (ValueError, TypeError) as error:
            raise UsageError(str(error)) from error


def is_sent(arguments: argparse.Namespace) -> bool:
    """Tell whether the output is no file."""
    return str(arguments.output).startswith((KAFKA, POSTGRESQL))


def with_files(arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the options with files as their output: the copy, if rows are sent.

    Raises:
        ValueError: naming the option.
    """
    if is_sent(arguments) != (arguments.copy is not None):
        raise ValueError(
            f"copy must be given with an --output of {KAFKA} or {POSTGRESQL}, and with no other: the same rows as "
            "files, with the guarantee beside them"
        )
    if arguments.kafka_setting and not any(url.startswith(KAFKA) for url in (arguments.input, arguments.output)):
        raise ValueError(f"kafka_setting must be given with an --input or --output of {KAFKA} only")
    if is_sent(arguments) and arguments.output == arguments.input:
        raise ValueError("--output must be another topic than --input")
    return argparse.Namespace(**(vars(arguments) | {"output": arguments.copy or arguments.output}))


def files_option(arguments: argparse.Namespace) -> str:
    """Return the option that names the files, for messages."""
    return "--output" if arguments.copy is None else "--copy"


def guarantee_path(arguments: argparse.Namespace) -> str:
    """Return where the promise goes; in a folder its name begins with `_`, so that who watches it passes over it."""
    if not is_unbounded(arguments):
        return f"{arguments.output}.guarantee.json"
    return join(arguments.output, GUARANTEE)


def shared_evenly(
    spec: QuestionSpec, given: Mapping[str, Any], workers: int, files: Iterable[EventFile] = ()
) -> dict[str, Any]:
    """Return the arguments of a transform with as many shards of people for each process; they change no answer.

    Args:
        spec: the question, which may have no shards.
        given: the arguments.
        workers: number of processes.
        files: that are read to their end: there is a shard for each `BYTES_OF_SHARD` of them at least.
    """
    if SHARDS not in spec.signature.arguments:
        return dict(given)
    least = max(LEAST_SHARDS, sum(file.size for file in files) // BYTES_OF_SHARD)
    return dict(given) | {SHARDS: min(-(-least // workers) * workers, MOST_SHARDS)}


def promise(
    spec: QuestionSpec,
    transform: Parameters,
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


def row_type_of(spec: QuestionSpec, transform: Parameters, fields: FieldMapping, arguments: argparse.Namespace) -> type:
    """Return the type of rows as they are written.

    Raises:
        ValueError: naming the option.
    """
    row_type: type = spec.row_type_of(transform)
    layout = Layout.of(fields.time_zone, fields.delimiter, fields.decimal)
    written = with_item_columns(row_type, fields.several, layout)
    avro = "avro" in (arguments.output_format, str(arguments.output).rpartition(".")[2].lower())
    wrong = [name for name in fields.several if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)]
    if avro and wrong:
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


def check_usable(arguments: argparse.Namespace, files: Sequence[EventFile], fields: AnyFields) -> None:
    """Refuse a run over files of which it could publish nothing, before it is charged; a dry run finds out itself.

    Raises:
        ValueError: no record can be used of the first ones, or a file cannot be read.
    """
    if arguments.dry_run:
        return
    found = unusable(files, fields)
    if not found:
        return
    given = vars(arguments)
    first = next(iter(fields.readings.values())) if isinstance(fields, SharedFields) else fields
    wanted = {code.partition("_")[0] for code in found} & {"user", "item", "time", "value"}
    named = [f"--{name}_field {field}" for name in sorted(wanted) if (field := getattr(first, name))]
    reasons = listed({fault(code, given.get("time_format")): number for code, number in found.items()})
    read = f" ({', '.join(named)} is read)" if named else ""
    raise ValueError(
        f"input must have records that can be used, and none of the first {found.total():,} can: {reasons}{read}; "
        "nothing was published or spent"
    )


def write_guarantee(path: str, promised: Mapping[str, Any], charge: Charge) -> None:
    """Write what a run promises, and where the ledger says so."""
    write_json(path, dict(promised) | ({} if charge.mark is None else {"ledger": dict(charge.mark)}))
