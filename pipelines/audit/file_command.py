"""`privstream audit RESULT.guarantee.json` or `FILE.yaml`: attacks the run that a file describes, at its parameters."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.guarantee_records import guarantee_of
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.run_identity import noise_source
from privstream.pipelines.audit.attacks import Attack
from privstream.pipelines.audit.audit_command import (
    Audit,
    AuditCommand,
    Finding,
    Trying,
    attacks_on,
)
from privstream.pipelines.audit.whole_run import SPENDINGS, whole_run
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.commands.question import add_audit_options
from privstream.pipelines.locations import MONITOR_FILES
from privstream.pipelines.model.catalogue import MODELS, question
from privstream.pipelines.model.given import Given
from privstream.pipelines.model.question import METHOD, PUBLIC, QuestionInfo, Windows
from privstream.pipelines.promise import Promise
from privstream.pipelines.report.result import MADE_BY, OF_MONITOR, promise_path
from privstream.pipelines.run.asked import parameters_of
from privstream.pipelines.run.asked import promise as promise_of
from privstream.pipelines.run.plan import arguments_of, fields_of, is_unbounded, shared_out
from privstream.pipelines.run.run import NOISE
from privstream.pipelines.yaml_file import read_document
from privstream.transforms.timing.steps import END_OF_TIME, MICROS, Steps
from typing_extensions import override

LEAST_EPSILON = 0.5
"""Of attacks on mechanisms: those with less would take more trials than one waits for."""


@dataclass(frozen=True)
class FileAudit(AuditCommand):
    """The command that attacks the run of a guarantee file: a transform with all its parameters, on invented events."""

    promise: Promise

    @cached_property
    def _options(self) -> dict[str, Any]:
        """Arguments of the transform of the run.

        Raises:
            ValueError, TypeError: a parameter of the file cannot be used; the message names it.
        """
        given = dict(self.promise.number("parameters"))
        given.pop("public_items", None)  # they cost nothing of their own, and no list of a monitor is in a file
        kind = MODELS[self.spec.word]
        own = {name: given[name] for name in kind.options() if given.get(name) is not None}
        windows = {name: given[name] for name in Windows.model_fields if given.get(name) is not None}
        question = kind.read({"question": self.spec.word, **own})
        options = question.arguments(Windows.read(windows), zone=given.get("time_zone"))
        options |= {name: given[name] for name in ("epsilon", "delta") if name in self.spec.arguments and name in given}
        method = self.promise.maybe("accuracy", METHOD)
        if method is not None:
            options[METHOD] = method
        return one_period(options)

    @override
    def _attacks(self) -> Sequence[Attack]:
        return [self.attack]

    @cached_property
    def attack(self) -> Attack:
        """The attack on all that the run publishes.

        Raises:
            ValueError, TypeError: there is none; the message says why.
        """
        made = self.spec.transform_class(**self._options, noise=KeyedNoise.random("audit"))
        claim = self._claim()
        if (claim.unit, claim.neighbouring) != (made.guarantee.unit, made.guarantee.neighbouring):
            raise ValueError(f"{self.promise.path} must promise to the unit that its parameters say")
        return whole_run(self.spec, self._options, made)

    @override
    def _claim(self) -> PrivacyGuarantee:
        return _guarantee(self.promise)

    @override
    def _title(self, trials: int) -> str:
        return f"audit of the run of {self.promise.path}, at most {trials:,} trials"


def one_period(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of a run that has an end: of one that starts afresh now and then, those of its first period."""
    every, start = options.get("renew_every"), options.get("start")
    if every is None or start is None:
        return options
    given = {name: options[name] for name in ("end", "windows") if options.get(name) is not None}
    steps = Steps.of(window=options["window"], start=start, renew_every=every, **given)
    first = steps.first or 0
    last = min(steps.last_of_period(first), (steps.end or END_OF_TIME) - 1)
    return {name: options[name] for name in options if name != "windows"} | {
        "end": steps.bounds_micros(last)[1] / MICROS
    }


