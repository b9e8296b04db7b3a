"""`privstream audit`: replays the worst pair of neighbours of a question, of a run, or of a whole monitor."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from privstream.mechanisms.guarantee_records import guarantee_of
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.audit.replay import Shown
from privstream.pipelines.audit.worst import RUN, RUNS, worst_pair
from privstream.pipelines.command import Command, RunError, UsageError
from privstream.pipelines.console import clock, show
from privstream.pipelines.locations import MONITOR_FILES
from privstream.pipelines.model.catalogue import MODELS, question
from privstream.pipelines.model.given import Given
from privstream.pipelines.model.question import METHOD, PUBLIC, Windows
from privstream.pipelines.promise import Promise
from privstream.pipelines.report.result import MADE_BY, OF_MONITOR, promise_path
from privstream.pipelines.run.asked import parameters_of
from privstream.pipelines.run.asked import promise as promise_of
from privstream.pipelines.run.plan import Plan
from privstream.pipelines.terminal import say
from privstream.pipelines.yaml_file import read_document
from privstream.transforms.reading.domain import Domain
from privstream.transforms.timing.steps import END_OF_TIME, MICROS, Steps
from rich.table import Table

CONSISTENT, REFUTED = "consistent", "refuted"
MOST_ITEMS = 100
"""Of a public list: noise does not depend on how many there are."""

MEANING = (
    "D has one person more than D', or one event where that is protected: who spends all that limits let count, and "
    "more. Both inputs run through the whole pipeline, and all that noise is drawn for is compared. Share: how much of "
    "what the guarantee allows is used, exactly; above 1 refutes it.",
    "An audit can refute a guarantee, and cannot prove it: the proofs are in docs/proofs.",
)


class Finding(NamedTuple):
    """What a replay has found, and what was claimed."""

    name: str
    method: str
    claim: PrivacyGuarantee
    shown: Shown

    @property
    def verdict(self) -> str:
        """What follows."""
        return REFUTED if self.shown.faults(self.claim) else CONSISTENT

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values for JSON."""
        claimed = {name: getattr(self.claim, name) for name in ("epsilon", "delta", "proof")}
        return {
            "name": self.name,
            "method": self.method or None,
            "claimed": claimed | {"unit": str(self.claim.unit)},
            "measured_epsilon": self.shown.measured(self.claim),
            "share": self.shown.share(self.claim),
            "shift": self.shown.shift,
            "draws_of_one_run_alone": self.shown.alone,
            "faults": self.shown.faults(self.claim),
            "verdict": self.verdict,
        }


def run(target: str, json: bool) -> None:
    """Replay what the target says, and end with the verdict."""
    found, about, without = list[Finding](), dict[str, Any](), dict[str, str]()
    try:
        if os.path.sep not in target and not target.endswith((".json", *MONITOR_FILES)):
            about, found = {"question": target}, _of_question(target)
        else:
            whole, promises = _planned(target) if target.endswith(MONITOR_FILES) else _published(target)
            for name, promise in promises.items():
                try:
                    found.append(_of_run(name, promise))
                except ValueError as error:
                    without[name] = str(error)
            if not found:
                reasons = "; ".join(f"{name}: {reason}" for name, reason in without.items())
                raise ValueError(f"{target} must have a question that can be replayed: {reasons}")
            together = {"epsilon": whole.epsilon, "delta": whole.delta, "unit": str(whole.unit)}
            about = {"file": target, "together": together, "without_replay": without}
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(str(error)) from error
    refuted = [finding.name for finding in found if finding.verdict == REFUTED]
    if json:
        _print(about, found)
    else:
        notes = [f"{name} is not audited: {reason}" for name, reason in without.items()]
        faults = [f"{one.name}: {fault}" for one in found for fault in one.shown.faults(one.claim)]
        show(f"audit of {target}", _table(found), [*faults, *notes, *MEANING])
    if refuted:
        raise RunError(f"the guarantee is refuted by {', '.join(refuted)}: please report it")
    say(f"{CONSISTENT}: nothing was found beyond what the guarantee allows")


