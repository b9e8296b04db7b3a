"""`privstream audit RESULT.guarantee.json`: attacks the run that a guarantee file describes, at its own parameters."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.guarantee_records import guarantee_of
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.audit.attacks import Attack
from privstream.pipelines.audit.audit_command import AuditCommand
from privstream.pipelines.audit.whole_run import SPENDINGS, always_met, whole_run
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.plot.promise import Promise
from privstream.pipelines.questions.catalogue import question
from privstream.pipelines.questions.commands import add_audit_options
from privstream.pipelines.questions.options import STREAMS
from privstream.pipelines.questions.readings import arguments_of
from privstream.pipelines.questions.spec import METHOD, STREAMS_PER_PERSON
from typing_extensions import override

MAKER = "privstream "
"""What stands before the question in a guarantee file."""


@dataclass(frozen=True)
class FileAudit(AuditCommand):
    """The command that attacks the run of a guarantee file: a transform with all its parameters, on invented events."""

    promise: Promise

    @cached_property
    def _options(self) -> dict[str, Any]:
        """Arguments of the transform of the run, but for its streams.

        Raises:
            ValueError, TypeError: a parameter of the file cannot be used; the message names it.
        """
        given = dict(self.promise.number("parameters"))
        given.pop("public_items", None)  # they cost nothing of their own, and no list of a monitor is in a file
        streams = given.get(STREAMS) is not None or given.get("stream_field") is not None
        options = arguments_of(self.spec, given, streams=streams)
        method = self.promise.maybe("accuracy", METHOD)
        if method is not None:
            options[METHOD] = method
        several = options.pop(STREAMS_PER_PERSON, None)
        if streams and STREAMS_PER_PERSON in self.spec.signature.arguments and several != 1:
            raise ValueError(f"streams_per_person must be 1: attacks are on one stream of a person, got {several}")
        options.pop(STREAMS, None)
        return always_met(options)

    @override
    def _attacks(self) -> Sequence[Attack]:
        made = self.spec.transform_class(**self._options, noise=KeyedNoise.random("audit"))
        claim = self._claim()
        if (claim.unit, claim.neighbouring) != (made.guarantee.unit, made.guarantee.neighbouring):
            raise ValueError(f"{self.promise.path} must promise to the unit that its parameters say")
        return [whole_run(self.spec, self._options, made)]

    @override
    def _claim(self) -> PrivacyGuarantee:
        try:
            return guarantee_of(self.promise.content)
        except (KeyError, RecursionError) as error:
            raise ValueError(f"{self.promise.path} must be a guarantee that privstream wrote: {error}") from None

    @override
    def _title(self, trials: int) -> str:
        return f"audit of the run of {self.promise.path}, at most {trials:,} trials"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("file", metavar="RESULT.guarantee.json", help="what a run has written beside its rows")
    add_audit_options(parser)


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Read the file, and attack a run as it describes."""
    try:
        promise = Promise.read(arguments.file)
        if promise is None:
            raise ValueError(f"{arguments.file} must be a file that can be read")
        word = str(promise.number("made_by", "command")).removeprefix(MAKER)
        if word not in SPENDINGS:
            raise ValueError(
                f"{arguments.file} must be of {', '.join(SPENDINGS)}, whose noise is added to what is published, got "
                f"{word}: privstream audit {word} attacks it at parameters of its own"
            )
    except ValueError as error:
        raise UsageError(str(error)) from error
    FileAudit(question(word), promise).run(arguments)


COMMAND = Command(
    description="Attacks the run that a guarantee file describes, at its own parameters: one person spends all that "
    "limits allow, and the adversary sees all that is published. The claim is that of the file. Events are invented: "
    "it reads no data of yours, costs no privacy budget, and needs no key. It is for runs of "
    f"{', '.join(SPENDINGS)} whose noise is added to counts. Public lists are read where the file says.",
    add_arguments=add_arguments,
    run=run,
)