@dataclass(frozen=True, kw_only=True)
class TryingQuestion(Trying):
    """How a question of a monitor is attacked: with noise that is derived as in a run of all of them.

    Attributes:
        name: of the question.
        source: the noise of all questions, by the name of trials.
    """

    name: str
    source: Callable[[str], NoiseSource]

    @override
    def noise(self, attack: Attack, name: str) -> NoiseSource:
        return self.source(name).derive(NOISE, self.name)


@dataclass(frozen=True)
class MonitorAudit(Audit):
    """The command that attacks each question of a monitor as its run answers it.

    Attributes:
        path: of the file of the monitor, or of its guarantee.
        whole: what all questions promise together.
        audits: of the questions on whose runs there is an attack, by name.
        without: why there is none on the others, by name.
        own: of questions whose mechanisms are attacked at parameters of their own, by name: with the epsilon that the
            question has, or `LEAST_EPSILON`.
    """

    path: str
    whole: PrivacyGuarantee
    audits: Mapping[str, FileAudit]
    without: Mapping[str, str]
    own: Mapping[str, tuple[QuestionInfo, Sequence[Attack]]]

    @classmethod
    def of(cls, path: str, whole: PrivacyGuarantee, promises: Mapping[str, Promise]) -> MonitorAudit:
        """Return the audit of a monitor, from what each of its questions promises.

        Raises:
            ValueError: there is an attack on none of them.
        """
        audits, without, own = {}, {}, {}
        for name, promise in promises.items():
            word = _word(promise)
            if word not in SPENDINGS:
                spec = question(word)
                attacks = attacks_on(spec, max(LEAST_EPSILON, _guarantee(promise).epsilon))
                own[name] = spec, [attack for attack in attacks if attack.about == "epsilon"]
                continue
            try:
                audit = FileAudit(_question(promise), promise)
                _ = audit.attack
            except ValueError as error:
                without[name] = str(error)
            else:
                audits[name] = audit
        if not audits and not own:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in without.items())
            raise ValueError(f"{path} must have a question on whose runs there is an attack: {reasons}")
        return cls(path, whole, audits, without, own)

    @override
    def _attacks(self) -> Sequence[Attack]:
        attacks = {name: [audit.attack] for name, audit in self.audits.items()}
        attacks |= {name: list(tried) for name, (_, tried) in self.own.items()}
        return [replace(each, name=f"{name}: {each.name}") for name, tried in attacks.items() for each in tried]

    @override
    def _trying(self, attack: Attack, arguments: argparse.Namespace, wrong: float) -> Trying:
        name = attack.name.partition(":")[0]
        if name in self.own:
            spec, _ = self.own[name]
            return Trying(spec=spec, trials=arguments.trials, key_file=arguments.key, wrong=wrong)
        return TryingQuestion(
            spec=self.audits[name].spec,
            trials=arguments.trials,
            key_file=arguments.key,
            wrong=wrong,
            claim=self.audits[name]._claim(),
            name=name,
            source=self._source(arguments.key),
        )

    @cached_property
    def _source(self) -> Callable[[str | None], Callable[[str], NoiseSource]]:
        """The noise of all questions, by the file of the key and by the name of trials: one for all of them."""
        return cache(lambda key_file: cache(lambda name: noise_source(key_file, None, f"audit {name}")))

    @override
    def _title(self, trials: int) -> str:
        return f"audit of the questions of {self.path}, at most {trials:,} trials of each"

    @property
    @override
    def _about(self) -> Mapping[str, Any]:
        return {
            "monitor": self.path,
            "together": {"epsilon": self.whole.epsilon, "delta": self.whole.delta, "unit": str(self.whole.unit)},
            "without_attack": dict(self.without),
            "at_own_parameters": list(self.own),
        }

    @override
    def _describe(self, findings: Sequence[Finding], trials: int) -> dict[str, Any]:
        found = super()._describe(findings, trials)
        return found | {"attack": found["weakest_attack"]}

    @property
    @override
    def _notes(self) -> Sequence[str]:
        together = (
            f"Each question is held against its own part of the budget; all together promise epsilon = "
            f"{self.whole.epsilon:g}, delta = {self.whole.delta:g}, for {self.whole.unit}."
        )
        of_others = (
            f"{name} is attacked as privstream audit {spec.word} does it: at parameters of its own, with the epsilon "
            f"of the question or {LEAST_EPSILON:g}, whichever is larger, and held against what these promise."
            for name, (spec, _) in self.own.items()
        )
        not_attacked = (f"{name} is not attacked: {reason}" for name, reason in self.without.items())
        return (together, *of_others, *not_attacked)


