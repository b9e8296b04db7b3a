"""What every command that watches events does: read, run one transform, write rows, and say what is promised."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from privstream.mechanisms import KeyedNoise
from privstream.pipelines.accounts.account import Account, Charge
from privstream.pipelines.accounts.run_identity import RunIdentity, identify, noise_source, public_name, reading
from privstream.pipelines.command import NothingUsableError, UsageError
from privstream.pipelines.console import clock
from privstream.pipelines.promise import Promise
from privstream.pipelines.questions.arguments import given_to, settled, transform_of
from privstream.pipelines.questions.asked import (
    Asked,
    Asking,
    check_apart,
    check_usable,
    files_option,
    guarantee_path,
    is_sent,
    promise,
    row_type_of,
    shared_evenly,
    with_files,
    write_guarantee,
)
from privstream.pipelines.questions.input_end import is_unbounded
from privstream.pipelines.questions.spec import QuestionSpec, loaded
from privstream.pipelines.show.words import LABEL, summary
from privstream.pipelines.sinks.row_files import check_destination, check_new, fingerprint, output_format
from privstream.pipelines.sinks.terminal_table import TERMINAL, file_or_terminal, print_rows, read_table, until_closed
from privstream.pipelines.sinks.wide_table import check_wide
from privstream.pipelines.stores import exists
from privstream.pipelines.terminal import gap, is_quiet, say
from privstream.transforms.counters import Counters
from privstream.transforms.events.release import plain
from rich.console import Console

INPUT = "input"
RUN_ID_NEEDED = "run_id must be given when the input has no end: only a name can distinguish such runs"


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
        runs = loaded(self.spec.runs)
        options = runs.options(arguments, beam_arguments)
        with _folder_of(arguments) as folder:
            try:
                with clock("checking options and input"):
                    run = self._check(runs, arguments, options, folder)
            except (ValueError, TypeError, OSError) as error:
                raise UsageError(str(error)) from error
            self._publish(run, options)

    def _publish(self, run: Any, options: Any) -> None:
        """Run it, and write its rows and what it promises."""
        (asked,) = run.questions
        arguments = asked.arguments
        if arguments.dry_run:
            counted, charge = run.try_out(options)
            return self._report(run, counted, charge)
        guarantee_file, table = guarantee_path(arguments), None
        with file_or_terminal(arguments.output) as path:
            try:
                write = run.write_to(asked, path, unbounded=run.unbounded)
            except (ValueError, TypeError, OSError) as error:
                raise UsageError(str(error)) from error
            accepted = partial(write_guarantee, guarantee_file, asked.promised)
            counted, charge = run.publish(options, [write], accepted)
            if not run.unbounded:
                counted = asked.explain(path, counted)
                table = None if is_quiet() or asked.wide else read_table(path, asked.row_type)
        if arguments.output != TERMINAL and not run.unbounded:
            rows = {"rows": {"sha256": fingerprint(arguments.output)}}
            write_guarantee(guarantee_file, {**asked.promised, **rows, **asked.limits(counted)}, charge)
        if asked.destination is not None and not run.unbounded:
            say(loaded("questions.input_output.send")(asked.destination, arguments.output))
        self._report(run, counted, charge, table)

    def _check(self, runs: Any, arguments: argparse.Namespace, options: Any, folder: str) -> Any:
        """Check the options and the input, and return what runs, of the class `runs`."""
        output, arguments = arguments.output, settled(self.spec, with_files(arguments))
        unbounded = is_unbounded(arguments)
        read, workers = runs.of(self.spec, arguments, options, folder)
        more = {} if self.spec.inputs is None else loaded(self.spec.inputs)(arguments)
        account = Account.prepare(arguments.ledger, arguments.noise_key_file, arguments.dataset)
        guarantee_file = guarantee_path(arguments)
        named = [(f"--{name}", getattr(arguments, name)) for name in ("noise_key_file", *self.spec.files)]
        written = [("--dead_letter", arguments.dead_letter)]
        if arguments.output != TERMINAL:
            written = [(files_option(arguments), arguments.output), ("the guarantee", guarantee_file), *written]
        files = [("--input", file.path) for file in read.files]
        check_apart([*files, *((name, path) for name, path in named if isinstance(path, str))], account.path, written)
        _check_output(arguments, guarantee_file, unbounded)
        given = given_to(self.spec, arguments, read.fields)
        watched = self.spec.watched if unbounded else None
        drawn = transform_of(self.spec, given, KeyedNoise.random(), unbounded=unbounded).release
        further = self.spec.files if self.spec.inputs is not None else ()
        readings = reading(arguments, read.fields, further, watched)
        identity = identify({"": drawn}, {"": readings}, arguments, read.files if watched != INPUT else (), watched)
        label = run_label(arguments, identity, unbounded=unbounded)
        noise = noise_source(arguments.noise_key_file, arguments.noise_key_variable, label)
        arguments = argparse.Namespace(**(vars(arguments) | {"run_id": arguments.run_id or public_name(noise)}))
        shared = shared_evenly(self.spec, given, workers, () if unbounded else read.files)
        transform = transform_of(self.spec, shared, noise, unbounded=unbounded)
        promised = promise(self.spec, transform, arguments, self.shown)
        if unbounded:
            promised |= release_of_stream(identity, transform)
        if unbounded and arguments.dry_run:
            raise ValueError("dry_run must not be given when the input has no end")
        if unbounded:
            loaded("questions.input_output.check_same_promise")(guarantee_file, promised, files_option(arguments))
        given_output = argparse.Namespace(**(vars(arguments) | {"output": output}))
        row_type = row_type_of(self.spec, transform, read.fields, arguments)
        if arguments.wide:
            check_wide(output, row_type, unbounded=unbounded)
        sent = None
        if is_sent(given_output):
            make = loaded("questions.input_output.destination")
            sent = make([output], given_output, arguments.run_id, row_type, self.spec.key)
        if sent is not None and not arguments.dry_run:  # the check makes a table that is missing
            sent.check(first=not exists(guarantee_file))
        if watched != INPUT:
            check_usable(arguments, read.files, read.fields)
        asked = Asked(
            spec=self.spec,
            arguments=arguments,
            fields=read.fields,
            transform=transform,
            promised=promised,
            row_type=row_type,
            more=more,
            destination=sent,
        )
        return runs(
            arguments=arguments,
            unbounded=unbounded,
            read=read,
            fields=read.fields,
            questions=(asked,),
            charge=partial(
                account.charge,
                identity,
                label,
                self.spec.word,
                output,
                noise,
                transform.guarantee,
                name=arguments.run_id,
                dry=arguments.dry_run,
            ),
            letters=runs.letters_to(arguments.dead_letter, unbounded=unbounded),
            workers=workers,
        )

    def _report(self, run: Asking, counted: Counters, charge: Charge, table: Any = None) -> None:
        """Tell what was read and published, what that promises, and the newest rows.

        Raises:
            NothingUsableError: nothing that was read could be used.
        """
        (asked,), arguments = run.questions, run.arguments
        facts = asked.facts(counted)
        told = summary(
            [facts],
            asked.promised["guarantee"],
            budget=charge.budget,
            path=None if arguments.output == TERMINAL else arguments.output,
            dead_letter=arguments.dead_letter,
            dry_run=bool(arguments.dry_run),
        )
        say("\n".join(told.before))
        if table is not None:
            self._show(asked, table, facts.record)
        say("\n".join(told.after), LABEL)
        if asked.destination is not None and run.unbounded:
            say(asked.destination.sent_from(arguments.output, asked.counters(counted)))
        if told.nothing is not None:
            raise NothingUsableError(told.nothing)

    def _show(self, asked: Asked, table: Any, record: Mapping[str, Any]) -> None:
        """Print the newest rows on the standard output, or what a question has in their place."""
        path = None if asked.arguments.output == TERMINAL else asked.arguments.output
        gap()
        with until_closed():
            if self.spec.table:
                print_rows(table, record, path=path, nothing=self.spec.why_nothing or "nothing is published")
            elif self.spec.below is not None and path is None:
                rows = [asked.row_type(**row) for row in table.to_pylist()]
                for each in loaded(self.spec.below)(rows, Promise("", record), asked.arguments):
                    Console().print(each)
            sys.stdout.flush()
        gap()


def _folder_of(arguments: argparse.Namespace) -> AbstractContextManager[str]:
    """Return a folder for the rows of a query, while the run goes on; other runs need none."""
    if arguments.query is None:
        return nullcontext("")
    return tempfile.TemporaryDirectory(prefix="privstream-")


def run_label(arguments: argparse.Namespace, identity: RunIdentity, *, unbounded: bool) -> str:
    """Return what noise depends on, beside its key: the run id, if one was given, and what the run draws of what."""
    if unbounded and not arguments.run_id:
        raise ValueError(RUN_ID_NEEDED)
    return identity.label(arguments.run_id)


def release_of_stream(identity: RunIdentity, transform: Any) -> dict[str, Any]:
    """Return what the guarantee file of a run without an end says so that only the same run goes on in its folder.

    Its digest has no data in it, only public parameters and places.
    """
    given = transform._given
    views = {name: plain(given[name]) for name in transform.views if name in given}
    return {"release": {"digest": identity.digest, "views": views}}


def _check_output(arguments: argparse.Namespace, guarantee_file: str, unbounded: bool) -> None:
    """Check that rows and guarantee can be written, and that they replace no results, unless that is wanted."""
    option = files_option(arguments)
    if unbounded:
        loaded("sinks.window_files.check_folder")(arguments.output, option)
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
