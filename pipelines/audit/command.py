"""`privstream audit`: replays the worst pair of neighbours of a question, or of runs by their guarantee files."""

from __future__ import annotations

import json as of_json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee, guarantee_of
from privstream.pipelines.audit.worst import RUN, RUNS, worst_pair
from privstream.pipelines.command import Command, RunError, UsageError
from privstream.pipelines.console import clock, show
from privstream.pipelines.model.catalogue import MODELS, question
from privstream.pipelines.model.question import METHOD, Windows
from privstream.pipelines.promise import Promise
from privstream.pipelines.report.result import MADE_BY, OF_MONITOR, promise_path
from privstream.pipelines.terminal import say
from privstream.transforms.reading.domain import Domain
from privstream.transforms.timing.steps import END_OF_TIME, MICROS, Steps
from rich.table import Table

MOST_ITEMS = 100
"""Of a public list: noise does not depend on how many there are."""

MEANING = (
    "D has one person more than D', or one event where that is protected: who spends all that limits let count, and "
    "more. Both inputs run through the whole pipeline, and all that noise is drawn for is compared. Share: how much of "
    "what the guarantee allows is used, exactly; above 1 refutes it.",
    "An audit can refute a guarantee, and cannot prove it: the proofs are in docs/proofs.",
)

Finding = dict[str, Any]
"""What a replay has found, and what was claimed, as plain values."""


def run(target: str, json: bool) -> None:
    """Replay what the target says, and end with the verdict."""
    found, without = list[Finding](), dict[str, str]()
    try:
        if os.path.sep not in target and not target.endswith(".json"):
            found = _of_question(target)
        else:
            for name, promise in _published(target).items():
                try:
                    found.append(_of_run(name, promise))
                except ValueError as error:
                    without[name] = str(error)
            if not found:
                reasons = "; ".join(f"{name}: {reason}" for name, reason in without.items())
                raise ValueError(f"{target} must have a question that can be replayed: {reasons}")
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(str(error)) from error
    if json:
        least = min(found, key=lambda one: float(one["share"]))
        about = {name: least[name] for name in ("claimed_epsilon", "claimed_delta", "unit", "share")}
        print(of_json.dumps({**about, "replays": found, "without_replay": without}, indent=2))
    else:
        faults = [f"{one['name']}: {fault}" for one in found for fault in one["faults"]]
        notes = [f"{name} is not audited: {reason}" for name, reason in without.items()]
        show(f"audit of {target}", _table(found), [*faults, *notes, *MEANING])
    if refuted := [one["name"] for one in found if one["faults"]]:
        raise RunError(f"the guarantee is refuted by {', '.join(refuted)}: please report it")
    say("consistent: nothing was found beyond what the guarantee allows")


def _table(found: Sequence[Finding]) -> Table:
    """Return a line for each finding."""
    table = Table("replay")
    numbers = {"epsilon": "claimed_epsilon", "delta": "claimed_delta", "share": "share"}
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for one in found:
        verdict = "refuted" if one["faults"] else "consistent"
        table.add_row(one["name"], *(f"{one[field]:.3g}" for field in numbers.values()), verdict)
    return table


def _replayed(name: str, word: str, transform: Any, claim: PrivacyGuarantee) -> Finding:
    """Replay the worst pair of a transform, against a claim.

    Raises:
        ValueError: there is no such pair; the message says why.
        RunError: a run failed.
    """
    with clock(f"replaying {name}"):
        shown, _ = worst_pair(word, transform).replay()
    return {
        "name": name,
        "claimed_epsilon": claim.epsilon,
        "claimed_delta": claim.delta,
        "unit": str(claim.unit),
        "share": shown.share(claim),
        "faults": shown.faults(claim),
    }


def _of_question(word: str) -> list[Finding]:
    """Replay small runs of a question, of files and of streams."""
    if word not in RUNS:
        raise ValueError(f"TARGET must be one of {', '.join(RUNS)}, or a guarantee file, .json, got {word}")
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
    try:
        claim = guarantee_of(promise.content)
    except (KeyError, RecursionError) as error:
        raise ValueError(f"{promise.path} must be a guarantee that privstream wrote: {error}") from None
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


def _published(path: str) -> Mapping[str, Promise]:
    """Return the guarantee files of a run, by the names of its questions, from that of a question or of a monitor.

    Raises:
        ValueError: the message names the file.
    """
    promise = Promise.read(path)
    if promise is None:
        raise ValueError(f"{path} must be a file that can be read")
    if promise.number("made_by", "command") != MADE_BY + OF_MONITOR:
        return {"the run": promise}
    promises = {}
    for name, each in promise.number("questions").items():
        beside = promise_path(os.path.join(os.path.dirname(path), str(each["output"])))
        found = None if beside == path else Promise.read(beside)
        if found is None:
            raise ValueError(f"{path} must have the guarantee of {name} beside it, which is not there")
        promises[name] = found
    return promises


COMMAND = Command(
    description="Replays the worst case of a question, or of a run at its own parameters: one person spends all that "
    "limits allow, and all that noise is drawn for is compared with a run without that person. Of a monitor, each "
    "question is held against its part of the budget. Events are invented: it reads no data of yours, costs no privacy "
    "budget, and needs no key. It is for questions whose noise is added to numbers. Public lists are read where the "
    "file says.",
    options={
        "target": {
            "metavar": "TARGET",
            "help": "a question, such as counts, at small parameters; RESULT.guarantee.json, or the _guarantee.json of "
            "the folder of a monitor",
        },
        "--json": {"action": "store_true", "help": "print one JSON object"},
    },
    run=run,
)