def _guarantee(promise: Promise) -> PrivacyGuarantee:
    """Return the guarantee of a file.

    Raises:
        ValueError: there is none in it; the message names the file.
    """
    try:
        return guarantee_of(promise.content)
    except (KeyError, RecursionError) as error:
        raise ValueError(f"{promise.path} must be a guarantee that privstream wrote: {error}") from None


def _word(promise: Promise) -> str:
    """Return the question that a guarantee file answers."""
    return str(promise.number("made_by", "command")).removeprefix(MADE_BY)


def _question(promise: Promise) -> QuestionInfo:
    """Return the question of a guarantee file on whose runs there is an attack.

    Raises:
        ValueError: there is none.
    """
    word = _word(promise)
    if word not in SPENDINGS:
        raise ValueError(
            f"{promise.path} must be of {', '.join(SPENDINGS)}, whose noise is added to what is published, got "
            f"{word}: privstream audit {word} attacks it at parameters of its own"
        )
    return question(word)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    words = "what a run has written beside its rows, or in the folder of a monitor; or FILE.yaml, a monitor"
    parser.add_argument("file", metavar="RESULT.guarantee.json", help=words)
    add_audit_options(parser)


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Read the file, and attack a run as it describes."""
    path = arguments.file
    try:
        audit = _planned(path) if path.endswith(MONITOR_FILES) else _published(path)
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(str(error)) from error
    audit.run(arguments)


def _published(path: str) -> Audit:
    """Return the audit of what has been published under a guarantee file, that of a question or of a monitor.

    Raises:
        ValueError: the message names the file.
    """
    promise = Promise.read(path)
    if promise is None:
        raise ValueError(f"{path} must be a file that can be read")
    if promise.number("made_by", "command") != MADE_BY + OF_MONITOR:
        return FileAudit(_question(promise), promise)
    promises = {}
    for name, each in promise.number("questions").items():
        beside = promise_path(os.path.join(os.path.dirname(path), str(each["output"])))
        found = None if beside == path else Promise.read(beside)
        if found is None:
            raise ValueError(f"{path} must have the guarantee of {name} beside it, which is not there")
        promises[name] = found
    return MonitorAudit.of(path, _guarantee(promise), promises)


def _planned(path: str) -> Audit:
    """Return the audit of a monitor as its run would be, with the budget of each question that its plan has.

    Raises:
        UsageError, ValueError: the message names line and key.
    """
    document = read_document(path)
    given = Given([document], document)
    monitor = given.monitor()
    with given.errors():
        fields = fields_of(monitor)
        own = {name: arguments_of(monitor, name, fields[name]) for name in monitor.questions}
        planned = shared_out(monitor, own, unbounded=is_unbounded(monitor))
        promises = {}
        for paid in planned.questions:
            asked = monitor.questions[paid.name]
            parameters = parameters_of(monitor, asked, fields[paid.name])
            parameters |= asked.model_dump(mode="json", exclude_none=True, include=set(PUBLIC))  # lists as they are
            content = promise_of(asked, paid.transform, parameters, None, paid.guarantee)
            line = document.lines.get(("questions", paid.name), 1)
            promises[paid.name] = Promise(
                f"{path}, line {line}: questions.{paid.name}", json.loads(json.dumps(content))
            )
        return MonitorAudit.of(path, planned.guarantee, promises)


COMMAND = Command(
    description="Attacks the run that a file describes, at its own parameters: one person spends all that limits "
    "allow, and the adversary sees all that is published. The claim is that of the file. Of a monitor, FILE.yaml or "
    "the _guarantee.json of its folder, each question is attacked with its part of the budget. Events are invented: "
    "it reads no data of yours, costs no privacy budget, and needs no key. It is for runs of "
    f"{', '.join(SPENDINGS)} whose noise is added to counts; mechanisms of other questions of a monitor are attacked "
    "at parameters of their own. Public lists are read where the file says.",
    add_arguments=add_arguments,
    run=run,
)
