"""`privstream audit RESULT.guarantee.json` or `FILE.yaml`: replays the run that a file describes, at its parameters."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from privstream.mechanisms.guarantee_records import guarantee_of
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.run_identity import noise_source
from privstream.pipelines.audit.audit_command import Finding, replayed, report
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.commands.question import AUDIT_OPTIONS
from privstream.pipelines.locations import MONITOR_FILES
from privstream.pipelines.model.catalogue import MODELS, question
from privstream.pipelines.model.given import Given
from privstream.pipelines.model.question import METHOD, PUBLIC, Windows
from privstream.pipelines.promise import Promise
from privstream.pipelines.report.result import MADE_BY, OF_MONITOR, promise_path
from privstream.pipelines.run.asked import parameters_of
from privstream.pipelines.run.asked import promise as promise_of
from privstream.pipelines.run.plan import Plan
from privstream.pipelines.yaml_file import read_document
from privstream.transforms.reading.domain import Domain
from privstream.transforms.timing.steps import END_OF_TIME, MICROS, Steps

MOST_ITEMS = 100
"""Of a public list: noise does not depend on how many there are."""


def replay(name: str, promise: Promise, key_file: str | None) -> Finding:
    """Replay the run of a guarantee file, against what the file claims.

    Raises:
        ValueError, TypeError: there is no worst pair of such a run, or a parameter cannot be used; the message says so.
        RunError: a run failed.
    """
    word = str(promise.number("made_by", "command")).removeprefix(MADE_BY)
    if word not in MODELS:
        raise ValueError(f"{promise.path} must be of a question, got {word}")
    noise = noise_source(key_file, None, f"audit {name}")
    made = question(word).transform_class(**_options(word, promise), noise=noise)
    claim = _guarantee(promise)
    if claim.unit != made.guarantee.unit:
        raise ValueError(f"{promise.path} must promise to the unit that its parameters say")
    return replayed(name, word, made.over_files(), claim)


def _options(word: str, promise: Promise) -> dict[str, Any]:
    """Return the arguments of the transform of a run, but for its noise; of budget periods the first one alone."""
    given = {name: value for name, value in promise.number("parameters").items() if value is not None}
    given.pop("public_items", None)  # they cost nothing of their own, and no list of a monitor is in a file
    kind, known = MODELS[word], question(word).arguments
    asked = kind.read({"question": word} | {name: given[name] for name in kind.options() if name in given})
    windows = Windows.read({name: given[name] for name in Windows.model_fields if name in given})
    options = asked.arguments(windows, zone=given.get("time_zone"))
    options |= {name: given[name] for name in ("epsilon", "delta") if name in known and name in given}
    if (method := promise.maybe("accuracy", METHOD)) is not None:
        options[METHOD] = method
    public = options.get("domain")
    if public is not None and len(public) > MOST_ITEMS:
        options["domain"] = Domain(public.texts.to_pylist()[:MOST_ITEMS])
    every, start = options.get("renew_every"), options.get("start")
    if every is not None and start is not None:
        bounds = {name: options.pop(name) for name in ("end", "windows") if options.get(name) is not None}
        steps = Steps.of(window=options["window"], start=start, renew_every=every, **bounds)
        last = min(steps.last_of_period(steps.first or 0), (steps.end or END_OF_TIME) - 1)
        options["end"] = steps.bounds_micros(last)[1] / MICROS
    return options


def _guarantee(promise: Promise) -> PrivacyGuarantee:
    """Return the guarantee of a file.

    Raises:
        ValueError: there is none in it; the message names the file.
    """
    try:
        return guarantee_of(promise.content)
    except (KeyError, RecursionError) as error:
        raise ValueError(f"{promise.path} must be a guarantee that privstream wrote: {error}") from None


OPTIONS: dict[str, dict[str, Any]] = {
    "file": {
        "metavar": "RESULT.guarantee.json",
        "help": "what a run has written beside its rows, or in the folder of a monitor; or FILE.yaml, a monitor",
    },
    **AUDIT_OPTIONS,
}


def run(file: str, trials: int, key: str | None, json: bool) -> None:
    """Read the file, and replay its run."""
    path, found, without = file, list[Finding](), dict[str, str]()
    try:
        whole, promises = _planned(path) if path.endswith(MONITOR_FILES) else _published(path)
        for name, promise in promises.items():
            try:
                found.append(replay(name, promise, key))
            except ValueError as error:
                without[name] = str(error)
        if not found:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in without.items())
            raise ValueError(f"{path} must have a question that can be replayed: {reasons}")
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(str(error)) from error
    about = {
        "file": path,
        "together": {"epsilon": whole.epsilon, "delta": whole.delta, "unit": str(whole.unit)},
        "without_attack": without,
    }
    notes = [f"{name} is not audited: {reason}" for name, reason in without.items()]
    report(f"audit of {path}", about, found, trials, json=json, notes=notes)


Promises = tuple[PrivacyGuarantee, Mapping[str, Promise]]


def _published(path: str) -> Promises:
    """Return what has been published under a guarantee file, that of a question or of a monitor.

    Raises:
        ValueError: the message names the file.
    """
    promise = Promise.read(path)
    if promise is None:
        raise ValueError(f"{path} must be a file that can be read")
    if promise.number("made_by", "command") != MADE_BY + OF_MONITOR:
        return _guarantee(promise), {"the run": promise}
    promises = {}
    for name, each in promise.number("questions").items():
        beside = promise_path(os.path.join(os.path.dirname(path), str(each["output"])))
        found = None if beside == path else Promise.read(beside)
        if found is None:
            raise ValueError(f"{path} must have the guarantee of {name} beside it, which is not there")
        promises[name] = found
    return _guarantee(promise), promises


def _planned(path: str) -> Promises:
    """Return what a monitor would promise, with the budget of each question that its plan has.

    Raises:
        UsageError, ValueError: the message names line and key.
    """
    document = read_document(path)
    given = Given([document], document)
    monitor = given.monitor()
    with given.errors():
        planned = Plan.of(monitor)
        promises = {}
        for paid in planned.questions:
            asked = monitor.questions[paid.name]
            parameters = parameters_of(monitor, asked, planned.fields[paid.name])
            parameters |= asked.model_dump(mode="json", exclude_none=True, include=set(PUBLIC))  # lists as they are
            content = promise_of(asked, paid.transform, parameters, None, paid.guarantee)
            place = f"{path}, line {document.lines.get(('questions', paid.name), 1)}: questions.{paid.name}"
            promises[paid.name] = Promise(place, json.loads(json.dumps(content)))
        return planned.guarantee, promises


COMMAND = Command(
    description="Replays the run that a file describes, at its own parameters: one person spends all that limits "
    "allow, and all that noise is drawn for is compared with a run without that person. The claim is that of the "
    "file. Of a monitor, FILE.yaml or the _guarantee.json of its folder, each question is held against its part of the "
    "budget. Events are invented: it reads no data of yours, costs no privacy budget, and needs no key. It is for "
    "questions whose noise is added to numbers. Public lists are read where the file says.",
    options=OPTIONS,
    run=run,
)