def _print(about: Mapping[str, Any], found: Sequence[Finding]) -> None:
    """Print what was found as JSON; what measured the smallest part of its claim stands at the top."""
    least = min(found, key=lambda finding: finding.shown.share(finding.claim)).to_dict()
    summary = {"claimed_epsilon": least["claimed"]["epsilon"]}
    summary |= {"measured_epsilon": least["measured_epsilon"], "unit": least["claimed"]["unit"]}
    verdict = next((finding.verdict for finding in found if finding.verdict == REFUTED), CONSISTENT)
    replays = [finding.to_dict() for finding in found]
    print(json.dumps({**about, **summary, "weakest": least["name"], "verdict": verdict, "replays": replays}, indent=2))


def _table(found: Sequence[Finding]) -> Table:
    """Return a line for each finding."""
    table, texts = Table(), ("replay", "verdict")
    for heading in ("replay", "epsilon", "measured", "delta", "share", "verdict"):
        table.add_column(heading, justify="left" if heading in texts else "right", no_wrap=heading != "replay")
    for name, _, claim, shown in found:
        numbers = (claim.epsilon, shown.measured(claim), claim.delta, shown.share(claim))
        table.add_row(name, *(f"{number:.3g}" for number in numbers), REFUTED if shown.faults(claim) else CONSISTENT)
    return table


def _replayed(name: str, word: str, transform: Any, claim: PrivacyGuarantee) -> Finding:
    """Replay the worst pair of a transform, against a claim.

    Raises:
        ValueError: there is no such pair; the message says why.
        RunError: a run failed.
    """
    with clock(f"replaying {name}"):
        shown, _ = worst_pair(word, transform).replay()
    return Finding(name, getattr(transform, METHOD, ""), claim, shown)


def _of_question(word: str) -> list[Finding]:
    """Replay small runs of a question, of files and of streams."""
    if word not in RUNS:
        raise ValueError(f"TARGET must be one of {', '.join(RUNS)}, or a file, .json or .yaml, got {word}")
    found = []
    for name, options in RUNS[word].items():
        streamed = question(word).transform_class(**{**RUN, **options}, noise=KeyedNoise.random(f"audit {word} {name}"))
        for form, transform in (("file", streamed.over_files()), ("stream", streamed)):
            found.append(_replayed(f"{name}, {form}", word, transform, transform.guarantee))
    return found


def _of_run(name: str, promise: Promise) -> Finding:
    """Replay the run of a guarantee file, against what the file claims.

    Raises:
        ValueError, TypeError: there is no worst pair of such a run, or a parameter cannot be used; the message says so.
        RunError: a run failed.
    """
    word = str(promise.number("made_by", "command")).removeprefix(MADE_BY)
    if word not in MODELS:
        raise ValueError(f"{promise.path} must be of a question, got {word}")
    made = question(word).transform_class(**_options(word, promise), noise=KeyedNoise.random(f"audit {name}"))
    claim = _guarantee(promise)
    if claim.unit != made.guarantee.unit:
        raise ValueError(f"{promise.path} must promise to the unit that its parameters say")
    return _replayed(name, word, made.over_files(), claim)


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
        last = min(steps.last_of_period(steps.first), (steps.end or END_OF_TIME) - 1)
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


OPTIONS: dict[str, dict[str, Any]] = {
    "target": {
        "metavar": "TARGET",
        "help": "a question, such as counts, at small parameters; RESULT.guarantee.json, or the _guarantee.json of the "
        "folder of a monitor; or FILE.yaml, a monitor",
    },
    "--json": {"action": "store_true", "help": "print one JSON object"},
}
COMMAND = Command(
    description="Replays the worst case of a question, or of a run at its own parameters: one person spends all that "
    "limits allow, and all that noise is drawn for is compared with a run without that person. Of a monitor, each "
    "question is held against its part of the budget. Events are invented: it reads no data of yours, costs no privacy "
    "budget, and needs no key. It is for questions whose noise is added to numbers. Public lists are read where the "
    "file says.",
    options=OPTIONS,
    run=run,
)
